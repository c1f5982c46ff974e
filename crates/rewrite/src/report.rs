//! What was done: per collective before and after, per pass node counts, and how often limits ended the search.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shardweld_ir::{Graph, GraphError, NodeId, Op};

use crate::constraints::Constraints;
use crate::copy::tags;
use crate::cost::{collective_time, wire_bytes};

/// A collective of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveView {
    /// Node.
    pub node: String,
    /// Mnemonic.
    pub kind: String,
    /// Type of the operand.
    pub operand: String,
    /// Ranks of each group.
    pub ranks: u32,
    /// Bytes sent per rank.
    pub wire_bytes: u64,
    /// Predicted time in nanoseconds.
    pub predicted_ns: u64,
}

/// What became of one collective of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveReport {
    /// Names that stand for it: those of its frontend nodes, or its own.
    pub sources: Vec<String>,
    /// As it was.
    pub before: CollectiveView,
    /// What stands for it in the result; empty if nothing needs to communicate any more.
    pub after: Vec<CollectiveView>,
    /// Rules applied, in order.
    pub rules: Vec<String>,
}

/// Node counts around a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassStats {
    /// Name.
    pub pass: String,
    /// Nodes before.
    pub before: usize,
    /// Nodes after.
    pub after: usize,
}

/// How much was searched, and where a limit meant that less was optimised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Windows found.
    pub windows: usize,
    /// Distinct windows that were solved.
    pub windows_solved: usize,
    /// Windows that changed.
    pub windows_rewritten: usize,
    /// Windows too large, grown again with less reach.
    pub windows_shrunk: usize,
    /// Distinct windows whose search ended at a limit.
    pub windows_limited: usize,
    /// Distinct windows left alone because an output would have needed other values.
    pub windows_reordered: usize,
    /// Distinct windows left alone because their terms are too large to explain.
    pub windows_unexplained: usize,
    /// E-nodes of the largest e-graph.
    pub enodes_largest: usize,
    /// Directed steps.
    pub directed: usize,
    /// Nodes merged into identical ones.
    pub merged: usize,
    /// Collectives that nothing stands for any more.
    pub eliminated: usize,
}

/// What was done to a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Collectives of the source, in program order.
    pub collectives: Vec<CollectiveReport>,
    /// Passes, in order.
    pub passes: Vec<PassStats>,
    /// Counters.
    pub counters: Counters,
    /// The loosest class of any step that may have been taken: the class asked for, or `accuracy`.
    pub class: crate::class::Class,
}

impl Report {
    /// Bytes sent per rank by all collectives, before and after.
    pub fn wire_bytes(&self) -> (u64, u64) {
        let before = self.collectives.iter().fold(0u64, |n, c| n.saturating_add(c.before.wire_bytes));
        let after: BTreeMap<&str, u64> =
            self.collectives.iter().flat_map(|c| &c.after).map(|v| (v.node.as_str(), v.wire_bytes)).collect();
        (before, after.values().fold(0u64, |n, b| n.saturating_add(*b)))
    }
}

/// Compares the collectives of source and result by the names that stand for them.
///
/// # Errors
/// If a graph has a cycle.
pub fn collectives(
    source: &Graph,
    result: &Graph,
    trail: &BTreeMap<String, Vec<String>>,
    constraints: &Constraints,
) -> Result<Vec<CollectiveReport>, GraphError> {
    let mut standing: FxHashMap<String, Vec<NodeId>> = FxHashMap::default();
    for id in result.order()?.into_iter().filter(|&id| result.node(id).op.collective().is_some()) {
        for tag in tags(result, id) {
            standing.entry(tag).or_default().push(id);
        }
    }
    let mut out = Vec::new();
    for id in source.order()? {
        let Some(before) = view(source, id, constraints) else { continue };
        let sources = tags(source, id);
        let mut after: Vec<NodeId> =
            sources.iter().filter_map(|t| standing.get(t)).flatten().copied().collect();
        after.sort_unstable();
        after.dedup();
        let mut rules: Vec<String> = Vec::new();
        for rule in sources.iter().filter_map(|t| trail.get(t)).flatten() {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        let after = after.into_iter().filter_map(|id| view(result, id, constraints)).collect();
        out.push(CollectiveReport { sources, before, after, rules });
    }
    Ok(out)
}

fn view(graph: &Graph, id: NodeId, constraints: &Constraints) -> Option<CollectiveView> {
    let node = graph.node(id);
    let Op::Collective { kind, group } = &node.op else { return None };
    let operand = graph.try_ty(*node.operands.first()?)?;
    let result = node.results.first()?;
    let ranks = group.size(graph.mesh());
    Some(CollectiveView {
        node: node.name.clone(),
        kind: kind.name().to_owned(),
        operand: operand.to_string(),
        ranks,
        wire_bytes: wire_bytes(kind, operand, result, u64::from(ranks)),
        predicted_ns: collective_time(kind, operand, result, u64::from(ranks), &constraints.topology) / 1000,
    })
}
