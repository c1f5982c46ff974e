//! Arithmetic of the reducing collectives on host bytes, as NCCL was measured to do it (`docs/evidence`).
//!
//! Operands in group order, each step rounded to the element type. Max and min ignore a NaN beside a number and order
//! -0 below +0. 8-bit floats saturate. An average multiplies floats by 1/n as it adds them, and divides the wrapped sum
//! of integers.

use half::{bf16, f16};
use shardweld_ir::ReduceOp;

use crate::element::ElementType;

/// Combines equally long operands, one per rank in group order.
pub fn combine(element: ElementType, op: ReduceOp, operands: &[&[u8]]) -> Vec<u8> {
    use ElementType::*;
    match element {
        I8 => ints::<i8, 1>(op, operands, i8::from_le_bytes, i8::to_le_bytes),
        U8 => ints::<u8, 1>(op, operands, u8::from_le_bytes, u8::to_le_bytes),
        I32 => ints::<i32, 4>(op, operands, i32::from_le_bytes, i32::to_le_bytes),
        U32 => ints::<u32, 4>(op, operands, u32::from_le_bytes, u32::to_le_bytes),
        I64 => ints::<i64, 8>(op, operands, i64::from_le_bytes, i64::to_le_bytes),
        U64 => ints::<u64, 8>(op, operands, u64::from_le_bytes, u64::to_le_bytes),
        F16 => floats(op, operands, |b| f16::from_le_bytes(b).into(), |v| f16::from_f64(v).to_le_bytes()),
        BF16 => floats(op, operands, |b| bf16::from_le_bytes(b).into(), |v| bf16::from_f64(v).to_le_bytes()),
        F32 => floats(op, operands, |b| f32::from_le_bytes(b).into(), |v| (v as f32).to_le_bytes()),
        F64 => floats(op, operands, f64::from_le_bytes, f64::to_le_bytes),
        F8E4M3 => floats(op, operands, |[b]| Fp8::E4M3.decode(b), |v| [Fp8::E4M3.encode(v)]),
        F8E5M2 => floats(op, operands, |[b]| Fp8::E5M2.decode(b), |v| [Fp8::E5M2.encode(v)]),
    }
}

/// Folds elementwise; `N` is the element size.
fn fold<T: Copy, const N: usize>(
    operands: &[&[u8]],
    decode: impl Fn([u8; N]) -> T,
    start: impl Fn(T) -> T,
    step: impl Fn(T, T) -> T,
    finish: impl Fn(T) -> [u8; N],
) -> Vec<u8> {
    let Some((first, rest)) = operands.split_first() else { return Vec::new() };
    let read = |bytes: &[u8], i: usize| {
        let mut e = [0; N];
        e.copy_from_slice(&bytes[i * N..(i + 1) * N]);
        decode(e)
    };
    (0..first.len() / N)
        .flat_map(|i| finish(rest.iter().fold(start(read(first, i)), |acc, o| step(acc, read(o, i)))))
        .collect()
}

/// What the integer types share.
trait Int: Copy + Ord {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn over(self, n: usize) -> Self;
}

macro_rules! int {
    ($($t:ty)*) => {$(impl Int for $t {
        fn add(self, other: Self) -> Self { self.wrapping_add(other) }
        fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
        fn over(self, n: usize) -> Self { <$t>::try_from(n).map_or(0, |n| self.wrapping_div(n)) }
    })*};
}
int!(i8 u8 i32 u32 i64 u64);

