//! Builds a graph from what a file claims. Nothing is trusted: types are inferred again and compared with what is written.

use thiserror::Error;

use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;
use crate::types::TensorType;

/// Why a node from a file was refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RebuildError {
    /// The graph refuses it.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The written types are not what the shape rules give.
    #[error("node `{node}` is written with type {found}, the shape rules give {expected}")]
    Types {
        /// Name of the node.
        node: String,
        /// Types in the file.
        found: String,
        /// Types inferred.
        expected: String,
    },
    /// Two nodes of one name, or a node without name.
    #[error("the node name `{0}` is empty or used twice")]
    Name(String),
}

/// Adds a node as a file describes it.
pub(crate) fn add_node(
    graph: &mut Graph,
    name: &str,
    op: Op,
    operands: &[Value],
    written: &[TensorType],
    sources: Vec<String>,
) -> Result<NodeId, RebuildError> {
    if name.is_empty() || graph.find(name).is_some() {
        return Err(RebuildError::Name(name.to_owned()));
    }
    let list = |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let differ = |expected: &[TensorType]| RebuildError::Types {
        node: name.to_owned(),
        found: list(written),
        expected: list(expected),
    };
    let id = match (op, written) {
        (Op::Input { name: public }, [ty]) if operands.is_empty() => {
            graph.add_input_as(name, &public, ty.clone())?
        }
        (Op::Input { .. }, _) => return Err(differ(&[])),
        (op, _) => {
            let id = graph.add(name, op, operands)?;
            if graph.node(id).results != written {
                return Err(differ(&graph.node(id).results));
            }
            id
        }
    };
    graph.set_sources(id, sources);
    Ok(id)
}
