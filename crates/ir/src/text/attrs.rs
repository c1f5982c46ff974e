//! The one table of mnemonics and attributes: which op has which fields under which names. Printing and parsing both walk it.

use super::attr::Attr;
use super::field::Field;
use crate::literal::{Literal, Scalar, decode, encode};
use crate::mesh::{AxisId, Group, Mesh};
use crate::op::{Binary, Collective, GatherMode, NormKind, Op, ReduceKind, ReduceOp, Unary};
use crate::types::{DType, Shape, TensorType};
use crate::weight::WeightId;

/// Constants of at most this many elements are written as numbers, longer ones as bytes.
const MAX_READABLE_ELEMENTS: usize = 16;

/// What attributes refer to besides themselves.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub mesh: &'a Mesh,
    /// Name of a weight.
    pub weight_name: &'a dyn Fn(WeightId) -> Option<&'a str>,
    /// Weight of a name.
    pub weight: &'a dyn Fn(&str) -> Option<WeightId>,
}

/// An attribute that does not fit its op.
pub(super) struct AttrError {
    pub found: String,
    pub expected: String,
}

/// Attributes of an op, in the table's order.
pub(super) fn to_attrs(op: &Op, context: Context<'_>) -> Vec<(&'static str, Attr)> {
    let mut fields = Fields { context, io: Io::Write(Vec::new()) };
    // Writing fails for no op; what cannot be named is written so that reading refuses it.
    let _ = visit(&mut op.clone(), &mut fields);
    match fields.io {
        Io::Write(out) => out,
        Io::Read { .. } => Vec::new(),
    }
}

/// The op of a mnemonic, its attributes, and the declared result types.
pub(super) fn from_attrs<'a>(
    mnemonic: &str,
    attrs: Vec<(String, Attr)>,
    results: &'a [TensorType],
    context: Context<'a>,
) -> Result<Op, AttrError> {
    let with_scalar = attrs.iter().any(|(k, _)| k == "scalar");
    let Some(mut op) = prototype(mnemonic, with_scalar) else {
        return Err(AttrError { found: format!("op `{mnemonic}`"), expected: "a known op".into() });
    };
    let mut fields = Fields { context, io: Io::Read { attrs, known: Vec::new(), results } };
    visit(&mut op, &mut fields)?;
    if let Io::Read { attrs, known, .. } = fields.io
        && let Some((key, _)) = attrs.first()
    {
        let expected = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(AttrError {
            found: format!("attribute `{key}`"),
            expected: format!("attributes of {mnemonic}: {expected}"),
        });
    }
    Ok(op)
}

