//! Data movement: broadcast, transpose, slice, update, concat, split, pad, gather. Elements are moved as integers of their
//! size, so every bit survives.

use bytemuck::Pod;
use shardweld_ir::{DType, GatherMode, Scalar};

use crate::element::with_element;
use crate::error::{KernelError, Result};
use crate::tensor::Tensor;

/// Runs a body with a type alias bound to the unsigned integer of an element's size.
macro_rules! with_bits {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}

/// Strides of a row-major tensor, in elements.
fn strides_of(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * shape[i + 1];
    }
    strides
}

/// A strided window: what a transpose, a slice or a broadcast is, seen from the operand.
struct Window<'a> {
    offset: usize,
    shape: &'a [usize],
    strides: Vec<usize>,
}

impl Window<'_> {
    /// Calls `f(window offset, row-major offset, length, stride)` for every innermost run, in row-major order.
    fn for_each_run(&self, mut f: impl FnMut(usize, usize, usize, usize)) {
        // Dimensions that lie behind one another in memory become one.
        let mut dims: Vec<(usize, usize)> = Vec::with_capacity(self.shape.len());
        for (&n, &s) in self.shape.iter().zip(&self.strides) {
            match dims.last_mut() {
                _ if n == 1 => {}
                Some(last) if last.1 == s * n => *last = (last.0 * n, s),
                _ => dims.push((n, s)),
            }
        }
        let (length, stride) = dims.pop().unwrap_or((1, 1));
        if length == 0 || dims.iter().any(|d| d.0 == 0) {
            return;
        }
        let mut index = vec![0usize; dims.len()];
        let (mut from, mut to) = (self.offset, 0);
        loop {
            f(from, to, length, stride);
            to += length;
            let mut d = dims.len();
            loop {
                if d == 0 {
                    return;
                }
                d -= 1;
                index[d] += 1;
                from += dims[d].1;
                if index[d] < dims[d].0 {
                    break;
                }
                from -= dims[d].1 * dims[d].0;
                index[d] = 0;
            }
        }
    }

    fn read<U: Pod>(&self, from: &[U], to: &mut [U]) {
        self.for_each_run(|a, b, n, stride| {
            let to = &mut to[b..b + n];
            match stride {
                0 => to.fill(from[a]),
                1 => to.copy_from_slice(&from[a..a + n]),
                _ => to.iter_mut().enumerate().for_each(|(i, t)| *t = from[a + i * stride]),
            }
        });
    }

    fn write<U: Pod>(&self, from: &[U], to: &mut [U]) {
        self.for_each_run(|a, b, n, stride| {
            let from = &from[b..b + n];
            if stride == 1 {
                to[a..a + n].copy_from_slice(from);
            } else {
                from.iter().enumerate().for_each(|(i, &f)| to[a + i * stride] = f);
            }
        });
    }

    fn of(&self, x: &Tensor) -> Result<Tensor> {
        with_bits!(x.dtype(), U => Tensor::build_bits::<U>(x.dtype(), self.shape, |out| {
            self.read(x.bits::<U>(), out);
        }))
    }
}

/// The dimension as an index, if the shape has it.
pub(crate) fn dim_of(op: &'static str, dim: u32, shape: &[usize]) -> Result<usize> {
    let d = dim as usize;
    if d < shape.len() {
        Ok(d)
    } else {
        Err(KernelError::shape(op, format!("dimension {dim} of shape {shape:?} does not exist")))
    }
}

/// The common shape of two operands, aligned right; sizes are equal or 1 in one of them.
pub fn broadcast_shape(op: &'static str, a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| if i + s.len() >= rank { s[i + s.len() - rank] } else { 1 };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(KernelError::shape(op, format!("{a:?} and {b:?} do not broadcast"))),
        })
        .collect()
}

/// Repeats dimensions of size 1 to the given shape, aligned right.
pub fn broadcast_to(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let fail = || KernelError::shape("broadcast", format!("{:?} cannot become {shape:?}", x.shape()));
    let missing = shape.len().checked_sub(x.shape().len()).ok_or_else(fail)?;
    let own = strides_of(x.shape());
    let strides = shape
        .iter()
        .enumerate()
        .map(|(i, &n)| match i.checked_sub(missing) {
            None => Ok(0),
            Some(j) if x.shape()[j] == n => Ok(own[j]),
            Some(j) if x.shape()[j] == 1 => Ok(0),
            Some(_) => Err(fail()),
        })
        .collect::<Result<Vec<_>>>()?;
    Window { offset: 0, shape, strides }.of(x)
}

