//! What a conversion writes: every file, tensor and byte count, from headers alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::options::{Options, Target};
use super::shared::{self, Shared};
use crate::config::Config;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::matrix::Bits;
use crate::store::record::{
    IntLayout, Part, RECORD_ALIGN, RECORDS_KEY, describe_records, record_bytes,
};
use crate::store::{Catalog, MatrixSource, Tensor};

/// Bytes after which the next file of dense tensors begins.
const DENSE_FILE_BYTES: u64 = 2 << 30;
/// Smallest group; narrower ones would spend more on scales than on weights.
const MIN_GROUP: usize = 8;

/// One tensor to write.
pub struct Item {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub content: Content,
    /// Bytes it takes, padding included.
    pub bytes: usize,
    kind: Kind,
}

/// Where a tensor comes from.
pub enum Content {
    /// Matrices that become a record.
    Record(Vec<Part>, Vec<MatrixSource>),
    /// A matrix that becomes plain bf16.
    Bf16(MatrixSource),
    /// A tensor that stays as it is.
    Copy(Tensor),
}

/// One file to write.
pub struct OutFile {
    /// Its name.
    pub name: String,
    /// Its tensors in order.
    pub items: Vec<Item>,
}

/// Everything to write but the small files.
pub struct Plan {
    /// In the order in which they are made.
    pub files: Vec<OutFile>,
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Expert,
    Dense,
    Head,
    /// Anything of the layers that predict further tokens.
    Mtp,
    /// Norms, router, biases and what the kernels need in floats.
    Other,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Expert => "routed experts",
            Self::Dense => "dense matrices",
            Self::Head => "embedding and head",
            Self::Mtp => "prediction layers",
            Self::Other => "other tensors",
        }
    }
}

impl Plan {
    /// Plans the conversion of `catalog`.
    ///
    /// # Errors
    /// A source that is converted already, an expert with a missing part, a matrix of a type that
    /// cannot be read.
    pub fn new(catalog: &Catalog, config: &Config, options: &Options) -> Result<Self> {
        let planner = Planner {
            catalog,
            options,
            layers: config.opt_count("num_hidden_layers", 1 << 20)?.unwrap_or(usize::MAX),
            shared: shared::find(catalog, config)?,
        };
        planner.refuse_unfit()?;
        let mut by_layer: BTreeMap<usize, Vec<Item>> = BTreeMap::new();
        let mut dense = Vec::new();
        for (layer, item) in planner.items()? {
            match layer {
                Some(layer) => by_layer.entry(layer).or_default().push(item),
                None => dense.push(item),
            }
        }
        let mut files = split(dense);
        for (layer, items) in by_layer {
            files.push(OutFile { name: format!("model-experts-{layer:05}.safetensors"), items });
        }
        for file in &mut files {
            file.sort();
        }
        Ok(Self { files })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.items().map(|item| item.bytes as u64).sum()
    }

    fn items(&self) -> impl Iterator<Item = &Item> {
        self.files.iter().flat_map(|file| &file.items)
    }

    /// `model.safetensors.index.json`, as Hugging Face has it.
    pub fn index(&self) -> Value {
        let map: BTreeMap<&str, &str> = self
            .files
            .iter()
            .flat_map(|file| file.items.iter().map(|item| (&*item.name, &*file.name)))
            .collect();
        json!({"metadata": {"total_size": self.bytes()}, "weight_map": map})
    }

    /// Weights, bytes and formats by kind, for people.
    pub fn summary(&self) -> Value {
        #[derive(Default)]
        struct Sum {
            weights: u64,
            bytes: u64,
            formats: BTreeMap<String, u64>,
        }
        let mut kinds: BTreeMap<Kind, Sum> = BTreeMap::new();
        for item in self.items() {
            let sum = kinds.entry(item.kind).or_default();
            sum.bytes += item.bytes as u64;
            let mut add = |weights: usize, format: String| {
                sum.weights += weights as u64;
                *sum.formats.entry(format).or_default() += 1;
            };
            match &item.content {
                Content::Record(parts, _) => {
                    for IntLayout { n_out, n_in, bits, group, .. } in parts.iter().map(|p| p.layout)
                    {
                        add(n_out * n_in, crate::store::record::format_name(bits, group));
                    }
                }
                Content::Bf16(source) => add(source.n_elements(), "bf16".into()),
                Content::Copy(tensor) => {
                    let format = format!("{:?}", tensor.dtype).to_lowercase();
                    add(tensor.shape.iter().product(), format);
                }
            }
        }
        let kinds: Vec<Value> = kinds
            .into_iter()
            .map(|(kind, Sum { weights, bytes, formats })| {
                let kind = kind.name();
                json!({"kind": kind, "weights": weights, "bytes": bytes, "formats": formats})
            })
            .collect();
        json!({"files": self.files.len(), "bytes": self.bytes(), "kinds": kinds})
    }
}

