//! Replaying a trace onto a builder.

use std::borrow::Cow;

use shardweld_ir::store::{StoreError, WeightStore};
use shardweld_ir::{DType, ReduceOp};
use thiserror::Error;

use super::bindings::*;
use super::library::Library;
use super::session::{CallError, ProgressFn, Session};
use crate::flavour::Flavour;
use crate::sink::Sink;
use crate::trace::{
    ActivationType, Call, CausalMaskKind, CollectiveKind, ElementWiseOperation, NetworkTrace,
    ReduceOperation, TensorId, UnaryOperation,
};

/// Builds engines with an installed library.
pub struct LiveSink<'a> {
    /// The library.
    pub library: &'a Library,
    /// Compute capability as major * 10 + minor, such as 80; `None` builds for the GPU of this machine.
    pub compute_capability: Option<u32>,
    /// Builder threads, at least 1.
    pub threads: u32,
    /// Called at every step of the builder; `false` cancels.
    pub progress: Option<&'a ProgressFn<'a>>,
}

impl std::fmt::Debug for LiveSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSink")
            .field("library", &self.library)
            .field("compute_capability", &self.compute_capability)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// Why no engine was built.
#[derive(Debug, Error)]
pub enum LiveError {
    /// The library refused a call, or the build.
    #[error("{flavour} {stage}: {source}")]
    Call {
        /// Which library.
        flavour: Flavour,
        /// The layer, or the build.
        stage: String,
        /// What it said.
        source: CallError,
    },
    /// The library sees another type or shape than the trace.
    #[error("layer `{layer}`: the library computes {found}, the trace says {expected}")]
    TypeMismatch {
        /// Layer name.
        layer: String,
        /// The library's type.
        found: String,
        /// The trace's type.
        expected: String,
    },
    /// A weight cannot be read.
    #[error("weight `{weight}`: {source}")]
    Weight {
        /// Name.
        weight: String,
        /// Why.
        source: Box<StoreError>,
    },
    /// The caller's progress function said stop.
    #[error("the build was cancelled")]
    Cancelled,
}

/// A serialised engine, still in the builder's memory.
#[derive(Debug)]
pub struct BuiltEngine {
    session: Session,
    /// The builder's listing of the engine's layers, for [`crate::placement`].
    pub listing: String,
    /// Layers of the network definition.
    pub network_layers: usize,
}

impl BuiltEngine {
    /// The engine's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.session.engine()
    }
}

impl Sink for LiveSink<'_> {
    type Output = BuiltEngine;
    type Error = LiveError;

    fn replay(&self, trace: &NetworkTrace, weights: &WeightStore) -> Result<BuiltEngine, LiveError> {
        let flavour = self.library.flavour();
        let failed = |stage: String| move |source| LiveError::Call { flavour, stage, source };
        // Bytes that the network points to; they outlive the build, and the session is not used for building after it.
        let bytes = trace
            .layers()
            .iter()
            .map(|l| constant_bytes(&l.call, trace, weights))
            .collect::<Result<Vec<_>, _>>()?;
        let mut session = Session::new(self.library).map_err(failed("cannot start".into()))?;
        for (i, (layer, bytes)) in trace.layers().iter().zip(&bytes).enumerate() {
            let tensor = add(&session, trace, i, bytes).map_err(failed(format!(
                "layer `{}` ({})",
                layer.name,
                layer.call.kind()
            )))?;
            let (dtype, dims) =
                session.tensor_type(tensor).map_err(failed(format!("layer `{}`", layer.name)))?;
            let expected = dims_of(&layer.dims);
            if dtype != data_type(layer.dtype) || found_dims(&dims) != found_dims(&expected) {
                return Err(LiveError::TypeMismatch {
                    layer: layer.name.clone(),
                    found: format!("type #{} {:?}", dtype.0, found_dims(&dims)),
                    expected: format!("{} {:?}", layer.dtype, layer.dims),
                });
            }
        }
        for o in trace.outputs() {
            session.mark_output(tensor(o.tensor), &o.name).map_err(failed(format!("output `{}`", o.name)))?;
        }
        let network_layers = usize::try_from(session.nb_layers()).unwrap_or(0);
        let cancelled = std::sync::atomic::AtomicBool::new(false);
        let watch = self.progress.map(|p| {
            |event: super::session::ProgressEvent<'_>| {
                let go_on = p(event);
                if !go_on {
                    cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                go_on
            }
        });
        let result = session.build(
            self.compute_capability.map_or(0, |c| i32::try_from(c).unwrap_or(i32::MAX)),
            i32::try_from(self.threads.max(1)).unwrap_or(i32::MAX),
            watch.as_ref().map(|w| w as &ProgressFn<'_>),
        );
        if cancelled.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(LiveError::Cancelled);
        }
        let listing = result.map_err(failed("cannot build".into()))?;
        Ok(BuiltEngine { session, listing, network_layers })
    }
}

