//! Answers are the same whatever is drafted.

mod layer;

use super::draft::Most;
use super::*;
use crate::runner::RunnerOptions;

mod context;

const CTX: usize = 200;

fn engine(fixture: &str) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(fixture);
    let options = RunnerOptions { slots: 2, ctx: Some(CTX), ..RunnerOptions::default() };
    Engine::load(&dir, &options, &mut |_, _| {}).expect("the fixture loads")
}

/// A request whose answer says the same again and again, or does not.
fn request(job: u64) -> Request {
    // A few tokens more likely than all others: what they say is soon a repetition.
    let likely = (0..6).map(|i| (i * 31 + 5 + job as u32 % 3, 30.0)).collect();
    let plain = Sampling { seed: job * 77, ..Sampling::default() };
    let sampling = match job % 5 {
        0 => Sampling { temperature: 0.0, ..plain },
        1 => Sampling { temperature: 0.0, bias: likely, ..plain },
        2 => Sampling { temperature: 0.4, bias: likely, ..plain },
        3 => Sampling { temperature: 0.6, bias: likely, presence: 2.0, repetition: 1.2, ..plain },
        _ => Sampling { temperature: 1.2, top_k: 5, ..plain },
    };
    let length = [1, 9, 40, 170, 255 - 60][job as usize % 5].min(CTX - 1);
    Request {
        id: job + 1,
        slot: job as usize % 2,
        prompt: (0..length as u32).map(|i| (i % 7 * 31 + 5) % 200).collect(),
        max_tokens: [1, 2, 30, 500][job as usize % 4],
        sampling,
        topk: 2,
        stop_ids: if job.is_multiple_of(3) { vec![67, 98] } else { Vec::new() },
        ignore_eos: true,
    }
}

/// What is said of each token, and whether the turn ended by its length, and the slot's tokens.
type Said = (Vec<(u32, Option<u32>, Vec<(u32, u32)>)>, Option<bool>, Vec<u32>);

fn answer(engine: &mut Engine, job: u64) -> (Said, Drafts) {
    answer_to(engine, request(job))
}

fn answer_to(engine: &mut Engine, request: Request) -> (Said, Drafts) {
    let job = request.id;
    let slot = request.slot;
    engine.submit(request).expect("admitted");
    let (mut tokens, mut ended, mut drafts) = (Vec::new(), None, Drafts::default());
    while !engine.is_idle() {
        for event in engine.step(&mut |_| false) {
            match event {
                Event::Token { token, .. } => {
                    let top = token.top.iter().map(|&(id, p)| (id, p.to_bits())).collect();
                    tokens.push((token.token, token.logprob.map(f32::to_bits), top));
                }
                Event::Done { turn, .. } => {
                    (ended, drafts) = (Some(turn.length_limited), turn.drafts);
                }
                Event::Failed { error, .. } => panic!("job {job}: {error}"),
                Event::Prefill { .. } => {}
            }
        }
    }
    ((tokens, ended, engine.runner.slots[slot].tokens().to_vec()), drafts)
}

fn same_whatever_is_drafted(fixture: &str) -> Drafts {
    let mut plain = engine(fixture);
    plain.never_draft();
    let mut all = Drafts::default();
    for length in [1, 3, 8] {
        let mut drafting = engine(fixture);
        drafting.drafting.always(Most { said: length, layer: 0 });
        for job in 0..20 {
            let (expected, none) = answer(&mut plain, job);
            let (said, drafts) = answer(&mut drafting, job);
            assert_eq!(said, expected, "{fixture}, job {job}, drafts of {length}");
            assert_eq!(none, Drafts::default());
            all.drafted += drafts.drafted;
            all.right += drafts.right;
        }
    }
    all
}

#[test]
fn answers_are_the_same_whatever_is_drafted() {
    for fixture in ["glm4_moe_lite", "gpt_oss", "glm_moe_dsa"] {
        let Drafts { drafted, right } = same_whatever_is_drafted(fixture);
        assert!(right > 100 && right < drafted, "{fixture}: {right} of {drafted}");
    }
}

#[test]
fn a_model_with_states_drafts_nothing() {
    let mut engine = engine("qwen3_next");
    for job in 0..5 {
        let (_, drafts) = answer(&mut engine, job);
        assert_eq!(drafts, Drafts::default());
    }
}

#[test]
fn drafts_of_two_answers_share_a_step() {
    let mut plain = engine("glm4_moe_lite");
    plain.never_draft();
    let mut drafting = engine("glm4_moe_lite");
    drafting.drafting.always(Most { said: 4, layer: 0 });
    let both = |engine: &mut Engine| {
        for job in [11, 12] {
            let tokens = 60 + job as usize;
            engine.submit(Request { max_tokens: tokens, ..request(job) }).expect("admitted");
        }
        let mut said = [Vec::new(), Vec::new()];
        let mut steps = 0;
        while !engine.active.is_empty() {
            steps += 1;
            for event in engine.step(&mut |_| false) {
                if let Event::Token { id, token } = event {
                    let logprob = token.logprob.map(f32::to_bits);
                    said[id as usize - 12].push((token.token, logprob));
                }
            }
        }
        (said, steps)
    };
    let (expected, plain_steps) = both(&mut plain);
    let (said, steps) = both(&mut drafting);
    assert_eq!(said, expected);
    assert!(steps < plain_steps, "{steps} steps of {plain_steps}");
}
