//! Layer and RMS normalisation over trailing dimensions, in f32 for f16 and bf16, rounded once.

use shardweld_ir::{NormKind, Scalar};

use crate::arith::{Arith, Real};
use crate::element::{Element, with_float};
use crate::error::{KernelError, Result};
use crate::reduce::sum_contiguous;
use crate::tensor::Tensor;

/// Normalisation of x over its last `trailing` dimensions; scale and bias have the normalised shape and x's type.
pub fn normalize(
    x: &Tensor,
    scale: Option<&Tensor>,
    bias: Option<&Tensor>,
    kind: NormKind,
    trailing: u32,
    epsilon: Scalar,
) -> Result<Tensor> {
    let op = kind.name();
    let first = x.shape().len().checked_sub(trailing as usize).ok_or_else(|| {
        KernelError::shape(op, format!("{trailing} trailing dimensions of {:?}", x.shape()))
    })?;
    let normalised = &x.shape()[first..];
    for w in scale.iter().chain(&bias) {
        if w.dtype() != x.dtype() {
            return Err(KernelError::MixedDTypes { op, first: x.dtype(), second: w.dtype() });
        }
        if w.shape() != normalised {
            return Err(KernelError::shape(
                op,
                format!("scale or bias {:?}, expected {normalised:?}", w.shape()),
            ));
        }
    }
    let length = normalised.iter().product();
    with_float!(x.dtype(), T => rows_of::<T>(x, scale, bias, kind, length, epsilon),
        else Err(KernelError::DType { op, dtype: x.dtype() }))
}

fn rows_of<T: Element>(
    x: &Tensor,
    scale: Option<&Tensor>,
    bias: Option<&Tensor>,
    kind: NormKind,
    length: usize,
    epsilon: Scalar,
) -> Result<Tensor>
where
    T::Math: Real + Arith,
{
    let widened = |w: Option<&Tensor>| {
        w.map(|w| {
            let mut wide = vec![T::Math::default(); length];
            T::widen_slice(w.slice::<T>(), &mut wide);
            wide
        })
    };
    let (scale, bias) = (widened(scale), widened(bias));
    let epsilon = <T::Math as Arith>::of(epsilon);
    let from = x.slice::<T>();
    Tensor::build::<T>(x.shape(), |out| {
        if length == 0 {
            return;
        }
        let mut row = vec![T::Math::default(); length];
        for (from, out) in from.chunks_exact(length).zip(out.chunks_exact_mut(length)) {
            T::widen_slice(from, &mut row);
            match kind {
                NormKind::Layer => layer(&mut row, epsilon, scale.as_deref(), bias.as_deref()),
                NormKind::Rms => rms(&mut row, epsilon, scale.as_deref(), bias.as_deref()),
            }
            T::narrow_slice(&row, out);
        }
    })
}

/// (x - mean) / sqrt(variance + epsilon), then scale and bias in one fused step. Moments are taken in f64.
fn layer<R: Real>(row: &mut [R], epsilon: R, scale: Option<&[R]>, bias: Option<&[R]>) {
    let n = row.len() as f64;
    let mean = row.iter().map(|v| v.to_f64()).sum::<f64>() / n;
    let variance = row.iter().map(|v| (v.to_f64() - mean).powi(2)).sum::<f64>() / n;
    let (mean, one) = (R::from_f64(mean), R::from_f64(1.0));
    let factor = one / (R::from_f64(variance) + epsilon).via(f64::sqrt);
    for (i, v) in row.iter_mut().enumerate() {
        let y = (*v - mean) * factor;
        *v = match (scale, bias) {
            (None, None) => y,
            (Some(s), None) => y * s[i],
            (None, Some(b)) => y + b[i],
            (Some(s), Some(b)) => y.fma(s[i], b[i]),
        };
    }
}

/// x * (1 / sqrt(mean square + epsilon)), then scale, then bias.
fn rms<R: Real + Arith>(row: &mut [R], epsilon: R, scale: Option<&[R]>, bias: Option<&[R]>) {
    let squares: Vec<R> = row.iter().map(|&v| v * v).collect();
    let mean = sum_contiguous(&squares, false) / R::from_f64(row.len() as f64);
    let factor = R::from_f64(1.0) / (mean + epsilon).via(f64::sqrt);
    for (i, v) in row.iter_mut().enumerate() {
        let mut y = *v * factor;
        if let Some(s) = scale {
            y = y * s[i];
        }
        if let Some(b) = bias {
            y = y + b[i];
        }
        *v = y;
    }
}
