//! Programs that `torch.export` saved, to the SPMD IR.
//!
//! ```no_run
//! use shardweld_ir::WeightStore;
//! use shardweld_torch::{Groups, Source, load};
//!
//! # fn main() -> Result<(), shardweld_torch::ImportError> {
//! let groups = Groups::read(&["model.rank0.json"])?;
//! let graph = load(&[Source::for_all("model.rank0.pt2")], Some(&groups), &WeightStore::new())?;
//! # let _ = graph; Ok(()) }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`archive`] | the zip archive or bare JSON, read within limits |
//! | [`schema`] | the JSON, by field name |
//! | [`groups`] | the side file: mesh, group names, public names |
//! | `call`, `promote`, `context` | arguments with defaults, torch's type promotion, building blocks |
//! | `ops` | what each op means, one file per family |
//! | `alias` | views and in-place writes |
//! | `program` | one file to a functional list of IR ops, checked against the recorded types |
//! | `weights` | where parameters lie |
//! | `identity` | which ranks hold the same data for a weight |
//! | `unify` | the ranks' lists to one graph |
//! | [`load`](mod@load) | the whole way |
//!
//! Input-free arithmetic (frequency tables and the like, often in f64) is imported as it is; folding it is a pass over the IR.

mod alias;
pub mod archive;
mod call;
mod context;
mod error;
pub mod groups;
mod identity;
pub mod load;
mod ops;
mod program;
mod promote;
pub mod schema;
mod ssa;
mod unify;
mod weights;

pub use error::{ImportError, Refusal};
pub use groups::Groups;
pub use load::{Source, load};
