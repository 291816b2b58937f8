//! The serve wire as bytes: parsers and writers for every line and counted payload.
//!
//! Owns: syntax, ranges and framing in both directions. Does not own: I/O, which request runs in
//! which slot, or when a record is due. Layer 0: only `std` and `error`.
//!
//! Both parsers are incremental and total. They take bytes in any split, never panic, never
//! allocate by a size that was only declared, and never execute a payload as a command.

mod number;
mod options;
mod read;
mod record;
mod request;
mod text;
mod write;

pub use number::integer;
pub use options::{OPTION_NAMES, SubmitOptions};
pub use read::RecordReader;
pub use record::{
    DriveRecord, GpuRecord, HwInfoRecord, MorePerf, PerfRecord, ProfRecord, Record, StatRecord,
    TiersRecord, TopkToken, TurnRecord,
};
pub use request::{Incoming, RequestReader, Submit, sampling_fields, write_submit};
pub use text::{percent_decode, percent_encode};
pub use write::{
    write_accept, write_caps, write_data, write_done, write_emap, write_entropy, write_error,
    write_gpus, write_hits, write_hwinfo, write_perf, write_prefill, write_prof, write_ready,
    write_record, write_repin, write_stat, write_tiers, write_topk, write_turn_stat,
};

/// What an engine writes once it can serve, newline included.
pub const READY: &[u8] = b"\x01\x01READY\x01\x01\n";
/// Longest request header in bytes, without its newline.
pub const MAX_HEADER_BYTES: usize = 4096;
/// Largest prompt, and largest DATA payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// Largest grammar text in bytes.
pub const MAX_GRAMMAR_BYTES: usize = 1 << 20;
/// Longest record line a reader keeps, in bytes: an EMAP holds two digits an expert.
pub const MAX_LINE_BYTES: usize = 64 << 20;

/// Longest payload that is skipped to keep the stream in sync, in bytes; beyond it a length is
/// taken for garbage.
pub const MAX_SKIP_BYTES: u64 = 1 << 30;

#[cfg(test)]
mod tests;
