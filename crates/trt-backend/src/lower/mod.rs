//! From the IR to a network trace: every op as TensorRT layers, for one rank.
//!
//! Types are TensorRT's strongly typed ones: what the IR computes in f32 on f16 and bf16 operands stays one layer where the
//! layer does the same, and gets casts around its pieces otherwise. Layers are few on purpose, since the builder's time
//! grows steeply with them: shuffles fold, constants take the shape that their user needs, repetition is left to
//! broadcasting layers, equal layers are one.

mod attention;
mod collective;
mod hidden_queries;
mod layout;
mod lazy;
mod linear;
mod pointwise;
mod ranks;
mod reduction;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use shardweld_ir::{DType, Graph, GraphError, Literal, Node, NodeId, Op, Scalar, Shape, TensorType, Value};
use thiserror::Error;

use crate::target::Target;
use crate::trace::{
    Call, DistCollective, MAX_DIMS, NetworkTrace, TensorId, TraceBuilder, TraceError, TraceWeight,
};
use lazy::{Data, Lazy, Piece, Step, View};

pub use ranks::{RankTrace, RanksError, lower_all};

/// How weights reach the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightMode {
    /// Inside the engine.
    #[default]
    Embed,
    /// As engine inputs under the weights' names. A weight that only matrix products and normalisations use has leading
    /// dimensions of size 1 up to their rank; the bytes are the same.
    Inputs,
}

/// What lowering is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct LowerOptions {
    /// How weights reach the engine.
    pub weights: WeightMode,
    /// The library that will build it; its known limits are refused up front. `None` knows no limits.
    pub target: Option<Target>,
}

/// A node that cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("node `{node}` ({op}): {what}")]
pub struct Refusal {
    /// Name of the node.
    pub node: String,
    /// Mnemonic.
    pub op: &'static str,
    /// Why not.
    pub what: String,
}

/// Why there is no trace.
#[derive(Debug, Error)]
pub enum LowerError {
    /// Nodes that TensorRT cannot do; all of them.
    #[error("TensorRT cannot build {} of the program's nodes:{}", .0.len(), list(.0))]
    Refused(Vec<Refusal>),
    /// The graph is not one.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The rank is outside the mesh.
    #[error("rank {rank} is outside the mesh of {world} ranks")]
    NoSuchRank {
        /// Rank asked for.
        rank: u32,
        /// Ranks of the mesh.
        world: u32,
    },
    /// The trace as a whole is not one.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

fn list(refusals: &[Refusal]) -> String {
    refusals.iter().map(|r| format!("\n  {r}")).collect()
}

/// Lowers the program as one rank runs it.
///
/// # Errors
/// Everything that TensorRT cannot build, at once.
pub fn lower(graph: &Graph, rank: u32, options: &LowerOptions) -> Result<NetworkTrace, LowerError> {
    let world = graph.mesh().world_size();
    if rank >= world {
        return Err(LowerError::NoSuchRank { rank, world });
    }
    let mut l = Lowerer {
        graph,
        rank,
        options: *options,
        b: TraceBuilder::new(&graph.name, world),
        values: FxHashMap::default(),
        issued: Vec::new(),
        refusals: Vec::new(),
    };
    let order = graph.order()?;
    let (live, live_somewhere) = (l.reachable(true), l.reachable(false));
    // Inputs come first and all of them, in order of declaration: they are the engine's interface.
    for &id in graph.inputs() {
        l.node(id);
    }
    for id in order {
        let node = graph.node(id);
        if live.contains(&id) {
            if !matches!(node.op, Op::Input { .. }) {
                l.node(id);
            }
        } else if live_somewhere.contains(&id) && node.op.collective().is_some() {
            l.refusals.push(Refusal {
                node: node.name.clone(),
                op: node.op.name(),
                what: format!("other ranks issue it, and no output of rank {rank} depends on it"),
            });
        }
    }
    for o in graph.outputs() {
        let at = At { name: o.name.clone(), sources: Vec::new() };
        let made = l.tensor(&at, o.value).and_then(|t| Ok(l.b.output(&o.name, t)?));
        if let Err(Stop::Refused(what)) = made {
            l.refusals.push(Refusal { node: o.name.clone(), op: "output", what });
        }
    }
    l.refuse_group_sizes();
    if !l.refusals.is_empty() {
        return Err(LowerError::Refused(l.refusals));
    }
    Ok(l.b.finish()?)
}

/// Why a node has no layers.
enum Stop {
    /// It is refused.
    Refused(String),
    /// An operand was; nothing more to say.
    Poisoned,
}

impl From<TraceError> for Stop {
    fn from(e: TraceError) -> Stop {
        Stop::Refused(e.what)
    }
}

type Made<T = TensorId> = Result<T, Stop>;

fn refuse<T>(what: impl Into<String>) -> Made<T> {
    Err(Stop::Refused(what.into()))
}

/// Where in the program a layer comes from.
struct At {
    name: String,
    sources: Vec<String>,
}

struct Lowerer<'g> {
    graph: &'g Graph,
    rank: u32,
    options: LowerOptions,
    b: TraceBuilder,
    values: FxHashMap<Value, Lazy>,
    /// Collectives so far, with the nodes that they come from.
    issued: Vec<(String, DistCollective)>,
    refusals: Vec<Refusal>,
}

