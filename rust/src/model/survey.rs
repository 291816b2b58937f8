//! What loading a model would read, take and refuse, found without reading its matrices.
//!
//! A family's own loading code finds it, so that nothing else has to know what a model consists of.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Model;
use super::ahead::Ahead;
use super::arch::{self, Family};
use super::loader::{Loader, MAX_POSITIONS, Pass};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::store::{Catalog, MatrixSource, Tensor};

/// Most faults that are collected.
const MAX_FAULTS: usize = 256;
/// Most elements of vectors that stand for missing ones: files that claim more than they hold must
/// not take memory.
const MAX_ZEROS: usize = 8 << 20;

/// What a family asked for, and what of it was not as it should be.
#[derive(Default)]
pub(super) struct Findings {
    /// Whether small tensors are read and their values looked at.
    pub(super) reads_values: bool,
    faults: Vec<Error>,
    matrices: Vec<(String, MatrixSource)>,
    read_bytes: u64,
    ram_bytes: u64,
    zeros: usize,
}

impl Findings {
    /// Takes note of a fault; many end the survey.
    pub(super) fn fault(&mut self, error: Error) -> Result<()> {
        self.faults.push(error);
        if self.faults.len() < MAX_FAULTS { Ok(()) } else { Err(Error::Interrupted) }
    }

    /// Takes note of a matrix of which `ram_bytes` are kept.
    pub(super) fn matrix(&mut self, name: &str, ram_bytes: usize, source: MatrixSource) {
        self.ram_bytes += ram_bytes as u64;
        self.read_bytes += source.disk_bytes() as u64;
        self.matrices.push((name.to_owned(), source));
    }

    /// What there is to go back to by [`Self::take_fault_since`].
    pub(super) fn mark(&self) -> Mark {
        let counts = [self.faults.len(), self.matrices.len(), self.zeros];
        Mark { counts, bytes: [self.read_bytes, self.ram_bytes] }
    }

    /// The first fault since `mark`; if there is one, all that was found since is forgotten.
    pub(super) fn take_fault_since(&mut self, mark: Mark) -> Option<Error> {
        let Mark { counts: [faults, matrices, zeros], bytes } = mark;
        let fault = self.faults.drain(faults..).next()?;
        self.matrices.truncate(matrices);
        self.zeros = zeros;
        [self.read_bytes, self.ram_bytes] = bytes;
        Some(fault)
    }

    /// Takes note of a tensor that takes `ram_bytes` as f32.
    pub(super) fn floats(&mut self, tensor: &Tensor, ram_bytes: usize) {
        self.ram_bytes += ram_bytes as u64;
        self.read_bytes += tensor.bytes as u64;
    }

    /// A vector that stands for one of `n` elements.
    pub(super) fn zeros(&mut self, n: usize) -> Result<Vec<f32>> {
        self.zeros += n;
        let is_missing = !self.faults.is_empty();
        if is_missing && self.zeros > MAX_ZEROS {
            Err(Error::Interrupted)
        } else {
            Ok(vec![0.0; n])
        }
    }
}

/// How much was found at some time.
pub(super) struct Mark {
    counts: [usize; 3],
    bytes: [u64; 2],
}

/// Whether the matrix `name` is the embedding of tokens, of which a token takes one row.
fn is_embedding(name: &str) -> bool {
    name.ends_with(".embed_tokens")
}

/// Tells that the layer that predicts further tokens is not used.
fn without_mtp(fault: &str) -> String {
    format!("the model's own layer for drafts is not used: {fault}")
}

/// A model that was looked through and can be loaded if nothing is wrong with it.
pub struct Survey {
    config: Config,
    family: &'static Family,
    catalog: Arc<Catalog>,
    max_ctx: usize,
    wants_mtp: bool,
    mtp_fault: Option<String>,
    /// What the names of tensors begin with that are left out for that.
    left_out: Option<String>,
    findings: Findings,
    /// All that is wrong with the model's files.
    pub faults: Vec<Error>,
    /// The model without its weights; none where it was not possible to go through all of it.
    pub model: Option<Model>,
}

impl Survey {
    /// Looks through the model folder `dir`, whose shards may be in the folders `more` as well, for
    /// contexts of up to `max_ctx` tokens; reads and judges small tensors too if `reads_values`, and
    /// looks for a layer that predicts further tokens if `wants_mtp`.
    ///
    /// # Errors
    /// What leaves nothing to look through: no folder, configuration or index that can be used, or an
    /// unknown family.
    pub fn begin(
        dir: &Path,
        more: &[PathBuf],
        max_ctx: usize,
        reads_values: bool,
        wants_mtp: bool,
    ) -> Result<Self> {
        let config = Config::open(dir)?;
        let family = arch::find(config.model_type()?)?;
        let (catalog, faults) = Catalog::examine(dir, more)?;
        let asks = (reads_values, wants_mtp);
        Self::of(config, family, Arc::new(catalog), faults, max_ctx, asks)
    }

