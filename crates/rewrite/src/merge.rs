//! Merging of identical nodes: equal operation on equal operands is computed once. Class `bit`.
//!
//! Inputs stay. The node that stays carries the sources of all that it stands for.

use rustc_hash::{FxHashMap, FxHashSet};
use shardweld_ir::{Graph, GraphError, NodeId, Op, Value};

use crate::certificate::CertificateStep;
use crate::context::Context;
use crate::copy::{Copy, tags};

/// Name that reports give a merge.
pub const MERGE: &str = "merge_identical";

/// Merges identical nodes.
///
/// # Errors
/// If the graph is not sound.
pub fn merge(graph: Graph, cx: &mut Context) -> Result<Graph, GraphError> {
    let order = graph.order()?;
    // Most programs have nothing to merge, and need no copy.
    if any_identical(&graph, &order) { merge_identical(&graph, &order, cx) } else { Ok(graph) }
}

fn any_identical(graph: &Graph, order: &[NodeId]) -> bool {
    let mut seen: FxHashSet<(&Op, &[Value])> = FxHashSet::default();
    seen.reserve(order.len());
    order
        .iter()
        .map(|&id| graph.node(id))
        .any(|n| !matches!(n.op, Op::Input { .. }) && !seen.insert((&n.op, n.operands.as_slice())))
}

fn merge_identical(graph: &Graph, order: &[NodeId], cx: &mut Context) -> Result<Graph, GraphError> {
    let mut copy = Copy::new(graph)?;
    let mut seen: FxHashMap<(&Op, Vec<Value>), NodeId> = FxHashMap::default();
    let mut dropped: FxHashMap<NodeId, Vec<NodeId>> = FxHashMap::default();
    let mut kept_in_order = Vec::new();
    for &id in order {
        let node = graph.node(id);
        let operands = node.operands.iter().map(|&v| copy.value(v)).collect::<Result<Vec<_>, _>>()?;
        let key = (&node.op, operands);
        match seen.get(&key).copied().filter(|_| !matches!(node.op, Op::Input { .. })) {
            Some(first) => {
                for result in 0..node.results.len() as u32 {
                    let to = copy.value(Value { node: first, result })?;
                    copy.set(Value { node: id, result }, to);
                }
                let list = dropped.entry(first).or_default();
                if list.is_empty() {
                    kept_in_order.push(first);
                }
                list.push(id);
            }
            None => {
                copy.node(id)?;
                seen.insert(key, id);
            }
        }
    }
    for first in kept_in_order {
        let others = dropped.remove(&first).unwrap_or_default();
        let collective = graph.node(first).op.collective().is_some();
        let names = |id: NodeId| if collective { tags(graph, id) } else { graph.node(id).sources.clone() };
        let mut sources = names(first);
        for &o in &others {
            for s in names(o) {
                if !sources.contains(&s) {
                    sources.push(s);
                }
            }
        }
        if collective {
            cx.note(&sources, MERGE);
        }
        let kept = copy.value(first.into())?.node;
        copy.to.set_sources(kept, sources);
        cx.counters.merged += others.len();
        cx.steps.push(CertificateStep::Merged {
            kept: graph.node(first).name.clone(),
            dropped: others.iter().map(|&o| graph.node(o).name.clone()).collect(),
        });
    }
    copy.finish()
}
