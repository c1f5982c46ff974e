//! The plan for a window: what replaces it, node by node, with the derivation that shows why it may.

use std::collections::BTreeSet;

use egg::{FlatTerm, Id, Language, RecExpr};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use shardweld_ir::{Mesh, Op};

use crate::analysis::Data;
use crate::class::Exactness;
use crate::constraints::Constraints;
use crate::extract::Extraction;
use crate::language::{Sort, Spmd, convert::to_op};
use crate::rules::record::ProvedRule;
use crate::saturate::{Saturated, saturate};
use crate::window::{Ref, WindowKey};

/// Largest term, written out as a tree, that is explained. A window with a larger one stays as it is.
pub const MAX_TERM: u64 = 2_000;

/// A node that replaces part of a window.
#[derive(Clone, Debug)]
pub struct PlanNode {
    /// Operation.
    pub op: Op,
    /// Tensor operands: live-ins of the window, or earlier plan nodes.
    pub operands: Vec<Ref>,
    /// Window nodes that this node is.
    pub originals: Vec<u32>,
    /// Window collectives that this collective stands for.
    pub origins: BTreeSet<u32>,
}

/// One step of a derivation: the rule, its direction, and the whole term after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Rule.
    pub rule: String,
    /// Whether the left side was replaced by the right.
    pub forward: bool,
    /// Term after the step.
    pub term: String,
}

/// Why an output of a window may be computed by another term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Derivation {
    /// Term of the source.
    pub source: String,
    /// Steps to the term of the result.
    pub steps: Vec<Step>,
}

/// What replaces a window.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Nodes, operands first.
    pub nodes: Vec<PlanNode>,
    /// What each output of the window becomes.
    pub outs: Vec<Ref>,
    /// A derivation per output; without steps if its term stays.
    pub derivations: Vec<Derivation>,
    /// Names of the rules used, in order of first use.
    pub rules: Vec<String>,
    /// Window collectives that nothing stands for any more.
    pub eliminated: Vec<u32>,
}

/// Why a window stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing is better.
    Best,
    /// The best term would need values that the output did not depend on.
    Reordered,
    /// The best term is too large to explain.
    TooLarge,
}

/// The outcome of solving a window.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The plan, or why there is none.
    pub plan: Result<Plan, Kept>,
    /// E-nodes of the e-graph.
    pub enodes: usize,
    /// Whether a limit ended the search.
    pub limited: bool,
}

/// Finds the best replacement of a window.
///
/// # Errors
/// If the analysis found that the rules do not fit: a fault of the rule set.
pub fn solve(
    key: &WindowKey,
    rules: &[ProvedRule],
    mesh: &Mesh,
    exactness: Exactness,
    constraints: &Constraints,
) -> Result<Solution, Vec<String>> {
    let mut s = saturate(key, rules, mesh, exactness, constraints)?;
    let (enodes, limited) = (s.egraph.total_number_of_nodes(), s.limited);
    let plan = make(key, &mut s, constraints);
    Ok(Solution { plan, enodes, limited })
}

fn make(key: &WindowKey, s: &mut Saturated, constraints: &Constraints) -> Result<Plan, Kept> {
    let mut source: FxHashMap<Spmd, Vec<u32>> = FxHashMap::default();
    for (number, node) in (0u32..).zip(source_nodes(key, s)) {
        source.entry(node.map_children(|c| s.egraph.find(c))).or_default().push(number);
    }
    let known: FxHashSet<Spmd> = source.keys().cloned().collect();
    let extraction = Extraction::new(&s.egraph, &known, constraints);
    let mut builder = Builder {
        s,
        extraction: &extraction,
        source: &source,
        nodes: Vec::new(),
        done: FxHashMap::default(),
    };
    let mut outs = Vec::with_capacity(key.outs.len());
    for &out in &key.outs {
        let class = *builder.s.classes.get(out as usize).ok_or(Kept::Best)?;
        outs.push(builder.term(class).ok_or(Kept::Best)?);
    }
    let mut nodes = builder.nodes;
    let same = |r: &Ref, was: &Ref| match (r, was) {
        (Ref::Live(a), Ref::Live(b)) => a == b,
        (Ref::Node(n), Ref::Node(w)) => nodes[*n as usize].originals == [*w],
        _ => false,
    };
    let stays = |n: &PlanNode| match n.originals.as_slice() {
        [w] => n.operands.iter().zip(&key.nodes[*w as usize].operands).all(|(r, was)| same(r, was)),
        _ => false,
    };
    if nodes.iter().all(stays) && outs.iter().zip(&key.outs).all(|(r, &o)| same(r, &Ref::Node(o))) {
        return Err(Kept::Best);
    }
    for (r, &out) in outs.iter().zip(&key.outs) {
        let before = live_of(Ref::Node(out), &|n| &key.nodes[n as usize].operands);
        let after = live_of(*r, &|n| &nodes[n as usize].operands);
        if !after.is_subset(&before) {
            return Err(Kept::Reordered);
        }
    }
    let eliminated = cover(key, s, &mut nodes, &outs);
    let mut derivations = Vec::with_capacity(outs.len());
    let mut rules: Vec<String> = Vec::new();
    for (r, &out) in outs.iter().zip(&key.outs) {
        let before = expression(Ref::Node(out), &|n| {
            let w = &key.nodes[n as usize];
            (w.head, &w.attrs, &w.operands)
        });
        let texts: Vec<_> = nodes.iter().map(|n| crate::language::convert::from_op(&n.op)).collect();
        let after = expression_of_plan(*r, &nodes, &texts).ok_or(Kept::TooLarge)?;
        if tree_size(&before) > MAX_TERM || tree_size(&after) > MAX_TERM {
            return Err(Kept::TooLarge);
        }
        let mut steps = Vec::new();
        if before != after {
            let mut explanation = s.egraph.explain_equivalence(&before, &after);
            for term in explanation.make_flat_explanation().iter().skip(1) {
                let Some((rule, forward)) = rule_of(term) else { continue };
                if !rules.contains(&rule) {
                    rules.push(rule.clone());
                }
                steps.push(Step { rule, forward, term: term.get_recexpr().to_string() });
            }
        }
        derivations.push(Derivation { source: before.to_string(), steps });
    }
    Ok(Plan { nodes, outs, derivations, rules, eliminated })
}

