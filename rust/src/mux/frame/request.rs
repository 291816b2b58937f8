//! Requests, server to engine: SUBMIT, STOP and CANCEL.

use super::number::{decimal, integer};
use super::options::{OPTION_NAMES, ParsedOptions, SubmitOptions, Unframed};
use super::{MAX_GRAMMAR_BYTES, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, MAX_SKIP_BYTES};
use crate::error::{Error, Result};

/// A request to generate, its fields within their ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    /// Chosen by the server, at least 1.
    pub id: u64,
    /// KV slot, below the number of slots.
    pub slot: usize,
    /// Most tokens to generate, 1 to 2^31 - 1.
    pub max_tokens: u32,
    /// 0 (greedy) to 2.
    pub temperature: f64,
    /// Above 0, up to 1.
    pub top_p: f64,
    /// What the header asked for beyond its fixed fields.
    pub options: SubmitOptions,
    /// The rendered prompt: any bytes but NUL, possibly none.
    pub payload: Vec<u8>,
}

/// What the server asked for, or why it could not be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// Generate.
    Submit(Box<Submit>),
    /// End this request as a success.
    Stop(u64),
    /// End this request as an error.
    Cancel(u64),
    /// `BAD_REQUEST`: a frame was read and refused; the stream is in sync.
    Refused {
        /// The request's id, 0 if it could not be read.
        id: u64,
        /// What is wrong.
        detail: String,
    },
    /// `BAD_FRAME`: the end of a frame is unknown; nothing more is read.
    Lost {
        /// The request's id, 0 if it could not be read.
        id: u64,
        /// What is wrong.
        detail: String,
    },
}

/// Incremental parser of the engine's input.
///
/// Feed bytes, then call [`RequestReader::next`] until it returns `None`. The fields of a header
/// are read one by one, and once the payload's length is known the payload is consumed whatever
/// else is wrong.
#[derive(Debug)]
pub struct RequestReader {
    accepted: Vec<String>,
    slots: usize,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that are done with.
    start: usize,
    state: State,
    at_end: bool,
}

#[derive(Debug)]
enum State {
    Header,
    /// A good header; its payload is collected.
    Payload {
        submit: Box<Submit>,
        prompt_bytes: usize,
        grammar_bytes: Option<usize>,
    },
    /// A refused header; its payload is dropped as it comes.
    Skip {
        id: u64,
        left: u64,
        /// Reported at the end of the payload, unless that was done already.
        fault: Option<String>,
    },
    Dead,
}

impl RequestReader {
    /// A reader for an engine with `slots` KV slots that takes the options named in `accepted`.
    pub fn new(accepted: &[&str], slots: usize) -> Self {
        Self {
            accepted: accepted.iter().map(|name| (*name).to_owned()).collect(),
            slots,
            bytes: Vec::new(),
            start: 0,
            state: State::Header,
            at_end: false,
        }
    }

    /// Takes more bytes; they are ignored once the stream is lost or has ended.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at_end || matches!(self.state, State::Dead) {
            return;
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Tells that no byte follows. A last STOP or CANCEL without newline still counts; an
    /// unfinished SUBMIT is lost.
    pub fn finish(&mut self) {
        self.at_end = true;
    }

    /// The next request of the bytes fed so far.
    #[expect(clippy::should_implement_trait, reason = "more may follow after None")]
    pub fn next(&mut self) -> Option<Incoming> {
        loop {
            match &mut self.state {
                State::Dead => return None,
                State::Header => {
                    if let Some(incoming) = self.header()? {
                        return Some(incoming);
                    }
                }
                State::Payload { .. } => return self.payload(),
                State::Skip { .. } => {
                    if let Some(incoming) = self.skip()? {
                        return Some(incoming);
                    }
                }
            }
        }
    }

