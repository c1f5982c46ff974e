//! Elementwise ops: operands are widened a chunk at a time, computed, and rounded once.

use half::{bf16, f16};
use rayon::prelude::*;
use shardweld_ir::{Binary, DType, Scalar, Unary};

use crate::arith::{self, Arith, Real};
use crate::element::{Bool, Element, with_element};
use crate::error::{KernelError, Result};
use crate::layout::{broadcast_shape, broadcast_to};
use crate::tensor::Tensor;

/// Elements that are widened at a time; a few of these stay in the first-level cache.
const CHUNK: usize = 1024;
/// Below this many elements handing chunks to other threads costs more than it gains.
const PARALLEL_ELEMENTS: usize = 1 << 16;

/// Calls `f(first element, part of out)` for every chunk.
fn for_chunks<T: Element>(out: &mut [T], f: impl Fn(usize, &mut [T]) -> Result<()> + Sync) -> Result<()> {
    if out.len() < PARALLEL_ELEMENTS {
        out.chunks_mut(CHUNK).enumerate().try_for_each(|(i, part)| f(i * CHUNK, part))
    } else {
        out.par_chunks_mut(CHUNK).enumerate().try_for_each(|(i, part)| f(i * CHUNK, part))
    }
}

/// Elementwise function of one operand.
pub fn unary(op: Unary, x: &Tensor) -> Result<Tensor> {
    let dtype = x.dtype();
    match (op, dtype) {
        (Unary::Not, DType::Bool) => return compare_scalar(Binary::Eq, x, Scalar::Bool(false)),
        // PyTorch takes other library functions for these than for f32.
        (Unary::Exp, DType::F16) => return map::<f16>(x, half_exp),
        (Unary::Exp, DType::BF16) => return map::<bf16>(x, half_exp),
        (Unary::Gelu, DType::F16) => return map::<f16>(x, half_gelu),
        (Unary::Erf, DType::F16) => return map::<f16>(x, half_erf),
        (Unary::Erf, DType::BF16) => return map::<bf16>(x, half_erf),
        _ if op.is_predicate() => {
            return with_element!(dtype, T => Tensor::try_build::<Bool>(x.shape(), |out| {
                let x = x.slice::<T>();
                for_chunks(out, |at, out| {
                    let mut wide = [Default::default(); CHUNK];
                    let wide = &mut wide[..out.len()];
                    T::widen_slice(&x[at..at + out.len()], wide);
                    <T as Element>::Math::test(op, wide, out);
                    Ok(())
                })
            }));
        }
        _ => {}
    }
    with_element!(dtype, T => map::<T>(x, |v| <T as Element>::Math::unary(op, v))).map_err(|e| name(e, dtype))
}

fn half_exp(x: &mut [f32]) -> Result<()> {
    x.iter_mut().for_each(|v| *v = v.exp_vector());
    Ok(())
}

fn half_erf(x: &mut [f32]) -> Result<()> {
    x.iter_mut().for_each(|v| *v = v.erf_vectorised());
    Ok(())
}

fn half_gelu(x: &mut [f32]) -> Result<()> {
    x.iter_mut().for_each(|v| *v = arith::gelu(*v, Real::erf_vectorised));
    Ok(())
}

/// Puts the stored element type into an error that names the type computed in.
fn name(e: KernelError, dtype: DType) -> KernelError {
    match e {
        KernelError::DType { op, .. } => KernelError::DType { op, dtype },
        other => other,
    }
}

fn map<T: Element>(x: &Tensor, f: impl Fn(&mut [T::Math]) -> Result<()> + Sync) -> Result<Tensor> {
    let from = x.slice::<T>();
    Tensor::try_build::<T>(x.shape(), |out| {
        for_chunks(out, |at, out| {
            let mut wide = [T::Math::default(); CHUNK];
            let wide = &mut wide[..out.len()];
            T::widen_slice(&from[at..at + out.len()], wide);
            f(wide)?;
            T::narrow_slice(wide, out);
            Ok(())
        })
    })
}

/// An operand of a two-operand function: a tensor of the result's shape, or one number in the type computed in.
enum Side<'a, T: Element> {
    Full(&'a [T]),
    One(T::Math),
}

impl<T: Element> Side<'_, T> {
    fn widen(&self, at: usize, wide: &mut [T::Math]) {
        match self {
            Side::Full(s) => T::widen_slice(&s[at..at + wide.len()], wide),
            Side::One(x) => wide.fill(*x),
        }
    }
}

fn zip<T: Element, O: Element>(
    shape: &[usize],
    a: &Side<'_, T>,
    b: &Side<'_, T>,
    f: impl Fn(&[T::Math], &[T::Math], &mut [O]) -> Result<()> + Sync,
) -> Result<Tensor>
where
    T::Math: Arith,
{
    Tensor::try_build::<O>(shape, |out| {
        for_chunks(out, |at, out| {
            let (mut x, mut y) = ([T::Math::default(); CHUNK], [T::Math::default(); CHUNK]);
            let (x, y) = (&mut x[..out.len()], &mut y[..out.len()]);
            a.widen(at, x);
            b.widen(at, y);
            f(x, y, out)
        })
    })
}

