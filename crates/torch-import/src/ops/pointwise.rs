//! Elementwise arithmetic, comparison and logic, with torch's promotion and its treatment of numbers.
//!
//! Numbers with f16 and bf16 tensors: torch's CPU kernels use the number unrounded (in f32) in `mul` and `div`, and round it to the tensor's
//! type first in every other op. The same goes for tensors without dimensions as second operand.

use shardweld_ir::{Binary, DType, Scalar, Unary};

use crate::{
    call::{Call, Refused},
    context::{Arg, Cx, Out, rounded},
    promote::DEFAULT_FLOAT,
    ssa::Val,
};

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    if let Some((f, integers)) = unary(call.op) {
        let x = cx.value(call, "self")?;
        return Ok(Some(Out::Fresh(vec![cx.float_function(f, integers, x)?])));
    }
    if let Some(f) = simple_binary(call.op) {
        let (a, b) = (cx.arg(call, "self")?, cx.arg(call, "other")?);
        return Ok(Some(Out::Fresh(vec![cx.promoted(f, a, b)?])));
    }
    let value = match call.op {
        "add" | "sub" | "subtract" | "rsub" => {
            let (mut a, mut b) = (cx.arg(call, "self")?, cx.arg(call, "other")?);
            let dtype = cx.common(&[a, b])?;
            let one = Scalar::Int(1);
            let alpha = call.opt_scalar("alpha")?.filter(|s| s.as_f64() != one.as_f64());
            if call.op == "rsub" {
                (a, b) = (b, a);
            }
            let f = if call.op == "add" { Binary::Add } else { Binary::Sub };
            match alpha {
                None => cx.promoted(f, a, b)?,
                Some(alpha) => cx.with_alpha(f, dtype, a, b, alpha)?,
            }
        }
        "div" | "divide" | "true_divide" => {
            let (a, b) = (cx.arg(call, "self")?, cx.arg(call, "other")?);
            match call.opt_str("rounding_mode")? {
                None => {
                    let dtype = Some(cx.common(&[a, b])?).filter(|d| d.is_float()).unwrap_or(DEFAULT_FLOAT);
                    cx.computed_in(Binary::Div, dtype, a, b)?
                }
                Some("floor") => cx.promoted(Binary::FloorDiv, a, b)?,
                Some("trunc") => cx.promoted(Binary::TruncDiv, a, b)?,
                Some(other) => return Err(format!("rounding mode `{other}`; expected floor or trunc")),
            }
        }
        "pow" => {
            let (a, b) = (cx.arg(call, "self")?, cx.arg(call, "exponent")?);
            cx.promoted(Binary::Pow, a, b)?
        }
        "square" => {
            let x = cx.value(call, "self")?;
            cx.binary(Binary::Mul, x, x)?
        }
        "logical_not" => {
            let x = cx.value(call, "self")?;
            let x = cx.cast(x, DType::Bool)?;
            cx.unary(Unary::Not, x)?
        }
        "logical_and" | "logical_or" | "logical_xor" => {
            let (a, b) = (cx.value(call, "self")?, cx.value(call, "other")?);
            let (a, b) = (cx.cast(a, DType::Bool)?, cx.cast(b, DType::Bool)?);
            let f = match call.op {
                "logical_and" => Binary::And,
                "logical_or" => Binary::Or,
                _ => Binary::Xor,
            };
            cx.binary(f, a, b)?
        }
        "isfinite" => {
            let x = cx.value(call, "self")?;
            if cx.dtype(x).is_float() {
                let (nan, inf) = (cx.unary(Unary::IsNan, x)?, cx.unary(Unary::IsInf, x)?);
                let either = cx.binary(Binary::Or, nan, inf)?;
                cx.unary(Unary::Not, either)?
            } else {
                let dims = cx.dims(x);
                cx.full(DType::Bool, &dims, Scalar::Bool(true))?
            }
        }
        "where" => {
            let condition = cx.value(call, "condition")?;
            if !call.has("self") {
                return Err("`where` with a condition only gives a shape that depends on data".into());
            }
            let (a, b) = (cx.arg(call, "self")?, cx.arg(call, "other")?);
            cx.choose(condition, a, b)?
        }
        "masked_fill" => {
            let (x, mask) = (cx.value(call, "self")?, cx.value(call, "mask")?);
            let fill = match cx.arg(call, "value")? {
                Arg::Tensor(v) => {
                    let dtype = cx.dtype(x);
                    Arg::Tensor(cx.cast(v, dtype)?)
                }
                number => number,
            };
            let (dtype, rank) = (cx.dtype(x), cx.rank(x));
            let fill = cx.materialised(fill, dtype, rank)?;
            cx.select(mask, fill, x)?
        }
        "clamp" | "clip" | "clamp_min" | "clamp_max" => {
            let x = cx.arg(call, "self")?;
            let mut bounds = Vec::new();
            for (name, f) in [("min", Binary::Max), ("max", Binary::Min)] {
                if call.has(name) {
                    bounds.push((f, cx.arg(call, name)?));
                }
            }
            let mut all = vec![x];
            all.extend(bounds.iter().map(|(_, b)| *b));
            let dtype = cx.common(&all)?;
            let mut value = x;
            for (f, bound) in bounds {
                value = Arg::Tensor(cx.computed_in(f, dtype, value, bound)?);
            }
            match value {
                Arg::Tensor(v) => cx.cast(v, dtype)?,
                Arg::Number(_) => return Err("clamp of a number".into()),
            }
        }
        "addcmul" | "addcdiv" => {
            let x = cx.value(call, "self")?;
            let (a, b) = (cx.value(call, "tensor1")?, cx.value(call, "tensor2")?);
            let factor = call.opt_scalar("value")?.filter(|s| s.as_f64() != 1.0);
            let dtype = cx.common(&[Arg::Tensor(x), Arg::Tensor(a), Arg::Tensor(b)])?;
            let wide = dtype.op_math();
            let (x, mut a, b) =
                (cx.narrowed(x, dtype, wide)?, cx.narrowed(a, dtype, wide)?, cx.narrowed(b, dtype, wide)?);
            if let Some(factor) = factor {
                a = cx.scalar_op(Binary::Mul, a, factor)?;
            }
            let product = cx.binary(if call.op == "addcmul" { Binary::Mul } else { Binary::Div }, a, b)?;
            let sum = cx.binary(Binary::Add, x, product)?;
            cx.cast(sum, dtype)?
        }
        "lerp" => {
            let (a, b) = (cx.value(call, "self")?, cx.value(call, "end")?);
            let weight = cx.arg(call, "weight")?;
            let dtype = cx.dtype(a);
            let wide = dtype.op_math();
            let (a, b) = (cx.cast(a, wide)?, cx.cast(b, wide)?);
            let span = cx.binary(Binary::Sub, b, a)?;
            let value = match weight {
                // torch starts from the nearer end.
                Arg::Number(w) if w.as_f64().abs() >= 0.5 => {
                    let rest = cx.scalar_op(Binary::Mul, span, Scalar::Float(1.0 - w.as_f64()))?;
                    cx.binary(Binary::Sub, b, rest)?
                }
                Arg::Number(w) => {
                    let step = cx.scalar_op(Binary::Mul, span, w)?;
                    cx.binary(Binary::Add, a, step)?
                }
                Arg::Tensor(w) => {
                    let w = cx.cast(w, wide)?;
                    let step = cx.binary(Binary::Mul, span, w)?;
                    let from_a = cx.binary(Binary::Add, a, step)?;
                    let rest = cx.scalar_first(Binary::Sub, Scalar::Float(1.0), w)?;
                    let rest = cx.binary(Binary::Mul, span, rest)?;
                    let from_b = cx.binary(Binary::Sub, b, rest)?;
                    let size = cx.unary(Unary::Abs, w)?;
                    let near_a = cx.scalar_op(Binary::Lt, size, Scalar::Float(0.5))?;
                    cx.select(near_a, from_a, from_b)?
                }
            };
            cx.cast(value, dtype)?
        }
        "nan_to_num" => {
            let x = cx.value(call, "self")?;
            let dtype = cx.dtype(x);
            let (min, max) = match dtype {
                DType::F32 => (f64::from(f32::MIN), f64::from(f32::MAX)),
                DType::F64 => (f64::MIN, f64::MAX),
                DType::F16 => (half::f16::MIN.to_f64(), half::f16::MAX.to_f64()),
                DType::BF16 => (half::bf16::MIN.to_f64(), half::bf16::MAX.to_f64()),
                _ => return Ok(Some(Out::Fresh(vec![x]))),
            };
            let mut value = x;
            let nan = cx.unary(Unary::IsNan, x)?;
            let replaced = [
                (nan, call.float_or("nan", 0.0)?),
                (cx.scalar_op(Binary::Eq, x, Scalar::Float(f64::INFINITY))?, call.float_or("posinf", max)?),
                (
                    cx.scalar_op(Binary::Eq, x, Scalar::Float(f64::NEG_INFINITY))?,
                    call.float_or("neginf", min)?,
                ),
            ];
            for (condition, by) in replaced {
                let rank = cx.rank(x);
                let by = cx.materialised(Arg::Number(Scalar::Float(by)), dtype, rank)?;
                value = cx.select(condition, by, value)?;
            }
            value
        }
        // copy: the shape and type of the first, the values of the second.
        "copy" => {
            let (x, src) = (cx.value(call, "self")?, cx.value(call, "src")?);
            call.get("non_blocking");
            let (dtype, dims) = (cx.dtype(x), cx.dims(x));
            let src = cx.cast(src, dtype)?;
            cx.broadcast_to(src, &dims)?
        }
        _ => return Ok(None),
    };
    Ok(Some(Out::Fresh(vec![value])))
}

