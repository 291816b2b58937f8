//! How close attention over long contexts comes to what memory and arithmetic allow.
//!
//! `cargo bench --bench attention [-- ROUNDS]` prints one JSON object: for each shape and number of
//! threads milliseconds of one layer, the rate at which keys and values were read (each counted
//! once) and the rate of multiplications and additions, beside the two ceilings of the machine. Numbers
//! come as minimum, median, maximum of the rounds, on the clock of the wall.

#![allow(clippy::print_stdout, reason = "a report on stdout is what this program is for")]

use std::hint::black_box;
use std::time::Instant;

use colibri::cpu::Isa;
use colibri::kernels::Kernels;
use colibri::kv::{KvLayout, KvSlot, LayerLayout, Precision};
use colibri::model::Row;
use colibri::model::attention::{Attending, Heads, attend};
use colibri::threads::Team;

/// Elements that are added up to see how fast memory is read: far more than any cache holds.
const IN_RAM: usize = 64 << 20;
/// Elements of the chains that are lengthened to see how fast this CPU multiplies and adds.
const CHAINS: usize = 80;
/// Times they are lengthened.
const TIMES: usize = 4_000_000;

struct Shape {
    name: &'static str,
    n_heads: usize,
    layout: KvLayout,
    window: Option<usize>,
    context: usize,
    /// The last rows of the context.
    n_rows: usize,
}

impl Shape {
    fn seen(&self, row: usize) -> usize {
        let end = self.context - self.n_rows + row + 1;
        self.window.map_or(end, |window| end.min(window))
    }
}

fn shapes(precision: Precision) -> Vec<Shape> {
    let gqa = |heads, dim| KvLayout { heads, k_dim: dim, v_dim: dim, index_dim: 0, precision };
    let latent = KvLayout { heads: 1, k_dim: 576, v_dim: 512, index_dim: 0, precision };
    let shape = |name, n_heads, layout, window, context, n_rows| Shape {
        name,
        n_heads,
        layout,
        window,
        context,
        n_rows,
    };
    vec![
        shape("decode, 32 heads on 4 of 128", 32, gqa(4, 128), None, 8192, 1),
        shape("decode, 16 heads on 16 of 128", 16, gqa(16, 128), None, 8192, 1),
        shape("decode, 16 heads on 2 of 64, window", 16, gqa(2, 64), Some(4096), 8192, 1),
        shape("decode, 64 heads on a latent", 64, latent, None, 8192, 1),
        shape("decode of little, 32 heads on 4 of 128", 32, gqa(4, 128), None, 100, 1),
        shape("prompt, 32 heads on 4 of 128", 32, gqa(4, 128), None, 2048, 256),
        shape("prompt, 16 heads on 16 of 128", 16, gqa(16, 128), None, 2048, 256),
        shape("prompt, 16 heads on 2 of 64, window", 16, gqa(2, 64), Some(128), 2048, 256),
        shape("prompt, 64 heads on a latent", 64, latent, None, 2048, 32),
    ]
}

/// Numbers between -1 and 1.
struct Random(u64);

impl Random {
    fn floats(&mut self, n: usize) -> Vec<f32> {
        let mut float = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as f32 / 2f32.powi(30) - 1.0
        };
        (0..n).map(|_| float()).collect()
    }
}

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

/// Gigabytes a second that all threads read out of memory together.
fn read_rate(team: &Team, memory: &[f32]) -> f64 {
    let parts: Vec<&[f32]> = memory.chunks(memory.len() / (16 * team.n_threads())).collect();
    let time = seconds(|| {
        black_box(team.map(&parts, usize::MAX, |part| {
            let mut sums = [0u32; 64];
            for chunk in part.as_chunks::<64>().0 {
                for (sum, x) in sums.iter_mut().zip(chunk) {
                    *sum = sum.wrapping_add(x.to_bits());
                }
            }
            sums
        }));
    });
    size_of_val(memory) as f64 / time / 1e9
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn lengthen(x: f32) -> [f32; CHAINS] {
    let mut chains = [x; CHAINS];
    for _ in 0..TIMES {
        for chain in &mut chains {
            *chain = chain.mul_add(x, x);
        }
    }
    chains
}

/// Gigaflops of all threads together, in chains long enough in flight.
#[cfg(target_arch = "x86_64")]
fn arithmetic_rate(team: &Team) -> Option<f64> {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        return None;
    }
    let parts = vec![0.5f32; team.n_threads()];
    let time = seconds(|| {
        // SAFETY: just detected.
        #[allow(unsafe_code, reason = "a call of a function whose instruction set was detected")]
        black_box(team.map(&parts, usize::MAX, |&x| unsafe { lengthen(black_box(x)) }));
    });
    Some(2.0 * (CHAINS * TIMES * parts.len()) as f64 / time / 1e9)
}

