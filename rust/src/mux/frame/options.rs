//! The `key=value` fields behind a SUBMIT header.

use super::number::{decimal, integer};
use crate::error::{Error, Result};

/// Every option this codec can read, in the order of `docs/protocol.md`.
pub const OPTION_NAMES: [&str; 11] = [
    "seed",
    "top_k",
    "min_p",
    "topk",
    "stop_ids",
    "ignore_eos",
    "presence",
    "frequency",
    "repetition",
    "bias",
    "grammar",
];

/// What a request may ask for beyond temperature and nucleus.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SubmitOptions {
    /// Seed of the request's random numbers.
    pub seed: Option<u64>,
    /// Sample among the k likeliest tokens only; 0 means all.
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this fraction of the likeliest, 0 to 1.
    pub min_p: Option<f64>,
    /// Alternatives in the TOPK record of each token, 0 to 20.
    pub topk: Option<u8>,
    /// Tokens that end the turn besides the model's own.
    pub stop_ids: Vec<u32>,
    /// Whether the model's own end tokens are sampled as if they were text.
    pub ignore_eos: bool,
    /// Subtracted once from the logit of each token present in the answer, -2 to 2.
    pub presence: Option<f64>,
    /// Subtracted from a logit for each occurrence of its token in the answer, -2 to 2.
    pub frequency: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens seen before, above 0 up to 10.
    pub repetition: Option<f64>,
    /// Added to the logits of these tokens, -100 to 100 each.
    pub bias: Vec<(u32, f64)>,
    /// JSON Schema or Lark/GBNF text that the answer must match.
    pub grammar: Option<String>,
}

/// A frame whose length cannot be known.
#[derive(Debug, PartialEq)]
pub struct Unframed(pub String);

/// Options as the header spells them; the grammar is still to come.
#[derive(Debug, Default)]
pub struct ParsedOptions {
    /// The options that could be read.
    pub options: SubmitOptions,
    /// Bytes of grammar text behind the prompt.
    pub grammar_bytes: Option<u64>,
    /// The first reason to refuse the request.
    pub fault: Option<String>,
}

impl ParsedOptions {
    /// Reads the fields behind `top_p`.
    ///
    /// A fault does not end the reading, since a later field may tell of more payload.
    pub fn read(words: &[&[u8]], accepted: &[String]) -> Result<Self, Unframed> {
        let mut parsed = Self::default();
        let mut seen: Vec<&[u8]> = Vec::new();
        for (index, word) in words.iter().enumerate() {
            let (key, value): (&[u8], &[u8]) = match word.iter().position(|byte| *byte == b'=') {
                Some(at) => (&word[..at], &word[at + 1..]),
                None if index == 0 && word.iter().all(u8::is_ascii_digit) => (b"grammar", word),
                None => {
                    parsed.refuse(format!("unexpected field {}", index + 8));
                    continue;
                }
            };
            if key == b"grammar" {
                // Two lengths, or one that is no number, leave the end of the frame unknown.
                if parsed.grammar_bytes.is_some() {
                    return Err(Unframed("grammar length given twice".to_owned()));
                }
                let bytes = integer(value)
                    .filter(|bytes| *bytes <= super::MAX_SKIP_BYTES)
                    .ok_or_else(|| Unframed("grammar length is unreadable".to_owned()))?;
                parsed.grammar_bytes = Some(bytes);
                if bytes > super::MAX_GRAMMAR_BYTES as u64 {
                    parsed.refuse("grammar is too long".to_owned());
                }
            }
            let name = String::from_utf8_lossy(key).into_owned();
            if !accepted.contains(&name) {
                parsed.refuse(format!("option {name} is not accepted"));
            } else if seen.contains(&key) {
                parsed.refuse(format!("option {name} is given twice"));
            } else if key != b"grammar" && parsed.options.set(&name, value).is_none() {
                parsed.refuse(format!("option {name} is out of range"));
            }
            seen.push(key);
        }
        Ok(parsed)
    }

    fn refuse(&mut self, reason: String) {
        self.fault.get_or_insert(reason);
    }
}

