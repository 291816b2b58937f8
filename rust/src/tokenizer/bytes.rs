//! The raw bytes that each token stands for.

use super::MAX_IDS;
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;

/// Ids may be so many times as many as tokens, ...
const MAX_SPREAD: u64 = 4;
/// ... and so many more: gaps cost memory.
const FREE_IDS: u64 = 1 << 16;

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenStyle {
    /// Each byte is a character of the GPT-2 alphabet.
    ByteLevel,
    /// `\u{2581}` is a space; `<0x0A>` is a single byte where there is byte fallback.
    Sentencepiece {
        /// Whether tokens of the form `<0x0A>` are bytes.
        byte_fallback: bool,
    },
    /// Text as it is.
    Literal,
}

impl TokenStyle {
    /// Reads the style from the decoder, or from the pre-tokenizer if there is none.
    pub fn of(file: &Value) -> Result<Self> {
        let mut kinds = Vec::new();
        collect(&file["decoder"], "decoders", &mut kinds);
        if kinds.is_empty() {
            collect(&file["pre_tokenizer"], "pretokenizers", &mut kinds);
        }
        let has = |kind: &str| kinds.iter().any(|part| part["type"] == kind);
        if let Some(odd) = ["WordPiece", "CTC", "BPEDecoder"].into_iter().find(|kind| has(kind)) {
            return Err(Error::Unsupported {
                what: format!("tokenizer decoder {odd}"),
                hint: "tokenizers of language models are byte-level or sentencepiece".to_owned(),
            });
        }
        if has("ByteLevel") {
            return Ok(Self::ByteLevel);
        }
        let byte_fallback = has("ByteFallback");
        let replaces = kinds
            .iter()
            .any(|part| part["type"] == "Replace" && part["pattern"]["String"] == "\u{2581}");
        if byte_fallback || replaces || has("Metaspace") {
            return Ok(Self::Sentencepiece { byte_fallback });
        }
        Ok(Self::Literal)
    }

    fn bytes_of(self, token: &str, alphabet: &HashMap<char, u8>) -> Vec<u8> {
        match self {
            // A token with a character outside the alphabet was added as it is.
            Self::ByteLevel => token
                .chars()
                .map(|c| alphabet.get(&c).copied())
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Self::Sentencepiece { byte_fallback } => match fallback_byte(token) {
                Some(byte) if byte_fallback => vec![byte],
                _ => token.replace('\u{2581}', " ").into_bytes(),
            },
            Self::Literal => token.as_bytes().to_vec(),
        }
    }
}

/// Whether decoding takes off the space that encoding put before the text.
pub fn strips_first_space(file: &Value) -> bool {
    let mut kinds = Vec::new();
    collect(&file["decoder"], "decoders", &mut kinds);
    kinds.iter().any(|part| match part["type"].as_str() {
        Some("Strip") => part["content"] == " " && part["start"].as_u64() == Some(1),
        Some("Metaspace") => {
            part["prepend_scheme"] != "never" && part["add_prefix_space"] != Value::Bool(false)
        }
        _ => false,
    })
}

/// The parts of a pipeline stage, sequences opened; nesting is bounded by the JSON parser.
pub fn collect<'a>(stage: &'a Value, list: &str, parts: &mut Vec<&'a Value>) {
    match stage[list].as_array() {
        Some(stages) => stages.iter().for_each(|stage| collect(stage, list, parts)),
        None if stage.is_object() => parts.push(stage),
        None => {}
    }
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The characters that stand for bytes in byte-level vocabularies: printable Latin-1 for itself,
/// the rest counted up from U+0100.
pub fn byte_alphabet() -> HashMap<char, u8> {
    let mut next = 256_u32;
    (0..=u8::MAX)
        .map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable { u32::from(byte) } else { next };
            next += u32::from(!printable);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), byte)
        })
        .collect()
}

/// Bytes by id, in one allocation: vocabularies have hundreds of thousands of short tokens.
#[derive(Debug)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// \[ids + 1\] where each token's bytes begin.
    starts: Vec<u32>,
    /// Ascending.
    added: Vec<u32>,
    longest: usize,
}

impl TokenBytes {
    /// Lays out the bytes of every token; added tokens stand for their text as it is.
    pub fn new(
        vocab: &HashMap<String, u32>,
        added: &HashMap<String, u32>,
        style: TokenStyle,
    ) -> Result<Self, String> {
        let largest = vocab.values().chain(added.values()).max();
        let ids = largest.map_or(0, |id| u64::from(*id) + 1);
        let tokens = (vocab.len() + added.len()) as u64;
        if ids > MAX_IDS.min(FREE_IDS + MAX_SPREAD * tokens) {
            return Err(format!("ids of {tokens} tokens go up to {ids}"));
        }
        let alphabet = byte_alphabet();
        let mut tokens: Vec<Option<(&str, bool)>> = vec![None; ids as usize];
        for (list, is_added) in [(added, true), (vocab, false)] {
            for (token, id) in list {
                let entry = &mut tokens[*id as usize];
                match entry {
                    Some((other, _)) if *other != token => {
                        return Err(format!("{other:?} and {token:?} share id {id}"));
                    }
                    Some(_) => {}
                    None => *entry = Some((token, is_added)),
                }
            }
        }
        let mut table = Self { bytes: Vec::new(), starts: vec![0], added: Vec::new(), longest: 0 };
        for (id, token) in (0_u32..).zip(tokens) {
            // What is matched is the spelling, save that a byte-level one spells bytes.
            if let Some((token, _)) = token
                && style != TokenStyle::ByteLevel
            {
                table.longest = table.longest.max(token.len());
            }
            let start = table.bytes.len();
            match token {
                Some((token, true)) => {
                    table.bytes.extend_from_slice(token.as_bytes());
                    table.added.push(id);
                }
                Some((token, false)) => table.bytes.extend(style.bytes_of(token, &alphabet)),
                None => {}
            }
            table.longest = table.longest.max(table.bytes.len() - start);
            table.starts.push(table.bytes.len() as u32);
        }
        Ok(table)
    }

    /// Bytes of one token; empty for ids without token.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.starts.get(id), self.starts.get(id + 1)) {
            (Some(from), Some(to)) => &self.bytes[*from as usize..*to as usize],
            _ => &[],
        }
    }

    /// Bytes of text that the longest token matches.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// One more than the largest id.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether the token was added to the vocabulary rather than learned.
    pub fn is_added(&self, id: u32) -> bool {
        self.added.binary_search(&id).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        for (c, byte) in [('!', b'!'), ('\u{120}', b' '), ('\u{10a}', b'\n'), ('\u{100}', 0)] {
            assert_eq!(alphabet[&c], byte);
        }
        assert_eq!(alphabet[&'\u{143}'], 0xad);
    }

    #[test]
    fn tokens_give_their_bytes_by_style() {
        let alphabet = byte_alphabet();
        let sentencepiece = TokenStyle::Sentencepiece { byte_fallback: true };
        assert_eq!(TokenStyle::ByteLevel.bytes_of("\u{120}a", &alphabet), b" a");
        assert_eq!(sentencepiece.bytes_of("\u{2581}a", &alphabet), b" a");
        assert_eq!(sentencepiece.bytes_of("<0x0A>", &alphabet), b"\n");
        assert_eq!(sentencepiece.bytes_of("<0x+A>", &alphabet), b"<0x+A>");
        assert_eq!(TokenStyle::Literal.bytes_of("\u{2581}", &alphabet), "\u{2581}".as_bytes());
    }
}
