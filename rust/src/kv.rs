//! What a conversation keeps in each layer, and the tokens it stands for: keys and values of all
//! positions, or a recurrent state.
//!
//! Owns: storage by blocks of 256 positions, checkpoints of states, reuse of a common prefix. Does
//! not own: which request uses a slot (`engine`), the arithmetic over the blocks (`kernels`).

mod state;

use std::ops::Range;

use crate::kernels::KV_BLOCK;
use crate::matrix::TILE;
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
}

impl KvLayout {
    /// Bytes one position takes.
    pub fn bytes_per_position(self) -> usize {
        (self.heads * (self.k_dim + self.v_dim) + self.index_dim) * 4
    }
}

/// Keys and values of 256 positions of one layer.
struct Block {
    /// `[heads][16 tiles][k_dim][16 positions]`
    keys: Vec<f32>,
    /// `[heads][256 positions][v_dim]`
    values: Vec<f32>,
    /// `[16 tiles][index_dim][16 positions]`
    index_keys: Vec<f32>,
}

/// One layer's keys and values.
pub struct LayerKv {
    layout: KvLayout,
    blocks: Vec<Block>,
}

impl LayerKv {
    fn new(layout: KvLayout) -> Self {
        Self { layout, blocks: Vec::new() }
    }

    /// Stores `key` `[heads][k_dim]` and `value` `[heads][v_dim]` of `position`.
    pub fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let KvLayout { k_dim, v_dim, .. } = self.layout;
        let (block, at) = (self.block(position), position % KV_BLOCK);
        for (head, key) in key.chunks_exact(k_dim).enumerate() {
            put_in_tile(&mut block.keys[head * KV_BLOCK * k_dim..], at, key);
        }
        for (head, value) in value.chunks_exact(v_dim).enumerate() {
            block.values[(head * KV_BLOCK + at) * v_dim..][..v_dim].copy_from_slice(value);
        }
    }

    /// Stores the index key `[index_dim]` of `position`.
    pub fn write_index(&mut self, position: usize, key: &[f32]) {
        put_in_tile(&mut self.block(position).index_keys, position % KV_BLOCK, key);
    }

    /// The block that holds `position`, made if need be.
    fn block(&mut self, position: usize) -> &mut Block {
        let KvLayout { heads, k_dim, v_dim, index_dim } = self.layout;
        while self.blocks.len() <= position / KV_BLOCK {
            self.blocks.push(Block {
                keys: vec![0.0; heads * KV_BLOCK * k_dim],
                values: vec![0.0; heads * KV_BLOCK * v_dim],
                index_keys: vec![0.0; KV_BLOCK * index_dim],
            });
        }
        &mut self.blocks[position / KV_BLOCK]
    }

    /// The index keys of 256 positions, `[16 tiles][index_dim][16 positions]`.
    pub fn index_keys(&self, block: usize) -> &[f32] {
        &self.blocks[block].index_keys
    }

    /// Copies of the keys and values of up to 256 `positions`, laid out as if they followed one
    /// another, of a layer that keeps latents: its only head's key starts with its value.
    ///
    /// That start is read from the values, where it lies in one piece; the elements of a key lie a
    /// cache line apart.
    pub fn gather_latents(&self, positions: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let KvLayout { k_dim, v_dim, .. } = self.layout;
        let mut keys = vec![0.0; positions.len().next_multiple_of(TILE) * k_dim];
        let mut values = Vec::with_capacity(positions.len() * v_dim);
        let mut key = vec![0.0; k_dim];
        for (i, position) in positions.iter().enumerate() {
            let (block, at) = (&self.blocks[position / KV_BLOCK], position % KV_BLOCK);
            let value = &block.values[at * v_dim..][..v_dim];
            values.extend_from_slice(value);
            let tile = &block.keys[at / TILE * k_dim * TILE..][..k_dim * TILE];
            let (latent, rest) = key.split_at_mut(v_dim);
            latent.copy_from_slice(value);
            for (k, lanes) in rest.iter_mut().zip(tile[v_dim * TILE..].chunks_exact(TILE)) {
                *k = lanes[at % TILE];
            }
            put_in_tile(&mut keys, i, &key);
        }
        (keys, values)
    }

    /// Blocks of `head` that hold any of `positions`: keys, values, which of the block's positions
    /// they are.
    pub fn blocks(
        &self,
        head: usize,
        positions: Range<usize>,
    ) -> impl Iterator<Item = (&[f32], &[f32], Range<usize>)> {
        let KvLayout { k_dim, v_dim, .. } = self.layout;
        let (k, v) = (KV_BLOCK * k_dim, KV_BLOCK * v_dim);
        let range = positions.start / KV_BLOCK..positions.end.div_ceil(KV_BLOCK);
        range.clone().zip(&self.blocks[range]).map(move |(i, block)| {
            let first = positions.start.saturating_sub(i * KV_BLOCK);
            let end = (positions.end - i * KV_BLOCK).min(KV_BLOCK);
            (
                &block.keys[head * k..(head + 1) * k],
                &block.values[head * v..(head + 1) * v],
                first..end,
            )
        })
    }
}

