//! Converting a model folder into one whose matrices lie as the kernels read them.
//!
//! Owns: what is written and how, resuming, verifying. Does not own: the layout of a record
//! (`store::record`) or of the manifest (`store::manifest`), which loading needs too.
//!
//! A file has its name only once it is whole; the journal then has its hashes. So a conversion that
//! was killed goes on with the first file that is missing, and ends with the same bytes.

mod journal;
mod options;
mod output;
mod plan;
mod quantize;
mod shared;
mod verify;
mod work;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::config::Config;
use crate::cpu;
use crate::error::{Error, Result};
use crate::store::manifest::{FileEntry, MANIFEST, Manifest, VERSION};
use crate::store::{Catalog, read_capped, read_json};
use crate::threads::Team;
use journal::Journal;
pub use options::Options;
use output::{PARTIAL, write_whole};
use plan::Plan;
pub use verify::verify;

/// Changes whenever the same source and options give other bytes than before.
const REVISION: u64 = 1;
/// Largest small file that is copied.
const MAX_SMALL_FILE: u64 = 256 << 20;
/// Files that are copied where they are there; `config.json` is copied with a note.
const SMALL_FILES: [&str; 12] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
];

/// How far a stage is, told to a caller who may end it.
pub struct Progress<'a> {
    stage: &'static str,
    done: u64,
    total: u64,
    tell: &'a mut dyn FnMut(&str, u64, u64) -> bool,
}

impl<'a> Progress<'a> {
    fn new(
        stage: &'static str,
        total: u64,
        tell: &'a mut dyn FnMut(&str, u64, u64) -> bool,
    ) -> Self {
        Self { stage, done: 0, total, tell }
    }

    /// Counts `bytes`.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the caller wants no more.
    fn add(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        if (self.tell)(self.stage, self.done, self.total) {
            Ok(())
        } else {
            Err(Error::Interrupted)
        }
    }
}

/// A source and what becomes of it.
pub struct Conversion {
    catalog: Catalog,
    plan: Plan,
    /// Source and options, for the manifest.
    identity: Value,
    small: BTreeMap<String, Vec<u8>>,
}

impl Conversion {
    /// Reads the headers of the model folder `src`, whose shards may be in the folders `more` as well,
    /// and plans its conversion.
    ///
    /// # Errors
    /// As opening a model does, and those of sources that cannot be converted.
    pub fn new(src: &Path, more: &[PathBuf], options: &Options) -> Result<Self> {
        let config = Config::open(src)?;
        let catalog = Catalog::open_spread(src, more)?;
        let plan = Plan::new(&catalog, &config, options)?;
        let mut small = BTreeMap::new();
        // A link to nothing is damage, not an absent file.
        let there = |path: &Path| path.is_file() || path.is_symlink();
        for name in SMALL_FILES.into_iter().filter(|name| there(&src.join(name))) {
            small.insert(name.to_owned(), read_capped(&src.join(name), MAX_SMALL_FILE)?);
        }
        let original = read_json(config.path())?;
        let source = source_hash(&catalog, &original, &small);
        small.insert("config.json".into(), noted_config(original, options));
        small.insert("model.safetensors.index.json".into(), pretty(&plan.index()));
        let identity = json!({
            "source": source.to_string(),
            "options": options.to_json(),
            "revision": REVISION,
        });
        Ok(Self { catalog, plan, identity, small })
    }

    /// What would be written, as a JSON object.
    pub fn summary(&self) -> Value {
        let mut summary = self.plan.summary();
        let source: u64 = self.catalog.tensors().values().map(|t| t.bytes as u64).sum();
        summary["source_bytes"] = source.into();
        summary
    }

    /// Writes everything into `dst`, going on where an earlier run was ended; returns how many
    /// files were made and how many were there.
    ///
    /// # Errors
    /// [`Error::Setting`] for a `dst` that holds something else or lies in the source,
    /// [`Error::Io`] where writing fails, [`Error::Interrupted`] if `progress` returned false.
    pub fn run(
        &self,
        dst: &Path,
        threads: Option<usize>,
        progress: &mut dyn FnMut(&str, u64, u64) -> bool,
    ) -> Result<(usize, usize)> {
        let src = canonical(self.catalog.dir())?;
        refuse_inside(dst, &src, &nearest_existing(dst)?)?;
        if dst.exists() && !dst.is_dir() {
            return Err(refuse(dst, "is no folder"));
        }
        fs::create_dir_all(dst).map_err(|e| Error::io(dst, e))?;
        refuse_inside(dst, &src, &canonical(dst)?)?;
        let _lock = lock(dst)?;
        if let Some(manifest) = Manifest::open(dst)? {
            if manifest.identity != self.identity {
                return Err(other_conversion(dst));
            }
            Journal::remove(dst)?;
            return Ok((0, self.plan.files.len()));
        }
        let mut journal = match Journal::open(dst)? {
            Some(journal) if journal.identity == self.identity => journal,
            Some(_) => return Err(other_conversion(dst)),
            None => {
                refuse_foreign(dst)?;
                Journal::create(dst, &self.identity)?
            }
        };
        // With a configuration, the folder is known for a model, and refused as half of one.
        let mut files = BTreeMap::new();
        for (name, bytes) in &self.small {
            files.insert(name.clone(), write_whole(dst, name, bytes)?);
        }
        let made = self.make_files(dst, &mut journal, threads, progress, &mut files)?;
        let manifest = Manifest { identity: self.identity.clone(), files };
        write_whole(dst, MANIFEST, manifest.render().as_bytes())?;
        Journal::remove(dst)?;
        Ok((made, self.plan.files.len() - made))
    }