impl OutFile {
    /// Records first, so that all of them begin at aligned offsets; then wide types.
    fn sort(&mut self) {
        self.items.sort_by_key(|item| match &item.content {
            Content::Record(..) => 0,
            Content::Bf16(_) => 10 - 2,
            Content::Copy(tensor) => 10 - tensor.dtype.bitsize().div_ceil(8).min(8),
        });
    }

    /// The bytes before the first tensor, as long as [`RECORD_ALIGN`] asks for.
    pub fn header(&self) -> Vec<u8> {
        let records = self.items.iter().filter_map(|item| match &item.content {
            Content::Record(parts, _) => Some((&*item.name, &parts[..])),
            _ => None,
        });
        let records = describe_records(records);
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!({"format": "pt", RECORDS_KEY: records}));
        let mut offset = 0;
        for item in &self.items {
            let (dtype, shape) = match &item.content {
                Content::Record(..) => (safetensors::Dtype::U8, vec![item.bytes]),
                Content::Bf16(source) => (safetensors::Dtype::BF16, source.shape().to_vec()),
                Content::Copy(tensor) => (tensor.dtype, tensor.shape.clone()),
            };
            let end = offset + item.bytes;
            header.insert(
                item.name.clone(),
                json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}),
            );
            offset = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize((text.len() + 8).next_multiple_of(RECORD_ALIGN) - 8, b' ');
        [&(text.len() as u64).to_le_bytes()[..], &text].concat()
    }
}

/// Dense tensors in files of bounded size.
fn split(items: Vec<Item>) -> Vec<OutFile> {
    let mut files: Vec<OutFile> = Vec::new();
    let mut bytes = DENSE_FILE_BYTES;
    for item in items {
        if bytes >= DENSE_FILE_BYTES {
            let name = format!("model-dense-{:05}.safetensors", files.len() + 1);
            files.push(OutFile { name, items: Vec::new() });
            bytes = 0;
        }
        bytes += item.bytes as u64;
        files.last_mut().expect("one was pushed").items.push(item);
    }
    files
}

struct Planner<'a> {
    catalog: &'a Catalog,
    options: &'a Options,
    /// Layers of the model proper; those beyond predict further tokens.
    layers: usize,
    /// Experts that share tensors.
    shared: BTreeMap<String, Shared>,
}

