//! Elementary functions built from IEEE primitives in one fixed order, the same bits everywhere.
//!
//! Only `+ - * / sqrt fma`, comparisons, rounding to integer and bit operations are used, each
//! exactly rounded by IEEE 754, so scalar and vector code cannot differ.

/// e^x. Within 1.1 ulp of the exact value; 0 below -104, infinity above 88.73.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let power = Power::of(x.clamp(LEAST, 89.0));
    let result = power.scale(1.0 + power.t);
    if x.is_nan() { x } else { result }
}

/// Where e^x times x has long become 0.
const LEAST: f32 = -120.0;

/// (1 + t) 2^n = e^x.
struct Power {
    t: f32,
    n: f32,
}

impl Power {
    /// Cody-Waite reduction x = n ln 2 + r, then a polynomial of degree 7 for e^r on
    /// |r| <= ln 2 / 2, its Taylor series up to r^7 / 7!.
    #[inline(always)]
    fn of(x: f32) -> Self {
        const LN2_HI: f32 = 0.693_359_4;
        const LN2_LO: f32 = -2.121_944_4e-4;
        let n = (x * std::f32::consts::LOG2_E).round_ties_even();
        let r = n.mul_add(-LN2_HI, x);
        let r = n.mul_add(-LN2_LO, r);
        let mut p = 1.0 / 5040.0;
        p = r.mul_add(p, 1.0 / 720.0);
        p = r.mul_add(p, 1.0 / 120.0);
        p = r.mul_add(p, 1.0 / 24.0);
        p = r.mul_add(p, 1.0 / 6.0);
        p = r.mul_add(p, 0.5);
        Self { t: (r * r).mul_add(p, r), n }
    }

    /// x 2^n. Two factors keep both inside the normal range, from subnormal results to overflow.
    #[inline(always)]
    fn scale(&self, x: f32) -> f32 {
        let half = (self.n * 0.5).round_ties_even();
        x * power_of_two(half) * power_of_two(self.n - half)
    }

    /// 1 + t as a float and the rest.
    #[inline(always)]
    fn one_plus_t(&self) -> Pair {
        fast_sum(1.0, self.t)
    }
}

/// 2^n for an integral n between -126 and 127.
#[inline(always)]
fn power_of_two(n: f32) -> f32 {
    // Beyond 2^23 the last bits of a float are an integer; a conversion, which saturates, keeps
    // loops from being vectorised.
    f32::from_bits((n + (12_582_912.0 + 127.0)).to_bits() << 23)
}

/// An unevaluated sum of a float and one that is much smaller.
#[derive(Clone, Copy)]
struct Pair {
    high: f32,
    low: f32,
}

/// a + b exactly, for |a| >= |b| or a = 0 (Dekker's `Fast2Sum`).
#[inline(always)]
fn fast_sum(a: f32, b: f32) -> Pair {
    let high = a + b;
    Pair { high, low: b - (high - a) }
}

/// a b exactly, but for underflow.
#[inline(always)]
fn product(a: f32, b: f32) -> Pair {
    let high = a * b;
    Pair { high, low: a.mul_add(b, -high) }
}

/// a / b, nearly as if it were rounded once; what the remainder says is added to the quotient.
#[inline(always)]
fn quotient(a: Pair, b: Pair) -> Pair {
    let inverse = 1.0 / b.high;
    let high = a.high * inverse;
    let remainder = (-high).mul_add(b.high, a.high) + (-high).mul_add(b.low, a.low);
    Pair { high, low: remainder * inverse }
}

/// x / (1 + e^-z), from e^-|z| so that nothing overflows, for finite x and z; x is at least -120.
#[inline(always)]
fn times_sigmoid(x: f32, z: Pair) -> f32 {
    let negative = z.high < 0.0;
    let power = Power::of(-z.high.abs().min(-LEAST));
    let rest = if negative { z.low } else { -z.low };
    let mut e = power.one_plus_t();
    e.low = e.high.mul_add(rest, e.low);
    // The numerator is e^z / 2^n or 1; scaling last keeps all bits of small results.
    let top = product(x, if negative { e.high } else { 1.0 });
    let low = if negative { x.mul_add(e.low, top.low) } else { top.low };
    let mut bottom = fast_sum(1.0, power.scale(e.high));
    bottom.low += power.scale(e.low);
    let q = quotient(Pair { high: top.high, low }, bottom);
    let q = q.high + q.low;
    if negative { power.scale(q) } else { q }
}