/// An op of the given mnemonic; its fields hold what `visit` takes for absent optional attributes.
fn prototype(mnemonic: &str, with_scalar: bool) -> Option<Op> {
    let shape = Shape::default;
    let group = || Group::Axes(Vec::new());
    let zero = Scalar::Int(0);
    let (op, accum, dim, root) = (ReduceOp::Sum, None, 0, 0);
    let collective = |kind| Op::Collective { kind, group: group() };
    Some(match mnemonic {
        "input" => Op::Input { name: String::new() },
        "weight" => Op::Weight(WeightId(0)),
        "constant" => Op::Constant(Literal::splat(TensorType::new(DType::U8, &[]), [0u8])?),
        "iota" => Op::Iota { dtype: DType::I64, shape: shape(), dim, first: zero, step: zero },
        "cast" => Op::Cast { to: DType::F32 },
        "select" => Op::Select,
        "matmul" => Op::MatMul { transpose_a: false, transpose_b: false },
        "reduce" => Op::Reduce { kind: ReduceKind::Sum, dims: Vec::new(), keep_dims: false },
        "softmax" => Op::Softmax { dim },
        "normalize" => {
            Op::Normalize { kind: NormKind::Layer, trailing: 1, epsilon: zero, scale: false, bias: false }
        }
        "attention" => Op::Attention { scale: zero, causal: false, mask: false },
        "reshape" => Op::Reshape { shape: shape() },
        "transpose" => Op::Transpose { perm: Vec::new() },
        "broadcast" => Op::Broadcast { shape: shape() },
        "slice" => Op::Slice { dim, start: 0, limit: 0, stride: 1 },
        "update_slice" => Op::UpdateSlice { dim, start: 0, stride: 1 },
        "split" => Op::Split { dim, sizes: Vec::new() },
        "concat" => Op::Concat { dim },
        "pad" => Op::Pad { dim, low: 0, high: 0, value: zero },
        "gather" => Op::Gather { mode: GatherMode::Take, dim },
        "conv" => {
            Op::Conv { stride: Vec::new(), padding: Vec::new(), dilation: Vec::new(), groups: 1, bias: false }
        }
        "all_reduce" => collective(Collective::AllReduce { op, accum }),
        "all_gather" => collective(Collective::AllGather { dim }),
        "reduce_scatter" => collective(Collective::ReduceScatter { op, dim, accum }),
        "all_to_all" => collective(Collective::AllToAll { split_dim: dim, concat_dim: dim }),
        "broadcast_from" => collective(Collective::Broadcast { root }),
        "reduce_to" => collective(Collective::Reduce { op, root, accum }),
        "gather_to" => collective(Collective::Gather { dim, root }),
        "scatter_from" => collective(Collective::Scatter { dim, root }),
        "own_slice" => Op::OwnSlice { dim, group: group() },
        "own_pad" => Op::OwnPad { dim, group: group(), value: zero },
        "axis_select" => Op::AxisSelect { axis: AxisId(0) },
        "group_rank" => Op::GroupRank { group: group() },
        other => match (Unary::from_name(other), Binary::from_name(other)) {
            (Some(u), _) => Op::Unary(u),
            (_, Some(op)) if with_scalar => Op::BinaryScalar { op, scalar: zero, scalar_first: false },
            (_, Some(b)) => Op::Binary(b),
            _ => return None,
        },
    })
}

/// The table.
fn visit(op: &mut Op, f: &mut Fields<'_>) -> Result<(), AttrError> {
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select => {}
        Op::Input { name } => f.field("name", name)?,
        Op::Weight(id) => f.weight("name", id)?,
        Op::Constant(literal) => f.literal(literal)?,
        Op::Iota { dtype, shape, dim, first, step } => {
            f.result_dtype(dtype)?;
            f.result_shape(shape)?;
            f.field("dim", dim)?;
            f.field("first", first)?;
            f.field("step", step)?;
        }
        Op::Cast { to } => f.result_dtype(to)?,
        Op::BinaryScalar { scalar, scalar_first, .. } => {
            f.field("scalar", scalar)?;
            f.optional("scalar_first", scalar_first, false)?;
        }
        Op::MatMul { transpose_a, transpose_b } => {
            f.optional("transpose_a", transpose_a, false)?;
            f.optional("transpose_b", transpose_b, false)?;
        }
        Op::Reduce { kind, dims, keep_dims } => {
            f.field("kind", kind)?;
            f.field("dims", dims)?;
            f.optional("keep_dims", keep_dims, false)?;
        }
        Op::Softmax { dim } | Op::Concat { dim } => f.field("dim", dim)?,
        Op::Normalize { kind, trailing, epsilon, scale, bias } => {
            f.field("kind", kind)?;
            f.field("trailing", trailing)?;
            f.field("epsilon", epsilon)?;
            f.optional("scale", scale, false)?;
            f.optional("bias", bias, false)?;
        }
        Op::Attention { scale, causal, mask } => {
            f.field("scale", scale)?;
            f.optional("causal", causal, false)?;
            f.optional("mask", mask, false)?;
        }
        Op::Reshape { shape } | Op::Broadcast { shape } => f.result_shape(shape)?,
        Op::Transpose { perm } => f.field("perm", perm)?,
        Op::Slice { dim, start, limit, stride } => {
            f.field("dim", dim)?;
            f.field("start", start)?;
            f.field("limit", limit)?;
            f.optional("stride", stride, 1)?;
        }
        Op::UpdateSlice { dim, start, stride } => {
            f.field("dim", dim)?;
            f.field("start", start)?;
            f.optional("stride", stride, 1)?;
        }
        Op::Split { dim, sizes } => {
            f.field("dim", dim)?;
            f.field("sizes", sizes)?;
        }
        Op::Pad { dim, low, high, value } => {
            f.field("dim", dim)?;
            f.field("low", low)?;
            f.field("high", high)?;
            f.field("value", value)?;
        }
        Op::Gather { mode, dim } => {
            f.field("mode", mode)?;
            f.field("dim", dim)?;
        }
        Op::Conv { stride, padding, dilation, groups, bias } => {
            f.field("stride", stride)?;
            f.field("padding", padding)?;
            f.field("dilation", dilation)?;
            f.optional("groups", groups, 1)?;
            f.optional("bias", bias, false)?;
        }
        Op::Collective { kind, group } => {
            match kind {
                Collective::AllReduce { op, accum } => {
                    f.field("op", op)?;
                    f.optional("accum", accum, None)?;
                }
                Collective::AllGather { dim } => f.field("dim", dim)?,
                Collective::ReduceScatter { op, dim, accum } => {
                    f.field("op", op)?;
                    f.field("dim", dim)?;
                    f.optional("accum", accum, None)?;
                }
                Collective::AllToAll { split_dim, concat_dim } => {
                    f.field("split_dim", split_dim)?;
                    f.field("concat_dim", concat_dim)?;
                }
                Collective::Broadcast { root } => f.field("root", root)?,
                Collective::Reduce { op, root, accum } => {
                    f.field("op", op)?;
                    f.field("root", root)?;
                    f.optional("accum", accum, None)?;
                }
                Collective::Gather { dim, root } | Collective::Scatter { dim, root } => {
                    f.field("dim", dim)?;
                    f.field("root", root)?;
                }
            }
            f.field("group", group)?;
        }
        Op::OwnSlice { dim, group } => {
            f.field("dim", dim)?;
            f.field("group", group)?;
        }
        Op::OwnPad { dim, group, value } => {
            f.field("dim", dim)?;
            f.field("group", group)?;
            f.field("value", value)?;
        }
        Op::AxisSelect { axis } => f.field("axis", axis)?,
        Op::GroupRank { group } => f.field("group", group)?,
    }
    Ok(())
}

