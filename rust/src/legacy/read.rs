//! Lines and exact prompts, client to engine.

use crate::mux::frame::{
    MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, MAX_SKIP_BYTES, integer, sampling_fields,
};
use crate::stdio::Parser;

/// First byte of a command; no text line begins with it.
const COMMAND: u8 = 0x02;
const PROMPT: &[u8] = b"\x02PROMPT";

/// An exact prompt, its fields within their ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// KV slot, below the number of slots.
    pub slot: usize,
    /// Most tokens to generate, 1 to 2^31 - 1.
    pub max_tokens: u32,
    /// 0 (greedy) to 2.
    pub temperature: f64,
    /// Above 0, up to 1.
    pub top_p: f64,
    /// Any bytes but NUL, possibly none.
    pub payload: Vec<u8>,
}

/// What the client asked for, or why it could not be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// The next message of the conversation: any bytes but NUL, at least one.
    Text(Vec<u8>),
    /// An empty line.
    Nothing,
    /// Forget.
    Reset,
    /// Go on with the answer that was cut.
    More,
    /// Continue exactly this.
    Prompt(Prompt),
    /// A message or prompt that is refused; the stream is in sync.
    RefusedTurn(String),
    /// A command that is refused; the stream is in sync.
    RefusedCommand(String),
    /// The end of a prompt is unknown; nothing more is read.
    Lost(String),
}

/// Incremental parser of the engine's input, total on every byte string.
///
/// Once a prompt's length is known, that many bytes are consumed whatever else is wrong with it, so
/// no part of them is ever taken for a line.
#[derive(Debug)]
pub struct LineReader {
    slots: usize,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that are done with.
    start: usize,
    /// Bytes from `start` known to hold no newline.
    scanned: usize,
    state: State,
    at_end: bool,
}

#[derive(Debug)]
enum State {
    Line,
    /// A line that is refused, dropped as it comes.
    LongLine {
        refusal: Incoming,
    },
    /// A good header; its payload is collected.
    Payload {
        prompt: Prompt,
        left: usize,
    },
    /// A refused header; its payload is dropped as it comes.
    Skip {
        fault: String,
        left: u64,
    },
    /// The newline that ends a payload has to come before anything else.
    Close {
        outcome: Incoming,
    },
    Dead,
}

impl LineReader {
    /// A reader for an engine with `slots` KV slots.
    pub fn new(slots: usize) -> Self {
        Self { slots, bytes: Vec::new(), start: 0, scanned: 0, state: State::Line, at_end: false }
    }

    /// Reads one line. `None`: more bytes are needed. `Some(None)`: the state has changed.
    #[expect(clippy::option_option, reason = "the outer None means wait, as in `next`")]
    fn line(&mut self) -> Option<Option<Incoming>> {
        let rest = &self.bytes[self.start..];
        let limit =
            if rest.first() == Some(&COMMAND) { MAX_HEADER_BYTES } else { MAX_PAYLOAD_BYTES };
        let found = rest[self.scanned..].iter().position(|byte| *byte == b'\n');
        let length = found.map_or(rest.len(), |at| self.scanned + at);
        if length > limit {
            let refusal = match rest {
                _ if rest.starts_with(PROMPT) => {
                    return Some(Some(self.lost("header is too long")));
                }
                [COMMAND, ..] => Incoming::RefusedCommand("the command is too long".to_owned()),
                _ => Incoming::RefusedTurn("the line is too long".to_owned()),
            };
            self.advance(length);
            self.state = State::LongLine { refusal };
            return Some(None);
        }
        if found.is_none() && (!self.at_end || rest.is_empty()) {
            self.scanned = length;
            return None;
        }
        let line = &rest[..length];
        let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        self.advance(length + usize::from(found.is_some()));
        Some(self.command(line))
    }

    fn command(&mut self, line: Vec<u8>) -> Option<Incoming> {
        let mut words = line.split(|byte| *byte == b' ');
        match words.next().unwrap_or_default() {
            b"" if line.is_empty() => Some(Incoming::Nothing),
            PROMPT => {
                let fields: Vec<&[u8]> = words.filter(|word| !word.is_empty()).collect();
                self.prompt(&fields)
            }
            b"\x02RESET" if line.len() == b"\x02RESET".len() => Some(Incoming::Reset),
            b"\x02MORE" if line.len() == b"\x02MORE".len() => Some(Incoming::More),
            [COMMAND, ..] => Some(Incoming::RefusedCommand("unknown command".to_owned())),
            _ if line.contains(&0) => Some(Incoming::RefusedTurn("NUL in the line".to_owned())),
            _ => Some(Incoming::Text(line)),
        }
    }

