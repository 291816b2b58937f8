//! What the threads of `reader` share and wait on.

pub use std::sync::mpsc::{Receiver, Sender, channel};
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use std::thread;
