//! Rotary position embedding as configurations describe it, in either spelling: `rope_parameters`,
//! or `rope_theta` with `rope_scaling`.

use serde_json::{Map, Value};

use super::{Config, SEE_FAMILIES};
use crate::error::{Error, Result};

/// Rotary position embedding as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Share of a head's components that are rotated, if the file says so.
    pub partial: Option<f64>,
    /// How wavelengths are stretched for contexts longer than the model was first trained for.
    pub scaling: RopeScaling,
}

/// See [`RopeConfig::scaling`].
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// See [`Yarn`].
    Yarn(Yarn),
    /// See [`Llama3`].
    Llama3(Llama3),
}

/// Stretching by how often a wave turns within the first context (arXiv 2309.00071).
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// By how much long waves are stretched.
    pub factor: f64,
    /// Positions of the first context.
    pub original: f64,
    /// Waves that turn more often within it are left alone.
    pub beta_fast: f64,
    /// Waves that turn less often within it are stretched by the whole factor.
    pub beta_slow: f64,
    /// Whether the bounds between them are rounded outwards to whole pairs.
    pub truncate: bool,
    /// Factor on cosines and sines.
    pub amplitude: f64,
    /// Factor on the scores of multi-head latent attention.
    pub latent_scores: f64,
}

/// Llama 3.1's stretching by wavelength.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama3 {
    /// By how much long waves are stretched.
    pub factor: f64,
    /// Waves longer than the first context over this are stretched by the whole factor.
    pub low: f64,
    /// Waves shorter than the first context over this are left alone.
    pub high: f64,
    /// Positions of the first context.
    pub original: f64,
}

/// Keys of every kind of rotary embedding.
const COMMON: &[&str] = &["rope_type", "type", "rope_theta", "partial_rotary_factor"];
const YARN: &[&str] = &[
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
];
const LLAMA3: &[&str] =
    &["factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"];

impl Config {
    /// The rotary embedding.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a kind or key that is not implemented.
    pub fn rope(&self) -> Result<RopeConfig> {
        self.rope_of(COMMON)
    }

    /// As [`Self::rope`] where positions have three parts, which differ within images alone.
    pub fn text_rope(&self) -> Result<RopeConfig> {
        self.rope_of(&[COMMON, &["mrope_section", "mrope_interleaved"]].concat())
    }

    fn rope_of(&self, common: &[&'static str]) -> Result<RopeConfig> {
        let none = Map::new();
        let (name, fields) = match (self.get("rope_parameters"), self.get("rope_scaling")) {
            (None, None) => ("rope_parameters", &none),
            (Some(new), Some(old)) if new != old => {
                return Err(Error::Unsupported {
                    what: "rope_parameters beside another rope_scaling".into(),
                    hint: "leave one of them in config.json".into(),
                });
            }
            (Some(fields), _) => ("rope_parameters", self.object("rope_parameters", fields)?),
            (None, Some(fields)) => ("rope_scaling", self.object("rope_scaling", fields)?),
        };
        let rope = RopeFields { config: self, name, fields, common };
        let theta = match fields.get("rope_theta").or_else(|| self.get("rope_theta")) {
            None => 10_000.0,
            Some(value) => value
                .as_f64()
                .filter(|theta| *theta >= 1.0 && theta.is_finite())
                .ok_or_else(|| self.refuse(format!("rope_theta is {value}")))?,
        };
        let partial =
            match fields.get("partial_rotary_factor").or_else(|| self.get("partial_rotary_factor"))
            {
                None => None,
                Some(value) => Some(
                    value
                        .as_f64()
                        .filter(|x| *x > 0.0 && *x <= 1.0)
                        .ok_or_else(|| self.refuse(format!("partial_rotary_factor is {value}")))?,
                ),
            };
        let kind = fields.get("rope_type").or_else(|| fields.get("type"));
        let scaling = match kind.map_or(Some("default"), Value::as_str) {
            Some("default") => {
                rope.only(&[])?;
                RopeScaling::None
            }
            Some("yarn") => RopeScaling::Yarn(rope.yarn(theta)?),
            Some("llama3") => RopeScaling::Llama3(rope.llama3()?),
            _ => {
                return Err(Error::Unsupported {
                    what: format!("{name} of type {}", kind.unwrap_or(&Value::Null)),
                    hint: "\"default\", \"yarn\" and \"llama3\" are implemented".into(),
                });
            }
        };
        Ok(RopeConfig { theta, partial, scaling })
    }

    fn object<'a>(&self, key: &str, value: &'a Value) -> Result<&'a Map<String, Value>> {
        value.as_object().ok_or_else(|| self.refuse(format!("{key} is no object")))
    }
}

