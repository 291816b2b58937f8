//! How much text one token can stand for: whether encoding can make text disappear.

use super::bytes::{TokenStyle, byte_alphabet, collect};
use serde_json::Value;
use std::collections::HashMap;

/// Most bytes that NFC composes or folds into one: U+212A becomes `K`.
const NFC_SHRINKS: usize = 3;

/// How many bytes of text may become one byte of token, `None` if there is no bound.
///
/// Anything this does not know counts as unbounded.
pub fn shrinkage(file: &Value, vocab: &HashMap<String, u32>, style: TokenStyle) -> Option<usize> {
    let loses_nothing = every_character_has_a_token(&file["model"], vocab, style)
        && !swallows_space(&file["added_tokens"])
        && parts(&file["pre_tokenizer"], "pretokenizers").into_iter().all(keeps_text);
    if !loses_nothing {
        return None;
    }
    let mut factor = 1;
    for stage in parts(&file["normalizer"], "normalizers") {
        match stage["type"].as_str()? {
            "NFC" => factor = NFC_SHRINKS,
            "Prepend" | "ByteLevel" => {}
            "Replace" => {
                let pattern = stage["pattern"]["String"].as_str()?;
                if stage["content"].as_str()?.len() < pattern.len() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    Some(factor)
}

fn parts<'a>(stage: &'a Value, list: &str) -> Vec<&'a Value> {
    let mut parts = Vec::new();
    collect(stage, list, &mut parts);
    parts
}

/// Whether no character is dropped or, with its neighbours, turned into one unknown token.
fn every_character_has_a_token(
    model: &Value,
    vocab: &HashMap<String, u32>,
    style: TokenStyle,
) -> bool {
    let has_bytes = match style {
        TokenStyle::ByteLevel => {
            byte_alphabet().into_keys().all(|c| vocab.contains_key(c.encode_utf8(&mut [0; 4])))
        }
        TokenStyle::Sentencepiece { .. } => {
            model["byte_fallback"] == Value::Bool(true)
                && (0..=u8::MAX).all(|byte| vocab.contains_key(&format!("<0x{byte:02X}>")))
        }
        TokenStyle::Literal => false,
    };
    // Files without a type are the older ones of BPE models.
    has_bytes && matches!(model["type"].as_str(), None | Some("BPE"))
}

/// Whether an added token takes the whitespace beside it, of which there can be any amount.
fn swallows_space(added: &Value) -> bool {
    let is_set = |flag: &Value| flag.as_bool() != Some(false) && !flag.is_null();
    added
        .as_array()
        .is_some_and(|tokens| tokens.iter().any(|t| is_set(&t["lstrip"]) || is_set(&t["rstrip"])))
}

/// Whether a pre-tokenizer only cuts and respells.
fn keeps_text(stage: &Value) -> bool {
    match stage["type"].as_str() {
        Some("ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts") => true,
        Some("Split" | "Punctuation") => {
            stage["behavior"].as_str().is_some_and(|behavior| behavior != "Removed")
        }
        _ => false,
    }
}
