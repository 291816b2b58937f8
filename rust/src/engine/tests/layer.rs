//! Answers are the same whatever a model's own layer drafts, of models whose layer is often right.

use std::collections::BTreeMap;

use safetensors::tensor::{TensorView, serialize_to_file};
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use super::*;

/// Tokens of the constructed models that others follow.
const SPOKEN: usize = 500;
/// So much that most of their likeliest tokens still are those, and some are not.
const NOISE: f32 = 0.2;

/// A tensor's shape and elements.
type Floats = (Vec<usize>, Vec<f32>);

fn read(fixture: &Path) -> BTreeMap<String, Floats> {
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(fixture).expect("the fixture") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).expect("a file");
        for (name, tensor) in SafeTensors::deserialize(&bytes).expect("a file of tensors").iter() {
            let dtype = match tensor.dtype() {
                Dtype::F32 => crate::dtype::Dtype::F32,
                Dtype::BF16 => crate::dtype::Dtype::Bf16,
                other => panic!("{name}: {other:?}"),
            };
            let elements = crate::dtype::widen(dtype, tensor.data());
            tensors.insert(name.to_owned(), (tensor.shape().to_vec(), elements));
        }
    }
    tensors
}

fn write(dir: &Path, tensors: &BTreeMap<String, Floats>) {
    let views = tensors.iter().map(|(name, (shape, elements))| {
        let bytes = bytemuck::cast_slice(elements);
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("its bytes"))
    });
    serialize_to_file(views, None, &dir.join("model.safetensors")).expect("a file");
}

/// Sums of twelve even numbers, which are nearly normal.
fn normal(random: &mut u64) -> f32 {
    let mut even = || {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*random >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..12).map(|_| even()).sum::<f32>() - 6.0
}

/// The model of a fixture, changed so that a token mostly follows from the one before it: the output
/// head knows the embedding of the token that each follows. The layers disturb that by `noise` times
/// what they give. The layer that predicts does the same by the next token's embedding.
fn constructed(
    fixture: &str,
    noise: f32,
    change: impl Fn(&mut BTreeMap<String, Floats>),
) -> TempDir {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(fixture);
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(source.join(name), dir.path().join(name)).expect("a copy");
    }
    let mut tensors = read(&source);
    let [vocab, hidden] = tensors["model.embed_tokens.weight"].0[..] else { panic!("a matrix") };
    let mut random = 7;
    let embed: Vec<f32> = (0..vocab * hidden).map(|_| normal(&mut random)).collect();
    let mut head = vec![0.0; vocab * hidden];
    for token in 0..SPOKEN {
        let next = (token * 7 + 11) % SPOKEN;
        for i in 0..hidden {
            head[next * hidden + i] = 0.15 * embed[token * hidden + i];
        }
    }
    let n = tensors.keys().find_map(|name| name.strip_suffix(".eh_proj.weight"));
    let last = n.expect("a layer that predicts").to_owned();
    let mut set = |name: &str, elements: Vec<f32>| {
        tensors.get_mut(name).unwrap_or_else(|| panic!("{name}")).1 = elements;
    };
    let first_half =
        (0..hidden * 2 * hidden).map(|i| f32::from(i / (2 * hidden) == i % (2 * hidden)));
    set(&format!("{last}.eh_proj.weight"), first_half.collect());
    for norm in ["enorm", "hnorm", "shared_head.norm"] {
        set(&format!("{last}.{norm}.weight"), vec![1.0; hidden]);
    }
    set("model.norm.weight", vec![1.0; hidden]);
    set("model.embed_tokens.weight", embed);
    set("lm_head.weight", head);
    for (name, (_, elements)) in &mut tensors {
        if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
            for x in elements {
                *x *= noise;
            }
        }
    }
    change(&mut tensors);
    write(dir.path(), &tensors);
    dir
}

fn load(dir: &TempDir, mtp: bool, options: &RunnerOptions) -> Engine {
    let options = RunnerOptions { slots: 2, ctx: Some(CTX), mtp, ..options.clone() };
    let engine = Engine::load(dir.path(), &options, &mut |_, _| {}).expect("the model loads");
    assert_eq!(engine.runner.model.decoder.mtp.is_some(), mtp);
    engine
}

fn plain(dir: &TempDir) -> Engine {
    let mut engine = load(dir, false, &RunnerOptions::default());
    engine.never_draft();
    engine
}

fn by_layer(dir: &TempDir, tokens: usize, options: &RunnerOptions) -> Engine {
    let mut engine = load(dir, true, options);
    engine.drafting.always(Most { said: 0, layer: tokens });
    engine
}

/// An answer of the constructed models' own making.
fn short(job: u64) -> Request {
    let request = request(job);
    let sampling = Sampling { bias: Vec::new(), ..request.sampling };
    let prompt = request.prompt[..request.prompt.len().min(48)].to_vec();
    Request { max_tokens: 4 + job as usize % 24, prompt, sampling, ..request }
}

/// Compares `jobs` answers with drafts of one to three tokens by the layer with those without.
fn same(fixture: &str, noise: f32, jobs: u64, options: &RunnerOptions) -> Drafts {
    let dir = constructed(fixture, noise, |_| {});
    let mut plain = plain(&dir);
    let mut drafting: Vec<Engine> = (1..=3).map(|n| by_layer(&dir, n, options)).collect();
    let mut all = Drafts::default();
    for job in 0..jobs {
        let (expected, _) = answer_to(&mut plain, short(job));
        for engine in &mut drafting {
            let (said, drafts) = answer_to(engine, short(job));
            assert_eq!(said, expected, "{fixture}, job {job}");
            all.drafted += drafts.drafted;
            all.right += drafts.right;
        }
    }
    all
}

