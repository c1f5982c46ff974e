//! What a kernel can refuse. The evaluator adds the node and the rank.

use shardweld_ir::DType;
use thiserror::Error;

/// Why a kernel has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// The op has no meaning for this element type.
    #[error("{op} is not defined for {dtype}")]
    DType {
        /// Op name.
        op: &'static str,
        /// Element type found.
        dtype: DType,
    },
    /// Operands of different element types, where the op takes one.
    #[error("{op} takes operands of one element type, found {first} and {second}")]
    MixedDTypes {
        /// Op name.
        op: &'static str,
        /// First operand.
        first: DType,
        /// The operand that differs.
        second: DType,
    },
    /// Shapes that do not fit together.
    #[error("{op}: {reason}")]
    Shape {
        /// Op name.
        op: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// An index outside of the data.
    #[error("{op}: index {index} is outside of 0..{size}")]
    Index {
        /// Op name.
        op: &'static str,
        /// Index found.
        index: i64,
        /// Size of the dimension.
        size: usize,
    },
    /// An integer division by zero.
    #[error("{op}: integer division by zero")]
    DivisionByZero {
        /// Op name.
        op: &'static str,
    },
    /// More elements than this machine can address.
    #[error("a tensor of shape {shape:?} has more bytes than can be addressed")]
    TooLarge {
        /// Shape asked for.
        shape: Vec<usize>,
    },
}

impl KernelError {
    pub(crate) fn shape(op: &'static str, reason: impl Into<String>) -> KernelError {
        KernelError::Shape { op, reason: reason.into() }
    }
}

/// Result of a kernel.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;
