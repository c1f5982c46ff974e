//! Reductions over local dimensions. Sums add in the order of PyTorch's CPU kernel, so they agree bit for bit on one
//! reduced run of dimensions: eight lanes of four interleaved cascades.

use rayon::prelude::*;
use shardweld_ir::{DType, ReduceKind};

use crate::arith::{self, Arith, Real};
use crate::cast::cast;
use crate::element::{Element, with_element};
use crate::error::{KernelError, Result};
use crate::layout::{dim_of, transpose};
use crate::tensor::Tensor;

/// Bytes of the vectors that PyTorch's sum kernel uses, also on machines with longer ones.
const VECTOR_BYTES: usize = 32;
/// Independent cascades that a row is dealt to.
const INTERLEAVED: usize = 4;
/// Levels of a cascade: a level is flushed into the next when it has summed its share.
const LEVELS: usize = 4;
/// Least number of terms that the first level sums, as a power of two.
const MIN_LEVEL_POWER: u32 = 4;
/// Columns that are summed side by side when the reduced dimension is not the innermost,
const COLUMNS: usize = 32;
/// and when there are fewer columns than a vector has lanes.
const FEW_COLUMNS: usize = 4;
/// Lanes of the vectors of PyTorch's fused kernels.
pub(crate) const LANES: usize = 16;
/// Below this many elements handing rows to other threads costs more than it gains.
const PARALLEL_ELEMENTS: usize = 1 << 16;

/// Cascade sum of `len` vectors of N lanes.
fn cascade<M: Arith, const N: usize>(len: usize, load: impl Fn(usize) -> [M; N]) -> [M; N] {
    let add = |a: &mut [M; N], b: [M; N]| a.iter_mut().zip(b).for_each(|(x, y)| *x = x.plus(y));
    let ceil_log2 = len.next_power_of_two().trailing_zeros();
    let power = MIN_LEVEL_POWER.max(ceil_log2 / LEVELS as u32);
    let (step, mask) = (1usize << power, (1usize << power) - 1);
    let mut level = [[M::default(); N]; LEVELS];
    let mut i = 0;
    while i + step <= len {
        for _ in 0..step {
            add(&mut level[0], load(i));
            i += 1;
        }
        for j in 1..LEVELS {
            let below = std::mem::replace(&mut level[j - 1], [M::default(); N]);
            add(&mut level[j], below);
            if i & (mask << (j as u32 * power)) != 0 {
                break;
            }
        }
    }
    while i < len {
        add(&mut level[0], load(i));
        i += 1;
    }
    let [mut total, rest @ ..] = level;
    rest.into_iter().for_each(|l| add(&mut total, l));
    total
}

/// Sum of `len` vectors of N lanes, dealt to interleaved cascades.
fn interleaved<M: Arith, const N: usize>(len: usize, load: impl Fn(usize) -> [M; N]) -> [M; N] {
    let add = |a: &mut [M; N], b: [M; N]| a.iter_mut().zip(b).for_each(|(x, y)| *x = x.plus(y));
    let whole = len / INTERLEAVED;
    let mut parts: [[M; N]; INTERLEAVED] =
        std::array::from_fn(|k| cascade(whole, |i| load(i * INTERLEAVED + k)));
    for i in whole * INTERLEAVED..len {
        add(&mut parts[0], load(i));
    }
    let [mut total, rest @ ..] = parts;
    rest.into_iter().for_each(|p| add(&mut total, p));
    total
}

/// Sum of a contiguous row. `pairs`: two neighbouring vectors are added first, as for the 16-bit floats.
fn sum_row<M: Arith, const LANES: usize>(row: &[M], pairs: bool) -> M {
    let lanes = |at: usize| -> [M; LANES] { std::array::from_fn(|l| row[at + l]) };
    let width = if pairs { 2 * LANES } else { LANES };
    if row.len() < width {
        let [sum] = interleaved::<M, 1>(row.len(), |i| [row[i]]);
        return sum;
    }
    let vectors = row.len() / width;
    let by_lane = interleaved(vectors, |i| {
        let mut v = lanes(i * width);
        if pairs {
            v.iter_mut().zip(lanes(i * width + LANES)).for_each(|(a, b)| *a = a.plus(b));
        }
        v
    });
    let tail = row[vectors * width..].iter().fold(M::default(), |s, &x| s.plus(x));
    by_lane.into_iter().fold(tail, M::plus)
}

/// Sum of a contiguous row in the order that PyTorch's kernel uses for the type.
pub(crate) fn sum_contiguous<M: Arith>(row: &[M], pairs: bool) -> M {
    const LANES_32: usize = VECTOR_BYTES / 4;
    const LANES_64: usize = VECTOR_BYTES / 8;
    if M::DTYPE == DType::F32 {
        sum_row::<M, LANES_32>(row, pairs)
    } else {
        sum_row::<M, LANES_64>(row, pairs)
    }
}

