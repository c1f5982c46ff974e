//! Windows: small pieces of the graph around collectives, with what flows in and out. Identical windows have equal keys.

use rustc_hash::{FxHashMap, FxHashSet};
use shardweld_ir::{Graph, GraphError, NodeId, Value};

use crate::facts::{DTypeSet, Facts, fits};
use crate::language::{Attr, Head, convert::from_op};
use crate::replication::Replication;

/// Layout ops and casts this many steps from a collective belong to its window; what is further rarely cancels.
pub const REACH: usize = 6;

/// Most nodes of a window. Larger ones are grown again with less reach, so that saturation stays small.
pub const MAX_NODES: usize = 32;

/// Where an operand of a window node comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ref {
    /// Value from outside, by number.
    Live(u32),
    /// Node of the window, by number.
    Node(u32),
}

/// A window node: operator, attributes, tensor operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowNode {
    /// Operator.
    pub head: Head,
    /// Attributes in signature order.
    pub attrs: Vec<Attr>,
    /// Tensor operands.
    pub operands: Vec<Ref>,
}

/// All that decides what becomes of a window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowKey {
    /// Nodes in program order.
    pub nodes: Vec<WindowNode>,
    /// Facts of the values from outside.
    pub live: Vec<Facts>,
    /// Nodes whose value is used outside.
    pub outs: Vec<u32>,
}

/// A window of a graph.
#[derive(Clone, Debug)]
pub struct Window {
    /// What decides its rewriting.
    pub key: WindowKey,
    /// Its nodes in program order.
    pub nodes: Vec<NodeId>,
    /// The values from outside, as numbered in the key.
    pub live: Vec<Value>,
}

/// What was left out when windows were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    /// Windows.
    pub windows: usize,
    /// Windows that were too large and were grown with less reach.
    pub shrunk: usize,
}

/// The windows of a graph, each with at least one collective or own block, in program order of their first node.
///
/// # Errors
/// If the graph has a cycle.
pub fn windows(
    graph: &Graph,
    order: &[NodeId],
    replication: &Replication,
) -> Result<(Vec<Window>, WindowStats), GraphError> {
    let position: FxHashMap<NodeId, u32> = (0u32..).zip(order).map(|(i, &id)| (id, i)).collect();
    let members: Vec<Option<(Head, Vec<Attr>)>> = order.iter().map(|&id| member(graph, id)).collect();
    let mut users: Vec<Vec<u32>> = vec![Vec::new(); order.len()];
    let mut operands: Vec<Vec<u32>> = vec![Vec::new(); order.len()];
    for (i, &id) in (0u32..).zip(order) {
        for v in &graph.node(id).operands {
            if let Some(&p) = position.get(&v.node) {
                operands[i as usize].push(p);
                if members[p as usize].is_some() {
                    users[p as usize].push(i);
                }
            }
        }
    }
    let neighbours = |i: u32| operands[i as usize].iter().chain(&users[i as usize]).copied();
    let is_member = |i: u32| members[i as usize].is_some();
    let seeds: Vec<u32> = (0..order.len() as u32)
        .filter(|&i| members[i as usize].as_ref().is_some_and(|(h, _)| h.is_collective() || own_block(*h)))
        .collect();
    let mut stats = WindowStats::default();
    let mut pieces = grow(&seeds, REACH, &is_member, &neighbours, &FxHashSet::default());
    let mut reach = REACH;
    let mut fixed: Vec<Vec<u32>> = Vec::new();
    loop {
        let (small, large): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|p| p.len() <= MAX_NODES);
        fixed.extend(small);
        if large.is_empty() {
            break;
        }
        stats.shrunk += large.len();
        if reach == 0 {
            // A chain of collectives longer than a window: cut it in program order.
            fixed.extend(large.iter().flat_map(|p| p.chunks(MAX_NODES)).map(<[u32]>::to_vec));
            break;
        }
        reach /= 2;
        let inside: FxHashSet<u32> = large.iter().flatten().copied().collect();
        let seeds: Vec<u32> = seeds.iter().copied().filter(|s| inside.contains(s)).collect();
        let taken: FxHashSet<u32> = fixed.iter().flatten().copied().collect();
        pieces = grow(&seeds, reach, &is_member, &neighbours, &taken);
    }
    fixed.sort();
    let outputs: FxHashSet<NodeId> = graph.outputs().iter().map(|o| o.value.node).collect();
    let out = fixed
        .into_iter()
        .map(|piece| {
            let number: FxHashMap<u32, u32> = (0u32..).zip(&piece).map(|(k, &i)| (i, k)).collect();
            let mut live: Vec<Value> = Vec::new();
            let mut facts = Vec::new();
            let mut live_number: FxHashMap<Value, u32> = FxHashMap::default();
            let mut nodes = Vec::with_capacity(piece.len());
            let mut outs = Vec::new();
            for (k, &i) in (0u32..).zip(&piece) {
                let id = order[i as usize];
                let Some((head, attrs)) = members[i as usize].clone() else { continue };
                let operands = graph
                    .node(id)
                    .operands
                    .iter()
                    .map(|&v| match position.get(&v.node).and_then(|p| number.get(p)) {
                        Some(&n) => Ref::Node(n),
                        None => Ref::Live(*live_number.entry(v).or_insert_with(|| {
                            live.push(v);
                            facts.push(facts_of(graph, v, replication));
                            live.len() as u32 - 1
                        })),
                    })
                    .collect();
                nodes.push(WindowNode { head, attrs, operands });
                let used_outside = users[i as usize].iter().any(|u| !number.contains_key(u));
                if used_outside || outputs.contains(&id) {
                    outs.push(k);
                }
            }
            Window {
                key: WindowKey { nodes, live: facts, outs },
                nodes: piece.iter().map(|&i| order[i as usize]).collect(),
                live,
            }
        })
        .collect::<Vec<_>>();
    stats.windows = out.len();
    Ok((out, stats))
}