/// The object that describes a rotary embedding.
struct RopeFields<'a> {
    config: &'a Config,
    name: &'static str,
    fields: &'a Map<String, Value>,
    /// Keys that every kind has.
    common: &'a [&'static str],
}

impl RopeFields<'_> {
    /// Refuses keys that neither all kinds nor this one has.
    fn only(&self, own: &[&str]) -> Result<()> {
        let known = |key: &str| self.common.contains(&key) || own.contains(&key);
        match self.fields.iter().find(|(key, value)| !known(key) && !value.is_null()) {
            None => Ok(()),
            Some((key, _)) => Err(Error::Unsupported {
                what: format!("{key} in {}", self.name),
                hint: SEE_FAMILIES.into(),
            }),
        }
    }

    /// The number `key`, at least `least`.
    fn number(&self, key: &str, least: f64) -> Result<Option<f64>> {
        let Some(value) = self.fields.get(key).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        match value.as_f64().filter(|x| (least..=1e9).contains(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.config.refuse(format!(
                "{key} in {} is {value}; a number from {least:e} to 1e9 is expected",
                self.name
            ))),
        }
    }

    fn required(&self, key: &str, least: f64) -> Result<f64> {
        self.number(key, least)?
            .ok_or_else(|| self.config.refuse(format!("{key} is missing in {}", self.name)))
    }

    /// Positions of the first context; those of the model where the file does not say.
    fn original(&self) -> Result<f64> {
        let key = "original_max_position_embeddings";
        if let Some(original) = self.config.opt_count(key, 1 << 30)? {
            return Ok(original as f64);
        }
        match self.number(key, 1.0)? {
            Some(original) => Ok(original),
            None => self.max_positions(),
        }
    }

    fn max_positions(&self) -> Result<f64> {
        Ok(self.config.max_positions(1 << 30)? as f64)
    }

    fn yarn(&self, theta: f64) -> Result<Yarn> {
        self.only(YARN)?;
        if theta <= 1.0 {
            return Err(self.config.refuse(format!("rope_theta {theta} cannot be scaled")));
        }
        let original = self.original()?;
        let factor = match self.number("factor", 1.0)? {
            Some(factor) => factor,
            None => self.max_positions()? / original,
        };
        let magnitude = |scale: f64| 0.1 * scale * libm::log(factor) + 1.0;
        let given = |key: &str| Ok(self.number(key, 0.0)?.filter(|scale| *scale > 0.0));
        let (scale, all_dim): (Option<f64>, Option<f64>) =
            (given("mscale")?, given("mscale_all_dim")?);
        let amplitude = match (self.number("attention_factor", 1e-9)?, scale, all_dim) {
            (Some(factor), _, _) => factor,
            (None, Some(scale), Some(all_dim)) => magnitude(scale) / magnitude(all_dim),
            (None, _, _) => magnitude(1.0),
        };
        let truncate = match self.fields.get("truncate").filter(|value| !value.is_null()) {
            None => true,
            Some(value) => value.as_bool().ok_or_else(|| {
                self.config.refuse(format!("truncate in {} is {value}", self.name))
            })?,
        };
        Ok(Yarn {
            factor,
            original,
            beta_fast: self.number("beta_fast", 1e-9)?.unwrap_or(32.0),
            beta_slow: self.number("beta_slow", 1e-9)?.unwrap_or(1.0),
            truncate,
            amplitude,
            latent_scores: all_dim.map_or(1.0, |all_dim| magnitude(all_dim).powi(2)),
        })
    }

    fn llama3(&self) -> Result<Llama3> {
        self.only(LLAMA3)?;
        let (low, high) =
            (self.required("low_freq_factor", 1e-9)?, self.required("high_freq_factor", 1e-9)?);
        if low >= high {
            return Err(self.config.refuse(format!(
                "low_freq_factor {low} in {} is not below high_freq_factor {high}",
                self.name
            )));
        }
        Ok(Llama3 { factor: self.required("factor", 1.0)?, low, high, original: self.original()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(json: &str) -> Result<RopeConfig> {
        Config::from_json(json).rope()
    }

    #[test]
    fn both_spellings_are_read() {
        let old = r#"{"rope_theta": 1e6, "rope_scaling": null, "partial_rotary_factor": 0.5}"#;
        let new = r#"{"rope_parameters":
            {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}}"#;
        let expected = RopeConfig { theta: 1e6, partial: Some(0.5), scaling: RopeScaling::None };
        assert_eq!(rope(old).expect("old"), expected);
        assert_eq!(rope(new).expect("new"), expected);
        let scaling = |json: &str| rope(json).expect("a scaling").scaling;
        let fields = r#""factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0,
            "mscale_all_dim": 0.5, "beta_fast": 24"#;
        let old = scaling(&format!(
            r#"{{"rope_theta": 1e4, "rope_scaling": {{"type": "yarn", {fields}}}}}"#
        ));
        let new = scaling(&format!(
            r#"{{"rope_parameters": {{"rope_type": "yarn", "rope_theta": 1e4, {fields}}}}}"#
        ));
        assert_eq!(old, new);
        let m = |x: f64| 0.1 * x * 40f64.ln() + 1.0;
        let RopeScaling::Yarn(yarn) = new else { panic!("{new:?}") };
        assert_eq!((yarn.factor, yarn.original), (40.0, 4096.0));
        assert_eq!((yarn.beta_fast, yarn.beta_slow, yarn.truncate), (24.0, 1.0, true));
        assert!((yarn.amplitude - m(1.0) / m(0.5)).abs() < 1e-12);
        assert!((yarn.latent_scores - m(0.5) * m(0.5)).abs() < 1e-12);
    }

    #[test]
    fn what_yarn_leaves_out_is_derived() {
        let scaling = rope(
            r#"{"max_position_embeddings": 1024, "original_max_position_embeddings": 256,
                "rope_scaling": {"rope_type": "yarn", "truncate": false}}"#,
        );
        let RopeScaling::Yarn(yarn) = scaling.expect("a scaling").scaling else { panic!() };
        assert_eq!((yarn.factor, yarn.original, yarn.truncate), (4.0, 256.0, false));
        assert!((yarn.amplitude - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
        assert_eq!(yarn.latent_scores, 1.0);
    }

    #[test]
    fn what_is_unknown_or_wrong_is_refused_by_name() {
        for (wrong, name) in [
            (r#"{"rope_scaling": {"type": "longrope"}}"#, "longrope"),
            (r#"{"rope_scaling": {"type": 3}}"#, "rope_scaling"),
            (r#"{"rope_parameters": {"rope_type": "dynamic", "factor": 2}}"#, "dynamic"),
            (r#"{"rope_parameters": {"full_attention": {}}}"#, "full_attention"),
            (r#"{"rope_parameters": {"mrope_section": [1]}}"#, "mrope_section"),
            (r#"{"rope_scaling": {"type": "yarn", "low_freq_factor": 1}}"#, "low_freq_factor"),
            (r#"{"rope_parameters": {"rope_theta": 1}, "rope_scaling": {}}"#, "rope_scaling"),
        ] {
            let error = rope(wrong).expect_err("refused");
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(name), "{wrong}: {error}");
        }
        let llama3 = r#"{"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 64}"#;
        assert!(rope(&format!(r#"{{"rope_scaling": {llama3}}}"#)).is_ok());
        for (from, to, name) in [
            ("8", "0.5", "factor"),
            ("8", "\"8\"", "factor"),
            ("8", "1e300", "factor"),
            ("8", "null", "factor"),
            ("\"low_freq_factor\": 1", "\"low_freq_factor\": 4", "low_freq_factor"),
            ("64", "0", "original_max_position_embeddings"),
        ] {
            let json = format!(r#"{{"rope_scaling": {}}}"#, llama3.replacen(from, to, 1));
            let error = rope(&json).expect_err("refused").to_string();
            assert!(error.contains(name), "{json}: {error}");
        }
        for wrong in [
            r#"{"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}}"#,
            r#"{"rope_scaling": {"type": "yarn", "truncate": 1, "factor": 2}}"#,
            r#"{"rope_scaling": {"type": "yarn", "mscale": -1, "factor": 2}}"#,
            r#"{"rope_scaling": "yarn"}"#,
            r#"{"rope_scaling": {"type": "yarn", "factor": 2}}"#,
        ] {
            assert!(rope(wrong).is_err(), "{wrong}");
        }
    }
}
