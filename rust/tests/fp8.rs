//! A model in e4m3 blocks: logits against an f64 computation of the same weights, and conversion.
//!
//! The weights of a fixture are quantised here, and the values they stand for are computed from the
//! definition of the format; nothing of the crate takes part in the reference.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use colibri::convert::{Conversion, Options};
use colibri::cpu::Isa;
use colibri::model::{Logits, Row, summary};
use colibri::runner::{Runner, RunnerOptions};
use colibri::store::{Catalog, MatrixSource};
use safetensors::tensor::{TensorView, serialize_to_file};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

/// Largest difference of a logit from the exact one, as for the other float formats.
const LOGITS: f64 = 5e-4;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle/qwen3_moe")
}

/// A tensor's shape and values, row-major.
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// The fixture's tensors, which are all bf16.
fn tensors() -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(fixture().join("model.safetensors")).expect("the fixture");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensor = |view: TensorView<'_>| {
        assert_eq!(view.dtype(), Dtype::BF16);
        let bits = view.data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let values = bits.map(|b| f64::from(f32::from_bits(u32::from(b) << 16))).collect();
        Tensor { shape: view.shape().to_vec(), values }
    };
    file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

/// The value of an e4m3 code by its fields.
fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f64.powi(-6),
        e => (1.0 + mantissa / 8.0) * 2f64.powi(e - 7),
    };
    if code < 128 { magnitude } else { -magnitude }
}

/// The code nearest to `x`, of those that are numbers.
fn nearest(x: f64) -> u8 {
    let codes = (0..=255u8).filter(|code| code & 0x7f != 0x7f);
    codes.min_by(|&a, &b| (e4m3(a) - x).abs().total_cmp(&(e4m3(b) - x).abs())).expect("codes")
}

/// How a model is quantised.
struct Recipe {
    block: [usize; 2],
    bf16_scales: bool,
    /// Embedding and head too.
    head: bool,
}

const RECIPES: [Recipe; 2] = [
    Recipe { block: [128, 128], bf16_scales: false, head: false },
    Recipe { block: [24, 40], bf16_scales: true, head: true },
];

impl Recipe {
    fn covers(&self, name: &str) -> bool {
        name.ends_with("_proj.weight")
            || self.head && ["lm_head.weight", "model.embed_tokens.weight"].contains(&name)
    }

    /// Codes and scales of `tensor`, whose values become those that they stand for.
    fn quantise(&self, tensor: &mut Tensor) -> (Vec<u8>, Vec<f32>) {
        let [n_out, n_in] = tensor.shape[..] else { panic!("a matrix") };
        let [rows, inputs] = self.block;
        let blocks = n_in.div_ceil(inputs);
        let mut scales = vec![0f64; n_out.div_ceil(rows) * blocks];
        let place = |i: usize| i / n_in / rows * blocks + i % n_in / inputs;
        for (i, value) in tensor.values.iter().enumerate() {
            scales[place(i)] = scales[place(i)].max(value.abs());
        }
        let scales: Vec<f32> = scales
            .into_iter()
            .map(|most| (most / 448.0) as f32)
            .map(|s| if self.bf16_scales { half::bf16::from_f32(s).to_f32() } else { s })
            .collect();
        let mut codes = Vec::new();
        for (i, value) in tensor.values.iter_mut().enumerate() {
            let scale = f64::from(scales[place(i)]);
            let code = nearest(*value / scale);
            codes.push(code);
            *value = e4m3(code) * scale;
        }
        (codes, scales)
    }
}

