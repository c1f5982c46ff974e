//! Activation functions: those that the IR has, and those that are spelled out in the type torch computes in.

use shardweld_ir::{Binary, Scalar, Unary};

use crate::{
    call::{Call, Refused},
    context::{Arg, Cx, Out},
    ssa::Val,
};

/// Softplus with torch's default arguments is an op of its own.
const SOFTPLUS_BETA: f64 = 1.0;
const SOFTPLUS_THRESHOLD: f64 = 20.0;

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let number = |name: &str, default: f64| call.float_or(name, default).map(Scalar::Float);
    let value = match call.op {
        "gelu" => {
            let x = cx.value(call, "self")?;
            match call.opt_str("approximate")?.unwrap_or("none") {
                "none" => cx.unary(Unary::Gelu, x)?,
                "tanh" => cx.unary(Unary::GeluTanh, x)?,
                other => return Err(format!("gelu approximated by `{other}`; expected none or tanh")),
            }
        }
        "softplus" => {
            let (beta, threshold) =
                (call.float_or("beta", SOFTPLUS_BETA)?, call.float_or("threshold", SOFTPLUS_THRESHOLD)?);
            if beta != SOFTPLUS_BETA || threshold != SOFTPLUS_THRESHOLD {
                return Err(format!(
                    "softplus with beta {beta} and threshold {threshold}; expected 1 and 20"
                ));
            }
            let x = cx.value(call, "self")?;
            cx.unary(Unary::Softplus, x)?
        }
        "relu6" => {
            let x = cx.value(call, "self")?;
            cx.between(x, Scalar::Float(0.0), Scalar::Float(6.0))?
        }
        "hardtanh" => {
            let x = cx.value(call, "self")?;
            cx.between(x, number("min_val", -1.0)?, number("max_val", 1.0)?)?
        }
        "leaky_relu" => {
            let x = cx.value(call, "self")?;
            let slope = number("negative_slope", 0.01)?;
            let scaled = cx.scalar_op(Binary::Mul, x, slope)?;
            let positive = cx.scalar_op(Binary::Gt, x, Scalar::Float(0.0))?;
            cx.select(positive, x, scaled)?
        }
        "elu" | "selu" | "celu" => {
            let (alpha, scale, input_scale) = match call.op {
                "elu" => (
                    call.float_or("alpha", 1.0)?,
                    call.float_or("scale", 1.0)?,
                    call.float_or("input_scale", 1.0)?,
                ),
                "selu" => (1.673_263_242_354_377_2, 1.050_700_987_355_480_5, 1.0),
                _ => {
                    let alpha = call.float_or("alpha", 1.0)?;
                    (alpha, 1.0, 1.0 / alpha)
                }
            };
            let x = cx.value(call, "self")?;
            cx.in_op_math(x, |cx, x| {
                let scaled = cx.times(x, input_scale)?;
                let below = cx.unary(Unary::Expm1, scaled)?;
                let below = cx.times(below, alpha * scale)?;
                let above = cx.times(x, scale)?;
                let negative = cx.scalar_op(Binary::Le, x, Scalar::Float(0.0))?;
                cx.select(negative, below, above)
            })?
        }
        "hardsigmoid" => {
            let x = cx.value(call, "self")?;
            cx.in_op_math(x, |cx, x| {
                let shifted = cx.scalar_op(Binary::Add, x, Scalar::Float(3.0))?;
                let gate = cx.between(shifted, Scalar::Float(0.0), Scalar::Float(6.0))?;
                cx.scalar_op(Binary::Div, gate, Scalar::Float(6.0))
            })?
        }
        "hardswish" => {
            let x = cx.value(call, "self")?;
            cx.in_op_math(x, |cx, x| {
                let shifted = cx.scalar_op(Binary::Add, x, Scalar::Float(3.0))?;
                let gate = cx.between(shifted, Scalar::Float(0.0), Scalar::Float(6.0))?;
                let product = cx.binary(Binary::Mul, x, gate)?;
                cx.scalar_op(Binary::Div, product, Scalar::Float(6.0))
            })?
        }
        "mish" => {
            let x = cx.value(call, "self")?;
            cx.in_op_math(x, |cx, x| {
                let s = cx.unary(Unary::Softplus, x)?;
                let t = cx.unary(Unary::Tanh, s)?;
                cx.binary(Binary::Mul, x, t)
            })?
        }
        "log_sigmoid" | "log_sigmoid_forward" => {
            let x = cx.value(call, "self")?;
            let value = cx.in_op_math(x, |cx, x| {
                let low = cx.scalar_op(Binary::Min, x, Scalar::Float(0.0))?;
                let size = cx.unary(Unary::Abs, x)?;
                let size = cx.unary(Unary::Neg, size)?;
                let e = cx.unary(Unary::Exp, size)?;
                let l = cx.unary(Unary::Log1p, e)?;
                cx.binary(Binary::Sub, low, l)
            })?;
            if call.op == "log_sigmoid_forward" {
                return Ok(Some(Out::FirstOnly(value, "the buffer of log_sigmoid_forward")));
            }
            value
        }
        "log10" => {
            let x = cx.value(call, "self")?;
            let x = cx.as_float(x)?;
            cx.in_op_math(x, |cx, x| {
                let l = cx.unary(Unary::Log, x)?;
                cx.times(l, std::f64::consts::LOG10_E)
            })?
        }
        "glu" => {
            let x = cx.value(call, "self")?;
            let dim = cx.dim(x, call.int_or("dim", -1)?)?;
            let n = super::view::size_at(&cx.dims(x), dim)?;
            if n % 2 != 0 {
                return Err(format!("glu halves a dimension of size {n}"));
            }
            let (a, b) = (cx.slice(x, dim, 0, n / 2)?, cx.slice(x, dim, n / 2, n)?);
            let dtype = cx.dtype(x);
            let (a, b) = (cx.cast(a, dtype.op_math())?, cx.cast(b, dtype.op_math())?);
            let gate = cx.unary(Unary::Sigmoid, b)?;
            let product = cx.binary(Binary::Mul, a, gate)?;
            cx.cast(product, dtype)?
        }
        "threshold" => {
            let x = cx.value(call, "self")?;
            let (threshold, value) = (number("threshold", 0.0)?, number("value", 0.0)?);
            let low = cx.scalar_op(Binary::Le, x, threshold)?;
            let (dtype, rank) = (cx.dtype(x), cx.rank(x));
            let value = cx.materialised(Arg::Number(value), dtype, rank)?;
            cx.select(low, value, x)?
        }
        "frac" => {
            let x = cx.value(call, "self")?;
            let whole = cx.unary(Unary::Trunc, x)?;
            cx.binary(Binary::Sub, x, whole)?
        }
        _ => return Ok(None),
    };
    Ok(Some(Out::Fresh(vec![value])))
}

impl Cx<'_> {
    /// min(max(x, low), high).
    pub(super) fn between(&mut self, x: Val, low: Scalar, high: Scalar) -> Refused<Val> {
        let x = self.scalar_op(Binary::Max, x, low)?;
        self.scalar_op(Binary::Min, x, high)
    }

    pub(super) fn times(&mut self, x: Val, factor: f64) -> Refused<Val> {
        if factor == 1.0 { Ok(x) } else { self.scalar_op(Binary::Mul, x, Scalar::Float(factor)) }
    }
}