impl Lowerer<'_> {
    /// Nodes that the outputs depend on: on this rank, or on any.
    fn reachable(&self, on_this_rank: bool) -> FxHashSet<NodeId> {
        let mut live: FxHashSet<NodeId> = FxHashSet::default();
        let mut stack: Vec<NodeId> = self.graph.outputs().iter().map(|o| o.value.node).collect();
        while let Some(id) = stack.pop() {
            if live.insert(id) {
                let node = self.graph.node(id);
                match &node.op {
                    Op::AxisSelect { axis } if on_this_rank => {
                        let at = self.graph.mesh().coordinate(self.rank, *axis) as usize;
                        stack.extend(node.operands.get(at).map(|v| v.node));
                    }
                    _ => stack.extend(node.operands.iter().map(|v| v.node)),
                }
            }
        }
        live
    }

    fn node(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let sources = if node.sources.is_empty() { vec![node.name.clone()] } else { node.sources.clone() };
        let at = At { name: node.name.clone(), sources };
        match self.op(&at, id, node) {
            Ok(values) => {
                for (result, v) in values.into_iter().enumerate() {
                    self.values.insert(Value { node: id, result: result as u32 }, v);
                }
            }
            Err(Stop::Poisoned) => {}
            Err(Stop::Refused(what)) => {
                self.refusals.push(Refusal { node: node.name.clone(), op: node.op.name(), what });
            }
        }
    }

    fn op(&mut self, at: &At, id: NodeId, node: &Node) -> Made<Vec<Lazy>> {
        let x = node.operands.as_slice();
        let result = self.dims(Value::from(id))?;
        let one =
            |t: TensorId, l: &Self| -> Made<Vec<Lazy>> { Ok(vec![Lazy::View(View::of(t, l.b.ty(t).1))]) };
        match &node.op {
            Op::Input { name } => {
                let t = self.b.input(name, node.results[0].dtype, &result)?;
                one(t, self)
            }
            Op::Weight(w) => self.weight(id, *w, &result).map(|v| vec![v]),
            Op::Constant(literal) if literal.is_splat() => {
                let ty = TensorType::new(literal.ty.dtype, &vec![1; result.len()]);
                let one = Literal::splat(ty, literal.data()).ok_or_else(too_large)?;
                let base = self.emit(at, Call::Constant(one))?;
                Ok(vec![Lazy::Expand { base, dims: result }])
            }
            Op::Constant(literal) => Ok(vec![constant(literal, &result)?]),
            Op::Iota { dtype, dim, first, step, .. } => Ok(vec![iota(*dtype, &result, *dim, *first, *step)?]),
            Op::GroupRank { group } => {
                let position = group.position(self.graph.mesh(), self.rank);
                let ty = TensorType::new(DType::I32, &[]);
                let literal = Literal::full(ty, Scalar::Int(i64::from(position)));
                Ok(vec![constant(&literal.ok_or_else(too_large)?, &result)?])
            }
            Op::AxisSelect { axis } => {
                let at = self.graph.mesh().coordinate(self.rank, *axis) as usize;
                let Some(&chosen) = x.get(at) else { return refuse(format!("has no operand #{at}")) };
                Ok(vec![self.lazy(chosen)?])
            }
            Op::Cast { to } => Ok(vec![self.pointwise_unary(x[0], |l, t| l.cast(at, t, *to))?]),
            Op::Unary(u) => Ok(vec![self.pointwise_unary(x[0], |l, t| l.unary(at, *u, t))?]),
            Op::Binary(b) => {
                let (p, q) = self.operands_for(at, x[0], x[1], &result)?;
                let t = self.binary(at, *b, p, q)?;
                one(t, self)
            }
            Op::BinaryScalar { op, scalar, scalar_first } => Ok(vec![
                self.pointwise_unary(x[0], |l, t| l.binary_scalar(at, *op, t, *scalar, *scalar_first))?,
            ]),
            Op::Select => {
                let t = self.select(at, x, &result)?;
                one(t, self)
            }
            Op::MatMul { transpose_a, transpose_b } => {
                let t = self.matmul(at, x, *transpose_a, *transpose_b)?;
                one(t, self)
            }
            Op::Reduce { kind, dims, keep_dims } => {
                let t = self.reduce(at, x[0], *kind, dims, *keep_dims)?;
                one(t, self)
            }
            Op::Softmax { dim } => {
                let input = self.tensor(at, x[0])?;
                let t = self.emit(at, Call::Softmax { input, axis: *dim })?;
                one(t, self)
            }
            Op::Normalize { kind, trailing, epsilon, scale, bias } => {
                let t = self.normalize(at, x, *kind, *trailing, *epsilon, (*scale, *bias))?;
                one(t, self)
            }
            Op::Attention { scale, causal, mask } => {
                let t = self.attention(at, x, *scale, *causal, *mask)?;
                one(t, self)
            }
            Op::Reshape { .. } => Ok(vec![self.shuffle(at, x[0], Step::Reshape(result))?]),
            Op::Transpose { perm } => Ok(vec![self.shuffle(at, x[0], Step::Transpose(perm.clone()))?]),
            Op::Broadcast { .. } => {
                let base = self.loose(at, x[0])?;
                Ok(vec![Lazy::Expand { base, dims: result }])
            }
            Op::Slice { dim, start, limit, stride } => {
                Ok(vec![self.slice(at, x[0], *dim, *start, *limit, *stride)?])
            }
            Op::UpdateSlice { dim, start, stride } => {
                Ok(vec![self.update_slice(at, x[0], x[1], *dim, *start, *stride)?])
            }
            Op::Split { dim, sizes } => {
                let mut start = 0;
                sizes
                    .iter()
                    .map(|&size| {
                        let part = self.slice(at, x[0], *dim, start, start + size, 1);
                        start += size;
                        part
                    })
                    .collect()
            }
            Op::Concat { dim } => Ok(vec![self.concat(at, x, *dim)?]),
            Op::Pad { dim, low, high, value } => {
                let t = self.pad(at, x[0], *dim, *low, *high, *value)?;
                one(t, self)
            }
            Op::Gather { mode, dim } => {
                let (data, indices) = (self.tensor(at, x[0])?, self.tensor(at, x[1])?);
                let elements = *mode == shardweld_ir::GatherMode::Elements;
                let t = self.emit(at, Call::Gather { data, indices, axis: *dim, elements })?;
                one(t, self)
            }
            Op::Conv { stride, padding, dilation, groups, bias } => {
                let t = self.conv(at, x, stride, padding, dilation, *groups, *bias)?;
                Ok(vec![t])
            }
            Op::Collective { kind, group } => Ok(vec![self.collective(at, x[0], kind, group)?]),
            Op::OwnSlice { dim, group } => {
                let size = result.get(*dim as usize).copied().unwrap_or(0);
                let start = size * u64::from(group.position(self.graph.mesh(), self.rank));
                Ok(vec![self.slice(at, x[0], *dim, start, start + size, 1)?])
            }
            Op::OwnPad { dim, group, value } => {
                let mesh = self.graph.mesh();
                let (n, position) = (u64::from(group.size(mesh)), u64::from(group.position(mesh, self.rank)));
                let size = result.get(*dim as usize).copied().unwrap_or(0) / n.max(1);
                let (low, high) = (size * position, size * n.saturating_sub(position + 1));
                let t = self.pad(at, x[0], *dim, low, high, *value)?;
                one(t, self)
            }
        }
    }

    /// Static shape of a value.
    fn dims(&self, v: Value) -> Made<Vec<u64>> {
        match self.graph.try_ty(v).map(|t| t.shape.as_static()) {
            Some(Some(dims)) => Ok(dims),
            Some(None) => refuse("has symbolic sizes"),
            None => refuse("an operand is not in the graph"),
        }
    }

    fn lazy(&self, v: Value) -> Made<Lazy> {
        self.values.get(&v).cloned().ok_or(Stop::Poisoned)
    }

    fn emit(&mut self, at: &At, call: Call) -> Made {
        if let Call::Constant(literal) = &call
            && literal.ty.dtype == DType::I8
        {
            // TensorRT takes a constant of i8 for a quantised one.
            let wide = widened(literal).ok_or_else(too_large)?;
            let input = self.b.add(&at.name, &at.sources, Call::Constant(wide))?;
            return Ok(self.b.add(&at.name, &at.sources, Call::Cast { input, to: DType::I8 })?);
        }
        Ok(self.b.add(&at.name, &at.sources, call)?)
    }

    /// The value as a tensor of its full shape.
    fn tensor(&mut self, at: &At, v: Value) -> Made {
        let lazy = self.lazy(v)?;
        self.materialise(at, lazy)
    }

    /// The value as a tensor that may have size 1 where the value repeats.
    fn loose(&mut self, at: &At, v: Value) -> Made {
        match self.lazy(v)? {
            Lazy::Expand { base, .. } => Ok(base),
            lazy => self.materialise(at, lazy),
        }
    }

    fn materialise(&mut self, at: &At, lazy: Lazy) -> Made {
        match lazy {
            Lazy::View(v) => {
                let (mut first, mut reshape, mut second) = (None, None, None);
                for step in v.steps {
                    match step {
                        Step::Reshape(d) => reshape = Some(d),
                        Step::Transpose(p) if reshape.is_none() => first = Some(p),
                        Step::Transpose(p) => second = Some(p),
                    }
                }
                if first.is_none() && reshape.is_none() {
                    return Ok(v.base);
                }
                // The node's own name stays free for its main layer.
                let name = format!("{}.shuffle", v.sources.last().unwrap_or(&at.name));
                let call = Call::Shuffle { input: v.base, first, reshape, second };
                Ok(self.b.add(&name, &v.sources, call)?)
            }
            Lazy::Expand { base, dims } => {
                let own = self.b.ty(base).1.to_vec();
                if own == dims {
                    return Ok(base);
                }
                let stride = own.iter().zip(&dims).map(|(&a, &b)| u64::from(a == b)).collect();
                let start = vec![0; dims.len()];
                self.emit(at, Call::Slice { input: base, start, size: dims, stride, fill: None })
            }
            Lazy::Pieces { dim, parts } => {
                let mut inputs = Vec::with_capacity(parts.len());
                for p in &parts {
                    inputs.push(self.piece(at, dim, p)?);
                }
                match inputs.as_slice() {
                    [one] => Ok(*one),
                    _ => self.emit(at, Call::Concat { inputs, axis: dim }),
                }
            }
            Lazy::Data { data, dims } => self.data(at, &data, &dims),
        }
    }

    fn piece(&mut self, at: &At, dim: u32, p: &Piece) -> Made {
        let mut size = self.b.ty(p.tensor).1.to_vec();
        let d = dim as usize;
        if p.start == 0 && size.get(d) == Some(&p.len) {
            return Ok(p.tensor);
        }
        let mut start = vec![0i64; size.len()];
        size[d] = p.len;
        start[d] = i64::try_from(p.start).unwrap_or(i64::MAX);
        let stride = vec![1; size.len()];
        self.emit(at, Call::Slice { input: p.tensor, start, size, stride, fill: None })
    }

    fn data(&mut self, at: &At, data: &Data, dims: &[u64]) -> Made {
        match data {
            Data::Weight(w) => Ok(self.b.weight(w.clone(), dims)?),
            Data::Literal(literal) => {
                let ty = TensorType { dtype: literal.ty.dtype, shape: Shape::of(dims) };
                let literal = if literal.is_splat() {
                    Literal::splat(ty, literal.data())
                } else {
                    Literal::dense(ty, literal.data())
                };
                self.emit(at, Call::Constant(literal.ok_or_else(too_large)?))
            }
        }
    }

    /// The value with dimensions of size 1 in front, so that it has `rank` dimensions.
    fn padded(&mut self, at: &At, v: Value, rank: usize) -> Made<Lazy> {
        let dims = self.dims(v)?;
        if dims.len() >= rank {
            return self.lazy(v);
        }
        let padded: Vec<u64> = std::iter::repeat_n(1, rank - dims.len()).chain(dims).collect();
        if let Lazy::Expand { base, .. } = self.lazy(v)? {
            let own = self.b.ty(base).1.to_vec();
            let own_padded = std::iter::repeat_n(1, rank - own.len()).chain(own.iter().copied()).collect();
            let view = View::of(base, &own).then(Step::Reshape(own_padded), &at.sources);
            let base =
                self.materialise(at, view.map_or_else(|| Lazy::View(View::of(base, &own)), Lazy::View))?;
            return Ok(Lazy::Expand { base, dims: padded });
        }
        self.shuffle(at, v, Step::Reshape(padded))
    }

    /// A constant of one element and `rank` dimensions.
    fn scalar(&mut self, at: &At, dtype: DType, value: Scalar, rank: usize) -> Made {
        let literal = Literal::full(TensorType::new(dtype, &vec![1; rank]), value);
        match literal {
            Some(l) => self.emit(at, Call::Constant(l)),
            None => refuse(format!("{value} is no value of {dtype}")),
        }
    }

    fn cast(&mut self, at: &At, t: TensorId, to: DType) -> Made {
        let from = self.b.ty(t).0;
        if from == to {
            return Ok(t);
        }
        if from == DType::F64 || to == DType::F64 {
            return refuse("TensorRT has no f64");
        }
        // Back to where a widening cast came from: the value never changed.
        if let &Call::Cast { input, .. } = self.b.call(t)
            && self.b.ty(input).0 == to
            && to.embeds_in(from)
        {
            return Ok(input);
        }
        self.emit(at, Call::Cast { input: t, to })
    }
}

