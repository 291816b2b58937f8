//! `.coli_usage`: how often each expert was chosen, from one run to the next.
//!
//! The text that the C engine writes: lines of layer, expert and count, after `-1 <layers>
//! <experts>` and `-2 <version> <engine>`, FNV-1a of the family's name. A file of another model, or
//! one that is damaged, is of no use and never an error: what it holds decides speed alone.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::log::say;
use crate::store::output::Output;
use crate::store::{is_there, read_capped};

/// Name of the file.
pub const HISTORY: &str = ".coli_usage";
const VERSION: i64 = 1;
/// Longest time that a turn's end waits for it: a drive may hang.
pub const SAVE_LIMIT: Duration = Duration::from_secs(3);
/// Longest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// The folder of the history of the model in `model`: that one, or one for this model in the folder
/// that was `asked` for.
///
/// # Errors
/// [`Error::Io`] if there is no such model folder.
pub fn state_dir(asked: Option<&OsStr>, model: &Path) -> Result<PathBuf> {
    let Some(asked) = asked.filter(|dir| !dir.is_empty()).map(Path::new) else {
        return Ok(model.to_owned());
    };
    let whole = std::fs::canonicalize(model).map_err(|e| Error::io(model, e))?;
    let name = whole.file_name().unwrap_or_default().to_string_lossy();
    // Models of the same name lie in different folders.
    let hash = blake3::hash(whole.as_os_str().as_encoded_bytes()).to_hex();
    Ok(asked.join(format!("{name}-{}", &hash[..8])))
}

/// Where the counts of a model are kept, and what they must fit.
#[derive(Clone, Debug)]
pub struct History {
    dir: PathBuf,
    engine: u32,
    /// Layers of the model, and the number of each sparse one.
    n_layers: usize,
    sparse_layers: Vec<usize>,
    n_experts: usize,
}

impl History {
    /// The history in `dir` of a model of `n_layers`, `sparse_layers` of which have `n_experts`.
    pub fn new(
        dir: &Path,
        family: &str,
        n_layers: usize,
        sparse_layers: &[usize],
        n_experts: usize,
    ) -> Self {
        let sparse_layers = sparse_layers.to_vec();
        Self { dir: dir.to_owned(), engine: fnv1a(family), n_layers, sparse_layers, n_experts }
    }

    /// The counts of earlier runs, `[sparse layers][experts]`; none if there is no file.
    ///
    /// # Errors
    /// Why the file is of no use.
    pub fn read(&self) -> Result<Option<Vec<u64>>, String> {
        let path = self.dir.join(HISTORY);
        if !is_there(&path) {
            return Ok(None);
        }
        let bytes = read_capped(&path, MAX_BYTES).map_err(|error| error.to_string())?;
        let text = String::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        self.parse(&text).map(Some)
    }

    fn parse(&self, text: &str) -> Result<Vec<u64>, String> {
        let mut counts = vec![0u64; self.sparse_layers.len() * self.n_experts];
        // A text without its end may have lost a digit of its last number.
        if !text.is_empty() && !text.ends_with('\n') {
            return Err("its end is missing".into());
        }
        for (i, line) in text.lines().enumerate() {
            let wrong = || format!("line {} is none of a history", i + 1);
            let mut words = line.split(' ').map(str::parse::<i64>);
            let mut number = || words.next().and_then(Result::ok).ok_or_else(wrong);
            let (layer, second, third) = (number()?, number()?, number()?);
            if words.next().is_some() {
                return Err(wrong());
            }
            match layer {
                -1 if (second, third) != (self.n_layers as i64, self.n_experts as i64) => {
                    return Err(format!("it is of {second} layers of {third} experts"));
                }
                -2 if second != VERSION || third != i64::from(self.engine) => {
                    return Err(format!("it is of version {second} and engine {third}"));
                }
                -2 | -1 => {}
                _ if layer < 0 || second < 0 || third < 0 => return Err(wrong()),
                // Layers and experts that the model has not are those of parts it does not use.
                _ => {
                    let row = self.sparse_layers.iter().position(|&l| l as i64 == layer);
                    if let Some(row) = row.filter(|_| second < self.n_experts as i64) {
                        let count = &mut counts[row * self.n_experts + second as usize];
                        *count = count.saturating_add(third as u64);
                    }
                }
            }
        }
        Ok(counts)
    }

    /// Writes `counts`, `[sparse layers][experts]`, in place of the file.
    ///
    /// # Errors
    /// [`crate::Error::Io`]; the file is as it was then.
    pub fn write(&self, counts: &[u64]) -> Result<()> {
        let mut output = Output::create_private(&self.dir, HISTORY)?;
        output.write(self.render(counts).as_bytes())?;
        output.finish().map(|_| ())
    }

    fn render(&self, counts: &[u64]) -> String {
        let mut text = format!("-1 {} {}\n", self.n_layers, self.n_experts);
        writeln!(text, "-2 {VERSION} {}", self.engine).expect("a string takes all");
        for (layer, counts) in self.sparse_layers.iter().zip(counts.chunks(self.n_experts)) {
            for (expert, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let count = count.min(i64::MAX as u64);
                writeln!(text, "{layer} {expert} {count}").expect("a string takes all");
            }
        }
        text
    }
}

/// Writes a history on a thread of its own: a disk takes some milliseconds to make it lasting, and
/// sometimes a hundred, in which others want their tokens.
pub struct Writer(Arc<Shared>);

/// A state of the history that is being written.
pub struct Saved {
    shared: Arc<Shared>,
    number: u64,
}

