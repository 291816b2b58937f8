//! The two ends of a session: bytes and signals come in, records go out, each on a thread of its
//! own, so that the model waits neither for a slow writer nor, within bounds, for a slow reader.
//!
//! Owns: threads, queues, signals, patience. Does not own: what the bytes mean (`mux`, `legacy`).

mod input;
mod output;

pub use input::{Input, Interrupts, Mailbox, Parser, Signal};
pub use output::Output;
