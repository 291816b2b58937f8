//! Requests on the oracle model: what a turn yields depends on nothing but the request.

use std::collections::HashMap;
use std::path::Path;

use colibri::engine::{Engine, Event, Request, Turn};
use colibri::error::Error;
use colibri::experts::ExpertSource;
use colibri::runner::RunnerOptions;
use colibri::sample::Sampling;
use colibri::telemetry::Uses;

fn engine(slots: usize, ctx: usize) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/glm4_moe_lite");
    let options = RunnerOptions { slots, ctx: Some(ctx), ..RunnerOptions::default() };
    Engine::load(&dir, &options, &mut |_, _| {}).expect("the fixture loads")
}

/// Every id has its own mixture of options.
fn request(id: u64, slot: usize, prompt: &[u32], max_tokens: usize) -> Request {
    let plain = Sampling { temperature: 0.8, top_p: 0.95, seed: id * 31, ..Sampling::default() };
    let sampling = match id % 4 {
        0 => Sampling { repetition: 1.3, presence: 0.5, frequency: 0.5, ..plain },
        1 => Sampling { top_k: 40, min_p: 0.01, ..plain },
        2 => Sampling { temperature: 2.0, top_p: 1.0, bias: vec![(5, 4.0), (6, -100.0)], ..plain },
        _ => plain,
    };
    Request {
        id,
        slot,
        prompt: prompt.to_vec(),
        max_tokens,
        sampling,
        topk: 1,
        stop_ids: Vec::new(),
        ignore_eos: true,
    }
}

/// Tokens with the bits of their log-probabilities, and the turn, of each request.
type Outcome = HashMap<u64, (Vec<(u32, u32)>, Option<Turn>)>;

fn record(events: Vec<Event>, outcome: &mut Outcome) {
    for event in events {
        match event {
            Event::Token { id, token } => {
                let logprob = token.logprob.expect("asked for").to_bits();
                outcome.entry(id).or_default().0.push((token.token, logprob));
            }
            Event::Done { id, turn } => outcome.entry(id).or_default().1 = Some(*turn),
            Event::Failed { id, error } => panic!("request {id}: {error}"),
            Event::Prefill { .. } => {}
        }
    }
}

fn drain(engine: &mut Engine, outcome: &mut Outcome) {
    while !engine.active_ids().is_empty() {
        record(engine.step(&mut |_| false), outcome);
    }
}

fn prompt(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + seed * 101 + i * i % 7) % 490).collect()
}

#[test]
fn a_turn_is_the_same_alone_in_company_and_on_a_warm_slot() {
    let kinds = [(5, 20), (150, 12), (70, 30), (1, 25)];
    let jobs: Vec<(u64, usize, usize)> =
        (1..=16).zip(kinds.into_iter().cycle()).map(|(id, (n, tokens))| (id, n, tokens)).collect();
    let mut alone = Outcome::new();
    for &(id, length, tokens) in &jobs {
        let mut engine = engine(1, 256);
        engine.submit(request(id, 0, &prompt(length, id as u32), tokens)).expect("admitted");
        drain(&mut engine, &mut alone);
    }
    let mut shared = engine(16, 256);
    for round in 0..2 {
        let mut together = Outcome::new();
        for (slot, &(id, length, tokens)) in jobs.iter().enumerate() {
            shared.submit(request(id, slot, &prompt(length, id as u32), tokens)).expect("admitted");
            // Some start together, some apart.
            for _ in 0..slot % 4 * 2 {
                record(shared.step(&mut |_| false), &mut together);
            }
        }
        drain(&mut shared, &mut together);
        for &(id, ..) in &jobs {
            assert_eq!(together[&id].0, alone[&id].0, "request {id}, round {round}");
        }
    }
}

#[test]
fn a_turn_is_the_same_in_any_chunks() {
    let mut expected = None;
    for chunk in [64, 1, 7, 150, 65_536] {
        let mut engine = engine(1, 256);
        engine.set_prefill_chunk(chunk);
        engine.submit(request(3, 0, &prompt(150, 3), 30)).expect("admitted");
        let events = engine.step(&mut |_| false);
        let done = events.iter().filter_map(|event| match event {
            Event::Prefill { done, .. } => Some(*done),
            _ => None,
        });
        assert_eq!(done.max(), Some(chunk.min(150)));
        let mut outcome = Outcome::new();
        record(events, &mut outcome);
        drain(&mut engine, &mut outcome);
        let tokens = outcome.remove(&3).expect("answered").0;
        assert_eq!(tokens.len(), 30);
        assert_eq!(*expected.get_or_insert_with(|| tokens.clone()), tokens, "{chunk}");
    }
}