struct Shared {
    history: History,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What is to be written next.
    counts: Option<Vec<u64>>,
    /// How often that was said, and up to which of these all is on the disk.
    asked: u64,
    written: u64,
    /// Nothing more will be written, because it cannot be, or nobody wants it.
    has_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            let Some(counts) = state.counts.take() else {
                if state.has_ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let number = state.asked;
            drop(state);
            let written = self.history.write(&counts);
            state = self.lock();
            state.written = number;
            if let Err(error) = written {
                Self::give_up(&mut state, &error);
            }
            self.changed.notify_all();
        }
    }

    /// Writes no more; told once.
    fn give_up(state: &mut State, error: &Error) {
        if !std::mem::replace(&mut state.has_ended, true) {
            say(format_args!("notice: the use of experts is not remembered: {error}"));
        }
        state.counts = None;
    }
}

impl Writer {
    /// Starts the thread, which ends with this value.
    ///
    /// # Panics
    /// If the system refuses to start a thread.
    pub fn start(history: History) -> Self {
        let shared = Arc::new(Shared { history, state: Mutex::default(), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("history".into())
            .spawn(move || of_thread.work())
            .expect("the system starts a thread");
        Self(shared)
    }

    /// Has `counts`, `[sparse layers][experts]`, written in place of the file. What cannot be written
    /// is told once.
    pub fn save(&self, counts: &[u64]) {
        let mut state = self.0.lock();
        if !state.has_ended {
            state.counts = Some(counts.to_vec());
            state.asked += 1;
            self.0.changed.notify_all();
        }
    }

    /// What was last to be written.
    pub fn saved(&self) -> Saved {
        Saved { shared: Arc::clone(&self.0), number: self.0.lock().asked }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Saved {
    /// Waits until it is on the disk. If that takes longer than `at_most`, it is given up, which is
    /// told: the drive may hang.
    pub fn wait(&self, at_most: Duration) {
        let state = self.shared.lock();
        let is_open = |state: &mut State| !state.has_ended && state.written < self.number;
        let waited = self.shared.changed.wait_timeout_while(state, at_most, is_open);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && is_open(&mut state) {
            let reason = format!("the drive has not answered for {} s", at_most.as_secs());
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, reason);
            Shared::give_up(&mut state, &Error::io(self.shared.history.dir.join(HISTORY), error));
        }
    }
}

/// FNV-1a of 32 bits, <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn history(dir: &Path) -> History {
        History::new(dir, "glm_moe_dsa", 5, &[1, 3, 4], 3)
    }

    #[test]
    fn counts_come_back() {
        let dir = tempfile::tempdir().expect("a folder");
        let history = history(dir.path());
        assert_eq!(history.read(), Ok(None));
        let counts = [0, 1, 2, 0, 0, 0, u64::MAX, 7, 0];
        history.write(&counts).expect("written");
        let text = std::fs::read_to_string(dir.path().join(HISTORY)).expect("text");
        assert!(text.starts_with("-1 5 3\n-2 1 3815245270\n1 1 1\n1 2 2\n4 0 "), "{text}");
        let mut expected = counts;
        expected[6] = i64::MAX as u64;
        assert_eq!(history.read(), Ok(Some(expected.to_vec())));
    }

    #[test]
    fn what_is_saved_is_there_once_it_was_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let history = history(dir.path());
        let writer = Writer::start(history.clone());
        for n in 1..20 {
            writer.save(&[n; 9]);
            writer.save(&[n + 1; 9]);
            writer.saved().wait(Duration::from_secs(60));
            assert_eq!(history.read(), Ok(Some(vec![n + 1; 9])));
        }
        // What is still to be written when nobody wants more is written.
        writer.save(&[100; 9]);
        let saved = writer.saved();
        drop(writer);
        drop(saved);
    }

    #[test]
    fn what_cannot_be_saved_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let writer = Writer::start(history(&dir.path().join("none")));
        for _ in 0..2 {
            writer.save(&[1; 9]);
            writer.saved().wait(Duration::from_secs(60));
        }
        assert!(writer.0.lock().has_ended);
        let slow = Saved { shared: Arc::clone(&writer.0), number: u64::MAX };
        slow.shared.lock().has_ended = false;
        slow.wait(Duration::from_millis(10));
        assert!(writer.0.lock().has_ended, "it took too long");
    }

    #[test]
    fn others_may_not_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a folder");
        history(dir.path()).write(&[1; 9]).expect("written");
        let mode = std::fs::metadata(dir.path().join(HISTORY)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn foreign_and_damaged_files_are_of_no_use() {
        let history = history(Path::new("."));
        for wrong in [
            "-1 5 4\n",
            "-1 6 3\n",
            "-2 2 3815245270\n",
            "-2 1 1\n",
            "1 1\n",
            "1 1 1 1\n",
            "1 1 x\n",
            "1  1 1\n",
            "-3 1 1\n",
            "1 -1 1\n",
            "1 1 -1\n",
            "1 1 1",
            "\n",
            "1 1 99999999999999999999\n",
        ] {
            assert!(history.parse(wrong).is_err(), "{wrong:?}");
        }
        // Without headers, of layers that are dense, of experts there are not; nothing at all.
        let counts = history.parse("0 1 5\n1 1 5\n1 1 5\n1 3 5\n9 0 5\n").expect("a history");
        assert_eq!(counts, [0, 10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(history.parse(""), Ok(vec![0; 9]));
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "[-0-9 \n.x]{0,60}") {
            let _ = history(Path::new(".")).parse(&text);
        }
    }
}
