//! Shape and type rules of TensorRT's layers: from a call and its operands to the type of its result, or the rule that is
//! broken.

use shardweld_ir::{DType, Literal};

use super::NetworkTrace;
use super::call::{ActivationType, Call, ElementWiseOperation, TensorId, UnaryOperation};

/// Most dimensions of a TensorRT tensor (`Dims::MAX_DIMS`).
pub const MAX_DIMS: usize = 8;

/// Element type and shape.
pub(super) type Inferred = Result<(DType, Vec<u64>), String>;

pub(super) fn elements(dims: &[u64]) -> u64 {
    dims.iter().fold(1u64, |n, &d| n.saturating_mul(d))
}

/// Whether TensorRT has the type at all, and the shape is one.
pub(super) fn check_type(dtype: DType, dims: &[u64]) -> Result<(), String> {
    if dtype == DType::F64 {
        return Err("TensorRT has no f64".into());
    }
    if dims.len() > MAX_DIMS {
        return Err(format!("shape {dims:?} has more than {MAX_DIMS} dimensions"));
    }
    let bytes = dims.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d));
    if bytes.is_none_or(|b| b > i64::MAX as u64) {
        return Err(format!("shape {dims:?} is larger than memory can be"));
    }
    Ok(())
}

fn broadcast(a: &[u64], b: &[u64]) -> Result<Vec<u64>, String> {
    if a.len() != b.len() {
        return Err(format!("{a:?} and {b:?} differ in rank"));
    }
    a.iter()
        .zip(b)
        .map(|(&x, &y)| match (x, y) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(format!("{a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

fn axis_ok(axis: u32, dims: &[u64]) -> Result<usize, String> {
    if (axis as usize) < dims.len() {
        Ok(axis as usize)
    } else {
        Err(format!("dimension {axis} of {dims:?}"))
    }
}

fn float_only(dtype: DType) -> Result<(), String> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(format!("operand is {other}, expected f32, f16 or bf16")),
    }
}

fn same(a: DType, b: DType) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("operand types {a} and {b} differ")) }
}

