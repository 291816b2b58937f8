//! Greedy continuations and bit-equality of the oracle models, on the crate's public interface.
//!
//! Logits, hidden states and routing are compared with the references by `tests/oracle`.

use std::path::{Path, PathBuf};

use colibri::cpu::Isa;
use colibri::error::Error;
use colibri::model::arch::FAMILIES;
use colibri::model::{Logits, Row, summary};
use colibri::runner::{Runner, RunnerOptions};
use colibri::sample::{Sampling, sample};
use serde_json::{Value, json};

/// Every model with a reference in `tests/data/oracle`.
const MODELS: &[&str] = &[
    "deepseek_v2",
    "deepseek_v2_groups",
    "deepseek_v2_norm",
    "deepseek_v3",
    "deepseek_v3_fp8",
    "deepseek_v32",
    "dots1",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "glm_moe_dsa_dense",
    "glm_moe_dsa_fp8",
    "glm_moe_dsa_shared",
    "gpt_oss",
    "kimi_k2",
    "kimi_linear",
    "llama",
    "llama_scaled",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_moe_f32",
    "qwen3_moe_mixed",
    "qwen3_next",
    "qwen3_yarn",
];

/// Models whose kernels round activations, so that only the bits of runs among each other are equal.
const ROUNDED: &[&str] = &["gpt_oss_mxfp4"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(name)
}

fn load(name: &str, options: &RunnerOptions) -> Runner {
    Runner::load(&fixture(name), options, &mut |_, _| {}).expect("the fixture loads")
}

fn prompts(name: &str) -> Vec<(Vec<u32>, Vec<u32>)> {
    let text = std::fs::read_to_string(fixture(name).join("reference.json")).expect("a reference");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let prompts = json["prompts"].as_array().expect("prompts");
    prompts.iter().map(|p| (ids(&p["ids"]), ids(&p["greedy"]))).collect()
}

fn rows(slot: usize, first: usize, tokens: &[u32]) -> Vec<Row> {
    let row = |(i, &token)| Row { slot, position: first + i, token };
    tokens.iter().enumerate().map(row).collect()
}

/// Prompt in chunks, then one token at a time; tokens and the logits they were drawn from.
fn generate(runner: &mut Runner, prompt: &[u32], n: usize, chunk: usize) -> (Vec<u32>, Vec<f32>) {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    runner.slots[0].truncate_to(0);
    let mut logits = Vec::new();
    for part in prompt.chunks(chunk) {
        let rows = rows(0, runner.slots[0].tokens().len(), part);
        logits = runner
            .forward(&rows, Logits::Of(&[rows.len() - 1]), None, &mut || false)
            .expect("prefill");
    }
    let mut all = logits.clone();
    let mut tokens = vec![sample(runner.kernels(), &logits, &greedy, prompt, &[])];
    while tokens.len() < n {
        let position = runner.slots[0].tokens().len();
        let rows = rows(0, position, &tokens[tokens.len() - 1..]);
        logits = runner.forward(&rows, Logits::All, None, &mut || false).expect("decode");
        all.extend_from_slice(&logits);
        tokens.push(sample(runner.kernels(), &logits, &greedy, prompt, &tokens));
    }
    (tokens, all)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_family_has_a_model_here_and_a_place_in_the_readme() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).expect("a README");
    for family in FAMILIES {
        assert!(MODELS.contains(&family.name), "{}", family.name);
        assert!(readme.contains(&format!("`{}`", family.name)), "{}", family.name);
    }
}

#[test]
fn greedy_continuations_equal_the_reference() {
    for &name in MODELS {
        let mut runner = load(name, &RunnerOptions::default());
        for (prompt, expected) in prompts(name) {
            let (tokens, _) = generate(&mut runner, &prompt, expected.len(), 64);
            assert_eq!(tokens, expected, "{name}");
        }
    }
}

#[test]
fn only_layers_of_multi_token_prediction_are_left_unused_and_that_is_told() {
    for &name in MODELS.iter().chain(ROUNDED) {
        let text = std::fs::read(fixture(name).join("config.json")).expect("a configuration");
        let config: Value = serde_json::from_slice(&text).expect("JSON");
        let config = if config["text_config"].is_null() { &config } else { &config["text_config"] };
        let layers = config["num_hidden_layers"].as_u64().expect("a number");
        let notices = load(name, &RunnerOptions::default()).model.notices;
        let own = config["num_nextn_predict_layers"].as_u64().unwrap_or(0) > 0;
        let apart = config["mtp_num_hidden_layers"].as_u64().unwrap_or(0) > 0;
        if own || apart {
            let first = if apart { "mtp.fc".into() } else { format!("model.layers.{layers}.") };
            let first = format!("the first is {first}");
            assert!(notices.len() == 1 && notices[0].contains(&first), "{name}: {notices:?}");
            let options = RunnerOptions { mtp: true, ..RunnerOptions::default() };
            let model = load(name, &options).model;
            assert_eq!(model.notices.is_empty(), own, "{name}: {:?}", model.notices);
            assert_eq!(model.decoder.mtp.is_some(), own, "{name}");
        } else {
            assert!(notices.is_empty(), "{name}: {notices:?}");
        }
    }
}