/// 1 / (1 + e^-x). Within 2 ulp of the exact value.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let result = times_sigmoid(1.0, Pair { high: x, low: 0.0 });
    if x.is_nan() { x } else { result }
}

/// x sigmoid(x). Within 2 ulp of the exact value; NaN at -infinity, so that it is not lost.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    let result = times_sigmoid(x.max(LEAST), Pair { high: x, low: 0.0 });
    if x.abs() < f32::INFINITY { result } else { infinite_or_nan(x) }
}

/// infinity for infinity and NaN for anything else that is not finite, as x 1 and x 0 give.
#[inline(always)]
fn infinite_or_nan(x: f32) -> f32 {
    if x > 0.0 { x } else { f32::NAN }
}

/// GELU in its tanh form, x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is
/// x sigmoid(z) with twice that argument. Within 2 ulp; NaN at -infinity, so that it is not lost.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    // 2 sqrt(2 / pi) and 0.044715 times that, as pairs: errors of z grow by |z|, up to a hundred.
    const LINEAR: Pair = Pair { high: 1.595_769_2, low: -4.534_068e-8 };
    const CUBIC: Pair = Pair { high: 7.135_481_4e-2, low: 2.398_832_5e-9 };
    // Beyond, the sigmoid is 0 or 1.
    let c = x.clamp(-12.0, 12.0);
    let square = product(c, c);
    let cubic = product(CUBIC.high, square.high);
    let cubic_low = CUBIC.high.mul_add(square.low, CUBIC.low.mul_add(square.high, cubic.low));
    // Neither term is always the larger one.
    let linear_is_larger = cubic.high < LINEAR.high;
    let sum = if linear_is_larger {
        fast_sum(LINEAR.high, cubic.high)
    } else {
        fast_sum(cubic.high, LINEAR.high)
    };
    let sum_low = sum.low + (cubic_low + LINEAR.low);
    let z = product(c, sum.high);
    let z = Pair { high: z.high, low: c.mul_add(sum_low, z.low) };
    let result = times_sigmoid(x.max(LEAST), z);
    if x.abs() < f32::INFINITY { result } else { infinite_or_nan(x) }
}

/// Hyperbolic tangent, (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x. Within 2 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let power = Power::of(-(2.0 * x.abs()).min(40.0));
    // e^-2|x| - 1 = (2^n - 1) + 2^n t, where n = 0 leaves just t.
    let top = fast_sum(power.scale(1.0) - 1.0, power.scale(power.t));
    let bottom = fast_sum(2.0, top.high);
    let bottom = Pair { high: bottom.high, low: bottom.low + top.low };
    let q = quotient(Pair { high: -top.high, low: -top.low }, bottom);
    let result = (q.high + q.low).copysign(x);
    if x.is_nan() { x } else { result }
}

