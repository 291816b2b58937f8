//! How fast weights go through the kernels: a model's own, in its own formats, one row at a time as
//! when an answer is generated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cpu::{self, Isa, Memory};
use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::matrix::Matrix;
use crate::model::Survey;
use crate::store::MatrixSource;
use crate::threads::Team;

/// Bytes of matrices of a part that are loaded, or a little more: more than most caches hold, little to read.
const SAMPLE_BYTES: u64 = 128 << 20;
/// Share of the available memory that they may take.
const MOST_OF_MEMORY: u64 = 8;

/// Loads some matrices of each shape and format of the dense part and of routed experts of a whole model,
/// and multiplies by them for `limit` each; a JSON object of how many bytes of weights a second each part
/// takes as a whole, null for one that the model has not. `progress` gets shapes loaded and to load; false
/// ends it.
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
        let kinds = sample(survey, &sources, progress)?;
        *rate = json!(bytes_per_second(&kinds, &kernels, &team, limit));
    }
    let [dense, experts] = rates;
    Ok(json!({
        "dense_bytes_per_second": dense,
        "expert_bytes_per_second": experts,
        "threads": team.n_threads(),
        "isa": kernels.isa().name(),
    }))
}

/// Matrices of one shape and format, which take the same time.
struct Kind {
    /// Of all of them.
    bytes: u64,
    /// Some of them, from all over the model.
    sample: Vec<Matrix>,
}

/// Some matrices of each kind, in proportion, few enough to be loaded soon.
fn sample(
    survey: &Survey,
    sources: &[&MatrixSource],
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Vec<Kind>> {
    let mut kinds: BTreeMap<_, Vec<&MatrixSource>> = BTreeMap::new();
    for &source in sources {
        kinds.entry((source.n_out, source.n_in, source.ram_bytes())).or_default().push(source);
    }
    let all: u64 = sources.iter().map(|source| source.ram_bytes() as u64).sum();
    let mut room = Memory::read().available_bytes / MOST_OF_MEMORY;
    let total = kinds.len() as u64;
    let mut sampled = Vec::new();
    for (done, ((_, _, one), sources)) in kinds.into_iter().enumerate() {
        if !progress(done as u64, total) {
            return Err(Error::Interrupted);
        }
        let (one, count) = (one as u64, sources.len());
        let bytes = one * count as u64;
        let share = (u128::from(SAMPLE_BYTES) * u128::from(bytes) / u128::from(all.max(1))) as u64;
        let wanted = usize::try_from(share / one.max(1)).unwrap_or(count).clamp(1, count);
        let chosen = sources.into_iter().step_by(count / wanted).take(wanted);
        let mut sample = Vec::new();
        for source in chosen {
            if one <= room {
                room -= one;
                sample.push(source.load(survey.catalog())?);
            }
        }
        sampled.push(Kind { bytes, sample });
    }
    Ok(sampled)
}

/// Bytes a second of all matrices together, of those kinds that there was room for.
fn bytes_per_second(
    kinds: &[Kind],
    kernels: &Kernels,
    team: &Team,
    limit: Duration,
) -> Option<u64> {
    let matrices = || kinds.iter().flat_map(|kind| &kind.sample);
    let widest = matrices().map(|matrix| matrix.n_in).max()?;
    let x: Vec<f32> = (0..widest).map(|i| (i % 17) as f32 - 8.0).collect();
    // Seconds, and bytes of weights, of each kind.
    let multiply = |limit: Duration| {
        let mut spent = vec![(0.0, 0); kinds.len()];
        let start = Instant::now();
        // All in turn, so that no kind stays in a cache that a model would not leave it.
        while start.elapsed() < limit {
            for (kind, (seconds, bytes)) in kinds.iter().zip(&mut spent) {
                let start = Instant::now();
                for matrix in &kind.sample {
                    std::hint::black_box(kernels.matmul(team, matrix, &x[..matrix.n_in]));
                    *bytes += matrix.bytes();
                }
                *seconds += start.elapsed().as_secs_f64();
            }
        }
        spent
    };
    // First the threads wake, and the caches get what fits there.
    multiply(limit / 4);
    let (mut seconds, mut bytes) = (0.0, 0);
    for (kind, (spent, multiplied)) in kinds.iter().zip(multiply(limit)) {
        if multiplied > 0 {
            seconds += kind.bytes as f64 / multiplied as f64 * spent;
            bytes += kind.bytes;
        }
    }
    Some((bytes as f64 / seconds) as u64)
}
