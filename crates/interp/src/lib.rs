//! The reference interpreter: runs an SPMD graph for all ranks at once on the CPU, with the exact dtype behaviour of
//! PyTorch's eager CPU ops (f16 and bf16 round after every op, sums accumulate in f32).

mod arith;
pub mod attention;
pub mod cast;
pub mod collective;
pub mod conv;
mod element;
pub mod error;
mod float8;
mod gemm;
pub mod layout;
pub mod matmul;
pub mod norm;
pub mod pointwise;
pub mod reduce;
pub mod softmax;
pub mod tensor;

pub use element::{Bool, Element, F8E4M3};
pub use error::KernelError;
pub use tensor::Tensor;
