//! Attention of random shapes beside the plain definition of one query, on every instruction set and
//! by several numbers of threads.

use proptest::prelude::*;

use super::*;
use crate::cpu::Isa;
use crate::kernels::scalar;
use crate::kv::Precision;

/// A small generator with a fixed sequence; values of mixed magnitude and sign.
struct Random(u64);

impl Random {
    fn float(&mut self) -> f32 {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as u32
        };
        (next() as f32 / 2f32.powi(30) - 1.0) * 2f32.powi(next() as i32 % 4)
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

#[derive(Clone, Debug)]
struct Case {
    key_heads: usize,
    sharing: usize,
    dims: (usize, usize),
    precision: Precision,
    /// For each slot its positions and how many of the last are rows.
    slots: Vec<(usize, usize)>,
    window: Option<usize>,
    sinks: bool,
    seed: u64,
}

/// Few of the expensive: the product of what makes work is bounded.
fn cases() -> impl Strategy<Value = Case> {
    let heads = prop_oneof![(1..4usize, 1..10usize), Just((1, 23)), Just((2, 16))];
    let dims = prop_oneof![
        Just((8, 5)),
        Just((16, 16)),
        Just((24, 36)),
        Just((64, 64)),
        Just((72, 130)),
        Just((40, 83)),
    ];
    let positions =
        prop_oneof![1..20usize, Just(256), Just(257), 240..300usize, 500..530usize, 700..800usize];
    let slots = proptest::collection::vec((positions, 1..6usize), 1..3);
    let window = prop_oneof![Just(None), (1..400usize).prop_map(Some)];
    let precision = prop_oneof![Just(Precision::F32), Just(Precision::Bf16)];
    let kept = (dims, precision);
    (heads, kept, slots, window, any::<bool>(), any::<u64>()).prop_map(
        |((key_heads, sharing), (dims, precision), slots, window, sinks, seed)| Case {
            key_heads,
            sharing,
            dims,
            precision,
            slots: slots.into_iter().map(|(n, rows)| (n, rows.min(n))).collect(),
            window,
            sinks,
            seed,
        },
    )
}

/// Keys and values of a slot, `[positions][heads * dim]`.
struct Written {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

fn check(case: &Case, levels: &[Kernels], teams: &[Team]) {
    let (k_dim, v_dim) = case.dims;
    let precision = case.precision;
    let layout = KvLayout { heads: case.key_heads, k_dim, v_dim, index_dim: 0, precision };
    let round = |x: &mut Vec<f32>| {
        if precision == Precision::Bf16 {
            for x in x {
                *x = half::bf16::from_f32(*x).to_f32();
            }
        }
    };
    let n = case.key_heads * case.sharing;
    let mut random = Random(case.seed);
    let (mut slots, mut written, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, &(positions, n_rows)) in case.slots.iter().enumerate() {
        let mut kv = KvSlot::new(&[LayerLayout::Positions(layout)]);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for position in 0..positions {
            keys.push(random.floats(case.key_heads * k_dim));
            values.push(random.floats(case.key_heads * v_dim));
            kv.layer_mut(0).write(position, &keys[position], &values[position]);
            round(&mut keys[position]);
            round(&mut values[position]);
        }
        rows.extend((positions - n_rows..positions).map(|position| Row {
            slot,
            position,
            token: 0,
        }));
        slots.push(kv);
        written.push(Written { keys, values });
    }
    let q = random.floats(rows.len() * n * k_dim);
    let sinks = random.floats(n);
    let sinks = case.sinks.then_some(&sinks[..]);
    let heads = Heads { layer: 0, layout, n, scale: 0.125, window: case.window, sinks };
    let mut expected = Vec::new();
    for (row, q) in rows.iter().zip(q.chunks_exact(n * k_dim)) {
        let end = row.position + 1;
        let first = case.window.map_or(0, |window| end.saturating_sub(window));
        for (head, q) in q.chunks_exact(k_dim).enumerate() {
            let of_head = |all: &[Vec<f32>], dim: usize| -> Vec<Vec<f32>> {
                let at = head / case.sharing * dim;
                all[..end].iter().map(|x| x[at..at + dim].to_vec()).collect()
            };
            let keys = of_head(&written[row.slot].keys, k_dim);
            let values = of_head(&written[row.slot].values, v_dim);
            let sink = sinks.map(|sinks| sinks[head]);
            expected.extend(scalar::attend(q, 0.125, &keys, &values, KV_BLOCK, first, sink));
        }
    }
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for kernels in levels {
        for team in teams {
            let ours = attend(Attending { kernels, team, slots: &slots }, &rows, &heads, &q);
            let by = (kernels.isa().name(), team.n_threads());
            assert_eq!(bits(&ours), bits(&expected), "{by:?}: {case:?}");
        }
    }
}

fn levels() -> Vec<Kernels> {
    Isa::available().into_iter().map(Kernels::new).collect()
}

fn teams() -> Vec<Team> {
    [1, 2, 3, 7].map(Team::new).into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_equals_the_definition_bit_for_bit(case in cases()) {
        check(&case, &levels(), &teams());
    }
}

/// More than is found in one wave, in the two shapes of heads there are.
#[test]
fn long_contexts_equal_the_definition_bit_for_bit() {
    // Without fused multiply-adds these would take minutes.
    let fast: Vec<Kernels> = levels().into_iter().filter(|k| k.isa() != Isa::Scalar).collect();
    for (key_heads, sharing, dims, positions) in
        [(1, 64, (576, 512), 2100), (2, 9, (128, 128), 5000)]
    {
        let slots = vec![(positions, 1), (300, 1)];
        let precision = if sharing == 9 { Precision::Bf16 } else { Precision::F32 };
        let (window, sinks, seed) = (None, false, 3);
        let case = Case { key_heads, sharing, dims, precision, slots, window, sinks, seed };
        check(&case, &fast, &teams());
    }
}

/// What is left in a block by a longer conversation, or beside a window, does not reach a row, were it
/// not a number.
#[test]
fn positions_that_a_row_does_not_see_do_not_reach_it() {
    let precision = Precision::F32;
    let layout = KvLayout { heads: 1, k_dim: 16, v_dim: 20, index_dim: 0, precision };
    let mut slots = [KvSlot::new(&[LayerLayout::Positions(layout)])];
    for position in 0..256 {
        let x = if (90..=100).contains(&position) { 1.0 } else { f32::NAN };
        slots[0].layer_mut(0).write(position, &[x; 16], &[x; 20]);
    }
    let heads = Heads { layer: 0, layout, n: 3, scale: 1.0, window: Some(10), sinks: None };
    let rows = [99, 100].map(|position| Row { slot: 0, position, token: 0 });
    for kernels in &levels() {
        let on = Attending { kernels, team: &Team::new(2), slots: &slots };
        assert_eq!(attend(on, &rows, &heads, &[0.5; 2 * 3 * 16]), [1.0; 2 * 3 * 20]);
    }
}
