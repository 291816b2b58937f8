//! Sessions of the serve protocol over streams in memory.

use std::io::{Cursor, Error, ErrorKind, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use colibri::engine::Engine;
use colibri::mux::frame::{Record, RecordReader};
use colibri::mux::{EXIT_BAD_FRAME, SessionOptions, Wire, serve_streams};
use colibri::runner::RunnerOptions;

fn engine() -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/glm4_moe_lite");
    let options = RunnerOptions { slots: 2, ctx: Some(64), ..RunnerOptions::default() };
    Engine::load(&dir, &options, &mut |_, _| {}).expect("the fixture loads")
}

fn options(wire: Wire) -> SessionOptions {
    SessionOptions { model_name: "tiny".into(), default_topk: 0, default_seed: None, wire }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn session(engine: &mut Engine, wire: Wire, input: &'static [u8]) -> (i32, Vec<Record>) {
    run(engine, &options(wire), input)
}

fn run(engine: &mut Engine, options: &SessionOptions, input: &'static [u8]) -> (i32, Vec<Record>) {
    let output = Shared::default();
    let code = serve_streams(engine, options, Cursor::new(input), output.clone())
        .expect("the writer takes everything");
    let mut reader = RecordReader::new();
    reader.feed(&output.0.lock().expect("the session is over"));
    (code, std::iter::from_fn(|| reader.next()).collect())
}

fn kind(record: &Record) -> &'static str {
    match record {
        Record::Ready => "READY",
        Record::Stat(_) => "STAT",
        Record::HwInfo(_) => "HWINFO",
        Record::Gpus(_) => "GPUS",
        Record::Tiers(_) => "TIERS",
        Record::Emap { .. } => "EMAP",
        Record::Hits { .. } => "HITS",
        Record::Caps(_) => "CAPS",
        Record::Accept { .. } => "ACCEPT",
        Record::Prefill { .. } => "PREFILL",
        Record::Data { .. } => "DATA",
        Record::Perf { .. } => "PERF",
        Record::Prof(_) => "PROF",
        Record::Entropy(_) => "ENTROPY",
        Record::Done { .. } => "DONE",
        Record::Error { .. } => "ERROR",
        other => panic!("not expected: {other:?}"),
    }
}

#[test]
fn each_wire_has_its_records_in_their_order() {
    const INPUT: &[u8] = b"SUBMIT 1 0 3 8 0 1\nabc\n";
    let mut engine = engine();
    for (wire, expected) in [
        (
            Wire::Full,
            "READY STAT HWINFO GPUS TIERS EMAP CAPS ACCEPT PREFILL DATA HITS DATA \
             HWINFO PERF ENTROPY GPUS TIERS EMAP HITS DONE",
        ),
        (
            Wire::Seed,
            "READY STAT HWINFO GPUS TIERS EMAP DATA HITS DATA \
             HWINFO PERF ENTROPY GPUS TIERS EMAP HITS DONE",
        ),
        (
            Wire::Upstream,
            "READY STAT HWINFO GPUS TIERS EMAP ACCEPT DATA \
             HWINFO GPUS TIERS EMAP HITS PROF DONE",
        ),
    ] {
        let (code, records) = session(&mut engine, wire, INPUT);
        assert_eq!(code, 0);
        assert_eq!(records.iter().filter(|r| kind(r) == "DATA").count(), 8);
        let mut kinds: Vec<_> = records.iter().map(kind).collect();
        kinds.dedup();
        assert_eq!(kinds.join(" "), expected, "{wire:?}");
    }
}

#[test]
fn what_the_c_engine_says_of_a_turn_leaves_out_its_prompt() {
    let (_, records) = session(&mut engine(), Wire::Upstream, b"SUBMIT 1 0 3 6 0 1\nabc\n");
    let prof = records.iter().find_map(|record| match record {
        Record::Prof(prof) => Some(*prof),
        _ => None,
    });
    let prof = prof.expect("PROF comes before DONE");
    assert_eq!((prof.prompt_tokens, prof.emitted, prof.forwards), (3, 6, 5));
}

#[test]
fn options_are_taken_only_where_caps_offers_them() {
    const INPUT: &[u8] = b"SUBMIT 1 0 3 1 0 1 seed=4\nabc\n";
    let mut engine = engine();
    for (wire, taken) in [(Wire::Full, true), (Wire::Seed, false), (Wire::Upstream, false)] {
        let (_, records) = session(&mut engine, wire, INPUT);
        assert_eq!(matches!(records.last(), Some(Record::Done { .. })), taken, "{wire:?}");
        let refused = |r: &Record| matches!(r, Record::Error { code, .. } if code == "BAD_REQUEST");
        assert_eq!(records.iter().any(refused), !taken, "{wire:?}");
    }
}

#[test]
fn requests_without_a_seed_draw_alike_only_if_the_session_has_one() {
    const INPUT: &[u8] = b"SUBMIT 1 0 3 40 2 1 ignore_eos=1\nabc\n";
    let mut engine = engine();
    let mut said = |default_seed| {
        let options = SessionOptions { default_seed, ..options(Wire::Full) };
        let (_, records) = run(&mut engine, &options, INPUT);
        records.into_iter().filter(|record| kind(record) == "DATA").collect::<Vec<_>>()
    };
    assert_eq!(said(Some(7)), said(Some(7)));
    assert_ne!(said(None), said(None));
}

#[test]
fn a_lost_frame_ends_a_session_and_leaves_the_engine_usable() {
    let mut engine = engine();
    let (code, _) = session(&mut engine, Wire::Full, b"SUBMIT 1 0 3 1 0 1\nabcd\n");
    assert_eq!(code, EXIT_BAD_FRAME);
    let (code, records) = session(&mut engine, Wire::Full, b"SUBMIT 1 0 3 1 0 1\nabc\n");
    assert_eq!(code, 0);
    assert!(matches!(records.last(), Some(Record::Done { id: 1, .. })));
}

/// Takes some bytes and fails then, like a pipe whose reader has gone.
struct Gone(usize);

impl Write for Gone {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 { Err(Error::from(ErrorKind::BrokenPipe)) } else { Ok(taken) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_session_at_any_byte() {
    const INPUT: &[u8] = b"SUBMIT 1 0 3 40 0 1 ignore_eos=1\nabc\nSUBMIT 2 1 3 40 0 1\nabc\n";
    let mut engine = engine();
    for bytes in (0..1500).step_by(7) {
        let result = serve_streams(&mut engine, &options(Wire::Full), INPUT, Gone(bytes));
        assert!(result.is_err(), "after {bytes} bytes");
        assert!(engine.active_ids().is_empty(), "after {bytes} bytes");
    }
}