    /// As [`Survey::begin`], of files that were opened before with `faults`.
    pub(super) fn of(
        config: Config,
        family: &'static Family,
        catalog: Arc<Catalog>,
        mut faults: Vec<Error>,
        max_ctx: usize,
        (reads_values, wants_mtp): (bool, bool),
    ) -> Result<Self> {
        let max_ctx = max_ctx.min(config.max_positions(MAX_POSITIONS)?);
        // What the configuration asks for matters more than what the files lack.
        let mut loader = Loader::new(&config, &catalog, max_ctx, Pass::Config, wants_mtp);
        match family.load(&mut loader) {
            Ok(_) | Err(Error::Interrupted) => {}
            Err(error) => faults.insert(0, error),
        }
        let mut findings = Findings { reads_values, ..Findings::default() };
        let (mut model, mut mtp_fault, mut left_out) = (None, None, None);
        if faults.iter().all(|fault| !matches!(fault, Error::Unsupported { .. })) {
            let pass = Pass::Survey(&mut findings);
            let mut loader = Loader::new(&config, &catalog, max_ctx, pass, wants_mtp);
            let loaded = family.load(&mut loader);
            (mtp_fault, left_out) = (loader.mtp_fault.take(), loader.left_out.take());
            match loaded {
                Ok(found) => model = Some(found),
                Err(Error::Interrupted) => {}
                // One of the configuration is known by now.
                Err(error) if faults.iter().any(|f| f.to_string() == error.to_string()) => {}
                Err(error) => faults.push(error),
            }
            faults.append(&mut findings.faults);
        }
        if let (Some(model), Some(fault)) = (&mut model, &mtp_fault) {
            model.notices.push(without_mtp(fault));
        }
        let wants_mtp = model.as_ref().is_some_and(|model: &Model| model.decoder.mtp.is_some());
        Ok(Self {
            config,
            family,
            catalog,
            max_ctx,
            wants_mtp,
            mtp_fault,
            left_out,
            findings,
            faults,
            model,
        })
    }

    /// The survey, if the model can be loaded.
    ///
    /// # Errors
    /// All that is in the way of that.
    pub fn whole(mut self) -> Result<Self> {
        Error::unless_empty(std::mem::take(&mut self.faults)).map(|()| self)
    }

    /// Files of the model.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Bytes that the dense part takes in memory.
    pub fn dense_ram_bytes(&self) -> u64 {
        self.findings.ram_bytes
    }

    /// Bytes of the dense part that computing a token of `model` reads: all, but of an embedding that
    /// is no output head.
    pub fn dense_bytes_per_token(&self, model: &Model) -> u64 {
        let mut embeddings = self.findings.matrices.iter().filter(|(name, _)| is_embedding(name));
        match embeddings.next() {
            Some((_, source)) if model.decoder.head.is_some() => {
                self.findings.ram_bytes.saturating_sub(source.ram_bytes() as u64)
            }
            _ => self.findings.ram_bytes,
        }
    }

    /// Where the dense part's matrices are, but for the embedding.
    pub fn layer_matrices(&self) -> Vec<&MatrixSource> {
        let matrices = self.findings.matrices.iter().filter(|(name, _)| !is_embedding(name));
        matrices.map(|(_, source)| source).collect()
    }

    /// Bytes of the files that loading reads.
    pub fn dense_read_bytes(&self) -> u64 {
        self.findings.read_bytes
    }

    /// Loads the dense part; `progress` gets bytes done and in all.
    ///
    /// # Errors
    /// [`Error::Io`] where reading fails, [`Error::BadFile`] for damaged bytes.
    ///
    /// # Panics
    /// If [`Survey::whole`] would fail.
    pub fn load(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Model> {
        assert!(self.faults.is_empty(), "{} is not whole", self.catalog.dir().display());
        let total = self.dense_read_bytes();
        let mut model = Ahead::run(&self.findings.matrices, &self.catalog, total, |ahead| {
            let pass = Pass::Load(ahead, &mut *progress);
            let (config, catalog) = (&self.config, &self.catalog);
            let mut loader = Loader::new(config, catalog, self.max_ctx, pass, self.wants_mtp);
            loader.left_out.clone_from(&self.left_out);
            self.family.load(&mut loader)
        })?;
        model.notices.extend(self.mtp_fault.as_deref().map(without_mtp));
        progress(total, total);
        Ok(model)
    }
}
