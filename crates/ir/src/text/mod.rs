//! The text form (`.swir`), version 1: one line per node, types written out. `docs/swir.md` describes it.
//!
//! ```
//! let text = r#"swir 1
//! graph "gather"
//! mesh [tp=2]
//! %x = input() name="x" : f32[2,3]
//! %y = all_gather(%x) dim=1 group=[tp] : f32[2,6]
//! return "y" = %y
//! "#;
//! let graph = shardweld_ir::Graph::from_text("gather.swir", text)?;
//! assert_eq!(graph.to_text()?, text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attr;
mod attrs;
mod field;
mod lex;
mod parse;
mod print;
mod view;

use thiserror::Error;

use crate::graph::{Graph, GraphError};
use crate::rebuild::RebuildError;

pub(crate) use print::{Detail, print};

/// Version of the text form that is written and read.
pub const TEXT_VERSION: u64 = 1;
/// Largest text that is read, in bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 30;
/// Longest line that is read, in bytes: the longest constant as hexadecimal, and room for its names.
pub const MAX_LINE_BYTES: usize = 64 << 20;
/// Most nodes that are read.
pub const MAX_TEXT_NODES: usize = 1 << 22;
/// Most attributes of a node; no op has as many.
pub const MAX_ATTRS: usize = 16;
/// Deepest nesting of attribute values.
pub const MAX_DEPTH: usize = 32;

/// A text that was refused, and where.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{file}:{line}:{column}: {kind}")]
pub struct TextError {
    /// Name of the file as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub kind: Box<TextErrorKind>,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TextErrorKind {
    /// Something else should stand there.
    #[error("found {found}, expected {expected}")]
    Syntax {
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: String,
    },
    /// A reference to a value that no line before defines. Cycles are of this kind too.
    #[error("found `%{name}`, which no line before defines, expected a value defined before")]
    Undefined {
        /// The name.
        name: String,
    },
    /// A result that a value does not have.
    #[error("found result #{result} of `%{name}`, which has {results}")]
    NoSuchResult {
        /// The name.
        name: String,
        /// Result asked for.
        result: u64,
        /// Results there are.
        results: usize,
    },
    /// A limit that keeps reading bounded.
    #[error("found {found}, the limit is {limit} ({name})")]
    Limit {
        /// Size found.
        found: usize,
        /// Size allowed.
        limit: usize,
        /// Name of the limit.
        name: &'static str,
    },
    /// The mesh is bad.
    #[error(transparent)]
    Mesh(#[from] crate::mesh::MeshError),
    /// The node is bad.
    #[error(transparent)]
    Node(#[from] RebuildError),
    /// The weight or output is bad.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Graph {
    /// The graph in the text form: inputs in their order, then nodes in program order.
    ///
    /// # Errors
    /// If the graph has a cycle.
    pub fn to_text(&self) -> Result<String, GraphError> {
        print(self, Detail::Exact)
    }

    /// Reads the text form. `file` is named in errors. The result is well typed; [`Graph::verify`] checks the rest.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line and column.
    pub fn from_text(file: &str, text: &str) -> Result<Graph, TextError> {
        parse::parse(file, text)
    }
}
