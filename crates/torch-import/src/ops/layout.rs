//! Ops that move elements into new memory: concatenation, repetition, padding, scatters of slices, triangles.

use shardweld_ir::{Binary, DType, GatherMode, Literal, Op, Scalar, TensorType};

use super::view::{size_at, slice_bounds, wrap_index};
use crate::{
    call::{Call, Refused},
    context::{Arg, Cx, Out, normalise_dim},
    ssa::Val,
};

/// Most elements of a reversed dimension, whose index is stored as a literal.
const MAX_FLIP: u64 = 1 << 20;

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let value = match call.op {
        "cat" | "concat" | "concatenate" | "hstack" | "vstack" => {
            let mut parts = cx.values(call, "tensors")?;
            if call.op == "vstack" {
                parts = parts.into_iter().map(|v| cx.align(v, 2)).collect::<Refused<_>>()?;
            }
            let dim = match (call.op, parts.first()) {
                ("hstack", Some(v)) => i64::from(cx.rank(*v) > 1),
                ("vstack", _) => 0,
                _ => call.int_or("dim", call.int_or("axis", 0)?)?,
            };
            cx.join(parts, dim)?
        }
        "stack" => {
            let parts = cx.values(call, "tensors")?;
            let rank = parts.first().map(|v| cx.rank(*v)).ok_or("stack of nothing")?;
            let dim = normalise_dim(call.int_or("dim", 0)?, rank + 1)?;
            let parts = parts
                .into_iter()
                .map(|v| {
                    let mut dims = cx.dims(v);
                    if dims.len() != rank {
                        return Err("stack of tensors of different rank".to_owned());
                    }
                    dims.insert(dim as usize, 1);
                    cx.reshape(v, &dims)
                })
                .collect::<Refused<Vec<_>>>()?;
            cx.join(parts, i64::from(dim))?
        }
        "repeat" | "tile" => {
            let mut x = cx.value(call, "self")?;
            let mut times = call.ints(if call.op == "repeat" { "repeats" } else { "dims" })?;
            while times.len() < cx.rank(x) {
                times.insert(0, 1);
            }
            x = cx.align(x, times.len())?;
            for (d, n) in times.into_iter().enumerate() {
                x = cx.repeated(x, d as u32, n, false)?;
            }
            x
        }
        "repeat_interleave" if call.overload == "self_int" => {
            let x = cx.value(call, "self")?;
            let n = call.int("repeats")?;
            call.get("output_size");
            match call.opt_int("dim")? {
                Some(d) => {
                    let d = cx.dim(x, d)?;
                    cx.repeated(x, d, n, true)?
                }
                None => {
                    let total = super::view::product(&cx.dims(x));
                    let flat = cx.reshape(x, &[total])?;
                    cx.repeated(flat, 0, n, true)?
                }
            }
        }
        "roll" => {
            let x = cx.value(call, "self")?;
            let (shifts, dims) = (call.ints("shifts")?, call.opt_ints("dims")?.unwrap_or_default());
            let shape = cx.dims(x);
            let (mut y, dims) = if dims.is_empty() {
                let total = super::view::product(&shape);
                (cx.reshape(x, &[total])?, vec![0])
            } else {
                (x, dims)
            };
            if shifts.len() != dims.len() {
                return Err(format!("{} shifts for {} dimensions", shifts.len(), dims.len()));
            }
            for (s, d) in shifts.into_iter().zip(dims) {
                let d = cx.dim(y, d)?;
                let n = size_at(&cx.dims(y), d)?;
                let by = if n == 0 { 0 } else { i128::from(s).rem_euclid(i128::from(n)) as u64 };
                if by > 0 {
                    let (head, tail) = (cx.slice(y, d, 0, n - by)?, cx.slice(y, d, n - by, n)?);
                    y = cx.concat(&[tail, head], d)?;
                }
            }
            cx.reshape(y, &shape)?
        }
        "diff" => {
            let x = cx.value(call, "self")?;
            if call.int_or("n", 1)? != 1 || call.has("prepend") || call.has("append") {
                return Err("only the first difference is supported, with nothing put before or after".into());
            }
            let dim = cx.dim(x, call.int_or("dim", -1)?)?;
            let n = size_at(&cx.dims(x), dim)?.max(1);
            let (after, before) = (cx.slice(x, dim, 1.min(n), n)?, cx.slice(x, dim, 0, n - 1)?);
            cx.binary(if cx.dtype(x) == DType::Bool { Binary::Xor } else { Binary::Sub }, after, before)?
        }
        "flip" => {
            let mut x = cx.value(call, "self")?;
            for d in call.ints("dims")? {
                let dim = cx.dim(x, d)?;
                let n = size_at(&cx.dims(x), dim)?;
                if n > MAX_FLIP {
                    return Err(format!("reverses a dimension of size {n}; at most {MAX_FLIP}"));
                }
                let index: Vec<u8> = (0..n as i64).rev().flat_map(i64::to_le_bytes).collect();
                let literal = Literal::dense(TensorType::new(DType::I64, &[n]), index)
                    .ok_or("the literal is too large")?;
                let index = cx.add(Op::Constant(literal), &[])?;
                x = cx.add(Op::Gather { mode: GatherMode::Take, dim }, &[x, index])?;
            }
            x
        }
        "constant_pad_nd" | "pad" => {
            let x = cx.value(call, "self")?;
            let mode = call.opt_str("mode")?.unwrap_or("constant");
            if mode != "constant" {
                return Err(format!("padding mode `{mode}`; expected constant"));
            }
            let value = match call.opt_scalar("value")?.unwrap_or(Scalar::Int(0)) {
                // The schema says float, whatever the tensor holds; torch truncates.
                Scalar::Float(v) if cx.dtype(x).is_int() => Scalar::Int(v as i64),
                v => v,
            };
            cx.padded(x, &call.ints("pad")?, value)?
        }
        "slice_scatter" => {
            let (x, src) = (cx.value(call, "self")?, cx.value(call, "src")?);
            let dim = cx.dim(x, call.int_or("dim", 0)?)?;
            let n = size_at(&cx.dims(x), dim)?;
            let (start, end) = slice_bounds(call.int_or("start", 0)?, call.int_or("end", i64::MAX)?, n);
            let stride =
                u64::try_from(call.int_or("step", 1)?).ok().filter(|s| *s > 0).ok_or("step below 1")?;
            let found = cx.dims(src).get(dim as usize).copied();
            if found != Some((end - start).div_ceil(stride)) {
                return Err(format!("{found:?} elements scattered into {start}..{end} by {stride}"));
            }
            cx.add(Op::UpdateSlice { dim, start, stride }, &[x, src])?
        }
        "select_scatter" => {
            let (x, src) = (cx.value(call, "self")?, cx.value(call, "src")?);
            let dim = cx.dim(x, call.int("dim")?)?;
            let mut dims = cx.dims(x);
            let start = wrap_index(call.int("index")?, size_at(&dims, dim)?)?;
            dims[dim as usize] = 1;
            let src = cx.reshape(src, &dims)?;
            cx.add(Op::UpdateSlice { dim, start, stride: 1 }, &[x, src])?
        }
        "tril" | "triu" => {
            let x = cx.value(call, "self")?;
            let (dims, rank) = (cx.dims(x), cx.rank(x));
            if rank < 2 {
                return Err("the triangle of a vector".into());
            }
            let (rows, columns) = (
                cx.iota(DType::I64, rank, rank as u32 - 2, dims[rank - 2])?,
                cx.iota(DType::I64, rank, rank as u32 - 1, dims[rank - 1])?,
            );
            let offset = cx.binary(Binary::Sub, columns, rows)?;
            let f = if call.op == "tril" { Binary::Le } else { Binary::Ge };
            let kept = cx.scalar_op(f, offset, Scalar::Int(call.int_or("diagonal", 0)?))?;
            let dtype = cx.dtype(x);
            let zero = cx.full(dtype, &vec![1; rank], Scalar::Int(0))?;
            cx.select(kept, x, zero)?
        }
        "_unsafe_view" | "view_copy" => {
            let x = cx.value(call, "self")?;
            call.ints("size")?;
            let dims = cx.recorded(call)?.shape.as_static().unwrap_or_default();
            cx.reshape(x, &dims)?
        }
        _ => return Ok(None),
    };
    Ok(Some(Out::Fresh(vec![value])))
}