/// Dimension i of the result is dimension `perm[i]` of x.
pub fn transpose(x: &Tensor, perm: &[usize]) -> Result<Tensor> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if sorted.len() != x.shape().len() || sorted.iter().enumerate().any(|(i, &p)| i != p) {
        return Err(KernelError::shape("transpose", format!("{perm:?} does not permute {:?}", x.shape())));
    }
    let own = strides_of(x.shape());
    let shape: Vec<usize> = perm.iter().map(|&p| x.shape()[p]).collect();
    // Moving only dimensions of size 1 leaves the data as they are.
    if perm.iter().filter(|&&p| x.shape()[p] != 1).is_sorted() {
        return x.reshaped(&shape);
    }
    Window { offset: 0, shape: &shape, strides: perm.iter().map(|&p| own[p]).collect() }.of(x)
}

/// Elements `start, start + stride, ..` below `limit` of one dimension.
pub fn slice(x: &Tensor, dim: u32, start: usize, limit: usize, stride: usize) -> Result<Tensor> {
    let d = dim_of("slice", dim, x.shape())?;
    if stride == 0 || start > limit || limit > x.shape()[d] {
        return Err(KernelError::shape(
            "slice",
            format!("{start}..{limit} by {stride} is not in dimension {dim} of {:?}", x.shape()),
        ));
    }
    if start == 0 && limit == x.shape()[d] && stride == 1 {
        return Ok(x.clone());
    }
    let mut strides = strides_of(x.shape());
    let offset = start * strides[d];
    strides[d] *= stride;
    let mut shape = x.shape().to_vec();
    shape[d] = (limit - start).div_ceil(stride);
    Window { offset, shape: &shape, strides }.of(x)
}

/// Base with positions `start, start + stride, ..` of one dimension replaced by update.
pub fn update_slice(base: &Tensor, update: &Tensor, dim: u32, start: usize, stride: usize) -> Result<Tensor> {
    const OP: &str = "update_slice";
    if base.dtype() != update.dtype() {
        return Err(KernelError::MixedDTypes { op: OP, first: base.dtype(), second: update.dtype() });
    }
    let d = dim_of(OP, dim, base.shape())?;
    let fail = || {
        KernelError::shape(
            OP,
            format!(
                "{:?} does not fit into dimension {dim} of {:?} from {start} by {stride}",
                update.shape(),
                base.shape()
            ),
        )
    };
    let fits = update.shape().len() == base.shape().len()
        && stride > 0
        && update.shape().iter().zip(base.shape()).enumerate().all(|(i, (u, b))| i == d || u == b);
    if !fits {
        return Err(fail());
    }
    let count = update.shape()[d];
    if count == 0 {
        return Ok(base.clone());
    }
    let last = (count - 1).checked_mul(stride).and_then(|n| n.checked_add(start)).ok_or_else(fail)?;
    if last >= base.shape()[d] {
        return Err(fail());
    }
    let mut strides = strides_of(base.shape());
    let offset = start * strides[d];
    strides[d] *= stride;
    let window = Window { offset, shape: update.shape(), strides };
    with_bits!(base.dtype(), U => Tensor::build_bits::<U>(base.dtype(), base.shape(), |out| {
        out.copy_from_slice(base.bits::<U>());
        window.write(update.bits::<U>(), out);
    }))
}

/// Cuts along a dimension; the sizes add up to it.
pub fn split(x: &Tensor, dim: u32, sizes: &[usize]) -> Result<Vec<Tensor>> {
    let d = dim_of("split", dim, x.shape())?;
    if sizes.iter().try_fold(0usize, |n, &s| n.checked_add(s)) != Some(x.shape()[d]) {
        return Err(KernelError::shape(
            "split",
            format!("{sizes:?} do not add up to dimension {dim} of {:?}", x.shape()),
        ));
    }
    let mut at = 0;
    sizes
        .iter()
        .map(|&n| {
            at += n;
            slice(x, dim, at - n, at, 1)
        })
        .collect()
}

