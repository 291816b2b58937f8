//! The one error type that crosses module borders.
//!
//! Variants carry facts as fields; advice travels separately as a hint, so that the command line,
//! the wire and HTTP can each show both in their own form.

use std::path::PathBuf;

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Most bytes of what an error quotes.
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
    /// Some of the files that hold a model's weights are missing.
    #[error(
        "{}: {} of {total} shards not found: {}",
        one_line(dir.display()), names.len(), few(names, ", ")
    )]
    ShardsMissing {
        /// The model folder.
        dir: PathBuf,
        /// Names of the files.
        names: Vec<String>,
        /// How many files there should be.
        total: usize,
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

    /// Several of these at once, so that a model can be repaired in one go.
    #[error("{}", together(.0))]
    Several(Vec<Error>),

    // --- resources ---
    /// A memory budget is too small for what must be in it.
    #[error("{}: {}", one_line(what), shortage(*need_bytes, *have_bytes))]
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

/// Most parts of a list that are told in a message, ...
const FEW: usize = 8;
/// ... and most bytes of each.
const MAX_PART: usize = 500;

/// The first of `parts`, and how many more there are.
fn few(parts: &[String], separator: &str) -> String {
    let told = parts.iter().take(FEW).map(|part| cut(part, MAX_PART));
    let text = told.collect::<Vec<_>>().join(separator);
    match parts.len().saturating_sub(FEW) {
        0 => text,
        more => format!("{text}{separator}and {more} more"),
    }
}

/// One line for all of `errors`; the path is told once for neighbours that share it.
fn together(errors: &[Error]) -> String {
    let mut last = None;
    let parts: Vec<String> = errors
        .iter()
        .map(|error| match error {
            Error::BadFile { path, reason } if last == Some(path) => reason.clone(),
            Error::BadFile { path, .. } => {
                last = Some(path);
                error.to_string()
            }
            other => {
                last = None;
                other.to_string()
            }
        })
        .collect();
    few(&parts, "; ")
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

/// What is needed beside what there is, to the byte where three digits are the same.
fn shortage(need: u64, have: u64) -> String {
    let [needed, budget] = [need, have].map(human_bytes);
    if needed == budget {
        return format!("need {need} bytes, the budget is {have} bytes");
    }
    format!("need {needed}, the budget is {budget}")
}

/// A text that may hold parts of a file, as one line of moderate length.
pub fn one_line(text: impl std::fmt::Display) -> String {
    cut(&text.to_string(), MAX_QUOTED)
}

/// The first `most` bytes of a text, as one line that shows where something was left out.
fn cut(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let mut line = text[..end].replace(rearranges, " ");
    if end < text.len() {
        line.push('\u{2026}');
    }
    line
}

/// Whether a character ends a line, or can rewrite or reorder what is shown around it.
fn rearranges(c: char) -> bool {
    let is_separator = matches!(c, '\u{2028}' | '\u{2029}');
    let is_direction = matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}');
    c.is_control() || is_separator || is_direction
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

    /// All of `errors` as one, if there are any.
    ///
    /// # Errors
    /// The error itself if there is one, else [`Error::Several`].
    pub fn unless_empty(mut errors: Vec<Self>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// The errors that this one stands for.
    pub fn each(self) -> Vec<Self> {
        match self {
            Self::Several(errors) => errors.into_iter().flat_map(Self::each).collect(),
            one => vec![one],
        }
    }

    /// Advice that goes with the error, if there is any.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Several(errors) => errors.iter().find_map(Self::hint),
            Self::FileMissing { hint, .. }
            | Self::ShardsMissing { hint, .. }
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
        let name = "a\nb\u{1b}[2J\u{85}c\u{2028}\u{2029}\u{202e}\u{2066}\u{200f}d".to_owned();
        let errors = [
            Error::bad_file(&name, format!("lacks {name}")),
            Error::FileMissing { path: name.clone().into(), hint: String::new() },
            Error::Unsupported { what: name.clone(), hint: String::new() },
            Error::io(&name, std::io::ErrorKind::InvalidData.into()),
            Error::DoesNotFit {
                what: name.clone(),
                need_bytes: 2,
                have_bytes: 1,
                hint: String::new(),
            },
            Error::ShardsMissing {
                dir: name.clone().into(),
                names: vec![name.clone()],
                total: 2,
                hint: String::new(),
            },
            Error::Several(vec![Error::bad_file("c", "d"), Error::bad_file("c", &name)]),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("a b [2J c     d") && !text.contains(rearranges), "{text:?}");
        }
        assert_eq!(one_line("x".repeat(MAX_QUOTED)).len(), MAX_QUOTED);
        let cut = one_line("x".repeat(1 << 20));
        assert!(cut.ends_with("x\u{2026}") && cut.chars().count() == MAX_QUOTED + 1);
        let wide = one_line("\u{20ac}".repeat(1 << 20));
        assert!(wide.len() <= MAX_QUOTED + '\u{2026}'.len_utf8() && wide.ends_with('\u{2026}'));
    }

    #[test]
    fn several_errors_are_one_line_that_ends() {
        let gap = |path: &str, i: usize| Error::bad_file(path, format!("tensor {i} is missing"));
        assert!(Error::unless_empty(Vec::new()).is_ok());
        let one = Error::unless_empty(vec![gap("a", 1)]).expect_err("one");
        assert_eq!(one.to_string(), "a: tensor 1 is missing");
        let three = Error::unless_empty(vec![gap("a", 1), gap("a", 2), gap("b", 3)]);
        let text = "a: tensor 1 is missing; tensor 2 is missing; b: tensor 3 is missing";
        assert_eq!(three.expect_err("three").to_string(), text);
        let many = Error::Several((0..20).map(|i| gap("a", i)).collect());
        assert!(many.to_string().ends_with("tensor 7 is missing; and 12 more"), "{many}");
        assert_eq!(Error::Several(vec![many, gap("b", 1)]).each().len(), 21);
        let long = (0..20).map(|i| Error::bad_file("a", "x".repeat(1000 + i))).collect();
        let text = Error::Several(long).to_string();
        assert!(
            text.len() < FEW * (MAX_PART + 8) && text.ends_with("x\u{2026}; and 12 more"),
            "{text}"
        );
    }

    #[test]
    fn a_long_path_leaves_room_for_what_is_wrong() {
        let path = format!("/home/{}/model-00001-of-00016.safetensors", "long/".repeat(60));
        let errors = (0..8).map(|i| Error::bad_file(&path, format!("tensor {i} is missing")));
        let text = Error::Several(errors.collect()).to_string();
        assert!(text.starts_with(&format!("{path}: tensor 0 is missing; tensor 1")), "{text}");
        assert!(text.ends_with("tensor 7 is missing"), "{text}");
    }

    #[test]
    fn a_shortage_shows_a_difference() {
        assert_eq!(shortage(2_000_000, 1_000), "need 2.0 MB, the budget is 1.0 kB");
        let by_one = shortage(4_500_001, 4_500_000);
        assert_eq!(by_one, "need 4500001 bytes, the budget is 4500000 bytes");
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
