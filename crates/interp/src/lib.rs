//! The reference interpreter: runs an SPMD graph for all ranks at once on the CPU, with the exact dtype behaviour of
//! PyTorch's eager CPU ops (f16 and bf16 round after every op, sums accumulate in f32).

mod arith;
pub mod attention;
pub mod cast;
pub mod collective;
pub mod concrete;
pub mod conv;
pub mod domain;
mod element;
pub mod error;
pub mod evaluate;
mod exponential;
mod float8;
pub mod fold;
mod gemm;
pub mod layout;
pub mod matmul;
pub mod metrics;
pub mod norm;
pub mod pointwise;
pub mod reduce;
pub mod softmax;
pub mod symbolic;
pub mod tensor;
pub mod tensor_file;

pub use concrete::{Concrete, ConcreteError, RunError, WeightSource, run, run_observed};
pub use domain::Domain;
pub use element::{Bool, Element, F8E4M3};
pub use error::KernelError;
pub use evaluate::{EvalError, Named, Observed, Slot, evaluate};
pub use fold::{FoldError, FoldStats, fold_constants};
pub use metrics::{Distance, distance};
pub use tensor::Tensor;
