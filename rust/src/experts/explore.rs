//! The reader under every order of its threads that a model checker thinks of.
//!
//! The file of `reader` is read once more here, with locks, channels and threads that shuttle
//! schedules; whatever order fails is told as one that can be replayed.

/// Stands where [`crate::experts::sync`] stands for the reader that is used.
mod sync {
    pub use shuttle::sync::mpsc::{Receiver, Sender, channel};
    pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub use shuttle::thread;
}

#[path = "reader.rs"]
#[allow(dead_code, reason = "some of it is for the store alone")]
#[allow(clippy::duplicate_mod, reason = "once more with other threads is the point")]
mod reader;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use shuttle::rand::{Rng as _, thread_rng};

use super::policy::Policy;
use super::residency::Residency;
use crate::error::Error;
use reader::Reader;
use sync::{Arc, Mutex};

/// Orders that are tried of each test, at random.
const ORDERS: usize = 1500;
const EXPERTS: usize = 6;
const THREADS: usize = 3;
/// Threads of `reader` that may read ahead at the same time.
const AHEAD: usize = 2;

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let test = std::sync::Arc::new(test);
    let again = std::sync::Arc::clone(&test);
    shuttle::check_random(move || test(), ORDERS);
    // Orders with few switches, which find other things.
    shuttle::check_pct(move || again(), ORDERS / 3, 3);
}

/// Yields, so that other threads may run while this one reads.
fn dawdle() {
    shuttle::thread::yield_now();
}

/// What lands next; the model checker's time never runs out.
fn wait<T: Send + 'static>(reader: &Reader<T>) -> reader::Landed<T> {
    reader.wait(Duration::MAX).expect("something is asked for")
}

#[test]
fn what_is_asked_for_lands_once_unless_it_is_withdrawn() {
    explore(|| {
        let reader = Reader::new(THREADS, |index, needless| {
            dawdle();
            match needless {
                Some(needless) if needless.load(Ordering::Relaxed) => Err(Error::Interrupted),
                _ => Ok(index),
            }
        });
        let mut random = thread_rng();
        let mut coming = BTreeSet::new();
        let mut given_up = BTreeSet::new();
        let mut last = Duration::ZERO;
        for index in 0..EXPERTS {
            coming.insert(index);
            match random.gen_range(0..3) {
                0 => reader.request(index),
                1 => reader.request_ahead(index),
                _ => reader.request_next(&[index]),
            }
            match random.gen_range(0..5) {
                0 => reader.hurry(random.gen_range(0..=index)),
                1 => {
                    if let Some(index) = reader.withdraw() {
                        assert!(coming.remove(&index), "{index} landed or was withdrawn before");
                    }
                }
                2 => {
                    let index = random.gen_range(0..=index);
                    if reader.withdraw_one(index) {
                        assert!(coming.remove(&index), "{index} landed or was withdrawn before");
                    } else {
                        given_up.insert(index);
                    }
                }
                3 => {
                    if let Some(landed) = reader.poll() {
                        assert!(coming.remove(&landed.index), "{} landed twice", landed.index);
                    }
                }
                _ => {}
            }
            let reading = reader.reading();
            assert!(reading >= last, "time runs on");
            last = reading;
        }
        while !coming.is_empty() {
            let landed = wait(&reader);
            match landed.expert {
                Ok(index) => assert_eq!(index, landed.index),
                Err(_) => assert!(given_up.contains(&landed.index), "nobody gave it up"),
            }
            assert!(coming.remove(&landed.index), "{} landed twice", landed.index);
        }
        assert!(reader.poll().is_none(), "nothing else was asked for");
    });
}

