//! What a model folder's safetensors files hold and where; positional reads of it.
//!
//! Owns: shards, the catalogue of tensors, the checks that a header deserves as bytes from a
//! stranger. Does not own: what a tensor means (`model`), when an expert is read (`experts`).

pub mod manifest;
pub mod output;
pub mod plain;
pub mod record;
mod source;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Error, Result};
use manifest::{Content, JOURNAL, MANIFEST, Manifest};
use record::{Digest, Part, RECORDS_KEY};
use source::fp8;
pub use source::{FusedRows, MatrixSource, StackedRows, VectorSource};

/// Largest safetensors header accepted; the format's own library stops at the same size.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Largest JSON file read from a model folder.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// Where one tensor lies.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Index into the catalogue's shards.
    pub shard: usize,
    /// Storage type by its name in the file.
    pub dtype: safetensors::Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: usize,
    /// The matrices it holds, if it is a record.
    pub record: Option<Arc<[Part]>>,
    /// What its bytes must be, if a manifest says so.
    digest: Option<Arc<Digest>>,
}

impl Tensor {
    /// Where the part `index` of the outermost dimension lies.
    fn slab(&self, index: usize) -> Self {
        let bytes = self.bytes / self.shape[0];
        Self {
            shape: self.shape[1..].to_vec(),
            offset: self.offset + (index * bytes) as u64,
            bytes,
            record: None,
            digest: None,
            ..*self
        }
    }
}

struct Shard {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Of everything before the first tensor.
    header: blake3::Hash,
}

/// Every tensor of a model folder.
pub struct Catalog {
    dir: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Tensor>,
    /// Matrices in records: the record's tensor and the place in it.
    parts: BTreeMap<String, (String, usize)>,
    /// Rows and inputs that share a scale in e4m3 matrices.
    fp8_block: [usize; 2],
}

