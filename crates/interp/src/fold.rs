//! The pass `fold_constants`: what depends on no input, weight or rank becomes a constant.
//!
//! Before: `iota -> pow -> cast -> mul(x)`; after: `constant -> mul(x)`. A node is folded if and only if all operands are
//! known, its op needs no rank and no communication, and its results are small enough; an `iota` by itself stays what it is.

use rustc_hash::{FxHashMap, FxHashSet};
use shardweld_ir::{Graph, GraphError, Literal, NodeId, Op, Value};
use thiserror::Error;

use crate::concrete::{ConcreteError, local};
use crate::tensor::Tensor;

/// Most bytes of a value that the pass computes on the way to a constant; a larger one is left to run time.
pub const MAX_INTERMEDIATE_BYTES: u64 = 64 << 20;
/// Most bytes of a constant that the pass makes, unless the caller says otherwise. One repeated element counts as one.
pub const MAX_CONSTANT_BYTES: u64 = 1 << 20;

/// What the pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldStats {
    /// Values that became constants.
    pub constants: usize,
    /// Nodes that went.
    pub removed: usize,
    /// Known values left alone because the constant would exceed the limit.
    pub too_large: usize,
}

/// Why the pass failed; the graph may have been changed in part.
#[derive(Debug, Error)]
pub enum FoldError {
    /// The graph is not well formed.
    #[error("fold_constants: {0}")]
    Graph(#[from] GraphError),
    /// A constant expression has no value, such as a division by an integer zero.
    #[error("fold_constants: node `{node}` ({op}): {source}")]
    Node {
        /// Name of the node.
        node: String,
        /// Mnemonic.
        op: &'static str,
        /// What the kernel says.
        source: ConcreteError,
    },
}

/// Replaces constant expressions by constants of at most `max_bytes` each and, if there were any, removes all dead nodes.
///
/// # Errors
/// If the graph has a cycle or a constant expression has no value.
pub fn fold_constants(graph: &mut Graph, max_bytes: u64) -> Result<FoldStats, FoldError> {
    let order = graph.order()?;
    let known = known_values(graph, &order)?;
    let mut stats = FoldStats::default();
    for &id in &order {
        let Some(results) = known.get(&id) else { continue };
        if matches!(graph.node(id).op, Op::Constant(_) | Op::Iota { .. }) {
            continue;
        }
        let node = graph.node(id).clone();
        for (result, tensor) in (0u32..).zip(results) {
            let value = Value { node: id, result };
            if !seen_from_outside(graph, value, &known) {
                continue;
            }
            match literal(tensor, max_bytes) {
                Some(literal) => {
                    let constant = graph.add(&node.name, Op::Constant(literal), &[])?;
                    graph.set_sources(constant, node.sources.clone());
                    graph.replace_uses(value, constant.into())?;
                    stats.constants += 1;
                }
                None => stats.too_large += 1,
            }
        }
    }
    if stats.constants > 0 {
        stats.removed = graph.remove_dead();
    }
    Ok(stats)
}

fn known_values(graph: &Graph, order: &[NodeId]) -> Result<FxHashMap<NodeId, Vec<Tensor>>, FoldError> {
    let mut known: FxHashMap<NodeId, Vec<Tensor>> = FxHashMap::default();
    for &id in order {
        let node = graph.node(id);
        let leaf = matches!(node.op, Op::Constant(_) | Op::Iota { .. });
        let small = node.results.iter().all(|t| t.bytes().is_some_and(|b| b <= MAX_INTERMEDIATE_BYTES));
        if !small || !node.op.is_local() || (node.operands.is_empty() && !leaf) {
            continue;
        }
        let operands: Option<Vec<&Tensor>> =
            node.operands.iter().map(|v| known.get(&v.node)?.get(v.result as usize)).collect();
        if let Some(operands) = operands {
            let results = local(&node.op, &operands, &node.results).map_err(|source| FoldError::Node {
                node: node.name.clone(),
                op: node.op.name(),
                source,
            })?;
            known.insert(id, results);
        }
    }
    Ok(known)
}

/// Whether an output or a node that is not itself known uses the value.
fn seen_from_outside(graph: &Graph, value: Value, known: &FxHashMap<NodeId, Vec<Tensor>>) -> bool {
    let users: FxHashSet<NodeId> = graph.users(value.node).into_iter().map(|(user, _)| user).collect();
    graph.outputs().iter().any(|o| o.value == value)
        || users.iter().any(|u| !known.contains_key(u) && graph.node(*u).operands.contains(&value))
}

/// The tensor as a literal of at most `max_bytes`: one element if all are the same.
fn literal(tensor: &Tensor, max_bytes: u64) -> Option<Literal> {
    let size = tensor.dtype().size();
    let bytes = tensor.bytes();
    let first = bytes.get(..size)?;
    if bytes.chunks_exact(size).all(|e| e == first) {
        return Literal::splat(tensor.ty(), first);
    }
    (bytes.len() as u64 <= max_bytes).then(|| Literal::dense(tensor.ty(), bytes)).flatten()
}
