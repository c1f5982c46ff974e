//! Ops whose results share memory with an operand, and those that may: reshapes, transposes, slices, expansions, aliases.

use shardweld_ir::{Op, Shape};

use crate::{
    alias::TensorId,
    call::{Call, Refused},
    context::{Cx, Out, normalise_dim},
    schema::{SymInt, TensorMeta},
};

/// Most parts that one op may cut a tensor into.
const MAX_PARTS: u64 = 4096;

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    if !matches!(
        call.op,
        "alias"
            | "detach"
            | "lift_fresh"
            | "positive"
            | "view"
            | "_reshape_alias"
            | "reshape"
            | "view_as"
            | "reshape_as"
            | "flatten"
            | "ravel"
            | "unflatten"
            | "squeeze"
            | "unsqueeze"
            | "expand"
            | "expand_as"
            | "broadcast_to"
            | "permute"
            | "transpose"
            | "swapaxes"
            | "swapdims"
            | "t"
            | "mT"
            | "adjoint"
            | "numpy_T"
            | "movedim"
            | "moveaxis"
            | "slice"
            | "narrow"
            | "select"
            | "unbind"
            | "split"
            | "unsafe_split"
            | "split_with_sizes"
            | "unsafe_split_with_sizes"
            | "chunk"
            | "unsafe_chunk"
            | "tensor_split"
            | "contiguous"
            | "dropout"
            | "feature_dropout"
            | "alpha_dropout"
            | "to"
            | "type_as"
            | "atleast_1d"
            | "atleast_2d"
            | "meshgrid"
            | "_assert_tensor_metadata"
            | "_assert_async"
            | "_assert_scalar"
    ) {
        return Ok(None);
    }
    if call.op.starts_with("_assert") {
        return Ok(Some(Out::None));
    }
    if call.in_place && !matches!(call.op, "dropout" | "feature_dropout" | "alpha_dropout" | "detach") {
        return Err("changes the shape of a tensor in place, which is not supported".into());
    }
    if call.op == "meshgrid" {
        return meshgrid(cx, call).map(Some);
    }
    let arg =
        if matches!(call.op, "dropout" | "feature_dropout" | "alpha_dropout") { "input" } else { "self" };
    let x = cx.tensor(call, arg)?;
    let dims = cx.sizes(x)?;
    let rank = dims.len();
    let dim_arg = |name: &str, default: i64| normalise_dim(call.int_or(name, default)?, rank);
    let out = match call.op {
        "alias" | "detach" | "lift_fresh" | "positive" => Out::Alias(vec![x]),
        "view" | "_reshape_alias" if call.opt_dtype("dtype").is_ok_and(|d| d.is_none()) => {
            let size = call.ints("size")?;
            // `_reshape_alias` also gives the strides; they are those of the result.
            call.get("stride");
            Out::Alias(vec![cx.reshape_view(x, &infer_size(&size, &dims)?)?])
        }
        "view" => {
            return Err(
                "reinterprets the bits of a tensor as another element type, which is not supported".into()
            );
        }
        "view_as" => {
            let other = cx.tensor(call, "other")?;
            let size = cx.sizes(other)?;
            Out::Alias(vec![cx.reshape_view(x, &size)?])
        }
        "reshape" => cx.reshape_or_copy(call, x, &infer_size(&call.ints("shape")?, &dims)?)?,
        "reshape_as" => {
            let other = cx.tensor(call, "other")?;
            let size = cx.sizes(other)?;
            cx.reshape_or_copy(call, x, &size)?
        }
        "ravel" => cx.reshape_or_copy(call, x, &[product(&dims)])?,
        "flatten" => {
            let (start, end) = (dim_arg("start_dim", 0)? as usize, dim_arg("end_dim", -1)? as usize);
            if rank == 0 {
                cx.reshape_or_copy(call, x, &[1])?
            } else if start > end {
                return Err(format!("flattens dimensions {start} to {end}"));
            } else {
                let mut size = dims[..start].to_vec();
                size.push(product(&dims[start..=end]));
                size.extend(&dims[end + 1..]);
                cx.reshape_or_copy(call, x, &size)?
            }
        }
        "unflatten" => {
            let dim = dim_arg("dim", 0)? as usize;
            let whole = dims.get(dim).copied().ok_or("unflatten of a scalar")?;
            let mut size = dims[..dim].to_vec();
            size.extend(infer_size(&call.ints("sizes")?, &[whole])?);
            size.extend(&dims[dim + 1..]);
            Out::Alias(vec![cx.reshape_view(x, &size)?])
        }
        "squeeze" => {
            let wanted: Option<Vec<u32>> = call
                .opt_ints("dim")?
                .map(|v| v.into_iter().map(|d| normalise_dim(d, rank)).collect::<Refused<_>>())
                .transpose()?;
            let size: Vec<u64> = dims
                .iter()
                .enumerate()
                .filter(|(i, d)| **d != 1 || wanted.as_ref().is_some_and(|w| !w.contains(&(*i as u32))))
                .map(|(_, d)| *d)
                .collect();
            Out::Alias(vec![cx.reshape_view(x, &size)?])
        }
        "atleast_1d" | "atleast_2d" if call.overload == "default" => {
            let mut size = dims;
            while size.len() < if call.op == "atleast_2d" { 2 } else { 1 } {
                size.insert(0, 1);
            }
            Out::Alias(vec![cx.reshape_view(x, &size)?])
        }
        "unsqueeze" => {
            let dim = normalise_dim(call.int("dim")?, rank + 1)? as usize;
            let mut size = dims;
            size.insert(dim, 1);
            Out::Alias(vec![cx.reshape_view(x, &size)?])
        }
        "expand" | "broadcast_to" => {
            let size = call.ints("size")?;
            call.get("implicit");
            let new = size.len();
            let offset = new.checked_sub(rank).ok_or("expands to fewer dimensions")?;
            let size: Vec<u64> = size
                .iter()
                .enumerate()
                .map(|(i, &n)| match u64::try_from(n) {
                    Ok(n) => Ok(n),
                    Err(_) if n == -1 && i >= offset => Ok(dims[i - offset]),
                    Err(_) => Err(format!("expands to size {n}")),
                })
                .collect::<Refused<_>>()?;
            Out::Alias(vec![cx.expand_view(x, &size)?])
        }
        "expand_as" => {
            let other = cx.tensor(call, "other")?;
            let size = cx.sizes(other)?;
            Out::Alias(vec![cx.expand_view(x, &size)?])
        }
        "permute" => {
            let perm = call
                .ints("dims")?
                .into_iter()
                .map(|d| normalise_dim(d, rank))
                .collect::<Refused<Vec<_>>>()?;
            Out::Alias(vec![cx.transpose_view(x, perm)?])
        }
        "transpose" | "swapaxes" | "swapdims" => {
            let names = if call.op == "swapaxes" { ["axis0", "axis1"] } else { ["dim0", "dim1"] };
            let (a, b) =
                (normalise_dim(call.int(names[0])?, rank)?, normalise_dim(call.int(names[1])?, rank)?);
            Out::Alias(vec![cx.swap_view(x, a, b)?])
        }
        "t" if rank < 2 => Out::Alias(vec![x]),
        "t" if rank == 2 => Out::Alias(vec![cx.swap_view(x, 0, 1)?]),
        "mT" | "adjoint" if rank >= 2 => {
            Out::Alias(vec![cx.swap_view(x, rank as u32 - 2, rank as u32 - 1)?])
        }
        "t" | "mT" | "adjoint" => return Err(format!("matrix transpose of a tensor with {rank} dimensions")),
        "numpy_T" => Out::Alias(vec![cx.transpose_view(x, (0..rank as u32).rev().collect())?]),
        "movedim" | "moveaxis" => {
            let to_dims =
                |v: Vec<i64>| v.into_iter().map(|d| normalise_dim(d, rank)).collect::<Refused<Vec<_>>>();
            let (from, to) = (to_dims(call.ints("source")?)?, to_dims(call.ints("destination")?)?);
            Out::Alias(vec![cx.transpose_view(x, moved(rank, &from, &to)?)?])
        }
        "slice" => {
            let dim = dim_arg("dim", 0)?;
            let n = size_at(&dims, dim)?;
            let (start, end) = (call.int_or("start", 0)?, call.int_or("end", i64::MAX)?);
            let step =
                u64::try_from(call.int_or("step", 1)?).ok().filter(|s| *s > 0).ok_or("step below 1")?;
            let (start, end) = slice_bounds(start, end, n);
            Out::Alias(vec![cx.slice_view(x, dim, start, end, step)?])
        }
        "narrow" => {
            let dim = dim_arg("dim", 0)?;
            let n = size_at(&dims, dim)?;
            let start = wrap_index(call.int("start")?, n.saturating_add(1))?;
            let length = u64::try_from(call.int("length")?).map_err(|_| "negative length".to_owned())?;
            let end = start.checked_add(length).filter(|e| *e <= n).ok_or("narrow beyond the end")?;
            Out::Alias(vec![cx.slice_view(x, dim, start, end, 1)?])
        }
        "select" => {
            let dim = dim_arg("dim", 0)?;
            let index = wrap_index(call.int("index")?, size_at(&dims, dim)?)?;
            Out::Alias(vec![cx.select_view(x, dim, index)?])
        }
        "unbind" => {
            let dim = dim_arg("dim", 0)?;
            let n = few_parts(size_at(&dims, dim)?)?;
            Out::Alias((0..n).map(|i| cx.select_view(x, dim, i)).collect::<Refused<_>>()?)
        }
        "split"
        | "unsafe_split"
        | "split_with_sizes"
        | "unsafe_split_with_sizes"
        | "chunk"
        | "unsafe_chunk"
        | "tensor_split" => {
            let dim = dim_arg("dim", 0)?;
            let sizes = part_sizes(call, size_at(&dims, dim)?)?;
            let mut start = 0u64;
            let mut parts = Vec::with_capacity(sizes.len());
            for s in sizes {
                let end = start.saturating_add(s);
                parts.push(cx.slice_view(x, dim, start, end, 1)?);
                start = end;
            }
            if call.op.starts_with("unsafe") {
                // The results count as tensors of their own: torch promises that nobody writes to them.
                Out::Fresh(parts.into_iter().map(|t| cx.read(t)).collect::<Refused<_>>()?)
            } else {
                Out::Alias(parts)
            }
        }
        "contiguous" => {
            let same = cx.meta(call, "self")?.strides == cx.output_meta(call)?.strides;
            if same { Out::Alias(vec![x]) } else { Out::Fresh(vec![cx.read(x)?]) }
        }
        "dropout" | "feature_dropout" | "alpha_dropout" => {
            if call.bool_or("train", false)? && call.float_or("p", 0.5)? != 0.0 {
                return Err("dropout in training mode; export the model in eval mode".into());
            }
            call.get("p");
            Out::Alias(vec![x])
        }
        "to" | "type_as" => {
            let value = cx.read(x)?;
            let dtype = if let Some(d) = call.opt_dtype("dtype")? {
                d
            } else if call.has("other") {
                let other = cx.value(call, "other")?;
                cx.dtype(other)
            } else {
                cx.dtype(value)
            };
            let copy = call.bool_or("copy", false)?;
            if dtype == cx.dtype(value) && !copy {
                Out::Alias(vec![x])
            } else {
                Out::Fresh(vec![cx.cast(value, dtype)?])
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(out))
}

/// Every vector along its own dimension of one common shape.
fn meshgrid<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Out> {
    let vectors = cx.tensors(call, "tensors")?;
    let indexing = call.opt_str("indexing")?.unwrap_or("ij");
    if indexing != "ij" {
        return Err(format!("meshgrid with indexing `{indexing}`; expected ij"));
    }
    let mut shape = Vec::with_capacity(vectors.len());
    for t in &vectors {
        let dims = cx.sizes(*t)?;
        if dims.len() > 1 {
            return Err("meshgrid of no vectors".into());
        }
        shape.push(product(&dims));
    }
    let mut grids = Vec::with_capacity(vectors.len());
    for (i, t) in vectors.into_iter().enumerate() {
        let mut own = vec![1; shape.len()];
        own[i] = shape[i];
        let column = cx.reshape_view(t, &own)?;
        grids.push(cx.expand_view(column, &shape)?);
    }
    Ok(Out::Alias(grids))
}

impl<'p> Cx<'p> {
    fn sizes(&mut self, x: TensorId) -> Refused<Vec<u64>> {
        let v = self.read(x)?;
        Ok(self.dims(v))
    }

    fn output_meta(&self, call: &Call<'p>) -> Refused<&'p TensorMeta> {
        match call.node.outputs.first() {
            Some(crate::schema::Argument::Tensor(n)) => {
                self.metas.get(n).ok_or_else(|| format!("the graph records no type for `{n}`"))
            }
            other => Err(format!("the result is {other:?}, expected one tensor")),
        }
    }

    fn view_op(&mut self, x: TensorId, op: Op) -> Refused<TensorId> {
        self.aliases.view(&mut self.ssa, &self.mesh, x, op)
    }

    fn reshape_view(&mut self, x: TensorId, size: &[u64]) -> Refused<TensorId> {
        if self.sizes(x)? == size {
            return Ok(x);
        }
        self.view_op(x, Op::Reshape { shape: Shape::of(size) })
    }

    /// A view where torch makes one, which depends on the strides, and a copy elsewhere.
    fn reshape_or_copy(&mut self, call: &Call<'p>, x: TensorId, size: &[u64]) -> Refused<Out> {
        let meta = self.meta(call, "self")?;
        if can_view(meta, size)? {
            return Out::alias(self.reshape_view(x, size)?);
        }
        let v = self.read(x)?;
        Out::one(self.reshape(v, size)?)
    }

    fn expand_view(&mut self, x: TensorId, size: &[u64]) -> Refused<TensorId> {
        let mut aligned = self.sizes(x)?;
        if aligned == size {
            return Ok(x);
        }
        while aligned.len() < size.len() {
            aligned.insert(0, 1);
        }
        let x = self.reshape_view(x, &aligned)?;
        if aligned == size {
            return Ok(x);
        }
        self.view_op(x, Op::Broadcast { shape: Shape::of(size) })
    }

    fn transpose_view(&mut self, x: TensorId, perm: Vec<u32>) -> Refused<TensorId> {
        if perm.len() == self.sizes(x)?.len() && perm.iter().enumerate().all(|(i, &p)| i as u32 == p) {
            return Ok(x);
        }
        self.view_op(x, Op::Transpose { perm })
    }

    fn swap_view(&mut self, x: TensorId, a: u32, b: u32) -> Refused<TensorId> {
        let mut perm: Vec<u32> = (0..self.sizes(x)?.len() as u32).collect();
        if (a.max(b) as usize) < perm.len() {
            perm.swap(a as usize, b as usize);
        }
        self.transpose_view(x, perm)
    }

    fn slice_view(
        &mut self,
        x: TensorId,
        dim: u32,
        start: u64,
        limit: u64,
        stride: u64,
    ) -> Refused<TensorId> {
        if start == 0 && stride == 1 && self.sizes(x)?.get(dim as usize) == Some(&limit) {
            return Ok(x);
        }
        self.view_op(x, Op::Slice { dim, start, limit, stride })
    }

    fn select_view(&mut self, x: TensorId, dim: u32, index: u64) -> Refused<TensorId> {
        let mut size = self.sizes(x)?;
        let row = self.slice_view(x, dim, index, index + 1, 1)?;
        size.remove(dim as usize);
        self.reshape_view(row, &size)
    }
}

/// Size of a dimension; a scalar has none.
pub(super) fn size_at(dims: &[u64], dim: u32) -> Refused<u64> {
    dims.get(dim as usize).copied().ok_or_else(|| "a scalar has no dimension to cut".into())
}

/// torch's clamping of slice bounds; the end is never before the start.
pub(super) fn slice_bounds(start: i64, end: i64, n: u64) -> (u64, u64) {
    let clamp = |i: i64| {
        let i = if i < 0 { i128::from(i) + i128::from(n) } else { i128::from(i) };
        i.clamp(0, i128::from(n)) as u64
    };
    let (start, end) = (clamp(start), clamp(end));
    (start, end.max(start))
}

/// An index where negative ones count from the end.
pub(super) fn wrap_index(index: i64, n: u64) -> Refused<u64> {
    let i = if index < 0 { i128::from(index) + i128::from(n) } else { i128::from(index) };
    u64::try_from(i)
        .ok()
        .filter(|i| *i < n)
        .ok_or_else(|| format!("index {index} of a dimension of size {n}"))
}

/// Product of sizes; sizes that overflow are refused where the shape is used.
pub(super) fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |p, s| p.saturating_mul(*s))
}