#[test]
fn bits_depend_on_neither_chunks_nor_threads_nor_instruction_set() {
    for &name in MODELS.iter().chain(ROUNDED) {
        let (prompt, _) = prompts(name).swap_remove(1);
        let (_, expected) = generate(&mut load(name, &RunnerOptions::default()), &prompt, 24, 64);
        for isa in Isa::available() {
            for (threads, chunk) in [(1, 1), (2, 7), (3, 64)] {
                let options = RunnerOptions {
                    threads: Some(threads),
                    isa: Some(isa),
                    ..RunnerOptions::default()
                };
                let (_, logits) = generate(&mut load(name, &options), &prompt, 24, chunk);
                assert!(bits(&logits) == bits(&expected), "{name} {isa:?} {threads} {chunk}");
            }
        }
    }
}

#[test]
fn a_choice_of_positions_does_not_depend_on_chunks_over_several_blocks() {
    // More than one block of 256 chosen, and more than two to choose from.
    let dir = with("glm_moe_dsa_shared", "index_topk", json!(270));
    let prompt: Vec<u32> = (0..560).map(|i| (i * i * 31 + i * 7) % 490).collect();
    let logits = |threads, chunk| {
        let options = RunnerOptions { threads: Some(threads), ..RunnerOptions::default() };
        let mut runner = Runner::load(dir.path(), &options, &mut |_, _| {}).expect("loads");
        generate(&mut runner, &prompt, 4, chunk).1
    };
    let expected = logits(1, 560);
    for (threads, chunk) in [(2, 97), (3, 1)] {
        assert!(bits(&logits(threads, chunk)) == bits(&expected), "{threads} {chunk}");
    }
}

#[test]
fn bits_do_not_depend_on_other_rows_of_the_batch() {
    for &name in MODELS.iter().chain(ROUNDED) {
        let options = RunnerOptions { slots: 3, ..RunnerOptions::default() };
        let mut alone = load(name, &options);
        let mut together = load(name, &options);
        let prompts: Vec<Vec<u32>> = prompts(name).into_iter().map(|(prompt, _)| prompt).collect();
        let mut batch = Vec::new();
        let mut expected = Vec::new();
        for (slot, prompt) in prompts.iter().enumerate() {
            let part = rows(slot, 0, prompt);
            expected.extend(
                alone.forward(&part, Logits::All, None, &mut || false).expect("one sequence"),
            );
            batch.extend(part);
        }
        let logits = together.forward(&batch, Logits::All, None, &mut || false).expect("a batch");
        assert!(bits(&logits) == bits(&expected), "{name}");
    }
}

#[test]
fn bits_do_not_depend_on_the_expert_budget() {
    let name = "glm4_moe_lite";
    let (prompt, _) = prompts(name).swap_remove(0);
    let mut whole = load(name, &RunnerOptions::default());
    let (_, expected) = generate(&mut whole, &prompt, 32, 64);
    for guesses in [true, false] {
        let mut tight = load(name, &RunnerOptions::default());
        // Room for exactly the two experts of one token.
        let sizes = tight.model.experts.iter().map(colibri::experts::ExpertSource::ram_bytes);
        let largest = sizes.max().expect("experts");
        tight.experts = colibri::experts::ExpertStore::new(
            &tight.model.catalog,
            tight.model.experts.clone(),
            tight.model.n_experts,
            tight.model.top_k,
            2 * largest,
        )
        .expect("the floor fits");
        if !guesses {
            tight.experts.never_guess();
        }
        let (_, logits) = generate(&mut tight, &prompt, 32, 64);
        assert!(bits(&logits) == bits(&expected));
        assert!(tight.experts.bytes_read() > whole.experts.bytes_read(), "experts were read again");
        let uses = tight.experts.heat().uses();
        assert!(uses.missed > 0 && (guesses || uses.ahead == 0), "{uses:?}");
        let taken = (prompt.len() + 31) * tight.model.top_k * tight.model.sparse_layers.len();
        assert_eq!(uses.total(), taken as u64, "each row and rank is one use");
    }
}