#[test]
fn the_context_is_used_to_its_end_and_never_beyond() {
    let mut engine = engine(1, 64);
    let full = prompt(64, 1);
    assert!(matches!(
        engine.submit(request(1, 0, &full, 5)),
        Err(Error::ContextExceeded { tokens: 64, counted: true, limit: 63 })
    ));
    for (id, length) in [(2, 63), (3, 40), (4, 64 - 1)] {
        let mut outcome = Outcome::new();
        engine.submit(request(id, 0, &full[..length], 1000)).expect("admitted");
        drain(&mut engine, &mut outcome);
        let (tokens, turn) = &outcome[&id];
        let turn = turn.as_ref().expect("done");
        assert_eq!(tokens.len(), 64 - length);
        assert!(turn.length_limited);
        assert_eq!(turn.prompt_tokens, length);
    }
}

#[test]
fn a_refused_request_changes_nothing() {
    let mut engine = engine(1, 64);
    let mut outcome = Outcome::new();
    engine.submit(request(1, 0, &prompt(20, 1), 3)).expect("admitted");
    drain(&mut engine, &mut outcome);
    let kept = engine.runner.slots[0].tokens().to_vec();
    let refused = |engine: &mut Engine, request| engine.submit(request).expect_err("refused");
    assert!(matches!(refused(&mut engine, request(2, 0, &[], 3)), Error::EmptyPrompt));
    assert!(matches!(refused(&mut engine, request(2, 1, &[1], 3)), Error::BadRequest(_)));
    assert!(matches!(refused(&mut engine, request(2, 0, &[512], 3)), Error::BadRequest(_)));
    let stops = Request { stop_ids: vec![0, 512], ..request(2, 0, &[1], 3) };
    assert!(matches!(refused(&mut engine, stops), Error::BadRequest(_)));
    let mut biased = request(2, 0, &[1], 3);
    biased.sampling.bias.push((512, 1.0));
    assert!(matches!(refused(&mut engine, biased), Error::BadRequest(_)));
    assert!(matches!(
        refused(&mut engine, request(2, 0, &prompt(80, 2), 3)),
        Error::ContextExceeded { .. }
    ));
    assert_eq!(engine.runner.slots[0].tokens(), kept);
}

#[test]
fn an_interrupted_prefill_is_taken_up_again_or_stopped() {
    let prompt = prompt(200, 3);
    let mut calm = engine(1, 256);
    let mut expected = Outcome::new();
    calm.submit(request(1, 0, &prompt, 10)).expect("admitted");
    drain(&mut calm, &mut expected);

    let mut engine = engine(1, 256);
    let mut outcome = Outcome::new();
    engine.submit(request(1, 0, &prompt, 10)).expect("admitted");
    let mut asked = 0;
    for _ in 0..40 {
        // Each chunk is abandoned after another layer, more often than not.
        let events = engine.step(&mut |id| {
            assert_eq!(id, 1);
            asked += 1;
            asked % 5 == 3
        });
        record(events, &mut outcome);
    }
    drain(&mut engine, &mut outcome);
    assert_eq!(outcome[&1].0, expected[&1].0);

    engine.submit(request(2, 0, &prompt[..150], 10)).expect("admitted");
    record(engine.step(&mut |_| true), &mut outcome);
    record(engine.stop(2).expect("in flight"), &mut outcome);
    let turn = outcome[&2].1.as_ref().expect("done");
    assert_eq!((turn.emitted, turn.length_limited), (0, false));
    assert!(matches!(engine.stop(2), Err(Error::NotFound(2))));
    assert!(matches!(engine.cancel(2), Err(Error::NotFound(2))));
}

/// A copy of the fixture in a folder of its own.
fn copy() -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/glm4_moe_lite");
    let to = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(from.join(name), to.path().join(name)).expect("a copy");
    }
    to
}

fn failures(engine: &mut Engine) -> Vec<(u64, Error)> {
    let mut failed = Vec::new();
    while !engine.active_ids().is_empty() {
        for event in engine.step(&mut |_| false) {
            if let Event::Failed { id, error } = event {
                failed.push((id, error));
            }
        }
    }
    failed
}

