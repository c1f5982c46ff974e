//! Directed legalisation, before the search: what may be done one way only, by name, at most once per collective.
//!
//! | step | before | after | class |
//! |---|---|---|---|
//! | `reduce_in_f32` | reduction of f16, bf16, fp8 that the target cannot build, or that the user orders into f32 | cast, the same in f32, cast back | `accuracy`: rounding happens once, at the end |
//! | `gather_as_all_gather`, `reduce_as_all_reduce` | rooted collective that the target cannot build in any type | the symmetric one, which also defines the value off root | that of the rule |

use shardweld_ir::{Collective, DType, Graph, GraphError, Group, NodeId, Op, Value};

use crate::certificate::CertificateStep;
use crate::class::{Class, Exactness};
use crate::constraints::narrow;
use crate::context::Context;
use crate::copy::{Copy, tags};
use crate::error::Illegal;
use crate::facts::Facts;
use crate::language::convert::{from_op, to_op};
use crate::options::Boundary;
use crate::replication::Replication;
use crate::rules::branch::branch;
use crate::rules::record::ProvedRule;
use crate::rules::{Direction, Policy};

/// Name of the step that accumulates and travels in f32.
pub const REDUCE_IN_F32: &str = "reduce_in_f32";

/// Applies the directed steps that the target needs or the user orders.
///
/// # Errors
/// If the graph is not sound.
pub fn legalise(mut graph: Graph, cx: &mut Context) -> Result<Graph, GraphError> {
    let order = graph.order()?;
    if order.iter().any(|&id| needs_step(cx, &graph, id)) {
        return apply_steps(&graph, order, cx);
    }
    for id in order.into_iter().filter(|&id| graph.node(id).op.collective().is_some()).collect::<Vec<_>>() {
        let names = tags(&graph, id);
        graph.set_sources(id, names);
    }
    Ok(graph)
}

fn needs_step(cx: &Context, graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    match (&node.op, node.operands.first()) {
        (Op::Collective { kind, group }, Some(&x)) => {
            in_f32(cx, graph, kind, group, graph.ty(x).dtype)
                || refined(cx, graph, id, kind, group, x).is_some()
        }
        _ => false,
    }
}

fn apply_steps(graph: &Graph, order: Vec<NodeId>, cx: &mut Context) -> Result<Graph, GraphError> {
    let mut copy = Copy::new(graph)?;
    for id in order {
        let Op::Collective { kind, group } = &graph.node(id).op else {
            copy.node(id)?;
            continue;
        };
        let operand = graph.node(id).operands.first().copied();
        let Some(x) = operand else {
            copy.node(id)?;
            continue;
        };
        let dtype = graph.ty(x).dtype;
        if in_f32(cx, graph, kind, group, dtype) {
            wide_reduction(graph, id, x, dtype, &mut copy, cx)?;
        } else if let Some((rule, class, op)) = refined(cx, graph, id, kind, group, x) {
            let operand = copy.value(x)?;
            let new = copy.to.add(&graph.node(id).name, op, &[operand])?;
            copy.to.set_sources(new, tags(graph, id));
            copy.set(id.into(), new.into());
            cx.note(&tags(graph, id), rule);
            cx.steps.push(CertificateStep::Directed {
                rule: rule.into(),
                class,
                node: graph.node(id).name.clone(),
                by: vec![copy.to.node(new).name.clone()],
            });
            cx.loosest_directed = cx.loosest_directed.max(Some(class));
            cx.counters.directed += 1;
        } else {
            let new = copy.node(id)?;
            copy.to.set_sources(new, tags(graph, id));
        }
    }
    copy.finish()
}

/// Whether a reduction goes to f32.
fn in_f32(cx: &Context, graph: &Graph, kind: &Collective, group: &Group, dtype: DType) -> bool {
    let c = &cx.constraints;
    kind.reduce_op().is_some()
        && narrow(dtype)
        && group.size(graph.mesh()) > 1
        && match c.boundary {
            Boundary::Off => false,
            Boundary::F32 => true,
            Boundary::Auto => {
                cx.exactness != Exactness::Bit && c.refusal(kind, dtype, group, graph.mesh()).is_some()
            }
        }
        && c.refusal(kind, DType::F32, group, graph.mesh()).is_none()
}

fn wide_reduction(
    graph: &Graph,
    id: NodeId,
    x: Value,
    dtype: DType,
    copy: &mut Copy,
    cx: &mut Context,
) -> Result<(), GraphError> {
    let node = graph.node(id);
    let wide = |accum: Option<DType>| accum.filter(|a| DType::F32.embeds_in(*a));
    let op = match node.op.clone() {
        Op::Collective { kind, group } => {
            let kind = match kind {
                Collective::AllReduce { op, accum } => Collective::AllReduce { op, accum: wide(accum) },
                Collective::ReduceScatter { op, dim, accum } => {
                    Collective::ReduceScatter { op, dim, accum: wide(accum) }
                }
                Collective::Reduce { op, root, accum } => Collective::Reduce { op, root, accum: wide(accum) },
                other => other,
            };
            Op::Collective { kind, group }
        }
        other => other,
    };
    let operand = copy.value(x)?;
    let up = copy.to.add(&format!("{}_up", node.name), Op::Cast { to: DType::F32 }, &[operand])?;
    let reduced = copy.to.add(&node.name, op, &[up.into()])?;
    copy.to.set_sources(reduced, tags(graph, id));
    let down = copy.to.add(&format!("{}_down", node.name), Op::Cast { to: dtype }, &[reduced.into()])?;
    copy.set(id.into(), down.into());
    cx.note(&tags(graph, id), REDUCE_IN_F32);
    let by = [up, reduced, down].map(|n| copy.to.node(n).name.clone()).to_vec();
    cx.steps.push(CertificateStep::Directed {
        rule: REDUCE_IN_F32.into(),
        class: Class::Accuracy,
        node: node.name.clone(),
        by,
    });
    cx.loosest_directed = Some(Class::Accuracy);
    cx.counters.directed += 1;
    Ok(())
}

