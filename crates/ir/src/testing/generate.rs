//! The generator: picks an op that fits some value of the pool, adds it, and puts its results into the pool.

use super::{ProgramOptions, Rng};
use crate::graph::{Graph, NodeId, Value};
use crate::literal::{Literal, Scalar, encode};
use crate::mesh::Mesh;
use crate::op::{Binary, GatherMode, NormKind, Op, ReduceKind, Unary};
use crate::types::{DType, Shape, TensorType};
use crate::weight::{Blob, BlobEntry, StridedView, Weight, WeightView};

/// Sizes that dimensions are drawn from; many divide evenly by small groups.
const SIZES: [u64; 8] = [1, 2, 2, 3, 4, 4, 6, 8];
/// Tries per node wanted; most ops fit most pools, so that few programs stay shorter than asked.
const TRIES_PER_NODE: usize = 20;
/// Functions that stay finite on small values, with those that do not mixed in.
const FLOAT_UNARY: [Unary; 16] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Ceil,
    Unary::Floor,
    Unary::Round,
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Recip,
    Unary::Exp,
    Unary::Sin,
    Unary::Cos,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Silu,
    Unary::Relu,
];
const FLOAT_BINARY: [Binary; 13] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Max,
    Binary::Min,
    Binary::Pow,
    Binary::Eq,
    Binary::Ne,
    Binary::Lt,
    Binary::Le,
    Binary::Gt,
    Binary::Ge,
];
const INT_BINARY: [Binary; 10] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Max,
    Binary::Min,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::Eq,
    Binary::Lt,
];
const BOOL_BINARY: [Binary; 5] = [Binary::And, Binary::Or, Binary::Xor, Binary::Eq, Binary::Ne];

/// A random program that verifies. Inputs are named `x0`, `x1`, ..; every value without a user is an output `y0`, `y1`, ..
///
/// # Panics
/// Never for any seed and options; that a generated node fits is checked by the graph, and one that does not is dropped.
pub fn random_program(seed: u64, options: &ProgramOptions) -> Graph {
    let mut rng = Rng::new(seed);
    let mesh = random_mesh(&mut rng, options.max_ranks);
    let mut g =
        Generator { graph: Graph::new(format!("random{seed}"), mesh), rng, pool: Vec::new(), options };
    for i in 0..1 + g.rng.below(3) {
        g.input(i);
    }
    let target = g.graph.len() + options.nodes;
    for _ in 0..options.nodes.saturating_mul(TRIES_PER_NODE) {
        if g.graph.len() >= target {
            break;
        }
        let _ = g.step();
    }
    g.finish()
}

fn random_mesh(rng: &mut Rng, max_ranks: u32) -> Mesh {
    let fits: Vec<Vec<(&str, u32)>> =
        [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (2, 4), (8, 1), (2, 3)]
            .into_iter()
            .filter(|(a, b)| a * b <= max_ranks)
            .map(|(a, b)| if b == 1 { vec![("cp", a)] } else { vec![("cp", a), ("tp", b)] })
            .collect();
    let axes = rng.pick(&fits).cloned().unwrap_or_default();
    Mesh::new(axes).unwrap_or_else(|_| unreachable!("axis names differ and sizes are small"))
}

pub(super) struct Generator<'a> {
    pub(super) graph: Graph,
    pub(super) rng: Rng,
    /// Values that are defined on every rank.
    pool: Vec<Value>,
    options: &'a ProgramOptions,
}

