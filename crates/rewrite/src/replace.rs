//! The pass over windows: each distinct window is solved once, and its plan is replayed wherever the window occurs.

use rustc_hash::FxHashMap;
use shardweld_ir::{Graph, NodeId, Value};

use crate::certificate::{CertificateStep, Place};
use crate::context::Context;
use crate::copy::{Copy, tags};
use crate::error::RewriteError;
use crate::plan::{Kept, Plan, Solution, solve};
use crate::replication::Replication;
use crate::window::{Ref, Window, WindowKey, windows};

/// Rewrites all windows of a graph.
///
/// # Errors
/// If the graph is not sound, or the rules contradict each other.
pub fn rewrite_windows(graph: &Graph, cx: &mut Context) -> Result<Graph, RewriteError> {
    let fail = |source| RewriteError::Graph { pass: "rewrite-windows", source };
    let order = graph.order().map_err(fail)?;
    let replication = Replication::of(graph, &|name| cx.declared(name)).map_err(fail)?;
    let (all, stats) = windows(graph, &order, &replication).map_err(fail)?;
    cx.counters.windows = stats.windows;
    cx.counters.windows_shrunk = stats.shrunk;

    let mut solutions: Vec<Solution> = Vec::new();
    let mut known: FxHashMap<&WindowKey, usize> = FxHashMap::default();
    let mut chosen: Vec<Option<usize>> = Vec::with_capacity(all.len());
    for (number, w) in all.iter().enumerate() {
        if cx.stop_after.is_some_and(|n| number >= n) {
            chosen.push(None);
            continue;
        }
        let at = match known.get(&w.key) {
            Some(&at) => at,
            None => {
                let solution = solve(&w.key, cx.rules, graph.mesh(), cx.exactness, &cx.constraints)
                    .map_err(|errors| RewriteError::Rules { node: first_name(graph, w), errors })?;
                count(cx, &solution);
                solutions.push(solution);
                known.insert(&w.key, solutions.len() - 1);
                solutions.len() - 1
            }
        };
        chosen.push(solutions[at].plan.is_ok().then_some(at));
    }

    // Where each node of a rewritten window stands.
    let mut inside: FxHashMap<NodeId, (usize, u32)> = FxHashMap::default();
    for (number, w) in all.iter().enumerate().filter(|(n, _)| chosen[*n].is_some()) {
        inside.extend((0u32..).zip(&w.nodes).map(|(k, &id)| (id, (number, k))));
    }
    let mut emitted: Vec<Vec<Option<Value>>> = vec![Vec::new(); all.len()];
    let mut copy = Copy::new(graph).map_err(fail)?;
    for id in order {
        let Some(&(number, k)) = inside.get(&id) else {
            copy.node(id).map_err(fail)?;
            continue;
        };
        let w = &all[number];
        let plan = chosen[number].and_then(|at| solutions[at].plan.as_ref().ok());
        let out = w.key.outs.iter().position(|&o| o == k);
        if let (Some(plan), Some(out)) = (plan, out) {
            let done = &mut emitted[number];
            done.resize(plan.nodes.len(), None);
            let value = Emit { graph, window: w, plan, out: id, done, copy: &mut copy }
                .value(plan.outs[out], true)
                .map_err(fail)?;
            copy.set(id.into(), value);
        }
    }
    note(graph, cx, &all, &chosen, &solutions);
    copy.finish().map_err(fail)
}

fn first_name(graph: &Graph, w: &Window) -> String {
    w.nodes.first().map(|&id| graph.node(id).name.clone()).unwrap_or_default()
}

fn count(cx: &mut Context, s: &Solution) {
    cx.counters.windows_solved += 1;
    cx.counters.enodes_largest = cx.counters.enodes_largest.max(s.enodes);
    cx.counters.windows_limited += usize::from(s.limited);
    match &s.plan {
        Err(Kept::Reordered) => cx.counters.windows_reordered += 1,
        Err(Kept::TooLarge) => cx.counters.windows_unexplained += 1,
        Ok(_) | Err(Kept::Best) => {}
    }
}