/// Fills in a -1.
fn infer_size(size: &[i64], from: &[u64]) -> Refused<Vec<u64>> {
    let total = product(from);
    let known =
        size.iter().filter(|s| **s != -1).try_fold(1u64, |p, &s| p.checked_mul(u64::try_from(s).ok()?));
    let known = known.ok_or_else(|| format!("{size:?} is no shape"))?;
    size.iter()
        .map(|&s| match s {
            -1 if known > 0 => Ok(total / known),
            s => u64::try_from(s).map_err(|_| format!("{size:?} is no shape for {total} elements")),
        })
        .collect()
}

fn few_parts(n: u64) -> Refused<u64> {
    if n <= MAX_PARTS {
        Ok(n)
    } else {
        Err(format!("cuts a tensor into {n} parts; at most {MAX_PARTS} are imported"))
    }
}

/// Sizes of the parts of a split, chunk or tensor_split.
fn part_sizes(call: &Call, n: u64) -> Refused<Vec<u64>> {
    let positive =
        |i: i64, what: &str| u64::try_from(i).ok().filter(|i| *i > 0).ok_or_else(|| format!("{what} {i}"));
    let of_size = |size: u64| -> Refused<Vec<u64>> {
        let parts = few_parts(n.div_ceil(size).max(1))?;
        Ok((0..parts).map(|i| size.min(n - i * size)).collect())
    };
    let unsigned = |v: Vec<i64>| {
        v.into_iter()
            .map(|i| u64::try_from(i).map_err(|_| format!("part of size {i}")))
            .collect::<Refused<Vec<_>>>()
    };
    match call.op {
        "chunk" | "unsafe_chunk" => {
            of_size(n.div_ceil(positive(call.int("chunks")?, "number of chunks")?).max(1))
        }
        "tensor_split" if call.has("sections") => {
            let k = positive(call.int("sections")?, "number of sections")?;
            if k > n.max(1) {
                return Err(format!("{k} sections of a dimension of size {n}"));
            }
            Ok((0..few_parts(k)?).map(|i| n / k + u64::from(i < n % k)).collect())
        }
        "tensor_split" => {
            let mut cuts = vec![0];
            cuts.extend(call.ints("indices")?.into_iter().map(|i| slice_bounds(i, i, n).0));
            cuts.push(n);
            cuts.windows(2)
                .map(|w| {
                    w[1].checked_sub(w[0]).ok_or_else(|| "decreasing indices are not supported".to_owned())
                })
                .collect()
        }
        "split_with_sizes" | "unsafe_split_with_sizes" => unsigned(call.ints("split_sizes")?),
        _ if call.overload == "sizes" => unsigned(call.ints("split_size")?),
        _ => of_size(positive(call.int("split_size")?, "split size")?),
    }
}

