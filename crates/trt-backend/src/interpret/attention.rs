//! The attention layer: softmax(q k^T + mask) v on `[batch, heads, tokens, size]`. The layer scales nothing.

use shardweld_interp::{Bool, KernelError, Tensor, cast, layout, matmul, pointwise, softmax};
use shardweld_ir::{Binary, DType, Scalar};

use super::layer::Result;
use crate::trace::CausalMaskKind;

/// Heads of key and value serve as many neighbouring heads of the query. A bool mask keeps where it is true; another one
/// is added to the scores.
pub(super) fn attention(
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    causal: CausalMaskKind,
) -> Result<Tensor> {
    let wide = |x: &Tensor| cast::cast(x, DType::F32);
    let heads = q.shape().get(1).copied().unwrap_or(0);
    let mut scores = matmul::matmul(&wide(q)?, &repeat_heads(&wide(k)?, heads)?, None, false, true)?;
    match mask {
        Some(keep) if keep.dtype() == DType::Bool => scores = masked(keep, &scores)?,
        Some(added) => scores = pointwise::binary(Binary::Add, &scores, &wide(added)?)?,
        None => {}
    }
    match causal {
        CausalMaskKind::None => {}
        CausalMaskKind::UpperLeft => scores = masked(&lower_triangle(scores.shape())?, &scores)?,
    }
    let weights = softmax::softmax(&scores, 3)?;
    let out = matmul::matmul(&weights, &repeat_heads(&wide(v)?, heads)?, None, false, false)?;
    cast::cast(&out, q.dtype())
}

/// -inf where the mask does not keep.
fn masked(keep: &Tensor, scores: &Tensor) -> Result<Tensor> {
    let hidden = layout::full(DType::F32, &[1; 4], Scalar::Float(f64::NEG_INFINITY))?;
    pointwise::select(keep, scores, &hidden)
}

/// `[1, 1, queries, keys]`: query i sees key j if j <= i.
fn lower_triangle(scores: &[usize]) -> Result<Tensor> {
    let &[_, _, queries, keys] = scores else { return Err(rank(scores)) };
    Tensor::build::<Bool>(&[1, 1, queries, keys], |out| {
        for (n, o) in out.iter_mut().enumerate() {
            *o = Bool(u8::from(n % keys <= n / keys));
        }
    })
}

/// Every head as often in a row as it takes to have `heads` of them.
fn repeat_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    let &[batch, own, tokens, size] = x.shape() else { return Err(rank(x.shape())) };
    if own == heads || own == 0 {
        return Ok(x.clone());
    }
    let split = x.reshaped(&[batch, own, 1, tokens, size])?;
    layout::broadcast_to(&split, &[batch, own, heads / own, tokens, size])?
        .reshaped(&[batch, heads, tokens, size])
}

fn rank(shape: &[usize]) -> KernelError {
    KernelError::Shape { op: "attention", reason: format!("{shape:?} must have four dimensions") }
}
