//! Softmax along one dimension, in f32 for f16 and bf16. PyTorch has two kernels: along the last dimension it sums by vector
//! lanes, multiplies by the reciprocal and rounds once; along another it sums in order and keeps the exponentials in the element
//! type on the way.

use crate::arith::{self, Arith, Real};
use crate::element::{Element, with_float};
use crate::error::{KernelError, Result};
use crate::layout::{dim_of, transpose};
use crate::reduce::sum_lanes;
use crate::tensor::Tensor;

/// Softmax along a dimension; rows that are -inf throughout give NaN.
pub fn softmax(x: &Tensor, dim: u32) -> Result<Tensor> {
    let d = dim_of("softmax", dim, x.shape())?;
    let last = x.shape().len() - 1;
    let mut perm: Vec<usize> = (0..=last).collect();
    perm.swap(d, last);
    let rows = transpose(x, &perm)?;
    let done = with_float!(x.dtype(), T => rows_of::<T>(&rows, d == last),
        else Err(KernelError::DType { op: "softmax", dtype: x.dtype() }))?;
    transpose(&done, &perm)
}

fn rows_of<T: Element>(x: &Tensor, last: bool) -> Result<Tensor>
where
    T::Math: Real + Arith,
{
    let length = x.shape().last().copied().unwrap_or(1);
    let from = x.slice::<T>();
    Tensor::build::<T>(x.shape(), |out| {
        if length == 0 {
            return;
        }
        let mut row = vec![T::Math::default(); length];
        for (from, out) in from.chunks_exact(length).zip(out.chunks_exact_mut(length)) {
            T::widen_slice(from, &mut row);
            let largest = row.iter().copied().reduce(arith::max).unwrap_or_default();
            row.iter_mut().for_each(|v| *v = (*v - largest).exp_vector());
            if last {
                let factor = <T::Math as Arith>::one() / sum_lanes(&row);
                row.iter_mut().for_each(|v| *v = *v * factor);
            } else {
                let total = row.iter().copied().reduce(Arith::plus).unwrap_or_default();
                row.iter_mut().for_each(|v| *v = T::narrow(*v).widen() / total);
            }
            T::narrow_slice(&row, out);
        }
    })
}
