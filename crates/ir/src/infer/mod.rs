//! Shape and dtype rules: from an op and its operand types to its result types, or the rule that is broken.

mod contraction;

use thiserror::Error;

use crate::literal::Scalar;
use crate::mesh::{Group, Mesh, MeshError};
use crate::op::{Binary, Collective, GatherMode, Op, ReduceKind, ReduceOp, Unary};
use crate::types::{DType, Dim, Shape, TensorType};
use crate::weight::Weight;
use contraction::{attention, conv, matmul};

/// Most dimensions of a tensor (TensorRT's `Dims::MAX_DIMS`).
pub const MAX_RANK: usize = 8;

/// A broken shape or dtype rule. The graph adds the node's name.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum InferError {
    /// Wrong number of operands.
    #[error("takes {expected} operands, found {found}")]
    Arity {
        /// Number needed, as text.
        expected: String,
        /// Number found.
        found: usize,
    },
    /// A rule about shapes.
    #[error("{0}")]
    Shape(String),
    /// A rule about element types.
    #[error("{0}")]
    DType(String),
    /// A rule about attributes.
    #[error("{0}")]
    Attribute(String),
    /// The group is no group of this mesh.
    #[error(transparent)]
    Group(#[from] MeshError),
}

type Result<T> = std::result::Result<T, InferError>;

fn shape_error<T>(text: impl Into<String>) -> Result<T> {
    Err(InferError::Shape(text.into()))
}
fn dtype_error<T>(text: impl Into<String>) -> Result<T> {
    Err(InferError::DType(text.into()))
}
fn attribute_error<T>(text: impl Into<String>) -> Result<T> {
    Err(InferError::Attribute(text.into()))
}

/// Result types of `op` on operands of the given types.
///
/// # Errors
/// The first rule broken, with what was found and what was expected.
pub fn infer(op: &Op, operands: &[&TensorType], mesh: &Mesh, weights: &[Weight]) -> Result<Vec<TensorType>> {
    let results = infer_unchecked(op, operands, mesh, weights)?;
    results.iter().try_for_each(check_result)?;
    Ok(results)
}

/// What holds for the type of every value, inputs included.
pub(crate) fn check_result(r: &TensorType) -> Result<()> {
    if r.rank() > MAX_RANK {
        return shape_error(format!("result {r} has {} dimensions; at most {MAX_RANK}", r.rank()));
    }
    // A size that overflows can never be stored; refusing it here keeps later arithmetic safe.
    if r.shape.as_static().is_some() && r.bytes().is_none_or(|b| b > i64::MAX as u64) {
        return shape_error(format!("result {r} is larger than memory can be"));
    }
    Ok(())
}

