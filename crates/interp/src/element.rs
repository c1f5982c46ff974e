//! Element types: how each of the ten dtypes is stored, and the type in which one op on it is computed.

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use shardweld_ir::DType;

use crate::float8::{f8e4m3_from_f32, f8e4m3_to_f32};

/// An 8-bit float with four exponent bits and no infinities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// A truth value stored as one byte, 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

/// A type that ops are computed in: f32, f64 or i64.
pub trait Math: Element<Math = Self> + PartialOrd + Default {}
impl Math for f32 {}
impl Math for f64 {}
impl Math for i64 {}

/// A stored element type.
pub trait Element: Pod + Send + Sync {
    /// Its name in the IR.
    const DTYPE: DType;
    /// The type in which one op on it is computed before it rounds once.
    type Math: Math;
    /// Widens; exact.
    fn widen(self) -> Self::Math;
    /// Rounds to nearest even (floats) or wraps (integers).
    fn narrow(x: Self::Math) -> Self;
    /// Widens a slice of equal length.
    fn widen_slice(from: &[Self], to: &mut [Self::Math]) {
        for (t, &f) in to.iter_mut().zip(from) {
            *t = f.widen();
        }
    }
    /// Narrows a slice of equal length.
    fn narrow_slice(from: &[Self::Math], to: &mut [Self]) {
        for (t, &f) in to.iter_mut().zip(from) {
            *t = Self::narrow(f);
        }
    }
}

macro_rules! element {
    ($t:ty, $dtype:ident, $math:ty, |$x:ident| $widen:expr, |$y:ident| $narrow:expr $(, { $($slices:item)* })?) => {
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            type Math = $math;
            #[inline(always)]
            fn widen(self) -> $math {
                let $x = self;
                $widen
            }
            #[inline(always)]
            fn narrow($y: $math) -> Self {
                $narrow
            }
            $($($slices)*)?
        }
    };
}

element!(f32, F32, f32, |x| x, |y| y);
element!(f64, F64, f64, |x| x, |y| y);
element!(bf16, BF16, f32, |x| f32::from_bits(u32::from(x.to_bits()) << 16), |y| bf16_from_f32(y));
element!(f16, F16, f32, |x| x.to_f32(), |y| f16::from_f32(y), {
    fn widen_slice(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn narrow_slice(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
});
element!(F8E4M3, F8E4M3, f32, |x| f8e4m3_to_f32(x.0), |y| F8E4M3(f8e4m3_from_f32(y)));
element!(i64, I64, i64, |x| x, |y| y);
element!(i32, I32, i64, |x| i64::from(x), |y| y as i32);
element!(i8, I8, i64, |x| i64::from(x), |y| y as i8);
element!(u8, U8, i64, |x| i64::from(x), |y| y as u8);
element!(Bool, Bool, i64, |x| i64::from(x.0 != 0), |y| Bool(u8::from(y != 0)));

/// Nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
fn bf16_from_f32(x: f32) -> bf16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return bf16::from_bits(((bits >> 16) | 0x40) as u16);
    }
    let round = 0x7fff + ((bits >> 16) & 1);
    bf16::from_bits((bits.wrapping_add(round) >> 16) as u16)
}

/// Runs a body with a type alias bound to the storage type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {{
        use shardweld_ir::DType as D;
        match $dtype {
            D::F32 => {
                type $t = f32;
                $body
            }
            D::F16 => {
                type $t = half::f16;
                $body
            }
            D::BF16 => {
                type $t = half::bf16;
                $body
            }
            D::F64 => {
                type $t = f64;
                $body
            }
            D::F8E4M3 => {
                type $t = $crate::element::F8E4M3;
                $body
            }
            D::I64 => {
                type $t = i64;
                $body
            }
            D::I32 => {
                type $t = i32;
                $body
            }
            D::I8 => {
                type $t = i8;
                $body
            }
            D::U8 => {
                type $t = u8;
                $body
            }
            D::Bool => {
                type $t = $crate::element::Bool;
                $body
            }
        }
    }};
}
pub(crate) use with_element;

/// Like [`with_element`], for the float types that one op computes in f32; other dtypes run the last arm.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr, else $other:expr) => {{
        use shardweld_ir::DType as D;
        match $dtype {
            D::F32 => {
                type $t = f32;
                $body
            }
            D::F16 => {
                type $t = half::f16;
                $body
            }
            D::BF16 => {
                type $t = half::bf16;
                $body
            }
            D::F64 => {
                type $t = f64;
                $body
            }
            _ => $other,
        }
    }};
}
pub(crate) use with_float;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_ties_to_even_and_keeps_nan() {
        assert_eq!(bf16_from_f32(f32::from_bits(0x3f80_8000)).to_bits(), 0x3f80);
        assert_eq!(bf16_from_f32(f32::from_bits(0x3f81_8000)).to_bits(), 0x3f82);
        assert_eq!(bf16_from_f32(f32::from_bits(0x3f80_8001)).to_bits(), 0x3f81);
        assert_eq!(bf16_from_f32(f32::MAX).to_bits(), 0x7f80);
        assert!(bf16_from_f32(f32::from_bits(0x7f80_0001)).is_nan());
        assert!(bf16_from_f32(f32::from_bits(0xffff_ffff)).is_nan());
    }
}