    /// Makes the files that are missing; returns how many.
    fn make_files(
        &self,
        dst: &Path,
        journal: &mut Journal,
        threads: Option<usize>,
        progress: &mut dyn FnMut(&str, u64, u64) -> bool,
        files: &mut BTreeMap<String, FileEntry>,
    ) -> Result<usize> {
        let there: u64 = journal.files.values().map(|entry| entry.bytes).sum();
        let mut checking = Progress::new("checking what is there", there, progress);
        let mut left = self.plan.bytes();
        for file in &self.plan.files {
            if let Some(entry) = journal.files.get(&file.name)
                && verify::compare(&dst.join(&file.name), entry, &mut checking)?.is_empty()
            {
                files.insert(file.name.clone(), entry.clone());
                left -= file.items.iter().map(|item| item.bytes as u64).sum::<u64>();
            }
        }
        let team = Team::new(threads.unwrap_or_else(cpu::n_threads));
        let mut converting = Progress::new("converting", left, progress);
        let missing: Vec<_> =
            self.plan.files.iter().filter(|file| !files.contains_key(&file.name)).collect();
        for file in &missing {
            let entry = work::make_file(dst, &self.catalog, file, &team, &mut converting)?;
            journal.add(&file.name, &entry)?;
            files.insert(file.name.clone(), entry);
        }
        Ok(missing.len())
    }
}

/// What makes a source the same one: all headers, lengths, and the small files.
fn source_hash(
    catalog: &Catalog,
    config: &Value,
    small: &BTreeMap<String, Vec<u8>>,
) -> blake3::Hash {
    let mut shards: Vec<String> = catalog
        .shards()
        .map(|(path, bytes, header)| format!("{} {bytes} {header}", file_name(path)))
        .collect();
    shards.sort();
    let small: Vec<String> =
        small.iter().map(|(name, bytes)| format!("{name} {}", blake3::hash(bytes))).collect();
    let text = json!({"shards": shards, "files": small, "config": config}).to_string();
    blake3::hash(text.as_bytes())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `config.json` with a note of how the weights are stored.
fn noted_config(mut config: Value, options: &Options) -> Vec<u8> {
    let mut note = json!({"quant_method": "colibri", "version": VERSION});
    for (key, value) in options.to_json().as_object().expect("options are an object") {
        note[key] = value.clone();
    }
    // What stays as it is may be e4m3.
    if let Some(size) = config["quantization_config"].get("weight_block_size") {
        note["weight_block_size"] = size.clone();
    }
    config["quantization_config"] = note;
    pretty(&config)
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|e| Error::io(path, e))
}

/// Where `path` would lie, as far as it is there already.
fn nearest_existing(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|e| Error::io(path, e))?;
    let there = absolute.ancestors().find(|ancestor| ancestor.exists());
    canonical(there.unwrap_or(Path::new("/")))
}

fn refuse_inside(dst: &Path, src: &Path, place: &Path) -> Result<()> {
    if place.starts_with(src) { Err(refuse(dst, "is the source, or inside it")) } else { Ok(()) }
}

/// Refuses a folder with files that no conversion left there.
fn refuse_foreign(dst: &Path) -> Result<()> {
    for entry in fs::read_dir(dst).map_err(|e| Error::io(dst, e))? {
        let name = entry.map_err(|e| Error::io(dst, e))?.file_name();
        if !name.to_string_lossy().ends_with(PARTIAL) {
            let name = name.to_string_lossy();
            return Err(refuse(dst, &format!("holds other files already, {name} among them")));
        }
    }
    Ok(())
}

fn other_conversion(dst: &Path) -> Error {
    refuse(
        dst,
        "holds a conversion of another source or with other options; name another folder, or \
         remove it",
    )
}

fn refuse(dst: &Path, reason: &str) -> Error {
    Error::Setting { name: dst.display().to_string(), reason: reason.to_owned() }
}

/// Keeps other conversions out of `dst` as long as the result lives.
fn lock(dst: &Path) -> Result<File> {
    let folder = File::open(dst).map_err(|e| Error::io(dst, e))?;
    match folder.try_lock() {
        Ok(()) => Ok(folder),
        Err(TryLockError::WouldBlock) => Err(refuse(dst, "another conversion is writing there")),
        Err(TryLockError::Error(e)) => Err(Error::io(dst, e)),
    }
}

#[cfg(test)]
mod tests;