/// A folder with the model in e4m3, one with the values that stand for in f32, and these.
fn folders(recipe: &Recipe) -> (tempfile::TempDir, tempfile::TempDir, BTreeMap<String, Tensor>) {
    let mut all = tensors();
    let (mut quantised, mut plain) = (Vec::new(), Vec::new());
    for (name, tensor) in &mut all {
        if recipe.covers(name) {
            let (codes, scales) = recipe.quantise(tensor);
            let [rows, inputs] = recipe.block;
            let grid = vec![tensor.shape[0].div_ceil(rows), tensor.shape[1].div_ceil(inputs)];
            let (dtype, scales) = if recipe.bf16_scales {
                let bf16 = |&s: &f32| half::bf16::from_f32(s).to_le_bytes();
                (Dtype::BF16, scales.iter().flat_map(bf16).collect())
            } else {
                (Dtype::F32, scales.iter().flat_map(|s| s.to_le_bytes()).collect::<Vec<u8>>())
            };
            quantised.push((name.clone(), Dtype::F8_E4M3, tensor.shape.clone(), codes));
            quantised.push((format!("{name}_scale_inv"), dtype, grid, scales));
        }
        let bytes: Vec<u8> = tensor.values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect();
        let item = (name.clone(), Dtype::F32, tensor.shape.clone(), bytes);
        if !recipe.covers(name) {
            quantised.push(item.clone());
        }
        plain.push(item);
    }
    let config = json!({"quant_method": "fp8", "weight_block_size": recipe.block});
    (folder(&quantised, config), folder(&plain, Value::Null), all)
}

/// A model folder with `items`.
fn folder(
    items: &[(String, Dtype, Vec<usize>, Vec<u8>)],
    quantization: Value,
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let views = items.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    serialize_to_file(views, None, &dir.path().join("model.safetensors")).expect("a file");
    let text = std::fs::read(fixture().join("config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    config["quantization_config"] = quantization;
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(fixture().join(name), dir.path().join(name)).expect("copied");
    }
    dir
}

/// A text that the fixture's reference has.
fn tokens() -> Vec<u32> {
    let text = std::fs::read(fixture().join("reference.json")).expect("a reference");
    let json: Value = serde_json::from_slice(&text).expect("JSON");
    let ids = |key: &str| -> Vec<u32> {
        serde_json::from_value(json["prompts"][1][key].clone()).expect("ids")
    };
    [ids("ids"), ids("greedy")].concat()
}

/// The engine's logits `[tokens][vocabulary]`.
fn engine(dir: &Path, isa: Option<Isa>) -> (Runner, Vec<f32>) {
    let options = RunnerOptions { isa, ..RunnerOptions::default() };
    let mut runner = Runner::load(dir, &options, &mut |_, _| {}).expect("the model loads");
    let rows: Vec<Row> = tokens()
        .into_iter()
        .enumerate()
        .map(|(position, token)| Row { slot: 0, position, token })
        .collect();
    let logits = runner.forward(&rows, Logits::All, None, &mut || false).expect("logits");
    (runner, logits)
}

/// `qwen3_moe` in f64 with the fixture's sizes.
struct Reference<'a>(&'a BTreeMap<String, Tensor>);

const HEAD_DIM: usize = 16;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const TOP_K: usize = 4;

