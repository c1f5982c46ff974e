//! Batched matrix product with an optional bias. f16, bf16 and fp8 accumulate in f32, take the bias there, and round once.

use rayon::prelude::*;

use crate::arith::Arith;
use crate::element::{Element, with_element};
use crate::error::{KernelError, Result};
use crate::gemm::{Matrix, Product, product};
use crate::layout::{broadcast_shape, broadcast_to};
use crate::tensor::Tensor;

const OP: &str = "matmul";
/// Below this many multiplications in all, batches run on the calling thread.
const PARALLEL_PRODUCTS: usize = 1 << 20;

/// a `[.., m, k]` times b `[.., k, n]` plus a bias that broadcasts to the result; batch dimensions broadcast aligned right.
pub fn matmul(
    a: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    transpose_a: bool,
    transpose_b: bool,
) -> Result<Tensor> {
    for other in std::iter::once(b).chain(bias) {
        if other.dtype() != a.dtype() {
            return Err(KernelError::MixedDTypes { op: OP, first: a.dtype(), second: other.dtype() });
        }
    }
    with_element!(a.dtype(), T => batched::<T>(a, b, bias, transpose_a, transpose_b))
}

/// Batch sizes and the last two sizes, swapped if transposed.
fn split_shape(x: &Tensor, transposed: bool) -> Result<(&[usize], usize, usize)> {
    match x.shape() {
        [batch @ .., r, c] => Ok((batch, if transposed { *c } else { *r }, if transposed { *r } else { *c })),
        shape => Err(KernelError::shape(OP, format!("{shape:?} has fewer than two dimensions"))),
    }
}

pub(crate) fn widen<T: Element>(x: &Tensor) -> Vec<T::Math> {
    let mut wide = vec![T::Math::default(); x.elements()];
    T::widen_slice(x.slice::<T>(), &mut wide);
    wide
}

fn batched<T: Element>(
    a: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    transpose_a: bool,
    transpose_b: bool,
) -> Result<Tensor>
where
    T::Math: Product,
{
    let (batch_a, rows, inner) = split_shape(a, transpose_a)?;
    let (batch_b, inner_b, columns) = split_shape(b, transpose_b)?;
    if inner != inner_b {
        return Err(KernelError::shape(OP, format!("contracted sizes {inner} and {inner_b} differ")));
    }
    let batch = broadcast_shape(OP, batch_a, batch_b)?;
    let shape = [batch.as_slice(), &[rows, columns]].concat();
    let count: usize = batch.iter().product();
    let (wide_a, wide_b) = (widen::<T>(a), widen::<T>(b));
    let mut wide = vec![T::Math::default(); shape.iter().product()];

    if batch_b.iter().all(|&n| n == 1) && !transpose_a && batch_a == batch.as_slice() {
        // One matrix for all batches: they are more rows of a single product.
        let sizes = [count * rows, inner, columns];
        product(
            sizes,
            Matrix::new(&wide_a, inner, false),
            Matrix::new(&wide_b, b.shape()[b.shape().len() - 1], transpose_b),
            &mut wide,
        );
    } else if !wide.is_empty() {
        let (of_a, of_b) = (batch_offsets(batch_a, &batch), batch_offsets(batch_b, &batch));
        let one = |(i, out): (usize, &mut [T::Math])| {
            let x = nth(&wide_a, of_a[i], rows, inner, transpose_a);
            let y = nth(&wide_b, of_b[i], inner, columns, transpose_b);
            product([rows, inner, columns], x, y, out);
        };
        if wide.len().saturating_mul(inner) < PARALLEL_PRODUCTS {
            wide.chunks_mut(rows * columns).enumerate().for_each(one);
        } else {
            wide.par_chunks_mut(rows * columns).enumerate().for_each(one);
        }
    }
    if let Some(bias) = bias {
        if broadcast_shape(OP, bias.shape(), &shape)? != shape {
            return Err(KernelError::shape(
                OP,
                format!("the bias {:?} does not fit {shape:?}", bias.shape()),
            ));
        }
        let bias = widen::<T>(&broadcast_to(bias, &shape)?);
        wide.iter_mut().zip(bias).for_each(|(x, b)| *x = x.plus(b));
    }
    Tensor::build::<T>(&shape, |out| T::narrow_slice(&wide, out))
}

/// Matrix number `at` of a batch; sizes are those after the transposition.
fn nth<M: Copy>(data: &[M], at: usize, rows: usize, columns: usize, transposed: bool) -> Matrix<'_, M> {
    let size = rows * columns;
    let stored_columns = if transposed { rows } else { columns };
    Matrix::new(data.get(at * size..(at + 1) * size).unwrap_or_default(), stored_columns, transposed)
}

/// For each batch of the result, which matrix of an operand takes part.
fn batch_offsets(own: &[usize], batch: &[usize]) -> Vec<usize> {
    let missing = batch.len() - own.len();
    (0..batch.iter().product())
        .map(|i: usize| {
            let (mut rest, mut at, mut step) = (i, 0, 1);
            for d in (0..batch.len()).rev() {
                let index = rest % batch[d];
                rest /= batch[d];
                if let Some(&n) = d.checked_sub(missing).and_then(|j| own.get(j)) {
                    if n != 1 {
                        at += index * step;
                    }
                    step *= n;
                }
            }
            at
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_broadcast() {
        let a = Tensor::new(&[2, 1, 1, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let b = Tensor::new(&[3, 2, 1], &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]).unwrap();
        let y = matmul(&a, &b, None, false, false).unwrap();
        assert_eq!(y.shape(), [2, 3, 1, 1]);
        assert_eq!(y.slice::<f32>(), [1.0, 2.0, 3.0, 3.0, 4.0, 7.0]);
        let again = matmul(&b, &a, None, true, true).unwrap();
        assert_eq!(again.slice::<f32>(), y.slice::<f32>());
        assert!(matmul(&a, &b, None, false, true).is_err());
    }

    #[test]
    fn bf16_bias_is_added_before_rounding() {
        use half::bf16;
        let t = |x: f32| Tensor::new(&[1, 1], &[bf16::from_f32(x)]).unwrap();
        // 1.0078125^2 = 1.01568603515625 rounds to 1.015625; minus 1 before rounding keeps the rest.
        let x = t(1.0078125);
        let y = matmul(&x, &x, Some(&t(-1.0)), false, false).unwrap();
        assert_eq!(y.slice::<bf16>()[0], bf16::from_f32(1.0078125f32 * 1.0078125 - 1.0));
    }
}
