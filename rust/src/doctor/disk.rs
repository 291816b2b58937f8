//! How fast a model's own files are read, in the pieces that the engine reads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cpu;
use crate::error::{Error, Result};
use crate::experts::reader::THREADS;
use crate::store::{Catalog, ModelPart, READ_BYTES, Tensor};

/// Time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// Most pieces that are considered.
const MAX_PIECES: usize = 1 << 17;

/// One read of the engine.
struct Piece<'a> {
    tensor: &'a Tensor,
    from: usize,
    bytes: usize,
}

/// Reads experts in random order, or a dense model's tensors, for at most `limit`; a JSON object with
/// `pieces_of` and how many bytes per second, of all drives together where there are mirrors, and what
/// came from each of these. `progress` gets milliseconds done and in all, at least
/// once; false ends it.
///
/// What the system keeps in memory of each piece is dropped before, where the file system lets one.
///
/// # Errors
/// [`Error::Io`] where reading fails, [`Error::Interrupted`] if `progress` said so.
pub fn measure_disk(
    catalog: &Catalog,
    limit: Duration,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Value> {
    for part in [ModelPart::Dense, ModelPart::Experts] {
        catalog.read_past_cache(part, true);
    }
    let has_experts = catalog.tensors().values().any(|tensor| tensor.routed);
    let mut pieces = pieces(catalog, has_experts);
    shuffle(&mut pieces);
    let (next, done, nanoseconds) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(1));
    let start = Instant::now();
    let is_over = || start.elapsed() >= limit;
    let threads = if has_experts { THREADS } else { cpu::n_threads().clamp(2, 16) };
    let read = || -> Result<()> {
        let mut buffer = Vec::new();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if is_over() {
                break;
            }
            buffer.resize(piece.bytes, 0);
            catalog.forget(piece.tensor, piece.from, piece.bytes);
            catalog.read_somewhere(piece.tensor, piece.from, &mut buffer)?;
            done.fetch_add(piece.bytes as u64, Ordering::Relaxed);
            nanoseconds.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    let mut wanted = true;
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        loop {
            let elapsed = start.elapsed().min(limit).as_millis() as u64;
            if !progress(elapsed, limit.as_millis() as u64) {
                wanted = false;
                next.store(pieces.len(), Ordering::Relaxed);
            }
            if readers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            std::thread::sleep(REPORT_INTERVAL);
        }
        readers.into_iter().map(|reader| reader.join().expect("reading does not panic")).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    if !wanted {
        return Err(Error::Interrupted);
    }
    let (bytes, seconds) = (done.into_inner(), nanoseconds.into_inner() as f64 / 1e9);
    let drives: Vec<Value> = catalog
        .drives()
        .iter()
        .map(|drive| json!({"mirror": drive.number, "bytes": drive.bytes}))
        .collect();
    let sizes = pieces.iter().map(|piece| piece.bytes as u64);
    Ok(json!({
        "pieces_of": if has_experts { "experts" } else { "dense" },
        "piece_bytes": sizes.max().unwrap_or(0),
        "threads": threads,
        "bytes": bytes,
        "seconds": seconds,
        "bytes_per_second": (bytes as f64 / seconds) as u64,
        "drives": drives,
    }))
}

/// What the engine reads at once: a record, a matrix of an expert, or its share of a tensor of all
/// experts; of the dense part, pieces of large tensors.
fn pieces(catalog: &Catalog, experts: bool) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for tensor in catalog.tensors().values().filter(|tensor| tensor.routed == experts) {
        let size = match tensor.shape[..] {
            [n, _, _, ..] if experts => (tensor.bytes / n.max(1)).max(1),
            _ if experts => tensor.bytes,
            _ => READ_BYTES,
        };
        for from in (0..tensor.bytes).step_by(size.max(1)) {
            if pieces.len() < MAX_PIECES {
                pieces.push(Piece { tensor, from, bytes: size.min(tensor.bytes - from) });
            }
        }
    }
    pieces
}

/// The same order each time, so that two measurements can be compared.
fn shuffle(pieces: &mut [Piece]) {
    let mut state = 1u64;
    for i in (1..pieces.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        pieces.swap(i, (state >> 33) as usize % (i + 1));
    }
}