impl Reference<'_> {
    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.0[&format!("{name}.weight")].values;
        w.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let w = &self.0[&format!("{name}.weight")].values;
        x.iter().zip(w).map(|(x, w)| x / (mean + 1e-6).sqrt() * w).collect()
    }

    /// Heads of a projection, each normalised and rotated.
    fn heads(&self, block: &str, part: &str, x: &[f64], position: usize) -> Vec<Vec<f64>> {
        let projected = self.product(&format!("{block}.{part}_proj"), x);
        let rotate = |head: &[f64]| {
            let x = self.norm(&format!("{block}.{part}_norm"), head);
            let half = HEAD_DIM / 2;
            let mut y = x.clone();
            for i in 0..half {
                let angle = position as f64 * 1e6f64.powf(-2.0 * i as f64 / HEAD_DIM as f64);
                y[i] = x[i] * angle.cos() - x[i + half] * angle.sin();
                y[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin();
            }
            y
        };
        projected.chunks_exact(HEAD_DIM).map(rotate).collect()
    }

    fn attention(&self, block: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let keys: Vec<_> =
            x.iter().enumerate().map(|(t, x)| self.heads(block, "k", x, t)).collect();
        let values: Vec<_> =
            x.iter().map(|x| self.product(&format!("{block}.v_proj"), x)).collect();
        let row =
            |(t, x): (usize, &Vec<f64>)| {
                let mut out = Vec::new();
                for (h, q) in self.heads(block, "q", x, t).iter().enumerate() {
                    let kv = h / (HEADS / KV_HEADS);
                    let score = |s: usize| -> f64 {
                        keys[s][kv].iter().zip(q).map(|(k, q)| k * q).sum::<f64>() / 4.0
                    };
                    let weights = softmax(&(0..=t).map(score).collect::<Vec<_>>());
                    out.extend((kv * HEAD_DIM..(kv + 1) * HEAD_DIM).map(|d| -> f64 {
                        weights.iter().zip(&values).map(|(w, v)| w * v[d]).sum()
                    }));
                }
                self.product(&format!("{block}.o_proj"), &out)
            };
        x.iter().enumerate().map(row).collect()
    }

    fn experts(&self, block: &str, x: &[f64]) -> Vec<f64> {
        let scores = softmax(&self.product(&format!("{block}.gate"), x));
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let total: f64 = order[..TOP_K].iter().map(|&e| scores[e]).sum();
        let mut out = vec![0.0; x.len()];
        for &e in &order[..TOP_K] {
            let part = |part: &str, x: &[f64]| {
                self.product(&format!("{block}.experts.{e}.{part}_proj"), x)
            };
            let gate = part("gate", x).into_iter().map(|g| g / (1.0 + (-g).exp()));
            let inner: Vec<f64> = gate.zip(part("up", x)).map(|(g, u)| g * u).collect();
            for (out, y) in out.iter_mut().zip(part("down", &inner)) {
                *out += scores[e] / total * y;
            }
        }
        out
    }

    fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let embed = &self.0["model.embed_tokens.weight"];
        let width = embed.shape[1];
        let row = |&token: &u32| embed.values[token as usize * width..][..width].to_vec();
        let mut hidden: Vec<Vec<f64>> = tokens.iter().map(row).collect();
        for layer in 0..4 {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let norm = |part: &str, hidden: &[Vec<f64>]| -> Vec<Vec<f64>> {
                hidden.iter().map(|h| self.norm(&name(part), h)).collect()
            };
            let added = self.attention(&name("self_attn"), &norm("input_layernorm", &hidden));
            add(&mut hidden, &added);
            let inputs = norm("post_attention_layernorm", &hidden);
            let added: Vec<_> = inputs.iter().map(|x| self.experts(&name("mlp"), x)).collect();
            add(&mut hidden, &added);
        }
        hidden.iter().flat_map(|h| self.product("lm_head", &self.norm("model.norm", h))).collect()
    }
}

fn add(rows: &mut [Vec<f64>], others: &[Vec<f64>]) {
    for (x, y) in rows.iter_mut().flatten().zip(others.iter().flatten()) {
        *x += y;
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - most).exp()).sum();
    x.iter().map(|x| (x - most).exp() / sum).collect()
}

