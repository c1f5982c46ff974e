//! The f32 exponentials that PyTorch's CPU kernels use, bit for bit: of the op `exp`, of vectorised functions such as the
//! logistic one and softmax, and the two coarser ones inside attention. What depends on their last bit, such as the sine of a
//! large multiple, would otherwise drift.

use std::sync::LazyLock;

/// Steps of the table per power of two.
const STEPS: usize = 128;
/// Beyond this magnitude results overflow or are subnormal, and the correctly rounded value is taken.
const TABLE_RANGE: f32 = 87.336;

/// Least and largest argument whose exponential is a normal f32.
const LEAST: f32 = -87.336_55;
const LARGEST: f32 = 88.722_84;

/// 2^(j / 128) as the sum of two f32.
static TABLE: LazyLock<[(f32, f32); STEPS]> = LazyLock::new(|| {
    std::array::from_fn(|j| {
        let exact = (j as f64 / STEPS as f64).exp2();
        let high = exact as f32;
        (high, (exact - f64::from(high)) as f32)
    })
});

/// The op `exp`: a table of 128 steps and a parabola, without fused steps; within 0.56 ulp.
pub(crate) fn exp_table(x: f32) -> f32 {
    const STEPS_PER_UNIT: f32 = (STEPS as f64 * std::f64::consts::LOG2_E) as f32;
    // ln 2 / 128: the few leading bits, whose product with the number of steps is exact, and the rest.
    const STEP_HIGH: f32 = f32::from_bits(0x3bb1_8000);
    const STEP_LOW: f32 = f32::from_bits(0xb5de_8083);
    if x.is_nan() || x.abs() > TABLE_RANGE {
        return f64::from(x).exp() as f32;
    }
    let steps = (x * STEPS_PER_UNIT).round_ties_even();
    let rest = (x - steps * STEP_HIGH) - steps * STEP_LOW;
    let parabola = rest + rest * rest * 0.5;
    let steps = steps as i32;
    let (high, low) = TABLE[steps.rem_euclid(STEPS as i32) as usize];
    scale(high + (high * parabola + low), steps.div_euclid(STEPS as i32))
}

/// Vectorised functions: degree 6 in fused steps (the method of SLEEF's `expf` with 1.0 ulp).
pub(crate) fn exp_vector(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 6] =
        [1.985_276_2e-4, 1.393_043_6e-3, 8.333_361e-3, 4.166_648_5e-2, 0.166_666_67, 0.5];
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    if x < -104.0 {
        return 0.0;
    }
    if x > 100.0 {
        return f32::INFINITY;
    }
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let rest = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let tail = COEFFICIENTS[1..].iter().fold(COEFFICIENTS[0], |u, &c| u.mul_add(rest, c));
    scale(1.0 + (rest * rest).mul_add(tail, rest), n as i32)
}

/// Attention on f32: degree 5 in fused steps, within 20 ulp, 0 where the result would be subnormal.
pub(crate) fn exp_coarse(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 6] =
        [8.289_291e-3, 4.189_782_2e-2, 0.166_676_52, 0.499_991_5, 0.999_999_7, 1.0];
    if x < LEAST {
        return 0.0;
    }
    let x = if x > LARGEST { LARGEST } else { x };
    let n = x.mul_add(std::f32::consts::LOG2_E, 0.5).floor();
    let rest = (-n).mul_add(std::f32::consts::LN_2, x);
    scale(COEFFICIENTS[1..].iter().fold(COEFFICIENTS[0], |p, &c| rest.mul_add(p, c)), n as i32)
}

/// Attention on f16 and bf16, whose probabilities are rounded anyway: the bits of the result are a number that is linear in x
/// but for a cubic correction (Malossi, Ineichen, Bekas, Curioni: Fast Exponential Computation on SIMD Architectures).
pub(crate) fn exp_short(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 4] = [-7.920_424e-2, -0.224_338_36, 0.303_542_6, 1.070_343_5e-4];
    const MANTISSA: f32 = 8_388_608.0;
    const BIAS: f32 = MANTISSA * 127.0;
    if x < LEAST {
        return 0.0;
    }
    if x > LARGEST {
        return f32::INFINITY;
    }
    let power = x * std::f32::consts::LOG2_E;
    let fraction = power - power.floor();
    let correction = COEFFICIENTS[1..].iter().fold(COEFFICIENTS[0], |p, &c| fraction.mul_add(p, c));
    let bits = MANTISSA.mul_add(power - correction, BIAS);
    if bits.is_nan() { bits } else { f32::from_bits(bits as u32) }
}

/// x * 2^n.
fn scale(x: f32, n: i32) -> f32 {
    (f64::from(x) * f64::from(n).exp2()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_exponentials() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x).exp();
            for (f, relative) in [
                (exp_table as fn(f32) -> f32, 1.2e-7),
                (exp_vector, 1.2e-7),
                (exp_coarse, 2.4e-6),
                (exp_short, 2e-4),
            ] {
                let error = (f64::from(f(x)) - exact).abs() / exact;
                assert!(error < relative, "{x}: relative error {error:e}");
            }
        }
    }

    #[test]
    fn ends_of_the_range() {
        for f in [exp_table, exp_vector, exp_coarse, exp_short] {
            assert_eq!(f(f32::NEG_INFINITY), 0.0);
            assert!((f(0.0) - 1.0).abs() < 1e-4);
            assert!(f(f32::NAN).is_nan());
        }
        assert_eq!(exp_table(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_vector(f32::INFINITY), f32::INFINITY);
    }
}
