//! A builder that a frontend writes programs with: a method per op, names, and ranks aligned for elementwise ops.
//!
//! ```
//! use shardweld_ir::{DType::F32, GraphError, Mesh, ReduceOp, builder::Builder};
//!
//! // A row-parallel linear layer on two ranks, with sequence-sharded input.
//! let mut b = Builder::new("linear", Mesh::new([("tp", 2)])?);
//! let x = b.input("x", F32, &[1, 3, 8])?;
//! let w = b.weight("w", F32, &[8, 4])?;
//! let bias = b.weight("bias", F32, &[4])?;
//! let full = b.all_gather(x, 1, &["tp"])?;
//! let y = b.matmul(full, w)?;
//! let y = b.all_reduce(y, ReduceOp::Sum, &["tp"])?;
//! let y = b.add(y, bias)?; // bias is reshaped to [1, 1, 4]
//! b.output("y", y)?;
//! let graph = b.finish()?;
//! assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "f32[1,6,4]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use thiserror::Error;

use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::infer::InferError;
use crate::literal::{Literal, Scalar};
use crate::mesh::{Group, Mesh};
use crate::op::{Binary, Collective, GatherMode, NormKind, Op, ReduceKind, ReduceOp, Unary};
use crate::types::{DType, Dim, Shape, TensorType};
use crate::verify::VerifyError;
use crate::weight::{Weight, WeightView};

/// Why the builder refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BuildError {
    /// The graph refuses the node.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The mesh has no axis of this name.
    #[error("the mesh {mesh} has no axis `{axis}`")]
    NoSuchAxis {
        /// Name asked for.
        axis: String,
        /// The mesh.
        mesh: Mesh,
    },
    /// A constant's data do not fit its type.
    #[error("{bytes} bytes do not make a constant of type {ty}")]
    Constant {
        /// Bytes given.
        bytes: usize,
        /// Type asked for.
        ty: TensorType,
    },
    /// The finished graph does not verify.
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

type Result<T> = std::result::Result<T, BuildError>;

/// Builds one [`Graph`]. Values are handles of that graph.
#[derive(Clone, Debug)]
pub struct Builder {
    graph: Graph,
    next_name: Option<String>,
}

/// The second operand of an elementwise op: a value, or a number.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// A value.
    Value(Value),
    /// A number, not rounded to the other operand's type.
    Scalar(Scalar),
}

impl From<Value> for Operand {
    fn from(v: Value) -> Self {
        Operand::Value(v)
    }
}
impl From<f64> for Operand {
    fn from(x: f64) -> Self {
        Operand::Scalar(Scalar::Float(x))
    }
}
impl From<i64> for Operand {
    fn from(i: i64) -> Self {
        Operand::Scalar(Scalar::Int(i))
    }
}

macro_rules! unary_methods {
    ($($name:ident = $op:ident),*) => { $(
        #[doc = concat!("[`Unary::", stringify!($op), "`]")]
        ///
        /// # Errors
        /// If the shape rules refuse the operand.
        pub fn $name(&mut self, x: Value) -> Result<Value> {
            self.unary(Unary::$op, x)
        }
    )* };
}

macro_rules! binary_methods {
    ($($name:ident = $op:ident),*) => { $(
        #[doc = concat!("[`Binary::", stringify!($op), "`]; ranks are aligned.")]
        ///
        /// # Errors
        /// If the shape rules refuse the operands.
        pub fn $name(&mut self, a: Value, b: impl Into<Operand>) -> Result<Value> {
            self.binary(Binary::$op, a, b)
        }
    )* };
}

impl Builder {
    /// An empty program.
    pub fn new(name: &str, mesh: Mesh) -> Builder {
        Builder { graph: Graph::new(name, mesh), next_name: None }
    }

    /// Names the next node.
    pub fn named(&mut self, name: &str) -> &mut Builder {
        self.next_name = Some(name.to_owned());
        self
    }

    /// Type of a value of this builder.
    ///
    /// # Errors
    /// If the value is of another graph.
    pub fn ty(&self, v: Value) -> Result<&TensorType> {
        let dangling =
            || GraphError::Dangling { node: "the builder".into(), index: v.node.index(), result: v.result };
        Ok(self.graph.try_ty(v).ok_or_else(dangling)?)
    }