#[test]
fn an_expert_that_cannot_be_read_fails_its_requests_and_nothing_else() {
    let dir = copy();
    let file = dir.path().join("model.safetensors");
    let whole = std::fs::read(&file).expect("bytes");
    let time = std::fs::metadata(&file).and_then(|of| of.modified()).expect("a time");
    let options = RunnerOptions::default();
    let mut engine = Engine::load(dir.path(), &options, &mut |_, _| {}).expect("it loads");
    let cut = std::fs::OpenOptions::new().write(true).open(&file).expect("the file");
    cut.set_len(20_000).expect("it is cut");
    engine.submit(request(1, 0, &prompt(30, 1), 5)).expect("admitted");
    let failed = failures(&mut engine);
    assert!(matches!(failed[..], [(1, Error::Io { .. })]), "{failed:?}");
    // The file comes back as it was, time and all, as after a network drive's hiccup: the next
    // request is served, and as if nothing had happened.
    std::fs::write(&file, whole).expect("restored");
    cut.set_modified(time).expect("its time");
    let mut outcome = Outcome::new();
    engine.submit(request(2, 0, &prompt(30, 1), 5)).expect("admitted");
    drain(&mut engine, &mut outcome);
    let mut calm = self::engine(1, 256);
    let mut expected = Outcome::new();
    calm.submit(request(2, 0, &prompt(30, 1), 5)).expect("admitted");
    drain(&mut calm, &mut expected);
    assert_eq!(outcome[&2].0, expected[&2].0);
}

#[test]
fn a_weight_that_is_not_finite_is_named_and_ends_only_what_meets_it() {
    let dir = copy();
    let file = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("bytes");
    let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: serde_json::Value =
        serde_json::from_slice(&bytes[8..8 + header_len]).expect("a header");
    let embed = &header["model.embed_tokens.weight"];
    let start = embed["data_offsets"][0].as_u64().expect("an offset") as usize + 8 + header_len;
    // Token 7's first component becomes a bf16 NaN.
    let at = start + 7 * 64 * 2;
    bytes[at..at + 2].copy_from_slice(&[0xc0, 0x7f]);
    std::fs::write(&file, bytes).expect("written");
    let options = RunnerOptions { slots: 2, ..RunnerOptions::default() };
    let mut engine = Engine::load(dir.path(), &options, &mut |_, _| {}).expect("it loads");
    engine.submit(request(1, 0, &[1, 2, 7, 3], 5)).expect("admitted");
    engine.submit(request(2, 1, &[1, 2, 4, 3], 5)).expect("admitted");
    let failed = failures(&mut engine);
    assert!(matches!(failed[..], [(1, Error::NonFinite { position: 2, .. })]), "{failed:?}");
}

#[test]
fn options_change_the_draw_and_never_the_reported_distribution() {
    let mut engine = engine(1, 64);
    let mut said = |sampling: Sampling| {
        let sampling = Sampling { temperature: 0.0, ..sampling };
        let request = Request { sampling, ..request(1, 0, &prompt(12, 3), 40) };
        engine.submit(request).expect("admitted");
        let mut outcome = Outcome::new();
        drain(&mut engine, &mut outcome);
        outcome.remove(&1).expect("an answer").0
    };
    let plain = said(Sampling::default());
    let (first, logprob) = plain[0];
    let banned = said(Sampling { bias: vec![(first, -100.0)], ..Sampling::default() });
    assert!(banned.iter().all(|&(token, _)| token != first));
    let forced = said(Sampling { bias: vec![(first, 100.0)], ..Sampling::default() });
    assert!(forced.iter().all(|&(token, _)| token == first));
    assert_eq!(forced[0].1, logprob);
    // Nothing is said twice where that costs more than any logit can make up for.
    for sampling in [
        Sampling {
            repetition: 1e9,
            bias: (0..512).map(|id| (id, 50.0)).collect(),
            ..Sampling::default()
        },
        Sampling { presence: 1e3, ..Sampling::default() },
        Sampling { frequency: 1e3, ..Sampling::default() },
    ] {
        let mut tokens: Vec<u32> = said(sampling).into_iter().map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 40);
    }
}

/// One turn of the demo model with few experts in memory: its tokens, and how they were served.
fn remembered_turn(state_dir: Option<&Path>) -> (Vec<(u32, u32)>, Uses, Vec<String>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/colibri/demo_model");
    let options = RunnerOptions {
        ctx: Some(512),
        expert_slots: Some(8),
        // What is read ahead is what was remembered.
        prefetch: false,
        state_dir: state_dir.map(Path::to_owned),
        ..RunnerOptions::default()
    };
    let mut engine = Engine::load(&dir, &options, &mut |_, _| {}).expect("the demo loads");
    // What is read ahead comes while nobody waits for it.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut outcome = Outcome::new();
    // Few tokens, so that what was in memory before them counts.
    engine.submit(request(3, 0, &prompt(1, 9), 12)).expect("admitted");
    drain(&mut engine, &mut outcome);
    let (tokens, turn) = outcome.remove(&3).expect("a turn");
    let traffic = turn.expect("it ended").traffic;
    // Written by a thread of its own.
    if let Some(saved) = engine.runner.saved_history() {
        saved.wait(std::time::Duration::from_secs(60));
    }
    let read = engine.runner.experts.bytes_read();
    assert!(traffic.bytes_read > 0 && traffic.bytes_read <= read, "{traffic:?} of {read}");
    assert!(traffic.reading > std::time::Duration::ZERO, "{traffic:?}");
    (tokens, traffic.uses, engine.runner.notices)
}

