//! What a program holds: ops, collectives with groups and bytes, as text and JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use shardweld_ir::{Collective, Graph, Group, Op, TensorType};

use crate::output::{bytes, table};

/// One collective of a program.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name of the node.
    pub node: String,
    /// What it is.
    pub kind: &'static str,
    /// Local type of the operand.
    pub operand: TensorType,
    /// Local type of the result.
    pub result: TensorType,
    /// The group, readable.
    pub group: String,
    /// Number of ranks in the group.
    pub ranks: u32,
    /// Bytes of the larger of operand and result; `None` for symbolic sizes.
    pub bytes: Option<u64>,
    /// Bytes sent per rank by a bandwidth-optimal algorithm.
    pub wire_bytes: Option<u64>,
}

/// The collectives of a program in program order.
pub fn collectives(graph: &Graph) -> Vec<Line> {
    let mut lines = Vec::new();
    for (_, node) in graph.nodes() {
        let Op::Collective { kind, group } = &node.op else { continue };
        let (Some(operand), Some(result)) =
            (node.operands.first().and_then(|v| graph.try_ty(*v)), node.results.first())
        else {
            continue;
        };
        let ranks = group.size(graph.mesh());
        let full = operand.bytes().max(result.bytes());
        lines.push(Line {
            node: node.name.clone(),
            kind: kind.name(),
            operand: operand.clone(),
            result: result.clone(),
            group: group_name(graph, group),
            ranks,
            bytes: full,
            wire_bytes: full.and_then(|b| wire_bytes(kind, b, ranks)),
        });
    }
    lines
}

/// Bytes that one rank sends: (n-1)/n of the full buffer, twice that for an all-reduce.
fn wire_bytes(kind: &Collective, full: u64, ranks: u32) -> Option<u64> {
    let n = u64::from(ranks.max(1));
    let passes = if matches!(kind, Collective::AllReduce { .. }) { 2 } else { 1 };
    Some(full.checked_mul(passes)?.checked_mul(n - 1)? / n)
}

/// A group as people name it: its mesh axes, or its rank lists.
pub fn group_name(graph: &Graph, group: &Group) -> String {
    match group {
        Group::Axes(axes) if axes.is_empty() => "self".into(),
        Group::Axes(axes) => {
            let name = |a: &shardweld_ir::AxisId| {
                graph.mesh().axes().get(a.0 as usize).map_or("?", |x| x.name.as_str())
            };
            axes.iter().map(name).collect::<Vec<_>>().join("*")
        }
        Group::Ranks(lists) => lists.iter().map(|l| format!("{l:?}")).collect(),
    }
}

/// The whole summary.
pub fn summary(graph: &Graph) -> (String, Value) {
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, n) in graph.nodes() {
        *ops.entry(n.op.name()).or_default() += 1;
    }
    let lines = collectives(graph);
    // Collectives that differ in name only are one row.
    let mut kinds: Vec<(&Line, usize)> = Vec::new();
    for l in &lines {
        let same =
            |k: &Line| (k.kind, &k.operand, &k.result, &k.group) == (l.kind, &l.operand, &l.result, &l.group);
        match kinds.iter_mut().find(|(k, _)| same(k)) {
            Some((_, n)) => *n += 1,
            None => kinds.push((l, 1)),
        }
    }
    let total = |f: fn(&Line) -> Option<u64>| lines.iter().filter_map(f).sum::<u64>();
    let weight_bytes: u64 = graph.weights().iter().filter_map(|w| w.ty.bytes()).sum();
    let mut text = format!(
        "program {}: {} nodes, mesh {}, {} ranks, {} weights of {} per rank\n",
        graph.name,
        graph.len(),
        graph.mesh(),
        graph.mesh().world_size(),
        graph.weights().len(),
        bytes(weight_bytes)
    );
    for id in graph.inputs() {
        if let (Op::Input { name }, Some(ty)) = (&graph.node(*id).op, graph.node(*id).results.first()) {
            text.push_str(&format!("  in   {name}: {ty}\n"));
        }
    }
    for o in graph.outputs() {
        text.push_str(&format!("  out  {}: {}\n", o.name, graph.ty(o.value)));
    }
    let counts: Vec<String> = ops.iter().map(|(n, c)| format!("{n} {c}")).collect();
    text.push_str(&format!("ops: {}\n", counts.join(", ")));
    text.push_str(&format!(
        "collectives: {}, {} in buffers, {} sent per rank",
        lines.len(),
        bytes(total(|l| l.bytes)),
        bytes(total(|l| l.wire_bytes))
    ));
    if !kinds.is_empty() {
        let rows: Vec<Vec<String>> = kinds
            .iter()
            .map(|(l, n)| {
                vec![
                    n.to_string(),
                    l.kind.into(),
                    l.operand.to_string(),
                    l.result.to_string(),
                    l.group.clone(),
                    l.ranks.to_string(),
                    l.bytes.map_or("?".into(), |b| b.to_string()),
                    l.wire_bytes.map_or("?".into(), |b| b.to_string()),
                ]
            })
            .collect();
        text.push('\n');
        text.push_str(&table(
            &["count", "kind", "operand", "result", "group", "ranks", "bytes", "wire bytes"],
            &rows,
        ));
    }
    (text, to_json(graph, &ops, &lines, weight_bytes))
}

fn to_json(graph: &Graph, ops: &BTreeMap<&str, usize>, lines: &[Line], weight_bytes: u64) -> Value {
    let mesh: Vec<Value> =
        graph.mesh().axes().iter().map(|a| json!({"axis": a.name, "size": a.size})).collect();
    let inputs: Vec<Value> = graph
        .inputs()
        .iter()
        .filter_map(|id| match &graph.node(*id).op {
            Op::Input { name } => Some(json!({"name": name, "type": graph.ty(*id).to_string()})),
            _ => None,
        })
        .collect();
    let outputs: Vec<Value> = graph
        .outputs()
        .iter()
        .map(|o| json!({"name": o.name, "type": graph.ty(o.value).to_string()}))
        .collect();
    let collectives: Vec<Value> = lines
        .iter()
        .map(|l| {
            json!({"node": l.node, "kind": l.kind, "operand": l.operand.to_string(), "result": l.result.to_string(),
                "group": l.group, "ranks": l.ranks, "bytes": l.bytes, "wire_bytes": l.wire_bytes})
        })
        .collect();
    json!({"program": graph.name, "mesh": mesh, "ranks": graph.mesh().world_size(), "nodes": graph.len(),
        "weights": graph.weights().len(), "weight_bytes": weight_bytes, "inputs": inputs, "outputs": outputs,
        "ops": ops, "collectives": collectives})
}