/// The e-nodes of the window as first added.
fn source_nodes(key: &WindowKey, s: &Saturated) -> Vec<Spmd> {
    let mut out = Vec::with_capacity(key.nodes.len());
    for node in &key.nodes {
        let mut tensors = node.operands.iter().filter_map(|r| match r {
            Ref::Live(k) => s.live.get(*k as usize).copied(),
            Ref::Node(n) => s.classes.get(*n as usize).copied(),
        });
        let mut attrs = node.attrs.iter();
        let mut children: Vec<Id> = Vec::new();
        for sort in node.head.signature() {
            children.extend(match sort {
                Sort::Tensor => tensors.next(),
                _ => attrs.next().and_then(|a| s.egraph.lookup(Spmd::Attr(a.clone()))),
            });
        }
        out.push(Spmd::Op(node.head, children.into()));
    }
    out
}

struct Builder<'a> {
    s: &'a Saturated,
    extraction: &'a Extraction,
    source: &'a FxHashMap<Spmd, Vec<u32>>,
    nodes: Vec<PlanNode>,
    done: FxHashMap<Id, Ref>,
}

impl Builder<'_> {
    fn term(&mut self, class: Id) -> Option<Ref> {
        let egraph = &self.s.egraph;
        let class = egraph.find(class);
        if let Some(&r) = self.done.get(&class) {
            return Some(r);
        }
        let node = self.extraction.node(egraph, class)?.clone();
        let r = match &node {
            Spmd::Live(k) => Ref::Live(*k),
            Spmd::Attr(_) => return None,
            Spmd::Op(head, children) => {
                let mut operands = Vec::new();
                let mut attrs = Vec::new();
                for (&c, sort) in children.iter().zip(head.signature()) {
                    match sort {
                        Sort::Tensor => operands.push(self.term(c)?),
                        _ => match &self.s.egraph[c].data {
                            Data::Attr(a) => attrs.push(a.clone()),
                            _ => return None,
                        },
                    }
                }
                let egraph = &self.s.egraph;
                let canonical = node.clone().map_children(|c| egraph.find(c));
                let originals = self.source.get(&canonical).cloned().unwrap_or_default();
                let origins = match (&egraph[class].data, head.is_collective()) {
                    (_, true) if !originals.is_empty() => originals.iter().copied().collect(),
                    (Data::Tensor { origins, .. }, true) => origins.clone(),
                    _ => BTreeSet::new(),
                };
                self.nodes.push(PlanNode { op: to_op(*head, &attrs)?, operands, originals, origins });
                Ref::Node(self.nodes.len() as u32 - 1)
            }
        };
        self.done.insert(class, r);
        Some(r)
    }
}

