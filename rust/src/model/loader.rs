//! Loading a model's parts by name, with progress and with gaps listed exactly.

use std::collections::HashSet;
use std::sync::Arc;

use super::Model;
use super::arch::Family;
use super::attention::{Attention, Linear};
use super::decoder::{Decoder, Layer};
use super::ffn::{Ffn, Inner, SwiGlu};
use crate::config::Config;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::experts::{Activation, Biases, ExpertSource};
use crate::matrix::Matrix;
use crate::store::{Catalog, FusedRows, MatrixSource, Tensor, VectorSource};

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
pub struct Loader<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The tensors.
    pub catalog: &'a Arc<Catalog>,
    /// Positions that rotation tables are needed for, at most.
    pub max_ctx: usize,
    progress: &'a mut dyn FnMut(u64, u64),
    /// Whether to stop at the first tensor.
    config_only: bool,
    done_bytes: u64,
    dense_bytes: u64,
    /// Matrices (without `.weight`) and vectors that the family asked for.
    used: HashSet<String>,
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
    /// A loader that reports bytes done and bytes in all.
    pub fn new(
        config: &'a Config,
        catalog: &'a Arc<Catalog>,
        max_ctx: usize,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        let dense_bytes = super::dense_bytes(catalog);
        Self {
            config,
            catalog,
            max_ctx,
            progress,
            config_only: false,
            done_bytes: 0,
            dense_bytes,
            used: HashSet::new(),
        }
    }

    /// What `family` refuses from the configuration alone, for a context as short as it may be.
    ///
    /// # Errors
    /// Those that loading would give before it reads a tensor.
    pub fn check(config: &Config, catalog: &Arc<Catalog>, family: &Family) -> Result<()> {
        let mut ignore = |_, _| {};
        let mut loader = Loader::new(config, catalog, 1, &mut ignore);
        loader.config_only = true;
        match family.load(&mut loader) {
            Ok(_) | Err(Error::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends a check where the configuration has been accepted.
    fn before_tensor(&self) -> Result<()> {
        if self.config_only { Err(Error::Interrupted) } else { Ok(()) }
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
        self.before_tensor()?;
        let source = MatrixSource::find(self.catalog, name, n_out, n_in)?;
        self.used.insert(name.to_owned());
        let matrix = source.load(self.catalog)?;
        self.done_bytes += source.disk_bytes() as u64;
        (self.progress)(self.done_bytes.min(self.dense_bytes), self.dense_bytes);
        Ok(matrix)
    }

    /// The matrix `name` widened to f32, for parts that the numeric contract keeps in f32.
    pub fn matrix_f32(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<Matrix> {
        let values = self.finite(&format!("{name}.weight"), &[n_out, n_in])?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Matrix::from_plain(Dtype::F32, &bytes, n_out, n_in))
    }

    /// The vector `name`, widened to f32.
    pub fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        self.finite(name, &[n])
    }

    /// Parameters that steer choices or scale whole rows must be numbers: a NaN in a router's bias,
    /// say, would change the choice of experts without a trace.
    fn finite(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.before_tensor()?;
        let values = self.catalog.read_f32(name, shape)?;
        self.used.insert(name.to_owned());
        if values.iter().all(|v| v.is_finite()) {
            return Ok(values);
        }
        let tensor = self.catalog.require(name)?;
        Err(Error::bad_file(
            self.catalog.path_of(tensor),
            format!("tensor {name} has values that are not finite"),
        ))
    }

    /// One line about tensors that the family did not ask for, if there are any.
    fn unused(&self) -> Option<String> {
        let known = |name: &str| {
            // Scales of the C engine's matrices.
            let name = name.strip_suffix(".qs").unwrap_or(name);
            self.used.contains(name)
                || name.rsplit_once('.').is_some_and(|(matrix, _)| self.used.contains(matrix))
        };
        let is_known = |name: &str, tensor: &Tensor| match &tensor.record {
            Some(parts) => parts.iter().all(|part| self.used.contains(&part.name)),
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
        let has = |e: usize, part: &str| {
            MatrixSource::exists(self.catalog, &format!("{prefix}.{e}.{part}"))
        };
        let gaps: Vec<String> = (0..n)
            .filter(|&e| ![gate, up, down].iter().all(|part| has(e, part)))
            .map(|e| e.to_string())
            .collect();
        if !gaps.is_empty() {
            return Err(Error::bad_file(
                self.catalog.dir(),
                format!("{prefix}: experts {} are missing or incomplete", gaps.join(", ")),
            ));
        }
        for e in 0..n {
            for part in [gate, up, down] {
                self.refuse_bias(&format!("{prefix}.{e}.{part}"))?;
                self.used.insert(format!("{prefix}.{e}.{part}"));
            }
        }
        (0..n)
            .map(|e| {
                let find = |part: &str, n_out, n_in| {
                    MatrixSource::find(self.catalog, &format!("{prefix}.{e}.{part}"), n_out, n_in)
                };
                Ok(ExpertSource {
                    gate: find(gate, width, hidden)?,
                    up: find(up, width, hidden)?,
                    down: find(down, hidden, width)?,
                    biases: None,
                    activation: Activation::SwiGlu,
                })
            })
            .collect()
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
        (0..n).map(source).collect()
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
            input_norm: self.vector(&format!("{prefix}.input_layernorm.weight"), hidden)?,
            attention,
            attention_out_norm: None,
            post_norm: self.vector(&format!("{prefix}.post_attention_layernorm.weight"), hidden)?,
            ffn,
            ffn_out_norm: None,
        })
    }

    /// Adds what all families have: embedding, final norm, head and limits.
    pub fn finish(&mut self, parts: Assembled) -> Result<Model> {
        let config = self.config;
        let hidden = config.count("hidden_size", MAX_DIM)?;
        let vocab = config.count("vocab_size", MAX_DIM * 16)?;
        let embed = self.matrix("model.embed_tokens", vocab, hidden)?;
        let head = if config.flag_or("tie_word_embeddings", false)? {
            None
        } else {
            Some(self.matrix("lm_head", vocab, hidden)?)
        };
        let eos_ids = config.eos_ids()?;
        if let Some(id) = eos_ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(
                config.refuse(format!("eos_token_id {id} is outside the vocabulary of {vocab}"))
            );
        }
        let norm = self.vector("model.norm.weight", hidden)?;
        Ok(Model {
            decoder: Decoder {
                embed,
                layers: parts.layers,
                norm,
                head,
                eps: config.number_or("rms_norm_eps", None)? as f32,
            },
            experts: parts.experts,
            n_experts: parts.n_experts,
            top_k: parts.top_k,
            sparse_layers: parts.sparse_layers,
            max_positions: config.count("max_position_embeddings", MAX_POSITIONS)?,
            eos_ids,
            notices: self.unused().into_iter().collect(),
            catalog: Arc::clone(self.catalog),
        })
    }
}

/// Whether a tensor belongs to a routed expert, which is not read at loading.
pub fn is_routed_expert(name: &str) -> bool {
    name.contains(".experts.")
}
