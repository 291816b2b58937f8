//! Sixteen conversations that come, are stopped and go at random: what each says is bit for bit
//! what it says alone, without drafts, on an engine that has done nothing before.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use colibri::engine::{Engine, Event, Request};
use colibri::runner::RunnerOptions;
use colibri::sample::Sampling;

const CTX: usize = 320;
const SLOTS: usize = 16;

/// `SplitMix64` (Steele, Lea and Flood, 2014): rounds can be repeated by their number.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn engine(fixture: &str, slots: usize) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(fixture);
    let options = RunnerOptions { slots, ctx: Some(CTX), mtp: true, ..RunnerOptions::default() };
    Engine::load(&dir, &options, &mut |_, _| {}).expect("the fixture loads")
}

/// A request by its number: those of one topic begin alike, up to different lengths.
fn request(job: usize) -> Request {
    let mut random = Random(job as u64);
    let topic = random.below(4) as u32;
    let shared = [1, 3, 40, 64, 100, 200, 256][random.below(7)];
    let own = random.below(60);
    let common = (0..shared as u32).map(|i| (i * i % 31 + i * 7 + topic * 50) % 200);
    let prompt = common.chain((0..own).map(|_| random.below(200) as u32)).collect();
    let sampling = Sampling {
        temperature: [0.0, 0.7, 1.5][random.below(3)],
        top_p: [0.9, 1.0][random.below(2)],
        top_k: [0, 20][random.below(2)],
        presence: [0.0, 0.8][random.below(2)],
        seed: random.next(),
        ..Sampling::default()
    };
    Request {
        id: 0,
        slot: 0,
        prompt,
        max_tokens: 1 + random.below(40),
        sampling,
        topk: 2,
        stop_ids: if random.below(3) == 0 { (0..20).collect() } else { Vec::new() },
        ignore_eos: random.below(2) == 0,
    }
}

/// Tokens, each with the bits of the probabilities that are told with it, and whether it ended.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    tokens: Vec<(u32, Vec<u32>)>,
    length_limited: Option<bool>,
}

fn record(events: Vec<Event>, said: &mut HashMap<u64, Said>) {
    for event in events {
        match event {
            Event::Token { id, token } => {
                let own = token.logprob.expect("asked for").to_bits();
                let others = token.top.iter().flat_map(|(id, p)| [*id, p.to_bits()]);
                let bits = std::iter::once(own).chain(others).collect();
                said.entry(id).or_default().tokens.push((token.token, bits));
            }
            Event::Done { id, turn } => {
                said.entry(id).or_default().length_limited = Some(turn.length_limited);
            }
            Event::Failed { id, error } => panic!("request {id}: {error}"),
            Event::Prefill { .. } => {}
        }
    }
}

fn alone(fixture: &str, job: usize) -> Said {
    let mut engine = engine(fixture, 1);
    engine.never_draft();
    let mut said = HashMap::new();
    engine.submit(Request { id: 1, ..request(job) }).expect("admitted");
    while !engine.active_ids().is_empty() {
        record(engine.step(&mut |_| false), &mut said);
    }
    said.remove(&1).unwrap_or_default()
}

/// How a request ended that somebody ended.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Stopped,
    Cancelled,
}

fn rounds(fixture: &str, rounds: usize, jobs: usize) {
    let expected: Vec<Said> = (0..jobs).map(|job| alone(fixture, job)).collect();
    let mut engine = engine(fixture, SLOTS);
    let mut id = 0;
    for round in 0..rounds {
        let mut random = Random(1_000_000 + round as u64);
        // What one may be held up decides how prompts are cut.
        engine.set_stall(Duration::from_micros([1, 300, 3_000, 1_000_000][random.below(4)]));
        let mut of_id: HashMap<u64, usize> = HashMap::new();
        let mut busy: HashMap<usize, u64> = HashMap::new();
        let mut ends: HashMap<u64, End> = HashMap::new();
        let mut said = HashMap::new();
        let mut to_come = SLOTS;
        while to_come > 0 || !engine.active_ids().is_empty() {
            let active = engine.active_ids();
            busy.retain(|_, id| active.contains(id));
            let free: Vec<usize> = (0..SLOTS).filter(|slot| !busy.contains_key(slot)).collect();
            if to_come > 0 && !free.is_empty() && random.below(3) > 0 {
                let (job, slot) = (random.below(jobs), free[random.below(free.len())]);
                id += 1;
                engine.submit(Request { id, slot, ..request(job) }).expect("admitted");
                of_id.insert(id, job);
                busy.insert(slot, id);
                to_come -= 1;
            }
            let active = engine.active_ids();
            if !active.is_empty() && random.below(12) == 0 {
                let id = active[random.below(active.len())];
                if random.below(2) == 0 {
                    record(engine.stop(id).expect("it is in flight"), &mut said);
                    ends.insert(id, End::Stopped);
                } else {
                    engine.cancel(id).expect("it is in flight");
                    ends.insert(id, End::Cancelled);
                }
            }
            // A step that is left half-way, now and then.
            let mut layers_left = if random.below(8) == 0 { random.below(3) } else { usize::MAX };
            let events = engine.step(&mut |_| {
                layers_left = layers_left.saturating_sub(1);
                layers_left == 0
            });
            record(events, &mut said);
        }
        for (id, job) in of_id {
            let (said, expected) = (said.remove(&id).unwrap_or_default(), &expected[job]);
            let which = format!("{fixture}, round {round}, request {id}, job {job}");
            match ends.get(&id) {
                None => assert_eq!(&said, expected, "{which}"),
                Some(end) => {
                    let same = said.tokens.iter().zip(&expected.tokens);
                    // The text of a character's part goes out with what ends it.
                    assert!(same.clone().count() >= said.tokens.len(), "{which}");
                    assert!(same.clone().all(|(a, b)| a == b), "{which}");
                    assert_eq!(said.length_limited.is_some(), *end == End::Stopped, "{which}");
                }
            }
        }
    }
}

#[test]
fn latent_attention() {
    rounds("glm4_moe_lite", 200, 60);
}

#[test]
fn grouped_attention_with_windows_and_sinks() {
    rounds("gpt_oss", 40, 30);
}

#[test]
fn chosen_positions() {
    rounds("glm_moe_dsa", 40, 30);
}

#[test]
fn recurrent_states() {
    rounds("qwen3_next", 40, 30);
}