/// ln(1 + e^x). Within 2 ulp of the exact value.
///
/// With u = e^-|x| and s = u / (2 + u), ln(1 + u) = 2 (s + s^3 / 3 + s^5 / 5 + ...); s is at most 1/3.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let power = Power::of(-x.abs().min(-LEAST));
    let e = power.one_plus_t();
    let u = Pair { high: power.scale(e.high), low: power.scale(e.low) };
    // 2 s = u / (1 + u / 2), so that the smallest u lose nothing.
    let mut bottom = fast_sum(1.0, 0.5 * u.high);
    bottom.low = 0.5f32.mul_add(u.low, bottom.low);
    let w = quotient(u, bottom);
    let square = 0.25 * w.high * w.high;
    let mut p = 1.0 / 15.0;
    p = square.mul_add(p, 1.0 / 13.0);
    p = square.mul_add(p, 1.0 / 11.0);
    p = square.mul_add(p, 1.0 / 9.0);
    p = square.mul_add(p, 1.0 / 7.0);
    p = square.mul_add(p, 1.0 / 5.0);
    p = square.mul_add(p, 1.0 / 3.0);
    let log = w.high + w.high.mul_add(square * p, w.low);
    let result = x.max(0.0) + log;
    if x.is_nan() { x } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the correctly rounded result.
    fn ulps(ours: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        let away = f32::from_bits(rounded.to_bits() + 1);
        let ulp = (f64::from(away) - f64::from(rounded)).abs();
        (f64::from(ours) - exact).abs() / ulp
    }

    type Function = (&'static str, fn(f32) -> f32, fn(f64) -> f64);

    const FUNCTIONS: [Function; 6] = [
        ("exp", exp, libm::exp),
        ("sigmoid", sigmoid, exact_sigmoid),
        ("silu", silu, |x| x * exact_sigmoid(x)),
        ("gelu_tanh", gelu_tanh, |x| {
            x * exact_sigmoid(
                2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x),
            )
        }),
        ("tanh", tanh, libm::tanh),
        ("softplus", softplus, |x| x.max(0.0) + libm::log1p(libm::exp(-x.abs()))),
    ];

    fn exact_sigmoid(x: f64) -> f64 {
        if x < 0.0 { libm::exp(x) / (1.0 + libm::exp(x)) } else { 1.0 / (1.0 + libm::exp(-x)) }
    }

    /// The worst error over every `step`-th finite bit pattern.
    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, step: usize) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for x in (0..=u32::MAX).step_by(step).map(f32::from_bits).filter(|x| x.is_finite()) {
            let value = exact(f64::from(x));
            let ours = f(x);
            if (value as f32).is_infinite() {
                assert_eq!(ours, value as f32, "at {x}");
                continue;
            }
            assert!(ours.is_finite(), "{ours} at {x}");
            let error = ulps(ours, value);
            if error > worst.0 {
                worst = (error, x);
            }
        }
        worst
    }

    fn all_within_two_ulps(step: usize) {
        for (name, f, exact) in FUNCTIONS {
            let (error, at) = worst(f, exact, step);
            crate::log::say(format_args!("{name}: {error:.3} ulp at {at:e}"));
            assert!(error <= 2.0, "{name}: {error} ulp at {at:e}");
        }
    }

    /// Floats of every exponent and sign: 4001 is prime.
    #[test]
    fn functions_are_within_two_ulps_at_every_4001st_float() {
        all_within_two_ulps(4001);
    }

    #[test]
    #[ignore = "takes minutes: every float"]
    fn functions_are_within_two_ulps_at_every_float() {
        all_within_two_ulps(1);
    }

    #[test]
    fn limits_are_the_expected_ones() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (name, f, at_minus_infinity, at_zero, at_infinity) in [
            ("exp", exp as fn(f32) -> f32, 0.0, 1.0, inf),
            ("sigmoid", sigmoid, 0.0, 0.5, 1.0),
            ("silu", silu, nan, 0.0, inf),
            ("gelu_tanh", gelu_tanh, nan, 0.0, inf),
            ("tanh", tanh, -1.0, 0.0, 1.0),
            ("softplus", softplus, 0.0, std::f32::consts::LN_2, inf),
        ] {
            for (x, expected) in [
                (-inf, at_minus_infinity),
                (0.0, at_zero),
                (-0.0, at_zero),
                (inf, at_infinity),
                (nan, nan),
                (-nan, nan),
            ] {
                let ours = f(x);
                assert!(
                    ours == expected || ours.is_nan() && expected.is_nan(),
                    "{name}({x}): {ours}"
                );
            }
        }
        assert!(tanh(-0.0).is_sign_negative());
        assert_eq!((silu(-200.0), silu(f32::MIN), silu(f32::MAX)), (0.0, 0.0, f32::MAX));
        let tiny = f32::from_bits(1);
        assert_eq!((tanh(tiny), tanh(-tiny), exp(tiny)), (tiny, -tiny, 1.0));
    }
}
