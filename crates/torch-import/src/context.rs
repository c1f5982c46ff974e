//! What the handlers of single ops work with: the list that grows, the tensors bound so far, and torch's rules for casts and broadcasting.

use rustc_hash::FxHashMap;
use shardweld_ir::{
    Binary, DType, Dim, Group, Literal, Mesh, Op, ReduceKind, Scalar, Shape, TensorType, Unary,
};

use crate::{
    alias::{Aliases, TensorId},
    call::{Call, Refused, dtype_of},
    groups::Groups,
    promote::{Operand, result_type},
    schema::{Argument, TensorMeta, Text},
    ssa::{Ssa, Val},
};

/// What a name of the exported graph stands for.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    /// A tensor.
    Tensor(TensorId),
    /// A result that cannot be expressed (indices of a maximum, say): refused when it is used.
    Unusable(String),
}

/// Results of a call.
#[derive(Debug)]
pub(crate) enum Out {
    /// Tensors with memory of their own.
    Fresh(Vec<Val>),
    /// Tensors that share memory with an operand.
    Alias(Vec<TensorId>),
    /// A first result, and further ones that cannot be expressed.
    FirstOnly(Val, &'static str),
    /// Nothing.
    None,
}

impl Out {
    pub fn one(value: Val) -> Refused<Out> {
        Ok(Out::Fresh(vec![value]))
    }
    pub fn alias(tensor: TensorId) -> Refused<Out> {
        Ok(Out::Alias(vec![tensor]))
    }
}

/// A tensor or a number, as ops take them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Tensor(Val),
    Number(Scalar),
}

/// The state of one graph's conversion.
pub(crate) struct Cx<'p> {
    pub ssa: Ssa,
    pub aliases: Aliases,
    pub mesh: Mesh,
    pub names: FxHashMap<&'p str, Binding>,
    pub metas: &'p FxHashMap<Text<'p>, TensorMeta>,
    pub groups: Option<&'p Groups>,
    /// Ranks one of which exported the graph.
    pub exporters: &'p [u32],
    pub resolved: FxHashMap<&'p str, Group>,
}

impl<'p> Cx<'p> {
    // ---- operands ----

    /// The tensor called `name` in the graph.
    pub fn bound(&self, name: &str) -> Refused<TensorId> {
        match self.names.get(name) {
            Some(Binding::Tensor(t)) => Ok(*t),
            // What follows from a refusal has no reason of its own.
            Some(Binding::Unusable(why)) if why.is_empty() => Err(String::new()),
            Some(Binding::Unusable(why)) => Err(format!("uses `{name}`, {why}")),
            None => Err(format!("uses `{name}`, which no earlier node defines")),
        }
    }

    /// An optional tensor argument, with the name it has in the graph.
    fn tensor_arg(&self, call: &Call<'p>, arg: &str) -> Refused<Option<(&'p str, TensorId)>> {
        match call.get(arg) {
            None => Ok(None),
            Some(Argument::Tensor(n)) => Ok(Some((n.as_ref(), self.bound(n)?))),
            Some(other) => Err(format!("argument `{arg}` is {other:?}, expected a tensor")),
        }
    }

    /// A tensor argument that must be given, as a tensor.
    pub fn tensor(&self, call: &Call<'p>, arg: &str) -> Refused<TensorId> {
        Ok(self
            .tensor_arg(call, arg)?
            .ok_or_else(|| format!("argument `{arg}` is missing, expected a tensor"))?
            .1)
    }

