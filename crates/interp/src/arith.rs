//! Arithmetic of the three types that ops are computed in: f32, f64 and i64. Slices in, slices out; no tensors here.
//!
//! f32 functions follow the formulas of PyTorch's vectorised CPU kernels, exponentials in every bit. Other library functions
//! are taken in f64 and rounded once, so they are correctly rounded; PyTorch's own are within 1 ulp of that.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use shardweld_ir::{Binary, Unary};

use crate::element::{Bool, Math};
use crate::error::{KernelError, Result};
use crate::exponential;

/// Arithmetic on slices of one math type.
pub(crate) trait Arith: Math {
    /// Applies a function that keeps the type, in place. Predicates are [`Arith::test`]'s.
    fn unary(op: Unary, x: &mut [Self]) -> Result<()>;
    /// Applies a predicate.
    fn test(op: Unary, x: &[Self], out: &mut [Bool]);
    /// Applies a function that keeps the type; all slices have one length.
    fn binary(op: Binary, a: &[Self], b: &[Self], out: &mut [Self]) -> Result<()>;
    /// The type's value of a scalar attribute.
    fn of(scalar: shardweld_ir::Scalar) -> Self;
    /// a + b; integers wrap.
    fn plus(self, b: Self) -> Self;
    /// a * b; integers wrap.
    fn times(self, b: Self) -> Self;
    /// 1.
    fn one() -> Self;
}

/// Compares slices of one length.
pub(crate) fn compare<M: Math>(op: Binary, a: &[M], b: &[M], out: &mut [Bool]) {
    macro_rules! each {
        ($f:expr) => {
            for ((o, x), y) in out.iter_mut().zip(a).zip(b) {
                let f: fn(&M, &M) -> bool = $f;
                *o = Bool(u8::from(f(x, y)));
            }
        };
    }
    match op {
        Binary::Ne => each!(|x, y| x != y),
        Binary::Lt => each!(|x, y| x < y),
        Binary::Le => each!(|x, y| x <= y),
        Binary::Gt => each!(|x, y| x > y),
        Binary::Ge => each!(|x, y| x >= y),
        _ => each!(|x, y| x == y),
    }
}

/// Larger of two; the second of two equal ones (zeros of either sign), NaN if either is.
#[inline(always)]
pub(crate) fn max<M: Math>(a: M, b: M) -> M {
    if a > b || is_nan(a) { a } else { b }
}

/// Smaller of two; the second of two equal ones (zeros of either sign), NaN if either is.
#[inline(always)]
pub(crate) fn min<M: Math>(a: M, b: M) -> M {
    if a < b || is_nan(a) { a } else { b }
}

#[inline(always)]
#[allow(clippy::eq_op)]
fn is_nan<M: Math>(a: M) -> bool {
    a != a
}

