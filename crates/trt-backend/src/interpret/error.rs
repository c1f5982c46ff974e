//! Why traces cannot be run.

use shardweld_interp::KernelError;
use shardweld_ir::{StoreError, TensorType};
use thiserror::Error;

/// A rule of TensorRT that a trace breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("layer `{layer}` ({call}): {rule}")]
pub struct Refused {
    /// Name of the layer.
    pub layer: String,
    /// Kind of the call.
    pub call: &'static str,
    /// The rule, with what was found.
    pub rule: String,
}

/// Why a run has no outputs.
#[derive(Debug, Error)]
pub enum InterpretError {
    /// Neither one trace for all ranks nor one per rank.
    #[error("{traces} traces for the inputs of {ranks} ranks; one for all or one per rank is needed")]
    Traces {
        /// Traces given.
        traces: usize,
        /// Ranks with inputs.
        ranks: usize,
    },
    /// A trace that TensorRT refuses.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A rank lacks an input.
    #[error("rank {rank} has no input `{input}`; it has: {present}")]
    MissingInput {
        /// Global rank.
        rank: usize,
        /// Name of the input.
        input: String,
        /// Names given, as text.
        present: String,
    },
    /// An input of another type than the trace declares.
    #[error("input `{input}` of rank {rank} is {found}, the trace declares {expected}")]
    InputType {
        /// Global rank.
        rank: usize,
        /// Name of the input.
        input: String,
        /// Type given.
        found: TensorType,
        /// Type declared.
        expected: TensorType,
    },
    /// A weight cannot be read.
    #[error("layer `{layer}`: weight `{weight}`: {source}")]
    Weight {
        /// Name of the layer.
        layer: String,
        /// Name of the weight.
        weight: String,
        /// What the store says.
        source: Box<StoreError>,
    },
    /// A kernel refused.
    #[error("layer `{layer}` ({call}) on rank {rank}: {source}")]
    Layer {
        /// Name of the layer.
        layer: String,
        /// Kind of the call.
        call: &'static str,
        /// Global rank (the lowest of those that share the computation).
        rank: usize,
        /// What the kernel says.
        source: KernelError,
    },
    /// A layer made something else than the trace says.
    #[error("layer `{layer}` ({call}) on rank {rank} gave {found}, the trace says {expected}")]
    ResultType {
        /// Name of the layer.
        layer: String,
        /// Kind of the call.
        call: &'static str,
        /// Global rank.
        rank: usize,
        /// Type found.
        found: TensorType,
        /// Type stated.
        expected: TensorType,
    },
    /// An undefined value was looked at.
    #[error(
        "`{user}` on rank {rank} needs a value that is undefined there: `{origin}` defines it at its root only"
    )]
    Undefined {
        /// The output or collective that looks.
        user: String,
        /// Global rank whose value is undefined.
        rank: usize,
        /// The rooted collective it comes from.
        origin: String,
    },
    /// Two ranks of a group issue different collectives: the engines would hang or mix up data.
    #[error("rank {rank} waits at layer `{layer}` ({what}) while rank {other_rank} {other}")]
    Mismatch {
        /// Global rank.
        rank: usize,
        /// Its collective layer.
        layer: String,
        /// What that is.
        what: String,
        /// A rank of the same group.
        other_rank: usize,
        /// Where that one is.
        other: String,
    },
}
