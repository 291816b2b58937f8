//! Values printed the way Python prints them: templates were written for Jinja2.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, State, Value};
use std::fmt::Write as _;

/// Deepest nesting of a value that is printed or serialised.
pub const MAX_DEPTH: usize = 100;

/// Fuel for an item of a container, which may come through many lazily joined lists.
pub const ITEM_FUEL: u64 = 8;

/// Longest run of digits in a format string; a field of more than 9999 characters is a bomb.
const MAX_FIELD_DIGITS: usize = 4;

/// Methods that Python's strings, lists and dicts have.
pub fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let digits = |text: &str| text.split(|c: char| !c.is_ascii_digit()).map(str::len).max();
    if name == "format" && value.as_str().and_then(digits) > Some(MAX_FIELD_DIGITS) {
        let what = "a field of a format string is too wide";
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

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
            c if c.is_control() => {
                let _ = write!(text, "\\x{:02x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push(quote);
    Ok(())
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
