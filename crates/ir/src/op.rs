//! The operations and what each means. Shape and dtype rules are in `infer`; attribute names in `attrs`.

use serde::{Deserialize, Serialize};

use crate::literal::{Literal, Scalar};
use crate::mesh::{AxisId, Group};
use crate::types::{DType, Shape};
use crate::weight::WeightId;

macro_rules! named_enum {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $text:literal,)* }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vm])* #[serde(rename = $text)] $v,)* }
        impl $name {
            /// Every member, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$v,)*];
            /// Name in the text and JSON forms.
            pub const fn name(self) -> &'static str { match self { $($name::$v => $text,)* } }
            /// The member with the given name.
            pub fn from_name(name: &str) -> Option<$name> { match name { $($text => Some($name::$v),)* _ => None } }
        }
    };
}

named_enum! {
    /// Elementwise function of one operand. f16 and bf16 are computed in f32 and rounded once.
    Unary {
        /// Negation (wraps on integers).
        Neg = "neg",
        /// Absolute value.
        Abs = "abs",
        /// -1, 0 or 1; NaN and zeros as PyTorch's `sign` (0 for NaN).
        Sign = "sign",
        /// Round toward +inf.
        Ceil = "ceil",
        /// Round toward -inf.
        Floor = "floor",
        /// Round half to even.
        Round = "round",
        /// Round toward zero.
        Trunc = "trunc",
        /// Square root.
        Sqrt = "sqrt",
        /// 1 / sqrt(x).
        Rsqrt = "rsqrt",
        /// 1 / x.
        Recip = "recip",
        /// e^x.
        Exp = "exp",
        /// 2^x.
        Exp2 = "exp2",
        /// e^x - 1.
        Expm1 = "expm1",
        /// Natural logarithm.
        Log = "log",
        /// log(1 + x).
        Log1p = "log1p",
        /// Base-2 logarithm.
        Log2 = "log2",
        /// Sine, radians.
        Sin = "sin",
        /// Cosine, radians.
        Cos = "cos",
        /// Tangent, radians.
        Tan = "tan",
        /// Inverse sine.
        Asin = "asin",
        /// Inverse cosine.
        Acos = "acos",
        /// Inverse tangent.
        Atan = "atan",
        /// Hyperbolic sine.
        Sinh = "sinh",
        /// Hyperbolic cosine.
        Cosh = "cosh",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// Error function.
        Erf = "erf",
        /// 1 / (1 + e^-x).
        Sigmoid = "sigmoid",
        /// x * sigmoid(x).
        Silu = "silu",
        /// x * (1 + erf(x / sqrt 2)) / 2.
        Gelu = "gelu",
        /// GELU by the tanh formula.
        GeluTanh = "gelu_tanh",
        /// max(x, 0), NaN kept.
        Relu = "relu",
        /// log(1 + e^x), x itself above 20.
        Softplus = "softplus",
        /// Logical not of a bool, bitwise not of an integer.
        Not = "not",
        /// Bool: is NaN.
        IsNan = "is_nan",
        /// Bool: is an infinity.
        IsInf = "is_inf",
    }
}

impl Unary {
    /// Whether the result is bool whatever the operand type.
    pub const fn is_predicate(self) -> bool {
        matches!(self, Unary::IsNan | Unary::IsInf)
    }
}

named_enum! {
    /// Elementwise function of two operands of one dtype. f16 and bf16 are computed in f32 and rounded once.
    Binary {
        /// Sum.
        Add = "add",
        /// Difference.
        Sub = "sub",
        /// Product.
        Mul = "mul",
        /// Quotient; floats only.
        Div = "div",
        /// floor(a / b).
        FloorDiv = "floor_div",
        /// trunc(a / b).
        TruncDiv = "trunc_div",
        /// a - b * floor(a / b), sign of the divisor.
        Rem = "rem",
        /// a - b * trunc(a / b), sign of the dividend.
        Fmod = "fmod",
        /// a ^ b. Exponent 2 is a * a, 3 is a * a * a, 0.5 is the square root, -0.5, -1, -2 their reciprocals, as PyTorch does.
        Pow = "pow",
        /// Larger; NaN if either is.
        Max = "max",
        /// Smaller; NaN if either is.
        Min = "min",
        /// Angle of (b, a).
        Atan2 = "atan2",
        /// Logical and bitwise and; bool and integers.
        And = "and",
        /// Logical and bitwise or; bool and integers.
        Or = "or",
        /// Logical and bitwise xor; bool and integers.
        Xor = "xor",
        /// Bool: equal.
        Eq = "eq",
        /// Bool: not equal (true for NaN).
        Ne = "ne",
        /// Bool: less.
        Lt = "lt",
        /// Bool: less or equal.
        Le = "le",
        /// Bool: greater.
        Gt = "gt",
        /// Bool: greater or equal.
        Ge = "ge",
    }
}

