//! Files that are either whole under their name or not there.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What the name of a file ends with until it is whole.
pub const PARTIAL: &str = ".partial";

/// A file under construction. Unless it is finished, it is removed.
pub struct Output {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    bytes: u64,
    finished: bool,
}

impl Output {
    /// Begins the file `name` of `dir` anew.
    pub fn create(dir: &Path, name: &str) -> Result<Self> {
        let output = Self::open(dir, name, 0o666)?;
        output.clear()
    }

    /// Like [`Self::create`], for a file that others may not read and that several processes write:
    /// each waits for the one before.
    pub fn create_private(dir: &Path, name: &str) -> Result<Self> {
        loop {
            let mut output = Self::open(dir, name, 0o600)?;
            // File systems without locks serve one process at a time.
            let is_locked = output.file.lock().is_ok();
            if !is_locked || output.is_partial() {
                return output.clear();
            }
            // It is whole and has its name since it was opened, so there is nothing to remove.
            output.finished = true;
        }
    }

    fn open(dir: &Path, name: &str, mode: u32) -> Result<Self> {
        let partial = dir.join(format!("{name}{PARTIAL}"));
        let io = |e| Error::io(&partial, e);
        // What is no file there, a link to somebody else's for one, is not ours; nor is it of use. No
        // more is a file that has another name as well.
        let is_foreign =
            |there: fs::Metadata| !there.is_dir() && (!there.is_file() || there.nlink() > 1);
        if fs::symlink_metadata(&partial).is_ok_and(is_foreign) {
            fs::remove_file(&partial).map_err(io)?;
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(mode);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&partial).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.permissions().mode() & 0o777 & !mode != 0 {
            // One that was left behind may have had others' permissions.
            file.set_permissions(fs::Permissions::from_mode(mode)).map_err(io)?;
        }
        Ok(Self { path: dir.join(name), partial, file, bytes: 0, finished: false })
    }

    fn clear(self) -> Result<Self> {
        self.file.set_len(0).map_err(|e| Error::io(&self.partial, e))?;
        Ok(self)
    }

    /// Whether the file is the one under the name that it has until it is whole.
    fn is_partial(&self) -> bool {
        let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let there = fs::metadata(&self.partial).map(inode).ok();
        there.is_some() && there == self.file.metadata().map(inode).ok()
    }

    /// Appends `bytes`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, e))
    }

    /// Gives the file its name once all of it is on the disk; returns its length.
    pub fn finish(mut self) -> Result<u64> {
        self.file.sync_all().map_err(|e| Error::io(&self.path, e))?;
        fs::rename(&self.partial, &self.path).map_err(|e| Error::io(&self.path, e))?;
        self.finished = true;
        sync_dir(self.path.parent().unwrap_or(Path::new(".")))?;
        Ok(self.bytes)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.finished {
            // The error that brought us here is the one to report; the next run begins anew.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Makes renames and removals in `dir` lasting.
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io(dir, e))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_lies_in_the_way_is_never_written_to() {
        let dir = tempfile::tempdir().expect("a folder");
        let (victim, partial) = (dir.path().join("victim"), dir.path().join("file.partial"));
        fs::write(&victim, b"precious").expect("written");
        let ways: [&dyn Fn(); 3] = [
            &|| std::os::unix::fs::symlink(&victim, &partial).expect("a link"),
            &|| {
                let made = std::process::Command::new("mkfifo").arg(&partial).status();
                assert!(made.expect("a command").success());
            },
            &|| {
                fs::write(&partial, b"left behind, and longer").expect("written");
                let open = fs::Permissions::from_mode(0o666);
                fs::set_permissions(&partial, open).expect("its mode");
            },
        ];
        for (i, put) in ways.iter().enumerate() {
            put();
            let mut output = Output::create_private(dir.path(), "file").expect("a file");
            output.write(b"new").expect("room");
            output.finish().expect("a name");
            let file = dir.path().join("file");
            assert_eq!(fs::read(&file).expect("a file"), b"new", "{i}");
            let metadata = fs::symlink_metadata(&file).expect("a file");
            assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600, "{i}");
            assert_eq!(fs::read(&victim).expect("a file"), b"precious", "{i}");
        }
    }

    #[test]
    fn those_who_write_the_same_file_take_turns() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |text: &[u8]| {
            let mut output = Output::create_private(dir.path(), "file").expect("a file");
            output.write(text).expect("room");
            output
        };
        let first = write(b"first");
        thread::scope(|scope| {
            let second = scope.spawn(|| write(b"and second").finish().expect("a name"));
            // Time to get in the way of the first.
            thread::sleep(Duration::from_millis(50));
            assert_eq!(first.finish().expect("a name"), 5);
            assert_eq!(second.join().expect("no panic"), 10);
        });
        assert_eq!(fs::read(dir.path().join("file")).expect("a file"), b"and second");
        assert!(!dir.path().join("file.partial").exists());
    }
}
