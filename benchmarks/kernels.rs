//! How close the kernels of quantised weights come to what memory and arithmetic allow.
//!
//! `cargo bench --bench kernels [-- ROUNDS]` prints one JSON object. Every kernel runs beside the
//! ceiling it is compared with, round by round, on the clock of its own thread: other work on the
//! machine then costs time but hardly changes the ratios, which come as minimum, median, maximum.

#![allow(clippy::print_stdout, reason = "a report on stdout is what this program is for")]

use std::hint::black_box;

use colibri::cpu::Isa;
use colibri::kernels::Kernels;
use colibri::matrix::{
    Bits, Elements, Fp8Tiles, IntTiles, LINE, Line, MXFP4_GROUP, Matrix, Scales, TILE,
};
use colibri::threads::Team;

/// Inputs of every matrix.
const N_IN: usize = 2048;
/// Far more than any cache holds.
const RAM_BYTES: usize = 384 << 20;
/// Rows of the product that is bound by arithmetic.
const GEMM_ROWS: usize = 64;

/// Seconds of this thread on a CPU.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that outlives the call.
    #[allow(unsafe_code, reason = "the standard library has no clock of a thread")]
    unsafe {
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
    }
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn timed(mut f: impl FnMut()) -> f64 {
    let start = thread_seconds();
    f();
    thread_seconds() - start
}

/// Names of the formats, and how many of their weights take a byte.
const FORMATS: [(&str, usize); 4] =
    [("int4-g64", 2), ("int8-g64", 1), ("mxfp4", 2), ("fp8-e4m3", 1)];

/// A matrix of random bits in `format`.
fn matrix(format: &str, n_out: usize) -> Matrix {
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let (bits, group) = match format {
        "int4-g64" => (Bits::Four, 64),
        "int8-g64" => (Bits::Eight, 64),
        "mxfp4" => (Bits::Mxfp4, MXFP4_GROUP),
        _ => {
            let codes: Vec<u8> = (0..n_out * N_IN).map(|_| byte()).collect();
            let scales = vec![0.01; n_out * N_IN / 128];
            let elements = Elements::Fp8(Fp8Tiles { block: 128, codes, scales });
            return Matrix { n_out, n_in: N_IN, elements };
        }
    };
    let n_lines = n_out / TILE * N_IN / bits.inputs_per_line();
    let lines = (0..n_lines)
        .map(|_| Line(std::array::from_fn(|_| std::array::from_fn(|_| byte()))))
        .collect();
    let scales = Scales::F16(vec![0x2000; n_out * N_IN / group]);
    let elements = Elements::Int(IntTiles { bits, group, lines, scales });
    Matrix { n_out, n_in: N_IN, elements }
}

/// The weights of `w` as memory.
fn lines(w: &Matrix) -> &[Line] {
    match &w.elements {
        Elements::Int(tiles) => &tiles.lines,
        Elements::Fp8(tiles) => bytemuck::pod_align_to(&tiles.codes).1,
        _ => unreachable!("no such matrix is built"),
    }
}

/// The read ceiling: all lines added up, with the widest vectors there are.
#[cfg(target_arch = "x86_64")]
fn read(lines: &[Line]) -> u64 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_add_epi64, _mm256_setzero_si256, _mm512_add_epi64,
        _mm512_setzero_si512,
    };

    #[target_feature(enable = "avx512f")]
    fn wide(lines: &[Line]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 8];
        for chunk in bytemuck::cast_slice::<_, [__m512i; 8]>(lines) {
            for (sum, line) in sums.iter_mut().zip(chunk) {
                *sum = _mm512_add_epi64(*sum, *line);
            }
        }
        bytemuck::cast_slice::<_, u64>(&sums).iter().fold(0, |a, b| a.wrapping_add(*b))
    }

    #[target_feature(enable = "avx2")]
    fn narrow(lines: &[Line]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 8];
        for chunk in bytemuck::cast_slice::<_, [__m256i; 8]>(lines) {
            for (sum, half) in sums.iter_mut().zip(chunk) {
                *sum = _mm256_add_epi64(*sum, *half);
            }
        }
        bytemuck::cast_slice::<_, u64>(&sums).iter().fold(0, |a, b| a.wrapping_add(*b))
    }

    let lines = &lines[..lines.len() / 8 * 8];
    #[allow(unsafe_code, reason = "calls of functions whose instruction set was detected")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: just detected.
        unsafe { wide(lines) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: just detected.
        unsafe { narrow(lines) }
    } else {
        panic!("there is no kernel to compare with on this CPU")
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn read(lines: &[Line]) -> u64 {
    bytemuck::cast_slice::<_, u64>(lines).iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    format!("[{:.3}, {:.3}, {:.3}]", values[0], values[last / 2], values[last])
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(7);
    let team = Team::new(1);
    let levels: Vec<Kernels> =
        Isa::available().into_iter().filter(|i| *i != Isa::Scalar).map(Kernels::new).collect();
    let mut entries = Vec::new();
    for (name, weights_per_byte) in FORMATS {
        let n_out = RAM_BYTES / N_IN * weights_per_byte / TILE * TILE;
        let w = matrix(name, n_out);
        let lines = lines(&w);
        let bytes = w.bytes() as f64;
        let x: Vec<f32> = (0..N_IN).map(|i| (i % 17) as f32 - 8.0).collect();
        let (mut ratios, mut rates) =
            (vec![Vec::new(); levels.len()], vec![Vec::new(); levels.len()]);
        let mut ceilings = Vec::new();
        for _ in 0..rounds {
            let n_bytes = (lines.len() * LINE) as f64;
            let ceiling = n_bytes
                / timed(|| {
                    black_box(read(black_box(lines)));
                });
            ceilings.push(ceiling / 1e9);
            for (i, kernels) in levels.iter().enumerate() {
                let rate = bytes
                    / timed(|| {
                        black_box(kernels.matmul(&team, &w, black_box(&x)));
                    });
                rates[i].push(rate / 1e9);
                ratios[i].push(rate / ceiling);
            }
        }
        for (i, kernels) in levels.iter().enumerate() {
            entries.push(format!(
                r#"{{"what": "matvec out of RAM", "format": "{name}", "isa": "{}", "gb_s": {}, "read_gb_s": {}, "of_ceiling": {}}}"#,
                kernels.isa().name(), spread(rates[i].clone()), spread(ceilings.clone()), spread(ratios[i].clone()),
            ));
        }
        let w = matrix(name, 2048);
        for n_rows in [1, 2, 4, 8, 16, GEMM_ROWS] {
            let x: Vec<f32> = (0..n_rows * N_IN).map(|i| (i % 17) as f32 - 8.0).collect();
            let macs = (n_rows * N_IN * w.n_out) as f64;
            for kernels in &levels {
                let repeat = (64 / n_rows).max(1) * 4;
                let rates: Vec<f64> = (0..rounds)
                    .map(|_| {
                        let seconds = timed(|| {
                            for _ in 0..repeat {
                                black_box(kernels.matmul(&team, &w, black_box(&x)));
                            }
                        });
                        macs * repeat as f64 / seconds / 1e9
                    })
                    .collect();
                entries.push(format!(
                    r#"{{"what": "product from cache", "rows": {n_rows}, "format": "{name}", "isa": "{}", "gmac_s": {}}}"#,
                    kernels.isa().name(), spread(rates),
                ));
            }
        }
    }
    println!("{{\"results\": [\n  {}\n]}}", entries.join(",\n  "));
}