impl Binary {
    /// Whether the result is bool whatever the operand type.
    pub const fn is_comparison(self) -> bool {
        matches!(self, Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge)
    }

    /// Whether operands are bool or integers only.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Binary::And | Binary::Or | Binary::Xor)
    }
}

named_enum! {
    /// Reduction over local dimensions. Floats accumulate in f32 (f64 for f64) and round once.
    ReduceKind {
        /// Sum.
        Sum = "sum",
        /// Sum divided by the count; floats only.
        Mean = "mean",
        /// Product.
        Prod = "prod",
        /// Largest, NaN if any is; logical or on bool.
        Max = "max",
        /// Smallest, NaN if any is; logical and on bool.
        Min = "min",
    }
}

named_enum! {
    /// How a reducing collective combines the operands of the ranks.
    ReduceOp {
        /// Sum.
        Sum = "sum",
        /// Product.
        Prod = "prod",
        /// Largest.
        Max = "max",
        /// Smallest.
        Min = "min",
        /// Sum divided by the number of ranks; floats only.
        Avg = "avg",
    }
}

named_enum! {
    /// Which moments a normalisation removes.
    NormKind {
        /// Mean and variance.
        Layer = "layer",
        /// Root mean square only.
        Rms = "rms",
    }
}

named_enum! {
    /// How indices pick from data along a dimension.
    GatherMode {
        /// Whole slices: result shape is data before the dimension, then the index shape, then data after it.
        Take = "take",
        /// Single elements: indices have the rank of the data and the shape of the result.
        Elements = "elements",
    }
}

/// A collective and its attributes. `dim`s are of the *local* tensors. Blocks follow the group order.
///
/// `root` is a position in the group; results of rooted collectives are undefined off root, except broadcast and scatter.
/// `accum` is the type in which operands are combined before one rounding; `None` leaves it to the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank gets the combination of all operands.
    AllReduce {
        /// Combination.
        op: ReduceOp,
        /// Accumulation type.
        accum: Option<DType>,
    },
    /// Every rank gets all operands, concatenated along `dim`.
    AllGather {
        /// Concatenated dimension.
        dim: u32,
    },
    /// Every rank gets its own block along `dim` of the combination.
    ReduceScatter {
        /// Combination.
        op: ReduceOp,
        /// Split dimension.
        dim: u32,
        /// Accumulation type.
        accum: Option<DType>,
    },
    /// Splits along `split_dim`, sends block j to rank j, concatenates what arrives along `concat_dim`.
    AllToAll {
        /// Split dimension.
        split_dim: u32,
        /// Concatenated dimension.
        concat_dim: u32,
    },
    /// Every rank gets the root's operand.
    Broadcast {
        /// Position of the root in the group.
        root: u32,
    },
    /// The root gets the combination; undefined elsewhere.
    Reduce {
        /// Combination.
        op: ReduceOp,
        /// Position of the root in the group.
        root: u32,
        /// Accumulation type.
        accum: Option<DType>,
    },
    /// The root gets all operands, concatenated along `dim`; undefined elsewhere.
    Gather {
        /// Concatenated dimension.
        dim: u32,
        /// Position of the root in the group.
        root: u32,
    },
    /// Every rank gets its own block along `dim` of the root's operand.
    Scatter {
        /// Split dimension.
        dim: u32,
        /// Position of the root in the group.
        root: u32,
    },
}

