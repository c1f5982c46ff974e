//! Ops that move elements: shuffles, slices, concatenation, padding.

use shardweld_ir::{Literal, Scalar, TensorType, Value};

use super::lazy::{Data, Lazy, Piece, Step, View, overwrite, range};
use super::{At, Lowerer, MAX_DIMS, Made, refuse, too_large};
use crate::trace::{Call, TensorId};

impl Lowerer<'_> {
    /// One more shuffle step on a value; a new layer only if one layer cannot do all steps.
    pub(super) fn shuffle(&mut self, at: &At, x: Value, step: Step) -> Made<Lazy> {
        let lazy = self.lazy(x)?;
        self.shuffle_lazy(at, lazy, step)
    }

    pub(super) fn shuffle_lazy(&mut self, at: &At, lazy: Lazy, step: Step) -> Made<Lazy> {
        let view = match (lazy, &step) {
            (Lazy::Data { data, .. }, Step::Reshape(dims)) => {
                return Ok(Lazy::Data { data, dims: dims.clone() });
            }
            (Lazy::Expand { base, dims }, _) => {
                if let Call::Constant(one) = self.b.call(base)
                    && one.ty.shape.elements() == Some(1)
                {
                    return self.repeat(at, &one.clone(), &dims, &step);
                }
                let t = self.materialise(at, Lazy::Expand { base, dims })?;
                View::of(t, self.b.ty(t).1)
            }
            (Lazy::View(v), _) => v,
            (Lazy::Pieces { dim, parts }, Step::Reshape(dims)) if self.is_unbind(dim, &parts, dims) => {
                return self.unbind(at, dim, &parts[0]);
            }
            (other, _) => {
                let t = self.materialise(at, other)?;
                View::of(t, self.b.ty(t).1)
            }
        };
        if let Some(v) = view.then(step.clone(), &at.sources) {
            return Ok(Lazy::View(v));
        }
        let t = self.materialise(at, Lazy::View(view))?;
        let fresh = View::of(t, self.b.ty(t).1).then(step, &at.sources);
        // One step always fits one layer.
        fresh.map(Lazy::View).ok_or_else(|| super::Stop::Refused("a shuffle does not fold".into()))
    }

    /// Whether a reshape drops the dimension of a single index of a tensor, and another dimension follows it.
    fn is_unbind(&self, dim: u32, parts: &[Piece], dims: &[u64]) -> bool {
        let [Piece { tensor, len: 1, .. }] = parts else { return false };
        let own = self.b.ty(*tensor).1;
        let d = dim as usize;
        d + 1 < own.len() && own.len() == dims.len() + 1 && own[..d] == dims[..d] && own[d + 1..] == dims[d..]
    }

    /// Index i of a dimension, without it: a slice of the tensor with this and the next dimension merged, which all indices
    /// share. A slice and a shuffle for each would be more layers.
    fn unbind(&mut self, at: &At, dim: u32, piece: &Piece) -> Made<Lazy> {
        let d = dim as usize;
        let mut merged = self.b.ty(piece.tensor).1.to_vec();
        let inner = merged.remove(d + 1);
        merged[d] *= inner;
        let view = View::of(piece.tensor, self.b.ty(piece.tensor).1).then(Step::Reshape(merged), &at.sources);
        let view = view.ok_or_else(|| super::Stop::Refused("a shuffle does not fold".into()))?;
        let tensor = self.materialise(at, Lazy::View(view))?;
        Ok(Lazy::Pieces { dim, parts: vec![Piece { tensor, start: piece.start * inner, len: inner }] })
    }

    /// One element, repeated: any shuffle of it is one element, repeated.
    fn repeat(&mut self, at: &At, one: &Literal, dims: &[u64], step: &Step) -> Made<Lazy> {
        let dims: Vec<u64> = match step {
            Step::Reshape(d) => d.clone(),
            Step::Transpose(p) => p.iter().filter_map(|&i| dims.get(i as usize).copied()).collect(),
        };
        let ty = TensorType::new(one.ty.dtype, &vec![1; dims.len()]);
        let literal = Literal::dense(ty, one.data()).ok_or_else(too_large)?;
        let base = self.emit(at, Call::Constant(literal))?;
        Ok(Lazy::Expand { base, dims })
    }

    /// The value as ranges along a dimension.
    fn pieces(&mut self, at: &At, x: Value, dim: u32) -> Made<Vec<Piece>> {
        match self.lazy(x)? {
            Lazy::Pieces { dim: d, parts } if d == dim => Ok(parts),
            lazy => {
                let tensor = self.materialise(at, lazy)?;
                let len = self.b.ty(tensor).1.get(dim as usize).copied().unwrap_or(0);
                Ok(vec![Piece { tensor, start: 0, len }])
            }
        }
    }

    pub(super) fn slice(
        &mut self,
        at: &At,
        x: Value,
        dim: u32,
        start: u64,
        limit: u64,
        stride: u64,
    ) -> Made<Lazy> {
        let dims = self.dims(x)?;
        let d = dim as usize;
        if start == 0 && stride == 1 && dims.get(d) == Some(&limit) {
            return self.lazy(x);
        }
        if let Lazy::Expand { base, mut dims } = self.lazy(x)?
            && self.b.ty(base).1.get(d) == Some(&1)
            && limit > start
        {
            dims[d] = (limit - start).div_ceil(stride);
            return Ok(Lazy::Expand { base, dims });
        }
        if stride == 1 && limit > start {
            let parts = self.pieces(at, x, dim)?;
            return Ok(Lazy::Pieces { dim, parts: range(&parts, start, limit) });
        }
        let input = self.tensor(at, x)?;
        let mut size = dims;
        let mut from = vec![0i64; size.len()];
        let mut step = vec![1u64; size.len()];
        size[d] = (limit - start).div_ceil(stride);
        from[d] = i64::try_from(start).unwrap_or(i64::MAX);
        step[d] = stride;
        let t = self.emit(at, Call::Slice { input, start: from, size, stride: step, fill: None })?;
        Ok(Lazy::View(View::of(t, self.b.ty(t).1)))
    }

    pub(super) fn concat(&mut self, at: &At, x: &[Value], dim: u32) -> Made<Lazy> {
        let mut parts = Vec::with_capacity(x.len());
        for &v in x {
            parts.extend(self.pieces(at, v, dim)?.into_iter().filter(|p| p.len > 0));
        }
        match (x, parts.is_empty()) {
            ([first, ..], true) => self.lazy(*first),
            _ => Ok(Lazy::Pieces { dim, parts: range(&parts, 0, u64::MAX) }),
        }
    }

    pub(super) fn update_slice(
        &mut self,
        at: &At,
        base: Value,
        update: Value,
        dim: u32,
        start: u64,
        stride: u64,
    ) -> Made<Lazy> {
        let d = dim as usize;
        let (base_dims, update_dims) = (self.dims(base)?, self.dims(update)?);
        let count = update_dims.get(d).copied().unwrap_or(0);
        if count == 0 {
            return self.lazy(base);
        }
        let parts = self.pieces(at, base, dim)?;
        if stride == 1 || count == 1 {
            let tensor = self.tensor(at, update)?;
            let parts = overwrite(&parts, start, Piece { tensor, start: 0, len: count });
            return Ok(Lazy::Pieces { dim, parts });
        }
        // Every `stride`-th element: view the span as [count, stride] and replace its first column. A last row that the
        // base does not fill is completed and cut again.
        let (n, span) = (base_dims[d], count * stride);
        let available = (n - start).min(span);
        let rows = Lazy::Pieces { dim, parts: range(&parts, start, start + available) };
        let mut rows = self.materialise(at, rows)?;
        if available < span {
            rows = self.fill_after(at, rows, dim, span - available)?;
        }
        let mut table = base_dims.clone();
        table[d] = count;
        table.insert(d + 1, stride);
        if table.len() > MAX_DIMS {
            return refuse(format!("needs {} dimensions; at most {} exist", table.len(), MAX_DIMS));
        }
        let view =
            self.shuffle_lazy(at, Lazy::View(View::of(rows, self.b.ty(rows).1)), Step::Reshape(table))?;
        let rows = self.materialise(at, view)?;
        let mut column = update_dims;
        column.insert(d + 1, 1);
        let update = self.shuffle(at, update, Step::Reshape(column))?;
        let update = self.materialise(at, update)?;
        let new =
            [Piece { tensor: update, start: 0, len: 1 }, Piece { tensor: rows, start: 1, len: stride - 1 }];
        let new = self.materialise(at, Lazy::Pieces { dim: dim + 1, parts: new.to_vec() })?;
        let mut flat = base_dims;
        flat[d] = span;
        let view = self.shuffle_lazy(at, Lazy::View(View::of(new, self.b.ty(new).1)), Step::Reshape(flat))?;
        let tensor = self.materialise(at, view)?;
        let parts = overwrite(&parts, start, Piece { tensor, start: 0, len: available });
        Ok(Lazy::Pieces { dim, parts })
    }

    /// Zeros after a tensor; they are cut off again.
    fn fill_after(&mut self, at: &At, t: TensorId, dim: u32, count: u64) -> Made {
        let dtype = self.b.ty(t).0;
        let zero = match dtype {
            d if d.is_float() => Scalar::Float(0.0),
            shardweld_ir::DType::Bool => Scalar::Bool(false),
            _ => Scalar::Int(0),
        };
        self.pad_tensor(at, t, dim, 0, count, zero)
    }

    pub(super) fn pad(&mut self, at: &At, x: Value, dim: u32, low: u64, high: u64, value: Scalar) -> Made {
        let t = self.tensor(at, x)?;
        if low == 0 && high == 0 {
            return Ok(t);
        }
        self.pad_tensor(at, t, dim, low, high, value)
    }

    fn pad_tensor(&mut self, at: &At, input: TensorId, dim: u32, low: u64, high: u64, value: Scalar) -> Made {
        let (dtype, dims) = self.b.ty(input);
        let (mut size, d) = (dims.to_vec(), dim as usize);
        let fill = self.scalar(at, dtype, value, 0)?;
        let mut start = vec![0i64; size.len()];
        size[d] += low + high;
        start[d] = -i64::try_from(low).unwrap_or(i64::MAX);
        let stride = vec![1; size.len()];
        self.emit(at, Call::Slice { input, start, size, stride, fill: Some(fill) })
    }

    /// Ones or zeros of a shape, as a constant that layers with a required operand take.
    pub(super) fn full(&mut self, at: &At, like: TensorId, dims: &[u64], value: f64) -> Made {
        let ty = TensorType::new(self.b.ty(like).0, dims);
        let literal = Literal::full(ty, Scalar::Float(value)).ok_or_else(too_large)?;
        let lazy = Lazy::Data { data: Data::Literal(literal), dims: dims.to_vec() };
        self.materialise(at, lazy)
    }
}
