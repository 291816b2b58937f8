//! A whole legacy session on the oracle model, twice: how the input is cut changes no answer.
#![no_main]

use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use colibri::engine::Engine;
use colibri::legacy::{Chat, LegacyOptions, serve_streams};
use colibri::mux::EXIT_BAD_FRAME;
use colibri::mux::frame::{READY, Record, RecordReader};
use colibri_fuzz::{Input, Output, oracle, oracle_dir, pieces};
use libfuzzer_sys::fuzz_target;

/// Room for a line or two of a conversation.
const CTX: usize = 32;
const NGEN: u32 = 2;
const END: &[u8] = b"\x01\x01END\x01\x01\n";

static ENGINE: LazyLock<Mutex<(Engine, Chat)>> = LazyLock::new(|| {
    Mutex::new((oracle(2, CTX), Chat::load(&oracle_dir()).expect("the template loads")))
});

fuzz_target!(|data: &[u8]| {
    let whole = session(vec![data.to_vec()]);
    let cut = session(pieces(data).into_iter().map(<[u8]>::to_vec).collect());
    assert_eq!(whole, cut);
});

/// An answer: its text, and what does not depend on time of its STAT.
type Answer = (Vec<u8>, u64, Option<(u64, bool)>);

fn session(input: Vec<Vec<u8>>) -> (i32, Vec<Answer>) {
    let (engine, chat) = &mut *ENGINE.lock().expect("a panic ends the process");
    // Every session begins alike.
    for slot in &mut engine.runner.slots {
        slot.truncate_to(0);
    }
    let options = LegacyOptions { ngen: NGEN, temperature: None, top_p: None, seed: Some(1) };
    let output = Output::default();
    let reader = Input::new(input, 0, Duration::ZERO, &output);
    let code = serve_streams(engine, chat, &options, reader, output.clone())
        .expect("the writer takes everything");
    assert!(engine.active_ids().is_empty());
    assert!(code == 0 || code == EXIT_BAD_FRAME, "exit {code}");
    (code, answers(&output.bytes()))
}

/// Splits the output; whatever is in no answer is an error.
fn answers(written: &[u8]) -> Vec<Answer> {
    let mut rest = written.strip_prefix(READY).expect("READY comes first");
    assert!(matches!(line(&mut rest), Record::Stat(_)));
    assert!(matches!(line(&mut rest), Record::Tiers(_)));
    let mut answers = Vec::new();
    while !rest.is_empty() {
        let at = rest.windows(END.len()).position(|window| window == END);
        let (text, behind) = rest.split_at(at.expect("an answer ends with END"));
        assert!(!text.contains(&1), "a reserved byte within an answer");
        rest = &behind[END.len()..];
        match line(&mut rest) {
            Record::Stat(stat) => answers.push((text.to_vec(), stat.emitted, None)),
            Record::TurnStat(turn) => {
                assert!(turn.stat.emitted <= u64::from(NGEN));
                assert!(turn.prompt_tokens + turn.stat.emitted <= CTX as u64);
                let figures = (turn.prompt_tokens, turn.length_limited);
                answers.push((text.to_vec(), turn.stat.emitted, Some(figures)));
            }
            record => panic!("STAT belongs behind END: {record:?}"),
        }
    }
    answers
}

/// The record in the next line.
fn line(rest: &mut &[u8]) -> Record {
    let at = rest.iter().position(|&byte| byte == b'\n').expect("lines end");
    let mut reader = RecordReader::new();
    reader.feed(READY);
    reader.feed(&rest[..=at]);
    *rest = &rest[at + 1..];
    assert_eq!(reader.next(), Some(Record::Ready));
    reader.next().expect("a whole line was fed")
}
