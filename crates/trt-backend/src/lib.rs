//! TensorRT backend: from an IR graph to a network trace, and from a trace to an engine, C++ source and a placement
//! report.
//!
//! ```no_run
//! # use std::error::Error;
//! use shardweld_ir::{Graph, WeightStore};
//! use shardweld_trt::build::{BuildOptions, build_all};
//! use shardweld_trt::flavour::Flavour;
//! use shardweld_trt::live::Library;
//! use shardweld_trt::lower::{LowerOptions, lower_all};
//! use shardweld_trt::placement::source_collectives;
//! use shardweld_trt::target::Target;
//!
//! # fn engines(source: &Graph, rewritten: &Graph) -> Result<(), Box<dyn Error>> {
//! let library = Library::find(Flavour::TensorRtRtx, None)?;
//! let target = Target { flavour: library.flavour(), version: library.version() };
//! let weights = WeightStore::new();
//! let options = LowerOptions { target: Some(target), ..LowerOptions::default() };
//! let traces = lower_all(rewritten, &options, &weights)?;
//! let options = BuildOptions {
//!     library: &library,
//!     compute_capability: Some(80),
//!     parallel: 2,
//!     memory_bytes: 8 << 30,
//!     progress: None,
//! };
//! for engine in build_all(&traces, &weights, "out".as_ref(), "model", &options)? {
//!     engine.placement.require_sources(&source_collectives(source))?;
//!     println!("{} for ranks {:?}", engine.path.display(), engine.ranks);
//! }
//! # Ok(()) }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`flavour`] | the two libraries and their versions |
//! | [`target`] | what a version of a library is known not to build |
//! | [`trace`] | the network definition as a list of typed calls |
//! | [`lower`] | from the IR to a trace, for one rank or all |
//! | [`sink`] | what replays a trace |
//! | [`live`] | the sink that builds engines with an installed library |
//! | [`interpret`] | the sink that runs traces on the CPU, and what TensorRT refuses |
//! | [`build`] | all engines of a program, in parallel |
//! | [`cpp`] | the sink that writes C++ source |
//! | [`placement`] | where every collective went in the engine |

#[cfg(feature = "live")]
pub mod build;
pub mod cpp;
mod files;
pub mod flavour;
pub mod interpret;
#[cfg(feature = "live")]
pub mod live;
pub mod lower;
pub mod placement;
pub mod sink;
pub mod target;
pub mod trace;
