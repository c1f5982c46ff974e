//! How far two tensors are from each other: cosine, largest absolute error, largest error in units in the last place.

use half::{bf16, f16};
use shardweld_ir::DType;
use thiserror::Error;

use crate::cast::cast;
use crate::element::F8E4M3;
use crate::tensor::Tensor;

/// Distance of two tensors of one type. Positions where both are NaN, or both the same infinity, count as equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// Cosine of the angle between the two, over positions where both are finite: 1 if both are zero there, 0 if one is.
    /// NaN where only one is NaN at some position, or infinities differ: no bound on it then holds.
    pub cosine: f64,
    /// Largest absolute difference; infinite where only one is NaN, or infinities differ.
    pub max_abs: f64,
    /// Largest number of representable values between the two, in their own type; `u64::MAX` where only one is NaN.
    pub max_ulp: u64,
    /// Positions where exactly one is NaN.
    pub nan_mismatches: usize,
    /// Positions that differ in any bit (NaNs of any payload are the same).
    pub different: usize,
    /// Positions.
    pub elements: usize,
}

/// Two tensors that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("types differ: {left} and {right}")]
pub struct TypesDiffer {
    /// Type of the first, as text.
    pub left: String,
    /// Type of the second, as text.
    pub right: String,
}

/// Compares two tensors of one type.
///
/// # Errors
/// If their types differ.
pub fn distance(a: &Tensor, b: &Tensor) -> Result<Distance, TypesDiffer> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return Err(TypesDiffer { left: a.ty().to_string(), right: b.ty().to_string() });
    }
    let (ordinals_a, ordinals_b) = (ordinals(a), ordinals(b));
    let (wide_a, wide_b) = (wide(a), wide(b));
    let mut d = Distance {
        cosine: 1.0,
        max_abs: 0.0,
        max_ulp: 0,
        nan_mismatches: 0,
        different: 0,
        elements: wide_a.len(),
    };
    let (mut dot, mut square_a, mut square_b) = (0.0f64, 0.0f64, 0.0f64);
    let mut finite_alike = true;
    for i in 0..wide_a.len() {
        let (x, y) = (wide_a[i], wide_b[i]);
        let ulp = match (x.is_nan(), y.is_nan()) {
            (true, true) => continue,
            (false, false) => ordinals_a[i].abs_diff(ordinals_b[i]),
            _ => {
                d.nan_mismatches += 1;
                u64::MAX
            }
        };
        // Zeros of either sign have one ordinal; integers beyond 2^53 are told apart by ordinals only.
        let same = ulp == 0 && x.is_sign_negative() == y.is_sign_negative();
        d.different += usize::from(!same);
        d.max_ulp = d.max_ulp.max(ulp);
        if x.is_finite() && y.is_finite() {
            d.max_abs = d.max_abs.max((x - y).abs());
            dot += x * y;
            square_a += x * x;
            square_b += y * y;
        } else if ulp != 0 {
            d.max_abs = f64::INFINITY;
            finite_alike = false;
        }
    }
    d.cosine = match (square_a == 0.0, square_b == 0.0) {
        _ if !finite_alike => f64::NAN,
        (true, true) => 1.0,
        (false, false) => dot / (square_a.sqrt() * square_b.sqrt()),
        _ => 0.0,
    };
    Ok(d)
}

fn wide(x: &Tensor) -> Vec<f64> {
    match cast(x, DType::F64) {
        Ok(t) => t.slice::<f64>().to_vec(),
        // A tensor too large to widen could not have been read either.
        Err(_) => Vec::new(),
    }
}

/// Position of each element among the values of its type: neighbours differ by 1, zeros of either sign are 0.
fn ordinals(x: &Tensor) -> Vec<i64> {
    fn of(bits: u64, width: u32) -> i64 {
        let sign = 1u64 << (width - 1);
        if bits & sign != 0 { -((bits & (sign - 1)) as i64) } else { bits as i64 }
    }
    match x.dtype() {
        DType::F32 => x.slice::<f32>().iter().map(|v| of(u64::from(v.to_bits()), 32)).collect(),
        DType::F64 => x.slice::<f64>().iter().map(|v| of(v.to_bits(), 64)).collect(),
        DType::F16 => x.slice::<f16>().iter().map(|v| of(u64::from(v.to_bits()), 16)).collect(),
        DType::BF16 => x.slice::<bf16>().iter().map(|v| of(u64::from(v.to_bits()), 16)).collect(),
        DType::F8E4M3 => x.slice::<F8E4M3>().iter().map(|v| of(u64::from(v.0), 8)).collect(),
        _ => match cast(x, DType::I64) {
            Ok(t) => t.slice::<i64>().to_vec(),
            Err(_) => Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(v: &[f32]) -> Tensor {
        Tensor::new(&[v.len()], v).unwrap()
    }

    #[test]
    fn equal_is_equal_also_with_nan_and_infinities() {
        let x = t(&[1.0, f32::NAN, f32::INFINITY, -0.0]);
        let y = t(&[1.0, -f32::NAN, f32::INFINITY, -0.0]);
        let d = distance(&x, &y).unwrap();
        assert_eq!((d.cosine, d.max_abs, d.max_ulp, d.different), (1.0, 0.0, 0, 0));
    }

    #[test]
    fn nan_against_zero_had_cosine_one() {
        for (x, y) in [(f32::NAN, 0.0), (f32::INFINITY, 0.0), (f32::INFINITY, f32::NEG_INFINITY)] {
            assert!(distance(&t(&[x, 1.0]), &t(&[y, 1.0])).unwrap().cosine.is_nan(), "{x} against {y}");
        }
    }

    #[test]
    fn differences_are_seen() {
        let d = distance(&t(&[1.0, 0.0]), &t(&[1.0 + f32::EPSILON, -0.0])).unwrap();
        assert_eq!((d.max_ulp, d.different), (1, 2));
        let d = distance(&t(&[1.0, 2.0]), &t(&[1.0, f32::NAN])).unwrap();
        assert_eq!((d.nan_mismatches, d.max_ulp, d.max_abs), (1, u64::MAX, f64::INFINITY));
        let d = distance(&t(&[f32::INFINITY]), &t(&[f32::NEG_INFINITY])).unwrap();
        assert_eq!(d.max_abs, f64::INFINITY);
        assert_eq!(distance(&t(&[1.0, 0.0]), &t(&[0.0, 1.0])).unwrap().cosine, 0.0);
        assert_eq!(distance(&t(&[0.0]), &t(&[1.0])).unwrap().cosine, 0.0);
        assert!(distance(&t(&[0.0]), &t(&[0.0, 1.0])).is_err());
    }
}