/// Sees to it that every collective of the window is stood for, or is known to be gone. Returns those gone.
fn cover(key: &WindowKey, s: &Saturated, nodes: &mut [PlanNode], outs: &[Ref]) -> Vec<u32> {
    let mut gone = Vec::new();
    for (number, _) in (0u32..).zip(&key.nodes).filter(|(_, n)| n.head.is_collective()) {
        if nodes.iter().any(|n| n.origins.contains(&number)) {
            continue;
        }
        // Collectives of one class stand for each other.
        let class = s.classes.get(number as usize).map(|&c| s.egraph.find(c));
        let relatives = match class.map(|c| &s.egraph[c].data) {
            Some(Data::Tensor { origins, .. }) => origins.clone(),
            _ => BTreeSet::new(),
        };
        let by_class = nodes.iter().position(|n| !n.origins.is_disjoint(&relatives));
        // Else whatever communicates for the same outputs and is no collective of the source itself.
        let by_output = || {
            key.outs.iter().zip(outs).find_map(|(&out, r)| {
                let before = reachable(Ref::Node(out), &|n| &key.nodes[n as usize].operands);
                let after = reachable(*r, &|n| &nodes[n as usize].operands);
                before.contains(&number).then_some(())?;
                after
                    .into_iter()
                    .map(|n| n as usize)
                    .find(|&n| nodes[n].op.collective().is_some() && nodes[n].originals.is_empty())
            })
        };
        match by_class.or_else(by_output) {
            Some(n) => {
                nodes[n].origins.insert(number);
            }
            None => gone.push(number),
        }
    }
    gone
}

/// Live-ins that a term needs.
fn live_of<'a>(root: Ref, operands: &impl Fn(u32) -> &'a Vec<Ref>) -> BTreeSet<u32> {
    let live = |r: &Ref| match r {
        Ref::Live(k) => Some(*k),
        Ref::Node(_) => None,
    };
    let nodes = reachable(root, operands);
    live(&root)
        .into_iter()
        .chain(nodes.into_iter().flat_map(|n| operands(n).iter().filter_map(live)))
        .collect()
}

/// Nodes that a term needs.
fn reachable<'a>(root: Ref, operands: &impl Fn(u32) -> &'a Vec<Ref>) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    let mut stack = vec![root];
    while let Some(r) = stack.pop() {
        if let Ref::Node(n) = r
            && seen.insert(n)
        {
            stack.extend(operands(n));
        }
    }
    seen
}

/// A term of the window as an expression with sharing.
fn expression<'a>(
    root: Ref,
    node: &impl Fn(u32) -> (crate::language::Head, &'a Vec<crate::language::Attr>, &'a Vec<Ref>),
) -> RecExpr<Spmd> {
    fn add<'a>(
        r: Ref,
        node: &impl Fn(u32) -> (crate::language::Head, &'a Vec<crate::language::Attr>, &'a Vec<Ref>),
        done: &mut FxHashMap<Ref, Id>,
        expr: &mut RecExpr<Spmd>,
    ) -> Id {
        if let Some(&id) = done.get(&r) {
            return id;
        }
        let id = match r {
            Ref::Live(k) => expr.add(Spmd::Live(k)),
            Ref::Node(n) => {
                let (head, attrs, operands) = node(n);
                let mut operands = operands.iter();
                let mut attrs = attrs.iter();
                let mut children: Vec<Id> = Vec::new();
                for sort in head.signature() {
                    let child = match sort {
                        Sort::Tensor => operands.next().map(|&o| add(o, node, done, expr)),
                        _ => attrs.next().map(|a| expr.add(Spmd::Attr(a.clone()))),
                    };
                    children.extend(child);
                }
                expr.add(Spmd::Op(head, children.into()))
            }
        };
        done.insert(r, id);
        id
    }
    let mut expr = RecExpr::default();
    add(root, node, &mut FxHashMap::default(), &mut expr);
    expr
}

type Converted = Option<(crate::language::Head, Vec<crate::language::Attr>)>;

fn expression_of_plan(root: Ref, nodes: &[PlanNode], texts: &[Converted]) -> Option<RecExpr<Spmd>> {
    if texts.iter().any(Option::is_none) {
        return None;
    }
    Some(expression(root, &|n| match &texts[n as usize] {
        Some((head, attrs)) => (*head, attrs, &nodes[n as usize].operands),
        None => unreachable!("every plan node was converted"),
    }))
}

/// Number of nodes of an expression written out as a tree.
fn tree_size(expr: &RecExpr<Spmd>) -> u64 {
    let mut sizes: Vec<u64> = Vec::with_capacity(expr.as_ref().len());
    for node in expr.as_ref() {
        let size = node.children().iter().fold(1u64, |n, &c| n.saturating_add(sizes[usize::from(c)]));
        sizes.push(size);
    }
    sizes.last().copied().unwrap_or(0)
}

/// The rule that a term of a flat explanation was made by, somewhere in it.
fn rule_of(term: &FlatTerm<Spmd>) -> Option<(String, bool)> {
    if let Some(r) = &term.forward_rule {
        return Some((r.to_string(), true));
    }
    if let Some(r) = &term.backward_rule {
        return Some((r.to_string(), false));
    }
    term.children.iter().find_map(rule_of)
}
