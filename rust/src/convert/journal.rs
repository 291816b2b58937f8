//! Which files of a conversion are whole: one line of JSON each, after one about source and options.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::output::{sync_dir, write_whole};
use crate::error::{Error, Result};
use crate::store::manifest::{FileEntry, JOURNAL};
use crate::store::{is_there, read_capped};

/// Largest journal read; each file of a model takes one line with a hash for each tensor.
const MAX_BYTES: u64 = 1 << 30;

/// The journal of a folder.
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Source and options.
    pub identity: Value,
    /// Files that were whole once.
    pub files: BTreeMap<String, FileEntry>,
}

impl Journal {
    /// Begins a journal.
    pub fn create(dir: &Path, identity: &Value) -> Result<Self> {
        write_whole(dir, JOURNAL, format!("{identity}\n").as_bytes())?;
        Self::at(dir, identity.clone(), BTreeMap::new())
    }

    /// The journal of `dir`, if there is one. A line that was not finished is taken away.
    ///
    /// # Errors
    /// [`Error::BadFile`] for one that holds anything else than a journal does.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(JOURNAL);
        if !is_there(&path) {
            return Ok(None);
        }
        let bytes = read_capped(&path, MAX_BYTES)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let damaged = || Error::bad_file(&path, "is damaged; remove the folder and start again");
        let mut lines = bytes[..whole]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(serde_json::from_slice);
        let identity: Value = lines.next().ok_or_else(damaged)?.map_err(|_| damaged())?;
        let mut files = BTreeMap::new();
        for line in lines {
            let line: Value = line.map_err(|_| damaged())?;
            let name = line.get("file").and_then(Value::as_str).ok_or_else(damaged)?;
            let entry = line.get("entry").and_then(FileEntry::from_json).ok_or_else(damaged)?;
            files.insert(name.to_owned(), entry);
        }
        if whole < bytes.len() {
            write_whole(dir, JOURNAL, &bytes[..whole])?;
        }
        Self::at(dir, identity, files).map(Some)
    }

    fn at(dir: &Path, identity: Value, files: BTreeMap<String, FileEntry>) -> Result<Self> {
        let path = dir.join(JOURNAL);
        let file = OpenOptions::new().append(true).open(&path).map_err(|e| Error::io(&path, e))?;
        Ok(Self { path, file, identity, files })
    }

    /// Notes that the file `name` is whole.
    pub fn add(&mut self, name: &str, entry: &FileEntry) -> Result<()> {
        let line = format!("{}\n", json!({"file": name, "entry": entry.to_json()}));
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(|e| Error::io(&self.path, e))
    }

    /// Removes the journal of `dir`, if there is one.
    pub fn remove(dir: &Path) -> Result<()> {
        let path = dir.join(JOURNAL);
        match fs::remove_file(&path) {
            Ok(()) => sync_dir(dir),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::io(path, e)),
        }
    }
}
