//! TensorRT backend: from an IR graph to a network trace, and from a trace to an engine, C++ source and a placement
//! report.
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