/// One or more tensors behind one another along a dimension.
pub fn concat(parts: &[&Tensor], dim: u32) -> Result<Tensor> {
    const OP: &str = "concat";
    let Some(first) = parts.first() else { return Err(KernelError::shape(OP, "no operand")) };
    let d = dim_of(OP, dim, first.shape())?;
    let mut shape = first.shape().to_vec();
    shape[d] = 0;
    for p in parts {
        if p.dtype() != first.dtype() {
            return Err(KernelError::MixedDTypes { op: OP, first: first.dtype(), second: p.dtype() });
        }
        let same = p.shape().len() == shape.len()
            && p.shape().iter().zip(&shape).enumerate().all(|(i, (a, b))| i == d || a == b);
        if !same {
            return Err(KernelError::shape(
                OP,
                format!("{:?} and {:?} differ outside of dimension {dim}", first.shape(), p.shape()),
            ));
        }
        shape[d] += p.shape()[d];
    }
    if parts.len() == 1 {
        return Ok((*first).clone());
    }
    let strides = strides_of(&shape);
    with_bits!(first.dtype(), U => Tensor::build_bits::<U>(first.dtype(), &shape, |out| {
        let mut at = 0;
        for p in parts {
            let window = Window { offset: at * strides[d], shape: p.shape(), strides: strides.clone() };
            window.write(p.bits::<U>(), out);
            at += p.shape()[d];
        }
    }))
}

/// A tensor whose elements all are the scalar, rounded to nearest even (floats) or wrapped (integers).
pub fn full(dtype: DType, shape: &[usize], value: Scalar) -> Result<Tensor> {
    let element = crate::cast::scalar(dtype, value);
    let bytes = element.bytes();
    with_bits!(dtype, U => {
        let one: U = bytemuck::pod_read_unaligned(bytes);
        Tensor::build_bits::<U>(dtype, shape, |out| out.fill(one))
    })
}

/// `low` copies of a value before and `high` after along a dimension.
pub fn pad(x: &Tensor, dim: u32, low: usize, high: usize, value: Scalar) -> Result<Tensor> {
    let d = dim_of("pad", dim, x.shape())?;
    let mut shape = x.shape().to_vec();
    shape[d] = low
        .checked_add(high)
        .and_then(|n| n.checked_add(shape[d]))
        .ok_or_else(|| KernelError::TooLarge { shape: x.shape().to_vec() })?;
    update_slice(&full(x.dtype(), &shape, value)?, x, dim, low, 1)
}

/// Picks along a dimension by i64 or i32 indices, which must lie in it.
pub fn gather(data: &Tensor, indices: &Tensor, mode: GatherMode, dim: u32) -> Result<Tensor> {
    const OP: &str = "gather";
    let d = dim_of(OP, dim, data.shape())?;
    let size = data.shape()[d];
    let wide = match indices.dtype() {
        DType::I64 => indices.clone(),
        DType::I32 => crate::cast::cast(indices, DType::I64)?,
        dtype => return Err(KernelError::DType { op: OP, dtype }),
    };
    let index = wide.slice::<i64>();
    if let Some(&bad) = index.iter().find(|&&i| usize::try_from(i).map_or(true, |i| i >= size)) {
        return Err(KernelError::Index { op: OP, index: bad, size });
    }
    let before: usize = data.shape()[..d].iter().product();
    let after: usize = data.shape()[d + 1..].iter().product();
    match mode {
        GatherMode::Take => {
            let shape = [&data.shape()[..d], indices.shape(), &data.shape()[d + 1..]].concat();
            with_bits!(data.dtype(), U => Tensor::build_bits::<U>(data.dtype(), &shape, |out| {
                let data = data.bits::<U>();
                for b in 0..before {
                    for (j, &i) in index.iter().enumerate() {
                        let from = (b * size + i as usize) * after;
                        let to = (b * index.len() + j) * after;
                        out[to..to + after].copy_from_slice(&data[from..from + after]);
                    }
                }
            }))
        }
        GatherMode::Elements => {
            let (shape, own) = (indices.shape(), strides_of(data.shape()));
            let fits = shape.len() == own.len()
                && shape.iter().zip(data.shape()).enumerate().all(|(i, (a, b))| i == d || a <= b);
            if !fits {
                return Err(KernelError::shape(
                    OP,
                    format!("indices of shape {shape:?} do not fit data of shape {:?}", data.shape()),
                ));
            }
            // The window walks all dimensions but the gathered one; the index adds that.
            let mut strides = own.clone();
            strides[d] = 0;
            let window = Window { offset: 0, shape, strides };
            with_bits!(data.dtype(), U => Tensor::build_bits::<U>(data.dtype(), shape, |out| {
                let data = data.bits::<U>();
                window.for_each_run(|from, to, n, stride| {
                    for i in 0..n {
                        out[to + i] = data[from + i * stride + index[to + i] as usize * own[d]];
                    }
                });
            }))
        }
    }
}

