//! Rules of the ops that contract dimensions: matmul, attention, convolution.

use super::{
    InferError, Result, broadcast_right, broadcast_same_rank, dtype_error, float, same_dtype, shape_error,
    static_dims,
};
use crate::types::{DType, Shape, TensorType};

pub(super) fn matmul(operands: &[&TensorType], transpose_a: bool, transpose_b: bool) -> Result<TensorType> {
    let (a, b, bias) = match operands {
        [a, b] => (a, b, None),
        [a, b, c] => (a, b, Some(c)),
        _ => return Err(InferError::Arity { expected: "2 or 3".into(), found: operands.len() }),
    };
    same_dtype(a, b)?;
    if a.dtype == DType::Bool {
        return dtype_error("matmul of bool");
    }
    if a.rank() < 2 || b.rank() < 2 {
        return shape_error(format!("matmul of {a} and {b}; both need two dimensions or more"));
    }
    let last_two = |t: &TensorType, transposed: bool| {
        let r = t.rank();
        let (x, y) = (t.shape.0[r - 2].clone(), t.shape.0[r - 1].clone());
        if transposed { (y, x) } else { (x, y) }
    };
    let ((m, k), (k2, n)) = (last_two(a, transpose_a), last_two(b, transpose_b));
    if k != k2 {
        return shape_error(format!(
            "contracted sizes differ: {k} of {a} (transposed: {transpose_a}) and {k2} of {b} (transposed: {transpose_b})"
        ));
    }
    let mut dims = broadcast_right(&a.shape.0[..a.rank() - 2], &b.shape.0[..b.rank() - 2])?;
    dims.extend([m, n]);
    let shape = Shape(dims);
    if let Some(c) = bias {
        same_dtype(a, c)?;
        if broadcast_right(&c.shape.0, &shape.0)? != shape.0 {
            return shape_error(format!("the bias {} does not broadcast to {shape}", c.shape));
        }
    }
    Ok(TensorType { dtype: a.dtype, shape })
}

pub(super) fn attention(operands: &[&TensorType], mask: bool) -> Result<TensorType> {
    let (q, k, v, m) = match (operands, mask) {
        ([q, k, v], false) => (q, k, v, None),
        ([q, k, v, m], true) => (q, k, v, Some(m)),
        _ => {
            return Err(InferError::Arity {
                expected: (3 + usize::from(mask)).to_string(),
                found: operands.len(),
            });
        }
    };
    float(q)?;
    same_dtype(q, k)?;
    same_dtype(q, v)?;
    let r = q.rank();
    if r < 2 || k.rank() != r || v.rank() != r {
        return shape_error(format!("q {q}, k {k}, v {v} need one rank of 2 or more"));
    }
    let batch = |t: &TensorType| t.shape.0[..r - 2].to_vec();
    if batch(q) != batch(k) || batch(q) != batch(v) {
        return shape_error(format!("batch dimensions of q {q}, k {k}, v {v} differ"));
    }
    if q.shape.0[r - 1] != k.shape.0[r - 1] || k.shape.0[r - 2] != v.shape.0[r - 2] {
        return shape_error(format!("q {q}, k {k}, v {v}: need q [.., L, E], k [.., S, E], v [.., S, F]"));
    }
    if let Some(m) = m {
        if m.dtype != DType::Bool && m.dtype != q.dtype {
            return dtype_error(format!("the mask is {}, expected bool or {}", m.dtype, q.dtype));
        }
        let mut scores = batch(q);
        scores.extend([q.shape.0[r - 2].clone(), k.shape.0[r - 2].clone()]);
        let scores = Shape(scores);
        if broadcast_same_rank(&m.shape, &scores)? != scores {
            return shape_error(format!("the mask {} does not broadcast to {scores}", m.shape));
        }
    }
    let mut dims = batch(q);
    dims.extend([q.shape.0[r - 2].clone(), v.shape.0[r - 1].clone()]);
    Ok(TensorType { dtype: q.dtype, shape: Shape(dims) })
}

pub(super) fn conv(
    operands: &[&TensorType],
    stride: &[u64],
    padding: &[(u64, u64)],
    dilation: &[u64],
    groups: u64,
    bias: bool,
) -> Result<TensorType> {
    let expected = 2 + usize::from(bias);
    if operands.len() != expected {
        return Err(InferError::Arity { expected: expected.to_string(), found: operands.len() });
    }
    let (x, w) = (operands[0], operands[1]);
    float(x)?;
    same_dtype(x, w)?;
    let spatial = stride.len();
    if spatial == 0
        || padding.len() != spatial
        || dilation.len() != spatial
        || x.rank() != spatial + 2
        || w.rank() != spatial + 2
    {
        return shape_error(format!(
            "x {x}, weight {w} and attributes for {spatial} spatial dimensions disagree"
        ));
    }
    let (xs, ws) = (static_dims(&x.shape)?, static_dims(&w.shape)?);
    if groups == 0 || ws[0] % groups != 0 || ws[1].checked_mul(groups) != Some(xs[1]) {
        return shape_error(format!("x {x} and weight {w} do not fit {groups} channel groups"));
    }
    if bias {
        same_dtype(x, operands[2])?;
        if operands[2].shape != Shape::of(&[ws[0]]) {
            return shape_error(format!("the bias is {}, expected [{}]", operands[2].shape, ws[0]));
        }
    }
    let mut dims = vec![xs[0], ws[0]];
    for i in 0..spatial {
        let reach =
            ws[i + 2].checked_sub(1).and_then(|k| k.checked_mul(dilation[i])).and_then(|k| k.checked_add(1));
        let padded = xs[i + 2].checked_add(padding[i].0).and_then(|n| n.checked_add(padding[i].1));
        match (padded, reach) {
            (Some(p), Some(r)) if stride[i] > 0 && dilation[i] > 0 && p >= r => {
                dims.push((p - r) / stride[i] + 1)
            }
            _ => {
                return shape_error(format!(
                    "spatial dimension {i}: weight {w} does not fit x {x} with its padding"
                ));
            }
        }
    }
    Ok(TensorType::new(x.dtype, &dims))
}
