//! Reductions and softmax. Sums of integers and truth values are 64-bit; statistics of f16 and bf16 are computed in f32 and rounded once.

use shardweld_ir::{Binary, DType, Op, ReduceKind, Scalar, Unary};

use super::view::product;
use crate::{
    call::{Call, Refused},
    context::{Cx, Out, normalise_dim},
    promote::DEFAULT_FLOAT,
    ssa::Val,
};

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let value = match call.op {
        "sum" | "prod" | "mean" => {
            let mut x = cx.value(call, "self")?;
            if let Some(d) = call.opt_dtype("dtype")? {
                x = cx.cast(x, d)?;
            } else if call.op != "mean" && !cx.dtype(x).is_float() {
                x = cx.cast(x, DType::I64)?;
            }
            let kind = match call.op {
                "sum" => ReduceKind::Sum,
                "prod" => ReduceKind::Prod,
                _ => ReduceKind::Mean,
            };
            let (dims, keep) = reduced(cx, call, x)?;
            cx.reduce(kind, x, &dims, keep)?
        }
        "amax" | "amin" => {
            let x = cx.value(call, "self")?;
            let (dims, keep) = reduced(cx, call, x)?;
            cx.reduce(if call.op == "amax" { ReduceKind::Max } else { ReduceKind::Min }, x, &dims, keep)?
        }
        "max" | "min" if call.overload == "default" || call.overload == "dim" => {
            let x = cx.value(call, "self")?;
            let (dims, keep) = reduced(cx, call, x)?;
            let value =
                cx.reduce(if call.op == "max" { ReduceKind::Max } else { ReduceKind::Min }, x, &dims, keep)?;
            if call.overload == "dim" {
                return Ok(Some(Out::FirstOnly(
                    value,
                    "the indices of a max or min, which are not supported",
                )));
            }
            value
        }
        "max" | "min" if call.overload == "other" => {
            let (a, b) = (cx.arg(call, "self")?, cx.arg(call, "other")?);
            cx.promoted(if call.op == "max" { Binary::Max } else { Binary::Min }, a, b)?
        }
        "any" | "all" => {
            let x = cx.value(call, "self")?;
            let (dims, keep) = reduced(cx, call, x)?;
            let truth = cx.cast(x, DType::Bool)?;
            let r = cx.reduce(
                if call.op == "any" { ReduceKind::Max } else { ReduceKind::Min },
                truth,
                &dims,
                keep,
            )?;
            // torch keeps uint8 here.
            if cx.dtype(x) == DType::U8 { cx.cast(r, DType::U8)? } else { r }
        }
        "var" | "std" | "var_mean" | "std_mean" => {
            let x = cx.value(call, "self")?;
            let (dims, keep) = reduced(cx, call, x)?;
            let correction = match call.opt_float("correction")? {
                Some(c) => c,
                None => f64::from(u8::from(call.bool_or("unbiased", true)?)),
            };
            let dtype = cx.dtype(x);
            let wide = cx.cast(x, dtype.op_math())?;
            let (variance, mean) = cx.variance(wide, &dims, keep, correction)?;
            let v = if call.op.starts_with("std") { cx.unary(Unary::Sqrt, variance)? } else { variance };
            let v = cx.cast(v, dtype)?;
            if call.op.ends_with("mean") {
                let mean = cx.cast(mean, dtype)?;
                return Ok(Some(Out::Fresh(vec![v, mean])));
            }
            v
        }
        "softmax" | "_softmax" | "_safe_softmax" | "log_softmax" | "_log_softmax" | "special_softmax" => {
            let mut x = cx.value(call, "self")?;
            let dim = cx.dim(x, call.int("dim")?)?;
            if let Some(d) = call.opt_dtype("dtype")? {
                x = cx.cast(x, d)?;
            } else if call.bool_or("half_to_float", false)? {
                x = cx.cast(x, DType::F32)?;
            }
            let x = cx.as_float(x)?;
            if cx.rank(x) == 0 {
                let one = if call.op.contains("log") { 0.0 } else { 1.0 };
                let dtype = cx.dtype(x);
                cx.full(dtype, &[], Scalar::Float(one))?
            } else if call.op.contains("log") {
                cx.in_op_math(x, |cx, x| {
                    let max = cx.reduce(ReduceKind::Max, x, &[dim], true)?;
                    let shifted = cx.binary(Binary::Sub, x, max)?;
                    let e = cx.unary(Unary::Exp, shifted)?;
                    let sum = cx.reduce(ReduceKind::Sum, e, &[dim], true)?;
                    let log = cx.unary(Unary::Log, sum)?;
                    cx.binary(Binary::Sub, shifted, log)
                })?
            } else if call.op == "_safe_softmax" {
                let s = cx.add(Op::Softmax { dim }, &[x])?;
                // Rows that are -inf throughout give zeros.
                let finite = cx.scalar_op(Binary::Ne, x, Scalar::Float(f64::NEG_INFINITY))?;
                let some = cx.reduce(ReduceKind::Max, finite, &[dim], true)?;
                let dtype = cx.dtype(x);
                let zero = cx.full(dtype, &vec![1; cx.rank(x)], Scalar::Float(0.0))?;
                cx.select(some, s, zero)?
            } else {
                cx.add(Op::Softmax { dim }, &[x])?
            }
        }
        "logsumexp" => {
            let x = cx.value(call, "self")?;
            let (dims, keep) = reduced(cx, call, x)?;
            let x = cx.as_float(x)?;
            let dtype = cx.dtype(x);
            let x = cx.cast(x, dtype.op_math())?;
            let max = cx.reduce(ReduceKind::Max, x, &dims, true)?;
            // An infinite maximum would give inf - inf.
            let infinite = cx.unary(Unary::IsInf, max)?;
            let wide = cx.dtype(x);
            let zero = cx.full(wide, &vec![1; cx.rank(x)], Scalar::Float(0.0))?;
            let max = cx.select(infinite, zero, max)?;
            let shifted = cx.binary(Binary::Sub, x, max)?;
            let e = cx.unary(Unary::Exp, shifted)?;
            let sum = cx.reduce(ReduceKind::Sum, e, &dims, true)?;
            let log = cx.unary(Unary::Log, sum)?;
            let value = cx.binary(Binary::Add, log, max)?;
            let value = if keep { value } else { cx.without(value, &dims)? };
            cx.cast(value, dtype)?
        }
        "linalg_vector_norm" | "norm" => {
            let x = cx.value(call, "self")?;
            let (dims, keep) = reduced(cx, call, x)?;
            let order = call.opt_float(if call.op == "norm" { "p" } else { "ord" })?.unwrap_or(2.0);
            let dtype = call.opt_dtype("dtype")?.unwrap_or(cx.dtype(x));
            let x = cx.cast(x, dtype)?;
            cx.in_op_math(x, |cx, x| match order {
                2.0 => {
                    let square = cx.binary(Binary::Mul, x, x)?;
                    let sum = cx.reduce(ReduceKind::Sum, square, &dims, keep)?;
                    cx.unary(Unary::Sqrt, sum)
                }
                1.0 => {
                    let size = cx.unary(Unary::Abs, x)?;
                    cx.reduce(ReduceKind::Sum, size, &dims, keep)
                }
                f64::INFINITY => {
                    let size = cx.unary(Unary::Abs, x)?;
                    cx.reduce(ReduceKind::Max, size, &dims, keep)
                }
                other => Err(format!("norm of order {other}; expected 1, 2 or infinity")),
            })?
        }
        _ => return Ok(None),
    };
    Ok(Some(Out::Fresh(vec![value])))
}