/// Writes `key` as position `at` of `tiles` `[tiles][key.len()][16 positions]`.
fn put_in_tile(tiles: &mut [f32], at: usize, key: &[f32]) {
    let tile = &mut tiles[at / TILE * key.len() * TILE..][..key.len() * TILE];
    for (lanes, &k) in tile.chunks_exact_mut(TILE).zip(key) {
        lanes[at % TILE] = k;
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
}

impl KvSlot {
    /// An empty slot for a model with these layers.
    pub fn new(layouts: &[LayerLayout]) -> Self {
        let memory = |layout: &LayerLayout| match *layout {
            LayerLayout::Positions(layout) => LayerMemory::Positions(LayerKv::new(layout)),
            LayerLayout::State(layout) => LayerMemory::State(LayerState::new(layout)),
        };
        Self { tokens: Vec::new(), layers: layouts.iter().map(memory).collect() }
    }

    /// Tokens that the memory stands for.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
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
        self.tokens.truncate(len);
        for layer in &mut self.layers {
            match layer {
                LayerMemory::Positions(kv) => kv.blocks.truncate(len.div_ceil(KV_BLOCK)),
                LayerMemory::State(state) => state.truncate_to(len),
            }
        }
        len
    }

    /// The largest number of tokens up to `len` after which the states of all layers are known.
    fn checkpoint(&self, len: usize) -> usize {
        let Some(first) = self.states().next() else { return len };
        let known = first.known().filter(|&n| n <= len);
        known
            .filter(|&n| self.states().all(|state| state.known().any(|m| m == n)))
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_found_in_its_block() {
        let layout = KvLayout { heads: 2, k_dim: 3, v_dim: 2, index_dim: 2 };
        let mut kv = LayerKv::new(layout);
        for position in 0..300 {
            let p = position as f32;
            kv.write(position, &[p, 1.0, 2.0, -p, 4.0, 5.0], &[p, 7.0, -p, 9.0]);
            kv.write_index(position, &[p, 0.5]);
        }
        let blocks: Vec<_> = kv.blocks(1, 0..300).collect();
        assert_eq!(blocks.len(), 2);
        let (keys, values, n) = &blocks[1];
        assert_eq!(*n, 0..44);
        let parts = |positions| kv.blocks(0, positions).map(|block| block.2).collect::<Vec<_>>();
        assert_eq!(parts(200..300), [200..256, 0..44]);
        assert_eq!(parts(255..257), [255..256, 0..1]);
        // Position 290 is the 34th of the second block: tile 2, lane 2.
        assert_eq!(keys[(2 * 3) * TILE + 2], -290.0);
        assert_eq!(keys[(2 * 3 + 1) * TILE + 2], 4.0);
        assert_eq!(values[34 * 2], -290.0);
        let index_keys = kv.index_keys(1);
        assert_eq!(
            (index_keys[2 * 2 * TILE + 2], index_keys[(2 * 2 + 1) * TILE + 2]),
            (290.0, 0.5)
        );
        assert_eq!(layout.bytes_per_position(), (2 * (3 + 2) + 2) * 4);
    }

    #[test]
    fn gathered_positions_lie_side_by_side() {
        let mut kv = LayerKv::new(KvLayout { heads: 1, k_dim: 3, v_dim: 2, index_dim: 0 });
        for position in 0..600 {
            let p = position as f32;
            kv.write(position, &[p, -p, 0.5], &[p, -p]);
        }
        let positions: Vec<usize> = (0..600).step_by(35).collect();
        let (keys, values) = kv.gather_latents(&positions);
        assert_eq!(positions.len(), 18);
        assert_eq!(keys.len(), 2 * 3 * TILE);
        for (i, &position) in positions.iter().enumerate() {
            let (p, tile) = (position as f32, i / TILE * 3);
            let key = [0, 1, 2].map(|d| keys[(tile + d) * TILE + i % TILE]);
            assert_eq!(key, [p, -p, 0.5]);
            assert_eq!(values[2 * i..2 * i + 2], [p, -p]);
        }
    }

    #[test]
    fn the_last_token_of_a_known_prompt_is_forwarded_again() {
        let mut slot = KvSlot::new(&[]);
        slot.commit(&[1, 2, 3]);
        assert_eq!(slot.common_prefix(&[1, 2, 3]), 2);
        assert_eq!(slot.common_prefix(&[1, 2, 3, 4]), 3);
        assert_eq!(slot.common_prefix(&[1, 9]), 1);
        assert_eq!(slot.common_prefix(&[9]), 0);
        assert_eq!(slot.truncate_to(1), 1);
        assert_eq!(slot.tokens(), [1]);
        assert_eq!(slot.truncate_to(5), 1);
    }
}
