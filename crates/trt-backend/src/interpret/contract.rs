//! What TensorRT refuses: the type and shape rules of strongly typed networks, layer by layer, and the builder's contract
//! for collectives. Written from the public headers, and checked against TensorRT-RTX 1.7.1 where those are silent.

mod collective;
mod shape;
mod types;

use rustc_hash::FxHashSet;
use shardweld_ir::{DType, Scalar};

use crate::trace::{Call, CausalMaskKind, Layer, NetworkTrace, ReduceOperation, TensorId};

pub use super::error::Refused;
pub use collective::{CollectiveTerms, collective};

/// Most dimensions of a tensor.
const MAX_DIMS: usize = 8;

/// Element type and sizes.
type Ty = (DType, Vec<u64>);
type Rule<T> = Result<T, String>;

/// Checks every layer of a trace: what TensorRT would refuse, and that the stated types are those that TensorRT computes.
///
/// # Errors
/// The first layer that TensorRT refuses, with the rule.
pub fn check(trace: &NetworkTrace) -> Result<(), Refused> {
    let refuse = |l: &Layer, rule: String| Refused { layer: l.name.clone(), call: l.call.kind(), rule };
    let mut names = FxHashSet::default();
    for (i, l) in trace.layers().iter().enumerate() {
        if !names.insert(&l.name) {
            return Err(refuse(l, "another tensor has this name".into()));
        }
        let operand = |t: TensorId| -> Rule<Ty> {
            match trace.layers().get(t.index()) {
                Some(o) if t.index() < i => Ok((o.dtype, o.dims.clone())),
                _ => Err(format!("operand #{} is not made before the layer", t.0)),
            }
        };
        let stated = (l.dtype, l.dims.clone());
        let computed = match &l.call {
            Call::Input => stated.clone(),
            Call::Weight(w) => weight(trace, *w, &stated).map_err(|r| refuse(l, r))?,
            call => result(call, &operand).map_err(|r| refuse(l, r))?,
        };
        types::exists(&l.call, computed.0).map_err(|r| refuse(l, r))?;
        if computed.1.len() > MAX_DIMS {
            return Err(refuse(l, format!("{:?} has more than {MAX_DIMS} dimensions", computed.1)));
        }
        if computed != stated {
            let rule = format!(
                "is stated to be {}{:?}, TensorRT makes {}{:?} of it",
                stated.0, stated.1, computed.0, computed.1
            );
            return Err(refuse(l, rule));
        }
    }
    let mut names = FxHashSet::default();
    for o in trace.outputs() {
        let refuse = |rule: &str| Refused { layer: o.name.clone(), call: "output", rule: rule.to_owned() };
        let Some(l) = trace.layer(o.tensor) else { return Err(refuse("the tensor does not exist")) };
        if !names.insert(&o.name) {
            return Err(refuse("another output has this name"));
        }
        if l.dtype == DType::U8 && !matches!(l.call, Call::Cast { .. }) {
            return Err(refuse("a u8 output must come from a cast"));
        }
    }
    bytes_stay_outside(trace)
}

/// u8 tensors exist at the network's boundary only: inputs that are cast, and casts that are outputs.
fn bytes_stay_outside(trace: &NetworkTrace) -> Result<(), Refused> {
    for (i, l) in trace.layers().iter().enumerate() {
        let inner = l.dtype == DType::U8
            && matches!(l.call, Call::Cast { .. })
            && !trace.outputs().iter().any(|o| o.tensor.index() == i);
        if inner {
            let rule = "u8 exists in network inputs and outputs only".to_owned();
            return Err(Refused { layer: l.name.clone(), call: l.call.kind(), rule });
        }
    }
    Ok(())
}

/// Checks that the ranks that run a trace are those it was made for: `world` ranks in all, members of every group.
///
/// # Errors
/// The first layer that a rank must not run.
pub fn check_ranks(trace: &NetworkTrace, members: &[usize], world: usize) -> Result<(), Refused> {
    for (l, c) in trace.collectives() {
        let refuse = |rule| Refused { layer: l.name.clone(), call: l.call.kind(), rule };
        let size = c.world_size();
        if size != trace.world_size() || size as usize != world {
            let network = trace.world_size();
            return Err(refuse(format!(
                "is made for a communicator of {size} ranks, the network for {network}, and there are {world}"
            )));
        }
        if let Some(m) = members.iter().find(|&&m| !c.ranks().iter().any(|&r| r as usize == m)) {
            return Err(refuse(format!("rank {m} issues it but is not in its group {:?}", c.ranks())));
        }
    }
    Ok(())
}

fn weight(trace: &NetworkTrace, index: u32, stated: &Ty) -> Rule<Ty> {
    let w = trace.weights().get(index as usize).ok_or_else(|| format!("there is no weight #{index}"))?;
    types::constant(w.dtype)?;
    if shape::volume(&w.dims) != shape::volume(&stated.1) {
        return Err(format!("the {} elements of {:?} do not fill {:?}", w.name, w.dims, stated.1));
    }
    Ok((w.dtype, stated.1.clone()))
}