/// Dimensions of a reduction (all if none are given), sorted, and whether they stay.
fn reduced<'p>(cx: &Cx<'p>, call: &Call<'p>, x: Val) -> Refused<(Vec<u32>, bool)> {
    let rank = cx.rank(x);
    let keep = call.bool_or("keepdim", false)?;
    let mut dims = match call.opt_ints("dim")? {
        Some(d) if !d.is_empty() && rank > 0 => {
            d.into_iter().map(|d| normalise_dim(d, rank)).collect::<Refused<Vec<_>>>()?
        }
        _ => (0..rank as u32).collect(),
    };
    dims.sort_unstable();
    if dims.windows(2).any(|w| w[0] == w[1]) {
        return Err(format!("dimension reduced twice: {dims:?}"));
    }
    Ok((dims, keep))
}

impl Cx<'_> {
    /// Variance and mean over dimensions, divided by the count less `correction`.
    pub(super) fn variance(
        &mut self,
        x: Val,
        dims: &[u32],
        keep: bool,
        correction: f64,
    ) -> Refused<(Val, Val)> {
        let x = if self.dtype(x).is_float() { x } else { self.cast(x, DEFAULT_FLOAT)? };
        let all = self.dims(x);
        let sizes: Vec<u64> = dims.iter().filter_map(|d| all.get(*d as usize).copied()).collect();
        let count = product(&sizes) as f64 - correction;
        let mean = self.reduce(ReduceKind::Mean, x, dims, true)?;
        let apart = self.binary(Binary::Sub, x, mean)?;
        let square = self.binary(Binary::Mul, apart, apart)?;
        let sum = self.reduce(ReduceKind::Sum, square, dims, true)?;
        let variance = self.scalar_op(Binary::Div, sum, Scalar::Float(count.max(0.0)))?;
        if keep {
            Ok((variance, mean))
        } else {
            Ok((self.without(variance, dims)?, self.without(mean, dims)?))
        }
    }

    /// Drops dimensions of size 1.
    fn without(&mut self, v: Val, dims: &[u32]) -> Refused<Val> {
        let kept: Vec<u64> = self
            .dims(v)
            .into_iter()
            .enumerate()
            .filter(|(i, _)| !dims.contains(&(*i as u32)))
            .map(|(_, d)| d)
            .collect();
        self.reshape(v, &kept)
    }
}
