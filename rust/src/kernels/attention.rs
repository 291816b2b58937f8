//! Kernels of softmax attention: several queries over one block of keys and values, and how what
//! they found there is added to what they found before.
//!
//! As in `generic`, every function is `inline(always)` and keeps the order of operations of `scalar`.
//! A block is read once for all queries: its keys tile by tile, its values some rows at a time.

use std::ops::Range;

use super::generic::{KV_BLOCK, Lanes, Plain, prefetch, tree_sum};
use super::{Kernels, math};
use crate::dtype::bf16_to_f32;
use crate::matrix::TILE;

/// Softmax of one query over one block or all blocks so far.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// Largest score.
    pub max: f32,
    /// Sum of e^(score - max).
    pub sum: f32,
}

impl Softmax {
    /// The state before the first block.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// The state after a score that has no value.
    pub fn sink(score: f32) -> Self {
        Self { max: score, sum: 1.0 }
    }
}

/// Keys or values as a conversation keeps them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept<'a> {
    /// As they are.
    F32(&'a [f32]),
    /// Rounded, as the upper halves of their bits.
    Bf16(&'a [u16]),
}

/// Queries and the block they meet.
#[derive(Clone)]
pub struct BlockInputs<'a> {
    /// Each `[k_dim]`.
    pub queries: &'a [&'a [f32]],
    /// Factor on the scores.
    pub scale: f32,
    /// `[tiles][k_dim][16 positions]`
    pub keys: Kept<'a>,
    /// `[positions][v_dim]`
    pub values: Kept<'a>,
    /// Positions of the block that the queries see, as if the others were not there.
    pub positions: Range<usize>,
}

/// Entry points of one level; each is safe to call only on a CPU that has the level.
pub struct Entries {
    pub attend_block: unsafe fn(BlockInputs<'_>, &mut [Softmax], &mut [f32]),
    pub merge_block: unsafe fn(Softmax, &[f32], &mut Softmax, &mut [f32]),
}

#[allow(unsafe_code, reason = "calls into functions compiled for a detected instruction set")]
impl Kernels {
    /// What each query finds in a block by itself: its softmax and the weighted sum of the values,
    /// `found` `[queries]` and `sums` `[queries][v_dim]`, whatever these hold before.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn attend_block(&self, x: BlockInputs<'_>, found: &mut [Softmax], sums: &mut [f32]) {
        // SAFETY: `Kernels::new` checked that the CPU has this table's features.
        unsafe { (self.table.attention.attend_block)(x, found, sums) }
    }

    /// Adds what a query found in a block to what it found in those before: `sums` `[v_dim]` to `acc`
    /// `[v_dim]`, which is relative to `state.max`.
    pub fn merge_block(&self, found: Softmax, sums: &[f32], state: &mut Softmax, acc: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.table.attention.merge_block)(found, sums, state, acc) }
    }
}

/// Calls `f::<R>(first, ...)` for all of `n` queries, `R` of them from `first` on at a time: up to four,
/// and one alone only where there is one.
macro_rules! few_at_a_time {
    ($n:expr, $f:ident($($argument:expr),*)) => {{
        let mut first = 0;
        while first < $n {
            let left = $n - first;
            let taken = left.div_ceil(left.div_ceil(4));
            match taken {
                4 => $f::<_, _, 4>(first, $($argument),*),
                3 => $f::<_, _, 3>(first, $($argument),*),
                2 => $f::<_, _, 2>(first, $($argument),*),
                _ => $f::<_, _, 1>(first, $($argument),*),
            }
            first += taken;
        }
    }};
}

/// See [`Kernels::attend_block`].
#[inline(always)]
pub fn attend_block(x: BlockInputs<'_>, found: &mut [Softmax], sums: &mut [f32]) {
    match (x.keys, x.values) {
        (Kept::F32(keys), Kept::F32(values)) => {
            let as_is = |x| x;
            attend(&x, Plain(keys, as_is), Plain(values, as_is), found, sums);
        }
        (Kept::Bf16(keys), Kept::Bf16(values)) => {
            attend(&x, Plain(keys, bf16_to_f32), Plain(values, bf16_to_f32), found, sums);
        }
        _ => panic!("keys and values are kept alike"),
    }
}

#[inline(always)]
fn attend<E: Copy, W: Fn(E) -> f32 + Copy>(
    x: &BlockInputs<'_>,
    keys: Plain<'_, E, W>,
    values: Plain<'_, E, W>,
    found: &mut [Softmax],
    sums: &mut [f32],
) {
    let n = x.queries.len();
    assert!(found.len() == n && sums.len().is_multiple_of(n), "results of {n} queries");
    let tiles = x.positions.start / TILE..x.positions.end.div_ceil(TILE);
    let mut p = vec![[0.0f32; KV_BLOCK]; n];
    // Several queries have chains enough for one tile to hide the latency of each, and find it in the
    // nearest cache.
    let together = if n == 1 { 4 } else { 1 };
    for tile in tiles.clone().step_by(together) {
        let tiles = tile..tiles.end.min(tile + together);
        few_at_a_time!(n, score(x, keys, tiles.clone(), &mut p));
    }
    for (p, found) in p.iter_mut().zip(found) {
        p[tiles.start * TILE..x.positions.start].fill(f32::NEG_INFINITY);
        p[x.positions.end..tiles.end * TILE].fill(f32::NEG_INFINITY);
        *found = softmax(p[tiles.start * TILE..tiles.end * TILE].as_chunks_mut().0);
    }
    sums.fill(0.0);
    for start in x.positions.clone().step_by(TOGETHER) {
        let positions = start..x.positions.end.min(start + TOGETHER);
        few_at_a_time!(n, weigh(values, positions.clone(), &p, sums));
    }
}

