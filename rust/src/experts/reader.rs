//! Reading experts beside the computation.
//!
//! Owns: the threads that read, and what they have read until it is taken. Does not own: which
//! expert is read when, and where it stays.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

// Not the library's own: `explore` reads this file too, with locks and threads of a model checker.
use super::sync::{Arc, Condvar, Mutex, MutexGuard, Receiver, Sender, channel, thread};
use crate::error::Result;

/// Reads at once: what keeps a drive busy, which orders and joins them by itself.
pub const THREADS: usize = 8;
/// Of these, most that read ahead, so that what is needed now does not wait long for them.
const THREADS_AHEAD: usize = 2;

/// An expert that was read, or why not.
pub struct Landed<T> {
    /// Which one.
    pub index: usize,
    /// The expert.
    pub expert: Result<T>,
    /// How long reading took.
    pub service: Duration,
}

/// The threads that read experts. They end when this is dropped.
pub struct Reader<T> {
    queue: Arc<Queue>,
    landed: Receiver<std::thread::Result<Landed<T>>>,
}

/// Reads an expert; one that is read ahead ends early with [`crate::Error::Interrupted`] once it is
/// said to have become needless.
type Load<T> = dyn Fn(usize, Option<&Arc<AtomicBool>>) -> Result<T>;

struct Queue {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted {
    now: VecDeque<usize>,
    /// The first is wanted most.
    ahead: VecDeque<usize>,
    /// Reads under way of what is needed now.
    reading: usize,
    /// Reads under way of what may be needed, and whether they have become needless.
    reading_ahead: Vec<(usize, Arc<AtomicBool>)>,
    clock: Clock,
    ended: bool,
}

/// The time in which at least one of several things is under way.
#[derive(Default)]
struct Clock {
    running: usize,
    /// When the first of those running began.
    since: Option<Instant>,
    /// Before that.
    total: Duration,
}

impl Clock {
    fn begin(&mut self, now: Instant) {
        self.running += 1;
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Instant) {
        self.running -= 1;
        if self.running == 0 {
            self.total = self.at(now);
            self.since = None;
        }
    }