fn difference(ours: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(ours.len(), exact.len());
    ours.iter().zip(exact).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

#[test]
fn the_reference_is_that_of_the_fixture() {
    let exact = Reference(&tensors()).logits(&tokens());
    let (_, logits) = engine(&fixture(), None);
    let worst = difference(&logits, &exact);
    assert!(worst <= LOGITS, "{worst}");
}

#[test]
fn logits_are_those_of_the_weights_that_codes_and_scales_stand_for() {
    let unquantised = Reference(&tensors()).logits(&tokens());
    for recipe in &RECIPES {
        let (dir, _, values) = folders(recipe);
        let exact = Reference(&values).logits(&tokens());
        let (runner, logits) = engine(dir.path(), None);
        let worst = difference(&logits, &exact);
        assert!(worst <= LOGITS, "blocks of {:?}: {worst}", recipe.block);
        assert!(difference(&logits, &unquantised) > 0.05, "as if nothing had been quantised");
        for expert in &runner.model.experts {
            for part in [&expert.gate, &expert.up, &expert.down] {
                assert_eq!(part.format(), "fp8-e4m3");
            }
        }
        for isa in Isa::available() {
            let (_, same) = engine(dir.path(), Some(isa));
            let equal = same.iter().zip(&logits).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(equal, "{isa:?}");
        }
    }
}

#[test]
fn a_summary_names_the_formats_and_counts_weights_alone() {
    let (fp8, plain, _) = folders(&RECIPES[0]);
    let [told, expected] =
        [fp8.path(), plain.path()].map(|dir| summary(dir, &[]).expect("a summary"));
    assert_eq!(told["parameters"], expected["parameters"]);
    assert_eq!(told["routed_experts"]["formats"], json!({"fp8-e4m3": 4 * 16 * 3}));
    assert_eq!(told["dense"]["formats"]["fp8-e4m3"], 4 * 4);
    let experts = "model.layers.0.mlp.experts.gate_up_proj";
    let mxfp4 = folder(
        &[
            (format!("{experts}_blocks"), Dtype::U8, vec![2, 3, 4, 16], vec![0; 2 * 3 * 4 * 16]),
            (format!("{experts}_scales"), Dtype::U8, vec![2, 3, 4], vec![0; 2 * 3 * 4]),
        ],
        Value::Null,
    );
    let told = summary(mxfp4.path(), &[]).expect("a summary");
    assert_eq!(told["routed_experts"]["formats"], json!({"mxfp4": 1}));
    assert_eq!(told["parameters"], 2 * 3 * 128);
}

#[test]
fn a_conversion_makes_of_codes_what_it_makes_of_their_values() {
    for recipe in &RECIPES {
        let (fp8, plain, _) = folders(recipe);
        let converted = [fp8.path(), plain.path()].map(|source| {
            let dir = tempfile::tempdir().expect("a folder");
            let options = Options::parse("int4", 32, "int8", "int8", "int8").expect("options");
            let conversion = Conversion::new(source, &[], &options).expect("a plan");
            conversion.run(dir.path(), Some(2), &mut |_, _, _| true).expect("converted");
            dir
        });
        for layer in 0..4 {
            let file = format!("model-experts-{layer:05}.safetensors");
            let [a, b] = converted.each_ref().map(|dir| std::fs::read(dir.path().join(&file)));
            assert!(a.expect("experts") == b.expect("experts"), "{file}");
        }
        let [a, b] = converted.each_ref().map(|dir| engine(dir.path(), None).1);
        assert_eq!(a, b);
    }
}

#[test]
fn what_a_conversion_keeps_has_the_same_blocks() {
    for recipe in &RECIPES {
        let (fp8, _, _) = folders(recipe);
        let dir = tempfile::tempdir().expect("a folder");
        let options = Options::parse("int8", 32, "keep", "bf16", "keep").expect("options");
        let conversion = Conversion::new(fp8.path(), &[], &options).expect("a plan");
        conversion.run(dir.path(), Some(1), &mut |_, _, _| true).expect("converted");
        let name = "model.layers.2.self_attn.q_proj";
        let [kept, source] = [dir.path(), fp8.path()].map(|dir| {
            let catalog = Catalog::open(dir).expect("a catalogue");
            let source = MatrixSource::find(&catalog, name, 64, 64).expect("found");
            assert_eq!(source.format(), "fp8-e4m3");
            let m = source.load(&catalog).expect("loaded");
            (0..64 * 64).map(|i| m.get(i / 64, i % 64)).collect::<Vec<f32>>()
        });
        assert_eq!(kept, source);
        engine(dir.path(), None);
    }
}
