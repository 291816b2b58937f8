//! Numbers that a conversation keeps for its positions: as they are, or rounded to half of the bytes.

use std::ops::Range;

use crate::dtype::{bf16_to_f32, f32_to_bf16};
use crate::kernels::Kept;
use crate::matrix::TILE;

/// In what keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    /// As they are computed.
    #[default]
    F32,
    /// Rounded to bf16 when they are written, in half of the memory.
    Bf16,
}

impl Precision {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Numbers in one precision.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cells {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl Cells {
    pub(super) fn zeros(precision: Precision, n: usize) -> Self {
        match precision {
            Precision::F32 => Self::F32(vec![0.0; n]),
            Precision::Bf16 => Self::Bf16(vec![0; n]),
        }
    }

    /// None yet, and room for `n`.
    pub(super) fn with_capacity(precision: Precision, n: usize) -> Self {
        match precision {
            Precision::F32 => Self::F32(Vec::with_capacity(n)),
            Precision::Bf16 => Self::Bf16(Vec::with_capacity(n)),
        }
    }

    /// Those of `range`.
    pub(super) fn kept(&self, range: Range<usize>) -> Kept<'_> {
        match self {
            Self::F32(cells) => Kept::F32(&cells[range]),
            Self::Bf16(cells) => Kept::Bf16(&cells[range]),
        }
    }

    pub(super) fn all(&self) -> Kept<'_> {
        match self {
            Self::F32(cells) => Kept::F32(cells),
            Self::Bf16(cells) => Kept::Bf16(cells),
        }
    }

    /// Writes `x` from `at` on.
    pub(super) fn put(&mut self, at: usize, x: &[f32]) {
        match self {
            Self::F32(cells) => cells[at..at + x.len()].copy_from_slice(x),
            Self::Bf16(cells) => {
                for (cell, &x) in cells[at..at + x.len()].iter_mut().zip(x) {
                    *cell = f32_to_bf16(x);
                }
            }
        }
    }

    /// Writes `key` as position `at` of tiles `[tiles][key.len()][16 positions]` that begin at `first`.
    pub(super) fn put_in_tile(&mut self, first: usize, at: usize, key: &[f32]) {
        match self {
            Self::F32(cells) => put_in_tile(&mut cells[first..], at, key, |&x| x),
            Self::Bf16(cells) => put_in_tile(&mut cells[first..], at, key, |&x| f32_to_bf16(x)),
        }
    }

    /// Appends `n` zeros.
    pub(super) fn extend_by_zeros(&mut self, n: usize) {
        match self {
            Self::F32(cells) => cells.resize(cells.len() + n, 0.0),
            Self::Bf16(cells) => cells.resize(cells.len() + n, 0),
        }
    }

    /// Appends those of `other` in `range`.
    ///
    /// # Panics
    /// If it is of another precision.
    pub(super) fn extend(&mut self, other: &Self, range: Range<usize>) {
        match (self, other) {
            (Self::F32(cells), Self::F32(other)) => cells.extend_from_slice(&other[range]),
            (Self::Bf16(cells), Self::Bf16(other)) => cells.extend_from_slice(&other[range]),
            _ => panic!("a layer has one precision"),
        }
    }

    /// Appends the key of `len` numbers that is position `at` of the tiles of `other` that begin at
    /// `first`.
    ///
    /// # Panics
    /// If it is of another precision.
    pub(super) fn extend_by_key(&mut self, other: &Self, first: usize, at: usize, len: usize) {
        match (self, other) {
            (Self::F32(cells), Self::F32(other)) => {
                cells.extend(key_of_tile(&other[first..], at, len));
            }
            (Self::Bf16(cells), Self::Bf16(other)) => {
                cells.extend(key_of_tile(&other[first..], at, len));
            }
            _ => panic!("a layer has one precision"),
        }
    }

    /// As a file has them.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(cells) => bytemuck::cast_slice(cells),
            Self::Bf16(cells) => bytemuck::cast_slice(cells),
        }
    }

    /// As a file has them, to read them from one.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(cells) => bytemuck::cast_slice_mut(cells),
            Self::Bf16(cells) => bytemuck::cast_slice_mut(cells),
        }
    }

    /// Their values.
    pub(super) fn widened(&self) -> Vec<f32> {
        match self {
            Self::F32(cells) => cells.clone(),
            Self::Bf16(cells) => cells.iter().map(|&cell| bf16_to_f32(cell)).collect(),
        }
    }
}

/// Numbers of which there are [`Cells`].
pub(super) trait Cell: Copy + Default {
    /// Those of `cells`.
    ///
    /// # Panics
    /// If they are others.
    fn of(cells: &Cells) -> &[Self];

    fn cells(numbers: Vec<Self>) -> Cells;
}

impl Cell for f32 {
    fn of(cells: &Cells) -> &[Self] {
        let Cells::F32(cells) = cells else { panic!("kept in f32") };
        cells
    }

    fn cells(numbers: Vec<Self>) -> Cells {
        Cells::F32(numbers)
    }
}

impl Cell for u16 {
    fn of(cells: &Cells) -> &[Self] {
        let Cells::Bf16(cells) = cells else { panic!("kept in bf16") };
        cells
    }

    fn cells(numbers: Vec<Self>) -> Cells {
        Cells::Bf16(numbers)
    }
}

/// Writes `key`, converted, as position `at` of `tiles` `[tiles][key.len()][16 positions]`.
pub(super) fn put_in_tile<X, C>(tiles: &mut [C], at: usize, key: &[X], convert: impl Fn(&X) -> C) {
    let tile = &mut tiles[at / TILE * key.len() * TILE..][..key.len() * TILE];
    for (lanes, k) in tile.chunks_exact_mut(TILE).zip(key) {
        lanes[at % TILE] = convert(k);
    }
}

/// The key of `len` numbers that is position `at` of `tiles`.
pub(super) fn key_of_tile<C: Copy>(
    tiles: &[C],
    at: usize,
    len: usize,
) -> impl Iterator<Item = C> + '_ {
    let tile = &tiles[at / TILE * len * TILE..][..len * TILE];
    tile.chunks_exact(TILE).map(move |lanes| lanes[at % TILE])
}
