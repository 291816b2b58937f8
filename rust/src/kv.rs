//! What a conversation keeps in each layer, and the tokens it stands for: keys and values of all
//! positions, or a recurrent state.
//!
//! Owns: storage by blocks of 256 positions, checkpoints of states, reuse of a common prefix, of
//! another conversation's too: blocks and states are shared, and copied when one of those who share
//! them writes. Does not own: which request uses a slot (`engine`), the arithmetic over the blocks
//! (`kernels`).

mod cells;
pub mod file;
pub mod saver;
mod state;

use std::ops::Range;
use std::sync::Arc;

use crate::kernels::{KV_BLOCK, Kept};
use crate::matrix::TILE;
pub use cells::Precision;
use cells::{Cell, Cells, put_in_tile};
pub use state::{LayerState, Snapshot, StateLayout};

/// What a layer keeps of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerLayout {
    /// Keys and values of every position.
    Positions(KvLayout),
    /// A state that every token changes.
    State(StateLayout),
}

impl LayerLayout {
    /// The same with keys and values in `precision`; states stay as they are.
    #[must_use]
    pub fn kept_in(self, precision: Precision) -> Self {
        match self {
            Self::Positions(kv) => Self::Positions(KvLayout { precision, ..kv }),
            Self::State(state) => Self::State(state),
        }
    }

    /// Most bytes that a conversation of `ctx` tokens takes.
    pub fn bytes(self, ctx: usize) -> u64 {
        match self {
            Self::Positions(kv) => {
                kv.bytes_per_position() as u64 * ctx.next_multiple_of(KV_BLOCK) as u64
            }
            Self::State(state) => state.bytes(ctx),
        }
    }
}

/// What a layer keeps for each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key and value heads; 1 for compressed latents.
    pub heads: usize,
    /// Elements of one head's key.
    pub k_dim: usize,
    /// Elements of one head's value.
    pub v_dim: usize,
    /// Elements of the key by which an indexer judges the position; 0 where there is none.
    pub index_dim: usize,
    /// In what all of these are kept.
    pub precision: Precision,
}

impl KvLayout {
    /// Bytes one position takes.
    pub fn bytes_per_position(self) -> usize {
        let cells = self.heads * (self.k_dim + self.v_dim) + self.index_dim;
        cells * self.precision.bytes()
    }

    /// Whether a position's value is the beginning of its key. Of latents alone, which are kept
    /// once and looked at in two ways, keys are longer than values.
    fn is_latent(self) -> bool {
        self.heads == 1 && self.k_dim > self.v_dim
    }

    /// Bytes that a file keeps of a position.
    fn stored_bytes(self) -> usize {
        self.stored_cells() * self.precision.bytes()
    }

    /// Elements that a file keeps of a position.
    fn stored_cells(self) -> usize {
        let values = if self.is_latent() { 0 } else { self.heads * self.v_dim };
        self.heads * self.k_dim + values + self.index_dim
    }
}

/// Keys and values of 256 positions of one layer. What lies behind the positions of a conversation
/// that holds it may be another's, and means nothing.
#[derive(Clone)]
struct Block {
    /// `[heads][16 tiles][k_dim][16 positions]`
    keys: Cells,
    /// `[heads][256 positions][v_dim]`
    values: Cells,
    /// `[16 tiles][index_dim][16 positions]`
    index_keys: Cells,
}

/// One layer's keys and values.
pub struct LayerKv {
    layout: KvLayout,
    blocks: Vec<Arc<Block>>,
}

impl LayerKv {
    fn new(layout: KvLayout) -> Self {
        Self { layout, blocks: Vec::new() }
    }

    /// Another conversation with the first `len` positions.
    fn fork(&self, len: usize) -> Self {
        // A layer that drafts may know less.
        let blocks = len.div_ceil(KV_BLOCK).min(self.blocks.len());
        Self { layout: self.layout, blocks: self.blocks[..blocks].to_vec() }
    }

