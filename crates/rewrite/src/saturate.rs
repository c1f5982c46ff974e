//! Equality saturation of one window: its terms go into an e-graph, the rules run to a fixed point or a limit.

use std::collections::BTreeSet;

use egg::{EGraph, ENodeOrVar, Id, Language, Searcher, Subst, Symbol, Var};
use shardweld_ir::{Collective, DType, Group, Mesh, Op};

use crate::analysis::{Data, Egraph, SpmdAnalysis, pattern_classes};
use crate::class::Exactness;
use crate::constraints::Constraints;
use crate::facts::{Facts, derive};
use crate::language::{Sort, Spmd, convert::to_op};
use crate::rules::branch::branch;
use crate::rules::functions::Bound;
use crate::rules::record::ProvedRule;
use crate::rules::{Bindings, Direction, Policy};
use crate::window::{Ref, WindowKey};

/// Most e-nodes of a window's e-graph. Real windows stay far below; reaching it ends the search early.
pub const MAX_ENODES: usize = 4_000;

/// Most rounds of rule application. Chains of layout changes around one collective close in fewer.
pub const MAX_ROUNDS: usize = 12;

/// A saturated window.
#[derive(Debug)]
pub struct Saturated {
    /// The e-graph.
    pub egraph: Egraph,
    /// Class of each window node, as of when it was added.
    pub classes: Vec<Id>,
    /// Class of each live-in.
    pub live: Vec<Id>,
    /// Whether a limit ended the search.
    pub limited: bool,
}

/// Puts a window into an e-graph and applies the rules.
///
/// # Errors
/// The analysis' errors: the window must then be left alone.
pub fn saturate(
    key: &WindowKey,
    rules: &[ProvedRule],
    mesh: &Mesh,
    exactness: Exactness,
    constraints: &Constraints,
) -> Result<Saturated, Vec<String>> {
    let analysis = SpmdAnalysis {
        mesh: mesh.clone(),
        live: key.live.clone(),
        terms_agree: exactness <= Exactness::Nan,
        errors: Vec::new(),
    };
    let mut egraph: Egraph =
        EGraph::new(analysis).with_explanations_enabled().without_explanation_length_optimization();
    let live: Vec<Id> = (0..key.live.len() as u32).map(|k| egraph.add(Spmd::Live(k))).collect();
    let mut classes: Vec<Id> = Vec::with_capacity(key.nodes.len());
    for (number, node) in (0u32..).zip(&key.nodes) {
        let mut tensors = node.operands.iter().map(|r| match r {
            Ref::Live(k) => live[*k as usize],
            Ref::Node(n) => classes[*n as usize],
        });
        let mut attrs = node.attrs.iter();
        let mut children = Vec::new();
        for sort in node.head.signature() {
            children.extend(match sort {
                Sort::Tensor => tensors.next(),
                _ => attrs.next().map(|a| egraph.add(Spmd::Attr(a.clone()))),
            });
        }
        let id = egraph.add(Spmd::Op(node.head, children.into()));
        if node.head.is_collective() {
            add_origins(&mut egraph, id, &BTreeSet::from([number]));
        }
        classes.push(id);
    }
    egraph.rebuild();
    let mut limited = false;
    for round in 0.. {
        if !egraph.analysis.errors.is_empty() {
            return Err(egraph.analysis.errors);
        }
        if round >= MAX_ROUNDS {
            limited = true;
            break;
        }
        let mut found: Vec<(usize, Subst)> = Vec::new();
        for (i, p) in rules.iter().enumerate() {
            let usable = p.rule.rule.direction == Direction::Equation
                && (p.rule.rule.policy != Policy::AllGatherAsReduce || constraints.gathers_may_reduce());
            if usable {
                found.extend(p.rule.lhs.search(&egraph).into_iter().flat_map(|m| m.substs).map(|s| (i, s)));
            }
        }
        let mut changed = false;
        for (i, subst) in found {
            changed |= apply(&mut egraph, &rules[i], subst, exactness, constraints);
            if egraph.total_number_of_nodes() > MAX_ENODES {
                limited = true;
                break;
            }
        }
        egraph.rebuild();
        if !changed || limited {
            break;
        }
    }
    if egraph.analysis.errors.is_empty() {
        Ok(Saturated { egraph, classes, live, limited })
    } else {
        Err(egraph.analysis.errors)
    }
}