#[test]
fn what_was_used_is_in_memory_the_next_time_and_changes_no_bit() {
    let (expected, cold, _) = remembered_turn(None);
    let state = tempfile::tempdir().expect("a folder");
    let file = state.path().join(".coli_usage");
    let (first, uses, _) = remembered_turn(Some(state.path()));
    assert_eq!((&first, uses), (&expected, cold), "there is nothing to remember yet");
    assert_eq!(cold.ahead, 0);
    let history = std::fs::read_to_string(&file).expect("saved at the end of the turn");
    let (second, uses, notices) = remembered_turn(Some(state.path()));
    assert_eq!(second, expected);
    assert_eq!(uses.total(), cold.total());
    assert!(uses.hit_pct() > cold.hit_pct() + 5.0, "{uses:?} after {cold:?}");
    // An expert that was read ahead is that at its first use alone.
    assert!(uses.ahead > 0 && uses.cached > 0, "{uses:?}");
    assert!(!notices.iter().any(|notice| notice.contains("of no use")), "{notices:?}");
    for damaged in [history.replace("-2 1 ", "-2 1 9"), history[..history.len() - 1].into()] {
        std::fs::write(&file, damaged).expect("written");
        let (tokens, uses, notices) = remembered_turn(Some(state.path()));
        assert_eq!((tokens, uses), (expected.clone(), cold), "as if there were none");
        assert!(notices.iter().any(|notice| notice.contains("will be replaced")), "{notices:?}");
    }
    // Where nothing can be written, the turn is the same.
    let (tokens, uses, _) = remembered_turn(Some(&state.path().join("none")));
    assert_eq!((tokens, uses), (expected, cold));
}

#[test]
fn a_turn_that_meets_reads_ahead_neither_waits_for_ever_nor_computes_without_them() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/colibri/demo_model");
    let state = tempfile::tempdir().expect("a folder");
    let turn = |expert_slots, state_dir: Option<&Path>| {
        let options = RunnerOptions {
            ctx: Some(64),
            expert_slots,
            state_dir: state_dir.map(Path::to_owned),
            ..RunnerOptions::default()
        };
        let mut engine = Engine::load(&dir, &options, &mut |_, _| {}).expect("the demo loads");
        let mut outcome = Outcome::new();
        engine.submit(request(3, 0, &prompt(3, 9), 4)).expect("admitted");
        drain(&mut engine, &mut outcome);
        outcome.remove(&3).expect("a turn").0
    };
    let expected = turn(None, Some(state.path()));
    // From the experts of one token in one layer on, all of which reads ahead may take.
    for slots in [1, 2, 4, 1, 2, 4, 1, 2, 4, 1, 1, 1] {
        assert_eq!(turn(Some(slots), Some(state.path())), expected, "{slots} slots");
    }
}

#[test]
fn a_wave_reads_each_expert_it_takes_once() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/colibri/demo_model");
    let options = RunnerOptions {
        ctx: Some(512),
        // Of a layer's 64, so that what one layer reads pushes out what another has.
        expert_slots: Some(9),
        prefetch: false,
        ..RunnerOptions::default()
    };
    let mut engine = Engine::load(&dir, &options, &mut |_, _| {}).expect("the demo loads");
    engine.set_prefill_chunk(200);
    engine.submit(request(3, 0, &prompt(401, 3), 1)).expect("admitted");
    let state = |engine: &Engine| {
        let experts = &engine.runner.experts;
        (experts.bytes_read(), experts.heat().counts().to_vec())
    };
    let bytes: Vec<u64> =
        engine.runner.model.experts.iter().map(ExpertSource::disk_bytes).collect();
    let mut before = state(&engine);
    for wave in 0..2 {
        engine.step(&mut |_| false);
        let after = state(&engine);
        let taken: Vec<usize> = (0..bytes.len()).filter(|&i| after.1[i] > before.1[i]).collect();
        let needed: u64 = taken.iter().map(|&i| bytes[i]).sum();
        let read = after.0 - before.0;
        assert!(taken.len() > bytes.len() / 2, "{} are taken", taken.len());
        match wave {
            // Nothing was there.
            0 => assert_eq!(read, needed),
            // Some of the last layer's were, but no other's.
            _ => assert!(read <= needed && read > needed / 2, "{read} of {needed}"),
        }
        before = after;
    }
}
