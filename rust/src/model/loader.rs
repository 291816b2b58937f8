//! Loading a model's parts by name, with progress and with gaps listed exactly.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::Model;
use super::ahead::Ahead;
use super::attention::{Attention, Linear};
use super::decoder::{Decoder, Layer};
use super::ffn::{Ffn, Inner, SwiGlu};
use super::mtp::Mtp;
use super::survey::Findings;
use crate::config::Config;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::experts::{Activation, Biases, ExpertSource};
use crate::kv::Precision;
use crate::matrix::{Elements, Matrix, TILE};
use crate::store::{Catalog, FusedRows, MatrixSource, StackedRows, Tensor, VectorSource};

/// Largest dimension accepted from a configuration.
pub const MAX_DIM: usize = 1 << 20;
/// Most layers accepted.
pub const MAX_LAYERS: usize = 4096;
/// Most positions of a sequence accepted.
pub const MAX_POSITIONS: usize = 1 << 24;
/// Most experts of one layer accepted.
pub const MAX_EXPERTS: usize = 1 << 16;

/// What a family calls the three matrices of an expert.
pub struct PartNames {
    /// See [`crate::experts::Expert::gate`].
    pub gate: &'static str,
    /// See [`crate::experts::Expert::up`].
    pub up: &'static str,
    /// See [`crate::experts::Expert::down`].
    pub down: &'static str,
}

/// The names most families use.
pub const PROJECTIONS: PartNames =
    PartNames { gate: "gate_proj", up: "up_proj", down: "down_proj" };

/// Reads a model folder on behalf of a family.
///
/// A family's code runs more than once: to find what is missing, without reading, and to load.
/// Matrices have no elements until it loads, so it must not look into them.
pub struct Loader<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The tensors.
    pub catalog: &'a Arc<Catalog>,
    /// Positions that rotation tables are needed for, at most.
    pub max_ctx: usize,
    /// What the names of the decoder's tensors begin with.
    pub prefix: &'static str,
    /// Added to the weights of norms: 1 where files hold their difference from one.
    pub norm_offset: f32,
    /// What the family wants said of the model, one line each.
    pub notices: Vec<String>,
    pub(super) pass: Pass<'a>,
    /// Whether a layer that predicts a token more is used if there is one.
    pub(super) wants_mtp: bool,
    /// That layer, once it is loaded.
    pub(super) mtp: Option<Box<Mtp>>,
    /// Why it is not used though it is wanted.
    pub(super) mtp_fault: Option<String>,
    /// What the names of tensors begin with that are left out, and told of where they are.
    pub(super) left_out: Option<String>,
    /// Matrices (without `.weight`) and vectors that the family asked for.
    pub(super) used: HashSet<String>,
}