/// A refinement for a collective that cannot be built in any type that the search could give it.
fn refined(
    cx: &Context,
    graph: &Graph,
    id: NodeId,
    kind: &Collective,
    group: &Group,
    x: Value,
) -> Option<(&'static str, Class, Op)> {
    let c = &cx.constraints;
    let dtype = graph.ty(x).dtype;
    if !kind.undefined_off_root() || group.size(graph.mesh()) == 1 {
        return None;
    }
    c.refusal(kind, dtype, group, graph.mesh())?;
    let by_boundary = c.boundary != Boundary::Off
        && kind.reduce_op().is_none()
        && narrow(dtype)
        && c.refusal(kind, DType::F32, group, graph.mesh()).is_none();
    if by_boundary {
        return None;
    }
    let facts = Facts::of(graph.ty(x).clone());
    let (head, attrs) = from_op(&graph.node(id).op)?;
    cx.rules.iter().filter(|p| p.rule.rule.direction == Direction::Refinement).find_map(|p| {
        let mut b = p.rule.bind_single(head, &attrs, std::slice::from_ref(&facts))?;
        let class = class_of(p, &mut b, cx, graph)?;
        let egg::ENodeOrVar::ENode(crate::language::Spmd::Op(to, children)) =
            p.rule.rhs.ast.as_ref().last()?
        else {
            return None;
        };
        let attrs = children
            .iter()
            .skip(1)
            .map(|&c| {
                crate::prover::instances::attr_of(&p.rule.rhs.ast.as_ref()[usize::from(c)], &b).cloned()
            })
            .collect::<Option<Vec<_>>>()?;
        let op = to_op(*to, &attrs)?;
        cx.exactness.admits(class).then_some((p.rule.rule.name, class, op))
    })
}

fn class_of(
    p: &ProvedRule,
    bindings: &mut crate::rules::Bindings,
    cx: &Context,
    graph: &Graph,
) -> Option<Class> {
    p.rule.complete(bindings, graph.mesh())?;
    if p.rule.refusing_guard(bindings, graph.mesh(), None).is_some() {
        return None;
    }
    let key = branch(&p.rule, bindings, graph.mesh())?;
    p.class(&key, cx.constraints.profile.fixed_reduction_order)
}

/// Collectives that may not stay, with the rules that would have helped had their class been allowed.
///
/// # Errors
/// If the graph has a cycle.
pub fn illegal(graph: &Graph, cx: &Context) -> Result<Vec<Illegal>, GraphError> {
    let replication = Replication::of(graph, &|name| cx.declared(name))?;
    let mut out = Vec::new();
    for id in graph.order()? {
        let node = graph.node(id);
        let (Op::Collective { kind, group }, Some(&x)) = (&node.op, node.operands.first()) else { continue };
        let ty = graph.ty(x);
        let Some(reason) = cx.constraints.refusal(kind, ty.dtype, group, graph.mesh()) else { continue };
        let facts = Facts {
            replicated: replication.axes(x.node),
            defined: replication.defined(x.node),
            ..Facts::of(ty.clone())
        };
        let mut would_help: Vec<(String, Class)> = Vec::new();
        if let Some((head, attrs)) = from_op(&node.op) {
            let helps = |p: &&ProvedRule| match p.rule.rule.policy {
                Policy::Always => p.rule.rule.direction == Direction::Refinement,
                Policy::WhereGroupTooSmall => cx.constraints.too_small(kind, group, graph.mesh()),
                Policy::WhereUnbuildable | Policy::AllGatherAsReduce => true,
            };
            let strictest = cx
                .rules
                .iter()
                .filter(helps)
                .filter_map(|p| {
                    let mut b = p.rule.bind_single(head, &attrs, std::slice::from_ref(&facts))?;
                    let class = class_of(p, &mut b, cx, graph)?;
                    // What was allowed has been tried, unless the orders rule it out.
                    let ordered_off = match p.rule.rule.policy {
                        Policy::AllGatherAsReduce => !cx.constraints.gathers_may_reduce(),
                        Policy::WhereGroupTooSmall => {
                            matches!(kind, Collective::AllGather { .. }) && !cx.constraints.gathers_are_free()
                        }
                        Policy::Always | Policy::WhereUnbuildable => false,
                    };
                    (ordered_off || !cx.exactness.admits(class)).then_some((class, p.rule.rule.name))
                })
                .min();
            would_help.extend(strictest.map(|(class, name)| (name.to_owned(), class)));
        }
        let wide =
            narrow(ty.dtype) && cx.constraints.refusal(kind, DType::F32, group, graph.mesh()).is_none();
        if kind.reduce_op().is_some() && wide {
            would_help.push((REDUCE_IN_F32.to_owned(), Class::Accuracy));
        }
        out.push(Illegal {
            node: node.name.clone(),
            sources: node.sources.clone(),
            what: format!("{} of {ty} over {} ranks", kind.name(), group.size(graph.mesh())),
            reason,
            would_help,
        });
    }
    Ok(out)
}
