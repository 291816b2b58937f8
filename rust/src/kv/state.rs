//! The recurrent state of one layer, and checkpoints of it to go back to.
//!
//! A state cannot be cut short as keys can: to forget tokens is to go back to a state from before
//! them. Checkpoints are therefore kept after some multiples of 64 tokens, densely near the end and
//! ever more sparsely before it, so that what has to be computed again is in proportion to what was
//! cut off; see `docs/design/0013-recurrent-state.md`.

use std::sync::Arc;

use super::Shared;
use crate::matrix::TILE;

/// Tokens between the closest checkpoints.
const STRIDE: usize = 64;

/// What a layer's state is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLayout {
    /// Heads, each with a matrix of its own.
    pub heads: usize,
    /// Rows of a head's matrix: elements of a key.
    pub k_dim: usize,
    /// Columns of it: elements of a value.
    pub v_dim: usize,
    /// Elements of the last inputs of the convolution, of all its channels.
    pub conv: usize,
}

impl StateLayout {
    /// Elements of a head's matrix, in tiles of 16 columns `[v tiles][k_dim][16]`.
    pub fn head_len(self) -> usize {
        self.v_dim.next_multiple_of(TILE) * self.k_dim
    }

    /// Elements of a state: the matrices of all heads, then the inputs of the convolution.
    pub fn elements(self) -> usize {
        self.heads * self.head_len() + self.conv
    }

    /// Most bytes that the states of a conversation of `ctx` tokens take: its checkpoints, where it
    /// stands, and where a step takes it.
    pub fn bytes(self, ctx: usize) -> u64 {
        (self.elements() * size_of::<f32>()) as u64 * (most_checkpoints(ctx) as u64 + 2)
    }
}

/// A state after some tokens.
pub struct Snapshot {
    /// After how many.
    pub tokens: usize,
    /// [`StateLayout::elements`] of them.
    pub state: Vec<f32>,
}

/// A state that conversations share, since it is never written to again.
#[derive(Clone)]
struct Known {
    /// After how many tokens.
    tokens: usize,
    /// [`StateLayout::elements`] of them.
    state: Arc<Vec<f32>>,
}

/// One layer's state and its checkpoints.
pub struct LayerState {
    layout: StateLayout,
    /// Ascending; the last one is where the conversation stands. None before the first token.
    known: Vec<Known>,
    /// Those that the step under way makes, ascending; the last one is where it ends.
    pending: Vec<Snapshot>,
    /// Memory of states that are not needed any more.
    spare: Vec<Vec<f32>>,
}

impl LayerState {
    pub(super) fn new(layout: StateLayout) -> Self {
        Self { layout, known: Vec::new(), pending: Vec::new(), spare: Vec::new() }
    }

    /// The numbers of tokens after which the state is known, but for 0.
    pub(super) fn known(&self) -> impl Iterator<Item = usize> {
        self.known.iter().map(|snapshot| snapshot.tokens)
    }

    /// Another conversation with the states up to that after `tokens` tokens.
    pub(super) fn fork(&self, tokens: usize) -> Self {
        let known = self.known.iter().filter(|known| known.tokens <= tokens).cloned().collect();
        Self { known, ..Self::new(self.layout) }
    }

    /// The state after `tokens` tokens, which is known.
    pub(super) fn after(&self, tokens: usize) -> &[f32] {
        let known = self.known.iter().find(|known| known.tokens == tokens);
        &known.expect("asked for what is known").state
    }

    /// Takes in the `state` after `tokens` tokens of a conversation of `len`, unless that is known;
    /// keeps no more than it would have kept.
    pub(super) fn restore(&mut self, tokens: usize, state: Vec<f32>, len: usize) {
        let at = self.known.partition_point(|known| known.tokens < tokens);
        if self.known.get(at).is_none_or(|known| known.tokens != tokens) {
            self.known.insert(at, Known { tokens, state: Arc::new(state) });
        }
        let last = self.known.last().map_or(0, |last| last.tokens);
        self.known.retain(|known| known.tokens == last || is_kept(known.tokens, len));
    }

    /// [`StateLayout::elements`]
    pub(super) fn elements(&self) -> usize {
        self.layout.elements()
    }

    /// Names the states, which other conversations may hold too.
    pub(super) fn for_each_shared(&self, each: &mut dyn FnMut(Shared)) {
        let bytes = (self.layout.elements() * size_of::<f32>()) as u64;
        self.known.iter().for_each(|known| each(Shared::new(&known.state, bytes)));
    }

    /// Forgets the states that a conversation has forgotten that has gone on to `len` tokens.
    pub(super) fn forget_for(&mut self, len: usize) {
        self.known.retain(|known| is_kept(known.tokens, len));
    }

    /// Begins a step over the tokens from `start` up to `end`: the state to start from (none for
    /// one of zeros) and the states to fill in, ascending, the last one that after all tokens.
    ///
    /// A step that is never committed leaves the conversation where it stood; begun anew, it makes
    /// the same states. Checkpoints that would not be kept after it go first, so that there is never
    /// more memory in use than [`StateLayout::bytes`].
    ///
    /// # Panics
    /// If the conversation does not stand at `start`, or the step is empty.
    pub fn advance(&mut self, start: usize, end: usize) -> (Option<&[f32]>, &mut [Snapshot]) {
        assert_eq!(self.known.last().map_or(0, |last| last.tokens), start, "states follow tokens");
        assert!(start < end, "a step has tokens");
        self.spare.extend(self.pending.drain(..).map(|snapshot| snapshot.state));
        self.forget(|tokens| tokens != start && !is_kept(tokens, end));
        let made = (start / STRIDE + 1..end.div_ceil(STRIDE)).map(|i| i * STRIDE);
        for tokens in made.filter(|&tokens| is_kept(tokens, end)).chain([end]) {
            let state = self.spare.pop().unwrap_or_else(|| vec![0.0; self.layout.elements()]);
            self.pending.push(Snapshot { tokens, state });
        }
        (self.known.last().map(|last| &last.state[..]), &mut self.pending)
    }

