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

/// Widens an f16 exactly, without a branch, so that a loop over it vectorises.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // Multiplying by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (u32::from(bits & 0x8000) << 16))
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
    fn bytes_are_little_endian() {
        assert_eq!(widen(Dtype::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(widen(Dtype::Bf16, &[0xc0, 0x3f]), [1.5]);
        assert_eq!(widen(Dtype::F16, &[0x00, 0x3e]), [1.5]);
    }
}
