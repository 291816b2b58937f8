//! `manifest.json` of a converted model: what every file of it must be, byte for byte.

use std::collections::BTreeMap;
use std::path::Path;

use blake3::Hash;
use serde_json::{Map, Value, json};

use super::{MAX_JSON_BYTES, is_plain_name, is_there, read_capped};
use crate::error::{Error, Result};

/// Name of the file.
pub const MANIFEST: &str = "manifest.json";
/// What a conversion that has not ended leaves in its folder.
pub const JOURNAL: &str = "convert.journal";
/// Version of the container; another one is refused.
pub const VERSION: u64 = 1;

/// What a file must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Length.
    pub bytes: u64,
    /// Hashes.
    pub content: Content,
}

/// Hashes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Of all bytes.
    Whole(Hash),
    /// Of the parts of a safetensors file.
    Tensors {
        /// Everything before the first tensor.
        header: Hash,
        /// By name, in file order.
        tensors: Vec<(String, Hash)>,
    },
}

impl FileEntry {
    /// As it stands in the manifest.
    pub fn to_json(&self) -> Value {
        match &self.content {
            Content::Whole(hash) => json!({"bytes": self.bytes, "blake3": hash.to_string()}),
            Content::Tensors { header, tensors } => {
                let tensors: Map<String, Value> = tensors
                    .iter()
                    .map(|(name, hash)| (name.clone(), hash.to_string().into()))
                    .collect();
                json!({"bytes": self.bytes, "header": header.to_string(), "tensors": tensors})
            }
        }
    }

    /// Reads what [`FileEntry::to_json`] wrote.
    pub fn from_json(value: &Value) -> Option<Self> {
        let hash = |value: &Value| Hash::from_hex(value.as_str()?).ok();
        let bytes = value.get("bytes")?.as_u64()?;
        let content = match value.get("blake3") {
            Some(whole) => Content::Whole(hash(whole)?),
            None => Content::Tensors {
                header: hash(value.get("header")?)?,
                tensors: value
                    .get("tensors")?
                    .as_object()?
                    .iter()
                    .map(|(name, value)| Some((name.clone(), hash(value)?)))
                    .collect::<Option<_>>()?,
            },
        };
        Some(Self { bytes, content })
    }
}

/// The whole file.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Source and options of the conversion.
    pub identity: Value,
    /// By name.
    pub files: BTreeMap<String, FileEntry>,
}

impl Manifest {
    /// The text of the file. Its last member is the hash of the text without that member.
    pub fn render(&self) -> String {
        let files: Map<String, Value> =
            self.files.iter().map(|(name, entry)| (name.clone(), entry.to_json())).collect();
        let mut whole = json!({
            "format": "colibri",
            "version": VERSION,
            "conversion": self.identity,
            "files": files,
        });
        let hash = blake3::hash(pretty(&whole).as_bytes());
        whole["blake3"] = hash.to_string().into();
        pretty(&whole)
    }

    /// Reads the manifest of `dir`, if it has one of ours.
    ///
    /// # Errors
    /// [`Error::BadFile`] for one that was changed, [`Error::Unsupported`] for another version.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(MANIFEST);
        if !is_there(&path) {
            return Ok(None);
        }
        let bytes = read_capped(&path, MAX_JSON_BYTES)?;
        let damaged = || Error::bad_file(&path, "is damaged or no manifest of a converted model");
        let json: Value = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        let version = json.get("version").and_then(Value::as_u64).ok_or_else(damaged)?;
        if version != VERSION {
            return Err(Error::Unsupported {
                what: format!("version {version} of the container in {}", dir.display()),
                hint: format!("this version reads {VERSION}; convert the model again"),
            });
        }
        let files = json.get("files").and_then(Value::as_object).ok_or_else(damaged)?;
        let files = files
            .iter()
            .map(|(name, entry)| {
                let entry = FileEntry::from_json(entry).filter(|_| is_plain_name(name));
                Ok((name.clone(), entry.ok_or_else(damaged)?))
            })
            .collect::<Result<_>>()?;
        let identity = json.get("conversion").cloned().ok_or_else(damaged)?;
        let manifest = Self { identity, files };
        // There is one way to write it; its own hash is part of that.
        if manifest.render().as_bytes() != bytes {
            return Err(damaged());
        }
        Ok(Some(manifest))
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Manifest {
        let hash = blake3::hash(b"x");
        let tensors = vec![("b".to_owned(), hash), ("a".to_owned(), hash)];
        let content = Content::Tensors { header: hash, tensors };
        let entry = FileEntry { bytes: 9, content };
        let whole = FileEntry { bytes: 1, content: Content::Whole(hash) };
        let files = BTreeMap::from([
            ("config.json".to_owned(), whole),
            ("m.safetensors".to_owned(), entry),
        ]);
        Manifest { identity: json!({"source": "s"}), files }
    }

    #[test]
    fn no_bit_of_a_manifest_can_change_unnoticed() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(Manifest::open(dir.path()).expect("none"), None);
        let path = dir.path().join(MANIFEST);
        let text = example().render();
        std::fs::write(&path, &text).expect("written");
        assert_eq!(Manifest::open(dir.path()).expect("read"), Some(example()));
        for bit in 0..8 * text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).expect("written");
            assert!(Manifest::open(dir.path()).is_err(), "bit {bit}");
        }
    }
}
