//! How fast weights go through the kernels: a model's own, in its own formats, one row at a time as
//! when an answer is generated.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cpu::{self, Isa, Memory};
use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::matrix::Matrix;
use crate::model::Survey;
use crate::store::MatrixSource;
use crate::threads::Team;

/// Bytes of matrices of a kind that are loaded: more than most caches hold, little to read.
const SAMPLE_BYTES: u64 = 128 << 20;
/// Share of the available memory that they may take.
const MOST_OF_MEMORY: u64 = 8;

/// Loads some matrices of the dense part and some of routed experts of a whole model, and multiplies
/// by them for `limit` each; a JSON object of how many bytes of weights a second, null for a kind that
/// the model has not. `progress` gets matrices loaded and to load; false ends it.
///
/// # Errors
/// [`Error::Io`] where reading fails, [`Error::Interrupted`] if `progress` said so.
pub fn measure_weights(
    survey: &Survey,
    threads: Option<usize>,
    limit: Duration,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Value> {
    let team = Team::new(threads.unwrap_or_else(cpu::n_threads));
    let kernels = Kernels::new(Isa::detect());
    let model = survey.model.as_ref();
    let experts = model.into_iter().flat_map(|model| &model.experts);
    let experts: Vec<_> =
        experts.flat_map(|expert| [&expert.gate, &expert.up, &expert.down]).collect();
    let mut rates = [Value::Null, Value::Null];
    for (rate, sources) in rates.iter_mut().zip([survey.layer_matrices(), experts]) {
        let matrices = sample(survey, &sources, progress)?;
        *rate = json!(bytes_per_second(&matrices, &kernels, &team, limit));
    }
    let [dense, experts] = rates;
    Ok(json!({
        "dense_bytes_per_second": dense,
        "expert_bytes_per_second": experts,
        "threads": team.n_threads(),
        "isa": kernels.isa().name(),
    }))
}

/// Matrices from all over the model, few enough to be loaded soon.
fn sample(
    survey: &Survey,
    sources: &[&MatrixSource],
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Vec<Matrix>> {
    let most = SAMPLE_BYTES.min(Memory::read().available_bytes / MOST_OF_MEMORY);
    let all: u64 = sources.iter().map(|source| source.ram_bytes() as u64).sum();
    let stride = usize::try_from(all.div_ceil(most.max(1))).unwrap_or(usize::MAX).max(1);
    let chosen: Vec<_> = sources.iter().step_by(stride).collect();
    let mut matrices = Vec::new();
    for (done, source) in chosen.iter().enumerate() {
        if !progress(done as u64, chosen.len() as u64) {
            return Err(Error::Interrupted);
        }
        matrices.push(source.load(survey.catalog())?);
    }
    Ok(matrices)
}

fn bytes_per_second(
    matrices: &[Matrix],
    kernels: &Kernels,
    team: &Team,
    limit: Duration,
) -> Option<u64> {
    let widest = matrices.iter().map(|matrix| matrix.n_in).max()?;
    let x: Vec<f32> = (0..widest).map(|i| (i % 17) as f32 - 8.0).collect();
    let multiply = |limit: Duration| {
        let (start, mut bytes) = (Instant::now(), 0);
        for matrix in matrices.iter().cycle() {
            std::hint::black_box(kernels.matmul(team, matrix, &x[..matrix.n_in]));
            bytes += matrix.bytes();
            if start.elapsed() >= limit {
                break;
            }
        }
        bytes as f64 / start.elapsed().as_secs_f64()
    };
    // First the threads wake, and the caches get what fits there.
    multiply(limit / 4);
    Some(multiply(limit) as u64)
}