#[cfg(not(target_arch = "x86_64"))]
fn arithmetic_rate(_: &Team) -> Option<f64> {
    None
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    format!("[{:.3}, {:.3}, {:.3}]", values[0], values[last / 2], values[last])
}

fn measure(shape: &Shape, kernels: &Kernels, teams: &[Team], rounds: usize) -> Vec<String> {
    let mut random = Random(1);
    let layout = shape.layout;
    let mut slots = [KvSlot::new(&[LayerLayout::Positions(layout)])];
    for position in 0..shape.context {
        let key = random.floats(layout.heads * layout.k_dim);
        let value = random.floats(layout.heads * layout.v_dim);
        slots[0].layer_mut(0).write(position, &key, &value);
    }
    let heads = Heads {
        layer: 0,
        layout,
        n: shape.n_heads,
        scale: 0.05,
        window: shape.window,
        sinks: None,
    };
    let first = shape.context - shape.n_rows;
    let row = |position| Row { slot: 0, position, token: 0 };
    let rows: Vec<Row> = (first..shape.context).map(row).collect();
    let q = random.floats(rows.len() * shape.n_heads * layout.k_dim);
    let pairs: usize = (0..rows.len()).map(|row| shape.seen(row)).sum();
    let flops = 2 * pairs * shape.n_heads * (layout.k_dim + layout.v_dim);
    let distinct = shape.context - (first + 1 - shape.seen(0));
    let bytes = distinct * layout.bytes_per_position();
    let mut times = vec![Vec::new(); teams.len()];
    for _ in 0..rounds {
        for (team, times) in teams.iter().zip(&mut times) {
            let on = Attending { kernels, team, slots: &slots };
            times.push(seconds(|| {
                black_box(attend(on, &rows, &heads, black_box(&q)));
            }));
        }
    }
    let entry = |(team, times): (&Team, &Vec<f64>)| {
        let of = |f: &dyn Fn(f64) -> f64| spread(times.iter().map(|&time| f(time)).collect());
        format!(
            r#"{{"what": "{}", "kept": "{:?}", "threads": {}, "ms": {}, "gb_s": {}, "gflops": {}}}"#,
            shape.name,
            layout.precision,
            team.n_threads(),
            of(&|time| time * 1e3),
            of(&|time| bytes as f64 / time / 1e9),
            of(&|time| flops as f64 / time / 1e9),
        )
    };
    teams.iter().zip(&times).map(entry).collect()
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(7);
    let kernels = Kernels::new(Isa::detect());
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut teams = vec![Team::new(1)];
    if n_threads > 1 {
        teams.push(Team::new(n_threads));
    }
    let mut entries = Vec::new();
    let memory = Random(1).floats(IN_RAM);
    for team in &teams {
        let read = (0..rounds).map(|_| read_rate(team, &memory)).collect();
        let n = team.n_threads();
        entries.push(format!(r#"{{"what": "reading", "threads": {n}, "gb_s": {}}}"#, spread(read)));
        if let Some(rates) = (0..rounds).map(|_| arithmetic_rate(team)).collect() {
            entries.push(format!(
                r#"{{"what": "arithmetic", "threads": {n}, "gflops": {}}}"#,
                spread(rates)
            ));
        }
    }
    drop(memory);
    for shape in [Precision::F32, Precision::Bf16].into_iter().flat_map(shapes) {
        entries.extend(measure(&shape, &kernels, &teams, rounds));
    }
    let isa = kernels.isa().name();
    println!("{{\"isa\": \"{isa}\", \"results\": [\n  {}\n]}}", entries.join(",\n  "));
}
