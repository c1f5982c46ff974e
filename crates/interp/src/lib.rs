//! The reference interpreter: runs an SPMD graph for all ranks at once on the CPU, with the exact dtype behaviour of
//! PyTorch's eager CPU ops (f16 and bf16 round after every op, sums accumulate in f32).

mod arith;
pub mod cast;
mod element;
pub mod error;
mod float8;
pub mod layout;
pub mod pointwise;
pub mod tensor;

pub use element::{Bool, Element, F8E4M3};
pub use error::KernelError;
pub use tensor::Tensor;
