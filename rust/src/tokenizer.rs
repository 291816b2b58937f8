//! Text to token ids and back, over the `tokenizers` crate.
//!
//! Owns: checks of `tokenizer.json`, bounds on what it can do to a text, the raw bytes of every token, whole characters from a stream
//! of tokens. Does not own: chat templates, stop strings, or which tokens end a turn.

use crate::error::{Error, Result};
use crate::store::read_capped;
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

mod bytes;
mod extent;
mod growth;
mod patterns;
mod quiet;
mod stream;

pub(crate) use quiet::catch_quietly;
pub use stream::Utf8Stream;

use bytes::{TokenBytes, TokenStyle};

/// Largest `tokenizer.json` that is read, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Ids at or above this are refused: tables are sized by the largest id.
const MAX_IDS: u64 = 1 << 22;

/// A `tokenizer.json`.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    /// The same, blind to added tokens; made when it is first asked for, since it is a copy.
    plain: OnceLock<tokenizers::Tokenizer>,
    token_bytes: TokenBytes,
    special_ids: Vec<u32>,
    strips_first_space: bool,
    /// Bytes of text behind one byte of token, `None` without bound.
    shrinkage: Option<usize>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("path", &self.path)
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a file that is too large, is no tokenizer, gives one id to two
    /// tokens or has ids out of all proportion; [`Error::Unsupported`] for kinds of tokenizer
    /// whose tokens have no fixed bytes.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let json = read_capped(path, MAX_FILE_BYTES)?;
        let bad = |reason: String| Error::bad_file(path, reason);
        let mut file: Value =
            serde_json::from_slice(&json).map_err(|error| bad(format!("no JSON: {error}")))?;
        drop(json);
        if !file.is_object() {
            return Err(bad("no JSON object".to_owned()));
        }
        growth::check(&file).map_err(bad)?;
        let style = TokenStyle::of(&file)?;
        let strips_first_space = bytes::strips_first_space(&file);
        let added = added_tokens(&file).map_err(bad)?;
        check_model(&file).map_err(bad)?;
        let special_ids = special_ids(&file, &added);
        // All added tokens count as special, so that one switch of the crate hides them all.
        if let Some(tokens) = file.get_mut("added_tokens").and_then(Value::as_array_mut) {
            for token in tokens {
                token["special"] = Value::Bool(true);
            }
        }
        // What is not used cannot do harm: tokens are decoded by their bytes here, and no token is
        // added to a text, which is what a post-processor does.
        for unused in ["truncation", "padding", "post_processor", "decoder"] {
            file[unused] = Value::Null;
        }
        patterns::anchor_at_lines(&mut file["normalizer"]);
        patterns::anchor_at_lines(&mut file["pre_tokenizer"]);
        let parsed = guarded(|| tokenizers::Tokenizer::deserialize(&file));
        let inner = parsed.map_err(&bad)?.map_err(|error| bad(format!("no tokenizer: {error}")))?;
        let vocab = inner.get_vocab(false);
        let shrinkage = extent::shrinkage(&file, &vocab, style);
        for (content, id) in &added {
            if inner.token_to_id(content) != Some(*id) {
                return Err(bad(format!("added token {content:?} cannot have id {id}")));
            }
        }
        let token_bytes = TokenBytes::new(&vocab, &added, style).map_err(bad)?;
        let path = path.to_owned();
        Ok(Self {
            path,
            inner,
            plain: OnceLock::new(),
            token_bytes,
            special_ids,
            strips_first_space,
            shrinkage,
        })
    }

    /// Token ids of `text`; no token is added to it.
    ///
    /// `special`: added tokens such as `<|user|>` are recognised. Without, their text is encoded
    /// like any other, so that no text can forge a turn.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for a text that is blank for longer than patterns can be searched in;
    /// [`Error::BadFile`] where the tokenizer cannot encode it.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let tokenizer = if special {
            &self.inner
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.inner.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        patterns::check_runs(text).map_err(Error::BadRequest)?;
        let failed =
            |reason: String| Error::bad_file(&self.path, format!("cannot encode: {reason}"));
        let encoding = guarded(|| tokenizer.encode_fast(text, false))
            .map_err(failed)?
            .map_err(|error| failed(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Like [`Self::encode`] with `special`, for bytes that need not be UTF-8: each invalid
    /// sequence is encoded as U+FFFD, since tokenizers split text by its characters.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        self.encode(&String::from_utf8_lossy(bytes), true)
    }

    /// Text of `ids`, added tokens included; bytes that are no UTF-8 become U+FFFD.
    ///
    /// A leading space that encoding put there is taken off; unknown ids give nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.token_bytes(*id)).copied().collect();
        let starts_with_text = ids.first().is_some_and(|id| !self.token_bytes.is_added(*id));
        let bytes = match &bytes[..] {
            [b' ', rest @ ..] if self.strips_first_space && starts_with_text => rest,
            all => all,
        };
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// Raw bytes of one token, possibly a part of a character; empty for ids without token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.token_bytes.get(id)
    }

    /// Ids of the added tokens that the file calls special: they mark turns and ends, where others
    /// such as `<think>` are part of what is said.
    pub fn special_ids(&self) -> &[u32] {
        &self.special_ids
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.token_bytes.len()
    }

    /// The least number of tokens that `bytes` bytes of text can be, told without looking at them.
    ///
    /// A token stands for at most as many bytes as the longest one has, or three times that where
    /// text is composed to NFC first. 0 where encoding may drop text or merge any amount of it into
    /// one token, by a normaliser, a pre-tokenizer or an unknown token, or where that cannot be
    /// excluded.
    pub fn least_tokens(&self, bytes: usize) -> usize {
        let longest = self.shrinkage.map(|factor| (self.token_bytes.longest() * factor).max(1));
        longest.map_or(0, |longest| bytes.div_ceil(longest))
    }

    /// The id of a token by its text, as it is spelled in the file.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