fn too_large() -> Stop {
    Stop::Refused(format!("the constant is larger than {} bytes", shardweld_ir::literal::MAX_LITERAL_BYTES))
}

/// A literal of i8 as one of i32.
fn widened(literal: &Literal) -> Option<Literal> {
    let ty = TensorType { dtype: DType::I32, shape: literal.ty.shape.clone() };
    let data: Vec<u8> = literal.data().iter().flat_map(|&b| i32::from(b as i8).to_le_bytes()).collect();
    if literal.is_splat() { Literal::splat(ty, data) } else { Literal::dense(ty, data) }
}

fn constant(literal: &Literal, dims: &[u64]) -> Made<Lazy> {
    if literal.ty.dtype == DType::F64 {
        return refuse("TensorRT has no f64");
    }
    Ok(Lazy::Data { data: Data::Literal(literal.clone()), dims: dims.to_vec() })
}

/// An iota as a literal, computed here as the IR says.
fn iota(dtype: DType, dims: &[u64], dim: u32, first: Scalar, step: Scalar) -> Made<Lazy> {
    if dtype == DType::F64 {
        return refuse("TensorRT has no f64");
    }
    let n = dims.get(dim as usize).copied().unwrap_or(0);
    let total = dims.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d));
    if total.is_none_or(|t| t > shardweld_ir::literal::MAX_LITERAL_BYTES) {
        return Err(too_large());
    }
    let line = (0..n)
        .map(|i| {
            let value = if dtype.is_int() {
                let step = step.as_i64().wrapping_mul(i as i64);
                Scalar::Int(first.as_i64().wrapping_add(step))
            } else {
                Scalar::Float(first.as_f64() + step.as_f64() * i as f64)
            };
            shardweld_ir::literal::encode(dtype, value)
        })
        .collect::<Option<Vec<_>>>();
    let Some(line) = line else { return refuse(format!("a value of the iota is no value of {dtype}")) };
    let outer: u64 = dims[..dim as usize].iter().product();
    let inner: u64 = dims[dim as usize + 1..].iter().product();
    let block: Vec<u8> = line.iter().flat_map(|e| e.repeat(inner as usize)).collect();
    let ty = TensorType::new(dtype, dims);
    let literal = Literal::dense(ty, block.repeat(outer as usize)).ok_or_else(too_large)?;
    Ok(Lazy::Data { data: Data::Literal(literal), dims: dims.to_vec() })
}

