//! Every tensor of a model as plain floats, whatever form it is stored in.
//!
//! Owns: which tensors a model has once forms of storage are taken away. Does not own: the forms
//! (`store::source`), which values are worth keeping (`convert`).

use std::collections::BTreeMap;

use super::{Catalog, MatrixSource, Tensor};
use crate::dtype::{Dtype, widen};
use crate::error::{Error, Result};

/// A tensor that can be read as f32.
pub struct PlainTensor {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// How it is stored, as `int4-g64` or `bf16`.
    pub format: String,
    /// Whether the kernels quantise what they multiply it with.
    pub rounds_inputs: bool,
    content: Content,
}

enum Content {
    Matrix(MatrixSource),
    Floats(Dtype, Tensor),
}

impl PlainTensor {
    /// All tensors of `catalog` by the names that they have in a plain folder.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the C engine's containers, whose shapes only a configuration
    /// tells; [`Error::BadFile`] for a matrix in no known form.
    pub fn all(catalog: &Catalog) -> Result<BTreeMap<String, Self>> {
        let mut found = BTreeMap::new();
        for (name, tensor) in catalog.tensors() {
            for part in tensor.record.iter().flat_map(|parts| parts.iter()) {
                let layout = part.layout;
                let source = MatrixSource::find(catalog, &part.name, layout.n_out, layout.n_in)?;
                found.insert(format!("{}.weight", part.name), Self::matrix(source));
            }
            if name.ends_with(".weight.qs") {
                return Err(Error::Unsupported {
                    what: format!(
                        "{}: a container of the C engine as plain floats",
                        catalog.dir().display()
                    ),
                    hint: "its files do not tell the shapes of matrices".into(),
                });
            }
            let shape = match (name.strip_suffix(".weight_packed"), name.strip_suffix(".weight")) {
                (Some(matrix), _) => Some((matrix, catalog.packed_shape(matrix)?)),
                (_, Some(matrix)) if tensor.shape.len() == 2 => {
                    Some((matrix, [tensor.shape[0], tensor.shape[1]]))
                }
                _ => None,
            };
            if let Some((matrix, [n_out, n_in])) = shape {
                let source = MatrixSource::find(catalog, matrix, n_out, n_in)?;
                found.insert(format!("{matrix}.weight"), Self::matrix(source));
            }
        }
        for (name, tensor) in catalog.tensors() {
            // A matrix's scales and shape went with it; its bias did not.
            let is_side = name.rsplit_once('.').is_some_and(|(matrix, end)| {
                end.starts_with("weight") && found.contains_key(&format!("{matrix}.weight"))
            });
            if tensor.record.is_none() && !is_side {
                let dtype = catalog.float_dtype(name, tensor)?;
                let content = Content::Floats(dtype, tensor.clone());
                let (shape, format) = (tensor.shape.clone(), dtype.name().to_owned());
                let tensor = Self { shape, format, rounds_inputs: false, content };
                found.insert(name.clone(), tensor);
            }
        }
        Ok(found)
    }

    fn matrix(source: MatrixSource) -> Self {
        Self {
            shape: source.shape().to_vec(),
            format: source.format(),
            rounds_inputs: source.int_layout().is_some(),
            content: Content::Matrix(source),
        }
    }

    /// The values, row-major, exactly as the file defines them.
    ///
    /// # Errors
    /// [`Error::Io`] where reading fails, [`Error::BadFile`] for damaged bytes.
    pub fn read(&self, catalog: &Catalog) -> Result<Vec<f32>> {
        match &self.content {
            Content::Floats(dtype, tensor) => Ok(widen(*dtype, &catalog.read(tensor)?)),
            Content::Matrix(source) => {
                let matrix = source.load(catalog)?;
                let mut values = Vec::with_capacity(matrix.n_out * matrix.n_in);
                for row in 0..matrix.n_out {
                    values.extend((0..matrix.n_in).map(|k| matrix.get(row, k)));
                }
                Ok(values)
            }
        }
    }
}
