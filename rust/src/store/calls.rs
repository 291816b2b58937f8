//! Which file a thread waits for, and since when.
//!
//! A drive may hang for ever, and nothing ends a call that waits for it. Whoever waits for the thread
//! can see here what that is about, and go on without it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::one_line;

thread_local! {
    /// Who wants to know of the calls of this thread, and for which task it makes them.
    static CALLER: RefCell<Option<(Arc<Calls>, usize)>> = const { RefCell::new(None) };
}

/// A call to the system that has not come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it reads.
    pub file: PathBuf,
    /// When it began.
    pub since: Instant,
}

impl Call {
    /// How long it has been under way.
    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// That it is waited for, in one line.
    pub fn told(&self) -> String {
        let (file, seconds) = (one_line(self.file.display()), self.waited().as_secs_f64());
        format!("waiting for {file} for {seconds:.0} s")
    }
}

/// The calls that several threads are in.
#[derive(Default)]
pub struct Calls(Mutex<State>);

#[derive(Default)]
struct State {
    /// With the task of each, and a number of its own.
    under_way: Vec<(usize, u64, Call)>,
    begun: u64,
    /// When the last one came back.
    ended: Option<Instant>,
}

impl Calls {
    /// Runs `read` for a `task`; while it is in a call that reads a file of a catalogue,
    /// [`Self::longest`] tells.
    pub fn watch<T>(self: &Arc<Self>, task: usize, read: impl FnOnce() -> T) -> T {
        let before = CALLER.replace(Some((Arc::clone(self), task)));
        let result = read();
        CALLER.set(before);
        result
    }

    /// The call of `task` that has been under way for the longest time.
    pub fn longest(&self, task: usize) -> Option<Call> {
        let state = self.lock();
        let calls = state.under_way.iter().filter(|(of, ..)| *of == task);
        calls.map(|(.., call)| call).min_by_key(|call| call.since).cloned()
    }

    /// The call that has been under way for the longest time, and its task, if that is longer than
    /// `limit` and none has come back for as long.
    pub fn stalled(&self, limit: Duration) -> Option<(usize, Call)> {
        let state = self.lock();
        if state.ended.is_some_and(|ended| ended.elapsed() < limit) {
            return None;
        }
        let longest = state.under_way.iter().min_by_key(|(.., call)| call.since);
        let longest = longest.filter(|(.., call)| call.waited() > limit);
        longest.map(|(task, _, call)| (*task, call.clone()))
    }

    /// Tells no more of calls of `task` that are under way.
    pub fn forget(&self, task: usize) {
        self.lock().under_way.retain(|(of, ..)| *of != task);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who watches this thread, for another one that reads on its behalf.
pub(super) fn watcher() -> Option<(Arc<Calls>, usize)> {
    CALLER.with_borrow(Clone::clone)
}

/// Runs a `read` of `file` on this thread, which is watched if somebody does.
pub(super) fn calling<T>(file: &Path, read: impl FnOnce() -> T) -> T {
    let _under_way = CALLER.with_borrow(|caller| {
        caller.as_ref().map(|(calls, task)| UnderWay::begin(Arc::clone(calls), *task, file))
    });
    read()
}

/// A call that ends when this is dropped.
struct UnderWay {
    calls: Arc<Calls>,
    number: u64,
}

impl UnderWay {
    fn begin(calls: Arc<Calls>, task: usize, file: &Path) -> Self {
        let mut state = calls.lock();
        state.begun += 1;
        let number = state.begun;
        let call = Call { file: file.to_owned(), since: Instant::now() };
        state.under_way.push((task, number, call));
        drop(state);
        Self { calls, number }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.calls.lock();
        state.under_way.retain(|(_, number, _)| *number != self.number);
        state.ended = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_task_as_long_as_they_are_under_way() {
        let calls = Arc::new(Calls::default());
        let (first, second) = (Path::new("first"), Path::new("second"));
        calls.watch(7, || {
            calling(first, || {
                // For another thread of the same task.
                let (same, task) = watcher().expect("watched");
                same.watch(task, || calling(second, || ()));
                let call = calls.longest(7).expect("under way");
                assert_eq!(call.file, first);
                assert_eq!(calls.longest(8), None);
                assert_eq!(calls.stalled(Duration::from_secs(60)), None, "not for so long");
                std::thread::sleep(Duration::from_millis(20));
                let stalled = calls.stalled(Duration::from_millis(10));
                assert_eq!(
                    stalled.map(|(task, call)| (task, call.file)),
                    Some((7, first.to_owned()))
                );
                calling(second, || ());
                assert_eq!(calls.stalled(Duration::from_millis(10)), None, "one came back");
                calls.forget(7);
                assert_eq!(calls.longest(7), None);
            });
        });
        assert_eq!(calls.longest(7), None);
        assert_eq!(calls.stalled(Duration::ZERO), None);
        // Of threads that nobody watches nothing is known.
        calling(first, || assert_eq!(calls.longest(7), None));
    }
}
