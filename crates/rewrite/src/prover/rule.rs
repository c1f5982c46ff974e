//! Proof of a rule: its instances, their branches, and the strictest class that holds on each branch.

use std::collections::BTreeMap;

use egg::{ENodeOrVar, Pattern};
use shardweld_interp::EvalError;
use shardweld_ir::{Collective, Graph, GraphError, Mesh, Op, Value};

use super::evaluate::{Assumption, Classes, CounterExample, ProveError, compare};
use super::instances::{attr_of, bindings, meshes, tensors};
use crate::facts::Facts;
use crate::language::{Attr, Sort, Spmd, convert::to_op};
use crate::rules::branch::branch;
use crate::rules::functions::Bound;
use crate::rules::record::{BranchRecord, ProofRecord, definition};
use crate::rules::{Bindings, CompiledRule, Direction};

/// Most instances evaluated per mesh and branch; picked by a fixed hash of their number, so that no pattern of the
/// enumeration is missed systematically.
pub const MAX_INSTANCES: usize = 200;

/// Most instances tried per mesh in search of a counter-example to a rule without one of its guards.
const MAX_GUARD_INSTANCES: usize = 400;

/// Why a rule is not proved.
#[derive(Debug, thiserror::Error)]
pub enum RuleProofError {
    /// The sides differ.
    #[error("rule `{rule}` is wrong: {example}")]
    Refuted {
        /// The rule.
        rule: String,
        /// An instance on which the sides differ.
        example: Box<CounterExample>,
    },
    /// No instance satisfies the guards.
    #[error("rule `{rule}` has no instance on any mesh")]
    Vacuous {
        /// The rule.
        rule: String,
    },
    /// A guard that no counter-example needs.
    #[error("rule `{rule}` holds without its guard `{guard}`")]
    NeedlessGuard {
        /// The rule.
        rule: String,
        /// The guard.
        guard: String,
    },
    /// The fixed meshes.
    #[error(transparent)]
    Mesh(#[from] shardweld_ir::MeshError),
    /// An instance could not be evaluated.
    #[error("rule `{rule}`: {source}")]
    Prove {
        /// The rule.
        rule: String,
        /// Why.
        source: Box<ProveError>,
    },
}

/// Proves a rule, and that each of its guards is needed.
///
/// # Errors
/// If the rule is wrong, vacuous, or guarded needlessly.
pub fn prove_rule(rule: &CompiledRule) -> Result<ProofRecord, RuleProofError> {
    let name = || rule.rule.name.to_owned();
    let mut branches: BTreeMap<String, BranchRecord> = BTreeMap::new();
    let mut found = 0u64;
    let mut used_meshes = Vec::new();
    let meshes = meshes()?;
    let mut dropped: Vec<Dropped> = rule.rule.guards.iter().map(|_| Dropped::default()).collect();
    for mesh in &meshes {
        let mut by_branch: BTreeMap<String, Vec<(Graph, Graph, Bindings)>> = BTreeMap::new();
        for mut b in bindings(rule, mesh) {
            if rule.complete(&mut b, mesh).is_none() {
                continue;
            }
            if let Some(guard) = rule.refusing_guard(&b, mesh, None) {
                let at = rule.rule.guards.iter().position(|g| *g == guard).unwrap_or(0);
                if rule.refusing_guard(&b, mesh, Some(at)).is_none() {
                    dropped[at]
                        .offer(rule, &b, mesh)
                        .map_err(|e| RuleProofError::Prove { rule: name(), source: Box::new(e) })?;
                }
                continue;
            }
            let (Some(sides), Some(key)) = (sides(rule, &b, mesh), branch(rule, &b, mesh)) else { continue };
            by_branch.entry(key).or_default().push((sides.0, sides.1, b));
        }
        if !by_branch.is_empty() {
            used_meshes.push(mesh.to_string());
        }
        for (key, list) in by_branch {
            found += list.len() as u64;
            for (left, right, b) in sample(&list) {
                let verdict = judge(rule, left, right, b)
                    .map_err(|e| RuleProofError::Prove { rule: name(), source: Box::new(e) })?;
                let Some(verdict) = verdict else { continue };
                let classes =
                    verdict.map_err(|e| RuleProofError::Refuted { rule: name(), example: Box::new(e) })?;
                let entry = branches.entry(key.clone()).or_insert(BranchRecord {
                    class: classes.class,
                    fixed_order: classes.fixed_order,
                    instances: 0,
                });
                entry.class = entry.class.max(classes.class);
                entry.fixed_order = entry.fixed_order.max(classes.fixed_order);
                entry.instances += 1;
            }
        }
    }
    if branches.is_empty() {
        return Err(RuleProofError::Vacuous { rule: name() });
    }
    let mut guards_needed = BTreeMap::new();
    for (guard, d) in rule.rule.guards.iter().zip(dropped) {
        let reason = match d {
            Dropped { example: Some(e), .. } => e,
            Dropped { typed: 0, .. } => "without it the sides have different types".to_owned(),
            Dropped { .. } => {
                return Err(RuleProofError::NeedlessGuard { rule: name(), guard: (*guard).to_owned() });
            }
        };
        guards_needed.insert((*guard).to_owned(), reason);
    }
    Ok(ProofRecord {
        rule: name(),
        equation: rule.rule.equation(),
        definition: definition(&rule.rule),
        branches,
        instances_found: found,
        meshes: used_meshes,
        guards_needed,
    })
}

fn sample<T>(list: &[T]) -> Vec<&T> {
    if list.len() <= MAX_INSTANCES {
        return list.iter().collect();
    }
    let mut order: Vec<usize> = (0..list.len()).collect();
    // splitmix64, a bijection.
    order.sort_by_key(|&i| {
        let mut z = (i as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    order.into_iter().take(MAX_INSTANCES).map(|i| &list[i]).collect()
}

/// Search for a counter-example to a rule without one guard.
#[derive(Default)]
struct Dropped {
    typed: usize,
    example: Option<String>,
}

impl Dropped {
    fn offer(&mut self, rule: &CompiledRule, b: &Bindings, mesh: &Mesh) -> Result<(), ProveError> {
        if self.example.is_some() || self.typed >= MAX_GUARD_INSTANCES * 8 {
            return Ok(());
        }
        let Some((left, right)) = sides(rule, b, mesh) else { return Ok(()) };
        self.typed += 1;
        if let Some(Err(e)) = judge(rule, &left, &right, b)? {
            self.example = Some(e.to_string());
        }
        Ok(())
    }
}

/// Both sides as programs; `None` unless both are well typed, with one type.
pub fn sides(rule: &CompiledRule, b: &Bindings, mesh: &Mesh) -> Option<(Graph, Graph)> {
    let left = program(rule, &rule.lhs, b, mesh).ok()??;
    let right = program(rule, &rule.rhs, b, mesh).ok()??;
    let ty = |g: &Graph| g.outputs().first().map(|o| g.ty(o.value).clone());
    (ty(&left)? == ty(&right)?).then_some((left, right))
}

/// What the prover says of an instance; `None` if its left side reads what is undefined, so that it is no program.
fn judge(
    rule: &CompiledRule,
    left: &Graph,
    right: &Graph,
    b: &Bindings,
) -> Result<Option<Result<Classes, CounterExample>>, ProveError> {
    let assumption = |name: &str| {
        tensors(b)
            .find(|(v, _)| v.to_string().trim_start_matches('?') == name)
            .map(|(_, f)| Assumption {
                replicated: f.replicated,
                from: shardweld_ir::DType::ALL.into_iter().find(|d| f.fits.has(*d)),
            })
            .unwrap_or_default()
    };
    match compare(left, right, &assumption, rule.rule.direction == Direction::Refinement) {
        Err(ProveError::Evaluate { side: "left", source: EvalError::Undefined { .. } }) => Ok(None),
        verdict => verdict.map(Some),
    }
}

/// One side of a rule as a program over inputs named after its tensor variables.
fn program(
    rule: &CompiledRule,
    side: &Pattern<Spmd>,
    b: &Bindings,
    mesh: &Mesh,
) -> Result<Option<Graph>, GraphError> {
    let mut g = Graph::new("side", mesh.clone());
    let mut inputs = BTreeMap::new();
    for (var, facts) in tensors(b) {
        let name = var.to_string();
        let mut value = Value::from(g.add_input(name.trim_start_matches('?'), facts.ty.clone())?);
        if !facts.defined {
            match only_at_root(rule, b, mesh, facts, &mut g, value)? {
                Some(v) => value = v,
                None => return Ok(None),
            }
        }
        inputs.insert(var, value);
    }
    let nodes = side.ast.as_ref();
    let mut values: Vec<Option<Value>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let value = match node {
            ENodeOrVar::Var(v) => match b.0.get(v) {
                Some(Bound::Tensor(_)) => inputs.get(v).copied(),
                _ => None,
            },
            ENodeOrVar::ENode(Spmd::Op(head, children)) => {
                let mut operands = Vec::new();
                let mut attrs = Vec::new();
                for (&c, sort) in children.iter().zip(head.signature()) {
                    match sort {
                        Sort::Tensor => operands.extend(values[usize::from(c)]),
                        _ => attrs.extend(attr_of(&nodes[usize::from(c)], b).cloned()),
                    }
                }
                let Some(op) = to_op(*head, &attrs) else { return Ok(None) };
                Some(g.add(head.name(), op, &operands)?.into())
            }
            ENodeOrVar::ENode(_) => None,
        };
        values.push(value);
    }
    let Some(Some(root)) = values.last().copied() else { return Ok(None) };
    g.add_output("out", root)?;
    Ok(Some(g))
}

/// The value at the root that the rule reads, undefined elsewhere: gathered to that root, and its own block cut out again.
fn only_at_root(
    rule: &CompiledRule,
    b: &Bindings,
    mesh: &Mesh,
    facts: &Facts,
    g: &mut Graph,
    x: Value,
) -> Result<Option<Value>, GraphError> {
    let attrs = rule.rooted_read().and_then(|(r, g)| Some((attr_of(r, b)?, attr_of(g, b)?)));
    let Some((Attr::Int(root), Attr::Group(group))) = attrs else { return Ok(None) };
    let (Ok(root), Some(n)) =
        (u32::try_from(*root), facts.ty.shape.as_static().and_then(|s| s.first().copied()))
    else {
        return Ok(None);
    };
    if group.size(mesh) <= 1 {
        return Ok(None);
    }
    let gather = Op::Collective { kind: Collective::Gather { dim: 0, root }, group: group.clone() };
    let all = g.add("all", gather, &[x])?;
    let start = u64::from(root) * n;
    let own = g.add("own", Op::Slice { dim: 0, start, limit: start + n, stride: 1 }, &[all.into()])?;
    Ok(Some(own.into()))
}
