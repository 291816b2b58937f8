//! The walk of queries over blocks of keys and values, on all threads.
//!
//! Queries that read the same keys meet a block together, so that it is fetched once for them. What
//! they find in it is kept by itself and merged later, blocks ascending: so the blocks of one
//! conversation may be taken by several threads, and bits do not tell which.

use std::ops::Range;

use super::{Attending, Heads};
use crate::kernels::{BlockInputs, KV_BLOCK, Kept, Softmax};

/// Most queries that meet a block at once.
const QUERIES: usize = 16;
/// Meetings of queries and blocks there should be for each thread: then none waits long for another.
const MEETINGS: usize = 4;
/// Elements for each thread of what queries found in blocks and is not merged yet, or what they find
/// in one block if that is more.
pub const UNMERGED: usize = 1 << 17;

/// Keys and values of a block, by slot, key head and number.
pub type Find<'a> = dyn Fn(usize, usize, usize) -> (Kept<'a>, Kept<'a>) + Sync + 'a;

/// Positions that a row sees.
pub struct Seen {
    pub slot: usize,
    pub positions: Range<usize>,
}

impl Seen {
    fn blocks(&self) -> Range<usize> {
        self.positions.start / KV_BLOCK..self.positions.end.div_ceil(KV_BLOCK)
    }

    /// Those of a block, counted from its first.
    fn of_block(&self, block: usize) -> Range<usize> {
        let within = |position: usize| position.saturating_sub(block * KV_BLOCK).min(KV_BLOCK);
        within(self.positions.start)..within(self.positions.end)
    }
}

/// Queries of one slot that read the same key head.
struct Group {
    slot: usize,
    key_head: usize,
    rows: Range<usize>,
    heads: Range<usize>,
}

/// What each query of a group found, in one block or all so far.
struct Found {
    /// `[rows][heads]`
    softmax: Vec<Softmax>,
    /// `[rows][heads][v_dim]`
    sums: Vec<f32>,
}

/// A group and a block that some of it sees.
struct Meeting {
    group: usize,
    block: usize,
}

/// Attention of `rows` over what they see of the blocks that `find` gives.
///
/// `q`: `[rows][heads][k_dim]`. Returns `[rows][heads][v_dim]`.
pub fn attend_blocks(
    on: Attending,
    rows: &[Seen],
    heads: &Heads,
    q: &[f32],
    find: &Find,
) -> Vec<f32> {
    let (k_dim, v_dim) = heads.dims();
    let n_threads = on.team.n_threads();
    let meetings: usize = rows.iter().map(|row| row.blocks().len() * heads.n).sum();
    let at_once = (meetings / (MEETINGS * n_threads)).clamp(1, QUERIES);
    let groups = groups(rows, heads, at_once);
    let mut all: Vec<Found> = groups.iter().map(|group| before(group, heads)).collect();
    let in_wave = n_threads * (UNMERGED / (at_once * (v_dim + 2))).max(1);
    let mut meetings = in_order(rows, &groups);
    loop {
        let wave: Vec<Meeting> = meetings.by_ref().take(in_wave).collect();
        let numbers = wave.iter().map(|meeting| meeting.group);
        let (Some(first), Some(last)) = (numbers.clone().min(), numbers.max()) else { break };
        let pairs: usize = wave.iter().map(|meeting| meeting.pairs(rows, &groups)).sum();
        let found = on.team.map(&wave, pairs * (k_dim + v_dim), |meeting| {
            let group = &groups[meeting.group];
            let block = find(group.slot, group.key_head, meeting.block);
            meet(on, rows, heads, q, group, meeting.block, block)
        });
        let merging = wave.len() * at_once * v_dim;
        on.team.for_each_chunk(&mut all[first..=last], 1, merging, |i, all| {
            for (meeting, found) in wave.iter().zip(&found) {
                if meeting.group == first + i {
                    merge(on, rows, &groups[meeting.group], meeting.block, found, &mut all[0]);
                }
            }
        });
    }
    let mut out = vec![0.0f32; rows.len() * heads.n * v_dim];
    let elements = out.len();
    on.team.for_each_chunk(&mut out, heads.n * v_dim, elements, |row, out| {
        for (group, all) in groups.iter().zip(&all).filter(|(group, _)| group.rows.contains(&row)) {
            let (n, first) = (group.heads.len(), row - group.rows.start);
            let out =
                out[group.heads.start * v_dim..group.heads.end * v_dim].chunks_exact_mut(v_dim);
            let sums = all.sums[first * n * v_dim..].chunks_exact(v_dim);
            for ((out, sums), softmax) in out.zip(sums).zip(&all.softmax[first * n..]) {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = sum / softmax.sum;
                }
            }
        }
    });
    out
}

