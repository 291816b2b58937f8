//! Reading a model's matrices ahead of the code that puts them together.
//!
//! Which matrices a family will ask for is known from the survey. Threads read them and lay them out
//! meanwhile, so that neither the disk waits for processors nor they for it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cpu;
use crate::error::{Error, Result};
use crate::log::say;
use crate::matrix::Matrix;
use crate::store::calls::Calls;
use crate::store::{Catalog, MatrixSource};

/// Most threads that read; more would not make a disk faster.
const MAX_READERS: usize = 16;
/// Longest time without a report of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// When no read has come back for so long, it is told what is waited for.
const TELL_AFTER: Duration = Duration::from_secs(15);

/// Matrices that are read or will be.
pub struct Ahead<'a> {
    matrices: &'a [(String, MatrixSource)],
    catalog: &'a Catalog,
    total_bytes: u64,
    state: Mutex<State>,
    /// Told of each matrix that was read.
    arrived: Condvar,
    /// What all threads wait for, by place in `matrices`, or one more for everything else.
    calls: Arc<Calls>,
}

struct State {
    /// Places in `matrices` that nobody has taken on, the last one first.
    waiting: Vec<usize>,
    /// By place.
    read: Vec<Option<Result<Matrix>>>,
    /// Name -> place, until it is asked for.
    places: HashMap<String, usize>,
    stopped: bool,
}

impl<'a> Ahead<'a> {
    /// Runs `put_together` while the `matrices` are read.
    pub(super) fn run<T>(
        matrices: &'a [(String, MatrixSource)],
        catalog: &'a Catalog,
        total_bytes: u64,
        put_together: impl FnOnce(&Ahead) -> T,
    ) -> T {
        // Large ones first, so that no thread is left with one at the end. The sort is stable: the
        // others stay in the order in which they are asked for, which mostly is that of the file.
        let mut waiting: Vec<usize> = (0..matrices.len()).collect();
        waiting.sort_by_key(|&i| std::cmp::Reverse(matrices[i].1.disk_bytes()));
        waiting.reverse();
        let names = matrices.iter().enumerate();
        let ahead = Ahead {
            matrices,
            catalog,
            total_bytes,
            state: Mutex::new(State {
                waiting,
                read: matrices.iter().map(|_| None).collect(),
                places: names.map(|(i, (name, _))| (name.clone(), i)).collect(),
                stopped: false,
            }),
            arrived: Condvar::new(),
            calls: Arc::default(),
        };
        std::thread::scope(|scope| {
            // Two for each processor: one computes while the other waits for the disk.
            for _ in 0..(2 * cpu::n_threads()).min(MAX_READERS) {
                scope.spawn(|| while ahead.read_next() {});
            }
            scope.spawn(|| ahead.tell_what_hangs());
            // Ends the readers also if the caller unwinds.
            let _stop = Stop(&ahead);
            ahead.calls.watch(matrices.len(), || put_together(&ahead))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A reader that panicked has left the state as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a matrix; false if none is left.
    fn read_next(&self) -> bool {
        let next = {
            let mut state = self.state();
            if state.stopped { None } else { state.waiting.pop() }
        };
        let Some(place) = next else { return false };
        // Whoever waits for it must not wait for ever.
        let mut arrival = Arrival { ahead: self, place, matrix: None };
        let load = || self.matrices[place].1.load(self.catalog);
        arrival.matrix = Some(self.calls.watch(place, load));
        true
    }

    /// Tells once what is waited for, if no read comes back for long.
    fn tell_what_hangs(&self) {
        let mut state = self.state();
        while !state.stopped {
            if let Some((_, call)) = self.calls.stalled(TELL_AFTER) {
                say(format_args!("notice: {}", call.told()));
                return;
            }
            let waited = self.arrived.wait_timeout(state, REPORT_INTERVAL);
            state = waited.map_or_else(|e| e.into_inner().0, |(state, _)| state);
        }
    }

    /// The matrix `name`, once it is there; `progress` gets bytes done and in all.
    ///
    /// # Panics
    /// If the survey did not find it, or it was taken before.
    pub(super) fn take(&self, name: &str, progress: &mut dyn FnMut(u64, u64)) -> Result<Matrix> {
        let mut state = self.state();
        let place = state.places.remove(name).expect("a family asks twice for the same matrices");
        loop {
            if let Some(matrix) = state.read[place].take() {
                drop(state);
                self.report(progress);
                return matrix;
            }
            let waited = self.arrived.wait_timeout(state, REPORT_INTERVAL);
            state = waited.map_or_else(|e| e.into_inner().0, |(state, _)| state);
            drop(state);
            self.report(progress);
            state = self.state();
        }
    }

    fn report(&self, progress: &mut dyn FnMut(u64, u64)) {
        progress(self.catalog.bytes_read().dense.min(self.total_bytes), self.total_bytes);
    }
}

/// Hands over a matrix when it is dropped, or says that its reader failed.
struct Arrival<'a, 'b> {
    ahead: &'a Ahead<'b>,
    place: usize,
    matrix: Option<Result<Matrix>>,
}

impl Drop for Arrival<'_, '_> {
    fn drop(&mut self) {
        let matrix = self.matrix.take().unwrap_or(Err(Error::Interrupted));
        self.ahead.state().read[self.place] = Some(matrix);
        self.ahead.arrived.notify_all();
    }
}

/// Tells the readers to end.
struct Stop<'a, 'b>(&'a Ahead<'b>);

impl Drop for Stop<'_, '_> {
    fn drop(&mut self) {
        self.0.state().stopped = true;
        self.0.arrived.notify_all();
    }
}
