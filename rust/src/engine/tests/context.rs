//! Prompts and answers at the borders of waves, of blocks of keys and of the context: what they are
//! answered does not depend on what the engine, or its file, knows already.

use super::*;

const CTX: usize = 520;
/// Prompt tokens of a step.
const CHUNK: usize = 100;
/// Around a step, around the first and the second block of keys, up to the longest prompt.
const LENGTHS: [usize; 12] =
    [1, CHUNK - 1, CHUNK, CHUNK + 1, 255, 256, 257, 511, 512, 513, CTX - 2, CTX - 1];
/// Most tokens of an answer.
const MOST: usize = 5;
/// Models that draft nothing, and go back by 64 tokens or more.
const RECURRENT: [&str; 2] = ["qwen3_next", "kimi_linear"];

fn load(fixture: &str, drafts: usize) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(fixture);
    let options = RunnerOptions { ctx: Some(CTX), ..RunnerOptions::default() };
    let mut engine = Engine::load(&dir, &options, &mut |_, _| {}).expect("the fixture loads");
    if drafts > 0 && !RECURRENT.contains(&fixture) {
        engine.drafting.always(Most { said: drafts, layer: 0 });
    } else {
        engine.never_draft();
    }
    engine
}

/// An engine that has, or reads from its file, the conversations in `dir`.
fn restored(fixture: &str, dir: &Path, drafts: usize) -> Engine {
    let mut engine = load(fixture, drafts);
    engine.set_prefill_chunk(CHUNK);
    let before = engine.runner.notices.clone();
    engine.runner.keep_conversations(dir, &mut |_, _| {}).expect("the model is as it was");
    assert_eq!(engine.runner.notices, before);
    engine
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + i * i % 7) % 200).collect()
}

/// A request that says the same again and again, so that drafts are often right.
fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { prompt, max_tokens, slot: 0, ..super::request(1) }
}

/// What a request is answered, with the bits of its log-probabilities; how the turn was; how many
/// tokens were known.
fn ask(engine: &mut Engine, request: Request) -> (Vec<(u32, u32)>, Turn, usize) {
    let (mut said, mut ended, mut known) = (Vec::new(), None, None);
    engine.submit(request).expect("admitted");
    while !engine.is_idle() {
        for event in engine.step(&mut |_| false) {
            match event {
                Event::Token { token, .. } => {
                    said.push((token.token, token.logprob.expect("asked for").to_bits()));
                }
                Event::Done { turn, .. } => ended = Some(*turn),
                Event::Prefill { done, .. } => known = known.or(Some(done)),
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        assert!(engine.runner.slots[0].tokens().len() < CTX);
    }
    (said, ended.expect("it ended"), known.expect("it was told"))
}

/// That prompts that are too long are refused with their length, and nothing is lost by it.
fn refuses_what_is_too_long(engine: &mut Engine) {
    let before = engine.runner.slots[0].tokens().to_vec();
    for length in [CTX, CTX + 1, 2 * CTX] {
        let error = engine.submit(request(tokens(length), 1)).expect_err("too long");
        assert!(
            matches!(error, Error::ContextExceeded { tokens, counted: true, limit }
                if tokens == length && limit == CTX - 1),
            "{error}"
        );
    }
    assert_eq!(engine.runner.slots[0].tokens(), before);
}

fn answers_are_the_same_at_all_borders(fixture: &str) {
    let is_recurrent = RECURRENT.contains(&fixture);
    for length in LENGTHS {
        let what = format!("{fixture}, a prompt of {length}");
        let prompt = tokens(length);
        let mut cold = load(fixture, 0);
        let (expected, turn, known) = ask(&mut cold, request(prompt.clone(), MOST));
        assert_eq!(known, 0);
        assert_eq!(expected.len(), MOST.min(CTX - length), "{what}");
        let is_limited = |turn: &Turn| {
            (turn.prompt_tokens, turn.emitted, turn.length_limited)
                == (length, expected.len(), true)
        };
        assert!(is_limited(&turn), "{what}: {turn:?}");
        refuses_what_is_too_long(&mut cold);

        // After a turn with its beginning that said something else, and one with all of it.
        let dir = tempfile::tempdir().expect("a folder");
        let mut warm = restored(fixture, dir.path(), 8);
        ask(&mut warm, request(tokens(length * 2 / 3 + 1), 2));
        for again in [false, true] {
            let (said, turn, known) = ask(&mut warm, request(prompt.clone(), MOST));
            assert_eq!(said, expected, "{what}, warm");
            assert!(is_limited(&turn), "{what}, warm: {turn:?}");
            let least = if again { length - 1 } else { length * 2 / 3 };
            let least = if is_recurrent { least / 2 / 64 * 64 } else { least };
            assert!(known >= least && known < length, "{what}: {known}");
        }
        refuses_what_is_too_long(&mut warm);
        warm.runner.finish_conversations();

        let mut restored = restored(fixture, dir.path(), 8);
        refuses_what_is_too_long(&mut restored);
        let (said, turn, known) = ask(&mut restored, request(prompt.clone(), MOST));
        assert_eq!(said, expected, "{what}, restored");
        assert!(is_limited(&turn), "{what}, restored: {turn:?}");
        assert!(is_recurrent || known == length - 1, "{what}: {known}");
        restored.runner.finish_conversations();
    }
}

#[test]
fn grouped_attention_with_windows() {
    answers_are_the_same_at_all_borders("gpt_oss");
}

#[test]
fn latent_attention() {
    answers_are_the_same_at_all_borders("glm4_moe_lite");
}

#[test]
fn chosen_positions() {
    answers_are_the_same_at_all_borders("glm_moe_dsa");
}

#[test]
fn recurrent_states() {
    answers_are_the_same_at_all_borders("qwen3_next");
}

#[test]
fn recurrent_states_beside_latents() {
    answers_are_the_same_at_all_borders("kimi_linear");
}

#[test]
fn an_answer_ends_with_the_context_whatever_is_drafted() {
    for fixture in ["gpt_oss", "glm4_moe_lite", "glm_moe_dsa", "qwen3_next"] {
        for length in [CTX - 40, CTX - 9, CTX - 3, CTX - 2, CTX - 1] {
            let mut right = 0;
            let mut expected = None;
            for drafts in [0, 1, 3, 8] {
                let mut engine = load(fixture, drafts);
                let (said, turn, _) = ask(&mut engine, request(tokens(length), 10 * CTX));
                assert_eq!((said.len(), turn.length_limited), (CTX - length, true));
                assert_eq!(said, *expected.get_or_insert_with(|| said.clone()), "{fixture}");
                // The last token that fits is said and not computed.
                assert_eq!(engine.runner.slots[0].tokens().len(), CTX - 1);
                right += turn.drafts.right;
            }
            assert_eq!(
                right > 10,
                !RECURRENT.contains(&fixture) && length < CTX - 20,
                "{fixture} {right}"
            );
        }
    }
}
