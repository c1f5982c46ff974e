//! The reference interpreter: runs an SPMD graph for all ranks at once on the CPU, with the exact dtype behaviour of PyTorch's
//! eager CPU ops (f16 and bf16 round after every op, sums and products accumulate in f32).
//!
//! ```
//! use shardweld_interp::{Named, Tensor, run};
//! use shardweld_ir::{Builder, DType::F32, Mesh, ReduceOp, WeightStore};
//!
//! let mut b = Builder::new("sum", Mesh::new([("tp", 2)])?);
//! let x = b.input("x", F32, &[2])?;
//! let y = b.all_reduce(x, ReduceOp::Sum, &["tp"])?;
//! b.output("y", y)?;
//! let rank = |v: [f32; 2]| Ok::<_, shardweld_interp::KernelError>(Named::from([("x".to_owned(), Tensor::new(&[2], &v)?)]));
//! let outputs = run(&b.finish()?, &WeightStore::new(), &[rank([1.0, 2.0])?, rank([3.0, 4.0])?])?;
//! assert_eq!(outputs[1]["y"].slice::<f32>(), [4.0, 6.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`evaluate`](mod@evaluate), [`domain`] | the walk over a graph for all ranks, over any value domain |
//! | [`concrete`] | the domain of tensors, and [`run`] |
//! | [`symbolic`] | the domain of terms, for proofs |
//! | [`fold`] | the pass `fold_constants` |
//! | [`tensor`], `element`, `float8` | tensors and their ten element types |
//! | [`pointwise`], `arith`, `exponential`, [`cast`] | elementwise ops |
//! | [`reduce`], [`softmax`], [`norm`] | ops along dimensions |
//! | [`matmul`], `gemm`, [`attention`], [`conv`] | ops that multiply matrices |
//! | [`layout`], [`collective`] | data movement within and between ranks |
//! | [`tensor_file`], [`metrics`] | tensors of all ranks in a file, and how far two are apart |

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
