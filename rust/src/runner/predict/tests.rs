//! The layer that predicts further tokens gives what the references give.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::model::Logits;
use crate::runner::RunnerOptions;

/// References with such a layer: grouped and latent attention, chosen positions, FP8.
const MODELS: [&str; 9] = [
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v3_fp8",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "glm_moe_dsa_dense",
    "glm_moe_dsa_fp8",
    "glm_moe_dsa_shared",
];
/// How far logits may be from the reference (`tests/oracle`), and by how much a largest one leads.
const CLOSE: f32 = 5e-4;
const LEADS: f32 = 1e-3;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(name)
}

fn load(name: &str) -> Runner {
    let options = RunnerOptions { mtp: true, ..RunnerOptions::default() };
    Runner::load(&fixture(name), &options, &mut |_, _| {}).expect("the fixture loads")
}

/// The elements of an array of an uncompressed `.npz`, as f32.
fn array(npz: &[u8], name: &str) -> Option<Vec<f32>> {
    let name = format!("{name}.npy");
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([npz[at], npz[at + 1]]));
    let is_entry = |&at: &usize| {
        npz[at..].starts_with(b"PK\x03\x04") && npz[at + 30..].starts_with(name.as_bytes())
    };
    let entry = (0..npz.len() - 30 - name.len()).find(is_entry)?;
    let npy = entry + 30 + u16_at(entry + 26) + u16_at(entry + 28);
    let data = npy + 10 + u16_at(npy + 8);
    let header = String::from_utf8_lossy(&npz[npy + 10..data]);
    let shape = &header[header.find("'shape': (").expect("a shape") + 10..];
    let shape = &shape[..shape.find(')').expect("its end")];
    let dims = shape.split(',').filter_map(|dim| dim.trim().parse::<usize>().ok());
    let n = dims.product::<usize>();
    let elements = |size: usize| npz[data..data + n * size].chunks_exact(size);
    Some(if header.contains("'<f4'") {
        elements(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    } else if header.contains("'<i4'") {
        elements(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32).collect()
    } else {
        panic!("{name}: {header}");
    })
}

/// The tokens of the reference's sequences: each prompt and its continuation.
fn sequences(name: &str) -> Vec<Vec<u32>> {
    let text = std::fs::read(fixture(name).join("reference.json")).expect("a reference");
    let json: Value = serde_json::from_slice(&text).expect("JSON");
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let prompts = json["prompts"].as_array().expect("prompts").iter();
    prompts.map(|p| [ids(&p["ids"]), ids(&p["greedy"])].concat()).collect()
}

/// States after all tokens, in an empty slot.
fn states(runner: &mut Runner, tokens: &[u32]) -> Vec<f32> {
    runner.slots[0].truncate_to(0);
    let row = |(position, &token)| Row { slot: 0, position, token };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let mut states = Vec::new();
    let (none, kept) = (Logits::Of(&[]), Some(&mut states));
    runner.forward_with_states(&rows, none, None, kept, &mut || false).expect("a pass");
    states
}

/// Predicts behind all of `tokens` but the first, whose states are given; the first `known` are taken
/// in before.
fn logits(runner: &mut Runner, tokens: &[u32], states: &[f32], known: usize) -> Vec<f32> {
    let hidden = runner.model.decoder.embed.n_in;
    runner.slots[0].forget_drafting();
    let (before, states) = states[..(tokens.len() - 1) * hidden].split_at(known * hidden);
    let (next_before, next) = tokens[1..].split_at(known);
    runner.take_in(&[Unread { slot: 0, states: before, next: next_before.to_vec() }]);
    let rows = Unread { slot: 0, states, next: next.to_vec() }.rows(runner);
    let mut never = || false;
    let predicted = runner
        .with_step(&rows, None, None, &mut never, |decoder, step| decoder.predict(step, states));
    predicted.expect("it predicts").logits
}

#[test]
fn logits_equal_the_reference() {
    for name in MODELS {
        let npz = std::fs::read(fixture(name).join("mtp.npz"))
            .or_else(|_| std::fs::read(fixture(name).join("reference.npz")))
            .expect("a reference");
        let mut runner = load(name);
        let vocab = runner.model.decoder.vocab();
        let mut compared = 0;
        for (i, tokens) in sequences(name).iter().enumerate() {
            let states = states(&mut runner, tokens);
            let found = logits(&mut runner, tokens, &states, 0);
            if let Some(expected) = array(&npz, &format!("p{i}_mtp_logits")) {
                let far = expected.iter().zip(&found).map(|(a, b)| (a - b).abs());
                let most = far.fold(0.0, f32::max);
                assert!(most <= CLOSE, "{name}, prompt {i}: {most}");
                compared += 1;
            }
            let argmax = array(&npz, &format!("p{i}_mtp_argmax")).expect("the largest");
            let gap = array(&npz, &format!("p{i}_mtp_gap")).expect("its lead");
            assert_eq!(found.len(), argmax.len() * vocab, "{name}");
            for (row, (logits, expected)) in found.chunks_exact(vocab).zip(&argmax).enumerate() {
                let is_same = top_k(logits, 1)[0] as f32 == *expected;
                assert!(is_same || gap[row] <= LEADS, "{name}, prompt {i}, row {row}");
            }
        }
        assert!(compared > 0, "{name}: logits");
    }
}

#[test]
fn bits_do_not_depend_on_what_is_only_taken_in() {
    for name in ["glm4_moe", "deepseek_v3", "glm_moe_dsa"] {
        let mut runner = load(name);
        let tokens = sequences(name).swap_remove(0);
        let states = states(&mut runner, &tokens);
        let expected = logits(&mut runner, &tokens, &states, 0);
        for known in [1, 17, tokens.len() - 2] {
            let found = logits(&mut runner, &tokens, &states, known);
            let same = &expected[expected.len() - found.len()..];
            assert!(
                found.iter().zip(same).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{name} {known}"
            );
        }
    }
}

#[test]
fn what_is_predicted_next_follows_from_what_was() {
    let mut runner = load("glm_moe_dsa");
    let hidden = runner.model.decoder.embed.n_in;
    let tokens = sequences("glm_moe_dsa").swap_remove(0);
    let states = states(&mut runner, &tokens);
    let mut all = |length| {
        runner.slots[0].forget_drafting();
        let states = &states[..(tokens.len() - 1) * hidden];
        let unread = Unread { slot: 0, states, next: tokens[1..].to_vec() };
        let drafts = runner.predict(&[unread], &[length], &mut || false).expect("it predicts");
        assert_eq!(runner.slots[0].drafting(), tokens.len() - 1);
        drafts[0].clone()
    };
    let longest = all(6);
    assert_eq!(longest.len(), 6);
    assert_eq!(all(1), longest[..1]);
    assert_eq!(all(4), longest[..4]);
    assert!(longest.windows(2).any(|two| two[0] != two[1]), "{longest:?}");
}
