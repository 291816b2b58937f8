//! What the engine tells people: lines on stderr.
//!
//! `eprintln!` panics where stderr takes nothing, on a full disk or in a pipe whose reader is gone.
//! No answer may end for a line that nobody can read.

use std::fmt::Display;
use std::io::Write as _;

/// Writes `line` to stderr, in one piece, if that is possible.
pub fn say(line: impl Display) {
    // There is nobody to tell.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
