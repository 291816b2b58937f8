//! Configurations that would change the result in a way that no family here computes.
//!
//! Each family reads the keys it knows. A key that only other families have would go unseen; those
//! of them that steer the arithmetic, and forms of weights that are not read, are refused here by
//! name.

use serde_json::Value;

use crate::config::Config;
use crate::error::{Error, Result};

/// Keys, the number at which they ask for nothing (null and false are others), and the families that
/// read them by themselves.
const STEERING: &[(&str, Option<f64>, &[&str])] = &[
    ("attention_chunk_size", None, &[]),
    ("attention_multiplier", None, &[]),
    ("attn_logit_softcapping", None, &[]),
    ("audio_config", None, &[]),
    ("clip_qkv", None, &["olmoe"]),
    ("embedding_multiplier", Some(1.0), &[]),
    ("final_logit_softcapping", None, &[]),
    ("hidden_activation", None, &[]),
    ("layernorm_full_attention_alpha", Some(1.0), &[]),
    ("layernorm_full_attention_beta", Some(1.0), &[]),
    ("layernorm_linear_attention_alpha", Some(1.0), &[]),
    ("layernorm_linear_attention_beta", Some(1.0), &[]),
    ("layernorm_mlp_alpha", Some(1.0), &[]),
    ("layernorm_mlp_beta", Some(1.0), &[]),
    ("lm_head_multiplier", Some(1.0), &[]),
    ("logit_scale", Some(1.0), &[]),
    ("logits_scaling", Some(1.0), &[]),
    ("mlp_multipliers", None, &[]),
    ("mup_base_width", None, &[]),
    ("no_rope_layer_interval", Some(0.0), &[]),
    ("no_rope_layers", None, &[]),
    ("parallel_attn", Some(0.0), &[]),
    ("postnorm", Some(0.0), &[]),
    ("query_pre_attn_scalar", None, &[]),
    ("residual_multiplier", Some(1.0), &[]),
    ("scale_depth", None, &[]),
    ("scale_emb", Some(1.0), &[]),
    ("sliding_window_pattern", None, &[]),
    ("ssm_multipliers", None, &[]),
    ("swiglu_alpha", None, &["gpt_oss"]),
    ("swiglu_limit", None, &["gpt_oss"]),
    ("use_attn_gate", Some(0.0), &[]),
    ("use_bias", Some(0.0), &[]),
    ("use_parallel_residual", Some(0.0), &[]),
    ("use_qk_norm", None, &["glm4_moe", "minimax_m2"]),
    ("vision_config", None, &["qwen3_5_moe"]),
    ("zero_expert_num", Some(0.0), &[]),
];

/// Forms of `quantization_config` whose weights are read; the engine's own among them.
const QUANTIZED: &[&str] = &["colibri", "compressed-tensors", "fbgemm_fp8", "fp8", "mxfp4"];

/// Refuses what would change the result of a model of `family` and is not computed.
///
/// # Errors
/// [`Error::Unsupported`] naming the key.
pub fn check(config: &Config, family: &str) -> Result<()> {
    for (key, neutral, readers) in STEERING {
        let asks = |value: &&Value| {
            // A flag that is false asks for nothing, whatever the key.
            **value != Value::Bool(false) && (neutral.is_none() || value.as_f64() != *neutral)
        };
        if let Some(value) = config.get(key).filter(asks)
            && !readers.contains(&family)
        {
            return Err(unsupported(format!("{key} {}", brief(value))));
        }
    }
    let Some(form) = config.get("quantization_config") else { return Ok(()) };
    let method = form.get("quant_method").unwrap_or(&Value::Null);
    if !method.as_str().is_some_and(|method| QUANTIZED.contains(&method)) {
        return Err(unsupported(format!("quantization_config with quant_method {method}")));
    }
    // Weights that were rotated, or of which zeros were left out, are not what their tensors say.
    for key in ["transform_config", "sparsity_config"] {
        let is_empty = |value: &Value| match value {
            Value::Object(members) => {
                members.is_empty() || value.get("format").is_some_and(|format| format == "dense")
            }
            other => other.is_null(),
        };
        if let Some(value) = form.get(key).filter(|value| !is_empty(value)) {
            return Err(unsupported(format!("quantization_config with {key} {}", brief(value))));
        }
    }
    Ok(())
}

/// The value, or what kind it is of where that would be long.
fn brief(value: &Value) -> String {
    match value {
        Value::Object(_) => "{...}".into(),
        Value::Array(list) => format!("[{} values]", list.len()),
        other => other.to_string(),
    }
}

fn unsupported(what: String) -> Error {
    Error::Unsupported {
        what,
        hint: "it changes what the model computes, and this version has no such operation".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(json: &str, family: &str) -> Result<()> {
        check(&Config::from_json(json), family)
    }

    #[test]
    fn keys_of_other_families_are_refused_by_name() {
        for (key, neutral, readers) in STEERING {
            for value in ["2.5", "true", "{\"x\": 1}", "[1, 0]"] {
                let json = format!(r#"{{"{key}": {value}}}"#);
                let error = checked(&json, "llama").expect_err(&json).to_string();
                assert!(error.contains(key), "{json}: {error}");
                for family in *readers {
                    checked(&json, family).expect("the family reads it");
                }
            }
            checked(&format!(r#"{{"{key}": null}}"#), "llama").expect("absent");
            checked(&format!(r#"{{"{key}": false}}"#), "llama").expect("off");
            if let Some(neutral) = neutral {
                checked(&format!(r#"{{"{key}": {neutral}}}"#), "llama").expect("neutral");
            }
        }
    }

    #[test]
    fn forms_of_weights_that_are_not_read_are_refused_by_name() {
        for method in ["awq", "gptq", "bitsandbytes", "hqq", "modelopt", "quark"] {
            let json = format!(r#"{{"quantization_config": {{"quant_method": "{method}"}}}}"#);
            let error = checked(&json, "llama").expect_err(method).to_string();
            assert!(error.contains(method), "{error}");
        }
        for (form, name) in [
            ("{}", "quant_method null"),
            ("7", "quant_method null"),
            (
                r#"{"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": 1}}}"#,
                "transform_config",
            ),
            (
                r#"{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}"#,
                "sparsity_config",
            ),
        ] {
            let json = format!(r#"{{"quantization_config": {form}}}"#);
            let error = checked(&json, "llama").expect_err(form).to_string();
            assert!(error.contains(name), "{error}");
        }
        for form in [
            r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#,
            r#"{"quant_method": "mxfp4"}"#,
            r#"{"quant_method": "colibri", "version": 1}"#,
            r#"{"quant_method": "compressed-tensors", "sparsity_config": {}, "transform_config": {}}"#,
            r#"{"quant_method": "compressed-tensors", "sparsity_config": {"format": "dense"}}"#,
            "null",
        ] {
            let json = format!(r#"{{"quantization_config": {form}}}"#);
            checked(&json, "llama").expect(form);
        }
    }
}