/// Positions whose values are added at once: a part of them that a near cache holds while all
/// queries take their share of it.
const TOGETHER: usize = 16;
/// Elements of a key by which a tile's are fetched ahead; in f32 so many are 4 KiB.
const KEYS_AHEAD: usize = 64;

/// The scaled scores of the positions of up to four `tiles` for `R` queries.
#[inline(always)]
fn score<E: Copy, W: Fn(E) -> f32 + Copy, const R: usize>(
    first: usize,
    x: &BlockInputs<'_>,
    keys: Plain<'_, E, W>,
    tiles: Range<usize>,
    p: &mut [[f32; KV_BLOCK]],
) {
    let queries: [&[f32]; R] = std::array::from_fn(|r| x.queries[first + r]);
    let mut put = |tile: usize, products: &[Lanes; R]| {
        for (p, products) in p[first..].iter_mut().zip(products) {
            p[tile * TILE..][..TILE].copy_from_slice(&products.map(|dot| dot * x.scale));
        }
    };
    if R == 1 && tiles.len() == 4 {
        for (tile, products) in
            tiles.clone().zip(&keys.chains::<4, R>(tiles.start, queries, KEYS_AHEAD))
        {
            put(tile, products);
        }
    } else {
        for tile in tiles {
            put(tile, &keys.chains::<1, R>(tile, queries, KEYS_AHEAD)[0]);
        }
    }
}

/// Turns scores into weights relative to the largest; returns that and their sum.
#[inline(always)]
fn softmax(scores: &mut [Lanes]) -> Softmax {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut largest = [f32::NEG_INFINITY; TILE];
    for tile in &*scores {
        for l in 0..TILE {
            largest[l] = larger(largest[l], tile[l]);
        }
    }
    let max = largest.into_iter().fold(f32::NEG_INFINITY, larger);
    let mut partial = [0.0f32; TILE];
    for tile in scores {
        for l in 0..TILE {
            tile[l] = math::exp(tile[l] - max);
            partial[l] += tile[l];
        }
    }
    Softmax { max, sum: tree_sum(partial) }
}

/// Goes on with the sums of `R` queries, by the values of `positions`.
#[inline(always)]
fn weigh<E: Copy, W: Fn(E) -> f32 + Copy, const R: usize>(
    first: usize,
    values: Plain<'_, E, W>,
    positions: Range<usize>,
    p: &[[f32; KV_BLOCK]],
    sums: &mut [f32],
) {
    let v_dim = sums.len() / p.len();
    let p: [&[f32]; R] = std::array::from_fn(|r| &p[first + r][positions.clone()]);
    let values = Plain(&values.0[positions.start * v_dim..positions.end * v_dim], values.1);
    let sums = &mut sums[first * v_dim..][..R * v_dim];
    let whole = v_dim / TILE * TILE;
    let mut d = 0;
    if R == 1 {
        // Several tiles in flight hide the latency of each chain.
        while d + 4 * TILE <= whole {
            lengthen::<_, _, 4, R>(p, values, v_dim, d, sums);
            d += 4 * TILE;
        }
    }
    while d < whole {
        lengthen::<_, _, 1, R>(p, values, v_dim, d, sums);
        d += TILE;
    }
    for (j, value) in values.0.chunks_exact(v_dim).enumerate() {
        for r in 0..R {
            let sums = &mut sums[r * v_dim + whole..(r + 1) * v_dim];
            for (sum, &v) in sums.iter_mut().zip(&value[whole..]) {
                *sum = values.1(v).mul_add(p[r][j], *sum);
            }
        }
    }
}

/// [`weigh`] for `T` tiles of the values' elements from element `d` on.
#[inline(always)]
fn lengthen<E: Copy, W: Fn(E) -> f32 + Copy, const T: usize, const R: usize>(
    p: [&[f32]; R],
    values: Plain<'_, E, W>,
    v_dim: usize,
    d: usize,
    sums: &mut [f32],
) {
    let tile = |r: usize, t: usize| {
        let at = r * v_dim + d + t * TILE;
        at..at + TILE
    };
    let mut acc: [[Lanes; R]; T] = std::array::from_fn(|t| {
        std::array::from_fn(|r| sums[tile(r, t)].try_into().expect("16 lanes"))
    });
    for (j, value) in values.0.chunks_exact(v_dim).enumerate() {
        for t in 0..T {
            let v: &[E; TILE] = value[tile(0, t)].try_into().expect("16 lanes");
            // These lines lie a row apart, so that the CPU does not find the next ones by itself.
            prefetch(v.as_ptr().wrapping_add(TOGETHER * v_dim));
            let v = v.map(values.1);
            for r in 0..R {
                for l in 0..TILE {
                    acc[t][r][l] = v[l].mul_add(p[r][j], acc[t][r][l]);
                }
            }
        }
    }
    for t in 0..T {
        for r in 0..R {
            sums[tile(r, t)].copy_from_slice(&acc[t][r]);
        }
    }
}

/// See [`Kernels::merge_block`].
#[inline(always)]
pub fn merge_block(found: Softmax, sums: &[f32], state: &mut Softmax, acc: &mut [f32]) {
    let max = if found.max > state.max { found.max } else { state.max };
    let (old, new) = (math::exp(state.max - max), math::exp(found.max - max));
    *state = Softmax { max, sum: state.sum.mul_add(old, found.sum * new) };
    for (acc, sum) in acc.iter_mut().zip(sums) {
        *acc = acc.mul_add(old, sum * new);
    }
}
