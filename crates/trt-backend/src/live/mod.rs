//! The live sink: replays a trace onto an installed TensorRT library. All `unsafe` of the crate is in this folder.

#[allow(
    dead_code,
    missing_docs,
    non_upper_case_globals,
    non_camel_case_types,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod bindings;
mod library;
mod session;
mod sink;

pub use library::{Library, LibraryError, header_version};
pub use session::{CallError, ProgressEvent, ProgressFn};
pub use sink::{BuiltEngine, LiveError, LiveSink};