/// What is done with the tensors that a family asks for.
pub(super) enum Pass<'a> {
    /// The first one ends it: the configuration has been accepted.
    Config,
    /// They are looked for.
    Survey(&'a mut Findings),
    /// They are read.
    Load(&'a Ahead<'a>, &'a mut dyn FnMut(u64, u64)),
}

/// The part of a model that families assemble themselves.
pub struct Assembled {
    /// Blocks in order.
    pub layers: Vec<Layer>,
    /// Routed experts, `[sparse layers][experts]`.
    pub experts: Vec<ExpertSource>,
    /// Layer number of each sparse layer.
    pub sparse_layers: Vec<usize>,
    /// Experts of one sparse layer.
    pub n_experts: usize,
    /// Experts a row takes.
    pub top_k: usize,
}

impl<'a> Loader<'a> {
    pub(super) fn new(
        config: &'a Config,
        catalog: &'a Arc<Catalog>,
        max_ctx: usize,
        pass: Pass<'a>,
        wants_mtp: bool,
    ) -> Self {
        Self {
            config,
            catalog,
            max_ctx,
            prefix: "model",
            norm_offset: 0.0,
            notices: Vec::new(),
            pass,
            wants_mtp,
            mtp: None,
            mtp_fault: None,
            left_out: None,
            used: HashSet::new(),
        }
    }

    /// Ends a check where the configuration has been accepted.
    fn before_tensor(&self) -> Result<()> {
        if matches!(self.pass, Pass::Config) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Takes note of a tensor `name` that cannot be used, if that is what this pass is for.
    fn fault(&mut self, name: &str, error: Error) -> Result<()> {
        match &mut self.pass {
            Pass::Survey(_) if self.catalog.may_be_unread(name) => Ok(()),
            Pass::Survey(findings) => findings.fault(error),
            Pass::Config | Pass::Load(..) => Err(error),
        }
    }

    /// The matrix `name` (without `.weight`), which must have no bias.
    pub fn matrix(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<Matrix> {
        self.refuse_bias(name)?;
        self.matrix_beside_bias(name, n_out, n_in)
    }

    /// Refuses a bias of the matrix `name`, which nothing would add.
    fn refuse_bias(&self, name: &str) -> Result<()> {
        self.before_tensor()?;
        match self.catalog.get(&format!("{name}.bias")) {
            None => Ok(()),
            Some(_) => Err(Error::Unsupported {
                what: format!("the tensor {name}.bias, where the configuration asks for no bias,"),
                hint: "check that config.json belongs to these files".into(),
            }),
        }
    }

    fn matrix_beside_bias(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<Matrix> {
        self.find_matrix(name, n_out, n_in, MatrixSource::ram_bytes)
    }

    /// Parts of the matrix `name` as f32: the rows of each range, transposed if asked to.
    pub fn slices_f32(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        parts: Vec<(Range<usize>, bool)>,
    ) -> Result<Vec<Matrix>> {
        self.refuse_bias(name)?;
        let shape = |(rows, transpose): &(Range<usize>, bool)| {
            if *transpose { [n_in, rows.len()] } else { [rows.len(), n_in] }
        };
        let ram_bytes = parts.iter().map(|part| f32_bytes(shape(part))).sum();
        let whole = self.find_matrix(name, n_out, n_in, |_| ram_bytes)?;
        let slice = |part: (Range<usize>, bool)| {
            let [n_out, n_in] = shape(&part);
            let (rows, transpose) = part;
            match self.pass {
                Pass::Load(..) => whole.slice_f32(rows.start, rows.end, transpose),
                Pass::Config | Pass::Survey(_) => hollow(n_out, n_in),
            }
        };
        Ok(parts.into_iter().map(slice).collect())
    }

    /// A matrix of which `ram_bytes` are kept.
    fn find_matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        ram_bytes: impl Fn(&MatrixSource) -> usize,
    ) -> Result<Matrix> {
        self.before_tensor()?;
        self.used.insert(name.to_owned());
        if let Pass::Load(ahead, progress) = &mut self.pass {
            return ahead.take(name, &mut **progress);
        }
        match MatrixSource::find(self.catalog, name, n_out, n_in) {
            Err(error) => self.fault(name, error)?,
            Ok(source) => {
                if let Pass::Survey(findings) = &mut self.pass {
                    findings.matrix(name, ram_bytes(&source), source);
                }
            }
        }
        Ok(hollow(n_out, n_in))
    }

    /// The matrix `name` widened to f32, for parts that the numeric contract keeps in f32.
    pub fn matrix_f32(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<Matrix> {
        let ram_bytes = f32_bytes([n_out, n_in]);
        match self.finite(&format!("{name}.weight"), &[n_out, n_in], ram_bytes)? {
            None => Ok(hollow(n_out, n_in)),
            Some(values) => {
                let bytes: &[u8] = bytemuck::cast_slice(&values);
                Ok(Matrix::from_plain(Dtype::F32, bytes, n_out, n_in))
            }
        }
    }

    /// The vector `name`, widened to f32; zeros until the model is loaded.
    pub fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        self.floats(name, &[n])
    }

    /// The elements of the tensor `name`, widened to f32; zeros until the model is loaded.
    pub fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let n = shape.iter().product::<usize>();
        let values = self.finite(name, shape, n * size_of::<f32>())?;
        match (values, &mut self.pass) {
            (Some(values), _) => Ok(values),
            (None, Pass::Survey(findings)) => findings.zeros(n),
            (None, _) => Err(Error::Interrupted),
        }
    }

    /// The weights of the norm `name` (without `.weight`).
    pub fn norm(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        let weights = self.vector(&format!("{name}.weight"), n)?;
        Ok(weights.into_iter().map(|w| w + self.norm_offset).collect())
    }

    /// The convolution `name` (without `.weight`) of each channel by itself, `[channels, 1, taps]`, as
    /// `[taps][channels]`.
    pub fn conv(&mut self, name: &str, channels: usize, taps: usize) -> Result<Vec<f32>> {
        let weights = self.floats(&format!("{name}.weight"), &[channels, 1, taps])?;
        let tap = |j: usize| weights.iter().skip(j).step_by(taps);
        Ok((0..taps).flat_map(tap).copied().collect())
    }

    /// Parameters that steer choices or scale whole rows must be numbers: a NaN in a router's bias,
    /// say, would change the choice of experts without a trace.
    fn finite(
        &mut self,
        name: &str,
        shape: &[usize],
        ram_bytes: usize,
    ) -> Result<Option<Vec<f32>>> {
        self.before_tensor()?;
        self.used.insert(name.to_owned());
        let catalog = self.catalog;
        let found = catalog.find_f32(name, shape);
        let wants_values = match &mut self.pass {
            Pass::Survey(findings) => {
                if let Ok((tensor, _)) = &found {
                    findings.floats(tensor, ram_bytes);
                }
                findings.reads_values
            }
            Pass::Config | Pass::Load(..) => true,
        };
        let read = found.and_then(|(tensor, dtype)| {
            if !wants_values {
                return Ok(None);
            }
            let values = crate::dtype::widen(dtype, &catalog.read(tensor)?);
            if values.iter().all(|v| v.is_finite()) {
                return Ok(Some(values));
            }
            Err(Error::bad_file(
                catalog.path_of(tensor),
                format!("tensor {name} has values that are not finite"),
            ))
        });
        match read {
            Ok(values) => Ok(values),
            Err(error) => self.fault(name, error).map(|()| None),
        }
    }

    /// One line about tensors that the family did not ask for, if there are any.
    fn unused(&self) -> Option<String> {
        let known = |name: &str| {
            // Scales of the C engine's matrices.
            let name = name.strip_suffix(".qs").unwrap_or(name);
            self.used.contains(name)
                || self.left_out.as_ref().is_some_and(|prefix| name.starts_with(prefix))
                || name.rsplit_once('.').is_some_and(|(matrix, _)| self.used.contains(matrix))
        };
        let is_known = |name: &str, tensor: &Tensor| match &tensor.record {
            Some(parts) => parts.iter().all(|part| known(&part.name)),
            None => known(name),
        };
        let tensors = self.catalog.tensors().iter();
        let names: Vec<&String> = tensors
            .filter(|(name, tensor)| !is_known(name, tensor))
            .map(|(name, _)| name)
            .collect();
        let first = names.first()?;
        Some(format!("{} tensors of the files are not used, the first is {first}", names.len()))
    }

    /// The linear map `name`, with `name.bias` if `bias`.
    pub fn linear(&mut self, name: &str, n_out: usize, n_in: usize, bias: bool) -> Result<Linear> {
        if !bias {
            return Ok(Linear { weight: self.matrix(name, n_out, n_in)?, bias: None });
        }
        let bias = self.vector(&format!("{name}.bias"), n_out)?;
        Ok(Linear { weight: self.matrix_beside_bias(name, n_out, n_in)?, bias: Some(bias) })
    }

    /// `gate_proj`, `up_proj` and `down_proj` under `prefix`.
    pub fn swiglu(&mut self, prefix: &str, width: usize, hidden: usize) -> Result<SwiGlu> {
        Ok(SwiGlu {
            inner: Inner::Apart {
                gate: self.matrix(&format!("{prefix}.gate_proj"), width, hidden)?,
                up: self.matrix(&format!("{prefix}.up_proj"), width, hidden)?,
            },
            down: self.matrix(&format!("{prefix}.down_proj"), hidden, width)?,
        })
    }

    /// As [`Loader::swiglu`] with the rows of gate and up, one after the other, in `gate_up_proj`.
    pub fn joined_swiglu(&mut self, prefix: &str, width: usize, hidden: usize) -> Result<SwiGlu> {
        Ok(SwiGlu {
            inner: Inner::Joined(self.matrix(
                &format!("{prefix}.gate_up_proj"),
                2 * width,
                hidden,
            )?),
            down: self.matrix(&format!("{prefix}.down_proj"), hidden, width)?,
        })
    }

    /// Where the experts `prefix.0` to `prefix.{n - 1}` of one layer lie.
    ///
    /// # Errors
    /// One that lists every expert with a missing part.
    pub fn experts(
        &mut self,
        prefix: &str,
        names: &PartNames,
        n: usize,
        width: usize,
        hidden: usize,
    ) -> Result<Vec<ExpertSource>> {
        self.before_tensor()?;
        let &PartNames { gate, up, down } = names;
        let full = |e: usize, part: &str| format!("{prefix}.{e}.{part}");
        let has = |e: usize, part: &str| {
            let name = full(e, part);
            MatrixSource::exists(self.catalog, &name) || self.catalog.may_be_unread(&name)
        };
        // A configuration may claim any number of experts: work is done for those that are there.
        let there = self.catalog.numbers_below(prefix);
        let is_whole = |e: usize| {
            there.as_ref().is_none_or(|there| there.contains(&e))
                && [gate, up, down].iter().all(|part| has(e, part))
        };
        let gaps: Vec<usize> = (0..n).filter(|&e| !is_whole(e)).collect();
        if !gaps.is_empty() {
            let reason = format!("{prefix}: experts {} are missing or incomplete", ranges(&gaps));
            self.fault(prefix, Error::bad_file(self.catalog.dir(), reason))?;
            return Ok(Vec::new());
        }
        for e in 0..n {
            for part in [gate, up, down] {
                self.refuse_bias(&full(e, part))?;
                self.used.insert(full(e, part));
            }
        }
        let source = |e: usize| {
            let find = |part: &str, n_out, n_in| {
                MatrixSource::find(self.catalog, &full(e, part), n_out, n_in)
            };
            Ok(ExpertSource {
                gate: find(gate, width, hidden)?,
                up: find(up, width, hidden)?,
                down: find(down, hidden, width)?,
                biases: None,
                activation: Activation::SwiGlu,
            })
        };
        let sources: Result<Vec<ExpertSource>> = (0..n).map(source).collect();
        self.or_fault(prefix, sources)
    }

    /// The experts that were found, or none and a fault.
    fn or_fault(
        &mut self,
        prefix: &str,
        sources: Result<Vec<ExpertSource>>,
    ) -> Result<Vec<ExpertSource>> {
        match sources {
            Ok(sources) => Ok(sources),
            // Told once, not for each layer.
            Err(error @ Error::Unsupported { .. }) => Err(error),
            Err(error) => self.fault(prefix, error).map(|()| Vec::new()),
        }
    }

    /// As [`Loader::experts`] of those that share `prefix.gate_up_proj` `[n, 2 * width, hidden]`, the
    /// rows of gate first, and `prefix.down_proj` `[n, hidden, width]`.
    pub fn stacked_experts(
        &mut self,
        prefix: &str,
        n: usize,
        width: usize,
        hidden: usize,
    ) -> Result<Vec<ExpertSource>> {
        self.before_tensor()?;
        let [gate_up, down] = ["gate_up_proj", "down_proj"].map(|part| format!("{prefix}.{part}"));
        self.used.extend([gate_up.clone(), down.clone()]);
        let catalog = self.catalog;
        let find =
            |name: &str, rows, n_out, n_in| MatrixSource::of_rows(catalog, name, rows, n_out, n_in);
        let source = |expert: usize| {
            let rows = |parts, part| StackedRows { n_experts: n, expert, parts, part };
            Ok(ExpertSource {
                gate: find(&gate_up, rows(2, 0), width, hidden)?,
                up: find(&gate_up, rows(2, 1), width, hidden)?,
                down: find(&down, rows(1, 0), hidden, width)?,
                biases: None,
                activation: Activation::SwiGlu,
            })
        };
        let sources: Result<Vec<ExpertSource>> = (0..n).map(source).collect();
        self.or_fault(prefix, sources)
    }

    /// Where the `n` experts of one layer lie that share `prefix.gate_up_proj` (gate and up by
    /// turns), `prefix.down_proj` and their biases, as floats or in MXFP4.
    pub fn fused_experts(
        &mut self,
        prefix: &str,
        n: usize,
        width: usize,
        hidden: usize,
        activation: Activation,
    ) -> Result<Vec<ExpertSource>> {
        self.before_tensor()?;
        let [gate_up, down] = ["gate_up_proj", "down_proj"].map(|part| format!("{prefix}.{part}"));
        for name in [&gate_up, &down] {
            let parts = ["", "_bias", "_blocks", "_scales"];
            self.used.extend(parts.map(|end| format!("{name}{end}")));
        }
        for part in ["gate_proj", "up_proj", "down_proj"] {
            self.used.extend((0..n).map(|expert| format!("{prefix}.{expert}.{part}")));
        }
        let catalog = self.catalog;
        let matrix = |part: &str, name: &str, rows: FusedRows, n_out, n_in| {
            // A conversion takes them apart.
            let own = format!("{prefix}.{}.{part}", rows.expert);
            if MatrixSource::exists(catalog, &own) {
                MatrixSource::find(catalog, &own, n_out, n_in)
            } else {
                MatrixSource::of_fused(catalog, name, rows, n_out, n_in)
            }
        };
        let bias =
            |name: &str, rows, len| VectorSource::find(catalog, &format!("{name}_bias"), rows, len);
        let source = |expert: usize| {
            let rows = |first, step| FusedRows { n_experts: n, expert, first, step };
            Ok(ExpertSource {
                gate: matrix("gate_proj", &gate_up, rows(0, 2), width, hidden)?,
                up: matrix("up_proj", &gate_up, rows(1, 2), width, hidden)?,
                down: matrix("down_proj", &down, rows(0, 1), hidden, width)?,
                biases: Some(Biases {
                    gate: bias(&gate_up, rows(0, 2), width)?,
                    up: bias(&gate_up, rows(1, 2), width)?,
                    down: bias(&down, rows(0, 1), hidden)?,
                }),
                activation,
            })
        };
        let sources: Result<Vec<ExpertSource>> = (0..n).map(source).collect();
        self.or_fault(prefix, sources)
    }

    /// The block `prefix` around its two halves.
    pub fn block(
        &mut self,
        prefix: &str,
        hidden: usize,
        attention: Attention,
        ffn: Ffn,
    ) -> Result<Layer> {
        Ok(Layer {
            input_norm: self.norm(&format!("{prefix}.input_layernorm"), hidden)?,
            attention,
            attention_out_norm: None,
            post_norm: self.norm(&format!("{prefix}.post_attention_layernorm"), hidden)?,
            ffn,
            ffn_out_norm: None,
        })
    }

    /// Adds what all families have: embedding, final norm, head and limits.
    pub fn finish(&mut self, parts: Assembled) -> Result<Model> {
        let config = self.config;
        let hidden = config.count("hidden_size", MAX_DIM)?;
        let vocab = config.count("vocab_size", MAX_DIM * 16)?;
        let embed = self.matrix(&format!("{}.embed_tokens", self.prefix), vocab, hidden)?;
        let head = if config.flag_or("tie_word_embeddings", false)? {
            None
        } else {
            Some(self.matrix("lm_head", vocab, hidden)?)
        };
        let eos_ids = config.eos_ids()?;
        if let Some(id) = eos_ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(config
                .refuse_eos(format!("eos_token_id {id} is outside the vocabulary of {vocab}")));
        }
        let norm = self.norm(&format!("{}.norm", self.prefix), hidden)?;
        let unused = self.unused();
        let mut sparse_layers = parts.sparse_layers;
        if self.mtp.is_some() {
            sparse_layers.push(parts.layers.len());
        }
        Ok(Model {
            decoder: Decoder {
                embed,
                layers: parts.layers,
                norm,
                head,
                eps: config.number_or("rms_norm_eps", None)? as f32,
                mtp: self.mtp.take(),
            },
            experts: parts.experts,
            n_experts: parts.n_experts,
            top_k: parts.top_k,
            sparse_layers,
            max_positions: config.max_positions(MAX_POSITIONS)?,
            eos_ids,
            precision: Precision::default(),
            notices: self.notices.drain(..).chain(unused).collect(),
            catalog: Arc::clone(self.catalog),
        })
    }
}

/// A matrix without its elements.
fn hollow(n_out: usize, n_in: usize) -> Matrix {
    Matrix { n_out, n_in, elements: Elements::F32(Vec::new()) }
}

/// Bytes of a matrix `[n_out, n_in]` in f32.
fn f32_bytes([n_out, n_in]: [usize; 2]) -> usize {
    n_out.next_multiple_of(TILE) * n_in * size_of::<f32>()
}

/// Ascending numbers as people write them: `2, 5-7`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[usize]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => unreachable!("runs have members"),
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers_are_told_by_their_ends() {
        assert_eq!(ranges(&[2]), "2");
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
    }
}
