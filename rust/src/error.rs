//! The one error type that crosses module borders.
//!
//! Variants carry facts as fields; advice travels separately as a hint, so that the command line,
//! the wire and HTTP can each show both in their own form.

use std::path::PathBuf;

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Most characters of what an error quotes.
const MAX_QUOTED: usize = 1000;

/// Everything that can go wrong, grouped by cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- configuration ---
    /// A flag or environment variable holds a value that cannot be used.
    #[error("{name}: {}", one_line(reason))]
    Setting {
        /// Name of the flag or variable as the user wrote it.
        name: String,
        /// What is wrong with the value.
        reason: String,
    },

    // --- model files ---
    /// A file of the model folder is missing.
    #[error("{}: not found", one_line(path.display()))]
    FileMissing {
        /// The path that was looked for.
        path: PathBuf,
        /// What to do about it.
        hint: String,
    },
    /// A file of the model folder cannot be used.
    #[error("{}: {}", one_line(path.display()), one_line(reason))]
    BadFile {
        /// The offending file.
        path: PathBuf,
        /// Which property of the file is violated.
        reason: String,
    },
    /// The model needs something this engine does not implement.
    #[error("not supported: {}", one_line(what))]
    Unsupported {
        /// The feature by the name it has in the model's files.
        what: String,
        /// What to do about it.
        hint: String,
    },

    // --- resources ---
    /// A memory budget is too small for what must be in it.
    #[error("{what}: need {}, the budget is {}", human_bytes(*need_bytes), human_bytes(*have_bytes))]
    DoesNotFit {
        /// What does not fit.
        what: String,
        /// Bytes it takes.
        need_bytes: u64,
        /// Bytes there are.
        have_bytes: u64,
        /// What to do about it.
        hint: String,
    },

    // --- requests ---
    /// A request that is refused; nothing was changed by it.
    #[error("{0}")]
    BadRequest(String),
    /// The KV slot has a request in flight.
    #[error("slot {0} is busy")]
    SlotBusy(usize),
    /// The request id is in flight.
    #[error("request id {0} is in flight")]
    DuplicateId(u64),
    /// The prompt holds no token.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit in the context.
    #[error(
        "the prompt has {}{tokens} tokens, the context takes at most {limit}",
        if *.counted { "" } else { "at least " }
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        tokens: usize,
        /// Whether they were counted; else it has at least so many, by its length alone.
        counted: bool,
        /// Most tokens that fit.
        limit: usize,
    },
    /// No request of this id is in flight.
    #[error("request id {0} is not in flight")]
    NotFound(u64),

    // --- faults: they end the affected requests, not the engine ---
    /// A computation produced a value that is not finite.
    #[error("{what} is not finite in layer {layer} at position {position}")]
    NonFinite {
        /// Which quantity.
        what: &'static str,
        /// Layer index in the model; the number of layers stands for the output head.
        layer: usize,
        /// Token position in its sequence.
        position: usize,
    },
    /// Reading or writing failed.
    #[error("{}: {source}", one_line(path.display()))]
    Io {
        /// The file concerned.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A chat template is invalid, ran out of fuel or raised an exception.
    #[error("chat template: {0}")]
    Template(String),
    /// Work was abandoned because the caller asked for it.
    #[error("interrupted")]
    Interrupted,
}

/// Bytes in decimal units, to three digits, for people.
pub fn human_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["bytes", "kB", "MB", "GB"] {
        if value < 999.5 {
            let whole = unit == "bytes" || value >= 99.95;
            return if whole { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// A text that may hold parts of a file, as one line of moderate length.
pub fn one_line(text: impl std::fmt::Display) -> String {
    let text = text.to_string();
    let mut line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_QUOTED).collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
        line.push('\u{2026}');
    }
    line
}

impl Error {
    /// Wraps an I/O error with the file it concerns.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// A file that violates `reason`.
    pub fn bad_file(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::BadFile { path: path.into(), reason: reason.into() }
    }

    /// Advice that goes with the error, if there is any.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::FileMissing { hint, .. }
            | Self::Unsupported { hint, .. }
            | Self::DoesNotFit { hint, .. } => Some(hint),
            _ => None,
        }
    }

    /// The word for this error on the wire (protocol.md section 2).
    pub fn wire_code(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "BAD_REQUEST",
            Self::SlotBusy(_) => "SLOT_BUSY",
            Self::DuplicateId(_) => "DUPLICATE_ID",
            Self::EmptyPrompt => "EMPTY_PROMPT",
            Self::ContextExceeded { .. } => "CONTEXT_EXCEEDED",
            Self::NotFound(_) => "NOT_FOUND",
            _ => "ENGINE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_file_holds_an_error_is_one_line() {
        let name = "a\nb\u{1b}[2J\u{85}c".to_owned();
        let errors = [
            Error::bad_file(&name, format!("lacks {name}")),
            Error::FileMissing { path: name.clone().into(), hint: String::new() },
            Error::Unsupported { what: name.clone(), hint: String::new() },
            Error::io(&name, std::io::ErrorKind::InvalidData.into()),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("a b [2J c") && !text.contains(char::is_control), "{text:?}");
        }
        assert_eq!(one_line("x".repeat(MAX_QUOTED)).len(), MAX_QUOTED);
        let cut = one_line("x".repeat(1 << 20));
        assert!(cut.ends_with("x\u{2026}") && cut.chars().count() == MAX_QUOTED + 1);
    }

    #[test]
    fn bytes_are_told_in_decimal_units() {
        let cases = [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1.0 kB"),
            (29_986_816, "30.0 MB"),
            (999_600_000, "1.0 GB"),
            (744_000_000_000, "744 GB"),
            (5_000_000_000_000, "5.0 TB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }
}
