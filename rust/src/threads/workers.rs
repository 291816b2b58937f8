//! Worker threads that wait for the next job a little while before they sleep.
//!
//! A forward pass is a long row of short parallel parts with short serial ones between them. Waking
//! a sleeping thread takes as long as many of those parts, so workers spin for a bounded time; the
//! caller works too. Items are claimed one by one, so a thread that the system takes away delays
//! one item and no more.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread waits busily for the others.
const SPIN: Duration = Duration::from_micros(100);
/// Looks at a value between two looks at the clock.
const LOOKS: usize = 64;

/// What all workers do at the moment. The pointer is good while `State` says that the job is open
/// or a worker is in it.
#[derive(Clone, Copy)]
struct Job {
    f: *const (dyn Fn(usize) + Sync),
    n: usize,
}

// SAFETY: the closure behind the pointer is `Sync`, and `run` keeps it alive until no worker uses
// it any more.
#[allow(unsafe_code, reason = "a borrowed closure is lent to threads that outlive the borrow")]
unsafe impl Send for Job {}

/// A job's number, whether workers may still enter it, and how many are inside, in one word.
#[derive(Clone, Copy)]
struct State(u64);

impl State {
    const INSIDE: u64 = (1 << 16) - 1;
    const OPEN: u64 = 1 << 16;
    const NUMBER: u64 = 1 << 17;

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn inside(self) -> u64 {
        self.0 & Self::INSIDE
    }

    fn number(self) -> u64 {
        self.0 / Self::NUMBER
    }
}

struct Shared {
    state: AtomicU64,
    job: Mutex<Option<Job>>,
    /// The next item nobody has claimed.
    next: AtomicUsize,
    ending: AtomicBool,
    sleeping: Vec<AtomicBool>,
    /// Who waits for the last worker to leave.
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Shared {
    fn state(&self) -> State {
        State(self.state.load(Ordering::SeqCst))
    }

    /// Claims and does items until none is left.
    fn work(&self, f: &(dyn Fn(usize) + Sync), n: usize) {
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= n {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| f(item))) {
                lock(&self.panic).get_or_insert(panic);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while it holds one of our locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fixed set of threads.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `n` threads.
    ///
    /// # Panics
    /// If the system refuses to start threads.
    pub fn new(n: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: Mutex::new(None),
            next: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
            sleeping: (0..n).map(|_| AtomicBool::new(false)).collect(),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let threads = (0..n)
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("colibri-{index}"))
                    .spawn(move || worker(&shared, index))
                    .expect("the system starts worker threads")
            })
            .collect();
        Self { shared, threads }
    }

    /// Calls `f` with each of `0..n`, here and on the workers.
    ///
    /// # Panics
    /// If `f` panicked, once all items are done.
    pub fn run(&mut self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        let pointer: *const (dyn Fn(usize) + Sync + '_) = f;
        // SAFETY: only the lifetime changes. The pointer is used by workers inside the job, and
        // this function does not return, nor unwind, before the last of them has left it.
        #[allow(unsafe_code, clippy::transmute_ptr_to_ptr, reason = "see `Job`")]
        let f_static: *const (dyn Fn(usize) + Sync + 'static) =
            unsafe { std::mem::transmute(pointer) };
        *lock(&shared.job) = Some(Job { f: f_static, n });
        *lock(&shared.caller) = Some(std::thread::current());
        shared.next.store(0, Ordering::SeqCst);
        let before = shared.state();
        let open = (before.number() + 1) * State::NUMBER + State::OPEN;
        shared.state.store(open, Ordering::SeqCst);
        for (sleeping, thread) in shared.sleeping.iter().zip(&self.threads) {
            if sleeping.swap(false, Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        shared.work(f, n);
        shared.state.fetch_and(!State::OPEN, Ordering::SeqCst);
        if !spin_until(|| shared.state().inside() == 0) {
            // A worker was taken away by the system; sleeping leaves it this core.
            while shared.state().inside() != 0 {
                std::thread::park();
            }
        }
        *lock(&shared.job) = None;
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker catches the panics of its items and has none of its own.
            let _ = thread.join();
        }
    }
}

fn worker(shared: &Shared, index: usize) {
    let mut last = 0;
    loop {
        let fresh = || {
            let state = shared.state();
            (state.is_open() && state.number() != last) || shared.ending.load(Ordering::SeqCst)
        };
        if !spin_until(fresh) {
            // Said anew before every sleep: whoever wakes this thread takes the word back, and the
            // job may be over before it has run.
            shared.sleeping[index].store(true, Ordering::SeqCst);
            while !fresh() {
                std::thread::park();
                shared.sleeping[index].store(true, Ordering::SeqCst);
            }
            shared.sleeping[index].store(false, Ordering::SeqCst);
        }
        if shared.ending.load(Ordering::SeqCst) {
            return;
        }
        let state = shared.state();
        if !state.is_open() || state.number() == last {
            continue;
        }
        let entered = State(state.0 + 1);
        let exchange =
            shared.state.compare_exchange(state.0, entered.0, Ordering::SeqCst, Ordering::SeqCst);
        if exchange.is_err() {
            continue;
        }
        last = state.number();
        let job = *lock(&shared.job);
        if let Some(job) = job {
            // SAFETY: this worker is inside the job, so `run` keeps the closure alive.
            #[allow(unsafe_code, reason = "see `Job`")]
            let f = unsafe { &*job.f };
            shared.work(f, job.n);
        }
        let caller = lock(&shared.caller).clone();
        let left = State(shared.state.fetch_sub(1, Ordering::SeqCst) - 1);
        if left.inside() == 0 && !left.is_open() {
            // Waking a thread that spins costs nothing.
            if let Some(caller) = caller {
                caller.unpark();
            }
        }
    }
}

/// Waits busily for `done`, a short while; false if it did not come.
fn spin_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}
