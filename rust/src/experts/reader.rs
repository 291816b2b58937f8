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
    /// Whether it was given up for lost meanwhile, so that somebody else may have read it.
    pub was_lost: bool,
}

/// The threads that read experts. They end when this is dropped, as soon as they have nothing to read.
pub struct Reader<T> {
    queue: Arc<Queue>,
    landed: Receiver<std::thread::Result<Landed<T>>>,
    /// What they need.
    load: Arc<Load<T>>,
    finished: Sender<std::thread::Result<Landed<T>>>,
}

/// Reads an expert; one that is read ahead ends early with [`crate::Error::Interrupted`] once it is
/// said to have become needless.
type Load<T> = dyn Fn(usize, Option<&Arc<AtomicBool>>) -> Result<T> + Send + Sync;

struct Queue {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted {
    now: VecDeque<usize>,
    /// The first is wanted most.
    ahead: VecDeque<usize>,
    /// Reads under way that are not lost.
    reading: Vec<Reading>,
    /// Reads that were ever begun.
    begun: u64,
    clock: Clock,
    ended: bool,
}

/// A read under way.
#[derive(Clone)]
struct Reading {
    /// Its own number.
    number: u64,
    index: usize,
    /// Of one that is read ahead, whether it has become needless.
    needless: Option<Arc<AtomicBool>>,
}

impl Wanted {
    /// Takes note that `index` is being read from now on.
    fn begin(&mut self, index: usize, needless: Option<Arc<AtomicBool>>) -> Reading {
        self.clock.begin(Instant::now());
        self.begun += 1;
        let reading = Reading { number: self.begun, index, needless };
        self.reading.push(reading.clone());
        reading
    }

    /// Threads that read ahead; none may as long as something is read that is needed.
    fn reading_ahead(&self) -> usize {
        self.reading.iter().filter(|reading| reading.needless.is_some()).count()
    }

    fn reads_needed(&self) -> bool {
        self.reading.len() > self.reading_ahead()
    }

    /// Takes note that a read is not under way any more. False if it was lost before.
    fn end(&mut self, number: u64) -> bool {
        let place = self.reading.iter().position(|reading| reading.number == number);
        if let Some(place) = place {
            self.reading.swap_remove(place);
            self.clock.end(Instant::now());
        }
        place.is_some()
    }
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

    /// Waits for the next expert to read.
    fn next(&self) -> Option<Reading> {
        let mut wanted = self.lock();
        loop {
            if wanted.ended {
                return None;
            }
            if let Some(index) = wanted.now.pop_front() {
                return Some(wanted.begin(index, None));
            }
            if !wanted.reads_needed()
                && wanted.reading_ahead() < THREADS_AHEAD
                && let Some(index) = wanted.ahead.pop_front()
            {
                return Some(wanted.begin(index, Some(Arc::default())));
            }
            wanted = self.changed.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work<T>(&self, load: &Load<T>, landed: &Sender<std::thread::Result<Landed<T>>>) {
        while let Some(Reading { number, index, needless }) = self.next() {
            let read = catch_unwind(AssertUnwindSafe(|| {
                let start = Instant::now();
                let expert = load(index, needless.as_ref());
                (expert, start.elapsed())
            }));
            let was_lost = !self.end(number);
            let read = read.map(|(expert, service)| Landed { index, expert, service, was_lost });
            // Another thread has taken the place of one whose read was lost.
            if landed.send(read).is_err() || was_lost {
                return;
            }
        }
    }

    /// Notes that a read is over. False if it was lost before.
    fn end(&self, number: u64) -> bool {
        let mut wanted = self.lock();
        let was_under_way = wanted.end(number);
        if !wanted.reads_needed() {
            let free = THREADS_AHEAD.saturating_sub(wanted.reading_ahead());
            for _ in wanted.ahead.iter().take(free) {
                self.changed.notify_one();
            }
        }
        was_under_way
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
        let (finished, landed) = channel();
        let reader = Self { queue, landed, load: Arc::new(load), finished };
        for _ in 0..n_threads {
            reader.start_thread();
        }
        reader
    }

    fn start_thread(&self) {
        let (queue, load) = (Arc::clone(&self.queue), Arc::clone(&self.load));
        let finished = self.finished.clone();
        thread::Builder::new()
            .name("read-experts".into())
            .spawn(move || queue.work(&*load, &finished))
            .expect("the system starts a thread");
    }

    /// Gives up the read of an expert that is under way and hangs: it may be asked for again, and a new
    /// thread takes the place of the one that waits. What that one reads after all is told as lost.
    /// False if the expert is not being read.
    ///
    /// # Panics
    /// If the system refuses to start a thread.
    pub fn lose(&self, index: usize) -> bool {
        let mut wanted = self.queue.lock();
        let found = wanted.reading.iter().find(|reading| reading.index == index);
        let Some(number) = found.map(|reading| reading.number) else { return false };
        wanted.end(number);
        drop(wanted);
        self.start_thread();
        // Others may read ahead now.
        self.queue.changed.notify_all();
        true
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

    /// Takes back the request for an expert. False if it is being read, or was: where it is read ahead,
    /// that ends early.
    pub fn withdraw_one(&self, index: usize) -> bool {
        let mut wanted = self.queue.lock();
        for reading in wanted.reading.iter().filter(|reading| reading.index == index) {
            if let Some(needless) = &reading.needless {
                needless.store(true, Ordering::Relaxed);
            }
        }
        let Wanted { now, ahead, .. } = &mut *wanted;
        [now, ahead].into_iter().any(|queue| {
            let place = queue.iter().position(|&other| other == index);
            place.is_some_and(|place| queue.remove(place).is_some())
        })
    }

    /// Takes back the request for the expert that may be needed least, if it is not being read.
    pub fn withdraw(&self) -> Option<usize> {
        self.queue.lock().ahead.pop_back()
    }

    /// Time so far in which at least one expert was being read.
    pub fn reading(&self) -> Duration {
        self.queue.lock().clock.at(Instant::now())
    }

    /// Waits for the next expert that was read, for some time at most.
    ///
    /// # Panics
    /// With the panic of the thread that read it.
    pub fn wait(&self, at_most: Duration) -> Option<Landed<T>> {
        let landed = self.landed.recv_timeout(at_most).ok()?;
        Some(landed.unwrap_or_else(|panic| resume_unwind(panic)))
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
