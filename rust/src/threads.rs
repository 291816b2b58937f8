//! The worker threads that share one forward pass.
//!
//! Owns: how work is spread. Does not own: the order of any sum, which is fixed inside one item,
//! so that the number of threads never changes a result.

use rayon::prelude::*;

/// Multiply-adds below which handing work to other threads costs more than it saves.
const MIN_WORK: usize = 1 << 18;

/// A fixed set of worker threads.
pub struct Team {
    pool: Option<rayon::ThreadPool>,
    n_threads: usize,
}

impl Team {
    /// Starts `n_threads` workers; one thread means that everything runs on the caller.
    ///
    /// # Panics
    /// If the system refuses to start threads.
    pub fn new(n_threads: usize) -> Self {
        let n_threads = n_threads.max(1);
        let pool = (n_threads > 1).then(|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(n_threads)
                .thread_name(|i| format!("colibri-{i}"))
                .build()
                .expect("the system starts worker threads")
        });
        Self { pool, n_threads }
    }

    /// Number of threads that work at the same time.
    pub fn n_threads(&self) -> usize {
        self.n_threads
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
        match &self.pool {
            Some(pool) if work >= MIN_WORK && out.len() > chunk_len => pool.install(|| {
                out.par_chunks_mut(chunk_len).enumerate().for_each(|(i, chunk)| f(i, chunk));
            }),
            _ => out.chunks_mut(chunk_len).enumerate().for_each(|(i, chunk)| f(i, chunk)),
        }
    }

    /// Calls `f` on each item, on several threads if `work` (multiply-adds in all, or the largest
    /// number for blocking work) is worth it; returns the results in the items' order.
    pub fn map<T: Sync, R: Send>(
        &self,
        items: &[T],
        work: usize,
        f: impl Fn(&T) -> R + Sync,
    ) -> Vec<R> {
        match &self.pool {
            Some(pool) if work >= MIN_WORK && items.len() > 1 => {
                pool.install(|| items.par_iter().with_max_len(1).map(&f).collect())
            }
            _ => items.iter().map(f).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
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
}