impl Catalog {
    /// Reads the headers of all shards of `dir`: those its index names, else every
    /// `*.safetensors`.
    ///
    /// # Errors
    /// A missing or truncated shard, a malformed header, a tensor that two shards hold or that the
    /// index promises and no shard has.
    pub fn open(dir: &Path) -> Result<Self> {
        let index_path = dir.join("model.safetensors.index.json");
        let index = if index_path.exists() { Some(read_index(&index_path)?) } else { None };
        let names = match &index {
            Some(index) => index.values().cloned().collect::<std::collections::BTreeSet<_>>(),
            None => list_shards(dir)?,
        };
        if dir.join(JOURNAL).exists() {
            return Err(Error::FileMissing {
                path: dir.join(MANIFEST),
                hint: "the conversion has not ended; run the same 'colibri convert' again".into(),
            });
        }
        let mut catalog = Self {
            dir: dir.to_owned(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            parts: BTreeMap::new(),
            fp8_block: fp8::DEFAULT_BLOCK,
        };
        let missing: Vec<&str> =
            names.iter().filter(|name| !dir.join(name).is_file()).map(String::as_str).collect();
        if let Some(first) = missing.first() {
            return Err(Error::FileMissing {
                path: dir.join(first),
                hint: format!(
                    "{} of {} shards are missing; download the model again",
                    missing.len(),
                    names.len()
                ),
            });
        }
        for name in &names {
            catalog.add_shard(&dir.join(name))?;
        }
        if let Some(index) = &index
            && let Some((tensor, shard)) =
                index.iter().find(|(name, _)| !catalog.tensors.contains_key(*name))
        {
            return Err(Error::bad_file(
                dir.join(shard),
                format!("lacks tensor {tensor}, which the index places here"),
            ));
        }
        if catalog.tensors.values().any(|t| t.dtype == safetensors::Dtype::F8_E4M3) {
            catalog.fp8_block = fp8::block_size(dir)?;
        }
        if !catalog.parts.is_empty()
            && let Some(manifest) = Manifest::open(dir)?
        {
            catalog.attach_digests(&manifest)?;
        }
        Ok(catalog)
    }

    /// Compares headers with the manifest and keeps what it says about tensors.
    fn attach_digests(&mut self, manifest: &Manifest) -> Result<()> {
        let mut digests = BTreeMap::new();
        for shard in &self.shards {
            let name = shard.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(entry) = manifest.files.get(name) else {
                return Err(Error::bad_file(&shard.path, "is not in the manifest"));
            };
            match &entry.content {
                Content::Tensors { header, tensors }
                    if *header == shard.header && entry.bytes == shard.bytes =>
                {
                    digests.extend(tensors.iter().map(|(name, hash)| (name, *hash)));
                }
                _ => {
                    let reason = "its header is damaged: it is not the manifest's";
                    return Err(Error::bad_file(&shard.path, reason));
                }
            }
        }
        for (name, tensor) in &mut self.tensors {
            let hash = digests.get(name).ok_or_else(|| {
                Error::bad_file(self.dir.join(MANIFEST), format!("lacks tensor {name}"))
            })?;
            tensor.digest = Some(Arc::new(Digest::new(name, *hash)));
        }
        Ok(())
    }

    fn add_shard(&mut self, path: &Path) -> Result<()> {
        let file = open_regular(path)?;
        let file_bytes = file.metadata().map_err(|e| Error::io(path, e))?.len();
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
                    "truncated or not a safetensors file: the header claims {header_bytes} bytes, \
                     the file has {file_bytes}"
                ),
            ));
        }
        let mut header = vec![0u8; header_bytes as usize];
        file.read_exact_at(&mut header, 8).map_err(|e| Error::io(path, e))?;
        // Deserialising checks that tensors neither overlap nor leave gaps and that each is as
        // long as its shape says.
        let metadata: safetensors::tensor::Metadata = serde_json::from_slice(&header)
            .map_err(|e| Error::bad_file(path, format!("invalid header: {e}")))?;
        let data_start = 8 + header_bytes;
        let expected = data_start + metadata.data_len() as u64;
        if expected != file_bytes {
            let state =
                if file_bytes < expected { "truncated" } else { "longer than its header says" };
            return Err(Error::bad_file(
                path,
                format!("{state}: {expected} bytes expected, {file_bytes} found"),
            ));
        }
        let mut records = self.read_records(path, &metadata)?;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            let (begin, end) = info.data_offsets;
            let tensor = Tensor {
                shard,
                dtype: info.dtype,
                shape: info.shape.clone(),
                offset: data_start + begin as u64,
                bytes: end - begin,
                record: records.remove(&name),
                digest: None,
            };
            if let Some(parts) = &tensor.record {
                record::check_record(&name, &tensor, parts)
                    .map_err(|reason| Error::bad_file(path, reason))?;
            }
            if self.tensors.contains_key(&name) {
                return Err(Error::bad_file(path, format!("tensor {name} is in two shards")));
            }
            self.tensors.insert(name, tensor);
        }
        if let Some(name) = records.keys().next() {
            return Err(Error::bad_file(path, format!("describes tensor {name}, which it lacks")));
        }
        let header = blake3::Hasher::new().update(&prefix).update(&header).finalize();
        self.shards.push(Shard { path: path.to_owned(), file, bytes: file_bytes, header });
        Ok(())
    }

    /// The records that a header describes; their matrices are entered in `parts`.
    fn read_records(
        &mut self,
        path: &Path,
        metadata: &safetensors::tensor::Metadata,
    ) -> Result<BTreeMap<String, Arc<[Part]>>> {
        let text = metadata.metadata().as_ref().and_then(|texts| texts.get(RECORDS_KEY));
        let Some(text) = text else { return Ok(BTreeMap::new()) };
        let records = record::parse_records(text)
            .map_err(|reason| Error::bad_file(path, format!("{RECORDS_KEY}: {reason}")))?;
        let mut found = BTreeMap::new();
        for (tensor, parts) in records {
            for (i, part) in parts.iter().enumerate() {
                if self.parts.insert(part.name.clone(), (tensor.clone(), i)).is_some() {
                    let reason = format!("matrix {} is in two records", part.name);
                    return Err(Error::bad_file(path, reason));
                }
            }
            found.insert(tensor, parts.into());
        }
        Ok(found)
    }

    /// The model folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The files' paths, lengths and hashes of their headers, in the order of `Tensor::shard`.
    pub fn shards(&self) -> impl Iterator<Item = (&Path, u64, blake3::Hash)> {
        self.shards.iter().map(|shard| (shard.path.as_path(), shard.bytes, shard.header))
    }

    /// Number of files.
    pub fn n_shards(&self) -> usize {
        self.shards.len()
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`Error::BadFile`] naming the tensor where there is none.
    pub fn require(&self, name: &str) -> Result<&Tensor> {
        self.get(name)
            .ok_or_else(|| Error::bad_file(&self.dir, format!("tensor {name} is missing")))
    }

    /// The record that holds the matrix `name`, and its place there.
    fn part(&self, name: &str) -> Option<(&Tensor, &Arc<[Part]>, usize)> {
        let (tensor, index) = self.parts.get(name)?;
        let tensor = self.get(tensor)?;
        Some((tensor, tensor.record.as_ref()?, *index))
    }

    /// The file that holds `tensor`.
    pub fn path_of(&self, tensor: &Tensor) -> &Path {
        &self.shards[tensor.shard].path
    }

    /// Reads all bytes of `tensor`.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; tensor.bytes];
        self.read_into(tensor, &mut [&mut bytes])?;
        Ok(bytes)
    }

    /// Reads all bytes of `tensor` into `places`, one after the other, and compares them with the
    /// manifest the first time.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::BadFile`] for damaged bytes.
    pub fn read_into(&self, tensor: &Tensor, places: &mut [&mut [u8]]) -> Result<()> {
        let mut from = 0;
        for place in &mut *places {
            self.read_at(tensor, from, place)?;
            from += place.len();
        }
        debug_assert_eq!(from, tensor.bytes, "all of the tensor");
        match &tensor.digest {
            Some(digest) => digest.check(self.path_of(tensor), places),
            None => Ok(()),
        }
    }

    /// Reads the bytes of `tensor` from byte `from` on, compared with nothing.
    pub fn read_at(&self, tensor: &Tensor, from: usize, out: &mut [u8]) -> Result<()> {
        let shard = &self.shards[tensor.shard];
        shard
            .file
            .read_exact_at(out, tensor.offset + from as u64)
            .map_err(|e| Error::io(&shard.path, e))
    }

    /// Reads a float tensor of exactly `shape`, widened to f32.
    pub fn read_f32(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.require(name)?;
        if tensor.shape != shape {
            return Err(self.wrong_shape(name, tensor, shape));
        }
        let dtype = self.float_dtype(name, tensor)?;
        Ok(crate::dtype::widen(dtype, &self.read(tensor)?))
    }

    /// The type of a float tensor.
    pub fn float_dtype(&self, name: &str, tensor: &Tensor) -> Result<crate::dtype::Dtype> {
        match tensor.dtype {
            safetensors::Dtype::F32 => Ok(crate::dtype::Dtype::F32),
            safetensors::Dtype::F16 => Ok(crate::dtype::Dtype::F16),
            safetensors::Dtype::BF16 => Ok(crate::dtype::Dtype::Bf16),
            other => Err(Error::bad_file(
                self.path_of(tensor),
                format!("tensor {name} is stored as {other:?}; f32, f16 or bf16 is expected"),
            )),
        }
    }

    fn wrong_shape(&self, name: &str, tensor: &Tensor, expected: &[usize]) -> Error {
        Error::bad_file(
            self.path_of(tensor),
            format!(
                "tensor {name} has shape {:?}, the configuration says {expected:?}",
                tensor.shape
            ),
        )
    }
}