fn infer_unchecked(
    op: &Op,
    operands: &[&TensorType],
    mesh: &Mesh,
    weights: &[Weight],
) -> Result<Vec<TensorType>> {
    let one = |ty: TensorType| Ok(vec![ty]);
    match op {
        Op::Input { .. } => attribute_error("an input is declared with its type, through `add_input`"),
        Op::Weight(id) => {
            let [] = arity(operands)?;
            match weights.get(id.0 as usize) {
                Some(w) => one(w.ty.clone()),
                None => attribute_error(format!("weight #{} is not in the table of {}", id.0, weights.len())),
            }
        }
        Op::Constant(literal) => {
            let [] = arity(operands)?;
            if !literal.is_valid() {
                return attribute_error(format!("the literal's data do not fill its type {}", literal.ty));
            }
            one(literal.ty.clone())
        }
        Op::Iota { dtype, shape, dim, first, step } => {
            let [] = arity(operands)?;
            if *dtype == DType::Bool || *dtype == DType::F8E4M3 {
                return dtype_error(format!("iota of {dtype}"));
            }
            if dtype.is_int() && (matches!(first, Scalar::Float(_)) || matches!(step, Scalar::Float(_))) {
                return attribute_error("iota of integers needs integer `first` and `step`");
            }
            static_dims(shape)?;
            in_range(*dim, shape.rank())?;
            one(TensorType { dtype: *dtype, shape: shape.clone() })
        }
        Op::Cast { to } => {
            let [x] = arity(operands)?;
            one(TensorType { dtype: *to, shape: x.shape.clone() })
        }
        Op::Unary(u) => {
            let [x] = arity(operands)?;
            one(TensorType { dtype: unary_dtype(*u, x.dtype)?, shape: x.shape.clone() })
        }
        Op::Binary(b) => {
            let [x, y] = arity(operands)?;
            same_dtype(x, y)?;
            one(TensorType {
                dtype: binary_dtype(*b, x.dtype)?,
                shape: broadcast_same_rank(&x.shape, &y.shape)?,
            })
        }
        Op::BinaryScalar { op, scalar, .. } => {
            let [x] = arity(operands)?;
            match (scalar, x.dtype) {
                (Scalar::Float(_), d) if !d.is_float() => {
                    return dtype_error(format!("a float scalar with a {d} tensor; cast the tensor first"));
                }
                (Scalar::Int(_), DType::Bool) => {
                    return dtype_error("an integer scalar with a bool tensor; cast the tensor first");
                }
                _ => {}
            }
            one(TensorType { dtype: binary_dtype(*op, x.dtype)?, shape: x.shape.clone() })
        }
        Op::Select => {
            let [c, x, y] = arity(operands)?;
            if c.dtype != DType::Bool {
                return dtype_error(format!("the condition is {}, expected bool", c.dtype));
            }
            same_dtype(x, y)?;
            let shape = broadcast_same_rank(&c.shape, &broadcast_same_rank(&x.shape, &y.shape)?)?;
            one(TensorType { dtype: x.dtype, shape })
        }
        Op::MatMul { transpose_a, transpose_b } => one(matmul(operands, *transpose_a, *transpose_b)?),
        Op::Reduce { kind, dims, keep_dims } => {
            let [x] = arity(operands)?;
            sorted_distinct(dims, x.rank())?;
            match kind {
                ReduceKind::Mean if !x.dtype.is_float() => {
                    return dtype_error(format!("mean of {}; floats only", x.dtype));
                }
                ReduceKind::Sum | ReduceKind::Prod if x.dtype == DType::Bool => {
                    return dtype_error("sum or product of bool; cast first");
                }
                ReduceKind::Max | ReduceKind::Min
                    if dims.iter().any(|&d| x.shape.0[d as usize] == Dim::Static(0)) =>
                {
                    return shape_error(format!("{} over an empty dimension of {x}", kind.name()));
                }
                _ => {}
            }
            let shape = Shape(
                x.shape
                    .0
                    .iter()
                    .enumerate()
                    .filter_map(|(i, d)| match (dims.contains(&(i as u32)), keep_dims) {
                        (false, _) => Some(d.clone()),
                        (true, true) => Some(Dim::Static(1)),
                        (true, false) => None,
                    })
                    .collect(),
            );
            one(TensorType { dtype: x.dtype, shape })
        }
        Op::Softmax { dim } => {
            let [x] = arity(operands)?;
            float(x)?;
            in_range(*dim, x.rank())?;
            one(x.clone())
        }
        Op::Normalize { trailing, scale, bias, .. } => {
            let expected = 1 + usize::from(*scale) + usize::from(*bias);
            if operands.len() != expected {
                return Err(InferError::Arity { expected: expected.to_string(), found: operands.len() });
            }
            let x = operands[0];
            float(x)?;
            if *trailing == 0 || *trailing as usize > x.rank() {
                return attribute_error(format!("normalises the last {trailing} of {} dimensions", x.rank()));
            }
            let normalised = Shape(x.shape.0[x.rank() - *trailing as usize..].to_vec());
            for w in &operands[1..] {
                same_dtype(x, w)?;
                if w.shape != normalised {
                    return shape_error(format!("scale or bias is {}, expected {normalised}", w.shape));
                }
            }
            one(x.clone())
        }
        Op::Attention { mask, .. } => one(attention(operands, *mask)?),
        Op::Reshape { shape } => {
            let [x] = arity(operands)?;
            match (x.shape.elements(), shape.elements()) {
                (Some(a), Some(b)) if a == b => one(TensorType { dtype: x.dtype, shape: shape.clone() }),
                (Some(a), Some(b)) => {
                    shape_error(format!("{} has {a} elements, the new shape {shape} has {b}", x.shape))
                }
                _ => shape_error(format!(
                    "reshape of {} to {shape} needs static sizes that fit 64 bits",
                    x.shape
                )),
            }
        }
        Op::Transpose { perm } => {
            let [x] = arity(operands)?;
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted.len() != x.rank() || sorted.iter().enumerate().any(|(i, &p)| p as usize != i) {
                return attribute_error(format!("{perm:?} is no permutation of {} dimensions", x.rank()));
            }
            let shape = Shape(perm.iter().map(|&p| x.shape.0[p as usize].clone()).collect());
            one(TensorType { dtype: x.dtype, shape })
        }
        Op::Broadcast { shape } => {
            let [x] = arity(operands)?;
            let fits = x.rank() == shape.rank()
                && x.shape.0.iter().zip(&shape.0).all(|(a, b)| a == b || *a == Dim::Static(1));
            if !fits {
                return shape_error(format!("{} does not broadcast to {shape}", x.shape));
            }
            one(TensorType { dtype: x.dtype, shape: shape.clone() })
        }
        Op::Slice { dim, start, limit, stride } => {
            let [x] = arity(operands)?;
            let n = size_of(x, *dim)?;
            if *stride == 0 || start > limit || *limit > n {
                return attribute_error(format!(
                    "slice {start}..{limit} step {stride} of a dimension of {n}; expected start <= limit <= {n}, step >= 1"
                ));
            }
            one(with_size(x, *dim, (limit - start).div_ceil(*stride)))
        }
        Op::UpdateSlice { dim, start, stride } => {
            let [base, update] = arity(operands)?;
            same_dtype(base, update)?;
            let n = size_of(base, *dim)?;
            if base.rank() != update.rank() {
                return shape_error(format!("base {base} and update {update} differ in rank"));
            }
            let m = size_of(update, *dim)?;
            let last = m
                .checked_sub(1)
                .map_or(Some(*start), |k| k.checked_mul(*stride)?.checked_add(*start)?.checked_add(1));
            if *stride == 0 || last.is_none_or(|l| l > n) || *start > n {
                return shape_error(format!(
                    "{m} elements from {start} step {stride} do not fit a dimension of {n}"
                ));
            }
            if with_size(update, *dim, n).shape != base.shape {
                return shape_error(format!(
                    "update {update} and base {base} differ outside dimension {dim}"
                ));
            }
            one(base.clone())
        }
        Op::Split { dim, sizes } => {
            let [x] = arity(operands)?;
            let n = size_of(x, *dim)?;
            let total = sizes.iter().try_fold(0u64, |a, &s| a.checked_add(s));
            if sizes.is_empty() || total != Some(n) {
                return attribute_error(format!("sizes {sizes:?} do not add up to the dimension of {n}"));
            }
            Ok(sizes.iter().map(|&s| with_size(x, *dim, s)).collect())
        }
        Op::Concat { dim } => {
            let Some((first, rest)) = operands.split_first() else {
                return Err(InferError::Arity { expected: "1 or more".into(), found: 0 });
            };
            let mut n = size_of(first, *dim)?;
            for x in rest {
                same_dtype(first, x)?;
                if x.rank() != first.rank() {
                    return shape_error(format!("{first} and {x} differ in rank"));
                }
                let m = size_of(x, *dim)?;
                if with_size(x, *dim, 0).shape != with_size(first, *dim, 0).shape {
                    return shape_error(format!("{first} and {x} differ outside dimension {dim}"));
                }
                n = match n.checked_add(m) {
                    Some(n) => n,
                    None => return shape_error("the concatenated dimension overflows"),
                };
            }
            one(with_size(first, *dim, n))
        }
        Op::Pad { dim, low, high, value } => {
            let [x] = arity(operands)?;
            fill_value(x.dtype, *value)?;
            let n = size_of(x, *dim)?;
            match n.checked_add(*low).and_then(|n| n.checked_add(*high)) {
                Some(n) => one(with_size(x, *dim, n)),
                None => shape_error("the padded dimension overflows"),
            }
        }
        Op::Gather { mode, dim } => {
            let [data, indices] = arity(operands)?;
            in_range(*dim, data.rank())?;
            if !matches!(indices.dtype, DType::I64 | DType::I32) {
                return dtype_error(format!("indices are {}, expected i64 or i32", indices.dtype));
            }
            let d = *dim as usize;
            let shape = match mode {
                GatherMode::Take => Shape(
                    data.shape.0[..d]
                        .iter()
                        .chain(&indices.shape.0)
                        .chain(&data.shape.0[d + 1..])
                        .cloned()
                        .collect(),
                ),
                GatherMode::Elements => {
                    let fits = indices.rank() == data.rank()
                        && indices.shape.0.iter().zip(&data.shape.0).enumerate().all(|(i, (a, b))| {
                            i == d || a.as_static().zip(b.as_static()).is_some_and(|(a, b)| a <= b)
                        });
                    if !fits {
                        return shape_error(format!(
                            "indices {} do not fit data {} outside dimension {dim}",
                            indices.shape, data.shape
                        ));
                    }
                    indices.shape.clone()
                }
            };
            one(TensorType { dtype: data.dtype, shape })
        }
        Op::Conv { stride, padding, dilation, groups, bias } => {
            one(conv(operands, stride, padding, dilation, *groups, *bias)?)
        }
        Op::Collective { kind, group } => {
            let [x] = arity(operands)?;
            one(collective(kind, group_size(group, mesh)?, x)?)
        }
        Op::OwnSlice { dim, group } => {
            let [x] = arity(operands)?;
            one(divided(x, *dim, group_size(group, mesh)?)?)
        }
        Op::OwnPad { dim, group, value } => {
            let [x] = arity(operands)?;
            fill_value(x.dtype, *value)?;
            one(multiplied(x, *dim, group_size(group, mesh)?)?)
        }
        Op::AxisSelect { axis } => {
            let n = mesh
                .axis_size(*axis)
                .ok_or(MeshError::NoSuchAxis { axis: axis.0, axes: mesh.axes().len() })?;
            if operands.len() != n as usize {
                return Err(InferError::Arity {
                    expected: format!("{n} (one per coordinate of the axis)"),
                    found: operands.len(),
                });
            }
            let first = operands[0];
            match operands.iter().find(|t| **t != first) {
                Some(other) => shape_error(format!("operand types differ: {first} and {other}")),
                None => one(first.clone()),
            }
        }
        Op::GroupRank { group } => {
            let [] = arity(operands)?;
            group_size(group, mesh)?;
            one(TensorType::new(DType::I32, &[]))
        }
    }
}

