//! What can go wrong while importing: every error names the file and, where there is one, the node.

use std::{fmt, io, path::PathBuf};

use thiserror::Error;

/// One node that the importer does not take, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the node in the exported graph.
    pub node: String,
    /// The op, such as `aten.bitwise_xor.Tensor`.
    pub target: String,
    /// Why it was refused.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node `{}` ({}): {}", self.node, self.target, self.reason)
    }
}

/// Why a program could not be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The file could not be read.
    #[error("{}: {source}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no archive that `torch.export.save` writes, or a damaged or hostile one.
    #[error("{}: {reason}", .file.display())]
    Archive {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The graph JSON does not have the form of a torch.export schema.
    #[error("{}: not a graph of torch.export: {reason}", .file.display())]
    Schema {
        /// The file.
        file: PathBuf,
        /// What was found and expected.
        reason: String,
    },
    /// Nodes or values that cannot be imported, all of them.
    #[error("{}: {} cannot be imported:{}", .file.display(), count(.refusals.len()), list(.refusals))]
    Refused {
        /// The file.
        file: PathBuf,
        /// Every refusal, in graph order.
        refusals: Vec<Refusal>,
    },
    /// A group name that the side file does not define, or defines inconsistently.
    #[error("{}: {reason}", .file.display())]
    Groups {
        /// The side file, or the model where there is no side file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A weight that is missing, too short, or of another type than the graph says.
    #[error("{}: weight `{weight}`: {reason}", .file.display())]
    Weight {
        /// The file that holds, or should hold, the weight.
        file: PathBuf,
        /// Fully qualified name of the parameter.
        weight: String,
        /// What was found and expected.
        reason: String,
    },
    /// The graphs of two ranks differ in a way that is no selection by rank.
    #[error("the graphs of {} and {} are not one program: {reason}", .files.0.display(), .files.1.display())]
    Unify {
        /// The two files.
        files: (PathBuf, PathBuf),
        /// Both nodes and what differs.
        reason: String,
    },
    /// The files do not cover the ranks of the mesh.
    #[error("{0}")]
    Ranks(String),
}

fn count(n: usize) -> String {
    if n == 1 { "1 node".into() } else { format!("{n} nodes") }
}

/// Above this many refusals the message stops and gives the number left; the error value has all.
const SHOWN_REFUSALS: usize = 50;

fn list(refusals: &[Refusal]) -> String {
    let mut s = String::new();
    for r in refusals.iter().take(SHOWN_REFUSALS) {
        s.push_str("\n  ");
        s.push_str(&r.to_string());
    }
    if refusals.len() > SHOWN_REFUSALS {
        s.push_str(&format!("\n  and {} more", refusals.len() - SHOWN_REFUSALS));
    }
    s
}