/// A float that ops are computed in.
pub(crate) trait Real:
    Math
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
    + Neg<Output = Self>
{
    /// The nearest value of the type.
    fn from_f64(x: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
    /// a * b + c, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The exponential as an op of its own.
    fn exp_op(self) -> Self;
    /// The exponential inside vectorised functions.
    fn exp_vector(self) -> Self;
    /// The exponential inside attention on f32.
    fn exp_coarse(self) -> Self;
    /// The exponential inside attention on f16 and bf16.
    fn exp_short(self) -> Self;
    /// The error function that PyTorch's vectorised kernels use.
    fn erf_vectorised(self) -> Self;
    /// The hyperbolic tangent that GELU uses.
    fn tanh_vectorised(self) -> Self;
    /// A function of f64, rounded once into the type.
    #[inline(always)]
    fn via(self, f: impl Fn(f64) -> f64) -> Self {
        Self::from_f64(f(self.to_f64()))
    }
}

impl Real for f32 {
    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn fma(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    fn exp_op(self) -> f32 {
        exponential::exp_table(self)
    }
    fn exp_vector(self) -> f32 {
        exponential::exp_vector(self)
    }
    fn exp_coarse(self) -> f32 {
        exponential::exp_coarse(self)
    }
    fn exp_short(self) -> f32 {
        exponential::exp_short(self)
    }
    /// Abramowitz and Stegun 7.1.26: absolute error 1.5e-7, but few correct bits for tiny arguments. PyTorch's choice.
    fn erf_vectorised(self) -> f32 {
        const P: f32 = 0.327_591_1;
        const A: [f32; 5] = [1.061_405_4, -1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6];
        let x = self.abs();
        let t = 1.0 / P.mul_add(x, 1.0);
        let polynomial = A[1..].iter().fold(A[0], |r, &a| r.mul_add(t, a));
        let gauss = exponential::exp_vector(-(self * self));
        let magnitude = (-gauss * t).mul_add(polynomial, 1.0);
        f32::from_bits(magnitude.to_bits() ^ (self.to_bits() & 0x8000_0000))
    }
    /// Exactly +-1 beyond the argument at which PyTorch's library saturates (a little early).
    fn tanh_vectorised(self) -> f32 {
        const SATURATES_AT: f32 = 8.664_34;
        if self.abs() > SATURATES_AT { 1f32.copysign(self) } else { self.via(f64::tanh) }
    }
}

impl Real for f64 {
    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn fma(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    fn exp_op(self) -> f64 {
        self.exp()
    }
    fn exp_vector(self) -> f64 {
        self.exp()
    }
    fn exp_coarse(self) -> f64 {
        self.exp()
    }
    fn exp_short(self) -> f64 {
        self.exp()
    }
    fn erf_vectorised(self) -> f64 {
        libm::erf(self)
    }
    fn tanh_vectorised(self) -> f64 {
        self.tanh()
    }
}

/// The logistic function as the formula says it, so that it overflows where PyTorch's does.
#[inline(always)]
fn sigmoid<R: Real>(x: R) -> R {
    let one = R::from_f64(1.0);
    one / (one + (-x).exp_vector())
}

/// GELU by a given error function.
#[inline(always)]
pub(crate) fn gelu<R: Real>(x: R, erf: impl Fn(R) -> R) -> R {
    let (half, one) = (R::from_f64(0.5), R::from_f64(1.0));
    x * half * (one + erf(x * R::from_f64(std::f64::consts::FRAC_1_SQRT_2)))
}

fn unary_real<R: Real>(op: Unary, x: &mut [R]) -> Result<()> {
    macro_rules! each {
        (|$v:ident| $body:expr) => {
            for p in x.iter_mut() {
                let $v = *p;
                *p = $body;
            }
        };
    }
    let (zero, half, one) = (R::from_f64(0.0), R::from_f64(0.5), R::from_f64(1.0));
    match op {
        Unary::Neg => each!(|v| -v),
        Unary::Abs => each!(|v| v.via(f64::abs)),
        Unary::Sign => each!(|v| if v > zero {
            one
        } else if v < zero {
            -one
        } else {
            zero
        }),
        Unary::Ceil => each!(|v| v.via(f64::ceil)),
        Unary::Floor => each!(|v| v.via(f64::floor)),
        Unary::Round => each!(|v| v.via(f64::round_ties_even)),
        Unary::Trunc => each!(|v| v.via(f64::trunc)),
        Unary::Sqrt => each!(|v| v.via(f64::sqrt)),
        Unary::Rsqrt => each!(|v| one / v.via(f64::sqrt)),
        Unary::Recip => each!(|v| one / v),
        Unary::Exp => each!(|v| v.exp_op()),
        Unary::Exp2 => each!(|v| v.via(f64::exp2)),
        Unary::Expm1 => each!(|v| v.via(f64::exp_m1)),
        Unary::Log => each!(|v| v.via(f64::ln)),
        Unary::Log1p => each!(|v| v.via(f64::ln_1p)),
        Unary::Log2 => each!(|v| v.via(f64::log2)),
        Unary::Sin => each!(|v| v.via(f64::sin)),
        Unary::Cos => each!(|v| v.via(f64::cos)),
        Unary::Tan => each!(|v| v.via(f64::tan)),
        Unary::Asin => each!(|v| v.via(f64::asin)),
        Unary::Acos => each!(|v| v.via(f64::acos)),
        Unary::Atan => each!(|v| v.via(f64::atan)),
        Unary::Sinh => each!(|v| v.via(f64::sinh)),
        Unary::Cosh => each!(|v| v.via(f64::cosh)),
        Unary::Tanh => each!(|v| v.via(f64::tanh)),
        Unary::Erf => each!(|v| v.via(libm::erf)),
        Unary::Sigmoid => each!(|v| sigmoid(v)),
        // x / (1 + e^-x), not x * sigmoid(x): one rounding less.
        Unary::Silu => each!(|v| v / (one + (-v).exp_vector())),
        Unary::Gelu => each!(|v| gelu(v, |x| x.via(libm::erf))),
        Unary::GeluTanh => {
            let beta = R::from_f64(std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
            let kappa = R::from_f64(0.044715);
            each!(|v| {
                let inner = beta * kappa.fma(v * v * v, v);
                half * v * (one + inner.tanh_vectorised())
            })
        }
        Unary::Relu => each!(|v| max(zero, v)),
        Unary::Softplus => {
            let threshold = R::from_f64(20.0);
            each!(|v| if v > threshold { v } else { v.exp_vector().via(f64::ln_1p) })
        }
        Unary::Not | Unary::IsNan | Unary::IsInf => {
            return Err(KernelError::DType { op: op.name(), dtype: R::DTYPE });
        }
    }
    Ok(())
}

fn test_real<R: Real>(op: Unary, x: &[R], out: &mut [Bool]) {
    for (o, &v) in out.iter_mut().zip(x) {
        let holds = match op {
            Unary::IsInf => v.to_f64().is_infinite(),
            _ => v.to_f64().is_nan(),
        };
        *o = Bool(u8::from(holds));
    }
}

/// Remainder with the sign of the divisor.
fn remainder<R: Real>(a: R, b: R) -> R {
    let zero = R::from_f64(0.0);
    let r = a % b;
    if r != zero && ((b < zero) != (r < zero)) { r + b } else { r }
}

/// Quotient rounded toward -inf, consistent with [`remainder`] where the plain quotient would round up.
fn floor_div<R: Real>(a: R, b: R) -> R {
    let (zero, one) = (R::from_f64(0.0), R::from_f64(1.0));
    if b == zero {
        return a / b;
    }
    let r = a % b;
    let mut q = (a - r) / b;
    if r != zero && ((b < zero) != (r < zero)) {
        q = q - one;
    }
    if q == zero {
        return R::from_f64(0f64.copysign((a / b).to_f64()));
    }
    let floor = q.via(f64::floor);
    if q - floor > R::from_f64(0.5) { floor + one } else { floor }
}

fn binary_real<R: Real>(op: Binary, a: &[R], b: &[R], out: &mut [R]) -> Result<()> {
    macro_rules! each {
        (|$x:ident, $y:ident| $body:expr) => {
            for ((o, &$x), &$y) in out.iter_mut().zip(a).zip(b) {
                *o = $body;
            }
        };
    }
    match op {
        Binary::Add => each!(|x, y| x + y),
        Binary::Sub => each!(|x, y| x - y),
        Binary::Mul => each!(|x, y| x * y),
        Binary::Div => each!(|x, y| x / y),
        Binary::FloorDiv => each!(|x, y| floor_div(x, y)),
        Binary::TruncDiv => each!(|x, y| (x / y).via(f64::trunc)),
        Binary::Rem => each!(|x, y| remainder(x, y)),
        Binary::Fmod => each!(|x, y| x % y),
        Binary::Pow => each!(|x, y| R::from_f64(x.to_f64().powf(y.to_f64()))),
        Binary::Max => each!(|x, y| max(x, y)),
        Binary::Min => each!(|x, y| min(x, y)),
        Binary::Atan2 => each!(|x, y| R::from_f64(x.to_f64().atan2(y.to_f64()))),
        _ => return Err(KernelError::DType { op: op.name(), dtype: R::DTYPE }),
    }
    Ok(())
}

macro_rules! real_arith {
    ($t:ty) => {
        impl Arith for $t {
            fn unary(op: Unary, x: &mut [Self]) -> Result<()> {
                unary_real(op, x)
            }
            fn test(op: Unary, x: &[Self], out: &mut [Bool]) {
                test_real(op, x, out);
            }
            fn binary(op: Binary, a: &[Self], b: &[Self], out: &mut [Self]) -> Result<()> {
                binary_real(op, a, b, out)
            }
            fn of(scalar: shardweld_ir::Scalar) -> Self {
                scalar.as_f64() as $t
            }
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                self + b
            }
            #[inline(always)]
            fn times(self, b: Self) -> Self {
                self * b
            }
            fn one() -> Self {
                1.0
            }
        }
    };
}
real_arith!(f32);
real_arith!(f64);

/// Integers wrap; bool is 0 or 1, so that `add` is "or" and `mul` is "and" once stored again.
impl Arith for i64 {
    fn unary(op: Unary, x: &mut [i64]) -> Result<()> {
        let f: fn(i64) -> i64 = match op {
            Unary::Neg => i64::wrapping_neg,
            Unary::Abs => i64::wrapping_abs,
            Unary::Sign => i64::signum,
            Unary::Relu => |v| v.max(0),
            Unary::Not => |v| !v,
            Unary::Ceil | Unary::Floor | Unary::Round | Unary::Trunc => |v| v,
            _ => return Err(KernelError::DType { op: op.name(), dtype: shardweld_ir::DType::I64 }),
        };
        x.iter_mut().for_each(|v| *v = f(*v));
        Ok(())
    }

    fn test(_: Unary, _: &[i64], out: &mut [Bool]) {
        out.fill(Bool(0));
    }

    fn binary(op: Binary, a: &[i64], b: &[i64], out: &mut [i64]) -> Result<()> {
        let divides = matches!(op, Binary::FloorDiv | Binary::TruncDiv | Binary::Rem | Binary::Fmod);
        if divides && b.contains(&0) {
            return Err(KernelError::DivisionByZero { op: op.name() });
        }
        let f: fn(i64, i64) -> i64 = match op {
            Binary::Add => i64::wrapping_add,
            Binary::Sub => i64::wrapping_sub,
            Binary::Mul => i64::wrapping_mul,
            Binary::FloorDiv => |x, y| {
                let q = x.wrapping_div(y);
                if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { q - 1 } else { q }
            },
            Binary::TruncDiv => i64::wrapping_div,
            Binary::Rem => |x, y| {
                let r = x.wrapping_rem(y);
                if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
            },
            Binary::Fmod => i64::wrapping_rem,
            Binary::Pow => integer_power,
            Binary::Max => i64::max,
            Binary::Min => i64::min,
            Binary::And => |x, y| x & y,
            Binary::Or => |x, y| x | y,
            Binary::Xor => |x, y| x ^ y,
            _ => return Err(KernelError::DType { op: op.name(), dtype: shardweld_ir::DType::I64 }),
        };
        for ((o, &x), &y) in out.iter_mut().zip(a).zip(b) {
            *o = f(x, y);
        }
        Ok(())
    }

    fn of(scalar: shardweld_ir::Scalar) -> i64 {
        scalar.as_i64()
    }
    #[inline(always)]
    fn plus(self, b: i64) -> i64 {
        self.wrapping_add(b)
    }
    #[inline(always)]
    fn times(self, b: i64) -> i64 {
        self.wrapping_mul(b)
    }
    fn one() -> i64 {
        1
    }
}

/// x^y, wrapping; negative exponents give 0 except for bases 1 and -1, as PyTorch does.
fn integer_power(x: i64, y: i64) -> i64 {
    if y < 0 {
        return match x {
            1 => 1,
            -1 if y % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut base, mut exponent, mut result) = (x, y, 1i64);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    result
}
