//! Memory that changes while tokens are made changes no bit of them.

use std::path::{Path, PathBuf};

use colibri::model::{Logits, Row};
use colibri::runner::{Runner, RunnerOptions};

const TOKENS: usize = 300;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(name)
}

/// The likeliest tokens after a prompt, and the bits of all logits; `before(n)` is called ahead of
/// the n-th token.
fn generate(
    runner: &mut Runner,
    mut before: impl FnMut(&mut Runner, usize),
) -> (Vec<usize>, Vec<u32>) {
    let prompt: Vec<u32> = (0..40u32).map(|i| 7 + i * 11 % 300).collect();
    let mut rows: Vec<Row> = prompt
        .iter()
        .enumerate()
        .map(|(position, &token)| Row { slot: 0, position, token })
        .collect();
    let (mut tokens, mut bits) = (Vec::new(), Vec::new());
    for n in 0..TOKENS {
        before(runner, n);
        let last = [rows.len() - 1];
        let logits =
            runner.forward(&rows, Logits::Of(&last), None, &mut || false).expect("a token");
        bits.extend(logits.iter().map(|logit| logit.to_bits()));
        let best =
            (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        tokens.push(best.expect("a vocabulary"));
        let position = prompt.len() + n;
        rows = vec![Row { slot: 0, position, token: tokens[n] as u32 }];
    }
    (tokens, bits)
}

#[test]
fn bits_are_the_same_while_the_cache_shrinks_and_grows() {
    for name in ["glm4_moe_lite", "qwen3_moe", "gpt_oss_mxfp4", "qwen3_next"] {
        let options = RunnerOptions { ctx: Some(512), ..RunnerOptions::default() };
        let load = || Runner::load(&fixture(name), &options, &mut |_, _| {}).expect("it loads");
        let mut steady = load();
        let expected = generate(&mut steady, |_, _| {});
        let all = steady.experts.total_bytes();

        let mut runner = load();
        let (mut state, mut lowered, mut least) = (1u64, 0, u64::MAX);
        let found = generate(&mut runner, |runner, n| {
            let held = runner.experts.tiers().ram_bytes;
            assert!(held <= runner.experts.budget_bytes(), "{held} at {n}");
            if n % 3 == 2 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // From nothing, which leaves the floor, to all.
                runner.lower_experts((state >> 33) % all);
                lowered += usize::from(runner.experts.tiers().ram_bytes < held);
                least = least.min(runner.experts.budget_bytes());
            }
        });
        assert!(found == expected, "{name}");
        assert!(lowered > 10, "{name}: experts were given up {lowered} times");
        assert!(least >= runner.experts.floor_bytes() && least < all / 2, "{name}: {least}");
        let read = (runner.experts.bytes_read(), steady.experts.bytes_read());
        assert!(read.0 > 2 * read.1, "{name}: {read:?} bytes were read");
    }
}
