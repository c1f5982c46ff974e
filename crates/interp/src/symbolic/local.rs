//! Ops without communication on symbolic tensors: index maps for data movement, named functions for arithmetic.

use std::sync::Arc;

use shardweld_ir::literal::encode;
use shardweld_ir::{DType, Op, ReduceKind, Scalar, TensorType};

use super::{SymbolicError, SymbolicTensor, Term, TermId, Terms, elements};

type Result<T> = std::result::Result<T, SymbolicError>;

fn refuse<T>(op: &'static str, reason: impl Into<String>) -> Result<T> {
    Err(SymbolicError::Operands { op, reason: reason.into() })
}

fn sizes(ty: &TensorType) -> Result<Vec<usize>> {
    elements(ty)?;
    match ty.shape.as_static() {
        Some(s) => Ok(s.into_iter().map(|n| n as usize).collect()),
        None => Err(SymbolicError::Shape(ty.clone())),
    }
}

/// A tensor whose element at each index is what `at` says.
fn build(ty: &TensorType, mut at: impl FnMut(&[usize]) -> Option<TermId>) -> Result<SymbolicTensor> {
    let dims = sizes(ty)?;
    let n = elements(ty)?;
    let mut index = vec![0; dims.len()];
    let mut data = Vec::with_capacity(n);
    for _ in 0..n {
        match at(&index) {
            Some(t) => data.push(t),
            None => return refuse("index", format!("{index:?} of {ty} comes from outside the operand")),
        }
        for d in (0..dims.len()).rev() {
            index[d] += 1;
            if index[d] < dims[d] {
                break;
            }
            index[d] = 0;
        }
    }
    Ok(SymbolicTensor { ty: ty.clone(), data })
}

/// The element of `x` at an index; `None` outside.
fn get(x: &SymbolicTensor, dims: &[usize], index: impl IntoIterator<Item = usize>) -> Option<TermId> {
    let mut flat = 0;
    let mut rank = 0;
    for (i, &n) in index.into_iter().zip(dims) {
        if i >= n {
            return None;
        }
        flat = flat * n + i;
        rank += 1;
    }
    (rank == dims.len()).then(|| x.data.get(flat).copied()).flatten()
}

/// Block `i` of `n` along a dimension.
pub(super) fn block(
    x: &SymbolicTensor,
    dim: u32,
    i: usize,
    n: usize,
    ty: &TensorType,
) -> Result<SymbolicTensor> {
    let dims = sizes(&x.ty)?;
    let Some(part) = dims.get(dim as usize).map(|d| d / n) else {
        return refuse("block", format!("dimension {dim} of {}", x.ty));
    };
    build(ty, |index| get(x, &dims, shifted(index, dim as usize, |k| k + i * part)))
}

fn shifted<'a>(
    index: &'a [usize],
    dim: usize,
    f: impl Fn(usize) -> usize + 'a,
) -> impl Iterator<Item = usize> + 'a {
    index.iter().enumerate().map(move |(d, &k)| if d == dim { f(k) } else { k })
}

/// Operands one after the other along a dimension.
pub(super) fn concatenate(parts: &[&SymbolicTensor], dim: u32, ty: &TensorType) -> Result<SymbolicTensor> {
    let dim = dim as usize;
    let dims: Vec<Vec<usize>> = parts.iter().map(|p| sizes(&p.ty)).collect::<Result<_>>()?;
    build(ty, |index| {
        let mut k = *index.get(dim)?;
        for (p, d) in parts.iter().zip(&dims) {
            let n = *d.get(dim)?;
            if k < n {
                return get(p, d, shifted(index, dim, |_| k));
            }
            k -= n;
        }
        None
    })
}