/// Where each dimension comes from after moving some.
fn moved(rank: usize, from: &[u32], to: &[u32]) -> Refused<Vec<u32>> {
    let mut perm: Vec<Option<u32>> = vec![None; rank];
    for (&f, &t) in from.iter().zip(to) {
        *perm.get_mut(t as usize).ok_or("movedim of a scalar")? = Some(f);
    }
    let mut rest = (0..rank as u32).filter(|d| !from.contains(d));
    perm.into_iter().map(|p| p.or_else(|| rest.next()).ok_or_else(|| "repeated dimensions".into())).collect()
}

/// Whether torch can express the new shape with strides on the same memory: runs of dimensions that are contiguous among themselves may be
/// cut up anew, nothing else.
fn can_view(meta: &TensorMeta, size: &[u64]) -> Refused<bool> {
    let ints = |v: &[SymInt]| -> Refused<Vec<u64>> {
        v.iter()
            .map(|s| {
                s.as_int().and_then(|i| u64::try_from(i).ok()).ok_or_else(|| format!("{s:?} is no number"))
            })
            .collect()
    };
    let (old, strides) = (ints(&meta.sizes)?, ints(&meta.strides)?);
    if strides.len() != old.len() {
        return Err("the graph records no strides".into());
    }
    if old.contains(&0) {
        return Ok(true);
    }
    // Runs, innermost first: (number of elements).
    let dims: Vec<(u64, u64)> = old.iter().copied().zip(strides).filter(|(n, _)| *n != 1).rev().collect();
    let mut runs: Vec<u64> = Vec::new();
    let mut reach = None;
    for (n, stride) in dims {
        match (runs.last_mut(), reach) {
            (Some(run), Some(r)) if r == stride => *run = run.saturating_mul(n),
            _ => runs.push(n),
        }
        reach = Some(stride.saturating_mul(n));
    }
    let mut new = size.iter().rev().filter(|n| **n != 1);
    for run in runs {
        let mut filled = 1u64;
        while filled < run {
            match new.next().and_then(|n| filled.checked_mul(*n)) {
                Some(f) => filled = f,
                None => return Ok(false),
            }
        }
        if filled != run {
            return Ok(false);
        }
    }
    Ok(new.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(sizes: &[i64], strides: &[i64]) -> TensorMeta {
        let ints = |v: &[i64]| v.iter().map(|i| SymInt::Int(*i)).collect();
        TensorMeta { dtype: 7, sizes: ints(sizes), strides: ints(strides), storage_offset: None }
    }

    #[test]
    fn reshape_copies_exactly_where_strides_forbid_a_view() {
        assert!(can_view(&meta(&[2, 3, 4], &[12, 4, 1]), &[6, 4]).unwrap());
        assert!(can_view(&meta(&[2, 3, 4], &[12, 4, 1]), &[2, 2, 6]).unwrap());
        assert!(!can_view(&meta(&[3, 2], &[1, 3]), &[6]).unwrap());
        assert!(can_view(&meta(&[3, 2], &[1, 3]), &[3, 1, 2]).unwrap());
        assert!(!can_view(&meta(&[2, 3, 4], &[24, 8, 1]), &[2, 12]).unwrap());
        assert!(can_view(&meta(&[2, 3, 4], &[24, 8, 1]), &[6, 2, 2]).unwrap());
        assert!(can_view(&meta(&[1, 1], &[7, 9]), &[1]).unwrap());
    }

    #[test]
    fn slices_clamp_like_torch() {
        assert_eq!(slice_bounds(-3, i64::MAX, 6), (3, 6));
        assert_eq!(slice_bounds(4, 2, 6), (4, 4));
        assert_eq!(slice_bounds(-9, -1, 6), (0, 5));
        assert!(wrap_index(-7, 6).is_err());
    }

    #[test]
    fn moved_dimensions_keep_the_others_in_order() {
        assert_eq!(moved(3, &[0, 1], &[2, 0]).unwrap(), vec![1, 2, 0]);
        assert_eq!(moved(4, &[0], &[3]).unwrap(), vec![1, 2, 3, 0]);
    }
}