    /// The group over the named axes, first major.
    ///
    /// # Errors
    /// If the mesh has no such axis.
    pub fn group(&self, axes: &[&str]) -> Result<Group> {
        let mesh = self.graph.mesh();
        let find = |axis: &&str| {
            mesh.axis(axis)
                .ok_or_else(|| BuildError::NoSuchAxis { axis: (*axis).to_owned(), mesh: mesh.clone() })
        };
        axes.iter().map(find).collect::<Result<_>>().map(Group::Axes)
    }

    /// Any op, for what has no method.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn op(&mut self, op: Op, operands: &[Value]) -> Result<NodeId> {
        let name = self.next_name.take().unwrap_or_else(|| op.name().to_owned());
        Ok(self.graph.add(&name, op, operands)?)
    }

    fn one(&mut self, op: Op, operands: &[Value]) -> Result<Value> {
        self.op(op, operands).map(Value::from)
    }

    /// A run-time input of the given local shape.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Result<Value> {
        Ok(self.graph.add_input(name, TensorType::new(dtype, shape))?.into())
    }

    /// A weight that all ranks hold alike, without data yet.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn weight(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Result<Value> {
        self.weight_from(Weight {
            name: name.to_owned(),
            ty: TensorType::new(dtype, shape),
            over: Vec::new(),
            shards: vec![WeightView::Absent],
        })
    }

    /// A weight with its shards.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn weight_from(&mut self, weight: Weight) -> Result<Value> {
        let name = weight.name.clone();
        let id = self.graph.add_weight(weight)?;
        self.next_name.get_or_insert(name);
        self.one(Op::Weight(id), &[])
    }

    /// A constant of the given little-endian bytes.
    ///
    /// # Errors
    /// If the bytes do not fill the type.
    pub fn constant(&mut self, dtype: DType, shape: &[u64], data: &[u8]) -> Result<Value> {
        let ty = TensorType::new(dtype, shape);
        let literal = Literal::dense(ty.clone(), data);
        self.one(Op::Constant(literal.ok_or(BuildError::Constant { bytes: data.len(), ty })?), &[])
    }

    /// A constant whose elements are all `value`.
    ///
    /// # Errors
    /// If the type has no such value.
    pub fn full(&mut self, dtype: DType, shape: &[u64], value: impl Into<Scalar>) -> Result<Value> {
        let ty = TensorType::new(dtype, shape);
        let literal = Literal::full(ty.clone(), value.into());
        self.one(Op::Constant(literal.ok_or(BuildError::Constant { bytes: 0, ty })?), &[])
    }

    /// `first + step * index` along `dim`.
    ///
    /// # Errors
    /// If the shape rules refuse it.
    pub fn iota(
        &mut self,
        dtype: DType,
        shape: &[u64],
        dim: u32,
        first: impl Into<Scalar>,
        step: impl Into<Scalar>,
    ) -> Result<Value> {
        let (first, step) = (first.into(), step.into());
        self.one(Op::Iota { dtype, shape: Shape::of(shape), dim, first, step }, &[])
    }

    /// Conversion to another element type; the value itself if it has it.
    ///
    /// # Errors
    /// If the value is of another graph.
    pub fn cast(&mut self, x: Value, to: DType) -> Result<Value> {
        if self.ty(x)?.dtype == to {
            self.next_name = None;
            return Ok(x);
        }
        self.one(Op::Cast { to }, &[x])
    }

    /// Elementwise function of one operand.
    ///
    /// # Errors
    /// If the shape rules refuse the operand.
    pub fn unary(&mut self, op: Unary, x: Value) -> Result<Value> {
        self.one(Op::Unary(op), &[x])
    }

    /// Elementwise function of two operands; the one of lower rank gets leading dimensions of size 1.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn binary(&mut self, op: Binary, a: Value, b: impl Into<Operand>) -> Result<Value> {
        match b.into() {
            Operand::Scalar(scalar) => self.one(Op::BinaryScalar { op, scalar, scalar_first: false }, &[a]),
            Operand::Value(b) => {
                let name = self.next_name.take();
                let operands = self.aligned(&[a, b])?;
                self.next_name = name;
                self.one(Op::Binary(op), &operands)
            }
        }
    }

    /// Elementwise function whose first operand is a number.
    ///
    /// # Errors
    /// If the shape rules refuse the operand.
    pub fn scalar_first(&mut self, op: Binary, scalar: impl Into<Scalar>, x: Value) -> Result<Value> {
        self.one(Op::BinaryScalar { op, scalar: scalar.into(), scalar_first: true }, &[x])
    }

    unary_methods!(
        neg = Neg,
        abs = Abs,
        sqrt = Sqrt,
        rsqrt = Rsqrt,
        exp = Exp,
        log = Log,
        sin = Sin,
        cos = Cos,
        tanh = Tanh,
        sigmoid = Sigmoid,
        silu = Silu,
        gelu = Gelu,
        relu = Relu,
        not = Not
    );
    binary_methods!(
        add = Add,
        sub = Sub,
        mul = Mul,
        div = Div,
        pow = Pow,
        max = Max,
        min = Min,
        eq = Eq,
        ne = Ne,
        lt = Lt,
        le = Le,
        gt = Gt,
        ge = Ge,
        and = And,
        or = Or
    );

    /// `a` where the condition holds, `b` elsewhere; ranks are aligned.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Result<Value> {
        let name = self.next_name.take();
        let operands = self.aligned(&[condition, a, b])?;
        self.next_name = name;
        self.one(Op::Select, &operands)
    }

    /// Reshapes so that all have the rank of the highest, with leading dimensions of size 1.
    fn aligned(&mut self, values: &[Value]) -> Result<Vec<Value>> {
        let ranks = values.iter().map(|v| self.ty(*v).map(TensorType::rank)).collect::<Result<Vec<_>>>()?;
        let rank = ranks.iter().copied().max().unwrap_or(0);
        values
            .iter()
            .zip(ranks)
            .map(|(&v, r)| {
                if r == rank {
                    return Ok(v);
                }
                let mut dims = vec![Dim::Static(1); rank - r];
                dims.extend(self.ty(v)?.shape.0.iter().cloned());
                self.one(Op::Reshape { shape: Shape(dims) }, &[v])
            })
            .collect()
    }

    /// Matrix product of the last two dimensions.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn matmul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.one(Op::MatMul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// `x w^T + bias` with `w` as PyTorch's `linear` stores it: `[out, in]`.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn linear(&mut self, x: Value, w: Value, bias: Option<Value>) -> Result<Value> {
        let operands: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.one(Op::MatMul { transpose_a: false, transpose_b: true }, &operands)
    }

    /// Reduction over dimensions, in any order.
    ///
    /// # Errors
    /// If the shape rules refuse the operand.
    pub fn reduce(&mut self, x: Value, kind: ReduceKind, dims: &[u32], keep_dims: bool) -> Result<Value> {
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        self.one(Op::Reduce { kind, dims, keep_dims }, &[x])
    }

    /// Softmax along a dimension.
    ///
    /// # Errors
    /// If the shape rules refuse the operand.
    pub fn softmax(&mut self, x: Value, dim: u32) -> Result<Value> {
        self.one(Op::Softmax { dim }, &[x])
    }

    /// Normalisation over the last `trailing` dimensions.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn normalize(
        &mut self,
        x: Value,
        kind: NormKind,
        trailing: u32,
        epsilon: f64,
        scale: Option<Value>,
        bias: Option<Value>,
    ) -> Result<Value> {
        let op = Op::Normalize {
            kind,
            trailing,
            epsilon: epsilon.into(),
            scale: scale.is_some(),
            bias: bias.is_some(),
        };
        let operands: Vec<Value> = [x].into_iter().chain(scale).chain(bias).collect();
        self.one(op, &operands)
    }

    /// Scaled dot-product attention; `mask` is additive or bool.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn attention(
        &mut self,
        [q, k, v]: [Value; 3],
        mask: Option<Value>,
        scale: f64,
        causal: bool,
    ) -> Result<Value> {
        let operands: Vec<Value> = [q, k, v].into_iter().chain(mask).collect();
        self.one(Op::Attention { scale: scale.into(), causal, mask: mask.is_some() }, &operands)
    }

    /// Same elements, other shape.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshape(&mut self, x: Value, shape: &[u64]) -> Result<Value> {
        self.one(Op::Reshape { shape: Shape::of(shape) }, &[x])
    }

    /// Dimension i of the result is dimension `perm[i]` of `x`.
    ///
    /// # Errors
    /// If `perm` is no permutation.
    pub fn transpose(&mut self, x: Value, perm: &[u32]) -> Result<Value> {
        self.one(Op::Transpose { perm: perm.to_vec() }, &[x])
    }

    /// Repeats dimensions of size 1, after adding leading ones.
    ///
    /// # Errors
    /// If the shape does not broadcast.
    pub fn broadcast(&mut self, x: Value, shape: &[u64]) -> Result<Value> {
        let found = self.ty(x)?.shape.clone();
        let Some(missing) = shape.len().checked_sub(found.rank()) else {
            let source = InferError::Shape(format!("{found} has more dimensions than {}", Shape::of(shape)));
            return Err(GraphError::Infer { node: "broadcast".into(), op: "broadcast", source }.into());
        };
        let name = self.next_name.take();
        let mut from = x;
        if missing > 0 {
            let mut dims = vec![Dim::Static(1); missing];
            dims.extend(found.0);
            from = self.one(Op::Reshape { shape: Shape(dims) }, &[x])?;
        }
        self.next_name = name;
        self.one(Op::Broadcast { shape: Shape::of(shape) }, &[from])
    }

    /// Elements `start..limit` of a dimension.
    ///
    /// # Errors
    /// If the range does not exist.
    pub fn slice(&mut self, x: Value, dim: u32, start: u64, limit: u64) -> Result<Value> {
        self.one(Op::Slice { dim, start, limit, stride: 1 }, &[x])
    }

    /// Pieces of the given sizes along a dimension.
    ///
    /// # Errors
    /// If the sizes do not add up.
    pub fn split(&mut self, x: Value, dim: u32, sizes: &[u64]) -> Result<Vec<Value>> {
        let node = self.op(Op::Split { dim, sizes: sizes.to_vec() }, &[x])?;
        Ok((0..sizes.len() as u32).map(|result| Value { node, result }).collect())
    }

    /// Concatenation along a dimension.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn concat(&mut self, parts: &[Value], dim: u32) -> Result<Value> {
        self.one(Op::Concat { dim }, parts)
    }

    /// `low` values before and `high` after along a dimension.
    ///
    /// # Errors
    /// If the value is none of the type.
    pub fn pad(
        &mut self,
        x: Value,
        dim: u32,
        low: u64,
        high: u64,
        value: impl Into<Scalar>,
    ) -> Result<Value> {
        self.one(Op::Pad { dim, low, high, value: value.into() }, &[x])
    }

    /// Picks by indices along a dimension.
    ///
    /// # Errors
    /// If the shape rules refuse the operands.
    pub fn gather(&mut self, data: Value, indices: Value, mode: GatherMode, dim: u32) -> Result<Value> {
        self.one(Op::Gather { mode, dim }, &[data, indices])
    }

    /// Any collective over the named axes; for explicit ranks use [`Builder::op`].
    ///
    /// # Errors
    /// If the group does not exist or the shape rules refuse the operand.
    pub fn collective(&mut self, kind: Collective, x: Value, axes: &[&str]) -> Result<Value> {
        let group = self.group(axes)?;
        self.one(Op::Collective { kind, group }, &[x])
    }

    /// Combination on every rank.
    ///
    /// # Errors
    /// As [`Builder::collective`].
    pub fn all_reduce(&mut self, x: Value, op: ReduceOp, axes: &[&str]) -> Result<Value> {
        self.collective(Collective::AllReduce { op, accum: None }, x, axes)
    }

    /// Concatenation along `dim` on every rank.
    ///
    /// # Errors
    /// As [`Builder::collective`].
    pub fn all_gather(&mut self, x: Value, dim: u32, axes: &[&str]) -> Result<Value> {
        self.collective(Collective::AllGather { dim }, x, axes)
    }

    /// Own block along `dim` of the combination.
    ///
    /// # Errors
    /// As [`Builder::collective`].
    pub fn reduce_scatter(&mut self, x: Value, op: ReduceOp, dim: u32, axes: &[&str]) -> Result<Value> {
        self.collective(Collective::ReduceScatter { op, dim, accum: None }, x, axes)
    }

    /// Exchange of blocks: split along one dimension, concatenated along another.
    ///
    /// # Errors
    /// As [`Builder::collective`].
    pub fn all_to_all(&mut self, x: Value, split_dim: u32, concat_dim: u32, axes: &[&str]) -> Result<Value> {
        self.collective(Collective::AllToAll { split_dim, concat_dim }, x, axes)
    }

    /// This rank's block of equal blocks along `dim`; no communication.
    ///
    /// # Errors
    /// As [`Builder::collective`].
    pub fn own_slice(&mut self, x: Value, dim: u32, axes: &[&str]) -> Result<Value> {
        let group = self.group(axes)?;
        self.one(Op::OwnSlice { dim, group }, &[x])
    }

    /// Declares an output.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn output(&mut self, name: &str, value: Value) -> Result<()> {
        Ok(self.graph.add_output(name, value)?)
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The finished, verified graph.
    ///
    /// # Errors
    /// All that [`Graph::verify`] finds.
    pub fn finish(self) -> Result<Graph> {
        self.graph.verify()?;
        Ok(self.graph)
    }
}