/// Runs code of the crate; a panic over a hostile file or text becomes an error.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_quietly(run).ok_or_else(|| "the tokenizer failed".to_owned())
}

/// Content and id of the added tokens.
fn added_tokens(file: &Value) -> Result<HashMap<String, u32>, String> {
    let mut added = HashMap::new();
    // A missing list reads as null, and null as an empty list.
    for token in file["added_tokens"].as_array().map_or(&[][..], Vec::as_slice) {
        let id = token["id"].as_u64().filter(|id| *id < MAX_IDS);
        let (Some(content), Some(id)) = (token["content"].as_str(), id) else {
            return Err("an added token has no content or no usable id".to_owned());
        };
        added.insert(content.to_owned(), id as u32);
    }
    Ok(added)
}

fn special_ids(file: &Value, added: &HashMap<String, u32>) -> Vec<u32> {
    file["added_tokens"]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .filter(|token| token["special"] == Value::Bool(true))
        .filter_map(|token| added.get(token["content"].as_str()?).copied())
        .collect()
}

/// Properties of the model part that the crate does not insist on.
fn check_model(file: &Value) -> Result<(), String> {
    if file["model"]["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
        return Err("model.dropout makes encoding random".to_owned());
    }
    check_prefix(&file["model"])?;
    if let Some(vocab) = file["model"]["vocab"].as_object() {
        for (token, id) in vocab {
            if id.as_u64().is_none_or(|id| id >= MAX_IDS) {
                return Err(format!("token {token:?} has no usable id"));
            }
        }
    }
    Ok(())
}

/// Refuses a prefix of continuing tokens that a merge does not have: the crate cuts its length off the
/// second token, in the middle of a character if need be, and takes what is left for text.
fn check_prefix(model: &Value) -> Result<(), String> {
    let Some(prefix) = model["continuing_subword_prefix"].as_str() else { return Ok(()) };
    for merge in model["merges"].as_array().map_or(&[][..], Vec::as_slice) {
        let second = merge.as_str().and_then(|line| Some(line.split_once(' ')?.1));
        if let Some(second) = second.or_else(|| merge[1].as_str())
            && !second.starts_with(prefix)
        {
            return Err(format!("a merge with {second:?} does not continue by {prefix:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