/// What an op does with integers.
#[derive(Clone, Copy, PartialEq)]
enum Integers {
    /// It computes on them.
    Kept,
    /// It gives them back.
    Unchanged,
    /// It converts them to the default float type.
    Floated,
}

fn unary(op: &str) -> Option<(Unary, Integers)> {
    use Integers::*;
    Some(match op {
        "neg" | "negative" => (Unary::Neg, Kept),
        "abs" | "absolute" => (Unary::Abs, Kept),
        "sign" | "sgn" => (Unary::Sign, Kept),
        "relu" => (Unary::Relu, Kept),
        "bitwise_not" => (Unary::Not, Kept),
        "ceil" => (Unary::Ceil, Unchanged),
        "floor" => (Unary::Floor, Unchanged),
        "trunc" | "fix" => (Unary::Trunc, Unchanged),
        "round" => (Unary::Round, Unchanged),
        "sqrt" => (Unary::Sqrt, Floated),
        "rsqrt" => (Unary::Rsqrt, Floated),
        "reciprocal" => (Unary::Recip, Floated),
        "exp" => (Unary::Exp, Floated),
        "exp2" | "special_exp2" => (Unary::Exp2, Floated),
        "expm1" | "special_expm1" => (Unary::Expm1, Floated),
        "log" => (Unary::Log, Floated),
        "log1p" | "special_log1p" => (Unary::Log1p, Floated),
        "log2" => (Unary::Log2, Floated),
        "sin" => (Unary::Sin, Floated),
        "cos" => (Unary::Cos, Floated),
        "tan" => (Unary::Tan, Floated),
        "asin" | "arcsin" => (Unary::Asin, Floated),
        "acos" | "arccos" => (Unary::Acos, Floated),
        "atan" | "arctan" => (Unary::Atan, Floated),
        "sinh" => (Unary::Sinh, Floated),
        "cosh" => (Unary::Cosh, Floated),
        "tanh" => (Unary::Tanh, Floated),
        "erf" | "special_erf" => (Unary::Erf, Floated),
        "sigmoid" | "special_expit" => (Unary::Sigmoid, Floated),
        "silu" => (Unary::Silu, Floated),
        "isnan" => (Unary::IsNan, Floated),
        "isinf" => (Unary::IsInf, Floated),
        _ => return None,
    })
}