fn arity<'a, const N: usize>(operands: &[&'a TensorType]) -> Result<[&'a TensorType; N]> {
    <[&TensorType; N]>::try_from(operands)
        .map_err(|_| InferError::Arity { expected: N.to_string(), found: operands.len() })
}

fn float(x: &TensorType) -> Result<()> {
    if x.dtype.is_float() { Ok(()) } else { dtype_error(format!("operand is {}, expected a float", x.dtype)) }
}

fn same_dtype(a: &TensorType, b: &TensorType) -> Result<()> {
    if a.dtype == b.dtype {
        Ok(())
    } else {
        dtype_error(format!("operand types {} and {} differ; expected equal", a.dtype, b.dtype))
    }
}

fn in_range(dim: u32, rank: usize) -> Result<()> {
    if (dim as usize) < rank {
        Ok(())
    } else {
        attribute_error(format!("dimension {dim} of a tensor with {rank} dimensions"))
    }
}

fn static_dims(shape: &Shape) -> Result<Vec<u64>> {
    shape
        .as_static()
        .ok_or_else(|| InferError::Shape(format!("{shape} has symbolic sizes; this op needs numbers")))
}

fn size_of(x: &TensorType, dim: u32) -> Result<u64> {
    in_range(dim, x.rank())?;
    x.shape.0[dim as usize].as_static().ok_or_else(|| {
        InferError::Shape(format!("dimension {dim} of {x} is symbolic; this op needs a number"))
    })
}

