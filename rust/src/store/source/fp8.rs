//! e4m3 matrices on disk: one scale for a block of rows and inputs, a row, or all of it.

use std::ops::Range;
use std::path::Path;

use super::super::{Catalog, Tensor, read_json};
use crate::dtype::{Dtype, widen};
use crate::error::{Error, Result};
use crate::matrix::{Matrix, TILE};

/// Rows and inputs of a block where the configuration does not say.
pub const DEFAULT_BLOCK: [usize; 2] = [128, 128];

/// `quantization_config.weight_block_size` of the configuration in `dir`, if there is one.
///
/// The last block of rows or inputs may be partial, so that shapes do not tell the size of a block.
///
/// # Errors
/// [`Error::BadFile`] for anything but two positive integers.
pub fn block_size(dir: &Path) -> Result<[usize; 2]> {
    let path = dir.join("config.json");
    if !path.exists() {
        return Ok(DEFAULT_BLOCK);
    }
    let config = read_json(&path)?;
    let size = &config["quantization_config"]["weight_block_size"];
    if size.is_null() {
        return Ok(DEFAULT_BLOCK);
    }
    let count = |i: usize| size[i].as_u64().and_then(|n| usize::try_from(n).ok());
    match (size.as_array().map(Vec::len), count(0), count(1)) {
        (Some(2), Some(rows @ 1..), Some(inputs @ 1..)) => Ok([rows, inputs]),
        _ => Err(Error::bad_file(
            path,
            format!("weight_block_size is {size}; two positive integers are expected"),
        )),
    }
}

/// Where an e4m3 matrix and its scales lie.
#[derive(Clone, Debug)]
pub struct Fp8 {
    weight: Tensor,
    scale_dtype: Dtype,
    scales: Tensor,
    /// Rows and inputs that share a scale.
    block: [usize; 2],
}

impl Fp8 {
    /// The matrix `name` whose e4m3 `weight` `[n_out, n_in]` was found.
    ///
    /// # Errors
    /// [`Error::BadFile`] for scales that are missing, or fit neither blocks, rows nor the whole.
    pub fn find(catalog: &Catalog, name: &str, weight: &Tensor) -> Result<Self> {
        let [n_out, n_in] = weight.shape[..] else { unreachable!("the shape was checked") };
        let refuse = |what: String| {
            Err(Error::bad_file(
                catalog.path_of(weight),
                format!("tensor {name}.weight is F8_E4M3 {:?} {what}", weight.shape),
            ))
        };
        let names = ["weight_scale_inv", "weight_scale"].map(|end| format!("{name}.{end}"));
        let found = names.iter().find_map(|name| Some((name, catalog.get(name)?)));
        let Some((scale_name, scales)) = found else {
            return refuse(format!("without {}; its scales are lost", names.join(" or ")));
        };
        let [rows, inputs] = catalog.fp8_block;
        let block = match scales.shape[..] {
            [] | [1] | [1, 1] => [n_out, n_in],
            [n] | [n, 1] if n == n_out => [1, n_in],
            [r, c] if [r, c] == [n_out.div_ceil(rows), n_in.div_ceil(inputs)] => {
                [rows.min(n_out), inputs.min(n_in)]
            }
            _ => {
                return refuse(format!(
                    "with {scale_name} {:?}; a scale for blocks of {rows} x {inputs}, for each \
                     row, or for all is expected",
                    scales.shape
                ));
            }
        };
        let scale_dtype = catalog.float_dtype(scale_name, scales)?;
        Ok(Self { weight: weight.clone(), scale_dtype, scales: scales.clone(), block })
    }

    /// Bytes read to load it.
    pub fn disk_bytes(&self) -> usize {
        self.weight.bytes + self.scales.bytes
    }

    /// Bytes in memory once loaded.
    pub fn ram_bytes(&self) -> usize {
        let [n_out, n_in] = self.shape();
        let blocks = n_in.div_ceil(self.block[1]);
        n_out.next_multiple_of(TILE) * (n_in + blocks * Dtype::F32.bytes())
    }

    fn shape(&self) -> [usize; 2] {
        [self.weight.shape[0], self.weight.shape[1]]
    }

    /// Reads all of it.
    pub fn load(&self, catalog: &Catalog) -> Result<Matrix> {
        let codes = catalog.read(&self.weight)?;
        Ok(self.lay_out(0..self.shape()[0], &codes, &catalog.read(&self.scales)?))
    }

    /// Reads some rows as a matrix of its own.
    pub fn load_rows(&self, catalog: &Catalog, rows: Range<usize>) -> Result<Matrix> {
        let n_in = self.shape()[1];
        let mut codes = vec![0; rows.len() * n_in];
        catalog.read_at(&self.weight, rows.start * n_in, &mut codes)?;
        Ok(self.lay_out(rows, &codes, &catalog.read(&self.scales)?))
    }

