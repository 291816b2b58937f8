//! What a model folder's safetensors files hold and where; positional reads of it.
//!
//! Owns: shards, the catalogue of tensors, the checks that a header deserves as bytes from a
//! stranger, how much was read. Does not own: what a tensor means (`model`), when an expert is read
//! (`experts`).

mod abandon;
pub mod calls;
mod files;
mod folders;
pub mod header;
pub mod manifest;
mod mirror;
pub mod output;
mod past_cache;
pub mod plain;
mod reading;
pub mod record;
mod shard;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
pub use abandon::abandonable;
use files::MAX_JSON_BYTES;
pub use files::{open_regular, read_capped, read_json};
use folders::{Shards, is_plain_name};
pub use folders::{is_there, split_dirs};
use header::Header;
use manifest::{Content, JOURNAL, MANIFEST, Manifest};
pub use mirror::DriveUse;
use mirror::Mirrors;
pub use past_cache::{ModelPart, Reads};
use record::{Digest, Part, RECORDS_KEY, Spare};
use shard::Shard;
use source::fp8;
pub use source::{FusedRows, MatrixSource, StackedRows, VectorSource};

/// Bytes read at a time where a tensor need not be in memory as a whole.
pub const READ_BYTES: usize = 1 << 20;

/// Whether a tensor belongs to a routed expert, which is not read at loading.
pub fn is_routed_expert(name: &str) -> bool {
    name.contains(".experts.")
}

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
    /// Whether it belongs to a routed expert.
    pub routed: bool,
    /// What its bytes must be, if a manifest says so.
    digest: Option<Arc<Digest>>,
}

impl Tensor {
    fn part(&self) -> ModelPart {
        if self.routed { ModelPart::Experts } else { ModelPart::Dense }
    }

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

/// Bytes of tensors read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesRead {
    /// Of everything but routed experts.
    pub dense: u64,
    /// Of routed experts.
    pub experts: u64,
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
    /// Tensors of shards that could not be read; all there may be if no index names them.
    unread: Unread,
    /// Whether a manifest says what bytes of tensors must be.
    has_manifest: bool,
    mirrors: OnceLock<Mirrors>,
    /// Of the dense part and of routed experts.
    read: [AtomicU64; 2],
    is_past_cache: [AtomicBool; 2],
    spare: Spare,
}

/// What may be in shards that could not be read.
enum Unread {
    Anything,
    Only(BTreeSet<String>),
}

