//! Tensors made from nothing: fills, ranges, and torch's `*_like` and `new_*` forms.

use shardweld_ir::{Binary, DType, Literal, Op, Scalar, Shape, TensorType};

use crate::{
    call::{Call, Refused},
    context::{Cx, Out, number_for},
    ssa::Val,
};

/// Most elements of a linspace, which is stored as a literal.
const MAX_LINSPACE: u64 = 1 << 20;

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let (zero, one) = (Scalar::Int(0), Scalar::Int(1));
    let value = match call.op {
        "zeros" | "empty" => cx.recorded_full(call, &["size"], zero)?,
        "ones" => cx.recorded_full(call, &["size"], one)?,
        "empty_permuted" => cx.recorded_full(call, &["size", "physical_layout"], zero)?,
        "empty_strided" => cx.recorded_full(call, &["size", "stride"], zero)?,
        "zeros_like" | "empty_like" => cx.recorded_full(call, &["self"], zero)?,
        "new_zeros" | "new_empty" => cx.recorded_full(call, &["self", "size"], zero)?,
        "new_empty_strided" => cx.recorded_full(call, &["self", "size", "stride"], zero)?,
        "ones_like" => cx.recorded_full(call, &["self"], one)?,
        "new_ones" => cx.recorded_full(call, &["self", "size"], one)?,
        "full" | "full_like" | "new_full" => {
            let value = call.opt_scalar("fill_value")?.ok_or("no fill value")?;
            cx.recorded_full(call, &["self", "size"], value)?
        }
        "scalar_tensor" => {
            let value = call.opt_scalar("s")?.ok_or("no value")?;
            cx.recorded_full(call, &[], value)?
        }
        "fill" | "zero" => {
            let x = cx.value(call, "self")?;
            let (dtype, dims) = (cx.dtype(x), cx.dims(x));
            match call.op {
                "zero" => cx.full(dtype, &dims, zero)?,
                _ => {
                    let value = cx.arg(call, "value")?;
                    let value = cx.materialised(value, dtype, 0)?;
                    cx.broadcast_to(value, &dims)?
                }
            }
        }
        "clone" | "lift_fresh_copy" | "detach_copy" | "alias_copy" | "_to_copy" => {
            let x = cx.value(call, "self")?;
            let dtype = call.opt_dtype("dtype")?.unwrap_or(cx.dtype(x));
            cx.cast(x, dtype)?
        }
        "arange" => {
            let start = call.opt_scalar("start")?.unwrap_or(zero);
            let end = call.opt_scalar("end")?;
            let step = call.opt_scalar("step")?.unwrap_or(one);
            call.opt_dtype("dtype")?;
            let ty = cx.recorded(call)?;
            let dims = ty.shape.as_static().unwrap_or_default();
            let expected = end.map(|e| ((e.as_f64() - start.as_f64()) / step.as_f64()).ceil().max(0.0));
            if dims.len() != 1 || expected != dims.first().map(|n| *n as f64) {
                return Err(format!("a range from {start} to {end:?} by {step} is recorded as {ty}"));
            }
            let (first, step) = (number_for(ty.dtype, start), number_for(ty.dtype, step));
            cx.add(Op::Iota { dtype: ty.dtype, shape: ty.shape, dim: 0, first, step }, &[])?
        }
        "linspace" => {
            let number = |name: &str| call.opt_scalar(name)?.ok_or_else(|| format!("no `{name}`"));
            let (start, end) = (number("start")?.as_f64(), number("end")?.as_f64());
            let steps =
                u64::try_from(call.int("steps")?).map_err(|_| "negative number of steps".to_owned())?;
            call.opt_dtype("dtype")?;
            let dtype = cx.recorded(call)?.dtype;
            if steps > MAX_LINSPACE {
                return Err(format!("{steps} steps; at most {MAX_LINSPACE} are imported"));
            }
            let data = linspace(dtype, start, end, steps)?;
            let literal =
                Literal::dense(TensorType::new(dtype, &[steps]), data).ok_or("the literal is too large")?;
            cx.add(Op::Constant(literal), &[])?
        }
        "eye" => {
            let ty = cx.recorded(call)?;
            for size in ["n", "m", "dtype"] {
                call.get(size);
            }
            let dims = ty.shape.as_static().unwrap_or_default();
            let [n, m] = dims.as_slice() else {
                return Err(format!("an identity matrix is recorded as {ty}"));
            };
            let (rows, columns) = (cx.iota(DType::I64, 2, 0, *n)?, cx.iota(DType::I64, 2, 1, *m)?);
            let diagonal = cx.binary(Binary::Eq, rows, columns)?;
            cx.cast(diagonal, ty.dtype)?
        }
        _ => return Ok(None),
    };
    Ok(Some(Out::Fresh(vec![value])))
}

/// Element bytes of torch's linspace: from both ends toward the middle, in the element type.
fn linspace(dtype: DType, start: f64, end: f64, steps: u64) -> Refused<Vec<u8>> {
    let mut out = Vec::new();
    for i in 0..steps {
        let back = i >= steps / 2;
        let k = if back { steps - 1 - i } else { i };
        match dtype {
            DType::F64 => {
                let step = (end - start) / (steps.saturating_sub(1)) as f64;
                let x = if steps == 1 {
                    start
                } else if back {
                    end - step * k as f64
                } else {
                    start + step * k as f64
                };
                out.extend(x.to_le_bytes());
            }
            DType::F32 => {
                let (start, end) = (start as f32, end as f32);
                let step = (end - start) / steps.saturating_sub(1) as f32;
                let x = if steps == 1 {
                    start
                } else if back {
                    end - step * k as f32
                } else {
                    start + step * k as f32
                };
                out.extend(x.to_le_bytes());
            }
            other => return Err(format!("linspace of {other}; expected f32 or f64")),
        }
    }
    Ok(out)
}

impl<'p> Cx<'p> {
    /// A filled tensor of the recorded type; `sizes` are arguments that only say what the recorded type says too.
    fn recorded_full(&mut self, call: &Call<'p>, sizes: &[&str], value: Scalar) -> Refused<Val> {
        for s in sizes {
            call.get(s);
        }
        call.get("dtype");
        let ty = self.recorded(call)?;
        self.full(ty.dtype, &ty.shape.as_static().unwrap_or_default(), value)
    }

    /// 0, 1, .. along one of `rank` dimensions; the others have size 1.
    pub(super) fn iota(&mut self, dtype: DType, rank: usize, dim: u32, n: u64) -> Refused<Val> {
        let mut dims = vec![1; rank];
        if let Some(d) = dims.get_mut(dim as usize) {
            *d = n;
        }
        let (first, step) = (number_for(dtype, Scalar::Int(0)), number_for(dtype, Scalar::Int(1)));
        self.add(Op::Iota { dtype, shape: Shape::of(&dims), dim, first, step }, &[])
    }
}