impl Generator<'_> {
    fn input(&mut self, i: usize) {
        let dtype = self.rng.pick(&self.options.dtypes).copied().unwrap_or(DType::F32);
        let rank = 1 + self.rng.below(4);
        let shape = self.shape(rank);
        if let Ok(id) = self.graph.add_input(&format!("x{i}"), TensorType::new(dtype, &shape)) {
            self.pool.push(id.into());
        }
    }

    fn shape(&mut self, rank: usize) -> Vec<u64> {
        let mut left = self.options.max_elements.max(1);
        (0..rank)
            .map(|_| {
                let d = *self.rng.pick(&SIZES).unwrap_or(&1);
                let d = if d <= left { d } else { 1 };
                left /= d;
                d
            })
            .collect()
    }

    pub(super) fn ty(&self, v: Value) -> TensorType {
        self.graph.ty(v).clone()
    }

    fn dims(&self, v: Value) -> Vec<u64> {
        self.graph.ty(v).shape.as_static().unwrap_or_default()
    }

    /// A value of the pool that fits, later ones more likely so that programs grow deep.
    pub(super) fn value(&mut self, fits: impl Fn(&TensorType) -> bool) -> Option<Value> {
        let fitting: Vec<Value> = self.pool.iter().copied().filter(|v| fits(self.graph.ty(*v))).collect();
        let from = if self.rng.one_in(2) { fitting.len().saturating_sub(4) } else { 0 };
        self.rng.pick(&fitting[from..]).copied()
    }

    /// Adds a node; results larger than allowed are not used further.
    pub(super) fn add(&mut self, op: Op, operands: &[Value]) -> Option<NodeId> {
        let name = op.name();
        let types: Vec<&TensorType> = operands.iter().map(|v| self.graph.ty(*v)).collect();
        let results = crate::infer(&op, &types, self.graph.mesh(), self.graph.weights()).ok()?;
        if results.iter().any(|r| r.shape.elements().is_none_or(|n| n > self.options.max_elements)) {
            return None;
        }
        self.graph.add(name, op, operands).ok()
    }

    pub(super) fn push(&mut self, op: Op, operands: &[Value]) -> Option<()> {
        let node = self.add(op, operands)?;
        let results = self.graph.node(node).results.len() as u32;
        self.pool.extend((0..results).map(|result| Value { node, result }));
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        match self.rng.below(20) {
            0 | 1 => self.unary(),
            2 | 3 => self.binary(),
            4 => self.binary_scalar(),
            5 => self.select(),
            6 => self.cast(),
            7 => self.constant(),
            8..=10 => self.layout(),
            11 => self.reduce(),
            12 | 13 if self.options.heavy_ops => self.heavy(),
            14 => self.positional(),
            15 if self.options.weights => self.weight(),
            16.. if self.options.collectives => self.collective(),
            _ => self.layout(),
        }
    }

    fn unary(&mut self) -> Option<()> {
        let x = self.value(|_| true)?;
        let op = match self.ty(x).dtype {
            d if d.is_float() => *self.rng.pick(&FLOAT_UNARY)?,
            DType::Bool => Unary::Not,
            _ => *self.rng.pick(&[Unary::Neg, Unary::Abs, Unary::Not, Unary::Relu])?,
        };
        self.push(Op::Unary(op), &[x])
    }

    fn binary_op(&mut self, dtype: DType) -> Option<Binary> {
        match dtype {
            d if d.is_float() => self.rng.pick(&FLOAT_BINARY),
            DType::Bool => self.rng.pick(&BOOL_BINARY),
            _ => self.rng.pick(&INT_BINARY),
        }
        .copied()
    }

    /// A second operand for `x`: of its type, or one that broadcasts with it.
    fn partner(&mut self, x: Value) -> Option<Value> {
        let ty = self.ty(x);
        let dims = self.dims(x);
        if let Some(y) = self.value(|t| t.dtype == ty.dtype && broadcasts(&t.shape, &dims))
            && !self.rng.one_in(3)
        {
            return Some(y);
        }
        let shape: Vec<u64> = dims.iter().map(|&d| if self.rng.one_in(3) { 1 } else { d }).collect();
        self.literal(ty.dtype, &shape)
    }

    fn binary(&mut self) -> Option<()> {
        let x = self.value(|_| true)?;
        let op = self.binary_op(self.ty(x).dtype)?;
        let y = self.partner(x)?;
        let operands = if self.rng.one_in(2) { [x, y] } else { [y, x] };
        self.push(Op::Binary(op), &operands)
    }

    fn binary_scalar(&mut self) -> Option<()> {
        let x = self.value(|t| t.dtype != DType::Bool)?;
        let dtype = self.ty(x).dtype;
        let op = self.binary_op(dtype)?;
        let scalar = self.scalar(dtype);
        let scalar_first = self.rng.one_in(3);
        self.push(Op::BinaryScalar { op, scalar, scalar_first }, &[x])
    }

    fn select(&mut self) -> Option<()> {
        let c = self.value(|t| t.dtype == DType::Bool)?;
        let dims = self.dims(c);
        let a = self.value(|t| broadcasts(&t.shape, &dims))?;
        let b = self.partner(a)?;
        self.push(Op::Select, &[c, a, b])
    }

    fn cast(&mut self) -> Option<()> {
        let x = self.value(|_| true)?;
        let from = self.ty(x).dtype;
        let to = *self.rng.pick(&self.options.dtypes)?;
        // Floats out of an integer's range have no defined cast.
        if from.is_float() && !to.is_float() {
            return None;
        }
        self.push(Op::Cast { to }, &[x])
    }

    pub(super) fn scalar(&mut self, dtype: DType) -> Scalar {
        match dtype {
            d if d.is_float() => Scalar::Float(self.rng.small_float()),
            DType::Bool => Scalar::Bool(self.rng.one_in(2)),
            DType::U8 => Scalar::Int(self.rng.below(5) as i64),
            _ => Scalar::Int(self.rng.below(9) as i64 - 4),
        }
    }

    fn literal(&mut self, dtype: DType, shape: &[u64]) -> Option<Value> {
        let ty = TensorType::new(dtype, shape);
        let literal = if self.rng.one_in(3) {
            let value = self.scalar(dtype);
            Literal::full(ty, value)?
        } else {
            let mut data = Vec::new();
            for _ in 0..ty.shape.elements()? {
                data.extend(encode(dtype, self.scalar(dtype))?);
            }
            Literal::dense(ty, data)?
        };
        self.add(Op::Constant(literal), &[]).map(Value::from)
    }

    fn constant(&mut self) -> Option<()> {
        let dtype = *self.rng.pick(&self.options.dtypes)?;
        let rank = self.rng.below(4);
        let shape = self.shape(rank);
        let v = self.literal(dtype, &shape)?;
        self.pool.push(v);
        Some(())
    }

    pub(super) fn dim_of(&mut self, x: Value, fits: impl Fn(u64) -> bool) -> Option<u32> {
        let dims: Vec<u32> = (0u32..).zip(self.dims(x)).filter(|(_, n)| fits(*n)).map(|(i, _)| i).collect();
        self.rng.pick(&dims).copied()
    }

    fn layout(&mut self) -> Option<()> {
        let x = self.value(|_| true)?;
        let dims = self.dims(x);
        match self.rng.below(8) {
            0 => {
                let shape = self.factored(dims.iter().product());
                self.push(Op::Reshape { shape: Shape::of(&shape) }, &[x])
            }
            1 => {
                let mut perm: Vec<u32> = (0..dims.len() as u32).collect();
                self.rng.shuffle(&mut perm);
                self.push(Op::Transpose { perm }, &[x])
            }
            2 => {
                let shape: Vec<u64> = dims
                    .iter()
                    .map(|&d| if d == 1 { *self.rng.pick(&SIZES).unwrap_or(&1) } else { d })
                    .collect();
                self.push(Op::Broadcast { shape: Shape::of(&shape) }, &[x])
            }
            3 => {
                let dim = self.dim_of(x, |n| n > 1)?;
                let n = dims[dim as usize];
                let start = self.rng.below(n as usize) as u64;
                let limit = start + 1 + self.rng.below((n - start) as usize) as u64;
                let stride = 1 + self.rng.below(2) as u64;
                self.push(Op::Slice { dim, start, limit, stride }, &[x])
            }
            4 => {
                let dim = self.dim_of(x, |_| true)?;
                let ty = self.ty(x);
                let fits = |t: &TensorType| {
                    t.dtype == ty.dtype
                        && t.rank() == ty.rank()
                        && t.shape
                            .0
                            .iter()
                            .zip(&ty.shape.0)
                            .enumerate()
                            .all(|(i, (a, b))| i == dim as usize || a == b)
                };
                let y = self.value(fits)?;
                self.push(Op::Concat { dim }, &[x, y])
            }
            5 => {
                let dim = self.dim_of(x, |n| n > 1)?;
                let first = 1 + self.rng.below(dims[dim as usize] as usize - 1) as u64;
                self.push(Op::Split { dim, sizes: vec![first, dims[dim as usize] - first] }, &[x])
            }
            6 => {
                let dim = self.dim_of(x, |_| true)?;
                let value = self.scalar(self.ty(x).dtype);
                let (low, high) = (self.rng.below(3) as u64, self.rng.below(3) as u64);
                self.push(Op::Pad { dim, low, high, value }, &[x])
            }
            _ => {
                let dim = self.dim_of(x, |n| n > 1)?;
                let n = dims[dim as usize];
                let start = self.rng.below(n as usize) as u64;
                let mut shape = dims.clone();
                shape[dim as usize] = 1 + self.rng.below((n - start) as usize) as u64;
                let update = self.literal(self.ty(x).dtype, &shape)?;
                self.push(Op::UpdateSlice { dim, start, stride: 1 }, &[x, update])
            }
        }
    }

    /// A random shape of `n` elements.
    fn factored(&mut self, mut n: u64) -> Vec<u64> {
        let mut shape = Vec::new();
        while n > 1 && shape.len() < 3 {
            let divisors: Vec<u64> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
            let d = *self.rng.pick(&divisors).unwrap_or(&1);
            shape.push(d);
            n /= d;
        }
        if n > 1 || shape.is_empty() {
            shape.push(n);
        }
        self.rng.shuffle(&mut shape);
        shape
    }

    fn reduce(&mut self) -> Option<()> {
        let x = self.value(|t| t.rank() > 0)?;
        let ty = self.ty(x);
        let kind = match ty.dtype {
            DType::Bool => *self.rng.pick(&[ReduceKind::Max, ReduceKind::Min])?,
            d if d.is_int() => *self.rng.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min])?,
            _ => *self.rng.pick(ReduceKind::ALL)?,
        };
        let mut dims: Vec<u32> = (0..ty.rank() as u32).filter(|_| self.rng.one_in(2)).collect();
        if dims.is_empty() {
            dims.push(self.rng.below(ty.rank()) as u32);
        }
        let keep_dims = self.rng.one_in(2);
        self.push(Op::Reduce { kind, dims, keep_dims }, &[x])
    }

    fn heavy(&mut self) -> Option<()> {
        let x = self.value(|t| t.dtype.is_float() && t.rank() >= 2)?;
        let (ty, dims) = (self.ty(x), self.dims(x));
        let last = *dims.last()?;
        match self.rng.below(6) {
            0 => {
                // Two values of the pool, with the last dimension of both contracted.
                let fits = |t: &TensorType| {
                    t.dtype == ty.dtype && t.rank() >= 2 && t.shape.0.last() == ty.shape.0.last()
                };
                let y = self.value(fits)?;
                self.push(Op::MatMul { transpose_a: false, transpose_b: true }, &[x, y])
            }
            1 => {
                let n = *self.rng.pick(&SIZES)?;
                let transpose_b = self.rng.one_in(2);
                let b = self.literal(ty.dtype, &if transpose_b { [n, last] } else { [last, n] })?;
                let mut operands = vec![x, b];
                if self.rng.one_in(3) {
                    operands.push(self.literal(ty.dtype, &[n])?);
                }
                self.push(Op::MatMul { transpose_a: false, transpose_b }, &operands)
            }
            2 => {
                let dim = self.dim_of(x, |_| true)?;
                self.push(Op::Softmax { dim }, &[x])
            }
            3 => {
                let kind = *self.rng.pick(NormKind::ALL)?;
                let scale = self.rng.one_in(2);
                let mut operands = vec![x];
                if scale {
                    operands.push(self.literal(ty.dtype, &[last])?);
                }
                let epsilon = Scalar::Float(1e-5);
                self.push(Op::Normalize { kind, trailing: 1, epsilon, scale, bias: false }, &operands)
            }
            _ if dims.len() == 3 && self.rng.one_in(2) => {
                let out = *self.rng.pick(&SIZES)?;
                let taps = 1 + self.rng.below(3) as u64;
                let w = self.literal(ty.dtype, &[out, dims[1], taps])?;
                let op = Op::Conv {
                    stride: vec![1 + self.rng.below(2) as u64],
                    padding: vec![(self.rng.below(2) as u64, self.rng.below(2) as u64)],
                    dilation: vec![1],
                    groups: 1,
                    bias: false,
                };
                self.push(op, &[x, w])
            }
            _ => {
                let kv = self.value(|t| *t == ty)?;
                let (causal, mask) = (self.rng.one_in(3), self.rng.one_in(3));
                let mut operands = vec![x, kv, kv];
                if mask {
                    let mut shape = vec![1; dims.len()];
                    shape[dims.len() - 2..].fill(dims[dims.len() - 2]);
                    operands.push(self.literal(ty.dtype, &shape)?);
                }
                self.push(Op::Attention { scale: Scalar::Float(0.5), causal, mask }, &operands)
            }
        }
    }

    /// Ops that depend on positions: iota, gather, this rank's position.
    fn positional(&mut self) -> Option<()> {
        match self.rng.below(4) {
            0 => {
                let rank = 1 + self.rng.below(3);
                let shape = self.shape(rank);
                let (dim, first, step) = (self.rng.below(rank) as u32, Scalar::Int(1), Scalar::Int(2));
                self.push(Op::Iota { dtype: DType::I64, shape: Shape::of(&shape), dim, first, step }, &[])
            }
            1 => {
                let group = self.group();
                let rank = self.add(Op::GroupRank { group }, &[])?.into();
                // Rank 1, so that more ops take it.
                self.push(Op::Reshape { shape: Shape::of(&[1]) }, &[rank])
            }
            _ => {
                let data = self.value(|t| t.rank() > 0)?;
                let dim = self.dim_of(data, |n| n > 0)?;
                let mut dims = self.dims(data);
                let n = dims[dim as usize];
                let (mode, shape) = if self.rng.one_in(2) {
                    let rank = self.rng.below(3);
                    (GatherMode::Take, self.shape(rank))
                } else {
                    dims[dim as usize] = 1 + self.rng.below(4) as u64;
                    (GatherMode::Elements, dims)
                };
                let count: u64 = shape.iter().product();
                if count > self.options.max_elements {
                    return None;
                }
                let data_of = (0..count).flat_map(|_| (self.rng.below(n as usize) as i64).to_le_bytes());
                let bytes: Vec<u8> = data_of.collect();
                let literal = Literal::dense(TensorType::new(DType::I64, &shape), bytes)?;
                let indices = self.add(Op::Constant(literal), &[])?.into();
                self.push(Op::Gather { mode, dim }, &[data, indices])
            }
        }
    }

    fn weight(&mut self) -> Option<()> {
        let dtype = *self.rng.pick(&self.options.dtypes)?;
        let rank = 1 + self.rng.below(3);
        let shape = self.shape(rank);
        let mut over = Vec::new();
        let mut shards = 1;
        if self.rng.one_in(2)
            && let Some(axis) = self.axis()
        {
            over.push(axis);
            shards = self.graph.mesh().axis_size(axis)?;
        }
        let name = format!("weight \"{}\"", self.graph.weights().len());
        let view = |i: u32| {
            let entry = match i % 3 {
                0 => BlobEntry::Zip(format!("data/weights/weight_{i}")),
                1 => BlobEntry::Safetensors(format!("blk.{i}")),
                _ => BlobEntry::Raw { offset: 64, len: 1 << 20 },
            };
            let blob = Blob { file: format!("dir/model.rank{i}.pt2").into(), entry };
            let mut v = StridedView::contiguous(blob, dtype, &shape);
            v.offset = u64::from(i) * 3;
            v.strides[0] += u64::from(i);
            WeightView::Strided(v)
        };
        let mut views: Vec<WeightView> = (0..shards).map(view).collect();
        if self.rng.one_in(4) {
            views.fill(WeightView::Absent);
        }
        let weight = Weight { name, ty: TensorType::new(dtype, &shape), over, shards: views };
        let id = self.graph.add_weight(weight).ok()?;
        self.push(Op::Weight(id), &[])
    }

    fn finish(mut self) -> Graph {
        let used: std::collections::BTreeSet<Value> =
            self.graph.nodes().flat_map(|(_, n)| n.operands.iter().copied()).collect();
        let sinks: Vec<Value> = self.pool.iter().copied().filter(|v| !used.contains(v)).collect();
        for (i, v) in sinks.into_iter().enumerate() {
            // Names differ and the value is of this graph, so that adding cannot fail.
            let _ = self.graph.add_output(&format!("y{i}"), v);
        }
        self.graph.remove_dead();
        self.graph
    }
}

/// Whether a shape broadcasts elementwise with static sizes of the same rank.
fn broadcasts(shape: &Shape, dims: &[u64]) -> bool {
    shape.as_static().is_some_and(|s| {
        s.len() == dims.len() && s.iter().zip(dims).all(|(a, b)| a == b || *a == 1 || *b == 1)
    })
}