impl SubmitOptions {
    /// Reads options from their names and wire values; the value of `grammar` is the text itself.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for an unknown name, one given twice, and a value out of range.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut options = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in pairs {
            if seen.contains(&name) {
                return Err(Error::BadRequest(format!("option {name} is given twice")));
            }
            seen.push(name);
            if name == "grammar" {
                options.grammar = Some(value.to_owned());
            } else if !OPTION_NAMES.contains(&name) {
                return Err(Error::BadRequest(format!("option {name:?} is not known")));
            } else if options.set(name, value.as_bytes()).is_none() {
                return Err(Error::BadRequest(format!("option {name} is out of range")));
            }
        }
        Ok(options)
    }

    /// Appends the fields of these options to a header; the grammar as its length.
    pub(super) fn push_fields(&self, header: &mut String) {
        let mut push = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                header.push(' ');
                header.push_str(name);
                header.push('=');
                header.push_str(&value);
            }
        };
        let stop_ids: Vec<String> = self.stop_ids.iter().map(u32::to_string).collect();
        let bias: Vec<String> = self.bias.iter().map(|(id, by)| format!("{id}:{by}")).collect();
        push("seed", self.seed.map(|seed| seed.to_string()));
        push("top_k", self.top_k.map(|k| k.to_string()));
        push("min_p", self.min_p.map(|p| p.to_string()));
        push("topk", self.topk.map(|k| k.to_string()));
        push("stop_ids", (!stop_ids.is_empty()).then(|| stop_ids.join(",")));
        push("ignore_eos", self.ignore_eos.then(|| "1".to_owned()));
        push("presence", self.presence.map(|by| by.to_string()));
        push("frequency", self.frequency.map(|by| by.to_string()));
        push("repetition", self.repetition.map(|by| by.to_string()));
        push("bias", (!bias.is_empty()).then(|| bias.join(",")));
        push("grammar", self.grammar.as_ref().map(|text| text.len().to_string()));
    }

    /// Sets one option from its value on the wire; `None` if the value cannot be used.
    fn set(&mut self, name: &str, value: &[u8]) -> Option<()> {
        match name {
            "seed" => self.seed = Some(integer(value)?),
            "top_k" => self.top_k = Some(u32::try_from(integer(value)?).ok()?),
            "min_p" => self.min_p = Some(decimal_in(value, 0.0, 1.0)?),
            "topk" => self.topk = Some(u8::try_from(integer(value)?).ok().filter(|k| *k <= 20)?),
            "stop_ids" => {
                let ids: Option<Vec<u32>> =
                    value.split(|byte| *byte == b',').map(token_id).collect();
                self.stop_ids = ids?;
            }
            "ignore_eos" => {
                self.ignore_eos = match value {
                    b"0" => false,
                    b"1" => true,
                    _ => return None,
                }
            }
            "presence" => self.presence = Some(decimal_in(value, -2.0, 2.0)?),
            "frequency" => self.frequency = Some(decimal_in(value, -2.0, 2.0)?),
            "repetition" => {
                self.repetition =
                    Some(decimal_in(value, 0.0, 10.0).filter(|factor| *factor > 0.0)?);
            }
            "bias" => {
                let pairs: Option<Vec<(u32, f64)>> =
                    value.split(|byte| *byte == b',').map(bias_pair).collect();
                self.bias = pairs?;
            }
            _ => return None,
        }
        Some(())
    }
}

fn token_id(word: &[u8]) -> Option<u32> {
    u32::try_from(integer(word)?).ok()
}

fn bias_pair(word: &[u8]) -> Option<(u32, f64)> {
    let at = word.iter().position(|byte| *byte == b':')?;
    Some((token_id(&word[..at])?, decimal_in(&word[at + 1..], -100.0, 100.0)?))
}

fn decimal_in(word: &[u8], low: f64, high: f64) -> Option<f64> {
    decimal(word, low < 0.0).filter(|value| (low..=high).contains(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<ParsedOptions, Unframed> {
        let words: Vec<&[u8]> = fields.split_ascii_whitespace().map(str::as_bytes).collect();
        ParsedOptions::read(&words, &OPTION_NAMES.map(str::to_owned))
    }

    #[test]
    fn reads_every_option() {
        let parsed = read(
            "seed=18446744073709551615 top_k=40 min_p=0.05 topk=20 stop_ids=1,2 ignore_eos=1 \
             presence=-0.5 frequency=2 repetition=1.1 bias=5:-100,6:0.5 grammar=7",
        )
        .unwrap();
        assert_eq!(parsed.fault, None);
        assert_eq!(parsed.grammar_bytes, Some(7));
        assert_eq!(
            parsed.options,
            SubmitOptions {
                seed: Some(u64::MAX),
                top_k: Some(40),
                min_p: Some(0.05),
                topk: Some(20),
                stop_ids: vec![1, 2],
                ignore_eos: true,
                presence: Some(-0.5),
                frequency: Some(2.0),
                repetition: Some(1.1),
                bias: vec![(5, -100.0), (6, 0.5)],
                grammar: None,
            }
        );
    }

    #[test]
    fn refuses_values_out_of_range() {
        for field in [
            "seed=-1",
            "seed=",
            "seed=18446744073709551616",
            "top_k=4294967296",
            "min_p=1.1",
            "min_p=-0",
            "topk=21",
            "stop_ids=",
            "stop_ids=1,",
            "stop_ids=4294967296",
            "ignore_eos=yes",
            "presence=2.1",
            "frequency=nan",
            "repetition=0",
            "repetition=11",
            "bias=1",
            "bias=1:101",
            "bias=1:-",
            "unknown=1",
            "=1",
            "seed",
            "seed=1 seed=1",
            "x 5",
        ] {
            let parsed = read(field).unwrap();
            assert!(parsed.fault.is_some(), "{field}");
            assert_eq!(parsed.grammar_bytes, None, "{field}");
        }
    }

    #[test]
    fn a_bare_integer_in_first_place_is_a_grammar_length() {
        assert_eq!(read("12").unwrap().grammar_bytes, Some(12));
        assert_eq!(read("12 seed=1").unwrap().options.seed, Some(1));
        assert_eq!(read("seed=1 12").unwrap().grammar_bytes, None);
    }

    #[test]
    fn grammar_lengths_are_known_even_when_the_request_is_refused() {
        let parsed = read("seed=x grammar=9 nonsense=1").unwrap();
        assert_eq!(parsed.grammar_bytes, Some(9));
        assert_eq!(parsed.fault.as_deref(), Some("option seed is out of range"));
        let words: [&[u8]; 1] = [b"grammar=9"];
        let parsed = ParsedOptions::read(&words, &[]).unwrap();
        assert_eq!(parsed.grammar_bytes, Some(9));
        assert!(parsed.fault.is_some());
    }

    #[test]
    fn an_unreadable_grammar_length_loses_the_frame() {
        for fields in ["grammar=x", "grammar=", "grammar=-1", "5 grammar=5", "grammar=99999999999"]
        {
            assert!(read(fields).is_err(), "{fields}");
        }
    }
}