/// A fixture with another value of one key of its config.json.
fn with(name: &str, key: &str, value: Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(fixture(name)).expect("the fixture") {
        let path = entry.expect("an entry").path();
        let file = dir.path().join(path.file_name().expect("a name"));
        std::os::unix::fs::symlink(path, file).expect("a link");
    }
    let config = dir.path().join("config.json");
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(&config).expect("a file")).expect("JSON");
    match json.get_mut("text_config").filter(|text| text.get(key).is_some()) {
        Some(text) => text[key] = value,
        None => json[key] = value,
    }
    std::fs::remove_file(&config).expect("the link goes");
    std::fs::write(&config, json.to_string()).expect("a file");
    dir
}

/// Loads a model for a context of 256 tokens and counts the matrices that are read.
fn load_counting(dir: &Path) -> (Result<Runner, Error>, usize) {
    let mut reads = 0;
    let options = RunnerOptions { ctx: Some(256), ..RunnerOptions::default() };
    let runner = Runner::load(dir, &options, &mut |_, _| reads += 1);
    (runner, reads)
}

#[test]
fn what_is_not_implemented_is_refused_by_name_before_anything_is_read() {
    for (name, key, value) in [
        ("deepseek_v2", "scoring_func", json!("sigmoid")),
        ("deepseek_v2", "topk_method", json!("noaux_tc")),
        ("deepseek_v3", "hidden_act", json!("gelu")),
        ("deepseek_v3", "moe_layer_freq", json!(2)),
        ("deepseek_v3", "num_key_value_heads", json!(2)),
        ("deepseek_v3", "partial_rotary_factor", json!(0.5)),
        ("deepseek_v3", "scoring_func", json!("softmax")),
        ("deepseek_v3", "topk_method", json!("greedy")),
        ("dots1", "hidden_act", json!("gelu")),
        ("dots1", "layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        ("dots1", "scoring_func", json!("softmax")),
        ("glm4", "hidden_act", json!("gelu")),
        ("glm4", "vision_config", json!({"depth": 24})),
        ("glm4_moe_lite", "layer_types", json!(["indexed_attention"])),
        ("glm4", "layer_types", json!(["sliding_attention", "full_attention"])),
        ("glm_moe_dsa", "indexer_types", json!(["full", "none", "full", "full"])),
        ("glm_moe_dsa", "mlp_bias", json!(true)),
        ("glm_moe_dsa_shared", "indexer_types", json!(["full", "full", "shared", "shared"])),
        ("gpt_oss", "hidden_act", json!("gelu")),
        ("gpt_oss", "layer_types", json!(["full_attention"])),
        (
            "kimi_linear",
            "linear_attn_config",
            json!({
                "full_attn_layers": [0, 3], "kda_layers": [1, 2],
                "head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4,
            }),
        ),
        ("kimi_linear", "mla_use_nope", json!(false)),
        ("kimi_linear", "moe_router_activation_func", json!("softmax")),
        ("llama", "final_logit_softcapping", json!(30.0)),
        ("llama", "mlp_bias", json!(true)),
        ("llama", "quantization_config", json!({"quant_method": "awq"})),
        ("llama", "rope_scaling", json!({"rope_type": "longrope", "factor": 8.0})),
        ("minimax_m2", "attn_type_list", json!([1, 0, 1, 1])),
        ("minimax_m2", "qk_norm_type", json!("per_head")),
        ("minimax_m2", "partial_rotary_factor", json!(0.25)),
        ("minimax_m2", "rotary_dim", json!(18)),
        ("minimax_m2", "scoring_func", json!("softmax")),
        ("minimax_m2", "shared_intermediate_size", json!(64)),
        ("minimax_m2", "use_qk_norm", json!(false)),
        ("minimax_m2", "use_routing_bias", json!(false)),
        ("mixtral", "sliding_window", json!(255)),
        ("olmoe", "clip_qkv", json!(8.0)),
        ("qwen2_moe", "layer_types", json!(["sliding_attention", "full_attention"])),
        ("qwen3_5_moe", "attn_output_gate", json!(false)),
        ("qwen3_5_moe", "hidden_act", json!("gelu")),
        ("qwen3_moe", "hidden_act", json!("gelu")),
        ("qwen3_moe", "embedding_multiplier", json!(12.0)),
        ("qwen3_moe", "layer_types", json!(["linear_attention"])),
        ("qwen3_moe", "partial_rotary_factor", json!(0.5)),
        ("qwen3_moe", "rope_scaling", json!({"rope_type": "yarn", "finetuned": true})),
        ("qwen3_moe", "scoring_func", json!("sigmoid")),
        ("qwen3_next", "attention_bias", json!(true)),
        ("qwen3_next", "layer_types", json!(["linear_attention", "full_attention"])),
        ("qwen3_next", "rope_parameters", json!({"mrope_section": [2, 1, 1]})),
    ] {
        let dir = with(name, key, value);
        let (runner, reads) = load_counting(dir.path());
        let error = runner.err().unwrap_or_else(|| panic!("{name} with another {key} loads"));
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(key), "{key}: {error}");
        assert_eq!(reads, 0, "{name} {key}");
        let told = summary(dir.path(), &[]).expect("a summary");
        // A window is in the way of a long context only.
        let expected = if key == "sliding_window" { Value::Null } else { error.to_string().into() };
        assert_eq!(told["reason"], expected, "{name} {key}");
        assert_eq!(told["supported"], expected.is_null(), "{name} {key}");
    }
}

