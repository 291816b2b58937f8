//! The operations on x86-64. Each module is compiled for its features and called only where the
//! CPU has them.

use super::{PART, PART_MXFP4};

/// Two 256-bit registers for a tile.
macro_rules! avx2_module {
    ($(#[$doc:meta])* $name:ident, $features:literal, $bias8:expr, { $($ops:item)* }) => {
        $(#[$doc])*
        pub mod $name {
            use std::arch::x86_64::*;

            use crate::kernels::generic::Lanes;
            use crate::kernels::int::{BF16, BYTES, F16, F32, INT4, IntRows, MXFP4, PART, PART_MXFP4, int_matmul, scale_lanes};
            use crate::matrix::{Bits, IntTiles, Line, MXFP4_BIAS, MXFP4_UNSIGNED, Scales, TILE};

            type Pair = [__m256i; 2];

            const SOLO_TILES: usize = 2;
            const TILES: usize = 1;
            const ROWS: usize = 4;
            const BIAS8: i32 = $bias8;

            #[target_feature(enable = $features)]
            #[inline]
            fn splat(value: i32) -> Pair {
                [_mm256_set1_epi32(value); 2]
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn bytes(line: &Line) -> Pair {
                bytemuck::cast(*line)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn low(bytes: Pair) -> Pair {
                let mask = _mm256_set1_epi8(15);
                [_mm256_and_si256(bytes[0], mask), _mm256_and_si256(bytes[1], mask)]
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn high(bytes: Pair) -> Pair {
                low([_mm256_srli_epi16::<4>(bytes[0]), _mm256_srli_epi16::<4>(bytes[1])])
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn mxfp4(nibbles: Pair) -> Pair {
                let table = bytemuck::cast([MXFP4_UNSIGNED; 2]);
                [_mm256_shuffle_epi8(table, nibbles[0]), _mm256_shuffle_epi8(table, nibbles[1])]
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn scales<const SCALE: u8>(scales: &[u8], group: usize) -> [__m256; 2] {
                if SCALE == F32 {
                    return bytemuck::cast(scale_lanes::<f32>(scales, group));
                }
                let halves: [__m128i; 2] = bytemuck::cast(scale_lanes::<u16>(scales, group));
                if SCALE == F16 {
                    [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])]
                } else {
                    [
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves[0]))),
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves[1]))),
                    ]
                }
            }

            /// One KiB, which is enough for the next page to be on its way when the hardware, which
            /// stops at its border, gets there.
            #[target_feature(enable = $features)]
            #[inline]
            fn fetch_ahead(lines: &[Line], at: usize) {
                // A hint may name any address.
                _mm_prefetch::<_MM_HINT_T0>(lines.as_ptr().wrapping_add(at + 16).cast());
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn finish(sums: Pair, w_scales: [__m256; 2], x_scale: f32, acc: &mut Lanes) {
                let x_scale = _mm256_set1_ps(x_scale);
                let old: [__m256; 2] = bytemuck::cast(*acc);
                *acc = bytemuck::cast([
                    _mm256_fmadd_ps(
                        _mm256_cvtepi32_ps(sums[0]),
                        _mm256_mul_ps(w_scales[0], x_scale),
                        old[0],
                    ),
                    _mm256_fmadd_ps(
                        _mm256_cvtepi32_ps(sums[1]),
                        _mm256_mul_ps(w_scales[1], x_scale),
                        old[1],
                    ),
                ]);
            }

            $(
                #[target_feature(enable = $features)]
                #[inline]
                $ops
            )*

            int_matmul!($features);
        }
    };
}

// Eight words of two products of a nibble and a byte fit 16 bits.
const _: () = assert!(PART * 4 * 15 * 127 < 1 << 15);
const _: () = assert!(PART_MXFP4 * 4 * 24 * 127 < 1 << 15);

avx2_module!(
    /// Products of bytes go through 16 bits.
    avx2, "avx2,fma,f16c", 0,
    {
        fn begin(_: Pair) -> Pair {
            [_mm256_setzero_si256(); 2]
        }

        fn end(sums: Pair, part: Pair) -> Pair {
            let ones = _mm256_set1_epi16(1);
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(part[0], ones)),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(part[1], ones)),
            ]
        }

        fn dot4(part: Pair, nibbles: Pair, word: i32) -> Pair {
            let x = _mm256_set1_epi32(word);
            [
                _mm256_add_epi16(part[0], _mm256_maddubs_epi16(nibbles[0], x)),
                _mm256_add_epi16(part[1], _mm256_maddubs_epi16(nibbles[1], x)),
            ]
        }

        /// The sign of a weight moves to its input, since one factor has to be unsigned; two
        /// products of 128 and 127 fit 16 bits.
        fn dot8(sums: Pair, bytes: Pair, word: i32) -> Pair {
            let x = _mm256_set1_epi32(word);
            let ones = _mm256_set1_epi16(1);
            let product = [
                _mm256_maddubs_epi16(_mm256_abs_epi8(bytes[0]), _mm256_sign_epi8(x, bytes[0])),
                _mm256_maddubs_epi16(_mm256_abs_epi8(bytes[1]), _mm256_sign_epi8(x, bytes[1])),
            ];
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(product[0], ones)),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(product[1], ones)),
            ]
        }
    }
);

