//! The calls that make up a network definition, one variant per TensorRT layer kind.

use serde::{Deserialize, Serialize};
use shardweld_ir::{DType, Literal, Scalar};

use super::collective::DistCollective;

/// A tensor of the network, by the number of the call that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

impl TensorId {
    /// Position of the making call in the trace.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

macro_rules! layer_enum {
    ($(#[$m:meta])* $name:ident { $($v:ident = $text:literal,)* }) => {
        $(#[$m])*
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $(#[serde(rename = $text)] $v,)* }
        impl $name {
            /// Every member.
            pub const ALL: &'static [$name] = &[$($name::$v,)*];
            /// TensorRT's name without the `k`.
            pub const fn name(self) -> &'static str { match self { $($name::$v => $text,)* } }
        }
    };
}

layer_enum! {
    /// `UnaryOperation`.
    UnaryOperation {
        Exp = "EXP", Log = "LOG", Sqrt = "SQRT", Recip = "RECIP", Abs = "ABS", Neg = "NEG", Sin = "SIN", Cos = "COS",
        Tan = "TAN", Sinh = "SINH", Cosh = "COSH", Asin = "ASIN", Acos = "ACOS", Atan = "ATAN", Ceil = "CEIL",
        Floor = "FLOOR", Erf = "ERF", Not = "NOT", Sign = "SIGN", Round = "ROUND", IsInf = "ISINF", IsNan = "ISNAN",
    }
}

layer_enum! {
    /// `ElementWiseOperation`.
    ElementWiseOperation {
        Sum = "SUM", Prod = "PROD", Max = "MAX", Min = "MIN", Sub = "SUB", Div = "DIV", Pow = "POW",
        FloorDiv = "FLOOR_DIV", And = "AND", Or = "OR", Xor = "XOR", Equal = "EQUAL", Greater = "GREATER",
        Less = "LESS",
    }
}

layer_enum! {
    /// `ActivationType`.
    ActivationType {
        Relu = "RELU", Sigmoid = "SIGMOID", Tanh = "TANH", GeluErf = "GELU_ERF", GeluTanh = "GELU_TANH",
    }
}

layer_enum! {
    /// `ReduceOperation` of a reduce layer.
    ReduceOperation { Sum = "SUM", Prod = "PROD", Max = "MAX", Min = "MIN", Avg = "AVG", }
}

layer_enum! {
    /// `CausalMaskKind`.
    CausalMaskKind { None = "NONE", UpperLeft = "UPPER_LEFT", }
}

/// One call on the network definition. Every call makes exactly one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// `addInput`. The layer's name is the public name, unencoded.
    Input,
    /// `addConstant` of a small literal.
    Constant(Literal),
    /// `addConstant` of a weight, by its place in the trace's weight table.
    Weight(u32),
    /// `addCast`.
    Cast {
        /// Operand.
        input: TensorId,
        /// Target type.
        to: DType,
    },
    /// `addUnary`.
    Unary {
        /// Operand.
        input: TensorId,
        /// Function.
        op: UnaryOperation,
    },
    /// `addElementWise`; equal rank, sizes equal or 1.
    ElementWise {
        /// First operand.
        a: TensorId,
        /// Second operand.
        b: TensorId,
        /// Function.
        op: ElementWiseOperation,
    },
    /// `addActivation`.
    Activation {
        /// Operand.
        input: TensorId,
        /// Function.
        op: ActivationType,
    },
    /// `addSelect`.
    Select {
        /// Condition (bool).
        condition: TensorId,
        /// Where it holds.
        then_input: TensorId,
        /// Elsewhere.
        else_input: TensorId,
    },
    /// `addMatrixMultiply`; equal rank, batch dimensions equal or 1.
    MatMul {
        /// First operand.
        a: TensorId,
        /// Whether its last two dimensions are swapped.
        transpose_a: bool,
        /// Second operand.
        b: TensorId,
        /// Whether its last two dimensions are swapped.
        transpose_b: bool,
    },
    /// `addReduce`.
    Reduce {
        /// Operand.
        input: TensorId,
        /// Combination.
        op: ReduceOperation,
        /// Reduced dimensions.
        axes: Vec<u32>,
        /// Whether they stay with size 1.
        keep_dims: bool,
    },
    /// `addSoftMax`.
    Softmax {
        /// Operand.
        input: TensorId,
        /// Dimension.
        axis: u32,
    },
    /// `addNormalizationV2`: mean and variance over `axes`; scale and bias broadcast to the operand.
    Normalization {
        /// Operand.
        input: TensorId,
        /// Scale.
        scale: TensorId,
        /// Bias.
        bias: TensorId,
        /// Normalised dimensions.
        axes: Vec<u32>,
        /// Added to the variance; a value of f32.
        epsilon: Scalar,
    },
    /// `addAttentionV2` with softmax; `[batch, heads, tokens, size]`. Scores are not scaled by the layer.
    Attention {
        /// Query.
        query: TensorId,
        /// Key.
        key: TensorId,
        /// Value.
        value: TensorId,
        /// Additive or bool mask.
        mask: Option<TensorId>,
        /// Causal mask.
        causal: CausalMaskKind,
    },
    /// `addShuffle`: transpose, reshape, transpose.
    Shuffle {
        /// Operand.
        input: TensorId,
        /// First transpose: dimension i of its result is dimension `first[i]` of the operand.
        first: Option<Vec<u32>>,
        /// Shape after the first transpose.
        reshape: Option<Vec<u64>>,
        /// Second transpose.
        second: Option<Vec<u32>>,
    },
    /// `addSlice`. Stride 0 repeats; with a fill value, positions outside the operand read it.
    Slice {
        /// Operand.
        input: TensorId,
        /// First index per dimension.
        start: Vec<i64>,
        /// Result size per dimension.
        size: Vec<u64>,
        /// Step per dimension.
        stride: Vec<u64>,
        /// Fill value (scalar tensor).
        fill: Option<TensorId>,
    },
    /// `addConcatenation`.
    Concat {
        /// Operands.
        inputs: Vec<TensorId>,
        /// Dimension.
        axis: u32,
    },
    /// `addGatherV2`.
    Gather {
        /// Data.
        data: TensorId,
        /// Indices.
        indices: TensorId,
        /// Dimension of the data.
        axis: u32,
        /// Single elements (`kELEMENT`) instead of whole slices (`kDEFAULT`).
        elements: bool,
    },
    /// `addConvolutionNd` with kernel and bias as tensors.
    Convolution {
        /// Operand.
        input: TensorId,
        /// Kernel.
        kernel: TensorId,
        /// Bias.
        bias: Option<TensorId>,
        /// Step per spatial dimension.
        stride: Vec<u64>,
        /// Zeros before, per spatial dimension.
        pre_padding: Vec<u64>,
        /// Zeros after, per spatial dimension.
        post_padding: Vec<u64>,
        /// Distance of taps per spatial dimension.
        dilation: Vec<u64>,
        /// Channel groups.
        groups: u64,
    },
    /// `addDistCollective` and at once `setNbRanks`.
    Collective {
        /// Operand.
        input: TensorId,
        /// What, how, with whom.
        collective: DistCollective,
    },
}

impl Call {
    /// Operands in order.
    pub fn operands(&self) -> Vec<TensorId> {
        match self {
            Call::Input | Call::Constant(_) | Call::Weight(_) => vec![],
            Call::Cast { input, .. }
            | Call::Unary { input, .. }
            | Call::Activation { input, .. }
            | Call::Reduce { input, .. }
            | Call::Softmax { input, .. }
            | Call::Shuffle { input, .. }
            | Call::Collective { input, .. } => vec![*input],
            Call::ElementWise { a, b, .. } | Call::MatMul { a, b, .. } => vec![*a, *b],
            Call::Select { condition, then_input, else_input } => vec![*condition, *then_input, *else_input],
            Call::Normalization { input, scale, bias, .. } => vec![*input, *scale, *bias],
            Call::Attention { query, key, value, mask, .. } => {
                [*query, *key, *value].into_iter().chain(*mask).collect()
            }
            Call::Slice { input, fill, .. } => std::iter::once(*input).chain(*fill).collect(),
            Call::Concat { inputs, .. } => inputs.clone(),
            Call::Gather { data, indices, .. } => vec![*data, *indices],
            Call::Convolution { input, kernel, bias, .. } => {
                [*input, *kernel].into_iter().chain(*bias).collect()
            }
        }
    }

    /// Name of the layer kind, for statistics and messages.
    pub const fn kind(&self) -> &'static str {
        match self {
            Call::Input => "input",
            Call::Constant(_) => "constant",
            Call::Weight(_) => "weight",
            Call::Cast { .. } => "cast",
            Call::Unary { .. } => "unary",
            Call::ElementWise { .. } => "elementwise",
            Call::Activation { .. } => "activation",
            Call::Select { .. } => "select",
            Call::MatMul { .. } => "matmul",
            Call::Reduce { .. } => "reduce",
            Call::Softmax { .. } => "softmax",
            Call::Normalization { .. } => "normalization",
            Call::Attention { .. } => "attention",
            Call::Shuffle { .. } => "shuffle",
            Call::Slice { .. } => "slice",
            Call::Concat { .. } => "concat",
            Call::Gather { .. } => "gather",
            Call::Convolution { .. } => "convolution",
            Call::Collective { .. } => "collective",
        }
    }
}
