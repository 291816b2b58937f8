//! Values printed the way Python prints them: templates were written for Jinja2.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, State, Value};
use std::fmt::Write as _;

/// Deepest nesting of a value that is printed or serialised.
pub const MAX_DEPTH: usize = 100;

/// Fuel for an item of a container, which may come through many lazily joined lists.
pub const ITEM_FUEL: u64 = 8;

/// The test `iterable`: unlike elsewhere in the engine, none is not.
pub fn is_iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => true,
        ValueKind::None => false,
        _ => value.try_iter().is_ok(),
    }
}

/// Prints the value of an expression.
pub fn print(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&string(state, value)?)?,
    }
    Ok(())
}

/// `str(value)`.
pub fn string(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut text = String::new();
    write(state, &mut text, value, 0)?;
    Ok(text)
}

/// Python's text of a float: the shortest that reads back, with an exponent outside 1e-4..1e16.
pub fn float(value: f64) -> String {
    if !value.is_finite() {
        return match value {
            f64::INFINITY => "inf",
            f64::NEG_INFINITY => "-inf",
            _ => "nan",
        }
        .to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// The error for values that hold themselves too many times.
pub fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply")
}

fn write(state: &State, text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => text.push_str("None"),
        ValueKind::Bool => text.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => {
            text.push_str(&float(f64::try_from(value.clone())?));
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.is_tuple();
            text.push(if is_tuple { '(' } else { '[' });
            for (index, item) in value.try_iter()?.enumerate() {
                state.consume_fuel(ITEM_FUEL)?;
                if index > 0 {
                    text.push_str(", ");
                }
                write_quoted(state, text, &item, depth + 1)?;
            }
            if is_tuple && value.len() == Some(1) {
                text.push(',');
            }
            text.push(if is_tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            text.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                state.consume_fuel(ITEM_FUEL)?;
                if index > 0 {
                    text.push_str(", ");
                }
                write_quoted(state, text, &key, depth + 1)?;
                text.push_str(": ");
                write_quoted(state, text, &value.get_item(&key)?, depth + 1)?;
            }
            text.push('}');
        }
        _ => {
            let _ = write!(text, "{value}");
        }
    }
    Ok(())
}

/// `repr(value)`: strings within containers are quoted.
fn write_quoted(
    state: &State,
    text: &mut String,
    value: &Value,
    depth: usize,
) -> Result<(), Error> {
    let Some(content) = value.as_str() else {
        return write(state, text, value, depth);
    };
    state.consume_fuel(content.len() as u64 / 64)?;
    let quote = if content.contains('\'') && !content.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for c in content.chars() {
        match c {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            c if c == quote => {
                text.push('\\');
                text.push(c);
            }
            c if is_printable(c) => text.push(c),
            c => {
                let _ = match u32::from(c) {
                    code @ ..=0xff => write!(text, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(text, "\\u{code:04x}"),
                    code => write!(text, "\\U{code:08x}"),
                };
            }
        }
    }
    text.push(quote);
    Ok(())
}

/// Whether `repr` shows a character as it is: not where it is a control, a format, a space other
/// than U+0020, or for private use. Characters that are not assigned are not told here.
fn is_printable(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
        | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}');
    let is_private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..);
    // No character at all, in every version of Unicode.
    let is_none = matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe;
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_format || is_private || is_none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_as_in_python() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1.25e-5, "1.25e-05"),
            (123_456.789, "123456.789"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