    /// Takes over the states of a step that ended after `tokens` tokens.
    pub(super) fn commit(&mut self, tokens: usize) {
        if self.pending.last().is_some_and(|last| last.tokens == tokens) {
            self.forget(|before| !is_kept(before, tokens));
            let made = self.pending.drain(..);
            self.known.extend(
                made.map(|Snapshot { tokens, state }| Known { tokens, state: Arc::new(state) }),
            );
            self.spare.truncate(1);
        }
    }

    /// Goes back to the state after `tokens` tokens, which is known.
    pub(super) fn truncate_to(&mut self, tokens: usize) {
        self.pending.clear();
        self.forget(|before| before > tokens);
        self.spare.truncate(1);
    }

    fn forget(&mut self, is_forgotten: impl Fn(usize) -> bool) {
        let forgotten = self.known.extract_if(.., |known| is_forgotten(known.tokens));
        // What another conversation still needs is no memory of ours.
        self.spare.extend(forgotten.filter_map(|known| Arc::into_inner(known.state)));
    }
}

/// Whether a conversation of `len` tokens keeps a checkpoint after `tokens` of them.
///
/// With strides of 64, 128, 256 and so on, those are kept that lie one stride before the last multiple
/// of it, and the last multiple of 64. As a conversation grows, none is needed that was let go before.
fn is_kept(tokens: usize, len: usize) -> bool {
    let last = |stride: usize| len / stride * stride;
    let strides = std::iter::successors(Some(STRIDE), |stride| stride.checked_mul(2));
    let mut strides = strides.take_while(|&stride| stride <= len);
    (1..=len).contains(&tokens)
        && (tokens == last(STRIDE) || strides.any(|stride| tokens == last(stride) - stride))
}

/// Most checkpoints that a conversation of up to `ctx` tokens keeps besides where it stands.
fn most_checkpoints(ctx: usize) -> usize {
    // One, and one for each stride that fits twice.
    (ctx / STRIDE).checked_ilog2().map_or(0, |levels| levels as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: StateLayout = StateLayout { heads: 2, k_dim: 3, v_dim: 20, conv: 5 };

    fn kept(len: usize) -> Vec<usize> {
        (1..=len).filter(|&tokens| is_kept(tokens, len)).collect()
    }

    /// Advances by `n` tokens; each state is filled with the number of tokens it stands for.
    fn step(layer: &mut LayerState, start: usize, n: usize) {
        let (before, after) = layer.advance(start, start + n);
        assert_eq!(before.map(|state| state[0]), (start > 0).then_some(start as f32));
        for Snapshot { tokens, state } in after {
            assert_eq!(state.len(), LAYOUT.elements());
            state.fill(*tokens as f32);
        }
    }

    fn known(layer: &LayerState) -> Vec<usize> {
        assert!(layer.known.iter().all(|snapshot| snapshot.state[0] == snapshot.tokens as f32));
        layer.known().collect()
    }

    #[test]
    fn checkpoints_are_few_and_what_is_cut_off_bounds_what_is_computed_again() {
        assert_eq!(kept(1034), [512, 768, 896, 960, 1024]);
        assert_eq!((kept(63), kept(64), kept(130)), (vec![], vec![64], vec![64, 128]));
        for len in 1..5000 {
            let now = kept(len);
            let standing = usize::from(now.last() == Some(&len));
            assert!(now.len() - standing <= most_checkpoints(len), "{len}: {now:?}");
            for cut in 1..len {
                let back = now.iter().filter(|&&tokens| tokens <= cut).max().unwrap_or(&0);
                assert!(cut - back < (2 * (len - cut)).max(STRIDE), "{len} cut to {cut}");
            }
        }
        assert_eq!((most_checkpoints(63), most_checkpoints(64), most_checkpoints(4096)), (0, 1, 7));
        assert_eq!(LAYOUT.elements(), 2 * 3 * 32 + 5);
        assert_eq!(LAYOUT.bytes(4096), (197 * 4) * 9);
    }

    #[test]
    fn a_conversation_keeps_the_same_checkpoints_however_it_grew() {
        for chunk in [1, 7, 64, 100, 1000] {
            let mut layer = LayerState::new(LAYOUT);
            let mut len = 0;
            while len < 1500 {
                let n = chunk.min(1500 - len);
                step(&mut layer, len, n);
                len += n;
                layer.commit(len);
                let states = layer.known.len() + layer.spare.len();
                assert!(states <= most_checkpoints(1500) + 2, "{states} after {len}");
            }
            let mut expected = kept(1500);
            expected.push(1500);
            assert_eq!(known(&layer), expected, "{chunk}");
        }
    }

    #[test]
    fn a_step_that_is_not_committed_leaves_the_conversation_where_it_stood() {
        let mut layer = LayerState::new(LAYOUT);
        step(&mut layer, 0, 200);
        layer.commit(200);
        step(&mut layer, 200, 90);
        layer.commit(201);
        assert_eq!(known(&layer), [128, 192, 200]);
        step(&mut layer, 200, 1);
        layer.commit(201);
        assert_eq!(known(&layer), [128, 192, 201]);
        layer.truncate_to(128);
        assert_eq!(known(&layer), [128]);
        step(&mut layer, 128, 3);
        layer.commit(131);
        layer.truncate_to(0);
        assert!(known(&layer).is_empty());
        step(&mut layer, 0, 1);
    }
}