    /// Reads one header line. `None`: more bytes are needed. `Some(None)`: a payload follows.
    #[expect(clippy::option_option, reason = "the outer None means wait, as in `next`")]
    fn header(&mut self) -> Option<Option<Incoming>> {
        let rest = &self.bytes[self.start..];
        let window = &rest[..rest.len().min(MAX_HEADER_BYTES + 1)];
        let (line, used, complete) = match window.iter().position(|byte| *byte == b'\n') {
            Some(at) => (&rest[..at], at + 1, true),
            None if rest.len() > MAX_HEADER_BYTES => {
                return Some(Some(self.lost(0, "header is too long")));
            }
            None if self.at_end && !rest.is_empty() => (rest, rest.len(), false),
            None => return None,
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        self.start += used;
        Some(self.command(&line, complete))
    }

    fn command(&mut self, line: &[u8], complete: bool) -> Option<Incoming> {
        // A leading space leaves the verb empty, hence unknown.
        let mut words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let verb = words.remove(0);
        words.retain(|word| !word.is_empty());
        let only_id = match words[..] {
            [word] => integer(word).filter(|id| *id != 0),
            _ => None,
        };
        match (verb, only_id) {
            (b"STOP", Some(id)) => Some(Incoming::Stop(id)),
            (b"CANCEL", Some(id)) => Some(Incoming::Cancel(id)),
            (b"STOP" | b"CANCEL", None) => {
                Some(Incoming::Refused { id: 0, detail: "needs one request id".to_owned() })
            }
            (b"SUBMIT", _) => {
                let id = words.first().and_then(|word| integer(word)).unwrap_or(0);
                if !complete {
                    return Some(self.lost(id, "the input ended within a header"));
                }
                match submit_header(&words, &self.accepted, self.slots) {
                    Ok(Header { submit, fault: None, prompt_bytes, grammar_bytes }) => {
                        self.state = State::Payload {
                            submit: Box::new(submit),
                            prompt_bytes: prompt_bytes as usize,
                            grammar_bytes: grammar_bytes.map(|bytes| bytes as usize),
                        };
                        None
                    }
                    Ok(Header { fault: Some(detail), prompt_bytes, grammar_bytes, .. }) => {
                        let left = prompt_bytes + grammar_bytes.unwrap_or(0);
                        // Nobody should have to send it all to hear that it is too much.
                        let at_once = left > (MAX_PAYLOAD_BYTES + MAX_GRAMMAR_BYTES) as u64;
                        let (now, later) =
                            if at_once { (Some(detail), None) } else { (None, Some(detail)) };
                        self.state = State::Skip { id, left, fault: later };
                        now.map(|detail| Incoming::Refused { id, detail })
                    }
                    Err(Unframed(detail)) => Some(self.lost(id, &detail)),
                }
            }
            _ => Some(Incoming::Refused { id: 0, detail: "unknown verb".to_owned() }),
        }
    }

    fn payload(&mut self) -> Option<Incoming> {
        let State::Payload { submit, prompt_bytes, grammar_bytes } = &mut self.state else {
            return None;
        };
        let (id, prompt_bytes, grammar_bytes) = (submit.id, *prompt_bytes, *grammar_bytes);
        let end = self.start + prompt_bytes + grammar_bytes.unwrap_or(0);
        if self.bytes.len() <= end {
            return self.end_within_payload(id);
        }
        let prompt = self.bytes[self.start..self.start + prompt_bytes].to_vec();
        let grammar = self.bytes[self.start + prompt_bytes..end].to_vec();
        let mut submit = std::mem::replace(submit, Box::new(empty_submit()));
        self.start = end;
        if let Some(lost) = self.close_payload(id) {
            return Some(lost);
        }
        if prompt.contains(&0) || grammar.contains(&0) {
            return Some(Incoming::Refused { id, detail: "NUL in the payload".to_owned() });
        }
        submit.payload = prompt;
        if grammar_bytes.is_some() {
            match String::from_utf8(grammar) {
                Ok(text) => submit.options.grammar = Some(text),
                Err(_) => {
                    return Some(Incoming::Refused {
                        id,
                        detail: "grammar is no UTF-8".to_owned(),
                    });
                }
            }
        }
        Some(Incoming::Submit(submit))
    }

    /// Drops the payload of a refused header. The options mean the same as in `header`.
    #[expect(clippy::option_option, reason = "the outer None means wait, as in `next`")]
    fn skip(&mut self) -> Option<Option<Incoming>> {
        let State::Skip { id, left, fault } = &mut self.state else {
            return None;
        };
        let id = *id;
        let skipped = ((self.bytes.len() - self.start) as u64).min(*left);
        self.start += skipped as usize;
        *left -= skipped;
        if *left > 0 || self.start == self.bytes.len() {
            return self.end_within_payload(id).map(Some);
        }
        let fault = fault.take();
        if let Some(lost) = self.close_payload(id) {
            return Some(Some(lost));
        }
        Some(fault.map(|detail| Incoming::Refused { id, detail }))
    }

    /// Takes the newline behind a payload.
    fn close_payload(&mut self, id: u64) -> Option<Incoming> {
        if self.bytes[self.start] != b'\n' {
            return Some(self.lost(id, "no newline after the payload"));
        }
        self.start += 1;
        self.state = State::Header;
        None
    }

    fn end_within_payload(&mut self, id: u64) -> Option<Incoming> {
        self.at_end.then(|| self.lost(id, "the input ended within a payload"))
    }

    fn lost(&mut self, id: u64, detail: &str) -> Incoming {
        self.state = State::Dead;
        self.bytes = Vec::new();
        self.start = 0;
        Incoming::Lost { id, detail: detail.to_owned() }
    }
}

struct Header {
    submit: Submit,
    prompt_bytes: u64,
    grammar_bytes: Option<u64>,
    fault: Option<String>,
}

fn empty_submit() -> Submit {
    Submit {
        id: 0,
        slot: 0,
        max_tokens: 1,
        temperature: 0.0,
        top_p: 1.0,
        options: SubmitOptions::default(),
        payload: Vec::new(),
    }
}

/// Reads the fields behind the verb SUBMIT.
fn submit_header(words: &[&[u8]], accepted: &[String], slots: usize) -> Result<Header, Unframed> {
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    let prompt_bytes = integer(word(2))
        .filter(|bytes| *bytes <= MAX_SKIP_BYTES)
        .ok_or_else(|| Unframed("payload length is unreadable".to_owned()))?;
    let parsed = ParsedOptions::read(words.get(6..).unwrap_or_default(), accepted)?;
    let mut submit = Submit { options: parsed.options, ..empty_submit() };
    let mut read_fields = || -> Result<(), &'static str> {
        submit.id = integer(word(0)).filter(|id| *id != 0).ok_or("id is invalid")?;
        submit.slot = integer(word(1))
            .and_then(|slot| usize::try_from(slot).ok())
            .filter(|slot| *slot < slots)
            .ok_or("slot is out of range")?;
        if prompt_bytes > MAX_PAYLOAD_BYTES as u64 {
            return Err("payload is too long");
        }
        let sampling = words.get(3..).unwrap_or_default();
        (submit.max_tokens, submit.temperature, submit.top_p) = sampling_fields(sampling)?;
        Ok(())
    };
    let fault = read_fields().err().map(str::to_owned).or(parsed.fault);
    Ok(Header { submit, prompt_bytes, grammar_bytes: parsed.grammar_bytes, fault })
}