fn apply<T: Element>(op: Binary, shape: &[usize], a: &Side<'_, T>, b: &Side<'_, T>) -> Result<Tensor>
where
    T::Math: Arith,
{
    if op.is_comparison() {
        return zip::<T, Bool>(shape, a, b, |x, y, out| {
            arith::compare(op, x, y, out);
            Ok(())
        });
    }
    zip::<T, T>(shape, a, b, |x, y, out| {
        let mut wide = [T::Math::default(); CHUNK];
        let wide = &mut wide[..out.len()];
        T::Math::binary(op, x, y, wide)?;
        T::narrow_slice(wide, out);
        Ok(())
    })
}

/// Elementwise function of two operands of one element type; sizes of 1 are repeated.
pub fn binary(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dtype() != b.dtype() {
        return Err(KernelError::MixedDTypes { op: op.name(), first: a.dtype(), second: b.dtype() });
    }
    if op == Binary::TruncDiv && a.dtype().op_math() != a.dtype() {
        // In half precision the quotient rounds before it is truncated.
        return unary(Unary::Trunc, &binary(Binary::Div, a, b)?);
    }
    let shape = broadcast_shape(op.name(), a.shape(), b.shape())?;
    with_element!(a.dtype(), T => {
        let (wide_a, wide_b);
        let x = if a.elements() == 1 {
            Side::One(a.slice::<T>()[0].widen())
        } else {
            wide_a = broadcast_to(a, &shape)?;
            Side::Full(wide_a.slice::<T>())
        };
        let y = if b.elements() == 1 {
            Side::One(b.slice::<T>()[0].widen())
        } else {
            wide_b = broadcast_to(b, &shape)?;
            Side::Full(wide_b.slice::<T>())
        };
        apply::<T>(op, &shape, &x, &y)
    })
    .map_err(|e| name(e, a.dtype()))
}

/// Elementwise function of a tensor and a number, which is rounded only to the type computed in.
pub fn binary_scalar(op: Binary, x: &Tensor, scalar: Scalar, scalar_first: bool) -> Result<Tensor> {
    // PyTorch computes powers of f16 by the general function.
    let by_steps = op == Binary::Pow && !scalar_first && x.dtype().is_float() && x.dtype() != DType::F16;
    if by_steps && let Some(result) = simple_power(x, scalar.as_f64()) {
        return result;
    }
    with_element!(x.dtype(), T => {
        let (full, one) = (Side::Full(x.slice::<T>()), Side::<T>::One(<T as Element>::Math::of(scalar)));
        let (a, b) = if scalar_first { (&one, &full) } else { (&full, &one) };
        apply::<T>(op, x.shape(), a, b)
    })
    .map_err(|e| name(e, x.dtype()))
}

fn compare_scalar(op: Binary, x: &Tensor, scalar: Scalar) -> Result<Tensor> {
    binary_scalar(op, x, scalar, false)
}

/// Powers that are products, square roots and reciprocals; each such step rounds by itself, as PyTorch's do.
fn simple_power(x: &Tensor, exponent: f64) -> Option<Result<Tensor>> {
    let square = || binary(Binary::Mul, x, x);
    Some(match exponent {
        2.0 => square(),
        3.0 => square().and_then(|s| binary(Binary::Mul, &s, x)),
        0.5 => unary(Unary::Sqrt, x),
        -0.5 => unary(Unary::Rsqrt, x),
        -1.0 => unary(Unary::Recip, x),
        -2.0 => square().and_then(|s| unary(Unary::Recip, &s)),
        _ => return None,
    })
}

/// a where the condition holds, b elsewhere. Bytes are moved, not computed with.
pub fn select(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    const OP: &str = "select";
    if condition.dtype() != DType::Bool {
        return Err(KernelError::DType { op: OP, dtype: condition.dtype() });
    }
    if a.dtype() != b.dtype() {
        return Err(KernelError::MixedDTypes { op: OP, first: a.dtype(), second: b.dtype() });
    }
    let shape = broadcast_shape(OP, &broadcast_shape(OP, condition.shape(), a.shape())?, b.shape())?;
    let (c, a, b) = (broadcast_to(condition, &shape)?, broadcast_to(a, &shape)?, broadcast_to(b, &shape)?);
    with_element!(a.dtype(), T => Tensor::build::<T>(&shape, |out| {
        let sides = a.slice::<T>().iter().zip(b.slice::<T>());
        for ((o, c), (x, y)) in out.iter_mut().zip(c.slice::<Bool>()).zip(sides) {
            *o = if c.0 != 0 { *x } else { *y };
        }
    }))
}