/// Walks the fields of one op, writing or reading them.
struct Fields<'a> {
    context: Context<'a>,
    io: Io<'a>,
}

enum Io<'a> {
    Write(Vec<(&'static str, Attr)>),
    Read { attrs: Vec<(String, Attr)>, known: Vec<&'static str>, results: &'a [TensorType] },
}

impl Fields<'_> {
    /// Takes the attribute `key` when reading; `None` if it is absent or when writing.
    fn take(&mut self, key: &'static str) -> Option<Attr> {
        let Io::Read { attrs, known, .. } = &mut self.io else { return None };
        known.push(key);
        let at = attrs.iter().position(|(k, _)| k == key)?;
        Some(attrs.remove(at).1)
    }

    fn writing(&mut self) -> Option<&mut Vec<(&'static str, Attr)>> {
        match &mut self.io {
            Io::Write(out) => Some(out),
            Io::Read { .. } => None,
        }
    }

    fn read<T: Field>(&self, key: &str, attr: &Attr) -> Result<T, AttrError> {
        T::read(attr, self.context.mesh)
            .map_err(|expected| AttrError { found: format!("{key}={}", attr.describe()), expected })
    }

    fn field<T: Field>(&mut self, key: &'static str, value: &mut T) -> Result<(), AttrError> {
        let mesh = self.context.mesh;
        if let Some(out) = self.writing() {
            out.push((key, value.write(mesh)));
            return Ok(());
        }
        *value = match self.take(key) {
            Some(attr) => self.read(key, &attr)?,
            None => return Err(missing(key)),
        };
        Ok(())
    }

    fn optional<T: Field + PartialEq>(
        &mut self,
        key: &'static str,
        value: &mut T,
        default: T,
    ) -> Result<(), AttrError> {
        let mesh = self.context.mesh;
        if let Some(out) = self.writing() {
            if *value != default {
                out.push((key, value.write(mesh)));
            }
            return Ok(());
        }
        *value = match self.take(key) {
            Some(attr) => self.read(key, &attr)?,
            None => default,
        };
        Ok(())
    }

    fn weight(&mut self, key: &'static str, id: &mut WeightId) -> Result<(), AttrError> {
        let context = self.context;
        if let Some(out) = self.writing() {
            let name = (context.weight_name)(*id);
            out.push((key, name.map_or(Attr::Int(i128::from(id.0)), |n| Attr::Text(n.to_owned()))));
            return Ok(());
        }
        let Some(attr) = self.take(key) else { return Err(missing(key)) };
        let found = if let Attr::Text(name) = &attr { (context.weight)(name) } else { None };
        *id = found.ok_or_else(|| AttrError {
            found: format!("{key}={}", attr.describe()),
            expected: "the name of a weight declared before".into(),
        })?;
        Ok(())
    }

    /// The declared type of the only result, when reading.
    fn declared(&self) -> Result<Option<TensorType>, AttrError> {
        match &self.io {
            Io::Write(_) => Ok(None),
            Io::Read { results: [ty], .. } => Ok(Some(ty.clone())),
            Io::Read { results, .. } => Err(AttrError {
                found: format!("{} result types", results.len()),
                expected: "one result type".into(),
            }),
        }
    }

    fn result_dtype(&mut self, dtype: &mut DType) -> Result<(), AttrError> {
        if let Some(ty) = self.declared()? {
            *dtype = ty.dtype;
        }
        Ok(())
    }

    fn result_shape(&mut self, shape: &mut Shape) -> Result<(), AttrError> {
        if let Some(ty) = self.declared()? {
            *shape = ty.shape;
        }
        Ok(())
    }

    /// `splat=NUMBER`, `splat=x".."`, `data=[NUMBER, ..]` or `data=x".."`; numbers where they give the same bytes.
    fn literal(&mut self, literal: &mut Literal) -> Result<(), AttrError> {
        let mesh = self.context.mesh;
        if let Some(out) = self.writing() {
            let numbers = numbers(literal).map(|n| n.iter().map(|s| s.write(mesh)).collect::<Vec<_>>());
            let bytes = || Attr::Hex(literal.data().to_vec());
            out.push(match (literal.is_splat(), numbers) {
                (true, Some(mut n)) if n.len() == 1 => ("splat", n.remove(0)),
                (true, _) => ("splat", bytes()),
                (false, Some(n)) => ("data", Attr::List(n)),
                (false, None) => ("data", bytes()),
            });
            return Ok(());
        }
        let Some(ty) = self.declared()? else { return Ok(()) };
        let encoded = |s: Scalar| {
            encode(ty.dtype, s).ok_or_else(|| AttrError {
                found: format!("the number {s}"),
                expected: format!("a value of {}", ty.dtype),
            })
        };
        let (splat, data) = (self.take("splat"), self.take("data"));
        let made = match (splat, data) {
            (Some(Attr::Hex(bytes)), None) => Literal::splat(ty.clone(), bytes),
            (Some(attr), None) => Literal::splat(ty.clone(), encoded(self.read("splat", &attr)?)?),
            (None, Some(Attr::Hex(bytes))) => Literal::dense(ty.clone(), bytes),
            (None, Some(attr)) => {
                let mut bytes = Vec::new();
                for s in self.read::<Vec<Scalar>>("data", &attr)? {
                    bytes.extend(encoded(s)?);
                }
                Literal::dense(ty.clone(), bytes)
            }
            (None, None) => return Err(missing("splat` or `data")),
            (Some(_), Some(_)) => {
                return Err(AttrError {
                    found: "both splat and data".into(),
                    expected: "one of them".into(),
                });
            }
        };
        *literal = made.ok_or_else(|| AttrError {
            found: "data of another size".into(),
            expected: format!("the elements of {ty}"),
        })?;
        Ok(())
    }
}

fn missing(key: &str) -> AttrError {
    AttrError { found: "the end of the attributes".into(), expected: format!("attribute `{key}`") }
}

/// The stored elements as numbers, if there are few and the numbers give the same bytes again.
fn numbers(literal: &Literal) -> Option<Vec<Scalar>> {
    let dtype = literal.ty.dtype;
    let elements = literal.data().chunks_exact(dtype.size());
    if elements.len() > MAX_READABLE_ELEMENTS {
        return None;
    }
    elements.map(|e| decode(dtype, e).filter(|s| encode(dtype, *s).as_deref() == Some(e))).collect()
}