/// Type of what a layer makes.
fn result(call: &Call, ty: &dyn Fn(TensorId) -> Rule<Ty>) -> Rule<Ty> {
    Ok(match call {
        Call::Input | Call::Weight(_) => return Err("is no layer".into()),
        Call::Constant(literal) => {
            types::constant(literal.ty.dtype)?;
            let dims = literal.ty.shape.as_static().filter(|_| literal.is_valid());
            (literal.ty.dtype, dims.ok_or("the data do not fill the shape")?)
        }
        Call::Cast { input, to } => {
            let (d, dims) = ty(*input)?;
            types::cast(d, *to)?;
            (*to, dims)
        }
        Call::Unary { input, op } => {
            let (d, dims) = ty(*input)?;
            (types::unary(*op, d)?, dims)
        }
        Call::ElementWise { a, b, op } => {
            let ((d, a), (db, b)) = (ty(*a)?, ty(*b)?);
            types::same(&[d, db])?;
            (types::elementwise(*op, d)?, shape::broadcast(&[&a, &b])?)
        }
        Call::Activation { input, op } => {
            let (d, dims) = ty(*input)?;
            types::activation(*op, d)?;
            (d, dims)
        }
        Call::Select { condition, then_input, else_input } => {
            let ((c, condition), (d, x), (e, y)) = (ty(*condition)?, ty(*then_input)?, ty(*else_input)?);
            if c != DType::Bool {
                return Err(format!("the condition is {c}, must be bool"));
            }
            types::same(&[d, e])?;
            types::moved(d)?;
            (d, shape::broadcast(&[&condition, &x, &y])?)
        }
        Call::MatMul { a, transpose_a, b, transpose_b } => {
            let ((d, a), (db, b)) = (ty(*a)?, ty(*b)?);
            types::same(&[d, db])?;
            types::float(d)?;
            (d, shape::matmul((&a, *transpose_a), (&b, *transpose_b))?)
        }
        Call::Reduce { input, op, axes, keep_dims } => {
            let (d, dims) = ty(*input)?;
            types::number(d)?;
            if *op == ReduceOperation::Avg && !types::is_float(d) {
                return Err(format!("AVG of {d}: how it rounds is not specified"));
            }
            (d, shape::reduce(&dims, axes, *keep_dims)?)
        }
        Call::Softmax { input, axis } => {
            let (d, dims) = ty(*input)?;
            types::float(d)?;
            shape::axis(*axis, &dims)?;
            (d, dims)
        }
        Call::Normalization { input, scale, bias, axes, epsilon } => {
            let ((d, dims), (ds, s), (db, b)) = (ty(*input)?, ty(*scale)?, ty(*bias)?);
            types::same(&[d, ds, db])?;
            types::float(d)?;
            let eps = epsilon.as_f64();
            if matches!(epsilon, Scalar::Bool(_)) || !(eps as f32).is_finite() || eps < 0.0 {
                return Err(format!("epsilon is {epsilon}"));
            }
            shape::normalization(&dims, &s, &b, axes)?;
            (d, dims)
        }
        Call::Attention { query, key, value, mask, causal, .. } => {
            let ((d, q), (dk, k), (dv, v)) = (ty(*query)?, ty(*key)?, ty(*value)?);
            types::same(&[d, dk, dv])?;
            types::float(d)?;
            shape::attention(&q, &k, &v)?;
            if let Some(m) = mask {
                if *causal != CausalMaskKind::None {
                    return Err("has a mask and is causal; it can be one only".into());
                }
                let (dm, m) = ty(*m)?;
                if dm != DType::Bool && dm != d {
                    return Err(format!("the mask is {dm}, must be bool or {d}"));
                }
                shape::mask(&m, &q, &k)?;
            }
            (d, q)
        }
        Call::Shuffle { input, first, reshape, second } => {
            let (d, dims) = ty(*input)?;
            types::moved(d)?;
            (d, shape::shuffle(dims, first.as_deref(), reshape.as_deref(), second.as_deref())?)
        }
        Call::Slice { input, start, size, stride, fill } => {
            let (d, dims) = ty(*input)?;
            types::moved(d)?;
            match fill {
                Some(f) => {
                    let (df, f) = ty(*f)?;
                    types::same(&[d, df])?;
                    if !f.is_empty() {
                        return Err(format!("the fill value has shape {f:?}, must be a scalar"));
                    }
                    shape::slice_ranks(&dims, start, size, stride)?;
                }
                None => shape::strict_slice(&dims, start, size, stride)?,
            }
            (d, size.clone())
        }
        Call::Concat { inputs, axis } => {
            let all = inputs.iter().map(|&t| ty(t)).collect::<Rule<Vec<_>>>()?;
            types::same(&all.iter().map(|t| t.0).collect::<Vec<_>>())?;
            let shapes: Vec<&[u64]> = all.iter().map(|t| t.1.as_slice()).collect();
            let dims = shape::concat(&shapes, *axis)?;
            let d = all.first().map_or(DType::F32, |t| t.0);
            types::moved(d)?;
            (d, dims)
        }
        Call::Gather { data, indices, axis, elements } => {
            let ((d, data), (di, indices)) = (ty(*data)?, ty(*indices)?);
            types::moved(d)?;
            if !matches!(di, DType::I32 | DType::I64) {
                return Err(format!("the indices are {di}, must be i32 or i64"));
            }
            (d, shape::gather(&data, &indices, *axis, *elements)?)
        }
        Call::Convolution { input, kernel, bias, stride, pre_padding, post_padding, dilation, groups } => {
            let ((d, x), (dk, k)) = (ty(*input)?, ty(*kernel)?);
            types::same(&[d, dk])?;
            types::float(d)?;
            let window = shape::Window { stride, pre_padding, post_padding, dilation, groups: *groups };
            let dims = shape::convolution(&x, &k, &window)?;
            if let Some(b) = bias {
                let (db, b) = ty(*b)?;
                types::same(&[d, db])?;
                if b != k[..1] {
                    return Err(format!("the bias has shape {b:?}, must be {:?}", &k[..1]));
                }
            }
            (d, dims)
        }
        Call::Collective { input, collective: c } => {
            let (d, dims) = ty(*input)?;
            let terms = CollectiveTerms {
                kind: c.kind(),
                reduce: c.reduce(),
                root: c.root_or_minus_one(),
                ranks: c.ranks(),
                world_size: c.world_size(),
            };
            (d, collective(&terms, d, &dims)?)
        }
    })
}