/// Sum of a row as PyTorch's fused kernels take it: by lanes of a vector, then halves of the vector onto each other.
pub(crate) fn sum_lanes<M: Arith>(row: &[M]) -> M {
    let (first, rest) = match row.split_at_checked(LANES) {
        Some((first, rest)) if M::DTYPE == DType::F32 => (first, rest),
        _ => return row.iter().copied().reduce(M::plus).unwrap_or_default(),
    };
    let mut lanes = [M::default(); LANES];
    lanes.copy_from_slice(first);
    for part in rest.chunks(LANES) {
        lanes.iter_mut().zip(part).for_each(|(l, &x)| *l = l.plus(x));
    }
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = lanes[l].plus(lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Sums over the rows of a row-major matrix, one per column.
fn sum_columns<M: Arith>(matrix: &[M], rows: usize, columns: usize, out: &mut [M]) {
    fn side_by_side<M: Arith, const N: usize>(
        matrix: &[M],
        rows: usize,
        columns: usize,
        out: &mut [M],
    ) -> usize {
        let mut at = 0;
        while at + N <= columns {
            let sums = cascade::<M, N>(rows, |r| std::array::from_fn(|c| matrix[r * columns + at + c]));
            out[at..at + N].copy_from_slice(&sums);
            at += N;
        }
        at
    }
    let done = if columns < VECTOR_BYTES / M::DTYPE.size() {
        side_by_side::<M, FEW_COLUMNS>(matrix, rows, columns, out)
    } else {
        side_by_side::<M, COLUMNS>(matrix, rows, columns, out)
    };
    for c in done..columns {
        [out[c]] = interleaved::<M, 1>(rows, |r| [matrix[r * columns + c]]);
    }
}

/// Combines the middle dimension of `[outer, reduced, inner]` data.
fn combine<M: Arith>(
    kind: ReduceKind,
    block: &[M],
    reduced: usize,
    inner: usize,
    pairs: bool,
    out: &mut [M],
) {
    match kind {
        ReduceKind::Sum | ReduceKind::Mean if inner == 1 => {
            out[0] = sum_contiguous(block, pairs);
        }
        ReduceKind::Sum | ReduceKind::Mean => sum_columns(block, reduced, inner, out),
        _ => {
            let f: fn(M, M) -> M = match kind {
                ReduceKind::Max => arith::max,
                ReduceKind::Min => arith::min,
                _ => M::times,
            };
            match block.get(..inner) {
                Some(first) if reduced > 0 => out.copy_from_slice(first),
                // Only products may be empty; the shape rules refuse an empty maximum.
                _ => out.fill(M::one()),
            }
            for row in block.chunks_exact(inner.max(1)).skip(1) {
                out.iter_mut().zip(row).for_each(|(o, &x)| *o = f(*o, x));
            }
        }
    }
}

/// Reduction over the listed dimensions (sorted, distinct). f16, bf16 accumulate in f32; integers wrap.
pub fn reduce(x: &Tensor, kind: ReduceKind, dims: &[u32], keep_dims: bool) -> Result<Tensor> {
    let op = kind.name();
    let dims = dims.iter().map(|&d| dim_of(op, d, x.shape())).collect::<Result<Vec<_>>>()?;
    let reduced: usize = dims.iter().map(|&d| x.shape()[d]).product();
    if kind == ReduceKind::Mean {
        if !x.dtype().is_float() {
            return Err(KernelError::DType { op, dtype: x.dtype() });
        }
        return mean(x, &dims, reduced, keep_dims);
    }
    if reduced == 0 && matches!(kind, ReduceKind::Max | ReduceKind::Min) {
        return Err(KernelError::shape(op, format!("no elements in dimensions {dims:?} of {:?}", x.shape())));
    }
    with_element!(x.dtype(), T => reduce_as::<T>(x, kind, &dims, keep_dims))
}

/// The mean: half-precision operands are widened as a whole before the sum, as PyTorch does.
fn mean(x: &Tensor, dims: &[usize], count: usize, keep_dims: bool) -> Result<Tensor> {
    let wide = cast(x, x.dtype().op_math())?;
    let quotient = if wide.dtype() == DType::F64 {
        divide(&reduce_as::<f64>(&wide, ReduceKind::Sum, dims, keep_dims)?, count as f64)?
    } else {
        divide(&reduce_as::<f32>(&wide, ReduceKind::Sum, dims, keep_dims)?, count as f32)?
    };
    cast(&quotient, x.dtype())
}

fn divide<R: Real>(x: &Tensor, by: R) -> Result<Tensor> {
    Tensor::build::<R>(x.shape(), |out| {
        out.iter_mut().zip(x.slice::<R>()).for_each(|(o, &v)| *o = v / by);
    })
}

fn reduce_as<T: Element>(x: &Tensor, kind: ReduceKind, dims: &[usize], keep_dims: bool) -> Result<Tensor>
where
    T::Math: Arith,
{
    let rank = x.shape().len();
    let kept: Vec<usize> = (0..rank).filter(|d| !dims.contains(d)).collect();
    let shape: Vec<usize> = if keep_dims {
        (0..rank).map(|d| if dims.contains(&d) { 1 } else { x.shape()[d] }).collect()
    } else {
        kept.iter().map(|&d| x.shape()[d]).collect()
    };
    let last_run =
        dims.iter().rev().zip((0..).map(|i| dims[dims.len() - 1] - i)).take_while(|(d, e)| *d == e).count();
    if kind == ReduceKind::Sum && last_run < dims.len() {
        return sum_scattered::<T>(x, dims.split_at(dims.len() - last_run), &shape);
    }
    // One run of neighbouring dimensions is reduced in place; others are moved to the end first.
    let adjacent = dims.windows(2).all(|w| w[1] == w[0] + 1);
    let (data, first, past) = if adjacent {
        (x.clone(), dims.first().copied().unwrap_or(rank), dims.last().map_or(rank, |d| d + 1))
    } else {
        (transpose(x, &[kept.as_slice(), dims].concat())?, kept.len(), rank)
    };
    let reduced: usize = data.shape()[first..past].iter().product();
    let inner: usize = data.shape()[past..].iter().product();
    let from = data.slice::<T>();
    let pairs = T::DTYPE.size() == 2;
    Tensor::build::<T>(&shape, |out| {
        let block = |(i, out): (usize, &mut [T])| {
            let mut wide = vec![T::Math::default(); reduced * inner];
            T::widen_slice(&from[i * reduced * inner..(i + 1) * reduced * inner], &mut wide);
            let mut sums = vec![T::Math::default(); inner];
            combine(kind, &wide, reduced, inner, pairs, &mut sums);
            T::narrow_slice(&sums, out);
        };
        if inner == 0 {
            return;
        }
        if from.len() < PARALLEL_ELEMENTS {
            out.chunks_mut(inner).enumerate().for_each(block);
        } else {
            out.par_chunks_mut(inner).enumerate().for_each(block);
        }
    })
}

/// Sum over dimensions that are no run of neighbours: the innermost run by itself, its sums then one after the other.
fn sum_scattered<T: Element>(
    x: &Tensor,
    (outer, inner): (&[usize], &[usize]),
    shape: &[usize],
) -> Result<Tensor>
where
    T::Math: Arith,
{
    let wide = cast(x, T::Math::DTYPE)?;
    let sums = reduce_as::<T::Math>(&wide, ReduceKind::Sum, inner, true)?;
    let kept: Vec<usize> = (0..x.shape().len()).filter(|d| !outer.contains(d)).collect();
    let rows = transpose(&sums, &[outer, &kept].concat())?;
    let mut total = vec![T::Math::default(); shape.iter().product()];
    if !total.is_empty() {
        for row in rows.slice::<T::Math>().chunks_exact(total.len()) {
            total.iter_mut().zip(row).for_each(|(t, &v)| *t = t.plus(v));
        }
    }
    Tensor::build::<T>(shape, |out| T::narrow_slice(&total, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduces_inner_outer_and_scattered_dimensions() {
        let x = Tensor::new(&[2, 3, 2], &(0..12).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let sum = |dims: &[u32]| reduce(&x, ReduceKind::Sum, dims, false).unwrap().slice::<f32>().to_vec();
        assert_eq!(sum(&[2]), [1.0, 5.0, 9.0, 13.0, 17.0, 21.0]);
        assert_eq!(sum(&[1]), [6.0, 9.0, 24.0, 27.0]);
        assert_eq!(sum(&[0, 2]), [14.0, 22.0, 30.0]);
        assert_eq!(sum(&[0, 1, 2]), [66.0]);
        assert_eq!(reduce(&x, ReduceKind::Max, &[1], true).unwrap().shape(), [2, 1, 2]);
    }

    #[test]
    fn empty_and_nan() {
        let none = Tensor::new::<f32>(&[2, 0], &[]).unwrap();
        assert_eq!(reduce(&none, ReduceKind::Sum, &[1], false).unwrap().slice::<f32>(), [0.0, 0.0]);
        assert_eq!(reduce(&none, ReduceKind::Prod, &[1], false).unwrap().slice::<f32>(), [1.0, 1.0]);
        assert!(reduce(&none, ReduceKind::Max, &[1], false).is_err());
        let x = Tensor::new(&[3], &[1.0f32, f32::NAN, 2.0]).unwrap();
        assert!(reduce(&x, ReduceKind::Max, &[0], false).unwrap().slice::<f32>()[0].is_nan());
        assert!(reduce(&x, ReduceKind::Min, &[0], false).unwrap().slice::<f32>()[0].is_nan());
    }

    #[test]
    fn bf16_sums_accumulate_in_f32() {
        let ones = vec![half::bf16::from_f32(1.0); 1000];
        let x = Tensor::new(&[1000], &ones).unwrap();
        assert_eq!(
            reduce(&x, ReduceKind::Sum, &[0], false).unwrap().slice::<half::bf16>()[0].to_f32(),
            1000.0
        );
    }
}
