//! Making one file of a plan: blocks of rows are read and quantised side by side and written in
//! order, so that memory is bounded and the bytes depend on nothing but the plan.

use std::ops::Range;
use std::path::Path;

use super::Progress;
use super::output::TensorOutput;
use super::plan::{Content, Item, OutFile};
use super::quantize::quantize;
use crate::error::{Error, Result};
use crate::matrix::{Elements, LINE, Matrix, Scales, TILE};
use crate::store::manifest::FileEntry;
use crate::store::record::{IntLayout, Part};
use crate::store::{Catalog, MatrixSource, Tensor};
use crate::threads::Team;

/// Weights of one block.
const BLOCK_WEIGHTS: usize = 1 << 20;
/// Bytes of one block of a tensor that is copied.
const BLOCK_BYTES: usize = 8 << 20;
/// Bytes that the blocks in work may take together.
const WAVE_BYTES: usize = 512 << 20;
/// Blocks in work for each thread; more of them even out how long each takes.
const BLOCKS_PER_THREAD: usize = 4;

/// A block to make.
struct Job<'a> {
    item: &'a Item,
    block: Block<'a>,
    /// Whether it is the last one of its tensor.
    ends_item: bool,
}

enum Block<'a> {
    /// Rows of a matrix of a record.
    Tiles { part: &'a Part, source: &'a MatrixSource, rows: Range<usize> },
    /// Rows of a plain matrix.
    Bf16 { source: &'a MatrixSource, rows: Range<usize> },
    /// Bytes.
    Copy { tensor: &'a Tensor, bytes: Range<usize> },
}

/// What a job makes.
enum Made {
    Tiles(Matrix),
    Plain(Vec<u8>),
}

/// Makes `file` in `dir`.
pub fn make_file(
    dir: &Path,
    catalog: &Catalog,
    file: &OutFile,
    team: &Team,
    progress: &mut Progress,
) -> Result<FileEntry> {
    let mut output = TensorOutput::create(dir, &file.name, &file.header())?;
    let jobs: Vec<Job> = file.items.iter().flat_map(jobs_of).collect();
    // Scales of the current matrix; they follow its last line.
    let mut scales = Vec::new();
    let mut written = 0;
    for wave in waves(&jobs, team.n_threads() * BLOCKS_PER_THREAD) {
        let made = team.map(wave, usize::MAX, |job| job.run(catalog));
        for (job, made) in wave.iter().zip(made) {
            match (made?, &job.block) {
                (Made::Plain(bytes), _) => {
                    output.write(&bytes)?;
                    written += bytes.len();
                }
                (Made::Tiles(matrix), Block::Tiles { part, rows, .. }) => {
                    let Elements::Int(tiles) = &matrix.elements else {
                        unreachable!("records hold integers")
                    };
                    let lines: &[u8] = bytemuck::cast_slice(&tiles.lines);
                    output.write(lines)?;
                    scales.extend_from_slice(match &tiles.scales {
                        Scales::F32(s) => bytemuck::cast_slice(s),
                        Scales::F16(s) | Scales::Bf16(s) => bytemuck::cast_slice::<_, u8>(s),
                    });
                    written += lines.len();
                    if rows.end == part.layout.n_out {
                        scales.resize(scales.len().next_multiple_of(LINE), 0);
                        output.write(&scales)?;
                        written += scales.len();
                        scales.clear();
                    }
                }
                (Made::Tiles(_), _) => unreachable!("only records are made of tiles"),
            }
            if job.ends_item {
                output.write(&vec![0; job.item.bytes - written])?;
                output.end_tensor(&job.item.name);
                progress.add(job.item.bytes as u64)?;
                written = 0;
            } else {
                progress.add(0)?;
            }
        }
    }
    output.finish()
}

fn jobs_of(item: &Item) -> Vec<Job<'_>> {
    let blocks: Vec<Block> = match &item.content {
        Content::Record(parts, sources) => parts
            .iter()
            .zip(sources)
            .flat_map(|(part, source)| {
                let rows = row_blocks(part.layout.n_out, part.layout.n_in);
                rows.map(move |rows| Block::Tiles { part, source, rows })
            })
            .collect(),
        Content::Bf16(source) => {
            let [n_out, n_in] = source.shape();
            row_blocks(n_out, n_in).map(|rows| Block::Bf16 { source, rows }).collect()
        }
        Content::Copy(tensor) => blocks(tensor.bytes.max(1), BLOCK_BYTES)
            .map(|bytes| Block::Copy { tensor, bytes: bytes.start..bytes.end.min(tensor.bytes) })
            .collect(),
    };
    let last = blocks.len() - 1;
    let job = |(i, block)| Job { item, block, ends_item: i == last };
    blocks.into_iter().enumerate().map(job).collect()
}

/// Whole tiles of about [`BLOCK_WEIGHTS`].
fn row_blocks(n_out: usize, n_in: usize) -> impl Iterator<Item = Range<usize>> {
    blocks(n_out, (BLOCK_WEIGHTS / n_in / TILE).max(1) * TILE)
}

fn blocks(n: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(step).map(move |first| first..n.min(first + step))
}

/// Cuts `jobs` so that each piece has at most `most` and takes bounded memory.
fn waves<'a, 'b>(jobs: &'b [Job<'a>], most: usize) -> impl Iterator<Item = &'b [Job<'a>]> {
    let mut rest = jobs;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take(most).take_while(|job| {
            bytes += job.memory();
            bytes <= WAVE_BYTES
        });
        let n = fits.count().max(1).min(rest.len());
        let (wave, others) = rest.split_at(n);
        rest = others;
        (!wave.is_empty()).then_some(wave)
    })
}

impl Job<'_> {
    /// Bytes it takes at most: source, tiles of it, result.
    fn memory(&self) -> usize {
        match &self.block {
            Block::Tiles { source, rows, .. } | Block::Bf16 { source, rows } => {
                rows.len().next_multiple_of(TILE) * source.shape()[1] * (4 + 4 + 4)
            }
            Block::Copy { bytes, .. } => bytes.len(),
        }
    }

    fn run(&self, catalog: &Catalog) -> Result<Made> {
        match &self.block {
            Block::Copy { tensor, bytes } => {
                let mut out = vec![0; bytes.len()];
                catalog.read_at(tensor, bytes.start, &mut out)?;
                Ok(Made::Plain(out))
            }
            Block::Bf16 { source, rows } => {
                let matrix = source.load_rows(catalog, rows.clone())?;
                let mut out = Vec::with_capacity(2 * matrix.n_out * matrix.n_in);
                for row in 0..matrix.n_out {
                    for k in 0..matrix.n_in {
                        let value = half::bf16::from_f32(matrix.get(row, k));
                        out.extend_from_slice(&value.to_le_bytes());
                    }
                }
                Ok(Made::Plain(out))
            }
            Block::Tiles { part, source, rows } => {
                let matrix = source.load_rows(catalog, rows.clone())?;
                let IntLayout { bits, group, .. } = part.layout;
                match &matrix.elements {
                    Elements::Int(w) if (w.bits, w.group) == (bits, group) => {
                        Ok(Made::Tiles(matrix))
                    }
                    _ => quantize(&matrix, bits, group).map(Made::Tiles).ok_or_else(|| {
                        let reason = format!(
                            "matrix {} has values that are not finite or too large to quantise",
                            part.name
                        );
                        Error::bad_file(catalog.dir(), reason)
                    }),
                }
            }
        }
    }
}