fn with_size(x: &TensorType, dim: u32, n: u64) -> TensorType {
    let mut ty = x.clone();
    ty.shape.0[dim as usize] = Dim::Static(n);
    ty
}

fn group_size(group: &Group, mesh: &Mesh) -> Result<u64> {
    group.validate(mesh)?;
    Ok(u64::from(group.size(mesh)))
}

fn divided(x: &TensorType, dim: u32, n: u64) -> Result<TensorType> {
    let size = size_of(x, dim)?;
    if size.checked_rem(n) != Some(0) {
        return shape_error(format!(
            "dimension {dim} of {x} has size {size}, which a group of {n} ranks does not divide"
        ));
    }
    Ok(with_size(x, dim, size / n))
}

fn multiplied(x: &TensorType, dim: u32, n: u64) -> Result<TensorType> {
    match size_of(x, dim)?.checked_mul(n) {
        Some(m) => Ok(with_size(x, dim, m)),
        None => shape_error(format!("dimension {dim} of {x} times {n} overflows")),
    }
}

fn broadcast_same_rank(a: &Shape, b: &Shape) -> Result<Shape> {
    if a.rank() != b.rank() {
        return shape_error(format!("{a} and {b} differ in rank; reshape first"));
    }
    a.0.iter()
        .zip(&b.0)
        .map(|(x, y)| match (x, y) {
            (x, y) if x == y => Ok(x.clone()),
            (Dim::Static(1), y) => Ok(y.clone()),
            (x, Dim::Static(1)) => Ok(x.clone()),
            _ => shape_error(format!("{a} and {b} do not broadcast: {x} against {y}")),
        })
        .collect::<Result<Vec<_>>>()
        .map(Shape)
}

