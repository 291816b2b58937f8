//! Memory that changes while tokens are made changes no bit of them.

use std::path::{Path, PathBuf};

use colibri::convert::{Conversion, Options};
use colibri::experts::{Biases, Course, ExpertSource, ExpertStore, Routed, Tools};
use colibri::model::{Logits, Row};
use colibri::runner::{Runner, RunnerOptions};
use colibri::store::{FusedRows, VectorSource};
use colibri::telemetry::Phases;
use colibri::threads::Team;

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

/// Experts of two sizes, so that more is given up than the next one takes, or not enough for it.
#[test]
fn memory_of_experts_given_up_is_not_left_over() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options::parse("int4", 64, "int8", "int8", "int8").expect("options");
    let conversion = Conversion::new(&fixture("glm4_moe_lite"), &[], &options).expect("a plan");
    conversion.run(dir.path(), Some(1), &mut |_, _, _| true).expect("converted");
    let runner =
        Runner::load(dir.path(), &RunnerOptions::default(), &mut |_, _| {}).expect("it loads");
    let model = &runner.model;
    let (n_experts, hidden) = (model.n_experts, model.decoder.embed.n_in);
    let router = format!("model.layers.{}.mlp.gate.weight", model.sparse_layers[0]);
    let rows = FusedRows { n_experts, expert: 0, first: 0, step: 1 };
    let vector = VectorSource::find(&model.catalog, &router, rows, hidden).expect("a vector");
    let mut sources = model.experts.clone();
    for source in sources.iter_mut().step_by(3) {
        let [gate, up, down] = [0; 3].map(|_| vector.clone());
        source.biases = Some(Biases { gate, up, down });
    }
    let sizes: Vec<u64> = sources.iter().map(ExpertSource::ram_bytes).collect();
    let (most, least) = (sizes.iter().max().expect("experts"), sizes.iter().min());
    assert!(least < Some(most), "experts of one size");
    let budget = most * (model.top_k as u64 + 1);
    let mut store =
        ExpertStore::new(&model.catalog, sources, n_experts, model.top_k, budget).expect("fits");
    let team = Team::new(1);
    let tools = Tools { kernels: runner.kernels(), team: &team };
    let mut state = 1u64;
    let mut dice = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % n
    };
    let x: Vec<f32> = (0..3 * hidden).map(|i| (i as f32 * 0.7).sin()).collect();
    for n in 0..300 {
        let mut choose = || {
            let first = dice(n_experts);
            let experts = (0..model.top_k).map(|rank| (first + rank) % n_experts).collect();
            Routed { experts, weights: vec![0.5; model.top_k] }
        };
        let routed: Vec<Routed> = (0..3).map(|_| choose()).collect();
        let layer = dice(model.sparse_layers.len());
        let course = Course { phases: &mut Phases::default(), interrupted: &mut || false };
        store.run(layer, &x, &routed, tools, course, || None).expect("a layer");
        assert_eq!(model.catalog.spare().bytes(), 0, "after {n} layers");
        assert!(store.tiers().ram_bytes <= store.budget_bytes());
        if n % 5 == 4 {
            store.limit(most * (model.top_k + dice(2)) as u64);
        }
    }
}