    fn at(&self, now: Instant) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        // Nothing panics while it holds the lock.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next expert to read; with one to read ahead comes what says that it has become
    /// needless.
    fn next(&self) -> Option<(usize, Option<Arc<AtomicBool>>)> {
        let mut wanted = self.lock();
        loop {
            if wanted.ended {
                return None;
            }
            if let Some(index) = wanted.now.pop_front() {
                wanted.clock.begin(Instant::now());
                wanted.reading += 1;
                return Some((index, None));
            }
            if wanted.reading == 0
                && wanted.reading_ahead.len() < THREADS_AHEAD
                && let Some(index) = wanted.ahead.pop_front()
            {
                let needless = Arc::new(AtomicBool::new(false));
                wanted.reading_ahead.push((index, Arc::clone(&needless)));
                wanted.clock.begin(Instant::now());
                return Some((index, Some(needless)));
            }
            wanted = self.changed.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work<T>(&self, load: &Load<T>, landed: &Sender<std::thread::Result<Landed<T>>>) {
        while let Some((index, needless)) = self.next() {
            let read = catch_unwind(AssertUnwindSafe(|| {
                let start = Instant::now();
                let expert = load(index, needless.as_ref());
                Landed { index, expert, service: start.elapsed() }
            }));
            self.done(index, needless.is_some());
            if landed.send(read).is_err() {
                return;
            }
        }
    }

    /// Notes that a read is over.
    fn done(&self, index: usize, ahead: bool) {
        let mut wanted = self.lock();
        wanted.clock.end(Instant::now());
        if ahead {
            wanted.reading_ahead.retain(|(other, _)| *other != index);
        } else {
            wanted.reading -= 1;
        }
        if wanted.reading == 0 {
            for _ in wanted.ahead.iter().take(THREADS_AHEAD - wanted.reading_ahead.len()) {
                self.changed.notify_one();
            }
        }
    }
}

impl<T: Send + 'static> Reader<T> {
    /// Starts `n_threads` threads that read experts with `load`.
    ///
    /// # Panics
    /// If the system refuses to start a thread.
    pub fn new(
        n_threads: usize,
        load: impl Fn(usize, Option<&Arc<AtomicBool>>) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        let queue = Arc::new(Queue { wanted: Mutex::default(), changed: Condvar::new() });
        let (load, (finished, landed)) = (Arc::new(load), channel());
        for _ in 0..n_threads {
            let (queue, load, finished) = (Arc::clone(&queue), Arc::clone(&load), finished.clone());
            thread::Builder::new()
                .name("read-experts".into())
                .spawn(move || queue.work(&*load, &finished))
                .expect("the system starts a thread");
        }
        Self { queue, landed }
    }

    /// Asks for an expert that is needed now.
    pub fn request(&self, index: usize) {
        self.queue.lock().now.push_back(index);
        self.queue.changed.notify_one();
    }

    /// Puts an expert that was asked for ahead among those that are needed now, unless it is being
    /// read already.
    pub fn hurry(&self, index: usize) {
        let mut wanted = self.queue.lock();
        if let Some(place) = wanted.ahead.iter().position(|&other| other == index) {
            wanted.ahead.remove(place);
            wanted.now.push_back(index);
            self.queue.changed.notify_one();
        }
    }

    /// Asks for an expert that may be needed, after all others.
    pub fn request_ahead(&self, index: usize) {
        self.queue.lock().ahead.push_back(index);
        self.queue.changed.notify_one();
    }

    /// Asks for experts that will probably be needed soon, the likeliest first, before all others that
    /// may be needed.
    pub fn request_next(&self, indices: &[usize]) {
        let mut wanted = self.queue.lock();
        for &index in indices.iter().rev() {
            wanted.ahead.push_front(index);
        }
        drop(wanted);
        for _ in indices.iter().take(THREADS_AHEAD) {
            self.queue.changed.notify_one();
        }
    }

    /// Takes back the request for an expert that may be needed. False if it is being read: that read
    /// ends early, or has ended.
    pub fn withdraw_one(&self, index: usize) -> bool {
        let mut wanted = self.queue.lock();
        if let Some((_, needless)) = wanted.reading_ahead.iter().find(|(other, _)| *other == index)
        {
            needless.store(true, Ordering::Relaxed);
        }
        let place = wanted.ahead.iter().position(|&other| other == index);
        place.is_some_and(|place| wanted.ahead.remove(place).is_some())
    }

    /// Takes back the request for the expert that may be needed least, if it is not being read.
    pub fn withdraw(&self) -> Option<usize> {
        self.queue.lock().ahead.pop_back()
    }

    /// Time so far in which at least one expert was being read.
    pub fn reading(&self) -> Duration {
        self.queue.lock().clock.at(Instant::now())
    }

    /// Waits for the next expert that was read.
    ///
    /// # Panics
    /// With the panic of the thread that read it.
    pub fn wait(&self) -> Landed<T> {
        let landed = self.landed.recv().expect("the threads live as long as this");
        landed.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The next expert that was read by now.
    ///
    /// # Panics
    /// With the panic of the thread that read it.
    pub fn poll(&self) -> Option<Landed<T>> {
        let landed = self.landed.try_recv().ok()?;
        Some(landed.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.queue.lock().ended = true;
        self.queue.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_overlap_count_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = Clock::default();
        clock.begin(at(0));
        clock.begin(at(10));
        clock.end(at(20));
        assert_eq!(clock.at(at(25)), Duration::from_millis(25), "one is under way");
        clock.end(at(30));
        assert_eq!(clock.at(at(100)), Duration::from_millis(30), "none is");
        clock.begin(at(100));
        clock.end(at(105));
        assert_eq!(clock.at(at(200)), Duration::from_millis(35));
    }
}