#[test]
fn what_is_needed_now_is_read_before_what_may_be() {
    explore(|| {
        let begun = Arc::new(Mutex::new(Vec::new()));
        let begin = Arc::clone(&begun);
        let reader = Reader::new(1, move |index, _| {
            begin.lock().expect("no panic").push(index);
            dawdle();
            Ok(())
        });
        let needed = EXPERTS - 1;
        for index in 0..needed {
            reader.request_ahead(index);
        }
        if thread_rng().gen_bool(0.5) {
            reader.request(needed);
        } else {
            reader.request_ahead(needed);
            reader.hurry(needed);
        }
        let before = begun.lock().expect("no panic").len();
        while wait(&reader).index != needed {}
        let begun = begun.lock().expect("no panic").clone();
        let place = begun.iter().position(|&index| index == needed).expect("it was read");
        // One more may have been taken and not begun.
        assert!(place <= before + 1, "{begun:?} after {before}");
    });
}

#[test]
fn few_threads_read_ahead_so_that_the_others_are_free() {
    explore(|| {
        let (reading, most) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let (now, peak) = (Arc::clone(&reading), Arc::clone(&most));
        let reader = Reader::new(THREADS + 1, move |_, _| {
            let running = {
                let mut running = now.lock().expect("no panic");
                *running += 1;
                *running
            };
            let mut peak = peak.lock().expect("no panic");
            *peak = running.max(*peak);
            drop(peak);
            dawdle();
            *now.lock().expect("no panic") -= 1;
            Ok(())
        });
        for index in 0..EXPERTS {
            reader.request_ahead(index);
        }
        for _ in 0..EXPERTS {
            wait(&reader);
        }
        assert!(*most.lock().expect("no panic") <= AHEAD);
    });
}

#[test]
fn a_reader_may_go_at_any_time() {
    // Threads that never end are a deadlock, which the model checker tells.
    explore(|| {
        let reader = Reader::new(THREADS, |index, _| {
            dawdle();
            Ok(index)
        });
        let mut random = thread_rng();
        for index in 0..random.gen_range(0..EXPERTS) {
            if random.gen_bool(0.5) { reader.request(index) } else { reader.request_ahead(index) }
        }
        if random.gen_bool(0.5) {
            reader.poll();
        }
    });
}

#[test]
fn what_is_lost_may_be_read_again_and_lands_as_lost_in_the_end() {
    explore(|| {
        let go_on = Arc::new((Mutex::new(false), shuttle::sync::Condvar::new()));
        let gate = Arc::clone(&go_on);
        let begun = Arc::new(Mutex::new(false));
        let has_begun = Arc::clone(&begun);
        let reader = Reader::new(1, move |index, _| {
            let was_begun = std::mem::replace(&mut *has_begun.lock().expect("no panic"), true);
            if was_begun {
                dawdle();
                return Ok(index);
            }
            let (is_open, opened) = &*gate;
            let mut is_open = is_open.lock().expect("no panic");
            while !*is_open {
                is_open = opened.wait(is_open).expect("no panic");
            }
            Ok(index)
        });
        if thread_rng().gen_bool(0.5) {
            reader.request(0);
        } else {
            reader.request_ahead(0);
        }
        while !*begun.lock().expect("no panic") {
            shuttle::thread::yield_now();
        }
        assert!(reader.lose(0), "it is being read");
        assert!(!reader.lose(0), "it is lost already");
        for index in [0, 1, 2] {
            reader.request(index);
        }
        let before: BTreeSet<usize> = (0..3)
            .map(|_| {
                let landed = wait(&reader);
                assert!(!landed.was_lost);
                landed.index
            })
            .collect();
        assert_eq!(before, BTreeSet::from([0, 1, 2]), "one thread is there for them");
        *go_on.0.lock().expect("no panic") = true;
        go_on.1.notify_all();
        let lost = wait(&reader);
        assert_eq!((lost.index, lost.was_lost), (0, true));
        assert!(reader.poll().is_none(), "nothing else was asked for");
    });
}

