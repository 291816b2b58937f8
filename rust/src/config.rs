//! `config.json` and `generation_config.json`, read with every number checked.
//!
//! Owns: typed access and ranges, the facts all families share. Does not own: which keys a family
//! has (`model::arch`).

mod rope;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::store::{is_there, read_json};
pub use rope::{Llama3, RopeConfig, RopeScaling, Yarn};

const SEE_FAMILIES: &str = "see the list of supported families in the documentation";

/// A model's configuration file.
pub struct Config {
    path: PathBuf,
    json: Value,
    /// What `text_config` says of the text part of a model with others; it goes first.
    text: Value,
    generation: Value,
    /// Which of the two files says what ends an answer.
    eos_path: PathBuf,
}

impl Config {
    /// Reads the configuration of the model folder `dir`.
    pub fn open(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            return Err(Error::FileMissing {
                path: dir.to_owned(),
                hint: "name an existing model folder, or leave it out for the demo model".into(),
            });
        }
        let path = dir.join("config.json");
        let json = read_json(&path)?;
        if !json.is_object() {
            return Err(Error::bad_file(path, "is not a JSON object"));
        }
        let generation_path = dir.join("generation_config.json");
        let generation =
            if is_there(&generation_path) { read_json(&generation_path)? } else { Value::Null };
        let is_there_too = generation.get("eos_token_id").is_some_and(|ids| !ids.is_null());
        let eos_path = if is_there_too { generation_path } else { path.clone() };
        let text = json.get("text_config").cloned().unwrap_or_default();
        if !text.is_object() && !text.is_null() {
            return Err(Error::bad_file(path, "text_config is no object"));
        }
        let config = Self { path, json, text, generation, eos_path };
        // All families divide by a root over it. Zero makes nothing of a row of zeros.
        config.opt_number("rms_norm_eps", f64::from(f32::MIN_POSITIVE)..=1.0)?;
        Ok(config)
    }

    /// The file's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The `model_type`.
    pub fn model_type(&self) -> Result<&str> {
        self.json
            .get("model_type")
            .and_then(Value::as_str)
            .ok_or_else(|| self.refuse("model_type is missing"))
    }

    /// The value of `key`, null counting as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = |json: &'_ Value| json.get(key).is_some_and(|value| !value.is_null());
        [&self.text, &self.json].into_iter().find(|json| found(json)).map(|json| &json[key])
    }

    /// The object `key` as a configuration of its own.
    pub fn section(&self, key: &str) -> Result<Self> {
        match self.get(key) {
            Some(json @ Value::Object(_)) => Ok(Self {
                path: self.path.clone(),
                json: json.clone(),
                text: Value::Null,
                generation: Value::Null,
                eos_path: self.path.clone(),
            }),
            Some(value) => Err(self.refuse(format!("{key} is {value}; an object is expected"))),
            None => Err(self.refuse(format!("{key} is missing"))),
        }
    }

    /// The integer `key`, which must lie in `1..=max`.
    pub fn count(&self, key: &str, max: usize) -> Result<usize> {
        self.opt_count(key, max)?.ok_or_else(|| self.refuse(format!("{key} is missing")))
    }

    /// The integer `key` in `1..=max`, or none where absent.
    pub fn opt_count(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if (1..=max as u64).contains(&n) => Ok(Some(n as usize)),
            _ => {
                Err(self
                    .refuse(format!("{key} is {value}; an integer from 1 to {max} is expected")))
            }
        }
    }

    /// The integer `key` in `0..=max`, or `default` where absent.
    pub fn count_or(&self, key: &str, default: usize, max: usize) -> Result<usize> {
        match self.get(key).map(|value| (value, value.as_u64())) {
            None => Ok(default),
            Some((_, Some(n))) if n <= max as u64 => Ok(n as usize),
            Some((value, _)) => {
                Err(self.refuse(format!("{key} is {value}; an integer up to {max} is expected")))
            }
        }
    }

    /// The number `key`, finite in single precision, or `default` where absent.
    pub fn number_or(&self, key: &str, default: Option<f64>) -> Result<f64> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.refuse(format!("{key} is missing"))),
            (Some(value), _) => value
                .as_f64()
                .filter(|x| (*x as f32).is_finite())
                .ok_or_else(|| self.refuse(format!("{key} is {value}; a number is expected"))),
        }
    }

    /// The number `key` within `range`, or none where absent.
    pub fn opt_number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|x| range.contains(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.refuse(format!(
                "{key} is {value}; a number from {:e} to {:e} is expected",
                range.start(),
                range.end()
            ))),
        }
    }

    /// The boolean `key`, or `default` where absent.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.refuse(format!("{key} is {value}; true or false is expected"))),
        }
    }

    /// Refuses the configuration unless `key` is absent or equals `expected`.
    pub fn only(&self, key: &str, expected: &str) -> Result<()> {
        match self.get(key) {
            None => Ok(()),
            Some(value) if value.as_str() == Some(expected) => Ok(()),
            Some(value) => Err(Error::Unsupported {
                what: format!("{key} {value} (only {expected:?} is implemented)"),
                hint: SEE_FAMILIES.into(),
            }),
        }
    }

    /// Refuses the configuration if `key` is there with another value than null or false.
    pub fn without(&self, key: &str) -> Result<()> {
        match self.get(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(value) => Err(Error::Unsupported {
                what: format!("{key} {value}"),
                hint: SEE_FAMILIES.into(),
            }),
        }
    }

    /// The layer numbers that the list `key` holds; none where it is absent.
    pub fn indices(&self, key: &str) -> Result<Vec<usize>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().and_then(|list| {
            list.iter().map(|i| i.as_u64().and_then(|i| usize::try_from(i).ok())).collect()
        });
        list.ok_or_else(|| {
            self.refuse(format!("{key} is {value}; a list of layer numbers is expected"))
        })
    }

    /// Experts of a sparse layer, under any of the names that families have for it.
    pub fn n_experts(&self, max: usize) -> Result<Option<usize>> {
        self.first_count(&["n_routed_experts", "num_experts", "num_local_experts"], max)
    }

    /// Experts that a row takes, likewise.
    pub fn n_chosen(&self, max: usize) -> Result<Option<usize>> {
        self.first_count(&["num_experts_per_tok", "num_experts_per_token"], max)
    }

    /// Positions the model was made for, likewise.
    pub fn opt_max_positions(&self, max: usize) -> Result<Option<usize>> {
        self.first_count(&["max_position_embeddings", "model_max_length"], max)
    }

    /// Positions the model was made for.
    pub fn max_positions(&self, max: usize) -> Result<usize> {
        self.opt_max_positions(max)?
            .ok_or_else(|| self.refuse("max_position_embeddings is missing"))
    }

    fn first_count(&self, keys: &[&str], max: usize) -> Result<Option<usize>> {
        for key in keys {
            if let Some(n) = self.opt_count(key, max)? {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    /// Refuses attention that does not reach every earlier position within `ctx` tokens: a sliding
    /// window, or layers of another kind.
    pub fn full_attention(&self, ctx: usize) -> Result<()> {
        let window = if self.flag_or("use_sliding_window", true)? {
            self.count_or("sliding_window", 0, usize::MAX >> 1)?
        } else {
            0
        };
        if (1..ctx).contains(&window) {
            return Err(Error::Unsupported {
                what: format!("sliding_window {window} in a context of {ctx} tokens"),
                hint: format!("--ctx {window} or less keeps the context within the window"),
            });
        }
        if window == 0 && self.flag_or("use_sliding_window", false)? {
            return Err(self.refuse("use_sliding_window is true without a sliding_window"));
        }
        let Some(kinds) = self.get("layer_types") else { return Ok(()) };
        let full = |kind: &Value| {
            kind == "full_attention" || (kind == "sliding_attention" && window >= ctx)
        };
        if kinds.as_array().is_some_and(|kinds| kinds.iter().all(full)) {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("layer_types {kinds} (only \"full_attention\" is implemented)"),
            hint: SEE_FAMILIES.into(),
        })
    }

    /// Ids of the tokens that end an answer, of `generation_config.json` or else `config.json`.
    pub fn eos_ids(&self) -> Result<Vec<u32>> {
        let value = self
            .generation
            .get("eos_token_id")
            .filter(|value| !value.is_null())
            .or_else(|| self.get("eos_token_id"));
        let ids = match value {
            None => Some(Vec::new()),
            Some(Value::Array(ids)) => ids.iter().map(token_id).collect(),
            Some(id) => token_id(id).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.refuse_eos("eos_token_id is neither a token id nor a list of them"))
    }

    #[cfg(test)]
    pub(crate) fn from_json(json: &str) -> Self {
        Self {
            path: "config.json".into(),
            json: serde_json::from_str(json).expect("JSON"),
            text: Value::Null,
            generation: Value::Null,
            eos_path: "config.json".into(),
        }
    }

    /// An error about the file that says which tokens end an answer.
    pub fn refuse_eos(&self, reason: impl Into<String>) -> Error {
        Error::bad_file(&self.eos_path, reason)
    }

    /// An error about this file.
    pub fn refuse(&self, reason: impl Into<String>) -> Error {
        Error::bad_file(&self.path, reason)
    }
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Config {
        Config::from_json(json)
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        let c = config(r#"{"a": 0, "b": -1, "c": 2.5, "d": "4", "e": 1e30, "f": null, "g": 7}"#);
        for key in ["a", "b", "c", "d", "e", "f", "missing"] {
            let error = c.count(key, 1000).expect_err("refused").to_string();
            assert!(error.contains(key), "{error}");
        }
        assert_eq!(c.count("g", 7).expect("in range"), 7);
        assert!(c.count("g", 6).is_err());
        assert_eq!(c.opt_count("f", 5).expect("null is absent"), None);
    }

    #[test]
    fn experts_are_counted_under_any_name() {
        for key in ["n_routed_experts", "num_experts", "num_local_experts"] {
            let c = config(&format!(r#"{{"{key}": 8}}"#));
            assert_eq!(c.n_experts(8).expect("in range"), Some(8));
            assert!(c.n_experts(7).expect_err("too many").to_string().contains(key));
        }
        assert_eq!(config("{}").n_experts(8).expect("none"), None);
    }

    #[test]
    fn a_list_of_layers_is_nothing_else() {
        let indices = |list: &str| config(&format!(r#"{{"x": {list}}}"#)).indices("x");
        assert_eq!(indices("[3, 0]").expect("a list"), [3, 0]);
        assert!(indices("null").expect("absent").is_empty());
        for wrong in ["[-1]", "[0.5]", "[\"1\"]", "1", "{}"] {
            assert!(indices(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn attention_that_does_not_see_the_whole_context_is_refused_by_name() {
        let check = |json: &str| config(json).full_attention(4096);
        for fine in [
            "{}",
            r#"{"sliding_window": null}"#,
            r#"{"sliding_window": 4096, "layer_types": ["sliding_attention"]}"#,
            r#"{"sliding_window": 32, "use_sliding_window": false}"#,
            r#"{"layer_types": ["full_attention", "full_attention"]}"#,
        ] {
            assert!(check(fine).is_ok(), "{fine}");
        }
        for (wrong, name) in [
            (r#"{"sliding_window": 4095}"#, "sliding_window 4095"),
            (r#"{"sliding_window": 1, "use_sliding_window": true}"#, "sliding_window 1"),
            (r#"{"sliding_window": -1}"#, "sliding_window"),
            (r#"{"use_sliding_window": true}"#, "use_sliding_window"),
            (r#"{"use_sliding_window": "no"}"#, "use_sliding_window"),
            (r#"{"layer_types": ["full_attention", "linear_attention"]}"#, "layer_types"),
            (r#"{"layer_types": ["sliding_attention"]}"#, "layer_types"),
            (r#"{"layer_types": "full_attention"}"#, "layer_types"),
        ] {
            let error = check(wrong).expect_err("refused").to_string();
            assert!(error.contains(name), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_eps_that_divides_by_zero_is_refused_at_opening() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = |eps: &str| {
            let json = format!(r#"{{"rms_norm_eps": {eps}}}"#);
            std::fs::write(dir.path().join("config.json"), json).expect("a file");
            Config::open(dir.path())
        };
        for eps in ["0", "0.0", "-1e-5", "1e-60", "2", "1e300", "\"1e-5\"", "[1e-5]"] {
            let error = open(eps).err().expect("refused").to_string();
            assert!(error.contains("rms_norm_eps"), "{eps}: {error}");
        }
        assert!(open("1e-6").is_ok() && open("null").is_ok());
        assert!(config(r#"{"x": 1e300}"#).number_or("x", None).is_err());
    }

    #[test]
    fn the_file_that_says_what_ends_an_answer_is_the_one_blamed() {
        let dir = tempfile::tempdir().expect("a folder");
        let blamed = |config: &str, generation: &str| {
            for (name, json) in [("config.json", config), ("generation_config.json", generation)] {
                std::fs::write(dir.path().join(name), json).expect("a file");
            }
            let config = Config::open(dir.path()).expect("two files");
            let error = config.eos_ids().expect_err("refused").to_string();
            let told = [error, config.refuse_eos("").to_string()];
            told.map(|text| text.contains("generation_config.json"))
        };
        let wrong = r#"{"eos_token_id": "x"}"#;
        assert_eq!(blamed(r#"{"eos_token_id": 1}"#, wrong), [true; 2]);
        assert_eq!(blamed(wrong, r#"{"eos_token_id": null}"#), [false; 2]);
        assert_eq!(blamed(wrong, "{}"), [false; 2]);
    }

    #[test]
    fn eos_may_be_one_id_or_several() {
        assert_eq!(config(r#"{"eos_token_id": 3}"#).eos_ids().expect("one"), [3]);
        assert_eq!(config(r#"{"eos_token_id": [3, 4]}"#).eos_ids().expect("two"), [3, 4]);
        assert!(config("{}").eos_ids().expect("none").is_empty());
        assert!(config(r#"{"eos_token_id": "x"}"#).eos_ids().is_err());
    }
}
