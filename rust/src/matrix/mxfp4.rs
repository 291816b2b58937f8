//! The element and scale of MXFP4 (OCP Microscaling Formats, 1.0) as integers and bf16.

/// Inputs that share a scale, by the format's definition.
pub const MXFP4_GROUP: usize = 32;

/// What is added to twice the value of a code to have no sign.
pub const MXFP4_BIAS: i32 = 12;

/// Twice the value of each e2m1 code, plus [`MXFP4_BIAS`]: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and the same
/// with a sign in bit 3.
pub const MXFP4_UNSIGNED: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Half the scale 2^(`exponent` - 127) as bf16, exactly; NaN for 255, as e8m0 defines it.
pub fn mxfp4_scale(exponent: u8) -> u16 {
    match exponent {
        // Below 2^-126 bf16 is subnormal, in steps of 2^-133.
        0 => 0x0020,
        1 => 0x0040,
        255 => 0x7fc0,
        _ => u16::from(exponent - 1) << 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::bf16_to_f32;

    #[test]
    fn codes_have_the_values_their_fields_say() {
        for code in 0..16u8 {
            let (sign, exponent, mantissa) = (code >> 3, code >> 1 & 3, f32::from(code & 1));
            let magnitude = match exponent {
                0 => mantissa * 0.5,
                e => (1.0 + mantissa * 0.5) * 2f32.powi(i32::from(e) - 1),
            };
            let value = if sign == 1 { -magnitude } else { magnitude };
            let doubled = i32::from(MXFP4_UNSIGNED[usize::from(code)]) - MXFP4_BIAS;
            assert_eq!(doubled as f32, 2.0 * value, "{code}");
        }
    }

    #[test]
    fn scales_are_half_of_the_powers_of_two() {
        for exponent in 0..255u8 {
            let exact = 2f64.powi(i32::from(exponent) - 128);
            assert_eq!(f64::from(bf16_to_f32(mxfp4_scale(exponent))), exact, "{exponent}");
        }
        assert!(bf16_to_f32(mxfp4_scale(255)).is_nan());
    }
}