#[test]
fn a_panic_while_reading_is_told_to_the_one_who_waits() {
    explore(|| {
        let reader = Reader::new(2, |index, _| {
            // Not by `panic!`, which would print each time.
            if index == 1 { std::panic::resume_unwind(Box::new("lost")) } else { Ok(index) }
        });
        for index in 0..3 {
            reader.request(index);
        }
        let wait = || catch_unwind(AssertUnwindSafe(|| wait(&reader).index));
        let told: Vec<_> = (0..3).map(|_| wait()).collect();
        let panics: Vec<_> = told.iter().filter_map(|told| told.as_ref().err()).collect();
        assert_eq!(panics.len(), 1);
        assert_eq!(panics[0].downcast_ref::<&str>(), Some(&"lost"));
        let read: BTreeSet<usize> = told.iter().flatten().copied().collect();
        assert_eq!(read, BTreeSet::from([0, 2]));
    });
}

/// What uses a reader and a cache as `dispatch` does: memory is promised before a read begins.
struct Client {
    reader: Reader<usize>,
    cache: Residency<usize>,
    policy: Policy,
    pending: BTreeSet<usize>,
}

impl Client {
    const BYTES: u64 = 1;
    const BUDGET: u64 = 3;

    fn new() -> Self {
        Self {
            reader: Reader::new(THREADS, |index, _| {
                dawdle();
                if index == 4 { Err(Error::BadRequest("unreadable".into())) } else { Ok(index) }
            }),
            cache: Residency::new(1, EXPERTS, 2, Self::BUDGET * Self::BYTES),
            policy: Policy::new(1, EXPERTS, 2),
            pending: BTreeSet::new(),
        }
    }

    fn is_known(&self, index: usize) -> bool {
        self.cache.contains(index) || self.pending.contains(&index)
    }

    /// Asks for one that is needed, at the cost of those that may be.
    fn need(&mut self, index: usize) {
        while !self.cache.has_room(Self::BYTES) {
            let Some(withdrawn) = self.reader.withdraw() else { break };
            assert!(self.pending.remove(&withdrawn));
            self.cache.take_back(Self::BYTES);
        }
        if self.cache.promise(Self::BYTES, &self.policy, |_| false) {
            self.pending.insert(index);
            self.reader.request(index);
        }
    }

    fn read_ahead(&mut self, index: usize) {
        if self.cache.has_room(Self::BYTES) {
            assert!(self.cache.promise(Self::BYTES, &self.policy, |_| true));
            self.pending.insert(index);
            self.reader.request_ahead(index);
        }
    }

    fn settle(&mut self, landed: reader::Landed<usize>) {
        assert!(self.pending.remove(&landed.index));
        match landed.expert {
            Ok(expert) => {
                self.cache.insert(landed.index, std::sync::Arc::new(expert), Self::BYTES);
            }
            Err(_) => self.cache.take_back(Self::BYTES),
        }
    }

    fn check(&self) {
        let promised = self.pending.len() as u64 * Self::BYTES;
        assert!(self.cache.used_bytes() + promised <= Self::BUDGET * Self::BYTES);
    }
}

#[test]
fn what_is_kept_and_what_is_coming_never_exceed_the_budget() {
    explore(|| {
        let mut client = Client::new();
        let mut random = thread_rng();
        for _ in 0..10 {
            let index = random.gen_range(0..EXPERTS);
            match random.gen_range(0..4) {
                0 if !client.is_known(index) => client.read_ahead(index),
                1 => client.reader.hurry(index),
                2 => {
                    if let Some(landed) = client.reader.poll() {
                        client.settle(landed);
                    }
                }
                _ if !client.is_known(index) => client.need(index),
                _ => {}
            }
            client.check();
        }
        while !client.pending.is_empty() {
            let landed = wait(&client.reader);
            client.settle(landed);
            client.check();
        }
        assert!(client.reader.poll().is_none());
        // All that was promised was kept or taken back.
        let room = Client::BUDGET * Client::BYTES - client.cache.used_bytes();
        assert!(client.cache.has_room(room));
    });
}