fn own_block(head: Head) -> bool {
    matches!(head, Head::OwnSlice | Head::OwnPad)
}

/// The operator of a node that may be in a window.
fn member(graph: &Graph, id: NodeId) -> Option<(Head, Vec<Attr>)> {
    let node = graph.node(id);
    let (head, attrs) = from_op(&node.op)?;
    let movement = head.is_collective()
        || own_block(head)
        || matches!(head, Head::Cast | Head::Reshape | Head::Transpose);
    let fixed = |v: &Value| graph.try_ty(*v).is_some_and(|t| t.shape.as_static().is_some());
    (movement && node.operands.iter().all(fixed)).then_some((head, attrs))
}

/// Sets of nodes within reach of the seeds; sets that touch are one.
fn grow<I: Iterator<Item = u32>>(
    seeds: &[u32],
    reach: usize,
    is_member: &impl Fn(u32) -> bool,
    neighbours: &impl Fn(u32) -> I,
    taken: &FxHashSet<u32>,
) -> Vec<Vec<u32>> {
    let mut inside: FxHashSet<u32> = seeds.iter().copied().filter(|s| !taken.contains(s)).collect();
    let mut edge: Vec<u32> = seeds.iter().copied().filter(|s| !taken.contains(s)).collect();
    for _ in 0..reach {
        let mut next = Vec::new();
        for &i in &edge {
            for j in neighbours(i) {
                if is_member(j) && !taken.contains(&j) && inside.insert(j) {
                    next.push(j);
                }
            }
        }
        edge = next;
    }
    let mut seen: FxHashSet<u32> = FxHashSet::default();
    let mut pieces = Vec::new();
    for &s in seeds {
        if !inside.contains(&s) || !seen.insert(s) {
            continue;
        }
        let mut piece = vec![s];
        let mut at = 0;
        while let Some(&i) = piece.get(at) {
            for j in neighbours(i) {
                if inside.contains(&j) && seen.insert(j) {
                    piece.push(j);
                }
            }
            at += 1;
        }
        piece.sort_unstable();
        pieces.push(piece);
    }
    pieces
}

/// What is known of a value from outside.
fn facts_of(graph: &Graph, value: Value, replication: &Replication) -> Facts {
    let node = graph.node(value.node);
    let ty = graph.ty(value).clone();
    // One step back is enough: casts next to a window are mostly in it.
    let fits = match node.operands.first().and_then(|&v| graph.try_ty(v)) {
        Some(x) => fits(&node.op, Some(&Facts::of(x.clone()))),
        None => DTypeSet::default(),
    };
    Facts { ty, replicated: replication.axes(value.node), fits, defined: replication.defined(value.node) }
}