/// Trail and certificate.
fn note(graph: &Graph, cx: &mut Context, all: &[Window], chosen: &[Option<usize>], solutions: &[Solution]) {
    let mut places: Vec<Vec<Place>> = vec![Vec::new(); solutions.len()];
    for (w, at) in all.iter().zip(chosen) {
        let Some((at, Ok(plan))) = at.map(|at| (at, &solutions[at].plan)) else { continue };
        cx.counters.windows_rewritten += 1;
        let name = |v: &Value| match v.result {
            0 => graph.node(v.node).name.clone(),
            r => format!("{}#{r}", graph.node(v.node).name),
        };
        places[at].push(Place {
            live: w.live.iter().map(name).collect(),
            outs: w
                .key
                .outs
                .iter()
                .filter_map(|&o| w.nodes.get(o as usize))
                .map(|&id| graph.node(id).name.clone())
                .collect(),
        });
        for (k, &id) in (0u32..).zip(&w.nodes) {
            let stays = plan.nodes.iter().any(|n| n.originals.contains(&k));
            if graph.node(id).op.collective().is_some() && !stays {
                for rule in &plan.rules {
                    cx.note(&tags(graph, id), rule);
                }
                cx.counters.eliminated += usize::from(plan.eliminated.contains(&k));
            }
        }
    }
    for (s, places) in solutions.iter().zip(places) {
        if let Ok(plan) = &s.plan
            && !places.is_empty()
        {
            cx.steps.push(CertificateStep::Windows { derivations: plan.derivations.clone(), places });
        }
    }
}

/// Emission of one output of a window.
struct Emit<'a, 'g> {
    graph: &'g Graph,
    window: &'a Window,
    plan: &'a Plan,
    out: NodeId,
    done: &'a mut Vec<Option<Value>>,
    copy: &'a mut Copy<'g>,
}

impl Emit<'_, '_> {
    fn value(&mut self, r: Ref, root: bool) -> Result<Value, shardweld_ir::GraphError> {
        let n = match r {
            Ref::Live(k) => return self.copy.value(self.window.live[k as usize]),
            Ref::Node(n) => n as usize,
        };
        if let Some(v) = self.done[n] {
            return Ok(v);
        }
        let node = &self.plan.nodes[n];
        let operands = node.operands.iter().map(|&o| self.value(o, false)).collect::<Result<Vec<_>, _>>()?;
        let source = |k: &u32| self.window.nodes.get(*k as usize).map(|&id| self.graph.node(id));
        let out = self.graph.node(self.out);
        let model = node.originals.first().or_else(|| node.origins.first()).and_then(source);
        let name = match model {
            Some(m) => m.name.clone(),
            // The value of a layout op keeps its name; a collective's name goes to the collective.
            None if root && out.op.collective().is_none() => out.name.clone(),
            None => format!("{}_{}", out.name, node.op.name()),
        };
        let id = self.copy.to.add(&name, node.op.clone(), &operands)?;
        let mut sources: Vec<String> = Vec::new();
        let mut carry = |names: Vec<String>| {
            for s in names {
                if !sources.contains(&s) {
                    sources.push(s);
                }
            }
        };
        if node.op.collective().is_some() {
            for id in node.origins.iter().filter_map(|&k| self.window.nodes.get(k as usize)) {
                carry(tags(self.graph, *id));
            }
        } else {
            for s in node.originals.iter().filter_map(source) {
                carry(s.sources.clone());
            }
            if root && node.originals.is_empty() && out.op.collective().is_none() {
                carry(out.sources.clone());
            }
        }
        self.copy.to.set_sources(id, sources);
        let value = Value::from(id);
        self.done[n] = Some(value);
        Ok(value)
    }
}
