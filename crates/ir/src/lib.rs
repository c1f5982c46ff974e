//! The SPMD tensor graph that everything else in shardweld reads and writes.
//!
//! One [`Graph`] is one program that all ranks of a [`Mesh`] run. Types are local (per rank). Collectives name a
//! [`Group`]; the ranks of *this* rank's group are derived, never stored.
//!
//! | module | holds |
//! |---|---|
//! | [`types`] | element types, dimensions, tensor types |
//! | [`mesh`] | mesh and groups |
//! | [`literal`] | scalars and small constants |
//! | [`op`] | operations and their meaning |
//! | [`mod@infer`] | shape and dtype rules |
//! | [`weight`] | weights by reference |
//! | [`view`] | lazy operations on weight views |
//! | [`store`] | weight bytes on demand |
//! | [`graph`] | the graph |
//! | [`verify`] | the verifier |
//! | [`text`] | the text form `.swir` |
//! | [`json`] | the JSON form |
//! | [`dot`] | Graphviz export |
//! | [`hash`] | hashes of graphs |
//! | [`builder`] | a method per op for frontends |
//! | [`testing`] | random programs for property tests |
//! | [`rebuild`] | graphs from files, trusted in nothing |

#![deny(missing_docs)]

pub mod builder;
pub mod dot;
pub mod graph;
pub mod hash;
pub mod infer;
pub mod json;
pub mod literal;
pub mod mesh;
pub mod op;
pub mod rebuild;
pub mod store;
pub mod testing;
pub mod text;
pub mod types;
pub mod verify;
pub mod view;
pub mod weight;

pub use builder::{BuildError, Builder};
pub use graph::{Graph, GraphError, Node, NodeId, Output, Value};
pub use infer::{InferError, infer};
pub use json::JsonError;
pub use literal::{Literal, Scalar};
pub use mesh::{AxisId, Group, Mesh, MeshAxis, MeshError};
pub use op::{Binary, Collective, GatherMode, NormKind, Op, ReduceKind, ReduceOp, Unary};
pub use store::{StoreError, WeightStore};
pub use text::TextError;
pub use types::{DType, Dim, Shape, SymbolicDim, TensorType};
pub use verify::{Problem, VerifyError};
pub use view::ViewError;
pub use weight::{Blob, BlobEntry, StridedView, Weight, WeightId, WeightView};
