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
//! | `side_file` | the side file's JSON form |
//! | [`groups`] | its meaning: mesh, group names, public names |
//! | `call`, `promote`, `context` | arguments with defaults, torch's type promotion, building blocks |
//! | `ops` | what each op means, one file per family |
//! | `alias` | views and in-place writes |
//! | `higher_order` | regions that torch wraps in an op of their own, inlined |
//! | `liveness` | which nodes a program can do without |
//! | `program` | one file to a functional list of IR ops, checked against the recorded types |
//! | `weights` | where parameters lie |
//! | `identity` | which ranks hold the same data for a weight |
//! | `unify` | the ranks' lists to one graph |
//! | [`load`](mod@load) | the whole way |
//!
//! What every import guarantees: each node's computed type is the one that torch recorded; each argument of each call was read by its
//! handler; writes in place (to slices and other views too) are part of the result; a node that cannot be imported is refused by name,
//! all of them at once. Dropped: unsupported pure ops whose results nobody uses. Refused
//! throughout: symbolic sizes, higher-order ops other than `no_grad` regions and regions with autocast off, effects on inputs or weights, shapes
//! that depend on data, uneven all-to-all, pickled weights.
//!
//! Numbers with f16 and bf16 tensors follow torch's CPU kernels: unrounded (f32) in `mul` and `div`, rounded to the tensor's type first in
//! every other op.
//!
//! Input-free arithmetic (frequency tables and the like, often in f64) is imported as it is; folding it is a pass over the IR.

mod alias;
pub mod archive;
mod call;
mod context;
mod error;
pub mod groups;
mod higher_order;
mod identity;
mod liveness;
pub mod load;
mod ops;
mod program;
mod promote;
pub mod schema;
mod side_file;
mod ssa;
mod unify;
mod weights;

pub use error::{ImportError, Refusal};
pub use groups::Groups;
pub use load::{Source, load};
