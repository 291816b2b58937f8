//! Methods and filters of Python and Jinja2 that the engine lacks, or has with fewer arguments.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value, filters};

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
    let found = match value.as_str() {
        Some(text) => of_string(state, text, name, args)?,
        None if value.kind() == ValueKind::Seq && name == "index" => Some(index(value, args)?),
        None => None,
    };
    match found {
        Some(found) => Ok(found),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Methods of strings; none if another layer has it.
fn of_string(
    state: &State,
    text: &str,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Some(match name {
        "find" | "rfind" | "index" | "rindex" => {
            match (position(text, name.starts_with('r'), args)?, name.ends_with("find")) {
                (Some(at), _) => Value::from(at),
                (None, true) => Value::from(-1),
                (None, false) => return Err(not_found()),
            }
        }
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            if by.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let (before, sign, after) = match name {
                "partition" => text.split_once(by).map_or((text, "", ""), |(a, b)| (a, by, b)),
                _ => text.rsplit_once(by).map_or(("", "", text), |(a, b)| (a, by, b)),
            };
            Value::from(Tuple::from([before, sign, after].map(Value::from).to_vec()))
        }
        "rsplit" => rsplit(text, args)?,
        "removeprefix" => {
            let (end,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(end).unwrap_or(text))
        }
        "removesuffix" => {
            let (end,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(end).unwrap_or(text))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            let missing = missing(state, text, width)?;
            let left = match name {
                "ljust" => 0,
                "rjust" => missing,
                // An odd one goes to the left where the width is odd, as Python has it.
                _ => missing / 2 + (missing & width as usize & 1),
            };
            let fill = fill.unwrap_or(" ");
            Value::from([&fill.repeat(left), text, &fill.repeat(missing - left)].concat())
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let zeros = "0".repeat(missing(state, text, width)?);
            let sign = usize::from(text.starts_with(['+', '-']));
            Value::from([&text[..sign], &zeros, &text[sign..]].concat())
        }
        _ => return Ok(None),
    }))
}

/// Characters that `text` lacks of `width`, paid for.
fn missing(state: &State, text: &str, width: i64) -> Result<usize, Error> {
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    state.consume_fuel(missing as u64 / 16)?;
    Ok(missing)
}

/// Where, in characters, the first or last occurrence of a text is within the bounds given.
fn position(text: &str, is_last: bool, args: &[Value]) -> Result<Option<usize>, Error> {
    let (wanted, from, to): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let length = text.chars().count();
    let bound = |at: i64| {
        let at = if at < 0 { at.saturating_add(length as i64) } else { at };
        usize::try_from(at).unwrap_or(0)
    };
    let (from, to) = (from.map_or(0, bound), to.map_or(length, bound).min(length));
    if from > to {
        return Ok(None);
    }
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    let within = &text[byte(from)..byte(to)];
    let found = if is_last { within.rfind(wanted) } else { within.find(wanted) };
    Ok(found.map(|at| from + within[..at].chars().count()))
}

/// `str.rsplit`: like `split`, but where the number of cuts is bounded, the last ones.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut pieces: Vec<&str> = match by {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        Some(by) => text.rsplitn(most.saturating_add(1), by).collect(),
        None => {
            let mut rest = text.trim_end();
            let mut pieces = Vec::new();
            while !rest.is_empty() {
                let cut = if pieces.len() < most { rest.rfind(char::is_whitespace) } else { None };
                let Some(at) = cut else {
                    pieces.push(rest);
                    break;
                };
                let space = rest[at..].chars().next().map_or(0, char::len_utf8);
                pieces.push(&rest[at + space..]);
                rest = rest[..at].trim_end();
            }
            pieces
        }
    };
    pieces.reverse();
    Ok(Value::from_iter(pieces))
}

/// `list.index`.
fn index(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (Value,) = from_args(args)?;
    let at = list.try_iter()?.position(|item| item == wanted);
    at.map(Value::from).ok_or_else(not_found)
}

fn not_found() -> Error {
    Error::new(ErrorKind::InvalidOperation, "not found")
}

/// The filter `default`, whose arguments have names too.
pub fn default(
    value: Value,
    default: Option<Value>,
    boolean: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => named.get::<Option<Value>>("default_value")?.unwrap_or_else(|| Value::from("")),
    };
    let boolean = match boolean {
        Some(boolean) => boolean,
        None => named.get::<Option<bool>>("boolean")?.unwrap_or(false),
    };
    named.assert_all_used()?;
    let is_kept = !value.is_undefined() && (!boolean || value.is_true());
    Ok(if is_kept { value } else { default })
}

/// The filter `int`: what is no number is 0, or the default.
pub fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Value, Error> {
    let default = or_zero(default, &named, Value::from(0))?;
    filters::int(state, value, Some(default), base, named)
}

/// The filter `float`: what is no number is 0.0, or the default.
pub fn float(
    state: &State,
    value: &Value,
    default: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let default = or_zero(default, &named, Value::from(0.0))?;
    filters::float(state, value, Some(default), named)
}

fn or_zero(default: Option<Value>, named: &Kwargs, zero: Value) -> Result<Value, Error> {
    let named = named.get::<Option<Value>>("default")?;
    Ok(default.or(named).unwrap_or(zero))
}

/// The test `sequence`: whatever has a length and takes an index, texts and mappings included.
pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
}