/// `tensor name -> file name` of an index, file names checked to be plain names.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let json = read_json(path)?;
    let map = json
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| Error::bad_file(path, "has no weight_map"))?;
    map.iter()
        .map(|(name, file)| match file.as_str() {
            Some(file) if is_plain_name(file) => Ok((name.clone(), file.to_owned())),
            _ => Err(Error::bad_file(
                path,
                format!("tensor {name} is placed in {file}, which is not a plain file name"),
            )),
        })
        .collect()
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

fn list_shards(dir: &Path) -> Result<std::collections::BTreeSet<String>> {
    let entries = std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))?;
    let mut names = std::collections::BTreeSet::new();
    for entry in entries {
        let name = entry.map_err(|e| Error::io(dir, e))?.file_name();
        if let Some(name) = name.to_str().filter(|name| name.ends_with(".safetensors")) {
            names.insert(name.to_owned());
        }
    }
    if names.is_empty() {
        return Err(Error::FileMissing {
            path: dir.join("model.safetensors"),
            hint: "a model folder holds config.json, tokenizer.json and *.safetensors files".into(),
        });
    }
    Ok(names)
}

/// Opens a file of a model folder, which must be a regular one: a pipe would never end its
/// opening, and a device never its content. Checked on what was opened, so nothing can be swapped.
///
/// # Errors
/// [`Error::FileMissing`], or [`Error::BadFile`] for anything that is no regular file.
pub fn open_regular(path: &Path) -> Result<File> {
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::FileMissing {
                path: path.to_owned(),
                hint: "a model folder holds config.json, tokenizer.json and *.safetensors files"
                    .into(),
            });
        }
        Err(e) => return Err(Error::io(path, e)),
    };
    if !file.metadata().map_err(|e| Error::io(path, e))?.is_file() {
        return Err(Error::bad_file(path, "is not a regular file"));
    }
    Ok(file)
}

/// Reads a file of a model folder of at most `limit` bytes, however long it claims to be.
///
/// # Errors
/// Those of [`open_regular`], and [`Error::BadFile`] for one that is longer.
pub fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if bytes.len() as u64 > limit {
        return Err(Error::bad_file(path, format!("larger than {} MiB", limit >> 20)));
    }
    Ok(bytes)
}