fn simple_binary(op: &str) -> Option<Binary> {
    Some(match op {
        "mul" | "multiply" => Binary::Mul,
        "floor_divide" => Binary::FloorDiv,
        "remainder" => Binary::Rem,
        "fmod" => Binary::Fmod,
        "maximum" => Binary::Max,
        "minimum" => Binary::Min,
        "atan2" | "arctan2" => Binary::Atan2,
        "bitwise_and" | "__and__" => Binary::And,
        "bitwise_or" | "__or__" => Binary::Or,
        "bitwise_xor" | "__xor__" => Binary::Xor,
        "eq" => Binary::Eq,
        "ne" | "not_equal" => Binary::Ne,
        "lt" | "less" => Binary::Lt,
        "le" | "less_equal" => Binary::Le,
        "gt" | "greater" => Binary::Gt,
        "ge" | "greater_equal" => Binary::Ge,
        _ => return None,
    })
}

impl Cx<'_> {
    fn float_function(&mut self, f: Unary, integers: Integers, x: Val) -> Refused<Val> {
        match (self.dtype(x).is_float(), integers) {
            (true, _) | (false, Integers::Kept) => self.unary(f, x),
            (false, Integers::Unchanged) => Ok(x),
            (false, Integers::Floated) => {
                let x = self.as_float(x)?;
                self.unary(f, x)
            }
        }
    }

    /// A binary op in the common type of its operands.
    pub(super) fn promoted(&mut self, f: Binary, a: Arg, b: Arg) -> Refused<Val> {
        let mut dtype = self.common(&[a, b])?;
        if matches!(f, Binary::Atan2) && !dtype.is_float() {
            dtype = DEFAULT_FLOAT;
        }
        self.computed_in(f, dtype, a, b)
    }

    /// A binary op in a given type.
    fn computed_in(&mut self, f: Binary, dtype: DType, a: Arg, b: Arg) -> Refused<Val> {
        // torch's arithmetic on truth values.
        let f = match (f, dtype) {
            (Binary::Add | Binary::Max, DType::Bool) => Binary::Or,
            (Binary::Mul | Binary::Min, DType::Bool) => Binary::And,
            _ => f,
        };
        let exact = matches!(f, Binary::Mul | Binary::Div);
        match (a, b) {
            (Arg::Tensor(a), Arg::Tensor(b)) => {
                let wide = dtype.op_math();
                if exact
                    && wide != dtype
                    && self.rank(b) == 0
                    && self.rank(a) > 0
                    && !self.dtype(b).embeds_in(dtype)
                {
                    let (a, b) = (self.narrowed(a, dtype, wide)?, self.cast(b, wide)?);
                    let wide = self.binary(f, a, b)?;
                    return self.cast(wide, dtype);
                }
                let (a, b) = (self.cast(a, dtype)?, self.cast(b, dtype)?);
                self.binary(f, a, b)
            }
            (Arg::Tensor(a), Arg::Number(s)) => {
                let a = self.cast(a, dtype)?;
                self.scalar_op(f, a, if exact { s } else { rounded(dtype, s) })
            }
            (Arg::Number(s), Arg::Tensor(b)) => {
                let b = self.cast(b, dtype)?;
                self.scalar_first(f, rounded(dtype, s), b)
            }
            (Arg::Number(_), Arg::Number(_)) => Err("both operands are numbers".into()),
        }
    }

    /// Casts to the type of the op and then to the type it computes in.
    fn narrowed(&mut self, v: Val, dtype: DType, wide: DType) -> Refused<Val> {
        let v = self.cast(v, dtype)?;
        self.cast(v, wide)
    }

    /// a + alpha b or a - alpha b; torch rounds alpha to the type and computes in the wide one.
    fn with_alpha(&mut self, f: Binary, dtype: DType, a: Arg, b: Arg, alpha: Scalar) -> Refused<Val> {
        let alpha = rounded(dtype, alpha);
        match (a, b) {
            (Arg::Tensor(a), Arg::Tensor(b)) => {
                let wide = dtype.op_math();
                let (a, b) = (self.narrowed(a, dtype, wide)?, self.narrowed(b, dtype, wide)?);
                let scaled = self.scalar_op(Binary::Mul, b, alpha)?;
                let sum = self.binary(f, a, scaled)?;
                self.cast(sum, dtype)
            }
            (Arg::Tensor(_), Arg::Number(s)) => {
                let scaled = match (alpha, s) {
                    (Scalar::Int(x), Scalar::Int(y)) => Scalar::Int(x.wrapping_mul(y)),
                    (x, y) => Scalar::Float(x.as_f64() * y.as_f64()),
                };
                self.computed_in(f, dtype, a, Arg::Number(scaled))
            }
            (Arg::Number(s), Arg::Tensor(b)) => {
                let wide = dtype.op_math();
                let b = self.narrowed(b, dtype, wide)?;
                let scaled = self.scalar_op(Binary::Mul, b, alpha)?;
                let sum = self.scalar_first(f, rounded(dtype, s), scaled)?;
                self.cast(sum, dtype)
            }
            (Arg::Number(_), Arg::Number(_)) => Err("both operands are numbers".into()),
        }
    }

    /// A tensor of the type, from a tensor or a number; a number gets `rank` dimensions of size 1.
    pub(super) fn materialised(&mut self, a: Arg, dtype: DType, rank: usize) -> Refused<Val> {
        match a {
            Arg::Tensor(v) => self.cast(v, dtype),
            Arg::Number(s) => self.full(dtype, &vec![1; rank], rounded(dtype, s)),
        }
    }

    fn choose(&mut self, condition: Val, a: Arg, b: Arg) -> Refused<Val> {
        let dtype = self.common(&[a, b])?;
        let rank_of = |cx: &Self, a: Arg| match a {
            Arg::Tensor(v) => cx.rank(v),
            Arg::Number(_) => 0,
        };
        let rank = self.rank(condition).max(rank_of(self, a)).max(rank_of(self, b));
        let (a, b) = (self.materialised(a, dtype, rank)?, self.materialised(b, dtype, rank)?);
        let condition = self.cast(condition, DType::Bool)?;
        self.select(condition, a, b)
    }
}
