//! What a conversion makes of the weights.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::matrix::Bits;

/// What becomes of a kind of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Integers with a scale per group.
    Int(Bits),
    /// Plain bf16.
    Bf16,
    /// What they are in the source.
    Keep,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Int(Bits::Four) => "int4",
            Self::Int(Bits::Eight) => "int8",
            Self::Int(Bits::Mxfp4) => "mxfp4",
            Self::Bf16 => "bf16",
            Self::Keep => "keep",
        }
    }

    fn parse(option: &str, text: &str, among: &[Self]) -> Result<Self> {
        among.iter().copied().find(|target| target.name() == text).ok_or_else(|| {
            let names: Vec<&str> = among.iter().map(|target| target.name()).collect();
            setting(option, format!("{text:?} is not one of {}", names.join(", ")))
        })
    }
}

/// The options of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Routed experts.
    pub experts: Target,
    /// Other matrices of the layers.
    pub dense: Target,
    /// Embedding and output head.
    pub head: Target,
    /// All matrices of the layers that predict further tokens.
    pub mtp: Target,
    /// Inputs that share a scale.
    pub group: usize,
}

impl Options {
    /// Reads the options as the command line has them.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the option.
    pub fn parse(experts: &str, group: usize, dense: &str, head: &str, mtp: &str) -> Result<Self> {
        let (int4, int8) = (Target::Int(Bits::Four), Target::Int(Bits::Eight));
        let (bf16, keep) = (Target::Bf16, Target::Keep);
        if group == 0 {
            return Err(setting(
                "--group",
                "one scale for a whole row costs too much quality (text stays fluent but loses the \
                 subject; groups of 64 repair most of it for 0.25 bits a weight); use 64",
            ));
        }
        if ![32, 64, 128].contains(&group) {
            return Err(setting("--group", format!("{group} is not one of 32, 64, 128")));
        }
        Ok(Self {
            experts: Target::parse("--experts", experts, &[int4, int8])?,
            dense: Target::parse("--dense", dense, &[int8, bf16, keep])?,
            head: Target::parse("--head", head, &[int8, bf16])?,
            mtp: Target::parse("--mtp", mtp, &[int8, keep])?,
            group,
        })
    }

    /// For the manifest.
    pub fn to_json(&self) -> Value {
        json!({
            "experts": self.experts.name(),
            "group": self.group,
            "dense": self.dense.name(),
            "head": self.head.name(),
            "mtp": self.mtp.name(),
        })
    }
}

fn setting(name: &str, reason: impl Into<String>) -> Error {
    Error::Setting { name: name.to_owned(), reason: reason.into() }
}
