//! Graphviz export, for looking at.

use std::fmt::Write;

use rustc_hash::FxHashSet;

use crate::graph::{Graph, Node, NodeId};
use crate::op::Op;

/// What is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DotOptions {
    /// Draw only inputs, collectives and outputs; what lies between them becomes one dashed edge.
    pub collectives_only: bool,
}

impl Graph {
    /// The graph in the DOT language. Nodes are boxes named by their number; collectives are filled.
    pub fn to_dot(&self, options: DotOptions) -> String {
        let drawn: FxHashSet<NodeId> = self
            .nodes()
            .filter(|(_, n)| !options.collectives_only || is_landmark(n))
            .map(|(id, _)| id)
            .collect();
        let mut out = String::new();
        let style = if options.collectives_only { " [style=dashed]" } else { "" };
        let mut line = |text: String| {
            out.push_str(&text);
            out.push('\n');
        };
        line(format!("digraph {} {{", quoted(&self.name)));
        line("  node [shape=box];".into());
        for (id, n) in self.nodes().filter(|(id, _)| drawn.contains(id)) {
            let types: Vec<_> = n.results.iter().map(ToString::to_string).collect();
            let mut label = format!("{}\n{} : {}", n.name, n.op.name(), types.join(", "));
            if let Some(group) = n.op.group() {
                let _ = write!(label, "\ngroup of {}", group.size(self.mesh()));
            }
            let fill = if n.op.collective().is_some() { ", style=filled, fillcolor=lightblue" } else { "" };
            line(format!("  n{} [label={}{fill}];", id.index(), quoted(&label)));
        }
        for (id, n) in self.nodes().filter(|(id, _)| drawn.contains(id)) {
            for from in self.sources_of(n, &drawn) {
                line(format!("  n{} -> n{}{style};", from.index(), id.index()));
            }
        }
        for (i, o) in self.outputs().iter().enumerate() {
            line(format!("  out{i} [label={}, shape=ellipse];", quoted(&o.name)));
            let mut seen = FxHashSet::default();
            for from in self.drawn_above(o.value.node, &drawn, &mut seen) {
                line(format!("  n{} -> out{i}{style};", from.index()));
            }
        }
        line("}".into());
        out
    }

    fn sources_of(&self, node: &Node, drawn: &FxHashSet<NodeId>) -> Vec<NodeId> {
        let mut seen = FxHashSet::default();
        node.operands.iter().flat_map(|v| self.drawn_above(v.node, drawn, &mut seen)).collect()
    }

    /// The nearest drawn nodes at or above `start`, without going through drawn ones; sorted.
    fn drawn_above(
        &self,
        start: NodeId,
        drawn: &FxHashSet<NodeId>,
        seen: &mut FxHashSet<NodeId>,
    ) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut stack = vec![start];
        while let Some(id) = stack.pop() {
            if drawn.contains(&id) {
                // With everything drawn each operand is an edge, also a repeated one.
                if drawn.len() == self.len() || seen.insert(id) {
                    found.push(id);
                }
            } else if seen.insert(id)
                && let Some(n) = self.try_node(id)
            {
                stack.extend(n.operands.iter().map(|v| v.node));
            }
        }
        found.sort_unstable();
        found
    }
}

fn is_landmark(node: &Node) -> bool {
    matches!(node.op, Op::Input { .. }) || node.op.collective().is_some()
}

/// A DOT string: quotes and backslashes escaped, line breaks kept as `\n`.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
