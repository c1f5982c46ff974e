//! torch.export programs to the SPMD IR.
pub mod archive;
mod error;
pub mod groups;
pub mod schema;
pub use error::{ImportError, Refusal};
