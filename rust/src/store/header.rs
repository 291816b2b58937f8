//! Headers of safetensors files, read as bytes from a stranger.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use safetensors::tensor::Metadata;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::{Error, Result};

/// Largest safetensors header accepted; the format's own library stops at the same size.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// What the start of a file says.
pub struct Header {
    /// Tensors and texts.
    pub metadata: Metadata,
    /// First byte of the tensors.
    pub data_start: u64,
    /// Of everything before them.
    pub hash: blake3::Hash,
}

/// Reads the header of a file of `file_bytes` bytes and checks that it fits the file.
///
/// # Errors
/// [`Error::BadFile`] for anything that is not a whole safetensors file.
pub fn read_header(path: &Path, file: &File, file_bytes: u64) -> Result<Header> {
    let mut prefix = [0u8; 8];
    if file_bytes < 8 {
        return Err(Error::bad_file(path, "shorter than a safetensors header"));
    }
    file.read_exact_at(&mut prefix, 0).map_err(|e| Error::io(path, e))?;
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > MAX_HEADER_BYTES || header_bytes + 8 > file_bytes {
        return Err(Error::bad_file(
            path,
            format!(
                "truncated or not a safetensors file: the header claims {header_bytes} bytes, the \
                 file has {file_bytes}"
            ),
        ));
    }
    let mut text = vec![0u8; header_bytes as usize];
    file.read_exact_at(&mut text, 8).map_err(|e| Error::io(path, e))?;
    let metadata =
        parse(&text).map_err(|e| Error::bad_file(path, format!("invalid header: {e}")))?;
    let data_start = 8 + header_bytes;
    let expected = data_start + metadata.data_len() as u64;
    if expected != file_bytes {
        let state = if file_bytes < expected { "truncated" } else { "longer than its header says" };
        return Err(Error::bad_file(
            path,
            format!("{state}: {expected} bytes expected, {file_bytes} found"),
        ));
    }
    let hash = blake3::Hasher::new().update(&prefix).update(&text).finalize();
    Ok(Header { metadata, data_start, hash })
}

/// Reads the JSON of a header.
///
/// The format's library checks that tensors neither overlap nor leave gaps and that each is as long
/// as its shape says; of a name that is there twice it would take one.
///
/// # Errors
/// What is wrong, in a few words.
pub fn parse(text: &[u8]) -> Result<Metadata, String> {
    let mut keys = serde_json::Deserializer::from_slice(text);
    keys.deserialize_map(DistinctKeys).map_err(|e| e.to_string())?;
    serde_json::from_slice(text).map_err(|e| e.to_string())
}

/// Refuses a map with a key twice.
struct DistinctKeys;

impl<'de> Visitor<'de> for DistinctKeys {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
            map.next_value::<IgnoredAny>()?;
            if let Some(name) = seen.replace(name) {
                return Err(A::Error::custom(format!("tensor {name} is there twice")));
            }
        }
        Ok(())
    }
}

/// A key, borrowed from the text unless it has escapes.
#[derive(serde::Deserialize, PartialEq, Eq, Hash)]
struct Name<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_the_format_says_or_refused() {
        let entry = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        let next = r#""b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}"#;
        let whole = |inside: &str| format!("{{{inside}}}").into_bytes();
        let metadata = parse(&whole(&format!("{entry},{next}"))).expect("two tensors");
        assert_eq!(metadata.data_len(), 12);
        assert!(parse(&whole(&format!(r#""__metadata__":{{"k":"v"}},{entry}"#))).is_ok());
        for (wrong, why) in [
            (String::new(), "nothing"),
            ("[]".into(), "no object"),
            (format!("{{{entry}"), "no end"),
            (format!(r#"{{{entry},"b"#), "a string without end"),
            (format!("{{{entry},{entry}}}"), "a tensor twice"),
            (
                format!(
                    r#"{{{entry},"\u0061":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}"#
                ),
                "twice, escaped",
            ),
            (format!("{{{entry}}}").replace("[0,8]", "[0,12]"), "longer than its shape"),
            (format!("{{{entry}}}").replace("[0,8]", "[8,0]"), "reversed"),
            (format!("{{{entry}}}").replace("[0,8]", "[-8,0]"), "negative"),
            (format!("{{{entry}}}").replace("[0,8]", "[4,12]"), "a gap at the start"),
            (format!("{{{entry},{next}}}").replace("[8,12]", "[4,8]"), "overlap"),
            (format!("{{{entry},{next}}}").replace("[8,12]", "[12,16]"), "a gap"),
            (format!("{{{entry}}}").replace("F32", "F33"), "an unknown type"),
            (format!("{{{entry}}}").replace("[2]", "[-2]"), "a negative dimension"),
            (format!("{{{entry}}}").replace("[2]", "[4294967296,4294967296,2]"), "overflow"),
            (format!("{{{entry}}}").replace("[2]", "[9223372036854775808,2]"), "overflow"),
            (format!("{{{entry}}}").replace("[2]", "[1152921504606846976,16,2]"), "overflow"),
            (format!("{{{entry}}}").replace("[2]", "[0]"), "no elements but bytes"),
            ("[".repeat(100_000), "depth"),
        ] {
            assert!(parse(wrong.as_bytes()).is_err(), "{why}");
        }
        assert!(parse(b"{\"\xff\":1}").is_err(), "not UTF-8");
    }
}
