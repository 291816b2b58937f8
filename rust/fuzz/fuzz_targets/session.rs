//! A whole session on the oracle model: the input is stdin, the output must add up.
#![no_main]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use colibri::engine::Engine;
use colibri::mux::frame::{Incoming, Record, RecordReader, RequestReader};
use colibri::mux::{EXIT_BAD_FRAME, SessionOptions, Wire, serve_streams};
use colibri_fuzz::{Input, Output, digest, oracle};
use libfuzzer_sys::fuzz_target;

const SLOTS: usize = 2;
/// Bounds prompts and answers, so that a session takes milliseconds.
const CTX: usize = 16;
/// How long the next piece of input waits for output.
const PACE: Duration = Duration::from_micros(200);
const MAX_WAITS: usize = 8;

static ENGINE: LazyLock<Mutex<Engine>> = LazyLock::new(|| Mutex::new(oracle(SLOTS, CTX)));

fuzz_target!(|data: &[u8]| {
    let mut engine = ENGINE.lock().expect("a panic ends the process");
    // Every session begins alike.
    for slot in &mut engine.runner.slots {
        slot.truncate_to(0);
    }
    let digest = digest(data);
    let wire = match digest % 8 {
        0 => Wire::Seed,
        1 => Wire::Upstream,
        _ => Wire::Full,
    };
    let options =
        SessionOptions { model_name: "fuzz".into(), default_topk: 0, default_seed: Some(1), wire };
    let output = Output::default();
    // All at once is the same every time; line by line, requests meet answers on their way.
    let (input, waits) =
        if digest & 8 == 0 { (vec![data.to_vec()], 0) } else { (requests(data), digest >> 4 & 3) };
    let reader = Input::new(input, waits, PACE, &output);
    let code = serve_streams(&mut engine, &options, reader, output.clone())
        .expect("the writer takes everything");
    assert!(engine.active_ids().is_empty());
    check(&sent(data, wire), &output.bytes(), code, wire);
});

/// The input, cut where lines begin that may be requests, at most `MAX_WAITS` times.
fn requests(data: &[u8]) -> Vec<Vec<u8>> {
    let begins = |line: &[u8]| line.starts_with(b"S") || line.starts_with(b"C");
    let mut pieces = vec![Vec::new()];
    for line in data.split_inclusive(|&byte| byte == b'\n') {
        if pieces.len() <= MAX_WAITS && begins(line) {
            pieces.push(Vec::new());
        }
        pieces.last_mut().expect("one is there").extend_from_slice(line);
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// What the engine has to answer.
#[derive(Default)]
struct Sent {
    /// Requests by id that end in one DONE or ERROR, refused ones too.
    answers: HashMap<u64, usize>,
    /// STOP and CANCEL by id, which may find nothing.
    controls: HashMap<u64, usize>,
    lost: bool,
}

fn sent(data: &[u8], wire: Wire) -> Sent {
    let mut reader = RequestReader::new(wire.submit_options(), SLOTS);
    reader.feed(data);
    reader.finish();
    let mut sent = Sent::default();
    while let Some(incoming) = reader.next() {
        match incoming {
            Incoming::Submit(submit) => *sent.answers.entry(submit.id).or_default() += 1,
            Incoming::Refused { id, .. } => *sent.answers.entry(id).or_default() += 1,
            Incoming::Stop(id) | Incoming::Cancel(id) => {
                *sent.controls.entry(id).or_default() += 1;
            }
            Incoming::Lost { .. } => sent.lost = true,
        }
    }
    sent
}

fn check(sent: &Sent, written: &[u8], code: i32, wire: Wire) {
    assert_eq!(code, if sent.lost { EXIT_BAD_FRAME } else { 0 });
    let mut reader = RecordReader::new();
    reader.feed(written);
    let mut answers: HashMap<u64, usize> = HashMap::new();
    let mut not_found: HashMap<u64, usize> = HashMap::new();
    // DATA records of each turn in flight.
    let mut turns: HashMap<u64, u64> = HashMap::new();
    let mut bad_frames = 0;
    // Whose DATA came just before.
    let mut last = None;
    while let Some(record) = reader.next() {
        let before = last.take();
        match record {
            Record::Unknown(_) | Record::Malformed { .. } => panic!("written: {record:?}"),
            Record::Accept { id, .. } => {
                assert!(turns.insert(id, 0).is_none(), "{id} is in flight");
            }
            Record::Data { id, .. } => {
                assert!(turns.contains_key(&id) || !wire.has_accept(), "{id} was not accepted");
                *turns.entry(id).or_default() += 1;
                last = Some(id);
            }
            Record::Topk { id, .. } => assert_eq!(before, Some(id), "TOPK belongs behind its DATA"),
            Record::Done { id, turn } => {
                let data = turns.remove(&id);
                assert!(data.is_some() || !wire.has_accept(), "{id} was not accepted");
                let data = data.unwrap_or(0);
                assert_eq!(turn.stat.emitted, data, "DATA records of {id}");
                assert!(turn.prompt_tokens + turn.stat.emitted <= CTX as u64);
                *answers.entry(id).or_default() += 1;
            }
            Record::Error { id, code, .. } => match code.as_str() {
                "NOT_FOUND" => *not_found.entry(id).or_default() += 1,
                "BAD_FRAME" => bad_frames += 1,
                "CANCELLED" => {
                    turns.remove(&id);
                    *answers.entry(id).or_default() += 1;
                }
                "BAD_REQUEST" | "SLOT_BUSY" | "DUPLICATE_ID" | "EMPTY_PROMPT"
                | "CONTEXT_EXCEEDED" => *answers.entry(id).or_default() += 1,
                // The model and its disk are sound, so ENGINE must not come either.
                _ => panic!("{id} ended with {code}"),
            },
            _ => {}
        }
    }
    assert_eq!(reader.buffered(), 0, "the output ends within a record");
    assert!(turns.is_empty(), "turns without an end: {:?}", turns.keys());
    assert_eq!(answers, sent.answers, "ends of requests by id");
    assert_eq!(bad_frames, usize::from(sent.lost));
    for (id, times) in not_found {
        assert!(times <= sent.controls.get(&id).copied().unwrap_or(0), "{id} was not asked for");
    }
}