impl Planner<'_> {
    fn refuse_unfit(&self) -> Result<()> {
        let refuse = |what: &str| {
            Err(Error::Unsupported {
                what: format!("{} as a source: {what}", self.catalog.dir().display()),
                hint: "it can be used as it is; a conversion starts from the original model".into(),
            })
        };
        for (name, tensor) in self.catalog.tensors() {
            if tensor.record.is_some() {
                return refuse("it is converted already");
            }
            if name.strip_suffix(".qs").is_some() {
                return refuse("it is a quantised container of the C engine");
            }
            let is_shared =
                name.rsplit_once('.').is_some_and(|(prefix, _)| self.shared.contains_key(prefix));
            let is_single = matrix_name(name).and_then(expert_of).is_some();
            if name.contains(".experts.") && !(is_single || is_shared) {
                return Err(Error::Unsupported {
                    what: format!("the expert tensor {name}"),
                    hint: format!(
                        "experts with {} of their own are expected",
                        EXPERT_PARTS.map(|parts| parts.join(", ")).join(" or ")
                    ),
                });
            }
        }
        Ok(())
    }

    /// All tensors to write; those of routed experts with the layer whose file they go to.
    fn items(&self) -> Result<Vec<(Option<usize>, Item)>> {
        let mut items = Vec::new();
        let mut experts: BTreeSet<(usize, &str, usize)> = BTreeSet::new();
        let mut done: BTreeSet<String> = BTreeSet::new();
        for (tensor_name, tensor) in self.catalog.tensors() {
            let Some(name) = matrix_name(tensor_name) else { continue };
            if let Some((prefix, expert)) = expert_of(name) {
                experts.insert((self.layer(name), prefix, expert));
                continue;
            }
            let (kind, target) = self.target(name);
            let is_matrix = tensor_name.ends_with(".weight_packed")
                || (tensor_name.ends_with(".weight") && tensor.shape.len() == 2);
            if target != Target::Keep && is_matrix {
                let source = self.source(name)?;
                if let Some(item) = self.matrix(name, source, kind, target) {
                    done.insert(name.to_owned());
                    items.push((None, item));
                }
            }
        }
        for (layer, prefix, expert) in experts {
            let name = format!("{prefix}.{expert}");
            if let Some(item) = self.expert(prefix, expert)? {
                done.insert(name);
                items.push((Some(layer), item));
            }
        }
        for (prefix, shared) in &self.shared {
            for expert in 0..shared.n {
                // The others have the same shapes.
                let Some(item) = self.expert(prefix, expert)? else { break };
                done.insert(prefix.clone());
                items.push((Some(self.layer(prefix)), item));
            }
        }
        for (name, tensor) in self.catalog.tensors() {
            let expert = matrix_name(name).and_then(expert_of);
            let is_done = match (expert, name.rsplit_once('.')) {
                (Some((prefix, expert)), _) => done.contains(&format!("{prefix}.{expert}")),
                // A matrix's scales and shape go with it; its bias does not.
                (None, Some((matrix, end))) => {
                    done.contains(matrix) && (end.starts_with("weight") || shared::is_weight(end))
                }
                (None, None) => false,
            };
            if !is_done {
                let layer = expert.map(|_| self.layer(name));
                let kind = self.target(matrix_name(name).unwrap_or(name)).0;
                let (bytes, content) = (tensor.bytes, Content::Copy(tensor.clone()));
                items.push((layer, Item { name: name.clone(), content, bytes, kind }));
            }
        }
        Ok(items)
    }

    /// The layer that a tensor belongs to, 0 if none; those that predict further tokens come last.
    fn layer(&self, name: &str) -> usize {
        let layer = layer_of(name).unwrap_or(0);
        if name.starts_with("mtp.") { self.layers.saturating_add(layer) } else { layer }
    }

    /// What the matrix `name` is, and what becomes of it.
    fn target(&self, name: &str) -> (Kind, Target) {
        let last = name.rsplit('.').next().unwrap_or(name);
        // The kernels take `kv_b_proj` in f32, so nothing would be saved in memory. Indexers choose
        // positions, as routers choose experts.
        let is_dense = (last.ends_with("_proj") || OTHER_DENSE.contains(&last))
            && last != "kv_b_proj"
            && !STEERING.contains(&last)
            && !name.contains(".indexer.");
        let is_head = ["lm_head", "embed_tokens"].contains(&last) || name.ends_with("_head.head");
        let is_expert = expert_of(name).is_some();
        if self.layer(name) >= self.layers {
            let target =
                if is_dense || is_head || is_expert { self.options.mtp } else { Target::Keep };
            (Kind::Mtp, target)
        } else if is_expert {
            (Kind::Expert, self.options.experts)
        } else if is_head {
            (Kind::Head, self.options.head)
        } else if is_dense {
            (Kind::Dense, self.options.dense)
        } else {
            (Kind::Other, Target::Keep)
        }
    }

    /// Finds a matrix by the shape that its files give it.
    fn source(&self, name: &str) -> Result<MatrixSource> {
        let [n_out, n_in] = match self.catalog.get(&format!("{name}.weight")) {
            Some(Tensor { shape, .. }) if shape.len() == 2 => [shape[0], shape[1]],
            Some(tensor) => {
                return Err(Error::bad_file(
                    self.catalog.path_of(tensor),
                    format!(
                        "tensor {name}.weight has shape {:?}, not two dimensions",
                        tensor.shape
                    ),
                ));
            }
            None => self.catalog.packed_shape(name)?,
        };
        MatrixSource::find(self.catalog, name, n_out, n_in)
    }

    /// The converted matrix, or none if it has to stay as it is.
    fn matrix(&self, name: &str, source: MatrixSource, kind: Kind, target: Target) -> Option<Item> {
        match target {
            Target::Keep => None,
            Target::Bf16 if source.format() == Dtype::Bf16.name() => None,
            Target::Bf16 => Some(Item {
                name: format!("{name}.weight"),
                bytes: source.n_elements() * Dtype::Bf16.bytes(),
                content: Content::Bf16(source),
                kind,
            }),
            Target::Int(bits) => {
                let part = self.part(name, &source, bits)?;
                Some(record(format!("{name}.tiles"), vec![part], vec![source], kind))
            }
        }
    }

    /// The record of one expert, or none if it has to stay as it is.
    fn expert(&self, prefix: &str, expert: usize) -> Result<Option<Item>> {
        let name = &format!("{prefix}.{expert}");
        let refuse = |reason| Err(Error::bad_file(self.catalog.dir(), reason));
        let exists = |name: &String| MatrixSource::exists(self.catalog, name);
        let of = |parts: [&str; 3]| parts.map(|part| format!("{name}.{part}"));
        let families = EXPERT_PARTS.map(of).into_iter().filter(|names| names.iter().any(exists));
        let mut families: Vec<[String; 3]> = families.collect();
        let shared = self.shared.get(prefix);
        let names = families.pop().unwrap_or_else(|| of(EXPERT_PARTS[0]));
        if !families.is_empty() || (shared.is_some() && names.iter().any(exists)) {
            return refuse(format!("expert {name} has parts by the names of two families"));
        }
        if shared.is_none()
            && let Some(missing) = names.iter().find(|name| !exists(name))
        {
            return refuse(format!("expert {name} is incomplete: {missing} is missing"));
        }
        let (kind, target) = self.target(&names[0]);
        let Target::Int(bits) = target else { return Ok(None) };
        let sources: Vec<MatrixSource> = match shared {
            Some(shared) => shared.sources(self.catalog, prefix, expert)?.into(),
            None => names.iter().map(|name| self.source(name)).collect::<Result<_>>()?,
        };
        let parts: Option<Vec<Part>> = names
            .iter()
            .zip(&sources)
            .map(|(name, source)| self.part(name, source, bits))
            .collect();
        Ok(parts.map(|parts| record(format!("{name}.tiles"), parts, sources, kind)))
    }

    /// A matrix as it will lie in a record; none if its inputs make no groups.
    fn part(&self, name: &str, source: &MatrixSource, bits: Bits) -> Option<Part> {
        let [n_out, n_in] = source.shape();
        let group = greatest_common_divisor(n_in, self.options.group);
        if group < MIN_GROUP {
            return None;
        }
        // Integers that are stored like this already keep their scales.
        let scales = match source.int_layout() {
            Some(layout) if (layout.bits, layout.group) == (bits, group) => layout.scales,
            _ => Dtype::F16,
        };
        let layout = IntLayout { n_out, n_in, bits, group, scales };
        Some(Part { name: name.to_owned(), layout })
    }
}