    /// Stores `key` `[heads][k_dim]` and `value` `[heads][v_dim]` of `position`.
    pub fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let KvLayout { k_dim, v_dim, .. } = self.layout;
        let (block, at) = (self.block(position), position % KV_BLOCK);
        for (head, key) in key.chunks_exact(k_dim).enumerate() {
            block.keys.put_in_tile(head * KV_BLOCK * k_dim, at, key);
        }
        for (head, value) in value.chunks_exact(v_dim).enumerate() {
            block.values.put((head * KV_BLOCK + at) * v_dim, value);
        }
    }

    /// Stores the index key `[index_dim]` of `position`.
    pub fn write_index(&mut self, position: usize, key: &[f32]) {
        self.block(position).index_keys.put_in_tile(0, position % KV_BLOCK, key);
    }

    /// The block that holds `position`, made if need be, and nobody else's any more.
    fn block(&mut self, position: usize) -> &mut Block {
        let KvLayout { heads, k_dim, v_dim, index_dim, precision } = self.layout;
        while self.blocks.len() <= position / KV_BLOCK {
            self.blocks.push(Arc::new(Block {
                keys: Cells::zeros(precision, heads * KV_BLOCK * k_dim),
                values: Cells::zeros(precision, heads * KV_BLOCK * v_dim),
                index_keys: Cells::zeros(precision, KV_BLOCK * index_dim),
            }));
        }
        Arc::make_mut(&mut self.blocks[position / KV_BLOCK])
    }

    /// What a file keeps of `positions`, one after the other: keys, values unless keys begin with
    /// them, index keys; [`KvLayout::stored_cells`] each.
    fn stored(&self, positions: Range<usize>) -> Cells {
        let KvLayout { heads, k_dim, v_dim, index_dim, precision } = self.layout;
        let n = positions.len() * self.layout.stored_cells();
        let mut rows = Cells::with_capacity(precision, n);
        for position in positions {
            // Nothing is known there; see [`KvSlot::drafting`].
            let Some(block) = self.blocks.get(position / KV_BLOCK) else {
                rows.extend_by_zeros(self.layout.stored_cells());
                continue;
            };
            let at = position % KV_BLOCK;
            for head in 0..heads {
                rows.extend_by_key(&block.keys, head * KV_BLOCK * k_dim, at, k_dim);
            }
            for head in 0..if self.layout.is_latent() { 0 } else { heads } {
                let first = (head * KV_BLOCK + at) * v_dim;
                rows.extend(&block.values, first..first + v_dim);
            }
            rows.extend_by_key(&block.index_keys, 0, at, index_dim);
        }
        rows
    }

    /// Room for what [`Self::stored`] gives of `n` positions.
    fn unread(&self, n: usize) -> Cells {
        Cells::zeros(self.layout.precision, n * self.layout.stored_cells())
    }

    /// Writes `n` positions from `start` on as [`Self::stored`] gave them.
    fn restore(&mut self, start: usize, n: usize, rows: &Cells) {
        let layout = self.layout;
        let keys = layout.heads * layout.k_dim;
        let rows = rows.widened();
        for (i, row) in rows.chunks_exact(layout.stored_cells().max(1)).take(n).enumerate() {
            let (kept, index_key) = row.split_at(row.len() - layout.index_dim);
            let (key, value) = kept.split_at(keys);
            let value = if layout.is_latent() { &key[..layout.v_dim] } else { value };
            // What was rounded once stays what it is.
            self.write(start + i, key, value);
            if layout.index_dim > 0 {
                self.write_index(start + i, index_key);
            }
        }
    }

    /// The index keys of 256 positions, `[16 tiles][index_dim][16 positions]`.
    pub fn index_keys(&self, block: usize) -> Kept<'_> {
        self.blocks[block].index_keys.all()
    }

    /// Copies of the keys and values of up to 256 `positions`, laid out as if they followed one
    /// another, of a layer that keeps latents: its only head's key starts with its value.
    pub fn gather_latents(&self, positions: &[usize]) -> Latents {
        match self.layout.precision {
            Precision::F32 => self.gather::<f32>(positions),
            Precision::Bf16 => self.gather::<u16>(positions),
        }
    }

    /// A key's beginning is read from the value, where it lies in one piece; the elements of a key
    /// lie a cache line apart.
    fn gather<C: Cell>(&self, positions: &[usize]) -> Latents {
        let KvLayout { k_dim, v_dim, .. } = self.layout;
        let mut keys = vec![C::default(); positions.len().next_multiple_of(TILE) * k_dim];
        let mut values = Vec::with_capacity(positions.len() * v_dim);
        let mut key = vec![C::default(); k_dim];
        for (i, position) in positions.iter().enumerate() {
            let (block, at) = (&self.blocks[position / KV_BLOCK], position % KV_BLOCK);
            let value = &C::of(&block.values)[at * v_dim..][..v_dim];
            values.extend_from_slice(value);
            let tile = &C::of(&block.keys)[at / TILE * k_dim * TILE..][..k_dim * TILE];
            let (latent, rest) = key.split_at_mut(v_dim);
            latent.copy_from_slice(value);
            for (k, lanes) in rest.iter_mut().zip(tile[v_dim * TILE..].chunks_exact(TILE)) {
                *k = lanes[at % TILE];
            }
            put_in_tile(&mut keys, i, &key, |&k| k);
        }
        Latents { keys: C::cells(keys), values: C::cells(values) }
    }

    /// Blocks of `head` that hold any of `positions`: keys, values, which of the block's positions
    /// they are.
    pub fn blocks(
        &self,
        head: usize,
        positions: Range<usize>,
    ) -> impl Iterator<Item = (Kept<'_>, Kept<'_>, Range<usize>)> {
        let KvLayout { k_dim, v_dim, .. } = self.layout;
        let (k, v) = (KV_BLOCK * k_dim, KV_BLOCK * v_dim);
        let range = positions.start / KV_BLOCK..positions.end.div_ceil(KV_BLOCK);
        range.clone().zip(&self.blocks[range]).map(move |(i, block)| {
            let first = positions.start.saturating_sub(i * KV_BLOCK);
            let end = (positions.end - i * KV_BLOCK).min(KV_BLOCK);
            (
                block.keys.kept(head * k..(head + 1) * k),
                block.values.kept(head * v..(head + 1) * v),
                first..end,
            )
        })
    }
}