/// Bytes of a constant or weight; empty for other calls.
fn constant_bytes<'w>(
    call: &Call,
    trace: &NetworkTrace,
    weights: &'w WeightStore,
) -> Result<Cow<'w, [u8]>, LiveError> {
    match call {
        Call::Constant(literal) => Ok(Cow::Owned(literal.to_bytes())),
        Call::Weight(w) => {
            let w = &trace.weights()[*w as usize];
            let bytes = weights
                .view_bytes(&w.view)
                .map_err(|e| LiveError::Weight { weight: w.name.clone(), source: Box::new(e) })?;
            // Files need not align elements; TensorRT reads them as numbers.
            let aligned = bytes.as_ptr().addr().is_multiple_of(w.dtype.size());
            Ok(if aligned { bytes } else { Cow::Owned(bytes.into_owned()) })
        }
        _ => Ok(Cow::Borrowed(&[])),
    }
}

fn add(s: &Session, trace: &NetworkTrace, index: usize, bytes: &[u8]) -> Result<i32, CallError> {
    let layer = &trace.layers()[index];
    let name = layer.name.as_str();
    let dims_of_operand = |t: TensorId| trace.layers()[t.index()].dims.as_slice();
    match &layer.call {
        Call::Input => s.add_input(name, data_type(layer.dtype), &dims_of(&layer.dims)),
        Call::Constant(_) | Call::Weight(_) => {
            let count = bytes.len() / layer.dtype.size();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            s.add_constant(name, data_type(layer.dtype), &dims_of(&layer.dims), bytes, count)
        }
        Call::Cast { input, to } => s.add_cast(name, tensor(*input), data_type(*to)),
        Call::Unary { input, op } => s.add_unary(name, tensor(*input), unary(*op)),
        Call::ElementWise { a, b, op } => s.add_elementwise(name, tensor(*a), tensor(*b), elementwise(*op)),
        Call::Activation { input, op } => s.add_activation(name, tensor(*input), activation(*op)),
        Call::Select { condition, then_input, else_input } => {
            s.add_select(name, tensor(*condition), tensor(*then_input), tensor(*else_input))
        }
        Call::MatMul { a, transpose_a, b, transpose_b } => {
            s.add_matmul(name, (tensor(*a), *transpose_a), (tensor(*b), *transpose_b))
        }
        Call::Reduce { input, op, axes, keep_dims } => {
            s.add_reduce(name, tensor(*input), reduce(*op), mask(axes), *keep_dims)
        }
        Call::Softmax { input, axis } => s.add_softmax(name, tensor(*input), mask(&[*axis])),
        Call::Normalization { input, scale, bias, axes, epsilon } => s.add_normalization(
            name,
            (tensor(*input), tensor(*scale), tensor(*bias)),
            mask(axes),
            epsilon.as_f64() as f32,
        ),
        Call::Attention { query, key, value, mask, causal } => s.add_attention(
            name,
            (tensor(*query), tensor(*key), tensor(*value)),
            mask.map(tensor),
            match causal {
                CausalMaskKind::None => SwtCausal::SWT_CAUSAL_NONE,
                CausalMaskKind::UpperLeft => SwtCausal::SWT_CAUSAL_UPPER_LEFT,
            },
            // Not every GPU has a fused kernel for every shape; without this the build would fail there.
            true,
        ),
        Call::Shuffle { input, first, reshape, second } => s.add_shuffle(
            name,
            tensor(*input),
            first.as_deref().map(permutation).as_ref(),
            reshape.as_deref().map(dims_of).as_ref(),
            second.as_deref().map(permutation).as_ref(),
        ),
        Call::Slice { input, start, size, stride, fill } => s.add_slice(
            name,
            tensor(*input),
            &signed_dims(start),
            &dims_of(size),
            &dims_of(stride),
            fill.map(tensor),
        ),
        Call::Concat { inputs, axis } => {
            let inputs: Vec<i32> = inputs.iter().map(|&t| tensor(t)).collect();
            s.add_concat(name, &inputs, *axis as i32)
        }
        Call::Gather { data, indices, axis, elements } => {
            s.add_gather(name, tensor(*data), tensor(*indices), *axis as i32, *elements)
        }
        Call::Convolution { input, kernel, bias, stride, pre_padding, post_padding, dilation, groups } => {
            let k = dims_of_operand(*kernel);
            let desc = SwtConvolutionDesc {
                nb_output_maps: k.first().map_or(0, |&n| n as i64),
                nb_groups: *groups as i64,
                kernel: dims_of(k.get(2..).unwrap_or(&[])),
                stride: dims_of(stride),
                pre_padding: dims_of(pre_padding),
                post_padding: dims_of(post_padding),
                dilation: dims_of(dilation),
            };
            let operands = (tensor(*input), tensor(*kernel), bias.map(tensor));
            s.add_convolution(name, operands, data_type(layer.dtype), &desc)
        }
        Call::Collective { input, collective: c } => {
            let ranks: Vec<i64> = c.ranks().iter().map(|&r| i64::from(r)).collect();
            let kind = (collective(c.kind()), collective_reduce(c.reduce()));
            s.add_collective(name, tensor(*input), kind, c.root_or_minus_one(), &ranks)
        }
    }
}