/// Applies a rule to one match; whether that united two classes.
fn apply(
    egraph: &mut Egraph,
    proved: &ProvedRule,
    mut subst: Subst,
    exactness: Exactness,
    constraints: &Constraints,
) -> bool {
    let rule = &proved.rule;
    let mut bindings = Bindings::default();
    for var in rule.lhs.ast.as_ref().iter().filter_map(variable) {
        let Some(&id) = subst.get(var) else { return false };
        match &egraph[id].data {
            Data::Tensor { facts, .. } => bindings.0.insert(var, Bound::Tensor(facts.clone())),
            Data::Attr(a) => bindings.0.insert(var, Bound::Attr(a.clone())),
            Data::Invalid => return false,
        };
    }
    let mesh = egraph.analysis.mesh.clone();
    if rule.complete(&mut bindings, &mesh).is_none()
        || rule.refusing_guard(&bindings, &mesh, None).is_some()
        || !wanted(proved, &bindings, &mesh, constraints)
    {
        return false;
    }
    let class = branch(rule, &bindings, &mesh)
        .and_then(|b| proved.class(&b, constraints.profile.fixed_reduction_order));
    if !class.is_some_and(|c| exactness.admits(c)) {
        return false;
    }
    // A rule applies only where its right side is well typed, and of the left side's type.
    let left = facts_of(&rule.lhs.ast, &bindings, &mesh);
    let right = facts_of(&rule.rhs.ast, &bindings, &mesh);
    if left.is_none() || left.map(|f| f.ty) != right.map(|f| f.ty) {
        return false;
    }
    for var in rule.computed() {
        if let Some(Bound::Attr(a)) = bindings.0.get(&var) {
            let id = egraph.add(Spmd::Attr(a.clone()));
            subst.insert(var, id);
        }
    }
    let origins = pattern_classes(egraph, &rule.lhs.ast, &subst)
        .map(|ids| origins_of(egraph, &rule.lhs.ast, &ids))
        .unwrap_or_default();
    let (_, changed) =
        egraph.union_instantiations(&rule.lhs.ast, &rule.rhs.ast, &subst, Symbol::from(rule.rule.name));
    // Also where the sides were equal before: the right side may be a new term of its class.
    if !origins.is_empty() {
        let ids = pattern_classes(egraph, &rule.rhs.ast, &subst).unwrap_or_default();
        for (node, id) in rule.rhs.ast.as_ref().iter().zip(ids) {
            if is_collective(node) {
                add_origins(egraph, id, &origins);
            }
        }
    }
    changed
}

fn variable(node: &ENodeOrVar<Spmd>) -> Option<Var> {
    match node {
        ENodeOrVar::Var(v) => Some(*v),
        ENodeOrVar::ENode(_) => None,
    }
}

fn is_collective(node: &ENodeOrVar<Spmd>) -> bool {
    matches!(node, ENodeOrVar::ENode(Spmd::Op(h, _)) if h.is_collective())
}

fn origins_of(egraph: &Egraph, pattern: &egg::PatternAst<Spmd>, ids: &[Id]) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for (node, &id) in pattern.as_ref().iter().zip(ids) {
        if is_collective(node)
            && let Data::Tensor { origins, .. } = &egraph[id].data
        {
            all.extend(origins);
        }
    }
    all
}

fn add_origins(egraph: &mut Egraph, id: Id, more: &BTreeSet<u32>) {
    let id = egraph.find(id);
    if let Data::Tensor { origins, .. } = &mut egraph[id].data {
        origins.extend(more);
    }
}

/// Whether policy wants the rule here.
fn wanted(proved: &ProvedRule, bindings: &Bindings, mesh: &Mesh, constraints: &Constraints) -> bool {
    match proved.rule.rule.policy {
        Policy::Always => true,
        Policy::WhereUnbuildable | Policy::AllGatherAsReduce => {
            match collective_at_root(&proved.rule.lhs.ast, bindings) {
                Some((kind, group, dtype)) => constraints.refusal(&kind, dtype, &group, mesh).is_some(),
                None => false,
            }
        }
        Policy::WhereGroupTooSmall => match collective_at_root(&proved.rule.lhs.ast, bindings) {
            Some((kind, group, _)) => {
                constraints.too_small(&kind, &group, mesh)
                    && (constraints.gathers_are_free() || !matches!(kind, Collective::AllGather { .. }))
            }
            None => false,
        },
    }
}

/// The collective at the root of a pattern, with its group and operand type.
fn collective_at_root(
    pattern: &egg::PatternAst<Spmd>,
    bindings: &Bindings,
) -> Option<(Collective, Group, DType)> {
    let nodes = pattern.as_ref();
    let Some(ENodeOrVar::ENode(Spmd::Op(head, children))) = nodes.last() else { return None };
    let mut attrs = Vec::new();
    let mut dtype = None;
    for (&c, sort) in children.iter().zip(head.signature()) {
        let node = &nodes[usize::from(c)];
        match sort {
            Sort::Tensor => match node {
                ENodeOrVar::Var(v) => match bindings.0.get(v)? {
                    Bound::Tensor(f) => dtype = Some(f.ty.dtype),
                    Bound::Attr(_) => return None,
                },
                ENodeOrVar::ENode(_) => return None,
            },
            _ => attrs.push(crate::prover::instances::attr_of(node, bindings)?.clone()),
        }
    }
    match to_op(*head, &attrs)? {
        Op::Collective { kind, group } => Some((kind, group, dtype?)),
        _ => None,
    }
}

/// Facts of a side of a rule; `None` if it is not well typed.
fn facts_of(pattern: &egg::PatternAst<Spmd>, bindings: &Bindings, mesh: &Mesh) -> Option<Facts> {
    let nodes = pattern.as_ref();
    let mut facts: Vec<Option<Facts>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let f = match node {
            ENodeOrVar::Var(v) => match bindings.0.get(v) {
                Some(Bound::Tensor(f)) => Some(f.clone()),
                _ => None,
            },
            ENodeOrVar::ENode(Spmd::Op(head, children)) => {
                let mut operands = Vec::new();
                let mut attrs = Vec::new();
                for (&c, sort) in children.iter().zip(head.signature()) {
                    match sort {
                        Sort::Tensor => operands.push(facts[usize::from(c)].as_ref()?),
                        _ => attrs.push(
                            crate::prover::instances::attr_of(&nodes[usize::from(c)], bindings)?.clone(),
                        ),
                    }
                }
                Some(derive(&to_op(*head, &attrs)?, &operands, mesh, &[]).ok()?)
            }
            ENodeOrVar::ENode(n) => {
                debug_assert!(n.is_leaf());
                None
            }
        };
        facts.push(f);
    }
    facts.pop().flatten()
}