impl Cx<'_> {
    /// Concatenation with promotion; torch leaves out empty vectors whatever the rank of the others.
    fn join(&mut self, mut parts: Vec<Val>, dim: i64) -> Refused<Val> {
        let args: Vec<Arg> = parts.iter().map(|v| Arg::Tensor(*v)).collect();
        let dtype = self.common(&args)?;
        if parts.iter().any(|v| self.dims(*v) != [0]) {
            parts.retain(|v| self.dims(*v) != [0]);
        }
        let first = *parts.first().ok_or("concatenation of nothing")?;
        let dim = self.dim(first, dim)?;
        let parts = parts.into_iter().map(|v| self.cast(v, dtype)).collect::<Refused<Vec<_>>>()?;
        self.concat(&parts, dim)
    }

    /// Repeats along a dimension: the whole (`a b a b`) or each element (`a a b b`).
    pub(super) fn repeated(&mut self, x: Val, dim: u32, times: i64, each: bool) -> Refused<Val> {
        let times = u64::try_from(times).map_err(|_| format!("repeats {times} times"))?;
        if times == 1 {
            return Ok(x);
        }
        let mut dims = self.dims(x);
        let n = size_at(&dims, dim)?;
        let at = dim as usize + usize::from(each);
        dims.insert(at, 1);
        let y = self.reshape(x, &dims)?;
        dims[at] = times;
        let y = self.broadcast_to(y, &dims)?;
        dims.remove(at);
        dims[dim as usize] = n.saturating_mul(times);
        self.reshape(y, &dims)
    }

    /// torch's padding list: pairs from the last dimension backward; negative ones cut.
    fn padded(&mut self, x: Val, pad: &[i64], value: Scalar) -> Refused<Val> {
        if !pad.len().is_multiple_of(2) || pad.len() / 2 > self.rank(x) {
            return Err(format!("padding {pad:?} of a tensor with {} dimensions", self.rank(x)));
        }
        let mut x = x;
        let value = crate::context::number_for(self.dtype(x), value);
        for (i, pair) in pad.chunks_exact(2).enumerate() {
            let dim = (self.rank(x) - 1 - i) as u32;
            let n = size_at(&self.dims(x), dim)?;
            let cut = |p: i64| p.min(0).unsigned_abs();
            let (low, high) = (cut(pair[0]), cut(pair[1]));
            let end = n
                .checked_sub(high)
                .filter(|e| *e >= low)
                .ok_or_else(|| format!("padding {pad:?} cuts too much"))?;
            x = self.slice(x, dim, low, end)?;
            let (low, high) = (pair[0].max(0) as u64, pair[1].max(0) as u64);
            if low + high > 0 {
                x = self.add(Op::Pad { dim, low, high, value }, &[x])?;
            }
        }
        Ok(x)
    }
}