fn is_often_right(what: &str, Drafts { drafted, right }: Drafts) {
    let share = right as f64 / drafted as f64;
    assert!(drafted > 100 && (0.3..0.95).contains(&share), "{what}: {right} of {drafted}");
}

#[test]
fn a_hundred_answers_are_the_same_whatever_the_layer_drafts() {
    is_often_right("grouped", same("glm4_moe", NOISE, 100, &RunnerOptions::default()));
}

#[test]
fn so_they_are_with_latent_attention_and_chosen_positions() {
    for fixture in ["deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite"] {
        is_often_right(fixture, same(fixture, NOISE, 12, &RunnerOptions::default()));
    }
}

#[test]
fn so_they_are_with_room_for_few_experts() {
    let options = RunnerOptions { expert_slots: Some(1), ..RunnerOptions::default() };
    is_often_right("few experts", same("glm4_moe", NOISE, 20, &options));
}

#[test]
fn so_they_are_beside_others() {
    let dir = constructed("glm_moe_dsa", 0.15, |_| {});
    let (mut plain, mut drafting) = (plain(&dir), by_layer(&dir, 2, &RunnerOptions::default()));
    for job in (0..20).step_by(2) {
        let together = |engine: &mut Engine| {
            let mut said = [Vec::new(), Vec::new()];
            for job in [job, job + 1] {
                engine.submit(short(job)).expect("admitted");
            }
            while !engine.active.is_empty() {
                for event in engine.step(&mut |_| false) {
                    if let Event::Token { id, token } = event {
                        let logprob = token.logprob.map(f32::to_bits);
                        said[(id - job) as usize - 1].push((token.token, logprob));
                    }
                }
            }
            said
        };
        assert_eq!(together(&mut drafting), together(&mut plain), "{job}");
    }
    assert!(drafting.drafting.layer_luck().chance() > 0.5);
}

#[test]
fn what_the_layer_knows_comes_back_with_a_conversation() {
    let dir = constructed("glm4_moe", NOISE, |_| {});
    let state = tempfile::tempdir().expect("a folder");
    let ask = |engine: &mut Engine| {
        // Prompts of 170 tokens.
        let said = [3, 8].map(|job| {
            let prompt = request(job).prompt;
            answer_to(engine, Request { slot: 0, prompt, ..short(job) }).0
        });
        (said, engine.runner.slots[0].drafting())
    };
    let (expected, _) = ask(&mut plain(&dir));
    let mut known = Vec::new();
    for _ in 0..2 {
        let mut engine = by_layer(&dir, 2, &RunnerOptions::default());
        engine.runner.keep_conversations(state.path(), &mut |_, _| {}).expect("it keeps them");
        known.push(engine.runner.slots[0].drafting());
        let (said, now) = ask(&mut engine);
        assert_eq!(said, expected);
        known.push(now);
        engine.runner.finish_conversations();
    }
    let [none, first, restored, _] = known[..] else { panic!("{known:?}") };
    assert!(none == 0 && first > 165 && restored >= first - 1, "{known:?}");
}

#[test]
fn a_layer_that_fails_is_left_off_and_changes_nothing() {
    let dir = constructed("glm4_moe", NOISE, |tensors| {
        let proj = tensors.iter_mut().find(|(name, _)| name.ends_with("eh_proj.weight"));
        proj.expect("a layer that predicts").1.1[5] = f32::NAN;
    });
    let (mut plain, mut drafting) = (plain(&dir), by_layer(&dir, 2, &RunnerOptions::default()));
    for job in 0..10 {
        let (said, drafts) = answer_to(&mut drafting, short(job));
        assert_eq!(said, answer_to(&mut plain, short(job)).0);
        assert_eq!(drafts, Drafts::default());
    }
    assert!(!drafting.drafting.has_layer());
}

#[test]
fn a_layer_that_is_not_whole_is_not_used_and_that_is_told() {
    for (name, all) in
        [("enorm.weight", false), ("mlp.experts.3.up_proj.weight", false), ("", true)]
    {
        let dir = constructed("glm4_moe", NOISE, |tensors| {
            let of_layer = |key: &str| key.starts_with("model.layers.4.");
            tensors.retain(|key, _| !(of_layer(key) && (all || key.ends_with(name))));
        });
        is_left_out(&dir, if all { "" } else { name.split('.').next().expect("a part") });
    }
}

/// Loads the model with one notice that its layer is not used, because of what is called `named`.
fn is_left_out(dir: &TempDir, named: &str) {
    let options = RunnerOptions { mtp: true, ..RunnerOptions::default() };
    let engine = Engine::load(dir.path(), &options, &mut |_, _| {}).expect("the model loads");
    assert!(engine.runner.model.decoder.mtp.is_none());
    assert_eq!(engine.runner.model.sparse_layers, [1, 2, 3]);
    let notices = &engine.runner.notices;
    let [notice] = &notices[..] else { panic!("{notices:?}") };
    assert!(notice.contains("own layer for drafts is not used"), "{notice}");
    assert!(notice.contains(named), "{notice}");
}
