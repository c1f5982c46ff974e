//! Scaled dot-product attention as PyTorch's CPU flash kernel computes it: scores and softmax in f32, keys in blocks with a
//! running maximum, probabilities rounded to the operand type before they meet the values.

use rayon::prelude::*;
use shardweld_ir::{DType, Scalar};

use crate::arith::{self, Arith, Real};
use crate::cast;
use crate::element::{Bool, Element, with_float};
use crate::error::{KernelError, Result};
use crate::gemm::{Matrix, Product, product};
use crate::layout::broadcast_to;
use crate::matmul::widen;
use crate::reduce::{LANES, sum_lanes};
use crate::tensor::Tensor;

const OP: &str = "attention";
/// Keys that one softmax step sees.
const KEYS_PER_BLOCK: usize = 512;

/// q `[.., L, E]`, k `[.., S, E]`, v `[.., S, F]`, mask broadcastable to `[.., L, S]`: additive, or bool with true for "keep".
/// A query that may see no key gives zeros.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    scale: Scalar,
    causal: bool,
) -> Result<Tensor> {
    for other in [k, v] {
        if other.dtype() != q.dtype() {
            return Err(KernelError::MixedDTypes { op: OP, first: q.dtype(), second: other.dtype() });
        }
    }
    let fail = || {
        KernelError::shape(OP, format!("q {:?}, k {:?}, v {:?} do not fit", q.shape(), k.shape(), v.shape()))
    };
    let ([batch @ .., l, e], [batch_k @ .., s, e2], [batch_v @ .., s2, f]) =
        (q.shape(), k.shape(), v.shape())
    else {
        return Err(fail());
    };
    if batch != batch_k || batch != batch_v || e != e2 || s != s2 {
        return Err(fail());
    }
    let mask = match mask {
        Some(m) => Some(broadcast_to(&additive(m, q.dtype())?, &[batch, &[*l, *s]].concat())?),
        None => None,
    };
    let sizes = Sizes { queries: *l, keys: *s, width: *e, values: *f };
    with_float!(q.dtype(), T => heads::<T>(q, k, v, mask.as_ref(), sizes, scale, causal),
        else Err(KernelError::DType { op: OP, dtype: q.dtype() }))
}

#[derive(Clone, Copy)]
struct Sizes {
    queries: usize,
    keys: usize,
    width: usize,
    values: usize,
}

/// A bool mask as 0 and -inf; others as they are.
fn additive(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        return if mask.dtype() == dtype {
            Ok(mask.clone())
        } else {
            Err(KernelError::MixedDTypes { op: OP, first: dtype, second: mask.dtype() })
        };
    }
    let wide = Tensor::build::<f64>(mask.shape(), |out| {
        for (o, keep) in out.iter_mut().zip(mask.slice::<Bool>()) {
            *o = if keep.0 != 0 { 0.0 } else { f64::NEG_INFINITY };
        }
    })?;
    cast::cast(&wide, dtype)
}

fn heads<T: Element>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    n: Sizes,
    scale: Scalar,
    causal: bool,
) -> Result<Tensor>
where
    T::Math: Real + Product,
{
    let shape = [&q.shape()[..q.shape().len() - 1], &[n.values]].concat();
    let (q, k, v) = (widen::<T>(q), widen::<T>(k), widen::<T>(v));
    let mask = mask.map(|m| widen::<T>(m));
    let scale = <T::Math as Arith>::of(scale);
    let per_head = n.queries * n.values;
    Tensor::build::<T>(&shape, |out| {
        if per_head == 0 {
            return;
        }
        out.par_chunks_mut(per_head).enumerate().for_each(|(h, out)| {
            let part = |data: &[T::Math], size: usize| data[h * size..(h + 1) * size].to_vec();
            let head = Head {
                q: part(&q, n.queries * n.width),
                k: part(&k, n.keys * n.width),
                v: part(&v, n.keys * n.values),
                mask: mask.as_ref().map(|m| part(m, n.queries * n.keys)),
            };
            T::narrow_slice(&head.run::<T>(n, scale, causal), out);
        });
    })
}

struct Head<M> {
    q: Vec<M>,
    k: Vec<M>,
    v: Vec<M>,
    mask: Option<Vec<M>>,
}

