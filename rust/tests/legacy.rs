//! Sessions of the legacy protocol over streams in memory.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use colibri::engine::Engine;
use colibri::legacy::{Chat, LegacyOptions, serve_streams};
use colibri::runner::RunnerOptions;

const END: &str = "\u{1}\u{1}END\u{1}\u{1}\n";

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/glm4_moe_lite")
}

fn engine() -> Engine {
    let options = RunnerOptions { ctx: Some(256), ..RunnerOptions::default() };
    Engine::load(&model(), &options, &mut |_, _| {}).expect("the fixture loads")
}

/// What was written, by calls.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<Vec<u8>>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn written(engine: &mut Engine, options: &LegacyOptions, input: &str) -> Vec<Vec<u8>> {
    let chat = Chat::load(&model()).expect("the fixture loads");
    let output = Shared::default();
    let reader = Cursor::new(input.to_owned());
    let code = serve_streams(engine, &chat, options, reader, output.clone());
    assert_eq!(code.expect("the writer takes everything"), 0);
    output.0.lock().expect("the session is over").clone()
}

/// The fields of the STAT behind each answer.
fn session(engine: &mut Engine, input: &str) -> Vec<Vec<String>> {
    let options = LegacyOptions { ngen: 5, temperature: Some(0.0), top_p: None, seed: None };
    String::from_utf8_lossy(&written(engine, &options, input).concat())
        .split(END)
        .skip(1)
        .map(|rest| rest.lines().next().expect("STAT").split(' ').map(str::to_owned).collect())
        .collect()
}

/// Positions that went through the model so far, by the experts that were asked for.
fn positions(engine: &Engine) -> usize {
    let selections = engine.runner.experts.heat().uses().total();
    let (layers, _) = engine.runner.experts.geometry();
    selections as usize / (layers * engine.runner.model.top_k)
}

fn number(stat: &[String], field: usize) -> usize {
    stat[field].parse().expect("a number")
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let mut engine = engine();
    let stats = session(&mut engine, "tell me something about parsers\nand about trees\n");
    let [first, second] = &stats[..] else { panic!("{stats:?}") };
    let all: usize = [first, second].iter().map(|stat| number(stat, 1) + number(stat, 5)).sum();
    assert!(number(second, 5) > number(first, 5) + 5, "{stats:?}");
    // An answer that is tokenised again may come out in other tokens, and join with the last ones
    // of the prompt before it.
    let saved = all - positions(&engine);
    assert!(saved + 3 >= number(first, 5), "{saved} of {all}: {stats:?}");
}

#[test]
fn more_computes_one_position_again() {
    let mut engine = engine();
    let stats = session(&mut engine, "hello\n");
    assert_eq!(stats[0][6], "1", "the limit must have ended it: {stats:?}");
    let before = positions(&engine);
    let mut engine = self::engine();
    let stats = session(&mut engine, "hello\n\u{2}MORE\n");
    let emitted = number(&stats[1], 1);
    // The last token of the first answer was never computed, that of the second is not yet.
    assert!((emitted..=emitted + 1).contains(&(positions(&engine) - before)), "{stats:?}");
}

#[test]
fn no_write_ends_within_a_character() {
    let options =
        LegacyOptions { ngen: 100, temperature: Some(2.0), top_p: Some(1.0), seed: Some(3) };
    let writes = written(&mut engine(), &options, &"hello\n\u{2}RESET\n".repeat(20));
    assert!(writes.len() > 200, "{}", writes.len());
    let all = writes.concat();
    let mut within = Vec::new();
    let mut at = 0;
    for chunk in all.utf8_chunks() {
        for (start, character) in chunk.valid().char_indices() {
            within.extend(at + start + 1..at + start + character.len_utf8());
        }
        at += chunk.valid().len() + chunk.invalid().len();
    }
    assert!(!within.is_empty());
    let mut edge = 0;
    for write in writes {
        edge += write.len();
        assert!(!within.contains(&edge), "{:?}", String::from_utf8_lossy(&write));
    }
}
