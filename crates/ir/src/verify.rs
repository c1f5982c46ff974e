//! The verifier: everything that must hold of a graph, re-checked from nothing, all problems listed at once.
//!
//! Deadlock freedom needs no search. A graph is one program for all ranks without data-dependent control, so every rank
//! issues the same collectives in the same order ([`Graph::order`]), and a valid group is a partition, so every rank takes
//! part in each collective exactly once. By induction over the order, all ranks reach every collective. What this needs,
//! an order (no cycle) and partitions, is checked here; a backend must keep to the order.

use std::fmt;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use crate::graph::{Graph, NodeId};
use crate::infer::{MAX_RANK, infer};
use crate::mesh::{AxisId, Mesh};
use crate::op::{Collective, Op};
use crate::types::{Dim, TensorType};
use crate::weight::{BlobEntry, StridedView, Weight, WeightView};

/// Most problems that are listed; more are counted only.
pub const MAX_PROBLEMS: usize = 64;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is concerned, such as ``node `x` (all_gather)`` or ``weight `w` ``.
    pub place: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, expected {}", self.place, self.found, self.expected)
    }
}

/// All that is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct VerifyError {
    /// Name of the graph.
    pub graph: String,
    /// The pass after which it was checked.
    pub after: Option<String>,
    /// The first [`MAX_PROBLEMS`] problems.
    pub problems: Vec<Problem>,
    /// How many there are.
    pub total: usize,
}

impl VerifyError {
    fn text(&self) -> String {
        let after = self.after.as_ref().map(|p| format!(" after pass `{p}`")).unwrap_or_default();
        let mut text = format!("graph `{}` is invalid{after}: {} problems", self.graph, self.total);
        for p in &self.problems {
            text += &format!("\n  {p}");
        }
        if self.total > self.problems.len() {
            text += &format!("\n  and {} more", self.total - self.problems.len());
        }
        text
    }
}

impl Graph {
    /// Checks everything that must hold of a graph.
    ///
    /// # Errors
    /// All problems found, the first [`MAX_PROBLEMS`] of them in words.
    pub fn verify(&self) -> Result<(), VerifyError> {
        verify(self, None)
    }

    /// [`Graph::verify`] in debug builds, nothing in others; the error names the pass that left the graph so.
    ///
    /// # Errors
    /// As [`Graph::verify`].
    pub fn verify_after(&self, pass: &str) -> Result<(), VerifyError> {
        if cfg!(debug_assertions) { verify(self, Some(pass)) } else { Ok(()) }
    }
}

fn verify(graph: &Graph, after: Option<&str>) -> Result<(), VerifyError> {
    let mut report = Report::default();
    if let Err(e) = graph.mesh().validate() {
        // Nothing about groups can be said over a broken mesh.
        report.add("the mesh".into(), e.to_string(), "a valid mesh".into());
    } else {
        check_weights(graph, &mut report);
        let sound = check_nodes(graph, &mut report);
        check_interface(graph, &mut report);
        match graph.order() {
            Err(e) => report.add("the graph".into(), e.to_string(), "no cycle".into()),
            // Values flow only along sound edges.
            Ok(order) if sound => check_defined(graph, &order, &mut report),
            Ok(_) => {}
        }
    }
    if report.total == 0 {
        return Ok(());
    }
    Err(VerifyError {
        graph: graph.name.clone(),
        after: after.map(str::to_owned),
        problems: report.problems,
        total: report.total,
    })
}

#[derive(Default)]
struct Report {
    problems: Vec<Problem>,
    total: usize,
}

impl Report {
    fn add(&mut self, place: String, found: String, expected: String) {
        self.total += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { place, found, expected });
        }
    }
}

fn place(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    format!("node `{}` ({})", node.name, node.op.name())
}