/// Reads `max_tokens`, `temperature` and `top_p`, which requests of both protocols have in this
/// order.
///
/// # Errors
/// Which of them is missing or out of range.
pub fn sampling_fields(words: &[&[u8]]) -> Result<(u32, f64, f64), &'static str> {
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    let max_tokens = integer(word(0))
        .and_then(|count| u32::try_from(count).ok())
        .filter(|count| (1..=i32::MAX as u32).contains(count))
        .ok_or("max_tokens is out of range")?;
    let temperature = decimal(word(1), false)
        .filter(|value| *value <= 2.0)
        .ok_or("temperature is out of range")?;
    let top_p = decimal(word(2), false)
        .filter(|value| *value > 0.0 && *value <= 1.0)
        .ok_or("top_p is out of range")?;
    Ok((max_tokens, temperature, top_p))
}

/// Appends a complete SUBMIT frame.
///
/// Which options the engine takes is the caller's business.
///
/// # Errors
/// [`Error::BadRequest`] if any conforming engine would refuse the frame; nothing is appended then.
pub fn write_submit(out: &mut Vec<u8>, submit: &Submit) -> Result<()> {
    let Submit { id, slot, max_tokens, temperature, top_p, options, payload } = submit;
    let bytes = payload.len();
    let mut header = format!("SUBMIT {id} {slot} {bytes} {max_tokens} {temperature} {top_p}");
    options.push_fields(&mut header);
    let grammar = options.grammar.as_deref().unwrap_or_default().as_bytes();
    let words: Vec<&[u8]> = header.split(' ').skip(1).map(str::as_bytes).collect();
    let fault = if header.len() > MAX_HEADER_BYTES {
        Some("the options are too long".to_owned())
    } else if payload.contains(&0) || grammar.contains(&0) {
        Some("NUL in the payload".to_owned())
    } else {
        match submit_header(&words, &OPTION_NAMES.map(str::to_owned), usize::MAX) {
            Ok(header) => header.fault,
            Err(Unframed(detail)) => Some(detail),
        }
    };
    if let Some(detail) = fault {
        return Err(Error::BadRequest(detail));
    }
    out.reserve(header.len() + payload.len() + grammar.len() + 2);
    out.extend_from_slice(header.as_bytes());
    out.push(b'\n');
    out.extend_from_slice(payload);
    out.extend_from_slice(grammar);
    out.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests;