    /// Reads the fields behind the word PROMPT; those behind the slot are ignored.
    fn prompt(&mut self, fields: &[&[u8]]) -> Option<Incoming> {
        let length = fields.first().and_then(|word| integer(word));
        let Some(length) = length.filter(|length| *length <= MAX_SKIP_BYTES) else {
            return Some(self.lost("the length of a prompt is unreadable"));
        };
        self.state = match self.prompt_fields(length, fields) {
            Ok(prompt) => State::Payload { prompt, left: length as usize },
            Err(fault) => State::Skip { fault: fault.to_owned(), left: length },
        };
        None
    }

    fn prompt_fields(&self, length: u64, fields: &[&[u8]]) -> Result<Prompt, &'static str> {
        if length > MAX_PAYLOAD_BYTES as u64 {
            return Err("the prompt is too long");
        }
        let (max_tokens, temperature, top_p) = sampling_fields(&fields[1..])?;
        let slot = match fields.get(4) {
            None => 0,
            Some(word) => integer(word)
                .and_then(|slot| usize::try_from(slot).ok())
                .filter(|slot| *slot < self.slots)
                .ok_or("slot is out of range")?,
        };
        Ok(Prompt { slot, max_tokens, temperature, top_p, payload: Vec::new() })
    }

    /// Marks `count` bytes as done with.
    fn advance(&mut self, count: usize) {
        self.start += count;
        self.scanned = 0;
    }

    fn lost(&mut self, detail: &str) -> Incoming {
        self.state = State::Dead;
        self.bytes = Vec::new();
        self.start = 0;
        Incoming::Lost(detail.to_owned())
    }
}

impl Parser for LineReader {
    type Item = Incoming;

    /// Takes more bytes; they are ignored once the stream is lost.
    fn feed(&mut self, bytes: &[u8]) {
        if matches!(self.state, State::Dead) {
            return;
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Tells that no byte follows. A last line without newline still counts, and so does a prompt
    /// of which only the newline is missing.
    fn finish(&mut self) {
        self.at_end = true;
    }

    fn next(&mut self) -> Option<Incoming> {
        loop {
            let here = self.bytes.len() - self.start;
            match &mut self.state {
                State::Dead => return None,
                State::Line => {
                    if let Some(incoming) = self.line()? {
                        return Some(incoming);
                    }
                }
                State::LongLine { refusal } => {
                    let found = self.bytes[self.start..].iter().position(|byte| *byte == b'\n');
                    if found.is_none() && !self.at_end {
                        self.advance(here);
                        return None;
                    }
                    let refusal = std::mem::replace(refusal, Incoming::Nothing);
                    self.advance(found.map_or(here, |at| at + 1));
                    self.state = State::Line;
                    return Some(refusal);
                }
                State::Payload { left, .. } if here < *left => return self.end_within_payload(),
                State::Payload { prompt, left } => {
                    let payload = self.bytes[self.start..self.start + *left].to_vec();
                    let outcome = if payload.contains(&0) {
                        Incoming::RefusedTurn("NUL in the prompt".to_owned())
                    } else {
                        Incoming::Prompt(Prompt { payload, ..prompt.clone() })
                    };
                    let length = *left;
                    self.advance(length);
                    self.state = State::Close { outcome };
                }
                State::Skip { left, .. } if (here as u64) < *left => {
                    *left -= here as u64;
                    self.advance(here);
                    return self.end_within_payload();
                }
                State::Skip { fault, left } => {
                    let outcome = Incoming::RefusedTurn(std::mem::take(fault));
                    let length = *left as usize;
                    self.advance(length);
                    self.state = State::Close { outcome };
                }
                State::Close { outcome } => {
                    match self.bytes.get(self.start) {
                        None if !self.at_end => return None,
                        None | Some(b'\n') => {}
                        Some(_) => return Some(self.lost("no newline after a prompt")),
                    }
                    let outcome = std::mem::replace(outcome, Incoming::Nothing);
                    self.advance(here.min(1));
                    self.state = State::Line;
                    return Some(outcome);
                }
            }
        }
    }
}

impl LineReader {
    fn end_within_payload(&mut self) -> Option<Incoming> {
        self.at_end.then(|| self.lost("the input ended within a prompt"))
    }
}

#[cfg(test)]
mod tests;
