use proptest::prelude::*;

use super::*;

/// The numbers of a layer, wide.
pub(super) fn wide(kept: Kept<'_>) -> Vec<f32> {
    match kept {
        Kept::F32(x) => x.to_vec(),
        Kept::Bf16(x) => x.iter().map(|&x| half::bf16::from_bits(x).to_f32()).collect(),
    }
}

/// `x` as it comes back from where it is kept.
fn rounded(precision: Precision, x: f32) -> f32 {
    match precision {
        Precision::F32 => x,
        Precision::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

#[test]
fn what_is_written_is_found_in_its_block() {
    let precision = Precision::F32;
    let layout = KvLayout { heads: 2, k_dim: 3, v_dim: 2, index_dim: 2, precision };
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
    let (keys, values) = (wide(*keys), wide(*values));
    assert_eq!(keys[(2 * 3) * TILE + 2], -290.0);
    assert_eq!(keys[(2 * 3 + 1) * TILE + 2], 4.0);
    assert_eq!(values[34 * 2], -290.0);
    let index_keys = wide(kv.index_keys(1));
    assert_eq!((index_keys[2 * 2 * TILE + 2], index_keys[(2 * 2 + 1) * TILE + 2]), (290.0, 0.5));
    assert_eq!(layout.bytes_per_position(), (2 * (3 + 2) + 2) * 4);
    let half = LayerLayout::Positions(layout).kept_in(Precision::Bf16);
    assert_eq!(half.bytes(300), 512 * (2 * (3 + 2) + 2) * 2);
}

#[test]
fn gathered_positions_lie_side_by_side() {
    for precision in [Precision::F32, Precision::Bf16] {
        let mut kv =
            LayerKv::new(KvLayout { heads: 1, k_dim: 3, v_dim: 2, index_dim: 0, precision });
        for position in 0..600 {
            let p = position as f32;
            kv.write(position, &[p, -p, 0.5], &[p, -p]);
        }
        let positions: Vec<usize> = (0..600).step_by(35).collect();
        let latents = kv.gather_latents(&positions);
        let (keys, values) = latents.kept();
        let (keys, values) = (wide(keys), wide(values));
        assert_eq!(positions.len(), 18);
        assert_eq!(keys.len(), 2 * 3 * TILE);
        for (i, &position) in positions.iter().enumerate() {
            let (p, tile) = (rounded(precision, position as f32), i / TILE * 3);
            let key = [0, 1, 2].map(|d| keys[(tile + d) * TILE + i % TILE]);
            assert_eq!(key, [p, -p, 0.5]);
            assert_eq!(values[2 * i..2 * i + 2], [p, -p]);
        }
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

const fn layout(heads: usize, index_dim: usize, precision: Precision) -> LayerLayout {
    LayerLayout::Positions(KvLayout { heads, k_dim: 3, v_dim: 2, index_dim, precision })
}

/// Layers with keys and values, with latents and index keys, with a state; the former two rounded.
pub(super) const LAYOUTS: [LayerLayout; 5] = [
    layout(2, 0, Precision::F32),
    layout(1, 2, Precision::F32),
    LayerLayout::State(StateLayout { heads: 1, k_dim: 1, v_dim: 4, conv: 1 }),
    layout(2, 0, Precision::Bf16),
    layout(1, 2, Precision::Bf16),
];
/// Where keys and values are, where latents, and in what.
const LAYERS: [(usize, usize, Precision); 2] = [(0, 1, Precision::F32), (3, 4, Precision::Bf16)];

/// What stands for all of `tokens`, as keys and states do.
fn mark(tokens: &[u32]) -> f32 {
    let hash = tokens.iter().fold(7u32, |hash, token| (hash ^ token).wrapping_mul(0x0100_0193));
    (hash >> 8) as f32
}

/// Writes what a step leaves for the tokens behind the first `start`, without committing them.
pub(super) fn compute(slot: &mut KvSlot, tokens: &[u32], start: usize) {
    for position in start..tokens.len() {
        let m = mark(&tokens[..=position]);
        for (keys, latents, _) in LAYERS {
            let (key, value) = ([m, 1.0, 2.0, -m, 4.0, 5.0], [m, 7.0, -m, 9.0]);
            slot.layer_mut(keys).write(position, &key, &value);
            slot.layer_mut(latents).write(position, &[m, -m, 0.5], &[m, -m]);
            slot.layer_mut(latents).write_index(position, &[m, 2.0 * m]);
        }
    }
    let (before, after) = slot.state_mut(2).advance(start, tokens.len());
    assert_eq!(before.map(|state| state[0]), (start > 0).then(|| mark(&tokens[..start])));
    for Snapshot { tokens: n, state } in after {
        state.fill(mark(&tokens[..*n]));
    }
}

/// Asserts that `slot` holds what a conversation of `tokens` alone would have left.
pub(super) fn assert_holds(slot: &KvSlot, tokens: &[u32]) {
    assert_eq!(slot.tokens(), tokens);
    for (layer, latent_layer, precision) in LAYERS {
        let blocks = |layer: usize, head| -> Vec<(Vec<f32>, Vec<f32>)> {
            let blocks = slot.layer(layer).blocks(head, 0..tokens.len());
            blocks.map(|(keys, values, _)| (wide(keys), wide(values))).collect()
        };
        let (all, latents) = (blocks(layer, 1), blocks(latent_layer, 0));
        let index_keys: Vec<Vec<f32>> =
            (0..all.len()).map(|block| wide(slot.layer(latent_layer).index_keys(block))).collect();
        for position in 0..tokens.len() {
            let (block, at) = (position / KV_BLOCK, position % KV_BLOCK);
            let m = rounded(precision, mark(&tokens[..=position]));
            let lane = |row: usize, rows: usize| (at / TILE * rows + row) * TILE + at % TILE;
            assert_eq!(all[block].0[lane(0, 3)], -m, "key of {position}");
            assert_eq!(all[block].1[at * 2..][..2], [-m, 9.0], "value of {position}");
            assert_eq!(latents[block].0[lane(2, 3)], 0.5, "key of {position}");
            assert_eq!(latents[block].1[at * 2..][..2], [m, -m], "latent of {position}");
            assert_eq!(index_keys[block][lane(1, 2)], 2.0 * m);
        }
    }
    let LayerMemory::State(state) = &slot.layers[2] else { panic!("a state") };
    for known in state.known() {
        assert!(state.after(known).iter().all(|&x| x == mark(&tokens[..known])));
    }
    assert_eq!(slot.checkpoint(tokens.len()), tokens.len(), "it can go on from where it stands");
}

/// What happens to a slot.
#[derive(Clone, Debug)]
enum Change {
    /// A request whose prompt begins with so many tokens of another slot and goes on with others.
    Submit {
        slot: usize,
        like: usize,
        common: usize,
        new: usize,
        token: u32,
        busy: usize,
    },
    /// A step over so many tokens; not committed if it is interrupted.
    Step {
        slot: usize,
        n: usize,
        token: u32,
        interrupted: bool,
    },
    Truncate {
        slot: usize,
        len: usize,
    },
}

fn change() -> impl Strategy<Value = Change> {
    let (slot, token, n) = (|| 0..4usize, || 0..3u32, || 1..400usize);
    prop_oneof![
        (slot(), slot(), 0..900usize, n(), token(), slot()).prop_map(
            |(slot, like, common, new, token, busy)| Change::Submit {
                slot,
                like,
                common,
                new,
                token,
                busy
            }
        ),
        (slot(), n(), token(), any::<bool>())
            .prop_map(|(slot, n, token, interrupted)| Change::Step { slot, n, token, interrupted }),
        (slot(), 0..900usize).prop_map(|(slot, len)| Change::Truncate { slot, len }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn slots_that_share_hold_what_each_alone_would(changes in prop::collection::vec(change(), 1..24)) {
        let mut slots: Vec<KvSlot> = (0..4).map(|_| KvSlot::new(&LAYOUTS)).collect();
        let mut naive: Vec<Vec<u32>> = vec![Vec::new(); 4];
        for change in changes {
            match change {
                Change::Submit { slot, like, common, new, token, busy } => {
                    let mut prompt = naive[like][..common.min(naive[like].len())].to_vec();
                    prompt.extend((0..new as u32).map(|i| token + i % 5));
                    let before = naive.clone();
                    let reused = reuse(&mut slots, slot, &prompt, |other| other != busy).tokens;
                    // What is said to be reused is no less than what the own slot or another has.
                    prop_assert!(reused < prompt.len());
                    naive[slot] = prompt[..reused].to_vec();
                    for other in (0..4).filter(|&other| other != slot) {
                        let now = slots[other].tokens().to_vec();
                        if now != before[other] {
                            prop_assert!(other != busy, "a slot in use was exchanged");
                            prop_assert_eq!(&now, &before[slot]);
                        }
                        naive[other] = now;
                    }
                    compute(&mut slots[slot], &prompt, reused);
                    slots[slot].commit(&prompt[reused..]);
                    naive[slot] = prompt;
                }
                Change::Step { slot, n, token, interrupted } => {
                    let mut tokens = naive[slot].clone();
                    tokens.extend((0..n as u32).map(|i| token + i % 7));
                    compute(&mut slots[slot], &tokens, naive[slot].len());
                    if !interrupted {
                        slots[slot].commit(&tokens[naive[slot].len()..]);
                        naive[slot] = tokens;
                    }
                }
                Change::Truncate { slot, len } => {
                    let left = slots[slot].truncate_to(len);
                    prop_assert!(left <= len);
                    naive[slot].truncate(left);
                }
            }
            for (slot, tokens) in slots.iter().zip(&naive) {
                assert_holds(slot, tokens);
            }
        }
    }
}

/// A slot after `tokens`.
fn slot_of(tokens: &[u32]) -> KvSlot {
    let mut slot = KvSlot::new(&LAYOUTS[..1]);
    for position in 0..tokens.len() {
        let m = mark(&tokens[..=position]);
        slot.layer_mut(0).write(position, &[m; 6], &[m; 4]);
    }
    slot.commit(tokens);
    slot
}

fn blocks_of(slot: &KvSlot) -> Vec<*const Block> {
    slot.layer(0).blocks.iter().map(Arc::as_ptr).collect()
}

#[test]
fn a_beginning_is_shared_until_somebody_writes() {
    let story: Vec<u32> = (0..600).collect();
    let mut slots = vec![slot_of(&story), slot_of(&[])];
    let prompt: Vec<u32> = (0..550).chain([9, 9]).collect();
    assert_eq!(reuse(&mut slots, 1, &prompt, |_| true).tokens, 550);
    assert_eq!(slots[0].tokens(), story, "what the other one has behind it is still there");
    assert_eq!(blocks_of(&slots[0]), blocks_of(&slots[1]));
    slots[1].layer_mut(0).write(550, &[1.0; 6], &[1.0; 4]);
    assert_eq!(blocks_of(&slots[0])[..2], blocks_of(&slots[1])[..2]);
    assert_ne!(blocks_of(&slots[0])[2], blocks_of(&slots[1])[2]);
    let value = |slot: &KvSlot| slot.layer(0).blocks(0, 512..600).next().map(|b| wide(b.1)[38 * 2]);
    assert_eq!((value(&slots[0]), value(&slots[1])), (Some(mark(&story[..551])), Some(1.0)));
}

#[test]
fn the_own_slot_is_taken_where_another_knows_no_more() {
    let mut slots = vec![slot_of(&[1, 2, 3, 4]), slot_of(&[1, 2, 3, 5, 6])];
    assert_eq!(reuse(&mut slots, 0, &[1, 2, 3, 9], |_| true).tokens, 3);
    assert_eq!(slots[0].tokens(), [1, 2, 3]);
    assert_eq!(slots[1].tokens(), [1, 2, 3, 5, 6]);
}

#[test]
fn a_conversation_that_comes_back_elsewhere_pushes_nobody_out() {
    let (own, back) = (vec![7; 50], vec![1, 2, 3, 4, 5]);
    let goes_on = [1, 2, 3, 4, 5, 6];
    let mut slots = vec![slot_of(&own), slot_of(&back)];
    assert_eq!(reuse(&mut slots, 0, &goes_on, |_| true).tokens, 5);
    assert_eq!((slots[0].tokens(), slots[1].tokens()), (&back[..], &own[..]));
    // One in use stays where it is.
    let mut slots = vec![slot_of(&own), slot_of(&back)];
    assert_eq!(reuse(&mut slots, 0, &goes_on, |_| false).tokens, 5);
    assert_eq!((slots[0].tokens(), slots[1].tokens()), (&back[..], &back[..]));
    // Where a beginning is all there is in common, less is lost by sharing it.
    let other: Vec<u32> = (0..200).collect();
    let mut slots = vec![slot_of(&own), slot_of(&other)];
    assert_eq!(reuse(&mut slots, 0, &[0, 1, 2, 9], |_| true).tokens, 3);
    assert_eq!((slots[0].tokens(), slots[1].tokens()), (&other[..3], &other[..]));
}