impl Lowerer<'_> {
    fn weight(&mut self, id: NodeId, w: shardweld_ir::WeightId, dims: &[u64]) -> Made<Lazy> {
        let Some(weight) = self.graph.weights().get(w.0 as usize) else {
            return refuse(format!("weight #{} is not in the table", w.0));
        };
        let dtype = weight.ty.dtype;
        if dtype == DType::F64 {
            return refuse("TensorRT has no f64");
        }
        match self.options.weights {
            WeightMode::Embed => {
                let Some(view) = weight.shard_for(self.graph.mesh(), self.rank) else {
                    return refuse(format!("weight `{}` has no data for rank {}", weight.name, self.rank));
                };
                let data =
                    TraceWeight { name: weight.name.clone(), dtype, dims: dims.to_vec(), view: view.clone() };
                Ok(Lazy::Data { data: Data::Weight(data), dims: dims.to_vec() })
            }
            WeightMode::Inputs => {
                let rank = self.weight_rank(id, dims.len());
                let padded: Vec<u64> =
                    std::iter::repeat_n(1, rank - dims.len()).chain(dims.iter().copied()).collect();
                let t = self.b.input(&weight.name, dtype, &padded)?;
                let view = View::of(t, &padded).then(Step::Reshape(dims.to_vec()), &[]);
                Ok(Lazy::View(view.unwrap_or_else(|| View::of(t, &padded))))
            }
        }
    }

    /// Rank in which all users of a weight want it; its own if they differ.
    fn weight_rank(&self, id: NodeId, own: usize) -> usize {
        let mut wanted = None;
        for (user, operand) in self.graph.users(id) {
            let node = self.graph.node(user);
            let rank = match node.op {
                Op::MatMul { .. } | Op::Normalize { .. } if operand > 0 => node.results[0].rank(),
                _ => return own,
            };
            if wanted.is_some_and(|w| w != rank) {
                return own;
            }
            wanted = Some(rank);
        }
        wanted.unwrap_or(own).max(own)
    }
}
