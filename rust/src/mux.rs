//! The mux protocol on stdin and stdout (`docs/protocol.md`).

pub mod frame;