/// Keys and values that were brought together.
pub struct Latents {
    keys: Cells,
    values: Cells,
}

impl Latents {
    /// Keys `[tiles][k_dim][16 positions]` and values `[positions][v_dim]`.
    pub fn kept(&self) -> (Kept<'_>, Kept<'_>) {
        (self.keys.all(), self.values.all())
    }
}

/// What one layer keeps, by its layout.
enum LayerMemory {
    Positions(LayerKv),
    State(LayerState),
}

/// The memory of one conversation.
pub struct KvSlot {
    tokens: Vec<u32>,
    layers: Vec<LayerMemory>,
    /// Tokens that the layer that drafts has taken in, in its own count: some may have been left out.
    drafting: usize,
}

impl KvSlot {
    /// An empty slot for a model with these layers.
    pub fn new(layouts: &[LayerLayout]) -> Self {
        let memory = |layout: &LayerLayout| match *layout {
            LayerLayout::Positions(layout) => LayerMemory::Positions(LayerKv::new(layout)),
            LayerLayout::State(layout) => LayerMemory::State(LayerState::new(layout)),
        };
        Self { tokens: Vec::new(), layers: layouts.iter().map(memory).collect(), drafting: 0 }
    }

    /// Tokens that the memory stands for.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions that the layer that drafts knows: they follow one another, whatever it left out of
    /// the conversation. What it knows decides how often its drafts are right, and nothing else.
    pub fn drafting(&self) -> usize {
        self.drafting
    }

    /// Notes that the layer that drafts has taken in so many positions more.
    pub fn commit_drafting(&mut self, positions: usize) {
        self.drafting += positions;
    }

    /// Has the layer that drafts begin anew.
    pub fn forget_drafting(&mut self) {
        self.drafting = 0;
    }