    fn lay_out(&self, rows: Range<usize>, codes: &[u8], scales: &[u8]) -> Matrix {
        let n_in = self.shape()[1];
        let [block_rows, block] = self.block;
        let scales = widen(self.scale_dtype, scales);
        let blocks = n_in.div_ceil(block);
        Matrix::from_fp8(codes, rows.len(), n_in, block, |row, b| {
            scales[(rows.start + row) / block_rows * blocks + b]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::MatrixSource;
    use super::*;
    use crate::dtype::e4m3_to_f32;
    use safetensors::Dtype::{BF16, F8_E4M3, F32, I32};
    use safetensors::tensor::{TensorView, serialize_to_file};

    /// A folder with an e4m3 matrix `m` `[n_out, n_in]` and scales 1, 2, 3...
    fn folder(
        [n_out, n_in]: [usize; 2],
        scale_name: &str,
        dtype: safetensors::Dtype,
        shape: &[usize],
        config: Option<&str>,
    ) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        let codes: Vec<u8> = (0..n_out * n_in).map(|i| (i * 5 % 127) as u8).collect();
        let scales: Vec<u8> = (0..shape.iter().product::<usize>())
            .map(|i| (i + 1) as f32)
            .flat_map(|s| match dtype {
                BF16 => half::bf16::from_f32(s).to_le_bytes().to_vec(),
                _ => s.to_le_bytes().to_vec(),
            })
            .collect();
        let weight = TensorView::new(F8_E4M3, vec![n_out, n_in], &codes).expect("codes");
        let scales = TensorView::new(dtype, shape.to_vec(), &scales).expect("scales");
        let tensors = [("m.weight", weight), (scale_name, scales)];
        serialize_to_file(tensors, None, &dir.path().join("model.safetensors")).expect("a file");
        if let Some(config) = config {
            std::fs::write(dir.path().join("config.json"), config).expect("a configuration");
        }
        dir
    }

    fn find(dir: &Path, [n_out, n_in]: [usize; 2]) -> Result<(Catalog, MatrixSource)> {
        let catalog = Catalog::open(dir)?;
        let source = MatrixSource::find(&catalog, "m", n_out, n_in)?;
        Ok((catalog, source))
    }

    #[test]
    fn every_weight_is_its_code_times_the_scale_of_its_block() {
        let small = r#"{"quantization_config": {"weight_block_size": [24, 40]}}"#;
        for (shape, name, dtype, scales, config, [rows, inputs]) in [
            ([300, 136], "m.weight_scale_inv", F32, vec![3, 2], None, [128, 128]),
            ([300, 136], "m.weight_scale_inv", BF16, vec![3, 2], Some("{}"), [128, 128]),
            ([50, 100], "m.weight_scale_inv", F32, vec![3, 3], Some(small), [24, 40]),
            ([50, 100], "m.weight_scale", F32, vec![3, 3], Some(small), [24, 40]),
            ([50, 100], "m.weight_scale", BF16, vec![50, 1], None, [1, 100]),
            ([50, 100], "m.weight_scale", F32, vec![50], None, [1, 100]),
            ([50, 100], "m.weight_scale", F32, vec![1], None, [50, 100]),
            ([50, 100], "m.weight_scale", F32, vec![], None, [50, 100]),
        ] {
            let dir = folder(shape, name, dtype, &scales, config);
            let (catalog, source) = find(dir.path(), shape).expect("found");
            let m = source.load(&catalog).expect("loaded");
            assert_eq!((source.ram_bytes(), &*source.format()), (m.bytes(), "fp8-e4m3"));
            let [n_out, n_in] = shape;
            let expected = |row: usize, k: usize| {
                let scale = row / rows * n_in.div_ceil(inputs) + k / inputs + 1;
                e4m3_to_f32(((row * n_in + k) * 5 % 127) as u8) * scale as f32
            };
            let part = source.load_rows(&catalog, 16..37).expect("rows");
            for (row, k) in (0..n_out).flat_map(|row| (0..n_in).map(move |k| (row, k))) {
                assert_eq!(m.get(row, k), expected(row, k), "{name} {scales:?}: {row}, {k}");
                if (16..37).contains(&row) {
                    assert_eq!(part.get(row - 16, k), expected(row, k), "{row}, {k}");
                }
            }
        }
    }

    #[test]
    fn scales_that_do_not_fit_are_refused_by_name() {
        for (name, dtype, scales) in [
            ("m.weight_scale_inv", F32, vec![2, 2]),
            ("m.weight_scale_inv", F32, vec![3, 1]),
            ("m.weight_scale_inv", F32, vec![2, 3]),
            ("m.weight_scale_inv", F32, vec![6]),
            ("m.weight_scale_inv", F32, vec![3, 2, 1]),
            ("m.weight_scale_inv", I32, vec![3, 2]),
            ("m.weight_scale", F32, vec![0]),
        ] {
            let dir = folder([300, 136], name, dtype, &scales, None);
            let error = find(dir.path(), [300, 136]).map(|_| ()).expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
        }
        let dir = folder([300, 136], "other", F32, &[3, 2], None);
        let error = find(dir.path(), [300, 136]).map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains("without m.weight_scale_inv or m.weight_scale"), "{error}");
    }

    #[test]
    fn sizes_of_blocks_that_are_none_are_refused() {
        for size in ["[0, 128]", "[128]", "[128, 128, 1]", "[-1, 128]", "128", "[1.5, 2]", "\"x\""]
        {
            let config = format!(r#"{{"quantization_config": {{"weight_block_size": {size}}}}}"#);
            let shape = [50, 100];
            let dir = folder(shape, "m.weight_scale_inv", F32, &[1, 1], Some(&config));
            let error = find(dir.path(), shape).map(|_| ()).expect_err("refused").to_string();
            assert!(error.contains("weight_block_size"), "{error}");
        }
        // The largest ones make a single block.
        let huge = r#"{"quantization_config": {"weight_block_size": [18446744073709551615, 18446744073709551615]}}"#;
        let dir = folder([50, 100], "m.weight_scale_inv", F32, &[1, 1], Some(huge));
        let (catalog, source) = find(dir.path(), [50, 100]).expect("found");
        assert_eq!(source.load(&catalog).expect("loaded").get(0, 1), e4m3_to_f32(5));
    }
}