/// Calls and tensors are numbered alike, since every call makes one tensor.
fn tensor(t: TensorId) -> i32 {
    i32::try_from(t.0).unwrap_or(i32::MAX)
}

fn mask(axes: &[u32]) -> u32 {
    axes.iter().fold(0, |m, &a| m | 1u32.checked_shl(a).unwrap_or(0))
}

fn dims_of(dims: &[u64]) -> SwtDims {
    let mut out = SwtDims { nb_dims: dims.len() as i32, ..SwtDims::default() };
    for (o, &d) in out.d.iter_mut().zip(dims) {
        *o = i64::try_from(d).unwrap_or(i64::MAX);
    }
    out
}

fn signed_dims(dims: &[i64]) -> SwtDims {
    let mut out = SwtDims { nb_dims: dims.len() as i32, ..SwtDims::default() };
    for (o, &d) in out.d.iter_mut().zip(dims) {
        *o = d;
    }
    out
}

fn found_dims(dims: &SwtDims) -> &[i64] {
    dims.d.get(..usize::try_from(dims.nb_dims).unwrap_or(0)).unwrap_or(&dims.d)
}

fn permutation(p: &[u32]) -> SwtPermutation {
    let mut out = SwtPermutation { order: std::array::from_fn(|i| i as i32) };
    for (o, &p) in out.order.iter_mut().zip(p) {
        *o = p as i32;
    }
    out
}

fn data_type(d: DType) -> SwtDataType {
    match d {
        DType::F32 => SwtDataType::SWT_DTYPE_FLOAT,
        DType::F16 => SwtDataType::SWT_DTYPE_HALF,
        DType::BF16 => SwtDataType::SWT_DTYPE_BF16,
        DType::F8E4M3 => SwtDataType::SWT_DTYPE_FP8,
        DType::I64 => SwtDataType::SWT_DTYPE_INT64,
        DType::I32 => SwtDataType::SWT_DTYPE_INT32,
        DType::I8 => SwtDataType::SWT_DTYPE_INT8,
        DType::U8 => SwtDataType::SWT_DTYPE_UINT8,
        DType::Bool => SwtDataType::SWT_DTYPE_BOOL,
        // Traces have none; the shim refuses the number.
        DType::F64 => SwtDataType(u32::MAX),
    }
}

fn unary(op: UnaryOperation) -> SwtUnary {
    use UnaryOperation as U;
    match op {
        U::Exp => SwtUnary::SWT_UNARY_EXP,
        U::Log => SwtUnary::SWT_UNARY_LOG,
        U::Sqrt => SwtUnary::SWT_UNARY_SQRT,
        U::Recip => SwtUnary::SWT_UNARY_RECIP,
        U::Abs => SwtUnary::SWT_UNARY_ABS,
        U::Neg => SwtUnary::SWT_UNARY_NEG,
        U::Sin => SwtUnary::SWT_UNARY_SIN,
        U::Cos => SwtUnary::SWT_UNARY_COS,
        U::Tan => SwtUnary::SWT_UNARY_TAN,
        U::Sinh => SwtUnary::SWT_UNARY_SINH,
        U::Cosh => SwtUnary::SWT_UNARY_COSH,
        U::Asin => SwtUnary::SWT_UNARY_ASIN,
        U::Acos => SwtUnary::SWT_UNARY_ACOS,
        U::Atan => SwtUnary::SWT_UNARY_ATAN,
        U::Ceil => SwtUnary::SWT_UNARY_CEIL,
        U::Floor => SwtUnary::SWT_UNARY_FLOOR,
        U::Erf => SwtUnary::SWT_UNARY_ERF,
        U::Not => SwtUnary::SWT_UNARY_NOT,
        U::Sign => SwtUnary::SWT_UNARY_SIGN,
        U::Round => SwtUnary::SWT_UNARY_ROUND,
        U::IsInf => SwtUnary::SWT_UNARY_ISINF,
        U::IsNan => SwtUnary::SWT_UNARY_ISNAN,
    }
}