fn list(types: &[TensorType]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Types, edges and names of all nodes. Returns whether all operands exist.
fn check_nodes(graph: &Graph, report: &mut Report) -> bool {
    let mut sound = true;
    let mut symbols: FxHashMap<String, Dim> = FxHashMap::default();
    for (id, node) in graph.nodes() {
        if graph.find(&node.name) != Some(id) {
            let found = "a name that stands for another node or none".into();
            report.add(place(graph, id), found, "a name of its own".into());
        }
        if !graph.edges_agree(id) {
            sound = false;
            report.add(place(graph, id), "operands that the edges do not show".into(), "equal".into());
        }
        let types: Option<Vec<&TensorType>> = node.operands.iter().map(|v| graph.try_ty(*v)).collect();
        let Some(types) = types else {
            sound = false;
            report.add(place(graph, id), "an operand that does not exist".into(), "a value".into());
            continue;
        };
        for ty in &node.results {
            check_type(ty, &mut symbols, || place(graph, id), report);
        }
        if matches!(node.op, Op::Input { .. }) {
            if node.results.len() != 1 || !types.is_empty() {
                let found = format!("{} results of {} operands", node.results.len(), types.len());
                report.add(place(graph, id), found, "one result of no operand".into());
            }
            continue;
        }
        match infer(&node.op, &types, graph.mesh(), graph.weights()) {
            Err(e) => report.add(place(graph, id), e.to_string(), "what the shape rules allow".into()),
            Ok(results) if results != node.results => {
                report.add(place(graph, id), list(&node.results), list(&results));
            }
            Ok(_) => {}
        }
    }
    sound
}

/// What no shape rule looks at: rank and ranges of symbols.
fn check_type(
    ty: &TensorType,
    symbols: &mut FxHashMap<String, Dim>,
    place: impl Fn() -> String,
    report: &mut Report,
) {
    if ty.rank() > MAX_RANK {
        report.add(place(), ty.to_string(), format!("at most {MAX_RANK} dimensions"));
    }
    for dim in &ty.shape.0 {
        let Dim::Symbol(s) = dim else { continue };
        if s.min > s.opt || s.opt > s.max || s.multiple_of == 0 {
            report.add(place(), format!("symbol {dim}"), "min <= opt <= max, a multiple of 1 or more".into());
        }
        let known = symbols.entry(s.name.clone()).or_insert_with(|| dim.clone());
        if known != dim {
            report.add(place(), format!("symbol {dim}"), format!("{known}, as elsewhere"));
        }
    }
}

/// The lists of inputs and outputs.
fn check_interface(graph: &Graph, report: &mut Report) {
    let listed: FxHashSet<NodeId> = graph.inputs().iter().copied().collect();
    let mut names = FxHashSet::default();
    for (id, node) in graph.nodes() {
        let Op::Input { name } = &node.op else { continue };
        if !listed.contains(&id) {
            report.add(place(graph, id), "an input that is not listed".into(), "all inputs listed".into());
        }
        if !names.insert(name) {
            report.add(place(graph, id), format!("the input name `{name}` twice"), "unique names".into());
        }
    }
    for id in graph.inputs() {
        if !graph.try_node(*id).is_some_and(|n| matches!(n.op, Op::Input { .. })) {
            let found = format!("node #{} that is no input", id.index());
            report.add("the list of inputs".into(), found, "inputs only".into());
        }
    }
    let mut names = FxHashSet::default();
    for o in graph.outputs() {
        let place = || format!("output `{}`", o.name);
        if !names.insert(&o.name) {
            report.add(place(), "the name twice".into(), "unique names".into());
        }
        if graph.try_ty(o.value).is_none() {
            let found = format!("result #{} of node #{}", o.value.result, o.value.node.index());
            report.add(place(), found, "a value of the graph".into());
        }
    }
}

fn check_weights(graph: &Graph, report: &mut Report) {
    let mut names = FxHashSet::default();
    for w in graph.weights() {
        let place = || format!("weight `{}`", w.name);
        if !names.insert(&w.name) {
            report.add(place(), "the name twice".into(), "unique names".into());
        }
        check_shards(graph.mesh(), w, report);
        let Some(shape) = w.ty.shape.as_static() else {
            report.add(place(), format!("the type {}", w.ty), "static sizes".into());
            continue;
        };
        for (i, view) in w.shards.iter().enumerate() {
            let place = || format!("weight `{}`, shard {i}", w.name);
            match view.ty() {
                Err(e) => report.add(place(), e.to_string(), "parts that fit".into()),
                Ok(Some(found)) if found != (w.ty.dtype, shape.clone()) => {
                    report.add(place(), format!("{}{:?}", found.0, found.1), w.ty.to_string());
                }
                Ok(_) => check_view(view, &place, report),
            }
        }
    }
}

fn check_shards(mesh: &Mesh, w: &Weight, report: &mut Report) {
    let mut expected = 1u64;
    if w.over.len() > mesh.axes().len() {
        let found = format!("{} axes", w.over.len());
        report.add(format!("weight `{}`", w.name), found, format!("distinct axes of {mesh}"));
        return;
    }
    for (i, a) in w.over.iter().enumerate() {
        let twice = w.over[..i].contains(a);
        match mesh.axis_size(*a) {
            Some(n) if !twice => expected *= u64::from(n),
            _ => {
                let found = format!("axis #{}{}", a.0, if twice { " twice" } else { "" });
                report.add(format!("weight `{}`", w.name), found, format!("distinct axes of {mesh}"));
            }
        }
    }
    if w.shards.len() as u64 != expected {
        let found = format!("{} shards", w.shards.len());
        report.add(format!("weight `{}`", w.name), found, format!("{expected}, one per coordinate"));
    }
}

fn check_view(view: &WeightView, place: &impl Fn() -> String, report: &mut Report) {
    match view {
        WeightView::Absent => {}
        WeightView::Concat { parts, .. } => parts.iter().for_each(|p| check_view(p, place, report)),
        WeightView::Strided(v) => {
            if let Some((found, expected)) = bad_window(v) {
                report.add(place(), found, expected);
            }
        }
    }
}

/// What can be said of a window without opening its file.
fn bad_window(v: &StridedView) -> Option<(String, String)> {
    if v.shape.len() != v.strides.len() {
        let found = format!("{} strides", v.strides.len());
        return Some((found, format!("{}, one per dimension", v.shape.len())));
    }
    if v.blob.file.to_str().is_none() {
        let found = format!("the file name {:?}", v.blob.file);
        return Some((found, "a Unicode name, which text and JSON can hold".into()));
    }
    let needed = v.end().and_then(|e| e.checked_mul(v.dtype.size() as u64));
    match (needed, &v.blob.entry) {
        (None, _) => Some(("a window that overflows".into(), "an end below 2^64 bytes".into())),
        (Some(n), BlobEntry::Raw { len, .. }) if n > *len => {
            Some((format!("a window that needs {n} bytes"), format!("at most the blob's {len}")))
        }
        _ => None,
    }
}

/// Ranks on which a value is defined; `None` is everywhere.
type Defined = Option<Arc<[bool]>>;

/// Follows "undefined off root": it may pass local ops, and ends only where a collective takes the root's operand.
fn check_defined(graph: &Graph, order: &[NodeId], report: &mut Report) {
    let mesh = graph.mesh();
    let mut partial: FxHashMap<NodeId, Arc<[bool]>> = FxHashMap::default();
    for &id in order {
        let node = graph.node(id);
        let operands: Vec<Defined> = node.operands.iter().map(|v| partial.get(&v.node).cloned()).collect();
        let result = match &node.op {
            Op::Collective { kind, group } => {
                let operand = operands.first().cloned().flatten();
                let bad = match kind {
                    Collective::Broadcast { root } | Collective::Scatter { root, .. } => operand
                        .and_then(|d| roots(group, mesh, *root).into_iter().find(|&r| !is_defined(&d, r))),
                    _ => operand.and_then(|d| d.iter().position(|x| !x).map(|r| r as u32)),
                };
                if let Some(rank) = bad {
                    let source = &graph.node(node.operands[0].node).name;
                    report.add(
                        place(graph, id),
                        format!("operand `{source}`, which is undefined on rank {rank}"),
                        "a value that is defined on every rank it is read on".into(),
                    );
                }
                kind.undefined_off_root().then(|| {
                    let mut d = vec![false; mesh.world_size() as usize];
                    for r in roots(group, mesh, kind.root().unwrap_or(0)) {
                        if let Some(slot) = d.get_mut(r as usize) {
                            *slot = true;
                        }
                    }
                    d.into()
                })
            }
            Op::AxisSelect { axis } => selected(mesh, *axis, &operands),
            _ => operands.into_iter().fold(None, both),
        };
        // On one rank, or where every rank is a root, "off root" is nowhere.
        if let Some(d) = result.filter(|d| d.contains(&false)) {
            partial.insert(id, d);
        }
    }
    for o in graph.outputs() {
        if let Some(rank) = partial.get(&o.value.node).and_then(|d| d.iter().position(|x| !x)) {
            let found = format!("a value that is undefined on rank {rank}");
            report.add(format!("output `{}`", o.name), found, "a value defined on every rank".into());
        }
    }
}

fn is_defined(d: &[bool], rank: u32) -> bool {
    d.get(rank as usize).copied().unwrap_or(false)
}

/// Global ranks of the roots, one per group.
fn roots(group: &crate::mesh::Group, mesh: &Mesh, root: u32) -> Vec<u32> {
    group.all(mesh).iter().filter_map(|g| g.get(root as usize).copied()).collect()
}

fn both(a: Defined, b: Defined) -> Defined {
    match (a, b) {
        (None, x) | (x, None) => x,
        (Some(a), Some(b)) => Some(a.iter().zip(b.iter()).map(|(x, y)| *x && *y).collect()),
    }
}

/// A rank reads only the operand of its own coordinate.
fn selected(mesh: &Mesh, axis: AxisId, operands: &[Defined]) -> Defined {
    if operands.iter().all(Option::is_none) {
        return None;
    }
    let read = |r: u32| operands.get(mesh.coordinate(r, axis) as usize).cloned().flatten();
    Some((0..mesh.world_size()).map(|r| read(r).is_none_or(|d| is_defined(&d, r))).collect())
}
