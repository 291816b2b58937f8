//! Models with recurrent layers: states and their checkpoints change no bit, and what is said to be
//! reused is.

use std::path::Path;

use colibri::cpu::Isa;
use colibri::engine::{Engine, Event, Request};
use colibri::runner::RunnerOptions;
use colibri::sample::Sampling;

const MODELS: [&str; 3] = ["kimi_linear", "qwen3_5_moe", "qwen3_next"];

fn engine(name: &str, options: &RunnerOptions) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(name);
    let options = RunnerOptions { ctx: Some(1024), ..options.clone() };
    Engine::load(&dir, &options, &mut |_, _| {}).expect("the fixture loads")
}

fn slots(n: usize) -> RunnerOptions {
    RunnerOptions { slots: n, ..RunnerOptions::default() }
}

fn request(id: u64, slot: usize, prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        id,
        slot,
        prompt: prompt.to_vec(),
        max_tokens,
        sampling: Sampling { temperature: 0.9, seed: 5, ..Sampling::default() },
        topk: 2,
        stop_ids: Vec::new(),
        ignore_eos: true,
    }
}

fn prompt(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 31 + i * 7 + seed * 101) % 490).collect()
}

/// Tokens and the bits of the log-probabilities told with them.
type Said = Vec<(u32, Vec<u32>)>;

/// What a request says, and how many tokens of its prompt were reused.
fn turn(engine: &mut Engine, request: Request) -> (Said, usize) {
    engine.submit(request).expect("admitted");
    let (mut said, mut reused) = (Said::new(), None);
    while !engine.active_ids().is_empty() {
        for event in engine.step(&mut |_| false) {
            match event {
                Event::Prefill { done, .. } => reused = reused.or(Some(done)),
                Event::Token { token, .. } => said.push(bits(&token)),
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Done { .. } => {}
            }
        }
    }
    (said, reused.expect("a prompt is prefilled"))
}

fn bits(token: &colibri::engine::Generated) -> (u32, Vec<u32>) {
    let probabilities = token.logprob.iter().chain(token.top.iter().map(|(_, p)| p));
    (token.token, probabilities.map(|p| p.to_bits()).collect())
}

#[test]
fn a_warm_slot_answers_as_a_cold_one_and_says_what_it_reused() {
    for name in MODELS {
        let mut warm = engine(name, &slots(1));
        let first = prompt(330, 1);
        let (answer, reused) = turn(&mut warm, request(1, 0, &first, 40));
        assert_eq!(reused, 0);
        // The last token drawn is not in the slot: 369 are.
        let known: Vec<u32> =
            first.iter().copied().chain(answer.iter().map(|(token, _)| *token)).collect();
        let model = &warm.runner.model;
        let per_token = (model.top_k * model.sparse_layers.len()) as u64;
        let mut id = 1;
        // Tokens in common, tokens reused: the conversation goes on, then ever more of it is new.
        for (common, expected) in [(369, 369), (350, 320), (300, 256), (70, 0), (66, 64), (40, 0)] {
            let mut prompt = known[..common].to_vec();
            prompt.extend(self::prompt(50, common as u32 + 7));
            id += 1;
            let before = warm.runner.experts.heat().uses().total();
            let (said, reused) = turn(&mut warm, request(id, 0, &prompt, 12));
            let computed = (warm.runner.experts.heat().uses().total() - before) / per_token;
            assert_eq!(reused, expected, "{name}: {common} in common");
            // Every token of the prompt but those, and every token drawn but the last.
            assert_eq!(computed as usize, prompt.len() - reused + 11, "{name}: {common}");
            let (cold, _) = turn(&mut engine(name, &slots(1)), request(id, 0, &prompt, 12));
            assert!(said == cold, "{name}: {common} in common");
        }
    }
}

#[test]
fn a_long_prompt_is_the_same_in_any_chunks_threads_and_instruction_sets() {
    for name in MODELS {
        let prompt = prompt(300, 2);
        let (expected, _) = turn(&mut engine(name, &slots(1)), request(1, 0, &prompt, 10));
        let said = |threads, isa, chunk| {
            let options = RunnerOptions {
                threads: Some(threads),
                isa: Some(isa),
                ..RunnerOptions::default()
            };
            let mut engine = engine(name, &options);
            engine.set_prefill_chunk(chunk);
            turn(&mut engine, request(1, 0, &prompt, 10)).0
        };
        for (threads, chunk) in [(1, 1), (2, 7), (3, 64), (2, 300)] {
            assert!(said(threads, Isa::detect(), chunk) == expected, "{name} {threads} {chunk}");
        }
        for isa in Isa::available() {
            assert!(said(2, isa, 100) == expected, "{name} {isa:?}");
        }
    }
}

#[test]
fn four_conversations_together_say_what_each_says_alone() {
    for name in MODELS {
        let jobs: Vec<Request> = [(5, 20), (150, 12), (70, 30), (1, 25)]
            .into_iter()
            .enumerate()
            .map(|(slot, (n, tokens))| {
                request(slot as u64 + 1, slot, &prompt(n, slot as u32), tokens)
            })
            .collect();
        let mut together = engine(name, &slots(4));
        let mut said = vec![Said::new(); 4];
        for job in &jobs {
            together.submit(job.clone()).expect("admitted");
            together.step(&mut |_| false).into_iter().for_each(|event| {
                if let Event::Token { id, token } = event {
                    said[id as usize - 1].push(bits(&token));
                }
            });
        }
        while !together.active_ids().is_empty() {
            for event in together.step(&mut |_| false) {
                match event {
                    Event::Token { id, token } => said[id as usize - 1].push(bits(&token)),
                    Event::Failed { id, error } => panic!("request {id}: {error}"),
                    _ => {}
                }
            }
        }
        for (job, said) in jobs.into_iter().zip(said) {
            let alone = Request { slot: 0, ..job };
            let (id, tokens) = (alone.id, alone.max_tokens);
            assert_eq!(said.len(), tokens);
            let (expected, _) = turn(&mut engine(name, &slots(1)), alone);
            assert!(said == expected, "{name}: request {id}");
        }
    }
}

#[test]
fn a_chunk_that_was_abandoned_leaves_nothing_behind() {
    for name in MODELS {
        let prompt = prompt(200, 3);
        let (expected, _) = turn(&mut engine(name, &slots(1)), request(1, 0, &prompt, 8));
        let mut engine = engine(name, &slots(1));
        engine.set_prefill_chunk(90);
        engine.submit(request(1, 0, &prompt, 8)).expect("admitted");
        let (mut asked, mut said) = (0, Said::new());
        while !engine.active_ids().is_empty() {
            for event in engine.step(&mut |_| {
                asked += 1;
                asked < 60 && asked % 7 == 5
            }) {
                if let Event::Token { token, .. } = event {
                    said.push(bits(&token));
                }
            }
        }
        assert!(asked > 12, "{asked}");
        assert!(said == expected, "{name}");
    }
}