fn unary_dtype(u: Unary, x: DType) -> Result<DType> {
    let ok = match u {
        Unary::Not => x == DType::Bool || x.is_int(),
        Unary::Neg | Unary::Abs | Unary::Sign => x != DType::Bool,
        Unary::IsNan | Unary::IsInf => x.is_float(),
        Unary::Relu => x.is_float() || x.is_int(),
        _ => x.is_float(),
    };
    match ok {
        true if u.is_predicate() => Ok(DType::Bool),
        true => Ok(x),
        false => dtype_error(format!("{} of {x}", u.name())),
    }
}

fn binary_dtype(b: Binary, x: DType) -> Result<DType> {
    let ok = match b {
        _ if b.is_comparison() => true,
        _ if b.is_bitwise() => x == DType::Bool || x.is_int(),
        Binary::Div | Binary::Atan2 => x.is_float(),
        Binary::Max | Binary::Min => true,
        _ => x != DType::Bool,
    };
    match ok {
        true if b.is_comparison() => Ok(DType::Bool),
        true => Ok(x),
        false => dtype_error(format!("{} of {x}", b.name())),
    }
}

fn fill_value(dtype: DType, value: Scalar) -> Result<()> {
    let ok = match value {
        Scalar::Float(_) => dtype.is_float(),
        Scalar::Int(_) => dtype.is_int() && crate::literal::encode(dtype, value).is_some(),
        Scalar::Bool(_) => dtype == DType::Bool,
    };
    if ok { Ok(()) } else { dtype_error(format!("the value {value} is no value of {dtype}")) }
}

fn sorted_distinct(dims: &[u32], rank: usize) -> Result<()> {
    for (i, &d) in dims.iter().enumerate() {
        in_range(d, rank)?;
        if i > 0 && dims[i - 1] >= d {
            return attribute_error(format!("dimensions {dims:?} are not sorted and distinct"));
        }
    }
    Ok(())
}

/// Numpy broadcasting: aligned right, sizes equal or 1.
fn broadcast_right(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let pad = |x: &[Dim]| -> Shape {
        Shape(std::iter::repeat_n(Dim::Static(1), rank - x.len()).chain(x.iter().cloned()).collect())
    };
    Ok(broadcast_same_rank(&pad(a), &pad(b))?.0)
}

fn collective(kind: &Collective, n: u64, x: &TensorType) -> Result<TensorType> {
    if let Some(op) = kind.reduce_op() {
        if x.dtype == DType::Bool && !matches!(op, ReduceOp::Max | ReduceOp::Min) {
            return dtype_error(format!("{} of bool; expected max or min", op.name()));
        }
        if op == ReduceOp::Avg && !x.dtype.is_float() {
            return dtype_error(format!("avg of {}; floats only", x.dtype));
        }
    }
    let accum = match kind {
        Collective::AllReduce { accum, .. }
        | Collective::ReduceScatter { accum, .. }
        | Collective::Reduce { accum, .. } => *accum,
        _ => None,
    };
    if let Some(a) = accum
        && !x.dtype.embeds_in(a)
    {
        return dtype_error(format!("accumulates {} in {a}, which does not hold it", x.dtype));
    }
    if let Some(root) = kind.root()
        && u64::from(root) >= n
    {
        return attribute_error(format!("root {root} is outside a group of {n} ranks"));
    }
    match *kind {
        Collective::AllReduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. } => {
            Ok(x.clone())
        }
        Collective::AllGather { dim } | Collective::Gather { dim, .. } => multiplied(x, dim, n),
        Collective::ReduceScatter { dim, .. } | Collective::Scatter { dim, .. } => divided(x, dim, n),
        Collective::AllToAll { split_dim, concat_dim } => {
            multiplied(&divided(x, split_dim, n)?, concat_dim, n)
        }
    }
}
