//! The worker threads that share one forward pass.
//!
//! Owns: how work is spread. Does not own: the order of any sum, which is fixed inside one item,
//! so that the number of threads never changes a result.

mod workers;

use std::sync::{Mutex, PoisonError};

use workers::Workers;

/// Multiply-adds below which handing work to other threads costs more than it saves.
const MIN_WORK: usize = 1 << 17;

/// A fixed set of threads, the caller among them.
pub struct Team {
    /// One caller at a time.
    workers: Option<Mutex<Workers>>,
    n_threads: usize,
}

impl Team {
    /// Starts `n_threads - 1` workers; one thread means that everything runs on the caller.
    ///
    /// # Panics
    /// If the system refuses to start threads.
    pub fn new(n_threads: usize) -> Self {
        let n_threads = n_threads.max(1);
        let workers = (n_threads > 1).then(|| Mutex::new(Workers::new(n_threads - 1)));
        Self { workers, n_threads }
    }

    /// Number of threads that work at the same time.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Calls `f` with each of `0..n`, on several threads if `work` is worth it.
    fn run(&self, n: usize, work: usize, f: &(dyn Fn(usize) + Sync)) {
        match &self.workers {
            Some(workers) if work >= MIN_WORK && n > 1 => {
                // A panic of `f` leaves the workers idle and whole.
                workers.lock().unwrap_or_else(PoisonError::into_inner).run(n, f);
            }
            _ => (0..n).for_each(f),
        }
    }

    /// Calls `f(i, chunk)` for each chunk of `chunk_len` elements of `out`, on several threads if
    /// `work` (multiply-adds in all) is worth it.
    pub fn for_each_chunk<T: Send>(
        &self,
        out: &mut [T],
        chunk_len: usize,
        work: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let chunks: Vec<Mutex<&mut [T]>> = out.chunks_mut(chunk_len).map(Mutex::new).collect();
        self.run(chunks.len(), work, &|i| {
            let mut chunk = chunks[i].lock().unwrap_or_else(PoisonError::into_inner);
            f(i, &mut chunk);
        });
    }

    /// Calls `f` on each item, on several threads if `work` (multiply-adds in all, or the largest
    /// number for blocking work) is worth it; returns the results in the items' order.
    pub fn map<T: Sync, R: Send>(
        &self,
        items: &[T],
        work: usize,
        f: impl Fn(&T) -> R + Sync,
    ) -> Vec<R> {
        let mut results: Vec<Option<R>> = Vec::new();
        results.resize_with(items.len(), || None);
        self.for_each_chunk(&mut results, 1, work, |i, result| result[0] = Some(f(&items[i])));
        results.into_iter().map(|result| result.expect("every item was done")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_chunk_is_visited_once_by_any_number_of_threads() {
        for n in [1, 2, 5] {
            let mut out = vec![0usize; 103];
            Team::new(n).for_each_chunk(&mut out, 10, usize::MAX, |i, chunk| {
                for x in chunk {
                    *x += i + 1;
                }
            });
            let expected: Vec<usize> = (0..103).map(|i| i / 10 + 1).collect();
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn results_come_back_in_order() {
        let items: Vec<usize> = (0..50).collect();
        assert_eq!(
            Team::new(3).map(&items, usize::MAX, |x| x * x),
            items.iter().map(|x| x * x).collect::<Vec<_>>()
        );
    }

    #[test]
    fn many_short_jobs_neither_lose_nor_repeat_an_item() {
        let team = Team::new(4);
        let done = AtomicUsize::new(0);
        for job in 0..20_000 {
            let items = job % 7;
            team.run(items, usize::MAX, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            // Workers asleep, spinning, and on their way to sleep meet the next job.
            if job % 1000 == 0 {
                std::thread::sleep(Duration::from_micros(90 + job as u64 / 1000));
            }
        }
        assert_eq!(done.into_inner(), (0..20_000).map(|job| job % 7).sum::<usize>());
    }

    /// A job that is over before the worker it woke has run must not leave that worker asleep.
    #[test]
    fn a_worker_that_came_too_late_comes_to_the_next_job() {
        let team = Team::new(2);
        for round in 0..50 {
            // Long enough for the worker to fall asleep.
            std::thread::sleep(Duration::from_micros(300));
            team.run(2, usize::MAX, &|_| {});
            std::thread::sleep(Duration::from_micros(300));
            let both = AtomicUsize::new(0);
            let deadline = Instant::now() + Duration::from_secs(20);
            team.run(2, usize::MAX, &|_| {
                both.fetch_add(1, Ordering::SeqCst);
                while both.load(Ordering::SeqCst) < 2 && Instant::now() < deadline {
                    std::thread::yield_now();
                }
            });
            assert!(Instant::now() < deadline, "round {round}: nobody came to help");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(3);
        for _ in 0..50 {
            let done = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(20, usize::MAX, &|i| {
                    assert!(i != 7, "item seven");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert!(result.is_err());
            assert_eq!(done.into_inner(), 19);
        }
    }
}