/// Groups of up to `at_once` queries. Those of one slot and key head follow one another.
fn groups(rows: &[Seen], heads: &Heads, at_once: usize) -> Vec<Group> {
    let sharing = heads.n / heads.layout.heads;
    let (n_rows, n_heads) = ((at_once / sharing).max(1), at_once.min(sharing));
    let mut groups = Vec::new();
    let mut first = 0;
    for run in rows.chunk_by(|a, b| a.slot == b.slot) {
        let run = first..first + run.len();
        first = run.end;
        for key_head in 0..heads.layout.heads {
            let heads = key_head * sharing..(key_head + 1) * sharing;
            for row in run.clone().step_by(n_rows) {
                for head in heads.clone().step_by(n_heads) {
                    groups.push(Group {
                        slot: rows[row].slot,
                        key_head,
                        rows: row..run.end.min(row + n_rows),
                        heads: head..heads.end.min(head + n_heads),
                    });
                }
            }
        }
    }
    groups
}

/// All meetings: a block with all groups that read it, one after the other, then the next block.
fn in_order<'a>(rows: &'a [Seen], groups: &'a [Group]) -> impl Iterator<Item = Meeting> + 'a {
    let mut first = 0;
    groups.chunk_by(|a, b| (a.slot, a.key_head) == (b.slot, b.key_head)).flat_map(move |sharing| {
        let numbers = first..first + sharing.len();
        first = numbers.end;
        let seen = || rows[sharing[0].rows.start..sharing[sharing.len() - 1].rows.end].iter();
        let start = seen().map(|row| row.blocks().start).min().unwrap_or(0);
        let end = seen().map(|row| row.blocks().end).max().unwrap_or(0);
        let of_block = move |block| numbers.clone().map(move |group| Meeting { group, block });
        let seen = |meeting: &Meeting| meeting.pairs(rows, groups) > 0;
        (start..end).flat_map(of_block).filter(seen)
    })
}

impl Meeting {
    /// Pairs of a query and a position that it sees.
    fn pairs(&self, rows: &[Seen], groups: &[Group]) -> usize {
        let group = &groups[self.group];
        let seen = rows[group.rows.clone()].iter().map(|row| row.of_block(self.block).len());
        seen.sum::<usize>() * group.heads.len()
    }
}

/// What a group has before its first block.
fn before(group: &Group, heads: &Heads) -> Found {
    let of_row = group.heads.clone().map(|head| heads.start(head));
    let softmax: Vec<Softmax> = group.rows.clone().flat_map(|_| of_row.clone()).collect();
    let sums = vec![0.0; softmax.len() * heads.layout.v_dim];
    Found { softmax, sums }
}

/// What the queries of `group` find in a block; nothing good for rows that do not see it.
fn meet(
    on: Attending,
    rows: &[Seen],
    heads: &Heads,
    q: &[f32],
    group: &Group,
    block: usize,
    (keys, values): (Kept, Kept),
) -> Found {
    let (k_dim, v_dim) = heads.dims();
    let at = |row: usize, head: usize| (row * heads.n + head) * k_dim;
    let of_row =
        |row| group.heads.clone().map(move |head| &q[at(row, head)..at(row, head) + k_dim]);
    let queries: Vec<&[f32]> = group.rows.clone().flat_map(of_row).collect();
    let mut softmax = vec![Softmax::EMPTY; queries.len()];
    let mut sums = vec![0.0; queries.len() * v_dim];
    let mut first = 0;
    for alike in rows[group.rows.clone()].chunk_by(|a, b| a.of_block(block) == b.of_block(block)) {
        let these = first..first + alike.len() * group.heads.len();
        first = these.end;
        let positions = alike[0].of_block(block);
        if !positions.is_empty() {
            let queries = &queries[these.clone()];
            let inputs = BlockInputs { queries, scale: heads.scale, keys, values, positions };
            let sums = &mut sums[these.start * v_dim..these.end * v_dim];
            on.kernels.attend_block(inputs, &mut softmax[these], sums);
        }
    }
    Found { softmax, sums }
}

/// Adds what the queries of `group` that see a block found in it to what they found before.
fn merge(
    on: Attending,
    rows: &[Seen],
    group: &Group,
    block: usize,
    found: &Found,
    all: &mut Found,
) {
    let n_heads = group.heads.len();
    let v_dim = found.sums.len() / found.softmax.len();
    for (i, row) in rows[group.rows.clone()].iter().enumerate() {
        if row.of_block(block).is_empty() {
            continue;
        }
        for query in i * n_heads..(i + 1) * n_heads {
            let sums = query * v_dim..(query + 1) * v_dim;
            on.kernels.merge_block(
                found.softmax[query],
                &found.sums[sums.clone()],
                &mut all.softmax[query],
                &mut all.sums[sums],
            );
        }
    }
}