    /// The recorded layout of a tensor argument.
    pub fn meta(&self, call: &Call<'p>, arg: &str) -> Refused<&'p TensorMeta> {
        let (name, _) = self
            .tensor_arg(call, arg)?
            .ok_or_else(|| format!("argument `{arg}` is missing, expected a tensor"))?;
        self.metas.get(name).ok_or_else(|| format!("the graph records no type for `{name}`"))
    }

    /// The current value of a tensor.
    pub fn read(&mut self, tensor: TensorId) -> Refused<Val> {
        self.aliases.read(&mut self.ssa, &self.mesh, tensor)
    }

    /// An optional tensor argument, by value.
    pub fn opt_value(&mut self, call: &Call<'p>, arg: &str) -> Refused<Option<Val>> {
        match self.tensor_arg(call, arg)? {
            None => Ok(None),
            Some((_, t)) => self.read(t).map(Some),
        }
    }

    /// A tensor argument that must be given, by value.
    pub fn value(&mut self, call: &Call<'p>, arg: &str) -> Refused<Val> {
        let t = self.tensor(call, arg)?;
        self.read(t)
    }

    /// A list of tensors.
    pub fn tensors(&self, call: &Call<'p>, arg: &str) -> Refused<Vec<TensorId>> {
        match call.get(arg) {
            Some(Argument::Tensors(v)) => v.iter().map(|n| self.bound(n)).collect(),
            other => Err(format!("argument `{arg}` is {other:?}, expected tensors")),
        }
    }

    /// A list of tensors, by value.
    pub fn values(&mut self, call: &Call<'p>, arg: &str) -> Refused<Vec<Val>> {
        self.tensors(call, arg)?.into_iter().map(|t| self.read(t)).collect()
    }

    /// A tensor or a number.
    pub fn arg(&mut self, call: &Call<'p>, arg: &str) -> Refused<Arg> {
        match call.get(arg) {
            Some(Argument::Tensor(_)) => self.value(call, arg).map(Arg::Tensor),
            _ => call
                .opt_scalar(arg)?
                .map(Arg::Number)
                .ok_or_else(|| format!("argument `{arg}` is missing, expected a tensor or a number")),
        }
    }

    // ---- types ----

    pub fn ty(&self, v: Val) -> &TensorType {
        self.ssa.ty(v)
    }

    pub fn dtype(&self, v: Val) -> DType {
        self.ssa.ty(v).dtype
    }

    pub fn rank(&self, v: Val) -> usize {
        self.ssa.ty(v).rank()
    }

    /// Sizes; all are numbers, since symbols are refused before.
    pub fn dims(&self, v: Val) -> Vec<u64> {
        self.ssa.ty(v).shape.0.iter().map(|d| d.as_static().unwrap_or(0)).collect()
    }

    /// The type recorded for the call's first result.
    pub fn recorded(&self, call: &Call<'p>) -> Refused<TensorType> {
        let name = match call.node.outputs.first() {
            Some(Argument::Tensor(n)) => n,
            other => return Err(format!("the result is {other:?}, expected one tensor")),
        };
        let meta = self.metas.get(name).ok_or_else(|| format!("the graph records no type for `{name}`"))?;
        recorded_type(meta)
    }

    /// A dimension number of torch, where negative ones count from the end.
    pub fn dim(&self, v: Val, dim: i64) -> Refused<u32> {
        normalise_dim(dim, self.rank(v))
    }

    /// Promotion's view of an operand.
    pub fn operand(&self, a: Arg) -> Operand {
        match a {
            Arg::Number(s) => Operand::Number(s),
            Arg::Tensor(v) if self.rank(v) == 0 => Operand::ZeroDim(self.dtype(v)),
            Arg::Tensor(v) => Operand::Dimensioned(self.dtype(v)),
        }
    }

    /// The type in which an op on these operands is computed.
    pub fn common(&self, args: &[Arg]) -> Refused<DType> {
        let operands: Vec<Operand> = args.iter().map(|a| self.operand(*a)).collect();
        result_type(&operands).ok_or_else(|| format!("no common element type of {operands:?} is supported"))
    }

    // ---- building blocks: ops that do nothing are left out ----

    pub fn add(&mut self, op: Op, operands: &[Val]) -> Refused<Val> {
        self.ssa.add(&self.mesh, op, operands)
    }

    pub fn cast(&mut self, v: Val, to: DType) -> Refused<Val> {
        let from = self.dtype(v);
        if from == to {
            return Ok(v);
        }
        if to == DType::Bool {
            // torch: nonzero is true, NaN included.
            let zero = if from.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) };
            return self.scalar_op(Binary::Ne, v, zero);
        }
        self.add(Op::Cast { to }, &[v])
    }

    pub fn reshape(&mut self, v: Val, dims: &[u64]) -> Refused<Val> {
        if self.dims(v) == dims {
            return Ok(v);
        }
        self.add(Op::Reshape { shape: Shape::of(dims) }, &[v])
    }

    pub fn slice(&mut self, v: Val, dim: u32, start: u64, limit: u64) -> Refused<Val> {
        if start == 0 && self.dims(v).get(dim as usize) == Some(&limit) {
            return Ok(v);
        }
        self.add(Op::Slice { dim, start, limit, stride: 1 }, &[v])
    }

    pub fn concat(&mut self, parts: &[Val], dim: u32) -> Refused<Val> {
        match parts {
            [only] => Ok(*only),
            _ => self.add(Op::Concat { dim }, parts),
        }
    }

    /// Leading dimensions of size 1, up to `rank`.
    pub fn align(&mut self, v: Val, rank: usize) -> Refused<Val> {
        let dims = self.dims(v);
        if dims.len() >= rank {
            return Ok(v);
        }
        let mut padded = vec![1; rank - dims.len()];
        padded.extend(dims);
        self.reshape(v, &padded)
    }

    /// numpy broadcasting to a given shape.
    pub fn broadcast_to(&mut self, v: Val, dims: &[u64]) -> Refused<Val> {
        let v = self.align(v, dims.len())?;
        if self.dims(v) == dims {
            return Ok(v);
        }
        self.add(Op::Broadcast { shape: Shape::of(dims) }, &[v])
    }

    pub fn unary(&mut self, f: Unary, v: Val) -> Refused<Val> {
        self.add(Op::Unary(f), &[v])
    }

    /// Aligns ranks and applies; dtypes must agree already.
    pub fn binary(&mut self, f: Binary, a: Val, b: Val) -> Refused<Val> {
        let rank = self.rank(a).max(self.rank(b));
        let (a, b) = (self.align(a, rank)?, self.align(b, rank)?);
        self.add(Op::Binary(f), &[a, b])
    }

    /// `f(v, scalar)`.
    pub fn scalar_op(&mut self, f: Binary, v: Val, scalar: Scalar) -> Refused<Val> {
        let scalar = number_for(self.dtype(v), scalar);
        self.add(Op::BinaryScalar { op: f, scalar, scalar_first: false }, &[v])
    }

    /// `f(scalar, v)`.
    pub fn scalar_first(&mut self, f: Binary, scalar: Scalar, v: Val) -> Refused<Val> {
        let scalar = number_for(self.dtype(v), scalar);
        self.add(Op::BinaryScalar { op: f, scalar, scalar_first: true }, &[v])
    }

    /// `condition ? a : b`, all broadcast.
    pub fn select(&mut self, condition: Val, a: Val, b: Val) -> Refused<Val> {
        let rank = self.rank(condition).max(self.rank(a)).max(self.rank(b));
        let (c, a, b) = (self.align(condition, rank)?, self.align(a, rank)?, self.align(b, rank)?);
        self.add(Op::Select, &[c, a, b])
    }

    pub fn reduce(&mut self, kind: ReduceKind, v: Val, dims: &[u32], keep_dims: bool) -> Refused<Val> {
        if dims.is_empty() {
            return Ok(v);
        }
        self.add(Op::Reduce { kind, dims: dims.to_vec(), keep_dims }, &[v])
    }

    /// A constant tensor of one value, rounded into its type.
    pub fn full(&mut self, dtype: DType, dims: &[u64], value: Scalar) -> Refused<Val> {
        let value = number_for(dtype, value);
        let literal = Literal::full(TensorType::new(dtype, dims), value)
            .ok_or_else(|| format!("the value {value} is no value of {dtype}"))?;
        self.add(Op::Constant(literal), &[])
    }

    /// Computes `f` on a float tensor in the type that torch computes in, and rounds once.
    pub fn in_op_math(&mut self, v: Val, f: impl FnOnce(&mut Self, Val) -> Refused<Val>) -> Refused<Val> {
        let dtype = self.dtype(v);
        let wide = self.cast(v, dtype.op_math())?;
        let result = f(self, wide)?;
        self.cast(result, dtype)
    }

    /// A float tensor for functions that have no integer form.
    pub fn as_float(&mut self, v: Val) -> Refused<Val> {
        if self.dtype(v).is_float() { Ok(v) } else { self.cast(v, crate::promote::DEFAULT_FLOAT) }
    }
}

