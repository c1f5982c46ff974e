//! What can go wrong when weight bytes are resolved. Every error names file and entry, what was found and what was expected.

use std::path::PathBuf;

use thiserror::Error;

use crate::types::DType;
use crate::view::ViewError;

/// Why bytes could not be had. Cloneable, because a failure is remembered with the file that caused it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The system refused.
    #[error("{file}: cannot {action}: {reason}")]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's words.
        reason: String,
    },
    /// The file is no archive of the kind that the blob names.
    #[error("{file}: not a readable {expected} file: {reason}")]
    Format {
        /// The file.
        file: PathBuf,
        /// Kind needed.
        expected: &'static str,
        /// The reader's words.
        reason: String,
    },
    /// The archive has no such entry.
    #[error("{file}: no entry `{entry}` among {entries}")]
    NoEntry {
        /// The file.
        file: PathBuf,
        /// Entry asked for.
        entry: String,
        /// Number of entries.
        entries: usize,
    },
    /// An entry cannot be read.
    #[error("{file}: entry `{entry}`: found {found}, expected {expected}")]
    Entry {
        /// The file.
        file: PathBuf,
        /// The entry.
        entry: String,
        /// What stands there.
        found: String,
        /// What can be read.
        expected: String,
    },
    /// A blob or view reaches beyond the bytes there are.
    #[error("{file}: {entry}: {found} bytes found, the view needs {expected}")]
    TooShort {
        /// The file.
        file: PathBuf,
        /// The entry or range.
        entry: String,
        /// Bytes there are.
        found: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// A limit that protects memory and disk.
    #[error("{file}: {entry}: {found} bytes, the limit is {limit} ({name})")]
    Limit {
        /// The file.
        file: PathBuf,
        /// The entry or view.
        entry: String,
        /// Bytes asked for.
        found: u64,
        /// Bytes allowed.
        limit: u64,
        /// Name of the limit.
        name: &'static str,
    },
    /// The stored element type is another.
    #[error("{file}: tensor `{entry}` is {found}, the view reads it as {expected}")]
    DType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        entry: String,
        /// Type stored.
        found: String,
        /// Type of the view.
        expected: DType,
    },
    /// Shape, strides and offset of a view contradict each other or overflow.
    #[error("{file}: {entry}: shape, strides and offset of the view overflow or differ in length")]
    BadView {
        /// The file.
        file: PathBuf,
        /// The entry or range.
        entry: String,
    },
    /// The view is inconsistent in itself.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The graph was loaded without this weight's data.
    #[error("the weight's data are not at hand (its view is absent)")]
    Absent,
    /// Memory for a copy could not be had.
    #[error("no memory for a copy of {0} bytes")]
    Memory(u64),
}