    /// Finds out what `layer`, which drafts, knows of a conversation that was read from a file: there,
    /// what it does not know is zeros.
    pub fn find_drafting(&mut self, layer: usize) {
        let (kv, most) = (self.layer(layer), self.tokens.len().saturating_sub(1));
        let is_known = |&at: &usize| kv.stored(at..at + 1).bytes().iter().any(|&byte| byte != 0);
        // Where turns met, a few may be missing.
        self.drafting = (0..most).rev().find(is_known).map_or(0, |last| last + 1);
    }

    /// Keys and values of a layer.
    ///
    /// # Panics
    /// If the layer keeps a state.
    pub fn layer(&self, layer: usize) -> &LayerKv {
        match &self.layers[layer] {
            LayerMemory::Positions(kv) => kv,
            LayerMemory::State(_) => panic!("layer {layer} has no keys"),
        }
    }

    /// Keys and values of a layer, to write to.
    ///
    /// # Panics
    /// If the layer keeps a state.
    pub fn layer_mut(&mut self, layer: usize) -> &mut LayerKv {
        match &mut self.layers[layer] {
            LayerMemory::Positions(kv) => kv,
            LayerMemory::State(_) => panic!("layer {layer} has no keys"),
        }
    }

    /// The recurrent state of a layer.
    ///
    /// # Panics
    /// If the layer keeps keys and values.
    pub fn state_mut(&mut self, layer: usize) -> &mut LayerState {
        match &mut self.layers[layer] {
            LayerMemory::State(state) => state,
            LayerMemory::Positions(_) => panic!("layer {layer} has no state"),
        }
    }

    /// The numbers of tokens after which the states of all layers are known, ascending.
    fn known_states(&self) -> Vec<usize> {
        let Some(first) = self.states().next() else { return Vec::new() };
        let is_known =
            |n: &usize| self.states().all(|state| state.known().any(|known| known == *n));
        first.known().filter(is_known).collect()
    }

    /// Takes in the states of all layers after `tokens` tokens, which the slot has.
    fn restore(&mut self, tokens: usize, states: Vec<Vec<f32>>) {
        let layers = self.layers.iter_mut().filter_map(|layer| match layer {
            LayerMemory::State(state) => Some(state),
            LayerMemory::Positions(_) => None,
        });
        let len = self.tokens.len();
        layers.zip(states).for_each(|(layer, state)| layer.restore(tokens, state, len));
    }

    /// The conversation as it stands, which shares all it holds.
    fn snapshot(&self) -> Self {
        self.fork(self.tokens.len())
    }

    /// The conversation as far as it fills whole blocks, without states that it gives up by the time
    /// it has `len` tokens.
    fn whole_blocks(&self, len: usize) -> Self {
        let mut whole = self.fork(self.tokens.len() / KV_BLOCK * KV_BLOCK);
        for layer in &mut whole.layers {
            if let LayerMemory::State(state) = layer {
                state.forget_for(len);
            }
        }
        whole
    }

    /// Names everything that other conversations may hold too.
    fn for_each_shared(&self, each: &mut dyn FnMut(Shared)) {
        for layer in &self.layers {
            match layer {
                LayerMemory::Positions(kv) => {
                    let bytes = (kv.layout.bytes_per_position() * KV_BLOCK) as u64;
                    kv.blocks.iter().for_each(|block| each(Shared::new(block, bytes)));
                }
                LayerMemory::State(state) => state.for_each_shared(each),
            }
        }
    }

    fn states(&self) -> impl Iterator<Item = &LayerState> {
        self.layers.iter().filter_map(|layer| match layer {
            LayerMemory::State(state) => Some(state),
            LayerMemory::Positions(_) => None,
        })
    }

    /// Records that what was computed for `tokens` now follows what is stored in every layer.
    pub fn commit(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        for layer in &mut self.layers {
            if let LayerMemory::State(state) = layer {
                state.commit(self.tokens.len());
            }
        }
    }

