//! The JSON form, version 1, for tools. Loading rebuilds the graph through the shape rules and trusts nothing.
//!
//! ```json
//! {"format": "shardweld-ir", "version": 1, "name": "g", "mesh": {"axes": [{"name": "tp", "size": 2}]},
//!  "weights": [], "nodes": [{"name": "x", "op": {"input": {"name": "x"}}, "operands": [],
//!  "results": [{"dtype": "f32", "shape": [2]}], "sources": []}], "outputs": [{"name": "y", "value": [0, 0]}]}
//! ```
//! Operands and outputs are `[node, result]`; a node is named by its place in `nodes`, which is program order.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::mesh::{Mesh, MeshError};
use crate::op::Op;
use crate::rebuild::{RebuildError, add_node};
use crate::types::TensorType;
use crate::weight::Weight;

/// The `format` member.
pub const JSON_FORMAT: &str = "shardweld-ir";
/// The `version` member.
pub const JSON_VERSION: u32 = 1;

/// Why a JSON graph was refused, or could not be written.
#[derive(Debug, Error)]
pub enum JsonError {
    /// Not JSON, or not of this shape.
    #[error("{file}: {source}")]
    Json {
        /// Name of the file as the caller gave it.
        file: String,
        /// The reader's words, with line and column.
        source: serde_json::Error,
    },
    /// Another format or version.
    #[error(
        "{file}: found format `{format}` version {version}, expected `{JSON_FORMAT}` version {JSON_VERSION}"
    )]
    Version {
        /// Name of the file.
        file: String,
        /// Format found.
        format: String,
        /// Version found.
        version: u64,
    },
    /// The mesh is bad.
    #[error("{file}: {source}")]
    Mesh {
        /// Name of the file.
        file: String,
        /// What is wrong.
        source: MeshError,
    },
    /// An operand or output refers to no value that stands before it; cycles are of this kind too.
    #[error("{file}: `{user}` uses [{node}, {result}], expected the result of a node that stands before it")]
    Dangling {
        /// Name of the file.
        file: String,
        /// Who refers.
        user: String,
        /// Node referred to.
        node: u64,
        /// Result referred to.
        result: u32,
    },
    /// The node is bad.
    #[error("{file}: {source}")]
    Node {
        /// Name of the file.
        file: String,
        /// What is wrong.
        source: RebuildError,
    },
    /// The weight or output is bad.
    #[error("{file}: {source}")]
    Graph {
        /// Name of the file.
        file: String,
        /// What is wrong.
        source: GraphError,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    format: String,
    version: u64,
    name: String,
    mesh: Cow<'a, Mesh>,
    weights: Cow<'a, [Weight]>,
    nodes: Vec<JsonNode<'a>>,
    outputs: Vec<JsonOutput<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonNode<'a> {
    name: Cow<'a, str>,
    op: Cow<'a, Op>,
    operands: Vec<(u64, u32)>,
    results: Cow<'a, [TensorType]>,
    #[serde(default)]
    sources: Cow<'a, [String]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonOutput<'a> {
    name: Cow<'a, str>,
    value: (u64, u32),
}

/// Format and version, read before the rest so that another version is called that.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

impl Graph {
    /// The graph as JSON on one line.
    ///
    /// # Errors
    /// If the graph has a cycle, or a weight's file name is not Unicode.
    pub fn to_json(&self) -> Result<String, JsonError> {
        let file = || format!("graph `{}`", self.name);
        let order = self.order().map_err(|source| JsonError::Graph { file: file(), source })?;
        // Inputs first, in their order, which the list must keep.
        let mut ids: Vec<NodeId> = self.inputs().to_vec();
        ids.extend(order.into_iter().filter(|id| !matches!(self.node(*id).op, Op::Input { .. })));
        let place: FxHashMap<NodeId, u64> = ids.iter().enumerate().map(|(i, id)| (*id, i as u64)).collect();
        let value = |v: Value| (place.get(&v.node).copied().unwrap_or(u64::MAX), v.result);
        let document = Document {
            format: JSON_FORMAT.into(),
            version: JSON_VERSION.into(),
            name: self.name.clone(),
            mesh: Cow::Borrowed(self.mesh()),
            weights: Cow::Borrowed(self.weights()),
            nodes: ids
                .iter()
                .map(|id| self.node(*id))
                .map(|n| JsonNode {
                    name: Cow::Borrowed(&n.name),
                    op: Cow::Borrowed(&n.op),
                    operands: n.operands.iter().map(|v| value(*v)).collect(),
                    results: Cow::Borrowed(&n.results),
                    sources: Cow::Borrowed(&n.sources),
                })
                .collect(),
            outputs: self
                .outputs()
                .iter()
                .map(|o| JsonOutput { name: Cow::Borrowed(&o.name), value: value(o.value) })
                .collect(),
        };
        serde_json::to_string(&document).map_err(|source| JsonError::Json { file: file(), source })
    }

    /// Reads the JSON form. `file` is named in errors. The result is well typed; [`Graph::verify`] checks the rest.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn from_json(file: &str, json: &[u8]) -> Result<Graph, JsonError> {
        let file = || file.to_owned();
        let syntax = |source| JsonError::Json { file: file(), source };
        let head: Head = serde_json::from_slice(json).map_err(syntax)?;
        if head.format != JSON_FORMAT || head.version != u64::from(JSON_VERSION) {
            return Err(JsonError::Version { file: file(), format: head.format, version: head.version });
        }
        let document: Document<'_> = serde_json::from_slice(json).map_err(syntax)?;
        let mesh = document.mesh.into_owned();
        mesh.validate().map_err(|source| JsonError::Mesh { file: file(), source })?;
        let bad = |source| JsonError::Graph { file: file(), source };
        let mut graph = Graph::new(document.name, mesh);
        for w in document.weights.into_owned() {
            graph.add_weight(w).map_err(bad)?;
        }
        let mut ids: Vec<NodeId> = Vec::with_capacity(document.nodes.len());
        let resolve = |graph: &Graph, ids: &[NodeId], user: &str, (node, result): (u64, u32)| {
            let id = usize::try_from(node).ok().and_then(|n| ids.get(n));
            id.map(|id| Value { node: *id, result })
                .filter(|v| graph.try_ty(*v).is_some())
                .ok_or_else(|| JsonError::Dangling { file: file(), user: user.to_owned(), node, result })
        };
        for n in document.nodes {
            let operands = n
                .operands
                .iter()
                .map(|v| resolve(&graph, &ids, &n.name, *v))
                .collect::<Result<Vec<_>, _>>()?;
            let sources = n.sources.into_owned();
            let id = add_node(&mut graph, &n.name, n.op.into_owned(), &operands, &n.results, sources)
                .map_err(|source| JsonError::Node { file: file(), source })?;
            ids.push(id);
        }
        for o in document.outputs {
            let value = resolve(&graph, &ids, &o.name, o.value)?;
            graph.add_output(&o.name, value).map_err(bad)?;
        }
        Ok(graph)
    }
}
