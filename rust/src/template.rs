//! Chat templates: conversations to prompts, rendered by minijinja.
//!
//! Templates come with model files, so they are code from strangers: they reach nothing but their
//! variables, and fuel, output size, nesting and source size are limited. The engine has operations
//! that no fuel covers (joining lists, comparing what holds itself), so a server renders in a
//! process that may die of them. Owns: the environment that templates of the Hugging Face
//! `transformers` library expect. Does not own: that process, which template a model uses, or the
//! checking of messages.

mod chains;
mod date;
mod json;
mod methods;
mod python;

use crate::error::{Error, Result, one_line};
use crate::tokenizer::catch_quietly;
use minijinja::value::{Kwargs, Rest, Serde};
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value};
use std::error::Error as _;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Work one rendering may do: roughly instructions, or 64-byte units of data.
const FUEL: u64 = 2_000_000;
/// Stack to compile and render on. The engine recurses over syntax, and a loop can nest a list once
/// for every few units of fuel, to be compared, printed and released by recursion; pages that are
/// not touched cost nothing.
const STACK_BYTES: usize = 512 << 20;
/// Largest prompt in bytes.
const MAX_OUTPUT_BYTES: usize = 32 << 20;
/// Largest template in bytes.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The template's name within its environment.
const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` become `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] if the source does not parse, is too large or could nest too deeply.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Error::Template("larger than 1 MiB".to_owned()));
        }
        let source = without_generation_tags(source);
        chains::check(&source).map_err(Error::Template)?;
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| message(&error))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(|out, state, value| python::print(out, state, value));
        environment.set_unknown_method_callback(methods::method);
        // Their output grows with the square of a value's nesting, before fuel is charged for it.
        environment.remove_filter("pprint");
        environment.remove_global("debug");
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", methods::is_sequence);
        for name in ["default", "d"] {
            environment.add_filter(name, methods::default);
        }
        environment.add_filter("int", methods::int);
        environment.add_filter("float", methods::float);
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", python::string);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        for (name, token) in [("bos_token", bos), ("eos_token", eos)] {
            if let Some(token) = token {
                environment.add_global(name, token);
            }
        }
        on_large_stack(|| {
            environment.add_template_owned(NAME, source).map_err(|error| message(&error))
        })?;
        Ok(Self { environment })
    }

    /// Renders with the members of a JSON object as variables.
    ///
    /// # Errors
    /// [`Error::Template`] if the template calls `raise_exception`, fails, or exceeds a limit.
    pub fn render(&self, context: &serde_json::Value) -> Result<String> {
        if !context.is_object() {
            return Err(Error::Template("the variables are no JSON object".to_owned()));
        }
        let output = on_large_stack(|| self.render_here(context))?;
        String::from_utf8(output).map_err(|_| Error::Template("output is no UTF-8".to_owned()))
    }
}

impl ChatTemplate {
    fn render_here(&self, context: &serde_json::Value) -> Result<Vec<u8>> {
        let mut output = Capped(Vec::new());
        let template = self.environment.get_template(NAME).map_err(|error| message(&error))?;
        template
            .render_captured_to(Value::from(Serde(context)), &mut output)
            .map_err(|error| message(&error))?;
        Ok(output.0)
    }
}

/// Output up to the limit.
struct Capped(Vec<u8>);

impl std::io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(std::io::Error::other("the prompt is larger than 32 MiB"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs code of the template engine; a panic over a hostile template becomes an error.
fn on_large_stack<T: Send>(run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let failed = || Error::Template("the template engine failed".to_owned());
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || catch_quietly(run).ok_or_else(failed)?)
            .map_err(|error| Error::Template(format!("no thread to work on: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(failed()))
    })
}

/// Marks an error as raised by the template itself.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised;

/// One line that says what went wrong, and where.
fn message(error: &minijinja::Error) -> Error {
    let raised = error.source().is_some_and(<dyn std::error::Error>::is::<Raised>);
    let mut text = match error.detail() {
        Some(detail) if raised => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    if let Some(source) = error.source().filter(|_| !raised) {
        let _ = write!(text, ": {source}");
    }
    let mut line = one_line(text);
    if let Some(number) = error.line() {
        let _ = write!(line, " (line {number})");
    }
    Error::Template(line)
}

/// The source with `{% generation %}` blocks, which mark answers for training, made transparent:
/// as in `transformers`, what is set within stays within.
///
/// Whitespace control around the tags keeps its effect.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        result.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else {
            continue;
        };
        let inner = &tag[..end];
        let word = inner.trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        result.push_str(&inner.replacen(word, replacement, 1));
        rest = &tag[end..];
    }
    result.push_str(rest);
    result
}

fn raise_exception(text: &str) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, text.to_owned()).with_source(Raised))
}

/// The present time, which is UTC here: an engine has no business with the host's time zone.
fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date::strftime(format, seconds)
}

/// `json.dumps(value, ensure_ascii=False)`, with the arguments that `transformers` offers.
fn tojson(
    state: &State,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, minijinja::Error> {
    let argument = |index: usize, name: &str| -> Result<Option<Value>, minijinja::Error> {
        let value = match positional.get(index) {
            Some(value) => Some(value.clone()),
            None => named.get(name)?,
        };
        Ok(value.filter(|value| !value.is_none()))
    };
    let indent = argument(1, "indent")?;
    let separators = argument(2, "separators")?;
    let style = json::Style::new(
        argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true()),
        indent.as_ref(),
        separators.as_ref(),
        argument(3, "sort_keys")?.is_some_and(|value| value.is_true()),
    )?;
    named.assert_all_used()?;
    let text = json::dumps(state, value, &style)?;
    Ok(Value::from(text))
}

#[cfg(test)]
mod tests;
