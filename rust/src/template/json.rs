//! `json.dumps` as Python has it: separators with spaces, order of keys kept.

use super::python::{ITEM_FUEL, MAX_DEPTH, float, too_deep};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write as _;

/// Widest indentation that is honoured.
const MAX_INDENT: usize = 32;

/// How to lay out.
#[derive(Debug)]
pub struct Style {
    ensure_ascii: bool,
    /// One level of indentation; none for everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Style {
    /// A style from the arguments of `json.dumps`.
    pub fn new(
        ensure_ascii: bool,
        indent: Option<&Value>,
        separators: Option<&Value>,
        sort_keys: bool,
    ) -> Result<Self, Error> {
        let indent = match indent {
            None => None,
            Some(indent) => Some(match indent.as_str() {
                Some(text) => text.to_owned(),
                None => " ".repeat(usize::try_from(indent.clone())?.min(MAX_INDENT)),
            }),
        };
        let default_item = if indent.is_some() { "," } else { ", " };
        let (item_separator, key_separator) = match separators {
            None => (default_item.to_owned(), ": ".to_owned()),
            Some(pair) => {
                let part = |index: usize| -> Result<String, Error> {
                    let part = pair.get_item_by_index(index)?;
                    part.as_str().map(str::to_owned).ok_or_else(|| {
                        Error::new(ErrorKind::InvalidOperation, "separators are two strings")
                    })
                };
                (part(0)?, part(1)?)
            }
        };
        Ok(Self { ensure_ascii, indent, item_separator, key_separator, sort_keys })
    }
}

/// Serialises `value`.
pub fn dumps(state: &State, value: &Value, style: &Style) -> Result<String, Error> {
    let mut text = String::new();
    Writer { state, style, text: &mut text }.value(value, 0)?;
    Ok(text)
}

struct Writer<'a> {
    state: &'a State<'a, 'a>,
    style: &'a Style,
    text: &'a mut String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        self.state.consume_fuel(ITEM_FUEL)?;
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => {
                let _ = write!(self.text, "{value}");
            }
            ValueKind::Number => self.float(f64::try_from(value.clone())?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                let mut is_empty = true;
                for item in value.try_iter()? {
                    self.before_item(is_empty, depth + 1)?;
                    is_empty = false;
                    self.value(&item, depth + 1)?;
                }
                self.close(is_empty, depth, ']')?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.text.push('{');
                for (index, key) in keys.iter().enumerate() {
                    self.before_item(index == 0, depth + 1)?;
                    self.key(key)?;
                    self.text.push_str(&self.style.key_separator);
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.close(keys.is_empty(), depth, '}')?;
            }
            kind => {
                let reason = format!("a value of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
        Ok(())
    }

    fn before_item(&mut self, is_first: bool, depth: usize) -> Result<(), Error> {
        if !is_first {
            self.text.push_str(&self.style.item_separator);
        }
        self.new_line(depth)
    }

    fn close(&mut self, is_empty: bool, depth: usize, bracket: char) -> Result<(), Error> {
        if !is_empty {
            self.new_line(depth)?;
        }
        self.text.push(bracket);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.style.indent {
            self.state.consume_fuel((indent.len() * depth) as u64 / 64)?;
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
        Ok(())
    }

    /// Keys that are no strings become their JSON text.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            return self.string(text);
        }
        self.text.push('"');
        self.value(key, MAX_DEPTH)?;
        self.text.push('"');
        Ok(())
    }

    fn float(&mut self, value: f64) {
        let word = match value {
            f64::INFINITY => "Infinity",
            f64::NEG_INFINITY => "-Infinity",
            _ if value.is_nan() => "NaN",
            _ => &float(value),
        };
        self.text.push_str(word);
    }

    fn string(&mut self, content: &str) -> Result<(), Error> {
        self.state.consume_fuel(content.len() as u64 / 64)?;
        self.text.push('"');
        for c in content.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && c > '~') => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
        Ok(())
    }
}
