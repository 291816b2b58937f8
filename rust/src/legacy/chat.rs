//! From a conversation to a prompt, and how its answers are drawn and end.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::model::Model;
use crate::store::{is_there, read_capped, read_json};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Temperature where neither the user nor the model suggests one.
const DEFAULT_TEMPERATURE: f64 = 0.7;
/// Probability mass drawn from where neither the user nor the model suggests one.
const DEFAULT_TOP_P: f64 = 0.9;
/// Largest template file in bytes; the compiler's own limit is smaller.
const MAX_TEMPLATE_BYTES: u64 = 64 << 20;

/// One message of a conversation. Bytes, since an answer may be cut within a character and go on.
#[derive(Clone, Debug)]
pub struct Message {
    /// `user` or `assistant`.
    pub role: &'static str,
    /// What was said.
    pub content: Vec<u8>,
}

/// What a model's folder says about conversations.
pub struct Chat {
    /// The template, or why there is none.
    template: Result<ChatTemplate, String>,
    /// Suggested temperature.
    pub temperature: f64,
    /// Suggested probability mass to draw from.
    pub top_p: f64,
}

impl Chat {
    /// Reads the small files of the model folder `dir`.
    ///
    /// A template that is missing or not valid is no error: exact prompts need none.
    ///
    /// # Errors
    /// [`Error::BadFile`] or [`Error::Io`] for a file that cannot be read.
    pub fn load(dir: &Path) -> Result<Self> {
        let tokenizer = opt_json(&dir.join("tokenizer_config.json"))?;
        let generation = opt_json(&dir.join("generation_config.json"))?;
        let template = match template_source(dir, &tokenizer)? {
            None => Err("this model has no chat template".to_owned()),
            Some(source) => {
                let [bos, eos] =
                    ["bos_token", "eos_token"].map(|name| token_text(&tokenizer[name]));
                ChatTemplate::new(&source, bos, eos).map_err(|error| error.to_string())
            }
        };
        let suggested = |name: &str, low: f64, high: f64| {
            generation[name].as_f64().filter(|value| (low..=high).contains(value))
        };
        let temperature = match generation["do_sample"] {
            Value::Bool(false) => 0.0,
            _ => suggested("temperature", 0.0, 2.0).unwrap_or(DEFAULT_TEMPERATURE),
        };
        let top_p = suggested("top_p", 1e-6, 1.0).unwrap_or(DEFAULT_TOP_P);
        Ok(Self { template, temperature, top_p })
    }

    /// Why text lines will be refused, if they will.
    pub fn fault(&self) -> Option<&str> {
        self.template.as_ref().err().map(String::as_str)
    }

    /// The tokens that ask for the next answer.
    ///
    /// # Errors
    /// [`Error::BadRequest`] without a template; [`Error::Template`] if it refuses these messages.
    pub fn prompt(&self, messages: &[Message], tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let template =
            self.template.as_ref().map_err(|reason| Error::BadRequest(reason.clone()))?;
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| {
                let content = String::from_utf8_lossy(&message.content);
                json!({"role": message.role, "content": content})
            })
            .collect();
        // Clients of this protocol show whatever comes, so thinking is not asked for.
        let text = template.render(&json!({
            "messages": messages, "add_generation_prompt": true, "enable_thinking": false,
        }))?;
        tokenizer.encode(&text, true)
    }
}

/// The full stop set: what ends a text, and whatever marks a turn.
pub fn stop_ids(model: &Model, tokenizer: &Tokenizer) -> Vec<u32> {
    model.eos_ids.iter().chain(tokenizer.special_ids()).copied().collect()
}

fn opt_json(path: &Path) -> Result<Value> {
    if is_there(path) { read_json(path) } else { Ok(Value::Null) }
}

/// The template's source: a file of its own, or a member of `tokenizer_config.json`, which may hold
/// several by name.
fn template_source(dir: &Path, tokenizer: &Value) -> Result<Option<String>> {
    let path = dir.join("chat_template.jinja");
    if is_there(&path) {
        let bytes = read_capped(&path, MAX_TEMPLATE_BYTES)?;
        let text = String::from_utf8(bytes).map_err(|_| Error::bad_file(path, "is not UTF-8"))?;
        return Ok(Some(text));
    }
    let found = match &tokenizer["chat_template"] {
        Value::Array(named) => named
            .iter()
            .find(|entry| entry["name"] == "default")
            .map_or(&Value::Null, |entry| &entry["template"]),
        found => found,
    };
    Ok(found.as_str().map(str::to_owned))
}

/// The text of a token that is given as such or as an object.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("a file");
        }
        dir
    }

    #[test]
    fn what_the_model_suggests_is_taken_within_its_range() {
        for (json, temperature, top_p) in [
            ("{}", 0.7, 0.9),
            (r#"{"temperature": 1.5, "top_p": 0.5}"#, 1.5, 0.5),
            (r#"{"temperature": 3, "top_p": 0}"#, 0.7, 0.9),
            (r#"{"temperature": "x", "top_p": null}"#, 0.7, 0.9),
            (r#"{"do_sample": false, "temperature": 1.5}"#, 0.0, 0.9),
        ] {
            let dir = folder(&[("generation_config.json", json)]);
            let chat = Chat::load(dir.path()).expect("readable");
            assert_eq!((chat.temperature, chat.top_p), (temperature, top_p), "{json}");
        }
    }

    #[test]
    fn the_template_is_found_where_models_keep_it() {
        let tokenizer = r#"{"chat_template": "b", "bos_token": {"content": "<s>"}}"#;
        let several = r#"{"chat_template": [{"name": "x", "template": "no"},
                           {"name": "default", "template": "c{{ bos_token }}"}], "bos_token": "<s>"}"#;
        for (files, text) in [
            (vec![("chat_template.jinja", "a"), ("tokenizer_config.json", tokenizer)], "a"),
            (vec![("tokenizer_config.json", tokenizer)], "b"),
            (vec![("tokenizer_config.json", several)], "c<s>"),
        ] {
            let chat = Chat::load(folder(&files).path()).expect("readable");
            let template = chat.template.expect("a template");
            assert_eq!(template.render(&json!({})).expect("rendered"), text);
        }
    }

    #[test]
    fn a_missing_or_broken_template_is_told_and_not_fatal() {
        let none = Chat::load(folder(&[]).path()).expect("readable");
        assert_eq!(none.fault(), Some("this model has no chat template"));
        let broken = folder(&[("chat_template.jinja", "{% if")]);
        let broken = Chat::load(broken.path()).expect("readable");
        assert!(broken.fault().is_some_and(|fault| fault.starts_with("chat template: ")));
        assert!(Chat::load(folder(&[("tokenizer_config.json", "{")]).path()).is_err());
    }
}