    /// How many tokens the slot shares with the beginning of `prompt`, without its last one: that
    /// must be computed again, since its logits are wanted.
    pub fn common_prefix(&self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        common.min(prompt.len().saturating_sub(1))
    }

    /// Forgets everything behind the first `len` tokens, and as many of these as it takes to come to
    /// a checkpoint of every layer that has a state. Returns how many tokens are left.
    pub fn truncate_to(&mut self, len: usize) -> usize {
        let len = self.checkpoint(len.min(self.tokens.len()));
        self.cut(len);
        len
    }

    /// Forgets everything behind the first `len` tokens, whether the states after them are known or
    /// not.
    fn cut(&mut self, len: usize) {
        self.tokens.truncate(len);
        // The last token's successor is not known any more.
        self.drafting = self.drafting.min(len.saturating_sub(1));
        for layer in &mut self.layers {
            match layer {
                LayerMemory::Positions(kv) => kv.blocks.truncate(len.div_ceil(KV_BLOCK)),
                LayerMemory::State(state) => state.truncate_to(len),
            }
        }
    }

    /// How many tokens of `prompt` need not be computed if it goes on from here.
    fn reusable(&self, prompt: &[u32]) -> usize {
        self.checkpoint(self.common_prefix(prompt))
    }

    /// Another conversation with the first `len` tokens, after which all states are known.
    fn fork(&self, len: usize) -> Self {
        let fork = |layer: &LayerMemory| match layer {
            LayerMemory::Positions(kv) => LayerMemory::Positions(kv.fork(len)),
            LayerMemory::State(state) => LayerMemory::State(state.fork(len)),
        };
        Self {
            tokens: self.tokens[..len].to_vec(),
            layers: self.layers.iter().map(fork).collect(),
            drafting: self.drafting.min(len.saturating_sub(1)),
        }
    }

    /// The largest number of tokens up to `len` after which the states of all layers are known.
    fn checkpoint(&self, len: usize) -> usize {
        if self.states().next().is_none() {
            return len;
        }
        self.known_states().into_iter().filter(|&n| n <= len).max().unwrap_or(0)
    }
}

/// A piece of memory that several conversations may hold.
#[derive(Clone, Copy)]
struct Shared {
    /// Where it is, which tells pieces apart.
    at: *const (),
    /// How many hold it.
    holders: usize,
    bytes: u64,
}

impl Shared {
    fn new<T>(memory: &Arc<T>, bytes: u64) -> Self {
        Self { at: Arc::as_ptr(memory).cast(), holders: Arc::strong_count(memory), bytes }
    }
}

/// What a prompt finds in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// So many of its tokens.
    pub tokens: usize,
    /// The slot with which its own was exchanged.
    pub exchanged: Option<usize>,
}

/// Leaves in `slot` as much of the beginning of `prompt` as it or any other slot knows, and nothing
/// else. The last token of `prompt` is never among that.
///
/// What another slot knows is shared with it. If that one is idle and would lose less than `slot`
/// by giving up what is not of the prompt, the two are exchanged first: a conversation that comes
/// back in another slot than it had must not push out the one that is there.
pub fn reuse(
    slots: &mut [KvSlot],
    slot: usize,
    prompt: &[u32],
    is_idle: impl Fn(usize) -> bool,
) -> Reuse {
    let own = slots[slot].reusable(prompt);
    let others = (0..slots.len()).filter(|&other| other != slot);
    let best = others.map(|other| (slots[other].reusable(prompt), other)).max();
    let Some((tokens, other)) = best.filter(|&(tokens, _)| tokens > own) else {
        return Reuse { tokens: slots[slot].truncate_to(own), exchanged: None };
    };
    let lost = |slot: usize, kept: usize| slots[slot].tokens.len() - kept;
    if is_idle(other) && lost(other, tokens) < lost(slot, own) {
        slots.swap(slot, other);
        slots[slot].truncate_to(tokens);
        Reuse { tokens, exchanged: Some(other) }
    } else {
        slots[slot] = slots[other].fork(tokens);
        Reuse { tokens, exchanged: None }
    }
}

#[cfg(test)]
mod tests;