/// Result type of a call; operands are in the trace.
pub(super) fn infer(call: &Call, trace: &NetworkTrace) -> Inferred {
    let ty = |t: TensorId| -> Result<(DType, &[u64]), String> {
        trace
            .layers
            .get(t.index())
            .map(|l| (l.dtype, l.dims.as_slice()))
            .ok_or_else(|| format!("tensor #{} does not exist", t.0))
    };
    let (dtype, dims) = match call {
        Call::Input | Call::Weight(_) => return Err("is added by a function of its own".into()),
        Call::Constant(literal) => literal_type(literal)?,
        Call::Cast { input, to } => {
            let (d, dims) = ty(*input)?;
            castable(d, *to)?;
            (*to, dims.to_vec())
        }
        Call::Unary { input, op } => {
            let (d, dims) = ty(*input)?;
            (unary_type(*op, d)?, dims.to_vec())
        }
        Call::ElementWise { a, b, op } => {
            let ((da, a), (db, b)) = (ty(*a)?, ty(*b)?);
            same(da, db)?;
            (elementwise_type(*op, da)?, broadcast(a, b)?)
        }
        Call::Activation { input, op } => {
            let (d, dims) = ty(*input)?;
            // RELU alone also takes integers.
            if !(*op == ActivationType::Relu && matches!(d, DType::I32 | DType::I64)) {
                float_only(d)?;
            }
            (d, dims.to_vec())
        }
        Call::Select { condition, then_input, else_input } => {
            let (c, x, y) = (ty(*condition)?, ty(*then_input)?, ty(*else_input)?);
            same(c.0, DType::Bool)?;
            same(x.0, y.0)?;
            (x.0, broadcast(c.1, &broadcast(x.1, y.1)?)?)
        }
        Call::MatMul { a, transpose_a, b, transpose_b } => {
            let ((da, a), (db, b)) = (ty(*a)?, ty(*b)?);
            same(da, db)?;
            float_only(da)?;
            (da, matmul_dims(a, *transpose_a, b, *transpose_b)?)
        }
        Call::Reduce { input, axes, keep_dims, .. } => {
            let (d, dims) = ty(*input)?;
            if matches!(d, DType::Bool | DType::U8 | DType::F8E4M3) {
                return Err(format!("reduction of {d}"));
            }
            if axes.is_empty() {
                return Err("reduces no dimension".into());
            }
            for &a in axes {
                axis_ok(a, dims)?;
            }
            let kept =
                dims.iter().enumerate().filter_map(|(i, &n)| match (axes.contains(&(i as u32)), keep_dims) {
                    (false, _) => Some(n),
                    (true, true) => Some(1),
                    (true, false) => None,
                });
            (d, kept.collect())
        }
        Call::Softmax { input, axis } => {
            let (d, dims) = ty(*input)?;
            float_only(d)?;
            axis_ok(*axis, dims)?;
            (d, dims.to_vec())
        }
        Call::Normalization { input, scale, bias, axes, .. } => {
            let ((d, dims), (ds, s), (db, b)) = (ty(*input)?, ty(*scale)?, ty(*bias)?);
            float_only(d)?;
            same(d, ds)?;
            same(d, db)?;
            for &a in axes {
                axis_ok(a, dims)?;
            }
            if s != b || broadcast(dims, s)? != dims {
                return Err(format!("scale {s:?} and bias {b:?} do not broadcast to {dims:?}"));
            }
            (d, dims.to_vec())
        }
        Call::Attention { query, key, value, mask, .. } => {
            let ((d, q), (dk, k), (dv, v)) = (ty(*query)?, ty(*key)?, ty(*value)?);
            float_only(d)?;
            same(d, dk)?;
            same(d, dv)?;
            let fits = q.len() == 4
                && k.len() == 4
                && v.len() == 4
                && q[..2] == k[..2]
                && q[..2] == v[..2]
                && q[3] == k[3]
                && q[3] == v[3]
                && k[2] == v[2];
            if !fits {
                return Err(format!("query {q:?}, key {k:?}, value {v:?} do not fit"));
            }
            if let Some(m) = mask {
                let (dm, m) = ty(*m)?;
                if dm != DType::Bool {
                    same(d, dm)?;
                }
                if m.len() != 4
                    || m[2..] != [q[2], k[2]]
                    || m[..2].iter().zip(&q[..2]).any(|(&m, &q)| m != 1 && m != q)
                {
                    return Err(format!("mask {m:?} does not fit query {q:?} and key {k:?}"));
                }
            }
            (d, q.to_vec())
        }
        Call::Shuffle { input, first, reshape, second } => {
            let (d, dims) = ty(*input)?;
            let mut dims = dims.to_vec();
            if let Some(p) = first {
                dims = permuted(&dims, p)?;
            }
            if let Some(r) = reshape {
                if elements(&dims) != elements(r) {
                    return Err(format!("{dims:?} reshaped to {r:?}"));
                }
                dims.clone_from(r);
            }
            if let Some(p) = second {
                dims = permuted(&dims, p)?;
            }
            (d, dims)
        }
        Call::Slice { input, start, size, stride, fill } => {
            let (d, dims) = ty(*input)?;
            if [start.len(), size.len(), stride.len()] != [dims.len(); 3] {
                return Err(format!("start, size or stride do not have the {} dimensions", dims.len()));
            }
            if let Some(f) = fill {
                let (df, f) = ty(*f)?;
                same(d, df)?;
                if !f.is_empty() {
                    return Err(format!("the fill value has shape {f:?}, expected a scalar"));
                }
            } else {
                for i in 0..dims.len() {
                    let last =
                        i128::from(start[i]) + i128::from(size[i].saturating_sub(1)) * i128::from(stride[i]);
                    if size[i] > 0 && (start[i] < 0 || last >= i128::from(dims[i])) {
                        return Err(format!(
                            "reads {}..={last} of dimension {i}, which has {}",
                            start[i], dims[i]
                        ));
                    }
                }
            }
            (d, size.clone())
        }
        Call::Concat { inputs, axis } => {
            let Some((&first, rest)) = inputs.split_first() else {
                return Err("concatenates nothing".into());
            };
            let (d, dims) = ty(first)?;
            let axis = axis_ok(*axis, dims)?;
            let mut dims = dims.to_vec();
            for &x in rest {
                let (dx, x) = ty(x)?;
                same(d, dx)?;
                let others =
                    |a: &[u64]| a.iter().enumerate().all(|(i, n)| i == axis || Some(n) == dims.get(i));
                if x.len() != dims.len() || !others(x) {
                    return Err(format!("{x:?} does not continue {dims:?} along {axis}"));
                }
                dims[axis] = dims[axis].saturating_add(x[axis]);
            }
            (d, dims)
        }
        Call::Gather { data, indices, axis, elements } => {
            let ((d, data), (di, index)) = (ty(*data)?, ty(*indices)?);
            if !matches!(di, DType::I32 | DType::I64) {
                return Err(format!("indices are {di}, expected i32 or i64"));
            }
            let axis = axis_ok(*axis, data)?;
            if *elements {
                if index.len() != data.len() {
                    return Err(format!("indices {index:?} and data {data:?} differ in rank"));
                }
                (d, index.to_vec())
            } else {
                (d, [&data[..axis], index, &data[axis + 1..]].concat())
            }
        }
        Call::Convolution { input, kernel, bias, stride, pre_padding, post_padding, dilation, groups } => {
            let ((d, x), (dk, k)) = (ty(*input)?, ty(*kernel)?);
            float_only(d)?;
            same(d, dk)?;
            let spatial = stride.len();
            let fits = (2..=3).contains(&spatial)
                && [pre_padding.len(), post_padding.len(), dilation.len()] == [spatial; 3]
                && [x.len(), k.len()] == [spatial + 2; 2]
                && *groups > 0
                && k[1].checked_mul(*groups) == Some(x[1])
                && k[0] % groups == 0
                && stride.iter().chain(dilation).all(|&s| s > 0);
            if !fits {
                return Err(format!(
                    "{x:?} with kernel {k:?}: 2 or 3 spatial dimensions that fit are needed"
                ));
            }
            if let Some(b) = bias {
                let (db, b) = ty(*b)?;
                same(d, db)?;
                if b != [k[0]] {
                    return Err(format!("bias {b:?}, expected [{}]", k[0]));
                }
            }
            let mut dims = vec![x[0], k[0]];
            for i in 0..spatial {
                let padded = x[i + 2].saturating_add(pre_padding[i]).saturating_add(post_padding[i]);
                let reach = k[i + 2].saturating_sub(1).saturating_mul(dilation[i]).saturating_add(1);
                let Some(room) = padded.checked_sub(reach) else {
                    return Err(format!("kernel {k:?} is larger than the padded {x:?}"));
                };
                dims.push(room / stride[i] + 1);
            }
            (d, dims)
        }
        Call::Collective { input, collective } => {
            let (d, dims) = ty(*input)?;
            (d, collective.result_dims(d, dims).map_err(|e| e.to_string())?)
        }
    };
    check_type(dtype, &dims)?;
    Ok((dtype, dims))
}