fn constant(terms: &mut Terms, dtype: DType, value: Scalar) -> Result<TermId> {
    let bytes = match (dtype, value.as_f64()) {
        (DType::F8E4M3, 0.0) => vec![u8::from(value.as_f64().is_sign_negative()) << 7],
        _ => match encode(dtype, value) {
            Some(b) => b,
            None => return refuse("constant", format!("{value} as {dtype}")),
        },
    };
    Ok(terms.intern(Term::Const { dtype, bits: little_endian(&bytes) }))
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// Results of `op`.
pub(super) fn evaluate(
    terms: &mut Terms,
    op: &Op,
    operands: &[&SymbolicTensor],
    results: &[TensorType],
) -> Result<Vec<Arc<SymbolicTensor>>> {
    let Some(ty) = results.first() else { return Ok(Vec::new()) };
    let operand = |i: usize| {
        operands
            .get(i)
            .copied()
            .ok_or(SymbolicError::Operands { op: op.name(), reason: format!("operand {i} is missing") })
    };
    let one = |t: SymbolicTensor| Ok(vec![Arc::new(t)]);
    // Elements of an operand that broadcasts to the result, aligned right.
    let spread = |x: &SymbolicTensor, index: &[usize], dims: &[usize]| {
        let skip = index.len() - dims.len().min(index.len());
        get(x, dims, index[skip..].iter().zip(dims).map(|(&k, &n)| if n == 1 { 0 } else { k }))
    };
    match op {
        Op::Constant(literal) => {
            let size = literal.ty.dtype.size();
            let data = literal.to_bytes();
            let dtype = literal.ty.dtype;
            let data = data
                .chunks_exact(size)
                .map(|b| terms.intern(Term::Const { dtype, bits: little_endian(b) }))
                .collect();
            one(SymbolicTensor { ty: ty.clone(), data })
        }
        Op::Iota { dtype, dim, first, step, .. } => {
            let n = sizes(ty)?.get(*dim as usize).copied().unwrap_or(0);
            let line = (0..n as i64)
                .map(|i| {
                    let value = match (first, step) {
                        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(a.wrapping_add(b.wrapping_mul(i))),
                        _ => Scalar::Float(first.as_f64() + step.as_f64() * i as f64),
                    };
                    constant(terms, *dtype, value)
                })
                .collect::<Result<Vec<_>>>()?;
            one(build(ty, |index| line.get(*index.get(*dim as usize)?).copied())?)
        }
        Op::Cast { to } => {
            let data = operand(0)?.data.iter().map(|&x| terms.intern(Term::Cast { to: *to, x })).collect();
            one(SymbolicTensor { ty: ty.clone(), data })
        }
        Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Select => {
            let function = match op {
                Op::BinaryScalar { scalar, scalar_first, .. } => {
                    let side = if *scalar_first { "scalar first" } else { "scalar" };
                    format!("{} {side} {scalar}", op.name())
                }
                _ => op.name().to_owned(),
            };
            let dims = operands.iter().map(|o| sizes(&o.ty)).collect::<Result<Vec<_>>>()?;
            one(build(ty, |index| {
                let args = operands
                    .iter()
                    .zip(&dims)
                    .map(|(o, d)| spread(o, index, d))
                    .collect::<Option<Vec<_>>>()?;
                if let (Op::Select, [c, a, b]) = (op, args.as_slice())
                    && let Term::Const { bits, .. } = terms.get(*c)
                {
                    return Some(if *bits != 0 { *a } else { *b });
                }
                Some(terms.intern(Term::Apply { function: function.clone(), dtype: ty.dtype, args }))
            })?)
        }
        Op::MatMul { transpose_a, transpose_b } => {
            matmul(terms, operands, *transpose_a, *transpose_b, ty).and_then(one)
        }
        Op::Reduce { kind, dims, keep_dims } => {
            reduce(terms, operand(0)?, *kind, dims, *keep_dims, ty).and_then(one)
        }
        Op::Reshape { .. } => one(SymbolicTensor { ty: ty.clone(), data: operand(0)?.data.clone() }),
        Op::Transpose { perm } => {
            let x = operand(0)?;
            let dims = sizes(&x.ty)?;
            one(build(ty, |index| {
                let mut source = vec![0; dims.len()];
                for (&k, &p) in index.iter().zip(perm) {
                    *source.get_mut(p as usize)? = k;
                }
                get(x, &dims, source)
            })?)
        }
        Op::Broadcast { .. } => {
            let x = operand(0)?;
            let dims = sizes(&x.ty)?;
            one(build(ty, |index| spread(x, index, &dims))?)
        }
        Op::Slice { dim, start, stride, .. } => {
            let x = operand(0)?;
            let dims = sizes(&x.ty)?;
            let (start, stride) = (*start as usize, *stride as usize);
            one(build(ty, |index| get(x, &dims, shifted(index, *dim as usize, |k| start + k * stride)))?)
        }
        Op::UpdateSlice { dim, start, stride } => {
            let (base, update) = (operand(0)?, operand(1)?);
            let (bd, ud) = (sizes(&base.ty)?, sizes(&update.ty)?);
            let (start, stride) = (*start as usize, (*stride as usize).max(1));
            one(build(ty, |index| {
                let k = *index.get(*dim as usize)?;
                let new = (k >= start && (k - start) % stride == 0)
                    .then(|| get(update, &ud, shifted(index, *dim as usize, |_| (k - start) / stride)))
                    .flatten();
                new.or_else(|| get(base, &bd, index.iter().copied()))
            })?)
        }
        Op::Split { dim, sizes: parts } => {
            let x = operand(0)?;
            let dims = sizes(&x.ty)?;
            let mut start = 0;
            let mut out = Vec::new();
            for (part, ty) in parts.iter().zip(results) {
                let at = start;
                out.push(Arc::new(build(ty, |index| {
                    get(x, &dims, shifted(index, *dim as usize, |k| k + at))
                })?));
                start += *part as usize;
            }
            Ok(out)
        }
        Op::Concat { dim } => one(concatenate(operands, *dim, ty)?),
        Op::Pad { dim, low, value, .. } => {
            let x = operand(0)?;
            let dims = sizes(&x.ty)?;
            let fill = constant(terms, ty.dtype, *value)?;
            let low = *low as usize;
            one(build(ty, |index| {
                let k = *index.get(*dim as usize)?;
                let inside =
                    k.checked_sub(low).and_then(|k| get(x, &dims, shifted(index, *dim as usize, |_| k)));
                Some(inside.unwrap_or(fill))
            })?)
        }
        // Any other op is deterministic and the same on all ranks: each element is some function of all operand elements.
        _ => {
            let args: Vec<TermId> = operands.iter().flat_map(|o| o.data.iter().copied()).collect();
            let types: Vec<String> = operands.iter().map(|o| o.ty.to_string()).collect();
            results
                .iter()
                .enumerate()
                .map(|(r, ty)| {
                    let n = elements(ty)?;
                    let data = (0..n)
                        .map(|i| {
                            let function = format!("{op:?} of {} result {r} element {i}", types.join(" "));
                            terms.intern(Term::Apply { function, dtype: ty.dtype, args: args.clone() })
                        })
                        .collect();
                    Ok(Arc::new(SymbolicTensor { ty: ty.clone(), data }))
                })
                .collect()
        }
    }
}

fn matmul(
    terms: &mut Terms,
    operands: &[&SymbolicTensor],
    transpose_a: bool,
    transpose_b: bool,
    ty: &TensorType,
) -> Result<SymbolicTensor> {
    let (a, b) = match operands {
        [a, b] | [a, b, _] => (a, b),
        _ => return refuse("matmul", "takes 2 or 3 operands"),
    };
    let (ad, bd) = (sizes(&a.ty)?, sizes(&b.ty)?);
    let Some(k) = ad.len().checked_sub(if transpose_a { 2 } else { 1 }).and_then(|i| ad.get(i)).copied()
    else {
        return refuse("matmul", format!("operand {}", a.ty));
    };
    let bias = operands.get(2).map(|c| sizes(&c.ty).map(|d| (*c, d))).transpose()?;
    // The element at batch index `batch` (aligned right) and the last two indices.
    let at = |x: &SymbolicTensor, dims: &[usize], batch: &[usize], i: usize, j: usize| {
        let own = dims.len().checked_sub(2)?;
        let skip = batch.len().checked_sub(own)?;
        let lead = batch[skip..].iter().zip(dims).map(|(&k, &n)| if n == 1 { 0 } else { k });
        get(x, dims, lead.chain([i, j]))
    };
    build(ty, |index| {
        let (batch, last) = index.split_at_checked(index.len().checked_sub(2)?)?;
        let (i, j) = (last[0], last[1]);
        let mut args = Vec::with_capacity(2 * k + 1);
        for l in 0..k {
            args.push(if transpose_a { at(a, &ad, batch, l, i) } else { at(a, &ad, batch, i, l) }?);
            args.push(if transpose_b { at(b, &bd, batch, j, l) } else { at(b, &bd, batch, l, j) }?);
        }
        let function = match &bias {
            Some((c, dims)) => {
                let skip = index.len().checked_sub(dims.len())?;
                args.push(get(
                    c,
                    dims,
                    index[skip..].iter().zip(dims).map(|(&k, &n)| if n == 1 { 0 } else { k }),
                )?);
                "dot with bias"
            }
            None => "dot",
        };
        Some(terms.intern(Term::Apply { function: function.into(), dtype: ty.dtype, args }))
    })
}

fn reduce(
    terms: &mut Terms,
    x: &SymbolicTensor,
    kind: ReduceKind,
    reduced: &[u32],
    keep_dims: bool,
    ty: &TensorType,
) -> Result<SymbolicTensor> {
    let dims = sizes(&x.ty)?;
    let gone = |d: usize| reduced.contains(&(d as u32));
    let count: usize = dims.iter().enumerate().filter(|(d, _)| gone(*d)).map(|(_, &n)| n).product();
    build(ty, |index| {
        let mut kept = index.iter().enumerate().filter(|(d, _)| !(keep_dims && gone(*d))).map(|(_, &k)| k);
        let mut source: Vec<usize> =
            (0..dims.len()).map(|d| if gone(d) { Some(0) } else { kept.next() }).collect::<Option<_>>()?;
        let mut args = Vec::with_capacity(count);
        for _ in 0..count {
            args.push(get(x, &dims, source.iter().copied())?);
            for d in (0..dims.len()).rev().filter(|&d| gone(d)) {
                source[d] += 1;
                if source[d] < dims[d] {
                    break;
                }
                source[d] = 0;
            }
        }
        let function = format!("reduce {}", kind.name());
        Some(terms.intern(Term::Apply { function, dtype: ty.dtype, args }))
    })
}