fn ints<T: Int, const N: usize>(
    op: ReduceOp,
    operands: &[&[u8]],
    decode: fn([u8; N]) -> T,
    encode: fn(T) -> [u8; N],
) -> Vec<u8> {
    let n = operands.len();
    let step = move |a: T, b: T| match op {
        ReduceOp::Sum | ReduceOp::Avg => a.add(b),
        ReduceOp::Prod => a.mul(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
    };
    fold(operands, decode, |v| v, step, |v| encode(if op == ReduceOp::Avg { v.over(n) } else { v }))
}

/// One step in f64 and one rounding is the type's own arithmetic: 53 bits are at least twice the bits of f32 plus two.
fn floats<const N: usize>(
    op: ReduceOp,
    operands: &[&[u8]],
    decode: impl Fn([u8; N]) -> f64,
    encode: impl Fn(f64) -> [u8; N],
) -> Vec<u8> {
    let round = |v: f64| decode(encode(v));
    // 1 / n in the type; the product is not rounded before it is added.
    let scale = round(1.0 / operands.len() as f64);
    let fused = |acc: f64, x: f64| match N {
        4 => f64::from((x as f32).mul_add(scale as f32, acc as f32)),
        _ => round(x.mul_add(scale, acc)),
    };
    let start = |x: f64| if op == ReduceOp::Avg { round(x * scale) } else { x };
    let step = |a: f64, b: f64| match op {
        ReduceOp::Sum => round(a + b),
        ReduceOp::Avg => fused(a, b),
        ReduceOp::Prod => round(a * b),
        ReduceOp::Max => extreme(a, b, a > b || (a == b && b.is_sign_negative())),
        ReduceOp::Min => extreme(a, b, a < b || (a == b && a.is_sign_negative())),
    };
    fold(operands, &decode, start, step, &encode)
}

/// The number beside a NaN; else `a` if `first`.
fn extreme(a: f64, b: f64, first: bool) -> f64 {
    if b.is_nan() || first { a } else { b }
}

/// An 8-bit float format.
#[derive(Clone, Copy)]
struct Fp8 {
    mantissa: i32,
    bias: i32,
    /// Largest finite value.
    max: f64,
    /// Whether the format has infinities.
    infinite: bool,
}

impl Fp8 {
    const E4M3: Fp8 = Fp8 { mantissa: 3, bias: 7, max: 448.0, infinite: false };
    const E5M2: Fp8 = Fp8 { mantissa: 2, bias: 15, max: 57344.0, infinite: true };

    fn decode(self, b: u8) -> f64 {
        let sign = if b & 0x80 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from(b & 0x7f) >> self.mantissa;
        let fraction = i32::from(b) & ((1 << self.mantissa) - 1);
        let magnitude = match (self.infinite, b & 0x7f) {
            (true, 0x7c) => f64::INFINITY,
            (true, 0x7d..) | (false, 0x7f) => f64::NAN,
            _ if exponent == 0 => f64::from(fraction) * 2f64.powi(1 - self.bias - self.mantissa),
            _ => f64::from(fraction + (1 << self.mantissa)) * 2f64.powi(exponent - self.bias - self.mantissa),
        };
        sign * magnitude
    }

    /// Rounds to nearest, ties to even; what is larger than the largest number, infinity too, becomes that.
    fn encode(self, v: f64) -> u8 {
        let sign = if v.is_sign_negative() { 0x80 } else { 0 };
        let top = if self.infinite { 0x7b } else { 0x7e };
        if v.is_nan() {
            return sign | 0x7f;
        }
        if v.abs() >= self.max {
            return sign | top;
        }
        let distance = |b: u8| (self.decode(b) - v.abs()).abs();
        let below = (0..=top).rev().find(|&b| self.decode(b) <= v.abs()).unwrap_or(0);
        let above = (below + 1).min(top);
        let up = distance(above) < distance(below) || (distance(above) == distance(below) && below & 1 == 1);
        sign | if up { above } else { below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fp8_value_decodes_and_encodes_to_itself() {
        for f in [Fp8::E4M3, Fp8::E5M2] {
            for b in 0..=255u8 {
                let v = f.decode(b);
                if v.is_finite() {
                    assert_eq!(f.encode(v), b, "{v}");
                }
            }
        }
        assert_eq!(Fp8::E4M3.decode(0x38), 1.0);
        assert_eq!(Fp8::E5M2.decode(0x3c), 1.0);
        assert_eq!(Fp8::E4M3.encode(17.0), Fp8::E4M3.encode(16.0), "tie to even");
        assert_eq!(Fp8::E4M3.encode(1e9), 0x7e);
        assert_eq!(Fp8::E5M2.encode(f64::NEG_INFINITY), 0xfb);
    }

    #[test]
    fn sums_round_at_each_step_in_rank_order() {
        let x = |v: f32| bf16::from_f32(v).to_le_bytes();
        let (big, one) = (x(256.0), x(1.0));
        let sum = combine(ElementType::BF16, ReduceOp::Sum, &[&big, &one, &one]);
        assert_eq!(sum, big, "256 + 1 rounds back to 256 twice");
        let sum = combine(ElementType::BF16, ReduceOp::Sum, &[&one, &one, &big]);
        assert_eq!(sum, x(258.0));
    }

    /// What NCCL 2.30.7 gave on an H200 (`docs/evidence`).
    #[test]
    fn a_number_beats_a_nan_and_zeros_are_ordered() {
        let f = |op, a: f32, b: f32| {
            let c = combine(ElementType::F32, op, &[&a.to_le_bytes(), &b.to_le_bytes()]);
            u32::from_le_bytes(c.try_into().unwrap())
        };
        for op in [ReduceOp::Max, ReduceOp::Min] {
            assert_eq!(f(op, f32::NAN, -1.0), (-1f32).to_bits());
            assert_eq!(f(op, -1.0, f32::NAN), (-1f32).to_bits());
        }
        for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
            assert_eq!(f(ReduceOp::Max, a, b), 0);
            assert_eq!(f(ReduceOp::Min, a, b), 0x8000_0000);
        }
        let inf = combine(ElementType::F8E5M2, ReduceOp::Sum, &[&[0x7c], &[0]]);
        assert_eq!(inf, [0x7b], "8-bit floats saturate");
    }

    /// Three ranks, as NCCL 2.30.7 gave it on an H200 (`docs/evidence`).
    #[test]
    fn averages_scale_floats_before_and_integers_after_the_sum() {
        use ElementType::*;
        let of = |e, one: &[u8]| combine(e, ReduceOp::Avg, &[one, one, one]);
        assert_eq!(of(F32, &f32::MAX.to_le_bytes()), f32::MAX.to_le_bytes(), "no overflow");
        assert_eq!(of(F32, &1u32.to_le_bytes()), 0u32.to_le_bytes(), "underflow");
        assert_eq!(of(F64, &f64::MAX.to_le_bytes()), 0x7fef_ffff_ffff_fffeu64.to_le_bytes());
        assert_eq!(of(F16, &0x7bffu16.to_le_bytes()), 0x7bfeu16.to_le_bytes());
        assert_eq!(of(BF16, &0x7f7fu16.to_le_bytes()), 0x7f7fu16.to_le_bytes());
        assert_eq!(of(F8E4M3, &[0x7e]), [0x7e]);
        assert_eq!(of(F8E5M2, &[0x7b]), [0x7a]);
        assert_eq!(of(I8, &[100]), [(44i8 / 3) as u8], "300 wraps to 44");
        assert_eq!(combine(I8, ReduceOp::Avg, &[&[0xff], &[0xff], &[0]]), [0], "towards zero");
    }

    /// With three ranks NCCL's average of equal f64 was always the value, that of equal f32 in five of six cases. A model
    /// that rounds the product before adding it gives 16 % and 33 % wrong values instead.
    #[test]
    fn averages_do_not_round_the_product() {
        let wrong = |e: ElementType, values: Vec<Vec<u8>>| {
            values.iter().filter(|v| combine(e, ReduceOp::Avg, &[v, v, v]) != **v).count()
        };
        let count = 6000u32;
        let singles =
            (0..count).map(|i| f32::from_bits(0x3f80_0000 + i * 1301).to_le_bytes().to_vec()).collect();
        let share = wrong(ElementType::F32, singles) as f64 / f64::from(count);
        assert!((0.15..0.18).contains(&share), "{share}");
        let step = 0x9_8765_4321;
        let double = |i: u32| f64::from_bits(0x3ff0_0000_0000_0000 + u64::from(i) * step);
        let doubles = (0..count).map(|i| double(i).to_le_bytes().to_vec()).collect();
        assert_eq!(wrong(ElementType::F64, doubles), 0);
    }

    #[test]
    fn integers_wrap() {
        let s = combine(ElementType::I8, ReduceOp::Sum, &[&[127], &[1]]);
        assert_eq!(s, [0x80]);
        assert_eq!(combine(ElementType::U8, ReduceOp::Min, &[&[3, 9], &[4, 2]]), [3, 2]);
        assert_eq!(combine(ElementType::I8, ReduceOp::Max, &[&[0xff], &[1]]), [1]);
    }
}