impl<M: Real + Product> Head<M> {
    fn run<T: Element<Math = M>>(&self, n: Sizes, scale: M, causal: bool) -> Vec<M> {
        let lowest = M::from_f64(f64::NEG_INFINITY);
        let (zero, one) = (M::from_f64(0.0), M::from_f64(1.0));
        let mut largest = vec![lowest; n.queries];
        let mut total = vec![zero; n.queries];
        let mut out = vec![zero; n.queries * n.values];
        let mut start = 0;
        while start < n.keys {
            let count = KEYS_PER_BLOCK.min(n.keys - start);
            let mut scores = vec![zero; n.queries * count];
            let keys = Matrix::new(&self.k[start * n.width..(start + count) * n.width], n.width, true);
            product([n.queries, n.width, count], Matrix::new(&self.q, n.width, false), keys, &mut scores);
            for (i, row) in scores.chunks_exact_mut(count).enumerate() {
                for (j, x) in row.iter_mut().enumerate() {
                    *x = match &self.mask {
                        Some(mask) => x.fma(scale, mask[i * n.keys + start + j]),
                        None => *x * scale,
                    };
                    if causal && start + j > i {
                        *x = lowest;
                    }
                }
                let next = row.iter().copied().fold(largest[i], arith::max);
                if next == lowest {
                    // No key seen yet: exp(-inf - -inf) would be NaN.
                    row.fill(zero);
                    continue;
                }
                let sum = exponentials::<T>(row, next);
                let shrink = (largest[i] - next).via(f64::exp);
                total[i] = shrink * total[i] + sum;
                largest[i] = next;
                if start > 0 {
                    out[i * n.values..(i + 1) * n.values].iter_mut().for_each(|o| *o = *o * shrink);
                }
                row.iter_mut().for_each(|x| *x = T::narrow(*x).widen());
            }
            let mut part = vec![zero; n.queries * n.values];
            let values = Matrix::new(&self.v[start * n.values..(start + count) * n.values], n.values, false);
            product([n.queries, count, n.values], Matrix::new(&scores, count, false), values, &mut part);
            out.iter_mut().zip(part).for_each(|(o, p)| *o = *o + p);
            start += count;
        }
        for (row, &sum) in out.chunks_exact_mut(n.values).zip(&total) {
            let factor = if sum == zero { one } else { one / sum };
            row.iter_mut().for_each(|o| *o = *o * factor);
        }
        out
    }
}

/// Replaces x by e^(x - largest) and gives the sum. Whole vectors use the coarse exponential, what is left over the exact one.
fn exponentials<T: Element>(row: &mut [T::Math], largest: T::Math) -> T::Math
where
    T::Math: Real + Arith,
{
    let half = T::DTYPE.size() == 2;
    let exp = if half { T::Math::exp_short } else { T::Math::exp_coarse };
    let whole = row.len() - row.len() % LANES;
    let (vectors, left_over) = row.split_at_mut(whole);
    vectors.iter_mut().for_each(|x| *x = exp(*x - largest));
    let sum = sum_lanes(vectors);
    left_over.iter_mut().fold(sum, |sum, x| {
        *x = (*x - largest).via(f64::exp);
        sum + *x
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(shape: &[usize], f: impl Fn(usize) -> f32) -> Tensor {
        let n: usize = shape.iter().product();
        Tensor::new(shape, &(0..n).map(f).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn blocks_of_keys_agree_with_one_block_seen_twice() {
        // Keys repeated beyond a block change nothing: softmax weights of copies share the weight of the original.
        let q = t(&[1, 2, 4], |i| (i as f32 * 0.7).sin());
        let k = t(&[1, 300, 4], |i| (i as f32 * 0.3).cos());
        let v = t(&[1, 300, 2], |i| (i as f32 * 0.1).sin());
        let twice = |x: &Tensor| crate::layout::concat(&[x, x], 1).unwrap();
        let scale = Scalar::Float(0.5);
        let one = attention(&q, &k, &v, None, scale, false).unwrap();
        let two = attention(&q, &twice(&k), &twice(&v), None, scale, false).unwrap();
        for (a, b) in one.slice::<f32>().iter().zip(two.slice::<f32>()) {
            assert!((a - b).abs() < 1e-6, "{a} against {b}");
        }
    }

    #[test]
    fn masks_hide_keys() {
        let q = t(&[2, 4], |i| i as f32);
        let v = t(&[3, 1], |i| i as f32 + 1.0);
        let k = t(&[3, 4], |_| 0.0);
        let scale = Scalar::Float(1.0);
        let causal = attention(&q, &k, &v, None, scale, true).unwrap();
        assert_eq!(causal.slice::<f32>(), [1.0, 1.5]);
        let keep = Tensor::new(&[1, 3], &[Bool(0), Bool(0), Bool(1)]).unwrap();
        assert_eq!(attention(&q, &k, &v, Some(&keep), scale, false).unwrap().slice::<f32>(), [3.0, 3.0]);
        let none = Tensor::new(&[1, 3], &[Bool(0); 3]).unwrap();
        assert_eq!(attention(&q, &k, &v, Some(&none), scale, false).unwrap().slice::<f32>(), [0.0, 0.0]);
        assert!(attention(&q, &t(&[3, 5], |_| 0.0), &v, None, scale, false).is_err());
    }
}