fn elementwise(op: ElementWiseOperation) -> SwtElementWise {
    use ElementWiseOperation as E;
    match op {
        E::Sum => SwtElementWise::SWT_ELEMENTWISE_SUM,
        E::Prod => SwtElementWise::SWT_ELEMENTWISE_PROD,
        E::Max => SwtElementWise::SWT_ELEMENTWISE_MAX,
        E::Min => SwtElementWise::SWT_ELEMENTWISE_MIN,
        E::Sub => SwtElementWise::SWT_ELEMENTWISE_SUB,
        E::Div => SwtElementWise::SWT_ELEMENTWISE_DIV,
        E::Pow => SwtElementWise::SWT_ELEMENTWISE_POW,
        E::FloorDiv => SwtElementWise::SWT_ELEMENTWISE_FLOOR_DIV,
        E::And => SwtElementWise::SWT_ELEMENTWISE_AND,
        E::Or => SwtElementWise::SWT_ELEMENTWISE_OR,
        E::Xor => SwtElementWise::SWT_ELEMENTWISE_XOR,
        E::Equal => SwtElementWise::SWT_ELEMENTWISE_EQUAL,
        E::Greater => SwtElementWise::SWT_ELEMENTWISE_GREATER,
        E::Less => SwtElementWise::SWT_ELEMENTWISE_LESS,
    }
}

fn activation(op: ActivationType) -> SwtActivation {
    match op {
        ActivationType::Relu => SwtActivation::SWT_ACTIVATION_RELU,
        ActivationType::Sigmoid => SwtActivation::SWT_ACTIVATION_SIGMOID,
        ActivationType::Tanh => SwtActivation::SWT_ACTIVATION_TANH,
        ActivationType::GeluErf => SwtActivation::SWT_ACTIVATION_GELU_ERF,
        ActivationType::GeluTanh => SwtActivation::SWT_ACTIVATION_GELU_TANH,
    }
}

fn reduce(op: ReduceOperation) -> SwtReduce {
    match op {
        ReduceOperation::Sum => SwtReduce::SWT_REDUCE_SUM,
        ReduceOperation::Prod => SwtReduce::SWT_REDUCE_PROD,
        ReduceOperation::Max => SwtReduce::SWT_REDUCE_MAX,
        ReduceOperation::Min => SwtReduce::SWT_REDUCE_MIN,
        ReduceOperation::Avg => SwtReduce::SWT_REDUCE_AVG,
    }
}

fn collective_reduce(op: Option<ReduceOp>) -> SwtReduce {
    match op {
        None => SwtReduce::SWT_REDUCE_NONE,
        Some(ReduceOp::Sum) => SwtReduce::SWT_REDUCE_SUM,
        Some(ReduceOp::Prod) => SwtReduce::SWT_REDUCE_PROD,
        Some(ReduceOp::Max) => SwtReduce::SWT_REDUCE_MAX,
        Some(ReduceOp::Min) => SwtReduce::SWT_REDUCE_MIN,
        Some(ReduceOp::Avg) => SwtReduce::SWT_REDUCE_AVG,
    }
}

fn collective(kind: CollectiveKind) -> SwtCollective {
    match kind {
        CollectiveKind::AllReduce => SwtCollective::SWT_COLLECTIVE_ALL_REDUCE,
        CollectiveKind::AllGather => SwtCollective::SWT_COLLECTIVE_ALL_GATHER,
        CollectiveKind::Broadcast => SwtCollective::SWT_COLLECTIVE_BROADCAST,
        CollectiveKind::Reduce => SwtCollective::SWT_COLLECTIVE_REDUCE,
        CollectiveKind::ReduceScatter => SwtCollective::SWT_COLLECTIVE_REDUCE_SCATTER,
        CollectiveKind::AllToAll => SwtCollective::SWT_COLLECTIVE_ALL_TO_ALL,
        CollectiveKind::Gather => SwtCollective::SWT_COLLECTIVE_GATHER,
        CollectiveKind::Scatter => SwtCollective::SWT_COLLECTIVE_SCATTER,
    }
}
