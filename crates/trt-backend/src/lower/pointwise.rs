//! Elementwise ops: single layers where TensorRT has them, pieces in the wider type otherwise.

use shardweld_ir::{Binary, DType, Scalar, Unary, Value};

use super::lazy::{Lazy, View};
use super::{At, Lowerer, Made, refuse};
use crate::trace::{ActivationType, Call, ElementWiseOperation as E, TensorId, UnaryOperation as U};

/// Above this, softplus is its operand.
const SOFTPLUS_LINEAR: f64 = 20.0;
/// Below this magnitude, exp(x) - 1 and log(1 + x) lose digits and take their compensated forms.
const SMALL: f64 = 0.5;

impl Lowerer<'_> {
    /// Applies a function of one operand. Repetition and shuffles stay outside of it, so that shuffles on both sides of it
    /// can still fold.
    pub(super) fn pointwise_unary(
        &mut self,
        x: Value,
        f: impl FnOnce(&mut Self, TensorId) -> Made,
    ) -> Made<Lazy> {
        let at = At { name: self.graph.node(x.node).name.clone(), sources: Vec::new() };
        let dims = self.dims(x)?;
        if let Lazy::View(mut v) = self.lazy(x)? {
            v.base = f(self, v.base)?;
            return Ok(Lazy::View(v));
        }
        let t = self.loose(&at, x)?;
        let t = f(self, t)?;
        let own = self.b.ty(t).1;
        Ok(if own == dims { Lazy::View(View::of(t, own)) } else { Lazy::Expand { base: t, dims } })
    }

    /// Two operands for a layer that broadcasts, so that its result has the given shape.
    pub(super) fn operands_for(
        &mut self,
        at: &At,
        a: Value,
        b: Value,
        result: &[u64],
    ) -> Made<(TensorId, TensorId)> {
        let (mut p, q) = (self.loose(at, a)?, self.loose(at, b)?);
        let covered = |l: &Self, ts: &[TensorId]| {
            result.iter().enumerate().all(|(i, n)| ts.iter().any(|&t| l.b.ty(t).1.get(i) == Some(n)))
        };
        if !covered(self, &[p, q]) {
            p = self.tensor(at, a)?;
        }
        let q = if covered(self, &[p, q]) { q } else { self.tensor(at, b)? };
        Ok((p, q))
    }

    pub(super) fn select(&mut self, at: &At, x: &[Value], result: &[u64]) -> Made {
        let mut t = Vec::with_capacity(3);
        for &v in x {
            t.push(self.loose(at, v)?);
        }
        for i in 0..3 {
            let covered =
                (0..result.len()).all(|d| t.iter().any(|&t| self.b.ty(t).1.get(d) == result.get(d)));
            if covered {
                break;
            }
            t[i] = self.tensor(at, x[i])?;
        }
        self.choose(at, t[0], t[1], t[2])
    }

    fn choose(&mut self, at: &At, condition: TensorId, then_input: TensorId, else_input: TensorId) -> Made {
        self.emit(at, Call::Select { condition, then_input, else_input })
    }

    fn un(&mut self, at: &At, op: U, input: TensorId) -> Made {
        self.emit(at, Call::Unary { input, op })
    }

    fn act(&mut self, at: &At, op: ActivationType, input: TensorId) -> Made {
        self.emit(at, Call::Activation { input, op })
    }

    pub(super) fn ew(&mut self, at: &At, op: E, a: TensorId, b: TensorId) -> Made {
        self.emit(at, Call::ElementWise { a, b, op })
    }

    /// A float or integer constant of the type and rank of `like`.
    pub(super) fn number(&mut self, at: &At, like: TensorId, value: f64) -> Made {
        let (dtype, rank) = (self.b.ty(like).0, self.b.ty(like).1.len());
        let value = if dtype.is_float() { Scalar::Float(value) } else { Scalar::Int(value as i64) };
        self.scalar(at, dtype, value, rank)
    }

    /// Runs pieces in the type that the IR computes in, and rounds once at the end.
    pub(super) fn in_math(
        &mut self,
        at: &At,
        x: TensorId,
        f: impl FnOnce(&mut Self, TensorId) -> Made,
    ) -> Made {
        let own = self.b.ty(x).0;
        let wide = self.cast(at, x, own.op_math())?;
        let y = f(self, wide)?;
        // Predicates answer in bool, whatever they were asked about.
        if self.b.ty(y).0 == own.op_math() { self.cast(at, y, own) } else { Ok(y) }
    }

    pub(super) fn unary(&mut self, at: &At, op: Unary, x: TensorId) -> Made {
        let dtype = self.b.ty(x).0;
        match op {
            Unary::Neg => self.un(at, U::Neg, x),
            Unary::Abs => self.un(at, U::Abs, x),
            Unary::Sign => self.un(at, U::Sign, x),
            Unary::Ceil => self.un(at, U::Ceil, x),
            Unary::Floor => self.un(at, U::Floor, x),
            Unary::Round => self.un(at, U::Round, x),
            Unary::Sqrt => self.un(at, U::Sqrt, x),
            Unary::Recip => self.un(at, U::Recip, x),
            Unary::Exp => self.un(at, U::Exp, x),
            Unary::Log => self.un(at, U::Log, x),
            Unary::Sin => self.un(at, U::Sin, x),
            Unary::Cos => self.un(at, U::Cos, x),
            Unary::Tan => self.un(at, U::Tan, x),
            Unary::Asin => self.un(at, U::Asin, x),
            Unary::Acos => self.un(at, U::Acos, x),
            Unary::Atan => self.un(at, U::Atan, x),
            Unary::Sinh => self.un(at, U::Sinh, x),
            Unary::Cosh => self.un(at, U::Cosh, x),
            Unary::Erf => self.un(at, U::Erf, x),
            Unary::IsNan => self.un(at, U::IsNan, x),
            Unary::IsInf => self.un(at, U::IsInf, x),
            Unary::Tanh => self.act(at, ActivationType::Tanh, x),
            Unary::Sigmoid => self.act(at, ActivationType::Sigmoid, x),
            Unary::Gelu => self.act(at, ActivationType::GeluErf, x),
            Unary::GeluTanh => self.act(at, ActivationType::GeluTanh, x),
            Unary::Relu => self.act(at, ActivationType::Relu, x),
            Unary::Not if dtype == DType::Bool => self.un(at, U::Not, x),
            // Two's complement: not x is -1 - x.
            Unary::Not => {
                let minus_one = self.number(at, x, -1.0)?;
                self.ew(at, E::Sub, minus_one, x)
            }
            Unary::Trunc => self.trunc(at, x),
            Unary::Rsqrt => self.in_math(at, x, |l, x| l.rsqrt(at, x)),
            Unary::Silu => self.in_math(at, x, |l, x| {
                let s = l.act(at, ActivationType::Sigmoid, x)?;
                l.ew(at, E::Prod, x, s)
            }),
            Unary::Exp2 => self.in_math(at, x, |l, x| {
                let two = l.number(at, x, 2.0)?;
                l.ew(at, E::Pow, two, x)
            }),
            Unary::Log2 => self.in_math(at, x, |l, x| {
                let log = l.un(at, U::Log, x)?;
                let factor = l.number(at, x, std::f64::consts::LOG2_E)?;
                l.ew(at, E::Prod, log, factor)
            }),
            Unary::Expm1 => self.in_math(at, x, |l, x| l.expm1(at, x)),
            Unary::Log1p => self.in_math(at, x, |l, x| l.log1p(at, x)),
            Unary::Softplus => self.in_math(at, x, |l, x| {
                let limit = l.number(at, x, SOFTPLUS_LINEAR)?;
                let linear = l.ew(at, E::Greater, x, limit)?;
                let e = l.un(at, U::Exp, x)?;
                let curved = l.log1p(at, e)?;
                l.choose(at, linear, x, curved)
            }),
        }
    }

    /// Toward zero. Not sign * floor(abs): that would lose the sign of -0.
    fn trunc(&mut self, at: &At, x: TensorId) -> Made {
        let zero = self.number(at, x, 0.0)?;
        let negative = self.ew(at, E::Less, x, zero)?;
        let (up, down) = (self.un(at, U::Ceil, x)?, self.un(at, U::Floor, x)?);
        self.choose(at, negative, up, down)
    }

    pub(super) fn rsqrt(&mut self, at: &At, x: TensorId) -> Made {
        let root = self.un(at, U::Sqrt, x)?;
        self.un(at, U::Recip, root)
    }

    fn is_small(&mut self, at: &At, x: TensorId) -> Made {
        let magnitude = self.un(at, U::Abs, x)?;
        let limit = self.number(at, x, SMALL)?;
        self.ew(at, E::Less, magnitude, limit)
    }

    /// Near zero (u - 1) * x / log(u) with u = exp(x), and x where u rounds to 1; the plain difference elsewhere.
    fn expm1(&mut self, at: &At, x: TensorId) -> Made {
        let one = self.number(at, x, 1.0)?;
        let u = self.un(at, U::Exp, x)?;
        let plain = self.ew(at, E::Sub, u, one)?;
        let log = self.un(at, U::Log, u)?;
        let scaled = self.ew(at, E::Prod, plain, x)?;
        let careful = self.ew(at, E::Div, scaled, log)?;
        let unit = self.ew(at, E::Equal, u, one)?;
        let near = self.choose(at, unit, x, careful)?;
        let small = self.is_small(at, x)?;
        self.choose(at, small, near, plain)
    }

    /// Near zero log(u) * x / (u - 1) with u = 1 + x, and x where u rounds to 1; the plain logarithm elsewhere.
    fn log1p(&mut self, at: &At, x: TensorId) -> Made {
        let one = self.number(at, x, 1.0)?;
        let u = self.ew(at, E::Sum, x, one)?;
        let plain = self.un(at, U::Log, u)?;
        let rest = self.ew(at, E::Sub, u, one)?;
        let scaled = self.ew(at, E::Prod, plain, x)?;
        let careful = self.ew(at, E::Div, scaled, rest)?;
        let unit = self.ew(at, E::Equal, u, one)?;
        let near = self.choose(at, unit, x, careful)?;
        let small = self.is_small(at, x)?;
        self.choose(at, small, near, plain)
    }

    pub(super) fn binary(&mut self, at: &At, op: Binary, a: TensorId, b: TensorId) -> Made {
        let dtype = self.b.ty(a).0;
        if dtype == DType::Bool {
            return self.binary_bool(at, op, a, b);
        }
        match op {
            Binary::Add => self.ew(at, E::Sum, a, b),
            Binary::Sub => self.ew(at, E::Sub, a, b),
            Binary::Mul => self.ew(at, E::Prod, a, b),
            Binary::Div => self.ew(at, E::Div, a, b),
            // Integer division truncates in TensorRT, as in C.
            Binary::TruncDiv if dtype.is_int() => self.ew(at, E::Div, a, b),
            // In half precision the quotient rounds before it is truncated, as PyTorch's does.
            Binary::TruncDiv if dtype != dtype.op_math() => {
                let quotient = self.ew(at, E::Div, a, b)?;
                self.trunc(at, quotient)
            }
            Binary::Max => self.ew(at, E::Max, a, b),
            Binary::Min => self.ew(at, E::Min, a, b),
            Binary::Pow if dtype.is_float() => self.ew(at, E::Pow, a, b),
            Binary::Eq => self.ew(at, E::Equal, a, b),
            Binary::Lt => self.ew(at, E::Less, a, b),
            Binary::Gt => self.ew(at, E::Greater, a, b),
            Binary::Ne => {
                let equal = self.ew(at, E::Equal, a, b)?;
                self.un(at, U::Not, equal)
            }
            Binary::Le | Binary::Ge => {
                let strict = if op == Binary::Le { E::Less } else { E::Greater };
                let (strict, equal) = (self.ew(at, strict, a, b)?, self.ew(at, E::Equal, a, b)?);
                self.ew(at, E::Or, strict, equal)
            }
            Binary::FloorDiv | Binary::TruncDiv | Binary::Rem | Binary::Fmod => {
                self.in_math2(at, a, b, |l, a, b| l.division(at, op, a, b))
            }
            Binary::Atan2 | Binary::Pow | Binary::And | Binary::Or | Binary::Xor => {
                refuse(format!("TensorRT has no {} of {dtype}", op.name()))
            }
        }
    }

    fn in_math2(
        &mut self,
        at: &At,
        a: TensorId,
        b: TensorId,
        f: impl FnOnce(&mut Self, TensorId, TensorId) -> Made,
    ) -> Made {
        let own = self.b.ty(a).0;
        let b = self.cast(at, b, own.op_math())?;
        self.in_math(at, a, |l, a| f(l, a, b))
    }

    fn division(&mut self, at: &At, op: Binary, a: TensorId, b: TensorId) -> Made {
        let is_int = self.b.ty(a).0.is_int();
        let quotient = match op {
            Binary::FloorDiv | Binary::Rem => self.ew(at, E::FloorDiv, a, b)?,
            _ if is_int => self.ew(at, E::Div, a, b)?,
            _ => {
                let q = self.ew(at, E::Div, a, b)?;
                self.trunc(at, q)?
            }
        };
        if matches!(op, Binary::FloorDiv | Binary::TruncDiv) {
            return Ok(quotient);
        }
        let whole = self.ew(at, E::Prod, b, quotient)?;
        self.ew(at, E::Sub, a, whole)
    }

    fn binary_bool(&mut self, at: &At, op: Binary, a: TensorId, b: TensorId) -> Made {
        match op {
            Binary::And | Binary::Min => self.ew(at, E::And, a, b),
            Binary::Or | Binary::Max => self.ew(at, E::Or, a, b),
            Binary::Xor | Binary::Ne => self.ew(at, E::Xor, a, b),
            Binary::Eq => {
                let differ = self.ew(at, E::Xor, a, b)?;
                self.un(at, U::Not, differ)
            }
            Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
                let (a, b) = (self.cast(at, a, DType::I32)?, self.cast(at, b, DType::I32)?);
                self.binary(at, op, a, b)
            }
            _ => refuse(format!("{} of bool", op.name())),
        }
    }

    pub(super) fn binary_scalar(
        &mut self,
        at: &At,
        op: Binary,
        x: TensorId,
        scalar: Scalar,
        scalar_first: bool,
    ) -> Made {
        if op == Binary::Pow && !scalar_first {
            return self.power(at, x, scalar);
        }
        let dtype = self.b.ty(x).0;
        // A number that the narrow type does not hold takes part in the wide type that the op computes in. A quotient by
        // a number is truncated there.
        let needs_wide = !is_exact(dtype, scalar) || op == Binary::TruncDiv;
        if dtype.is_float() && needs_wide && dtype != dtype.op_math() {
            return self.in_math(at, x, |l, x| l.binary_scalar(at, op, x, scalar, scalar_first));
        }
        let rank = self.b.ty(x).1.len();
        let number = self.scalar(at, dtype, scalar, rank)?;
        let (a, b) = if scalar_first { (number, x) } else { (x, number) };
        self.binary(at, op, a, b)
    }

    /// x to a known power; the powers that PyTorch multiplies out are multiplied out.
    fn power(&mut self, at: &At, x: TensorId, exponent: Scalar) -> Made {
        let e = exponent.as_f64();
        if e == 1.0 {
            return Ok(x);
        }
        if e == 2.0 {
            return self.ew(at, E::Prod, x, x);
        }
        if !self.b.ty(x).0.is_float() && e != 3.0 {
            return refuse(format!("TensorRT has no power {exponent} of {}", self.b.ty(x).0));
        }
        if e == 3.0 || e == -2.0 {
            let steps = |l: &mut Self, x| {
                let square = l.ew(at, E::Prod, x, x)?;
                if e == 3.0 { l.ew(at, E::Prod, square, x) } else { l.un(at, U::Recip, square) }
            };
            // Each step rounds by itself; powers of f16 alone round once.
            return if self.b.ty(x).0 == DType::F16 { self.in_math(at, x, steps) } else { steps(self, x) };
        }
        // Of f16 they are no roots either, which differ at -0 and -inf.
        let is_root = self.b.ty(x).0 != DType::F16;
        self.in_math(at, x, |l, x| {
            if is_root && e == 0.5 {
                return l.un(at, U::Sqrt, x);
            }
            if is_root && e == -0.5 {
                return l.rsqrt(at, x);
            }
            if e == -1.0 {
                return l.un(at, U::Recip, x);
            }
            let e = l.number(at, x, e)?;
            l.ew(at, E::Pow, x, e)
        })
    }
}

/// Whether the type holds the number exactly.
pub(super) fn is_exact(dtype: DType, value: Scalar) -> bool {
    let x = value.as_f64();
    match dtype {
        DType::F16 => half::f16::from_f64(x).to_f64() == x || x.is_nan(),
        DType::BF16 => half::bf16::from_f64(x).to_f64() == x || x.is_nan(),
        _ => true,
    }
}
