//! Everything that is in the way of running a model, found by the code that runs it.
//!
//! Owns: which findings there are. Does not own: what is wrong with a file (`store`, `config`,
//! `model`, `tokenizer` say that), what fits in memory (`runner`).

mod contents;
mod disk;
mod placement;
mod weights;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use contents::check_contents;
pub use disk::measure_disk;
pub use weights::measure_weights;

use crate::cpu::{self, Isa};
use crate::engine::{check_vocabulary, load_tokenizer};
use crate::error::{Error, one_line};
use crate::model::Survey;
use crate::runner::{DEFAULT_CTX, RunnerOptions};
use crate::store::Catalog;

/// What to do about a file that cannot be used, where nothing better is known.
const GET_AGAIN: &str = "get this file again from where the model came from";

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The model cannot be run.
    Error,
    /// It can, but not as it should.
    Warning,
    /// Good to know.
    Note,
}

/// One line about the model or the machine.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What there is, and where.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Finding {
    /// What the engine refuses, in its own words.
    pub fn of(error: &Error) -> Self {
        let hint = error.hint().or(match error {
            Error::BadFile { .. } => Some(GET_AGAIN),
            _ => None,
        });
        Self { severity: Severity::Error, text: error.to_string(), hint: hint.map(str::to_owned) }
    }

    fn note(text: impl std::fmt::Display) -> Self {
        // It may name what a file holds.
        Self { severity: Severity::Note, text: one_line(text), hint: None }
    }

    /// As it stands in a report.
    pub fn to_json(&self) -> Value {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        json!({"severity": severity, "text": self.text, "hint": self.hint})
    }
}

/// Looks through the model folder `dir` as an engine of these options would before it reads any
/// large tensor; a JSON object with `findings`, `files`, `memory` (null where the model is not
/// whole) and `machine`.
pub fn examine(dir: &Path, options: &RunnerOptions) -> Value {
    let ctx = options.ctx.unwrap_or(DEFAULT_CTX);
    let mut errors: Vec<Error> = Vec::new();
    let mut findings = Vec::new();
    let mut memory = Value::Null;
    let mut files = Value::Null;
    let tokenizer = load_tokenizer(dir).map_err(|error| errors.push(error)).ok();
    match Survey::begin(dir, &options.more_dirs, ctx, true, options.mtp) {
        Err(error) => {
            errors.push(error);
            // Of an unknown family, the files can still be judged.
            if let Ok((catalog, faults)) = Catalog::examine(dir, &options.more_dirs) {
                files = told_files(&catalog);
                errors.extend(faults);
            }
        }
        Ok(mut survey) => {
            files = told_files(survey.catalog());
            errors.append(&mut survey.faults);
            if let Some(model) = &mut survey.model {
                model.precision = options.kv;
            }
            if let Some(model) = &survey.model {
                findings.extend(model.notices.iter().map(Finding::note));
                if let Some(tokenizer) = &tokenizer {
                    errors.extend(check_vocabulary(dir, tokenizer, model.decoder.vocab()).err());
                }
                findings.extend(mirror_findings(survey.catalog(), &options.mirrors));
                if errors.is_empty() {
                    memory =
                        placement::place(dir, &survey, model, options, &mut errors, &mut findings);
                }
            }
        }
    }
    findings.extend(errors.iter().map(Finding::of));
    findings.dedup_by(|a, b| a.text == b.text);
    findings.sort_by_key(|finding| finding.severity as u8);
    let machine = judge_machine(options, &mut findings);
    json!({
        "path": dir.display().to_string(),
        "findings": findings.iter().map(Finding::to_json).collect::<Vec<_>>(),
        "files": files,
        "memory": memory,
        "machine": machine,
    })
}

/// Which folders with copies are read from too, and which are not.
fn mirror_findings(catalog: &Catalog, dirs: &[PathBuf]) -> Vec<Finding> {
    let told = catalog.attach_mirrors(dirs).into_iter().zip(1..);
    let used: Vec<usize> = catalog.drives().iter().map(|drive| drive.number).collect();
    told.map(|(line, number)| {
        if used.contains(&number) {
            return Finding::note(line);
        }
        let hint = Some("copy the model's files there again, or leave it out".into());
        Finding { severity: Severity::Warning, text: one_line(line), hint }
    })
    .collect()
}

fn told_files(catalog: &Catalog) -> Value {
    let bytes = |routed: bool| -> u64 {
        let tensors = catalog.tensors().values().filter(|tensor| tensor.routed == routed);
        tensors.map(|tensor| tensor.bytes as u64).sum()
    };
    let with_digest = catalog.tensors().values().filter(|tensor| catalog.has_digest(tensor));
    json!({
        "shards": catalog.n_shards(),
        "tensors": catalog.tensors().len(),
        "tensors_with_hash": with_digest.count(),
        "dense_bytes": bytes(false),
        "expert_bytes": bytes(true),
    })
}

fn judge_machine(options: &RunnerOptions, findings: &mut Vec<Finding>) -> Value {
    let isa = options.isa.unwrap_or_else(Isa::detect);
    if isa == Isa::Scalar && cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        findings.push(Finding {
            severity: Severity::Warning,
            text: "no vector instructions are used, which is many times slower".into(),
            hint: Some("use a CPU with AVX2 or NEON, and leave COLIBRI_ISA unset".into()),
        });
    }
    json!({
        "cpu": cpu::cpu_name(),
        "isa": isa.name(),
        "threads": options.threads.unwrap_or_else(cpu::n_threads),
        "threads_allowed": cpu::n_threads(),
    })
}