impl Collective {
    /// Name in text forms and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce { .. } => "all_reduce",
            Collective::AllGather { .. } => "all_gather",
            Collective::ReduceScatter { .. } => "reduce_scatter",
            Collective::AllToAll { .. } => "all_to_all",
            Collective::Broadcast { .. } => "broadcast_from",
            Collective::Reduce { .. } => "reduce_to",
            Collective::Gather { .. } => "gather_to",
            Collective::Scatter { .. } => "scatter_from",
        }
    }

    /// How operands are combined, for those that combine.
    pub const fn reduce_op(self) -> Option<ReduceOp> {
        match self {
            Collective::AllReduce { op, .. }
            | Collective::ReduceScatter { op, .. }
            | Collective::Reduce { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Position of the root in the group, for rooted ones.
    pub const fn root(self) -> Option<u32> {
        match self {
            Collective::Broadcast { root }
            | Collective::Reduce { root, .. }
            | Collective::Gather { root, .. }
            | Collective::Scatter { root, .. } => Some(root),
            _ => None,
        }
    }

    /// Whether the result is undefined off root.
    pub const fn undefined_off_root(self) -> bool {
        matches!(self, Collective::Reduce { .. } | Collective::Gather { .. })
    }
}

/// An operation. Operand order and meaning are given per variant; results are one per node except [`Op::Split`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A run-time input of the program. No operands.
    Input {
        /// Public name.
        name: String,
    },
    /// A weight, by its place in the graph's weight table. No operands.
    Weight(WeightId),
    /// A small constant. No operands.
    Constant(Literal),
    /// `first + step * index` along `dim`, computed in f64 (i64 for integers), rounded once. No operands.
    Iota {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Shape,
        /// Dimension along which values grow.
        dim: u32,
        /// First value.
        first: Scalar,
        /// Difference of neighbours.
        step: Scalar,
    },
    /// x: conversion to another element type, round to nearest even; floats to integers truncate.
    Cast {
        /// Target type.
        to: DType,
    },
    /// x: elementwise function.
    Unary(Unary),
    /// a, b: elementwise function. Equal dtype and rank; each dimension equal, or 1 in one of them.
    Binary(Binary),
    /// x: elementwise function of x and a number, which is not rounded to x's dtype but to the type the op computes in
    /// (f32 for f16 and bf16).
    BinaryScalar {
        /// Function.
        op: Binary,
        /// The number.
        scalar: Scalar,
        /// Whether the number is the first operand.
        scalar_first: bool,
    },
    /// condition (bool), a, b: a where the condition holds, b elsewhere. Broadcast as [`Op::Binary`].
    Select,
    /// a `[.., m, k]`, b `[.., k, n]`, and with three operands a bias that broadcasts (aligned right) to the result and is
    /// added in the accumulator. Batch dimensions broadcast aligned right. Accumulates f16, bf16 in f32, rounds once.
    MatMul {
        /// The last two dimensions of a are swapped.
        transpose_a: bool,
        /// The last two dimensions of b are swapped.
        transpose_b: bool,
    },
    /// x: reduction over the listed dimensions (sorted, distinct).
    Reduce {
        /// Combination.
        kind: ReduceKind,
        /// Reduced dimensions.
        dims: Vec<u32>,
        /// Whether reduced dimensions stay with size 1.
        keep_dims: bool,
    },
    /// x: softmax along a dimension, computed in f32 for f16 and bf16.
    Softmax {
        /// Dimension.
        dim: u32,
    },
    /// x, then scale if `scale`, then bias if `bias`, both of the normalised shape and x's dtype: normalisation over the
    /// last `trailing` dimensions; computed in f32 for f16 and bf16, rounded once.
    Normalize {
        /// Which moments.
        kind: NormKind,
        /// Number of normalised dimensions, from the last.
        trailing: u32,
        /// Added to the variance (or mean square).
        epsilon: Scalar,
        /// Whether a scale operand follows.
        scale: bool,
        /// Whether a bias operand follows.
        bias: bool,
    },
    /// q `[.., L, E]`, k `[.., S, E]`, v `[.., S, F]`, then an additive (float) or keep (bool) mask if `mask`, of the same
    /// rank and broadcastable to `[.., L, S]`: softmax(q k^T scale + mask) v.
    Attention {
        /// Factor on the scores.
        scale: Scalar,
        /// Whether position i sees keys up to i only.
        causal: bool,
        /// Whether a mask operand follows.
        mask: bool,
    },
    /// x: same elements in row-major order, other shape.
    Reshape {
        /// New shape.
        shape: Shape,
    },
    /// x: dimension i of the result is dimension `perm[i]` of x.
    Transpose {
        /// Permutation.
        perm: Vec<u32>,
    },
    /// x: dimensions of size 1 are repeated to the given shape (same rank).
    Broadcast {
        /// New shape.
        shape: Shape,
    },
    /// x: elements `start, start + stride, ..` below `limit` of one dimension.
    Slice {
        /// Dimension.
        dim: u32,
        /// First index.
        start: u64,
        /// One past the last index considered.
        limit: u64,
        /// Step, at least 1.
        stride: u64,
    },
    /// base, update: base with positions `start, start + stride, ..` of one dimension replaced by update.
    UpdateSlice {
        /// Dimension.
        dim: u32,
        /// First index.
        start: u64,
        /// Step, at least 1.
        stride: u64,
    },
    /// x: cut along a dimension; one result per size.
    Split {
        /// Dimension.
        dim: u32,
        /// Sizes, which add up to the dimension.
        sizes: Vec<u64>,
    },
    /// One or more operands, concatenated along a dimension.
    Concat {
        /// Dimension.
        dim: u32,
    },
    /// x: `low` values before and `high` values after along a dimension.
    Pad {
        /// Dimension.
        dim: u32,
        /// Elements added before.
        low: u64,
        /// Elements added after.
        high: u64,
        /// Their value.
        value: Scalar,
    },
    /// data, indices (i64 or i32, 0 <= index < size): picks along a dimension.
    Gather {
        /// How indices pick.
        mode: GatherMode,
        /// Dimension of the data.
        dim: u32,
    },
    /// x `[N, C, spatial..]`, weight `[O, C / groups, spatial..]`, bias `[O]` if `bias`: cross-correlation; accumulates as
    /// [`Op::MatMul`].
    Conv {
        /// Step per spatial dimension.
        stride: Vec<u64>,
        /// Zeros before and after, per spatial dimension.
        padding: Vec<(u64, u64)>,
        /// Distance of taps per spatial dimension.
        dilation: Vec<u64>,
        /// Number of channel groups.
        groups: u64,
        /// Whether a bias operand follows.
        bias: bool,
    },
    /// x: a collective over a group.
    Collective {
        /// What.
        kind: Collective,
        /// With whom.
        group: Group,
    },
    /// x: block number `position in group` of `group size` equal blocks along a dimension. No communication.
    OwnSlice {
        /// Dimension.
        dim: u32,
        /// Group whose position selects.
        group: Group,
    },
    /// x: a buffer `group size` times as long along `dim`, x at this rank's own block, `value` elsewhere. No communication.
    OwnPad {
        /// Dimension.
        dim: u32,
        /// Group whose position selects.
        group: Group,
        /// Value of the other blocks.
        value: Scalar,
    },
    /// One operand per coordinate of a mesh axis, all of one type: the one at this rank's coordinate. No communication.
    AxisSelect {
        /// Axis.
        axis: AxisId,
    },
    /// This rank's position in the group: an i32 scalar. No operands, no communication.
    GroupRank {
        /// Group.
        group: Group,
    },
}

impl Op {
    /// Mnemonic of the text form.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Weight(_) => "weight",
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::Cast { .. } => "cast",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::BinaryScalar { op, .. } => op.name(),
            Op::Select => "select",
            Op::MatMul { .. } => "matmul",
            Op::Reduce { .. } => "reduce",
            Op::Softmax { .. } => "softmax",
            Op::Normalize { .. } => "normalize",
            Op::Attention { .. } => "attention",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Broadcast { .. } => "broadcast",
            Op::Slice { .. } => "slice",
            Op::UpdateSlice { .. } => "update_slice",
            Op::Split { .. } => "split",
            Op::Concat { .. } => "concat",
            Op::Pad { .. } => "pad",
            Op::Gather { .. } => "gather",
            Op::Conv { .. } => "conv",
            Op::Collective { kind, .. } => kind.name(),
            Op::OwnSlice { .. } => "own_slice",
            Op::OwnPad { .. } => "own_pad",
            Op::AxisSelect { .. } => "axis_select",
            Op::GroupRank { .. } => "group_rank",
        }
    }

    /// The group an op depends on, if it has one.
    pub const fn group(&self) -> Option<&Group> {
        match self {
            Op::Collective { group, .. }
            | Op::OwnSlice { group, .. }
            | Op::OwnPad { group, .. }
            | Op::GroupRank { group } => Some(group),
            _ => None,
        }
    }

    /// The collective, if this is one.
    pub const fn collective(&self) -> Option<(&Collective, &Group)> {
        match self {
            Op::Collective { kind, group } => Some((kind, group)),
            _ => None,
        }
    }

    /// Whether the result follows from operands and attributes alone, the same on every rank: no communication, no position in a
    /// group, and neither input nor weight.
    pub const fn is_local(&self) -> bool {
        !matches!(
            self,
            Op::Input { .. }
                | Op::Weight(_)
                | Op::Collective { .. }
                | Op::OwnSlice { .. }
                | Op::OwnPad { .. }
                | Op::AxisSelect { .. }
                | Op::GroupRank { .. }
        )
    }

    /// Whether the op computes each result element from the operand elements at the same index only.
    pub const fn is_pointwise(&self) -> bool {
        matches!(self, Op::Cast { .. } | Op::Unary(_) | Op::Binary(_) | Op::BinaryScalar { .. } | Op::Select)
    }
}