impl Catalog {
    /// Reads the headers of all shards of `dir`: those its index names, else every
    /// `*.safetensors`.
    ///
    /// # Errors
    /// A missing or truncated shard, a malformed header, a tensor that two shards hold or that the
    /// index promises and no shard has; all of them at once.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_spread(dir, &[])
    }

    /// As [`Catalog::open`] with shards in the folders `more` as well.
    ///
    /// # Errors
    /// As [`Catalog::open`].
    pub fn open_spread(dir: &Path, more: &[PathBuf]) -> Result<Self> {
        let (catalog, faults) = Self::examine(dir, more)?;
        Error::unless_empty(faults).map(|()| catalog)
    }

    /// As [`Catalog::open_spread`]; what can be read, and what is wrong with the rest.
    ///
    /// # Errors
    /// What leaves nothing to be told: a folder or an index that cannot be used.
    pub fn examine(dir: &Path, more: &[PathBuf]) -> Result<(Self, Vec<Error>)> {
        if is_there(&dir.join(JOURNAL)) {
            return Err(Error::FileMissing {
                path: dir.join(MANIFEST),
                hint: "the conversion has not ended; run the same 'colibri convert' again".into(),
            });
        }
        let Shards { found, index, mut faults, mut absent } = Shards::find(dir, more)?;
        let mut catalog = Self {
            dir: dir.to_owned(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            parts: BTreeMap::new(),
            fp8_block: fp8::DEFAULT_BLOCK,
            unread: Unread::Only(BTreeSet::new()),
            has_manifest: false,
            mirrors: OnceLock::new(),
            read: [const { AtomicU64::new(0) }; 2],
            is_past_cache: [const { AtomicBool::new(false) }; 2],
            spare: Spare::default(),
        };
        for (name, path) in found {
            if let Err(error) = catalog.add_shard(&path) {
                faults.push(error);
                absent.insert(name);
            }
        }
        match index {
            Some(index) => {
                faults.extend(catalog.broken_promises(&index, &absent));
                let unread = index.into_iter().filter(|(_, shard)| absent.contains(shard));
                catalog.unread = Unread::Only(unread.map(|(tensor, _)| tensor).collect());
            }
            None if !absent.is_empty() => catalog.unread = Unread::Anything,
            None => {}
        }
        if catalog.tensors.values().any(|t| t.dtype == safetensors::Dtype::F8_E4M3) {
            catalog.fp8_block = fp8::block_size(dir)?;
        }
        if !catalog.parts.is_empty()
            && let Some(manifest) = Manifest::open(dir)?
        {
            faults.extend(catalog.attach_digests(&manifest).err());
        }
        Ok((catalog, faults))
    }

    /// Shards that lack what the index places there, apart from the `absent` ones.
    fn broken_promises(
        &self,
        index: &BTreeMap<String, String>,
        absent: &BTreeSet<String>,
    ) -> Vec<Error> {
        let mut lacking: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in index {
            if !self.tensors.contains_key(tensor) && !absent.contains(shard) {
                lacking.entry(shard).or_default().push(tensor);
            }
        }
        let told = |(shard, tensors): (&str, Vec<&str>)| {
            let others = match tensors.len() - 1 {
                0 => String::new(),
                n => format!(" and {n} others"),
            };
            let reason =
                format!("lacks tensor {}{others}, which the index places here", tensors[0]);
            Error::bad_file(self.dir.join(shard), reason)
        };
        lacking.into_iter().map(told).collect()
    }

    /// Whether the tensor `name`, or one whose name goes on from there, may be in a shard that could
    /// not be read.
    pub fn may_be_unread(&self, name: &str) -> bool {
        match &self.unread {
            Unread::Anything => true,
            Unread::Only(names) => names
                .range::<str, _>((Bound::Included(name), Bound::Unbounded))
                .map_while(|found| found.strip_prefix(name))
                .any(|rest| rest.is_empty() || rest.starts_with(['.', '_'])),
        }
    }

    /// Compares headers with the manifest and keeps what it says about tensors.
    fn attach_digests(&mut self, manifest: &Manifest) -> Result<()> {
        self.has_manifest = true;
        let mut digests = BTreeMap::new();
        for shard in &self.shards {
            let name = shard.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(entry) = manifest.files.get(name) else {
                return Err(Error::bad_file(&shard.path, "is not in the manifest"));
            };
            match &entry.content {
                Content::Tensors { header, tensors }
                    if *header == shard.header && entry.bytes == shard.stamp.bytes =>
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
        let (opened, Header { metadata, data_start, .. }) = Shard::open(path)?;
        let mut records = self.read_records(path, &metadata)?;
        let shard = self.shards.len();
        let mut found = Vec::new();
        let mut doubled: Option<(String, &Path, usize)> = None;
        // In the order of their names, so that the same fault is told each time.
        for (name, info) in metadata.tensors().into_iter().collect::<BTreeMap<_, _>>() {
            let (begin, end) = info.data_offsets;
            let tensor = Tensor {
                shard,
                dtype: info.dtype,
                shape: info.shape.clone(),
                offset: data_start + begin as u64,
                bytes: end - begin,
                record: records.remove(&name),
                routed: is_routed_expert(&name),
                digest: None,
            };
            if let Some(parts) = &tensor.record {
                record::check_record(&name, &tensor, parts)
                    .map_err(|reason| Error::bad_file(path, reason))?;
            }
            match (self.tensors.get(&name), &mut doubled) {
                (None, _) => found.push((name, tensor)),
                (Some(other), None) => doubled = Some((name, self.path_of(other), 0)),
                (Some(_), Some((_, _, more))) => *more += 1,
            }
        }
        if let Some((name, other, more)) = doubled {
            let others = if more > 0 { format!(" and {more} others are") } else { " is".into() };
            let reason = format!("tensor {name}{others} in {} too", other.display());
            return Err(Error::bad_file(path, reason));
        }
        if let Some(name) = records.keys().next() {
            return Err(Error::bad_file(path, format!("describes tensor {name}, which it lacks")));
        }
        self.tensors.extend(found);
        self.shards.push(opened);
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

    /// Numbers that follow `prefix` and a dot in the names of tensors and of matrices in records;
    /// none if what could not be read may hold any.
    pub fn numbers_below(&self, prefix: &str) -> Option<BTreeSet<usize>> {
        let Unread::Only(unread) = &self.unread else { return None };
        let prefix = format!("{prefix}.");
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let tensors = self.tensors.range::<str, _>(from).map(|(name, _)| name);
        let parts = self.parts.range::<str, _>(from).map(|(name, _)| name);
        let number = |name: &String| {
            let rest = name.strip_prefix(&prefix)?;
            Some(rest.split('.').next().unwrap_or(rest).parse().ok())
        };
        let found = tensors.map_while(number);
        let found = found.chain(parts.map_while(number));
        let unread = unread.range::<str, _>(from).map_while(number);
        Some(found.chain(unread).flatten().collect())
    }

    /// The model folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The files' paths, lengths and hashes of their headers, in the order of `Tensor::shard`.
    pub fn shards(&self) -> impl Iterator<Item = (&Path, u64, blake3::Hash)> {
        self.shards.iter().map(|shard| (shard.path.as_path(), shard.stamp.bytes, shard.header))
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

    /// Asks the system to forget what it keeps in memory of `bytes` bytes of `tensor` from byte
    /// `from` on, so that reading them measures the disk.
    pub fn forget(&self, tensor: &Tensor, from: usize, bytes: usize) {
        let (at, bytes) = (tensor.offset + from as u64, bytes as u64);
        files::forget(&self.shards[tensor.shard].file, at, bytes);
        if let Some(mirrors) = self.mirrors.get() {
            mirrors.forget(tensor.shard, at, bytes);
        }
    }

    /// Memory to read matrices into.
    pub fn spare(&self) -> &Spare {
        &self.spare
    }

    /// Whether a manifest says what the bytes of `tensor` must be.
    pub fn has_digest(&self, tensor: &Tensor) -> bool {
        tensor.digest.is_some()
    }

    /// The float tensor `name` of exactly `shape`, and its type.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a tensor that is missing, or is another.
    pub fn find_f32(&self, name: &str, shape: &[usize]) -> Result<(&Tensor, crate::dtype::Dtype)> {
        let tensor = self.require(name)?;
        if tensor.shape != shape {
            return Err(self.wrong_shape(name, tensor, shape));
        }
        Ok((tensor, self.float_dtype(name, tensor)?))
    }

    /// Reads a float tensor of exactly `shape`, widened to f32.
    pub fn read_f32(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let (tensor, dtype) = self.find_f32(name, shape)?;
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

#[cfg(test)]
mod tests;