/// `first + step * index` along a dimension, computed in f64 (i64 for integers), rounded once.
pub fn iota(dtype: DType, shape: &[usize], dim: u32, first: Scalar, step: Scalar) -> Result<Tensor> {
    let d = dim_of("iota", dim, shape)?;
    let line = with_element!(dtype, T => Tensor::build::<T>(&[shape[d]], |out| {
        for (i, o) in out.iter_mut().enumerate() {
            *o = if dtype.is_float() {
                crate::cast::from_f64(first.as_f64() + step.as_f64() * i as f64)
            } else {
                crate::cast::from_i64(first.as_i64().wrapping_add(step.as_i64().wrapping_mul(i as i64)))
            };
        }
    }))?;
    let mut aligned = vec![1; shape.len()];
    aligned[d] = shape[d];
    broadcast_to(&line.reshaped(&aligned)?, shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(shape: &[usize]) -> Tensor {
        let n: usize = shape.iter().product();
        Tensor::new(shape, &(0..n as i32).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn transpose_moves_dimensions() {
        let x = transpose(&t(&[2, 3]), &[1, 0]).unwrap();
        assert_eq!(x.shape(), [3, 2]);
        assert_eq!(x.slice::<i32>(), [0, 3, 1, 4, 2, 5]);
        assert!(transpose(&t(&[2, 3]), &[0, 0]).is_err());
    }

    #[test]
    fn update_slice_is_the_inverse_of_slice() {
        let x = t(&[3, 5]);
        let part = slice(&x, 1, 1, 5, 2).unwrap();
        assert_eq!(part.slice::<i32>(), [1, 3, 6, 8, 11, 13]);
        let zeros = full(DType::I32, &[3, 5], Scalar::Int(0)).unwrap();
        let back = update_slice(&zeros, &part, 1, 1, 2).unwrap();
        assert_eq!(back.slice::<i32>(), [0, 1, 0, 3, 0, 0, 6, 0, 8, 0, 0, 11, 0, 13, 0]);
        assert!(update_slice(&zeros, &part, 1, 3, 2).is_err());
        assert!(slice(&x, 1, 1, 6, 1).is_err());
    }

    #[test]
    fn concat_undoes_split() {
        let x = t(&[2, 5, 2]);
        let parts = split(&x, 1, &[1, 0, 4]).unwrap();
        let again = concat(&parts.iter().collect::<Vec<_>>(), 1).unwrap();
        assert_eq!(again.bytes(), x.bytes());
        assert!(split(&x, 1, &[1, 1]).is_err());
        assert!(concat(&[&x, &t(&[2, 5, 3])], 1).is_err());
    }

    #[test]
    fn gather_refuses_indices_outside() {
        let x = t(&[2, 3]);
        let i = Tensor::new(&[2], &[2i64, 0]).unwrap();
        assert_eq!(gather(&x, &i, GatherMode::Take, 1).unwrap().slice::<i32>(), [2, 0, 5, 3]);
        let e = Tensor::new(&[2, 1], &[2i32, 0]).unwrap();
        assert_eq!(gather(&x, &e, GatherMode::Elements, 1).unwrap().slice::<i32>(), [2, 3]);
        for bad in [3i64, -1] {
            let i = Tensor::new(&[1], &[bad]).unwrap();
            assert_eq!(
                gather(&x, &i, GatherMode::Take, 1).unwrap_err(),
                KernelError::Index { op: "gather", index: bad, size: 3 }
            );
        }
    }

    #[test]
    fn payloads_survive_movement() {
        let nan = f32::from_bits(0x7f80_0123);
        let x = Tensor::new(&[1, 2], &[nan, -0.0]).unwrap();
        let y = broadcast_to(&transpose(&x, &[1, 0]).unwrap(), &[2, 3]).unwrap();
        let y = pad(&slice(&y, 1, 0, 2, 1).unwrap(), 0, 1, 0, Scalar::Float(-0.0)).unwrap();
        let bits: Vec<u32> = y.slice::<f32>().iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, [1 << 31, 1 << 31, 0x7f80_0123, 0x7f80_0123, 1 << 31, 1 << 31]);
    }

    #[test]
    fn iota_grows_along_one_dimension() {
        let x = iota(DType::F32, &[2, 3], 1, Scalar::Float(0.5), Scalar::Float(0.25)).unwrap();
        assert_eq!(x.slice::<f32>(), [0.5, 0.75, 1.0, 0.5, 0.75, 1.0]);
        assert!(iota(DType::F32, &[], 0, Scalar::Float(0.0), Scalar::Float(1.0)).is_err());
    }
}