/// u8 converts to and from f32 and f16 only; fp8 needs quantisation, which has a scale.
fn castable(from: DType, to: DType) -> Result<(), String> {
    let narrow = |d| matches!(d, DType::F32 | DType::F16);
    let ok = match (from, to) {
        (DType::F8E4M3, _) | (_, DType::F8E4M3) => false,
        (DType::U8, other) | (other, DType::U8) => narrow(other),
        _ => true,
    };
    if ok { Ok(()) } else { Err(format!("conversion from {from} to {to}")) }
}

/// Constants of 8 bits count as quantised: only a layer that dequantises may read them.
pub(super) fn constant_type(dtype: DType) -> Result<(), String> {
    match dtype {
        DType::I8 | DType::U8 | DType::F8E4M3 => Err(format!("a constant of {dtype}")),
        _ => Ok(()),
    }
}

fn literal_type(literal: &Literal) -> Inferred {
    if !literal.is_valid() {
        return Err("the literal's data do not fill its type".into());
    }
    constant_type(literal.ty.dtype)?;
    match literal.ty.shape.as_static() {
        Some(dims) => Ok((literal.ty.dtype, dims)),
        None => Err("the literal has symbolic sizes".into()),
    }
}

fn unary_type(op: UnaryOperation, d: DType) -> Result<DType, String> {
    use UnaryOperation as U;
    let float = matches!(d, DType::F32 | DType::F16 | DType::BF16);
    let ok = match op {
        U::Not => d == DType::Bool,
        U::Abs | U::Neg | U::Sign => float || matches!(d, DType::I8 | DType::I32 | DType::I64),
        _ => float,
    };
    match (ok, op) {
        (true, U::IsInf | U::IsNan) => Ok(DType::Bool),
        (true, _) => Ok(d),
        (false, _) => Err(format!("{} of {d}", op.name())),
    }
}

fn elementwise_type(op: ElementWiseOperation, d: DType) -> Result<DType, String> {
    use ElementWiseOperation as E;
    let number = matches!(d, DType::F32 | DType::F16 | DType::BF16 | DType::I8 | DType::I32 | DType::I64);
    let (ok, result) = match op {
        E::And | E::Or | E::Xor => (d == DType::Bool, d),
        E::Equal => (number || d == DType::Bool, DType::Bool),
        E::Greater | E::Less => (number, DType::Bool),
        _ => (number, d),
    };
    if ok { Ok(result) } else { Err(format!("{} of {d}", op.name())) }
}

fn matmul_dims(a: &[u64], ta: bool, b: &[u64], tb: bool) -> Result<Vec<u64>, String> {
    let n = a.len();
    if n < 2 || b.len() != n {
        return Err(format!("{a:?} and {b:?}: equal rank of at least 2 is needed"));
    }
    let last = |x: &[u64], t: bool| if t { (x[n - 1], x[n - 2]) } else { (x[n - 2], x[n - 1]) };
    let ((m, k), (k2, c)) = (last(a, ta), last(b, tb));
    if k != k2 {
        return Err(format!("contracted sizes {k} and {k2} of {a:?} and {b:?} differ"));
    }
    let mut dims = broadcast(&a[..n - 2], &b[..n - 2])?;
    dims.extend([m, c]);
    Ok(dims)
}

fn permuted(dims: &[u64], perm: &[u32]) -> Result<Vec<u64>, String> {
    let mut seen = vec![false; dims.len()];
    let ok = perm.len() == dims.len()
        && perm.iter().all(|&p| seen.get_mut(p as usize).is_some_and(|s| !std::mem::replace(s, true)));
    if !ok {
        return Err(format!("{perm:?} is no permutation of {} dimensions", dims.len()));
    }
    Ok(perm.iter().map(|&p| dims[p as usize]).collect())
}