avx2_module!(
    /// With AVX-VNNI: as `vnni` below, on CPUs without 512-bit registers.
    avxvnni, "avx2,fma,f16c,avxvnni", 128,
    {
        fn begin(sums: Pair) -> Pair {
            sums
        }

        fn end(_: Pair, part: Pair) -> Pair {
            part
        }

        fn dot4(part: Pair, nibbles: Pair, word: i32) -> Pair {
            let x = _mm256_set1_epi32(word);
            [
                _mm256_dpbusd_avx_epi32(part[0], nibbles[0], x),
                _mm256_dpbusd_avx_epi32(part[1], nibbles[1], x),
            ]
        }

        fn dot8(sums: Pair, bytes: Pair, word: i32) -> Pair {
            let flip = _mm256_set1_epi8(-128);
            dot4(sums, [_mm256_xor_si256(bytes[0], flip), _mm256_xor_si256(bytes[1], flip)], word)
        }
    }
);

/// One 512-bit register for a tile.
macro_rules! avx512_module {
    ($(#[$doc:meta])* $name:ident, $features:literal, $bias8:expr, { $($ops:item)* }) => {
        $(#[$doc])*
        pub mod $name {
            use std::arch::x86_64::*;

            use crate::kernels::generic::Lanes;
            use crate::kernels::int::{BF16, BYTES, F16, F32, INT4, IntRows, MXFP4, PART, PART_MXFP4, int_matmul, scale_lanes};
            use crate::matrix::{Bits, IntTiles, Line, MXFP4_BIAS, MXFP4_UNSIGNED, Scales, TILE};

            const SOLO_TILES: usize = 4;
            const TILES: usize = 2;
            const ROWS: usize = 8;
            const BIAS8: i32 = $bias8;

            #[target_feature(enable = $features)]
            #[inline]
            fn splat(value: i32) -> __m512i {
                _mm512_set1_epi32(value)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn bytes(line: &Line) -> __m512i {
                bytemuck::cast(*line)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn low(bytes: __m512i) -> __m512i {
                _mm512_and_si512(bytes, _mm512_set1_epi8(15))
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn high(bytes: __m512i) -> __m512i {
                low(_mm512_srli_epi16::<4>(bytes))
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn mxfp4(nibbles: __m512i) -> __m512i {
                _mm512_shuffle_epi8(bytemuck::cast([MXFP4_UNSIGNED; 4]), nibbles)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn scales<const SCALE: u8>(scales: &[u8], group: usize) -> __m512 {
                if SCALE == F32 {
                    return bytemuck::cast(scale_lanes::<f32>(scales, group));
                }
                let halves = bytemuck::cast(scale_lanes::<u16>(scales, group));
                if SCALE == F16 {
                    _mm512_cvtph_ps(halves)
                } else {
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
                }
            }

            fn fetch_ahead(_: &[Line], _: usize) {}

            #[target_feature(enable = $features)]
            #[inline]
            fn finish(sums: __m512i, w_scales: __m512, x_scale: f32, acc: &mut Lanes) {
                let scale = _mm512_mul_ps(w_scales, _mm512_set1_ps(x_scale));
                let old: __m512 = bytemuck::cast(*acc);
                *acc = bytemuck::cast(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, old));
            }

            $(
                #[target_feature(enable = $features)]
                #[inline]
                $ops
            )*

            int_matmul!($features);
        }
    };
}

avx512_module!(
    /// Without VNNI; products of bytes go through 16 bits as with AVX2.
    avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", 0,
    {
        fn begin(_: __m512i) -> __m512i {
            _mm512_setzero_si512()
        }

        fn end(sums: __m512i, part: __m512i) -> __m512i {
            _mm512_add_epi32(sums, _mm512_madd_epi16(part, _mm512_set1_epi16(1)))
        }

        fn dot4(part: __m512i, nibbles: __m512i, word: i32) -> __m512i {
            _mm512_add_epi16(part, _mm512_maddubs_epi16(nibbles, _mm512_set1_epi32(word)))
        }

        /// There is no sign instruction of this width: both factors are widened.
        fn dot8(sums: __m512i, bytes: __m512i, word: i32) -> __m512i {
            let negative = _mm512_movepi8_mask(bytes);
            let x = _mm512_set1_epi32(word);
            let x = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
            let product = _mm512_maddubs_epi16(_mm512_abs_epi8(bytes), x);
            _mm512_add_epi32(sums, _mm512_madd_epi16(product, _mm512_set1_epi16(1)))
        }
    }
);

avx512_module!(
    /// With VNNI: four products of an unsigned and a signed byte are added at once, exactly.
    vnni, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", 128,
    {
        fn begin(sums: __m512i) -> __m512i {
            sums
        }

        fn end(_: __m512i, part: __m512i) -> __m512i {
            part
        }

        fn dot4(part: __m512i, nibbles: __m512i, word: i32) -> __m512i {
            _mm512_dpbusd_epi32(part, nibbles, _mm512_set1_epi32(word))
        }

        fn dot8(sums: __m512i, bytes: __m512i, word: i32) -> __m512i {
            let unsigned = _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
            _mm512_dpbusd_epi32(sums, unsigned, _mm512_set1_epi32(word))
        }
    }
);
