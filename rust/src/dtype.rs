//! Scalar types as they are stored, and their exact conversions to f32.

/// How a plain tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// The type that has this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16].into_iter().find(|dtype| dtype.name() == name)
    }
}

/// Widens a bf16 exactly.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bf16 nearest to `x`, of two equally near ones the even one; a NaN stays one.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    // Beyond the largest bf16 this carries into the exponent of infinity, as rounding should.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // What tells a NaN from infinity may be in the half that is dropped.
    (if x.is_nan() { bits | 0x40_0000 } else { rounded } >> 16) as u16
}

/// Widens an f16 exactly, without a branch, so that a loop over it vectorises.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // Multiplying by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (u32::from(bits & 0x8000) << 16))
}

/// Widens an e4m3 code (OCP 8-bit floating point: no infinities, NaN at 0x7f and 0xff) exactly.
#[inline(always)]
pub fn e4m3_to_f32(code: u8) -> f32 {
    if is_e4m3_nan(code) { f32::NAN } else { e4m3_number_to_f32(code) }
}

/// Whether an e4m3 code is NaN.
#[inline(always)]
pub fn is_e4m3_nan(code: u8) -> bool {
    code & 0x7f == 0x7f
}

/// Widens an e4m3 code that is a number exactly, without a branch, so that a loop over it
/// vectorises. The two that are not become 480 and -480, which the format would have there.
#[inline(always)]
pub fn e4m3_number_to_f32(code: u8) -> f32 {
    // The sign is extended, and all of its copies but the highest are taken away again.
    let bits = (i32::from(code as i8) << 20) as u32 & 0x87f0_0000;
    // Multiplying by 2^120 moves the exponent bias from 7 to 127 and normalises subnormals.
    f32::from_bits(bits) * f32::from_bits(0x7b80_0000)
}

/// Widens little-endian `bytes` of `dtype` to f32.
pub fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = |f: fn(u16) -> f32| {
        bytes.chunks_exact(2).map(|b| f(u16::from_le_bytes([b[0], b[1]]))).collect()
    };
    match dtype {
        Dtype::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        Dtype::F16 => halves(f16_to_f32),
        Dtype::Bf16 => halves(bf16_to_f32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_as_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let reference = half::f16::from_bits(bits).to_f32();
            let ours = f16_to_f32(bits);
            assert!(
                ours.to_bits() == reference.to_bits() || (ours.is_nan() && reference.is_nan()),
                "{bits:#06x}: {ours} instead of {reference}"
            );
            assert_eq!(bf16_to_f32(bits).to_bits(), u32::from(bits) << 16);
        }
    }

    #[test]
    fn floats_round_to_the_nearest_bf16_and_ties_to_the_even_one() {
        // Beside every bf16: itself, what lies around the middle to the next one, and that one's last.
        for upper in 0..=u16::MAX {
            for lower in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(upper) << 16 | lower);
                let ours = f32_to_bf16(x);
                if x.is_nan() {
                    assert!(bf16_to_f32(ours).is_nan(), "{:#x}", x.to_bits());
                    continue;
                }
                // Neighbours in the order of magnitudes, infinity in its place above the largest.
                let (below, above) = (upper, upper + u16::from(lower > 0));
                let expected = match lower {
                    0x8000 if below % 2 == 0 => below,
                    0x8000.. => above,
                    _ => below,
                };
                assert_eq!(ours, expected, "{x}");
                assert_eq!(ours, half::bf16::from_f32(x).to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn every_e4m3_code_widens_to_the_value_its_fields_say() {
        for code in 0..=u8::MAX {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
            let magnitude = match (exponent, mantissa) {
                (15, 7.0) => f32::NAN,
                (0, m) => m / 8.0 * 2f32.powi(-6),
                (e, m) => (1.0 + m / 8.0) * 2f32.powi(e - 7),
            };
            let expected = if code < 128 { magnitude } else { -magnitude };
            let ours = e4m3_to_f32(code);
            if expected.is_nan() {
                assert!(ours.is_nan() && is_e4m3_nan(code), "{code:#04x}: {ours}");
            } else {
                assert_eq!(ours.to_bits(), expected.to_bits(), "{code:#04x}: {ours}");
                assert_eq!(e4m3_number_to_f32(code).to_bits(), expected.to_bits());
            }
        }
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x01), 2f32.powi(-9));
    }

    #[test]
    fn bytes_are_little_endian() {
        assert_eq!(widen(Dtype::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(widen(Dtype::Bf16, &[0xc0, 0x3f]), [1.5]);
        assert_eq!(widen(Dtype::F16, &[0x00, 0x3e]), [1.5]);
    }
}
