//! Elementary functions built from IEEE primitives in one fixed order, the same bits everywhere.
//!
//! Only `+ - * / sqrt fma`, comparisons, rounding to integer and bit operations are used, each
//! exactly rounded by IEEE 754, so scalar and vector code cannot differ.

/// e^x. Within 1 ulp of the exact value; 0 below -104, infinity above 88.73.
///
/// Cody-Waite reduction x = n ln 2 + r, a degree-6 polynomial for e^r on |r| <= ln 2 / 2
/// (Taylor coefficients up to r^7 / 7!), then scaling by 2^n in two exact halves.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-104.0, 89.0);
    let n = (clamped * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_HI, clamped);
    let r = n.mul_add(-LN2_LO, r);
    let mut p = 1.0 / 5040.0;
    p = r.mul_add(p, 1.0 / 720.0);
    p = r.mul_add(p, 1.0 / 120.0);
    p = r.mul_add(p, 1.0 / 24.0);
    p = r.mul_add(p, 1.0 / 6.0);
    p = r.mul_add(p, 0.5);
    let e = (r * r).mul_add(p, r) + 1.0;
    // 2^n in two factors keeps both inside the normal range, from subnormal results to overflow.
    let half = (n * 0.5).round_ties_even();
    let result = e * power_of_two(half) * power_of_two(n - half);
    if x.is_nan() { x } else { result }
}

/// 2^n for an integral n between -126 and 127.
#[inline(always)]
fn power_of_two(n: f32) -> f32 {
    f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// 1 / (1 + e^-x), from e^-|x| so that nothing overflows.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// x sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the correctly rounded result.
    fn ulps(ours: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        if ours == rounded {
            return 0.0;
        }
        let next = f32::from_bits(rounded.to_bits() + 1);
        let ulp = f64::from(next) - f64::from(rounded);
        (f64::from(ours) - exact).abs() / ulp
    }

    /// Floats of every exponent and sign: each 1009th bit pattern, 1009 being prime.
    fn samples() -> impl Iterator<Item = f32> {
        (0..u32::MAX).step_by(1009).map(f32::from_bits).filter(|x| !x.is_nan())
    }

    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for x in samples() {
            let value = exact(f64::from(x));
            if value.abs() < f64::from(f32::MAX) {
                let error = ulps(f(x), value);
                if error > worst.0 {
                    worst = (error, x);
                }
            }
        }
        worst
    }

    #[test]
    fn exp_is_within_two_ulps_of_the_exact_value() {
        let (error, at) = worst(exp, libm::exp);
        assert!(error <= 2.0, "{error} ulps at {at}");
    }

    #[test]
    fn sigmoid_and_silu_are_within_three_ulps() {
        let (error, at) = worst(sigmoid, |x| 1.0 / (1.0 + libm::exp(-x)));
        assert!(error <= 3.0, "sigmoid: {error} ulps at {at}");
        for x in samples().filter(|x| x.abs() < 80.0) {
            let exact = f64::from(x) / (1.0 + libm::exp(-f64::from(x)));
            assert!(ulps(silu(x).abs(), exact.abs()) <= 3.0, "silu at {x}");
        }
    }

    #[test]
    fn limits_are_the_expected_ones() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(silu(-200.0), 0.0);
        assert!(sigmoid(f32::NAN).is_nan());
    }
}
