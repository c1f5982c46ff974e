//! Conversion between element types: floats round to nearest even, floats to integers truncate, bool is "not zero".

use half::{bf16, f16};
use shardweld_ir::{DType, Scalar};

use crate::element::{Bool, Element, F8E4M3, with_element};
use crate::error::Result;
use crate::tensor::Tensor;

/// A stored type that every other converts to through f64 or i64 exactly, and from them with one rounding.
pub(crate) trait Convert: Element {
    /// Exact, except for i64 beyond 2^53, which rounds.
    fn as_f64(self) -> f64;
    /// Truncates toward zero. Out of range and NaN give the least i64, as the x86 conversion PyTorch uses does.
    fn as_i64(self) -> i64;
    /// Rounds to nearest even.
    fn of_f64(x: f64) -> Self;
    /// Floats round to nearest even, integers wrap.
    fn of_i64(x: i64) -> Self;
}

fn truncate(x: f64) -> i64 {
    // 2^63 is the first value out of range.
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&x) { x as i64 } else { i64::MIN }
}

macro_rules! convert_float {
    ($t:ty, |$x:ident| $f64:expr) => {
        impl Convert for $t {
            fn as_f64(self) -> f64 {
                f64::from(self.widen())
            }
            fn as_i64(self) -> i64 {
                truncate(self.as_f64())
            }
            fn of_f64($x: f64) -> Self {
                $f64
            }
            fn of_i64(x: i64) -> Self {
                // PyTorch converts 64-bit integers to shorter floats by way of f32.
                <$t>::narrow(x as <$t as Element>::Math)
            }
        }
    };
}
convert_float!(f32, |x| x as f32);
convert_float!(f64, |x| x);
convert_float!(f16, |x| f16::narrow(x as f32));
convert_float!(bf16, |x| bf16::narrow(x as f32));
convert_float!(F8E4M3, |x| F8E4M3::narrow(x as f32));

macro_rules! convert_integer {
    ($t:ty) => {
        impl Convert for $t {
            fn as_f64(self) -> f64 {
                self.widen() as f64
            }
            fn as_i64(self) -> i64 {
                self.widen()
            }
            fn of_f64(x: f64) -> Self {
                <$t>::narrow(truncate(x))
            }
            fn of_i64(x: i64) -> Self {
                <$t>::narrow(x)
            }
        }
    };
}
convert_integer!(i64);
convert_integer!(i32);
convert_integer!(i8);
convert_integer!(u8);

impl Convert for Bool {
    fn as_f64(self) -> f64 {
        f64::from(u8::from(self.0 != 0))
    }
    fn as_i64(self) -> i64 {
        i64::from(self.0 != 0)
    }
    fn of_f64(x: f64) -> Self {
        Bool(u8::from(x != 0.0))
    }
    fn of_i64(x: i64) -> Self {
        Bool(u8::from(x != 0))
    }
}

/// The value in an element type, rounded to nearest even.
pub(crate) fn from_f64<T: Convert>(x: f64) -> T {
    T::of_f64(x)
}

/// The value in an element type, wrapped.
pub(crate) fn from_i64<T: Convert>(x: i64) -> T {
    T::of_i64(x)
}

/// The tensor in another element type. A cast to its own type moves the bits.
pub fn cast(x: &Tensor, to: DType) -> Result<Tensor> {
    if x.dtype() == to {
        return Ok(x.clone());
    }
    let integral = !x.dtype().is_float();
    with_element!(x.dtype(), S => {
        let from = x.slice::<S>();
        with_element!(to, T => Tensor::build::<T>(x.shape(), |out| {
            for (o, &v) in out.iter_mut().zip(from) {
                *o = if integral { T::of_i64(v.as_i64()) } else { T::of_f64(v.as_f64()) };
            }
        }))
    })
}

/// A scalar tensor of one element with the value.
pub(crate) fn scalar(dtype: DType, value: Scalar) -> Tensor {
    with_element!(dtype, T => {
        let element = match value {
            Scalar::Float(x) => T::of_f64(x),
            _ => T::of_i64(value.as_i64()),
        };
        Tensor::new(&[], &[element]).expect("one element fits a scalar")
    })
}