#[test]
fn what_a_file_does_not_say_is_what_the_reference_takes() {
    for (name, key) in [
        ("deepseek_v2", "n_shared_experts"),
        ("deepseek_v3", "n_shared_experts"),
        ("deepseek_v3", "routed_scaling_factor"),
        ("deepseek_v32", "routed_scaling_factor"),
        ("dots1", "moe_layer_freq"),
        ("glm4_moe", "n_shared_experts"),
        ("glm4_moe_lite", "n_shared_experts"),
        ("glm4_moe_lite", "routed_scaling_factor"),
        ("glm_moe_dsa", "routed_scaling_factor"),
        ("kimi_k2", "n_shared_experts"),
        ("qwen2_moe", "norm_topk_prob"),
    ] {
        let prompt = prompts(name).swap_remove(0).0;
        let dir = with(name, key, Value::Null);
        let mut silent = Runner::load(dir.path(), &RunnerOptions::default(), &mut |_, _| {})
            .unwrap_or_else(|error| panic!("{name} without {key}: {error}"));
        let mut told = load(name, &RunnerOptions::default());
        let [silent, told] =
            [&mut silent, &mut told].map(|runner| generate(runner, &prompt, 2, 64).1);
        assert!(bits(&silent) == bits(&told), "{name} without {key}");
    }
    // Eight groups, which these sixteen experts make, but not the four groups of the fixture.
    let dir = with("deepseek_v3", "n_group", Value::Null);
    let (runner, _) = load_counting(dir.path());
    runner.expect("eight groups of two");
    for name in ["gpt_oss", "minimax_m2", "mixtral"] {
        let dir = with(name, "rope_theta", Value::Null);
        let error = load_counting(dir.path()).0.err().expect("refused").to_string();
        assert!(error.contains("rope_theta is missing"), "{name}: {error}");
    }
}

#[test]
fn a_bias_that_nothing_would_add_is_refused_by_name() {
    for (name, key, bias) in [
        ("glm4", "attention_bias", "self_attn.q_proj.bias"),
        ("glm4_moe", "attention_bias", "self_attn.q_proj.bias"),
        ("gpt_oss", "attention_bias", "self_attn.q_proj.bias"),
        ("qwen2_moe", "qkv_bias", "self_attn.q_proj.bias"),
    ] {
        let dir = with(name, key, json!(false));
        let (runner, reads) = load_counting(dir.path());
        let error = runner.err().unwrap_or_else(|| panic!("{name} loads")).to_string();
        assert!(error.contains(bias), "{name}: {error}");
        assert_eq!(reads, 0, "{name}");
    }
}

#[test]
fn keys_that_ask_for_nothing_new_are_accepted() {
    for (name, key, value) in [
        ("deepseek_v2", "norm_topk_prob", json!(true)),
        ("glm_moe_dsa", "layer_types", json!(vec!["indexed_attention"; 4])),
        ("llama", "logit_scale", json!(1.0)),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors"})),
        ("mixtral", "sliding_window", json!(256)),
        ("qwen3_moe", "partial_rotary_factor", json!(1.0)),
        ("qwen3_moe", "sliding_window", json!(16)),
        ("qwen3_moe", "layer_types", json!(["full_attention"])),
    ] {
        let dir = with(name, key, value);
        let (runner, reads) = load_counting(dir.path());
        runner.unwrap_or_else(|error| panic!("{name} with another {key}: {error}"));
        assert!(reads > 0);
    }
}

#[test]
fn layers_with_keys_follow_from_an_interval_where_nothing_lists_them() {
    let (prompt, _) = prompts("qwen3_next").swap_remove(0);
    let listed = generate(&mut load("qwen3_next", &RunnerOptions::default()), &prompt, 4, 64).1;
    let dir = with("qwen3_next", "layer_types", Value::Null);
    let mut unlisted = load_counting(dir.path()).0.expect("it loads");
    assert!(bits(&generate(&mut unlisted, &prompt, 4, 64).1) == bits(&listed));
}

#[test]
fn a_vision_part_is_named_and_left_out() {
    let dir = with("qwen3_5_moe", "vision_config", json!({"depth": 27}));
    let notices = load_counting(dir.path()).0.expect("the text part loads").notices;
    assert!(notices.iter().any(|notice| notice.starts_with("vision_config")), "{notices:?}");
}