/// Matrices of attention that are converted though their names do not end in `_proj`.
const OTHER_DENSE: [&str; 4] = ["kv_a_proj_with_mqa", "in_proj_qkvz", "in_proj_qkv", "in_proj_z"];

/// Small matrices that say what a recurrent state keeps: an error of theirs lasts.
const STEERING: [&str; 3] = ["b_proj", "f_a_proj", "f_b_proj"];

/// What families call the gate, up and down matrices of an expert.
const EXPERT_PARTS: [[&str; 3]; 2] = [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]];

fn record(name: String, parts: Vec<Part>, sources: Vec<MatrixSource>, kind: Kind) -> Item {
    let bytes = record_bytes(&parts);
    Item { name, content: Content::Record(parts, sources), bytes, kind }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The matrix that a tensor is the weight of.
fn matrix_name(tensor: &str) -> Option<&str> {
    let (name, end) = tensor.rsplit_once('.')?;
    end.starts_with("weight").then_some(name)
}

/// `prefix.experts` and number of the routed expert that the matrix `name` belongs to.
fn expert_of(name: &str) -> Option<(&str, usize)> {
    let (expert, part) = name.rsplit_once('.')?;
    let (prefix, number) = expert.rsplit_once('.')?;
    let known = EXPERT_PARTS.as_flattened().contains(&part);
    (known && prefix.ends_with(".experts")).then_some((prefix, number.parse().ok()?))
}

/// Number of the layer that a tensor belongs to.
fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}