/// The type that the graph records.
pub(crate) fn recorded_type(meta: &TensorMeta) -> Refused<TensorType> {
    let shape: Shape = meta
        .sizes
        .iter()
        .map(|s| match s.as_int().map(u64::try_from) {
            Some(Ok(n)) => Ok(Dim::Static(n)),
            _ => Err(format!("recorded size {s:?} is no static size")),
        })
        .collect::<Result<Vec<_>, _>>()
        .map(Shape)?;
    let ty = TensorType { dtype: dtype_of(meta.dtype)?, shape };
    match ty.bytes() {
        Some(b) if b <= i64::MAX as u64 => Ok(ty),
        _ => Err(format!("recorded type {ty} is larger than memory can be")),
    }
}

/// A dimension number of torch, where negative ones count from the end; a scalar accepts 0 and -1.
pub(crate) fn normalise_dim(dim: i64, rank: usize) -> Refused<u32> {
    let n = rank.max(1) as i64;
    if !(-n..n).contains(&dim) {
        return Err(format!("dimension {dim} of a tensor with {rank} dimensions"));
    }
    Ok((if dim < 0 { dim + n } else { dim }) as u32)
}

/// The number as torch converts it for a tensor of the given type.
pub(crate) fn number_for(dtype: DType, s: Scalar) -> Scalar {
    match (dtype, s) {
        (d, s) if d.is_float() => Scalar::Float(s.as_f64()),
        (DType::Bool, s) => Scalar::Bool(s.as_f64() != 0.0),
        (_, Scalar::Bool(b)) => Scalar::Int(i64::from(b)),
        // Schemas with a float argument give 7.0 for an integer tensor too.
        (_, Scalar::Float(x)) if x.fract() == 0.0 && x.abs() <= EXACT_INTEGERS => Scalar::Int(x as i64),
        (_, s) => s,
    }
}

/// Up to here every integer is an f64.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;

/// The number rounded to a type, as torch does where it turns a number into a tensor before it computes.
pub(crate) fn rounded(dtype: DType, s: Scalar) -> Scalar {
    match (dtype, number_for(dtype, s)) {
        (DType::BF16, Scalar::Float(x)) => Scalar::Float(half::bf16::from_f32(x as f32).to_f64()),
        (DType::F16, Scalar::Float(x)) => Scalar::Float(half::f16::from_f32(x as f32).to_f64()),
        (DType::F32, Scalar::Float(x)) => Scalar::Float(f64::from(x as f32)),
        (_, s) => s,
    }
}