/// Reads and parses a JSON file of a model folder.
///
/// # Errors
/// [`Error::FileMissing`], or [`Error::BadFile`] for one that is oversized or not JSON.
pub fn read_json(path: &Path) -> Result<Value> {
    let bytes = read_capped(path, MAX_JSON_BYTES)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::bad_file(path, format!("not valid JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{TensorView, serialize_to_file};

    fn write(path: &Path, tensors: &[(&str, &[f32])]) {
        let bytes: Vec<Vec<u8>> =
            tensors.iter().map(|(_, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        let views = tensors.iter().zip(&bytes).map(|((name, v), b)| {
            (*name, TensorView::new(safetensors::Dtype::F32, vec![v.len()], b).expect("a view"))
        });
        serialize_to_file(views, None, path).expect("a file is written");
    }

    #[test]
    fn shards_without_index_are_all_read() {
        let dir = tempfile::tempdir().expect("a folder");
        write(&dir.path().join("a.safetensors"), &[("x", &[1.0, 2.0])]);
        write(&dir.path().join("b.safetensors"), &[("y", &[3.0])]);
        let catalog = Catalog::open(dir.path()).expect("a catalogue");
        assert_eq!(catalog.read_f32("x", &[2]).expect("x"), [1.0, 2.0]);
        assert_eq!(catalog.read_f32("y", &[1]).expect("y"), [3.0]);
        let error = catalog.read_f32("x", &[3]).expect_err("another shape").to_string();
        assert!(error.contains("[2]") && error.contains("[3]"), "{error}");
    }

    #[test]
    fn a_file_cut_at_any_byte_is_refused_as_truncated() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("model.safetensors");
        write(&path, &[("x", &[1.0, 2.0, 3.0])]);
        let whole = std::fs::read(&path).expect("bytes");
        for n in 0..whole.len() {
            std::fs::write(&path, &whole[..n]).expect("a shorter file");
            assert!(Catalog::open(dir.path()).is_err(), "{n} of {} bytes", whole.len());
        }
    }

    #[test]
    fn an_index_cannot_point_outside_the_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        for file in ["../x.safetensors", "/etc/passwd", "a\\b", "", ".hidden"] {
            let json = serde_json::json!({"weight_map": {"x": file}});
            std::fs::write(dir.path().join("model.safetensors.index.json"), json.to_string())
                .expect("an index");
            let error = Catalog::open(dir.path()).err().expect("refused").to_string();
            assert!(error.contains("not a plain file name"), "{file}: {error}");
        }
    }

    #[test]
    fn a_tensor_in_two_shards_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        write(&dir.path().join("a.safetensors"), &[("x", &[1.0])]);
        write(&dir.path().join("b.safetensors"), &[("x", &[1.0])]);
        let error = Catalog::open(dir.path()).err().expect("refused").to_string();
        assert!(error.contains("two shards"), "{error}");
    }

    #[test]
    fn missing_shards_are_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        let json = serde_json::json!({"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}});
        std::fs::write(dir.path().join("model.safetensors.index.json"), json.to_string())
            .expect("an index");
        let error = Catalog::open(dir.path()).err().expect("refused");
        assert!(error.hint().is_some_and(|hint| hint.starts_with("2 of 2 shards")), "{error:?}");
    }

    fn make_pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
        assert!(made.success());
    }

    #[test]
    fn pipes_devices_and_folders_are_refused_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let pipe = dir.path().join("pipe");
        make_pipe(&pipe);
        let zero = dir.path().join("zero");
        std::os::unix::fs::symlink("/dev/zero", &zero).expect("a link");
        for path in [&pipe, &zero, dir.path()] {
            let error = read_json(path).expect_err("refused");
            assert!(matches!(error, Error::BadFile { .. }), "{error}");
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
        for name in ["model.safetensors.index.json", "model.safetensors"] {
            let dir = tempfile::tempdir().expect("a folder");
            make_pipe(&dir.path().join(name));
            assert!(Catalog::open(dir.path()).is_err(), "{name}");
        }
    }

    #[test]
    fn no_more_than_the_limit_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("long");
        std::fs::write(&path, [b' '; 11]).expect("a file");
        assert_eq!(read_capped(&path, 11).expect("all of it").len(), 11);
        assert!(matches!(read_capped(&path, 10), Err(Error::BadFile { .. })));
        assert!(matches!(read_capped(&path.join("x"), 10), Err(Error::Io { .. })));
        assert!(matches!(read_capped(&dir.path().join("none"), 1), Err(Error::FileMissing { .. })));
    }
}
