//! How much a tokenizer file may make a text grow: its stages multiply, and files are hostile.

use serde_json::Value;

/// Most bytes that the stages which a file controls may make of one byte. A sentencepiece model
/// as converted by `transformers` has 12: a mark before the text, three bytes for every space.
const MAX_GROWTH: f64 = 16.0;
/// Most stages of one kind; each runs over the whole text.
const MAX_STAGES: usize = 32;

/// Refuses stages that are unknown, that make text grow out of proportion or that match nothing
/// at every position, where the crate panics.
pub fn check(file: &Value) -> Result<(), String> {
    let mut growth = 1.0;
    for stage in stages(&file["normalizer"], "normalizers")? {
        growth *= normalizer(stage)?;
    }
    for stage in stages(&file["pre_tokenizer"], "pretokenizers")? {
        growth *= pre_tokenizer(stage)?;
    }
    if growth > MAX_GROWTH {
        return Err(format!("makes a text up to {growth:.0} times longer before it is split"));
    }
    Ok(())
}

/// The stages, sequences opened, by the names the crate goes by: it ignores the list in a stage
/// that is no sequence, and guesses the type of one that does not tell.
fn stages<'a>(stage: &'a Value, list: &str) -> Result<Vec<&'a Value>, String> {
    let mut found = Vec::new();
    let mut open = vec![stage];
    while let Some(stage) = open.pop() {
        match (stage["type"].as_str(), stage[list].as_array()) {
            (Some("Sequence"), Some(inner)) => open.extend(inner.iter().rev()),
            (Some(_), None) => found.push(stage),
            _ if stage.is_null() => {}
            _ => return Err(format!("a stage among {list} is malformed")),
        }
        if found.len() + open.len() > MAX_STAGES {
            return Err(format!("has more than {MAX_STAGES} {list}"));
        }
    }
    Ok(found)
}

fn normalizer(stage: &Value) -> Result<f64, String> {
    match stage["type"].as_str() {
        // What these do is fixed, and doing it again changes nothing more.
        Some(
            "NFC" | "NFD" | "NFKC" | "NFKD" | "Nmt" | "Lowercase" | "StripAccents" | "Strip"
            | "StripNormalizer",
        ) => Ok(1.0),
        // Spaces around ideographs are five bytes of three, a byte is a character of up to two.
        Some("BertNormalizer" | "ByteLevel") => Ok(2.0),
        // Text between two added tokens can be as short as a byte.
        Some("Prepend") => {
            let prefix = stage["prepend"].as_str().ok_or("a Prepend has no text")?;
            Ok(1.0 + prefix.len() as f64)
        }
        Some("Replace") => {
            let content = stage["content"].as_str().ok_or("a Replace has no content")?.len() as f64;
            match pattern(stage)? {
                Pattern::Text(text) => Ok((content / text.len() as f64).max(1.0)),
                // It may match nothing before every byte.
                Pattern::Regex => Ok(1.0 + content),
            }
        }
        other => Err(format!("normalizer {other:?} is not supported")),
    }
}

fn pre_tokenizer(stage: &Value) -> Result<f64, String> {
    match stage["type"].as_str() {
        Some(
            "BertPreTokenizer" | "CharDelimiterSplit" | "Digits" | "Punctuation" | "UnicodeScripts"
            | "Whitespace" | "WhitespaceSplit",
        ) => Ok(1.0),
        Some("Split") => pattern(stage).map(|_| 1.0),
        Some("FixedLength") => match &stage["length"] {
            Value::Null => Ok(1.0),
            length if length.as_u64().is_some_and(|length| length > 0) => Ok(1.0),
            length => Err(format!("FixedLength pieces of {length}")),
        },
        // Each byte becomes two, and a piece can be a single byte that gets a space.
        Some("ByteLevel") => {
            Ok(if stage["add_prefix_space"] == Value::Bool(false) { 2.0 } else { 4.0 })
        }
        // Every space, and the front of every piece.
        Some("Metaspace") => {
            let mark = stage["replacement"].as_str().ok_or("a Metaspace has no replacement")?;
            Ok(1.0 + mark.len() as f64)
        }
        other => Err(format!("pre-tokenizer {other:?} is not supported")),
    }
}

enum Pattern<'a> {
    Text(&'a str),
    Regex,
}

fn pattern(stage: &Value) -> Result<Pattern<'_>, String> {
    match (stage["pattern"]["String"].as_str(), stage["pattern"]["Regex"].as_str()) {
        (Some(text), None) if !text.is_empty() => Ok(Pattern::Text(text)),
        (None, Some(regex)) if !regex.is_empty() => Ok(Pattern::Regex),
        _ => Err(format!("a {} has no pattern", stage["type"])),
    }
}
