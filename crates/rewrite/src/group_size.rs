//! The search for targets that compute shapes with one group size: the largest group decides which all-gathers and
//! reduce-scatters can be built, and rewriting may change it, so every size within reach is tried and the cheapest result kept.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;
use shardweld_ir::{AxisId, Collective, DType, Graph, Group, NodeId, Op};

use crate::constraints::Constraints;
use crate::context::Context;
use crate::cost::{Cost, node_cost};
use crate::error::RewriteError;
use crate::replace::rewrite_windows;

/// Most sizes tried. A mesh of two axes has two: the larger axis and the product.
const MAX_SIZES: usize = 4;

/// Most products of mesh axes looked at.
const MAX_PRODUCTS: usize = 64;

/// Ranks of the largest group that sets the size for shapes, among the collectives chosen; `None` if there are none.
pub fn largest(graph: &Graph, constraints: &Constraints, counts: impl Fn(NodeId) -> bool) -> Option<u32> {
    let sets = |(kind, dtype, group): (&Collective, DType, &Group)| {
        constraints.sets_group_size(kind, dtype).then(|| group.size(graph.mesh()))
    };
    collectives(graph, &counts).filter_map(sets).max()
}

fn collectives<'a>(
    graph: &'a Graph,
    counts: &impl Fn(NodeId) -> bool,
) -> impl Iterator<Item = (&'a Collective, DType, &'a Group)> {
    graph.nodes().filter(|(id, _)| counts(*id)).filter_map(|(_, n)| match (&n.op, n.operands.first()) {
        (Op::Collective { kind, group }, Some(x)) => Some((kind, graph.try_ty(*x)?.dtype, group)),
        _ => None,
    })
}

/// Rewrites all windows of a graph, with the group size that makes the result buildable and cheapest.
///
/// # Errors
/// As [`rewrite_windows`].
pub fn rewrite_for_group_size(graph: &Graph, cx: &mut Context) -> Result<Graph, RewriteError> {
    if !cx.constraints.profile.one_group_size_for_shapes {
        return rewrite_windows(graph, cx);
    }
    let mut sizes = within_reach(graph, &cx.constraints);
    let mut best: Option<(Cost, Graph, Context)> = None;
    let mut tried = 0;
    while let Some(&size) = sizes.get(tried).filter(|_| tried < MAX_SIZES) {
        tried += 1;
        let mut trial = cx.clone();
        trial.constraints.group_size = Some(size);
        let result = rewrite_windows(graph, &mut trial)?;
        let live = live(&result);
        trial.constraints.group_size = largest(&result, &trial.constraints, |id| live.contains(&id));
        // The largest collectives may all be gone.
        sizes.extend(trial.constraints.group_size.filter(|s| !sizes.contains(s)));
        let cost = total_cost(&result, &live, &trial.constraints);
        tracing::debug!(size, ?cost, "rewritten for a group size");
        if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
            best = Some((cost, result, trial));
        }
    }
    match best {
        Some((_, result, trial)) => {
            *cx = trial;
            Ok(result)
        }
        None => rewrite_windows(graph, cx),
    }
}

/// The size that the program has now (1 if no group sets it), then the larger ones that its groups and products of them have.
fn within_reach(graph: &Graph, constraints: &Constraints) -> Vec<u32> {
    let live = live(graph);
    let alive = |id: NodeId| live.contains(&id);
    let groups: BTreeSet<&Group> = collectives(graph, &alive).map(|(_, _, g)| g).collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let now = largest(graph, constraints, alive).unwrap_or(1);
    let single: BTreeSet<BTreeSet<AxisId>> = groups
        .iter()
        .filter_map(|g| match g {
            Group::Axes(axes) => Some(axes.iter().copied().collect()),
            Group::Ranks(_) => None,
        })
        .collect();
    let mut products = single.clone();
    for g in &single {
        if products.len() > MAX_PRODUCTS {
            break;
        }
        let with = |p: &BTreeSet<AxisId>| p.is_disjoint(g).then(|| p.union(g).copied().collect());
        let more: Vec<_> = products.iter().filter_map(with).collect();
        products.extend(more);
    }
    let size = |p: BTreeSet<AxisId>| Group::Axes(p.into_iter().collect()).size(graph.mesh());
    let sizes = groups.into_iter().map(|g| g.size(graph.mesh())).chain(products.into_iter().map(size));
    let larger: BTreeSet<u32> = sizes.filter(|s| *s > now).collect();
    std::iter::once(now).chain(larger).collect()
}

/// Nodes that an output depends on.
fn live(graph: &Graph) -> FxHashSet<NodeId> {
    let mut seen = FxHashSet::default();
    let mut stack: Vec<NodeId> = graph.outputs().iter().map(|o| o.value.node).collect();
    while let Some(id) = stack.pop() {
        if seen.insert(id) {
            stack.extend(graph.node(id).operands.iter().map(|v| v.node));
        }
    }
    seen
}

fn total_cost(graph: &Graph, live: &FxHashSet<NodeId>, constraints: &Constraints) -> Cost {
    graph.nodes().filter(|(id, _)| live.contains(id)).fold(Cost::default(), |sum, (_, node)| {
        let operand = node.operands.first().and_then(|v| graph.try_ty(*v));
        match node.results.as_slice() {
            // What has no fixed size costs the same in every trial.
            [ty] if ty.bytes().is_some() && operand.is_none_or(|x| x.bytes().is_some()) => {
                sum + node_cost(&node.op, operand, ty, graph.mesh(), constraints)
            }
            _ => sum,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::profile::TargetProfile;

    fn constraints() -> Constraints {
        Constraints::new(TargetProfile::named("tensorrt-rtx-1.7.1").unwrap(), &Options::default())
    }

    #[test]
    fn sizes_within_reach_are_the_largest_group_and_products_of_groups_in_use() {
        let program = |groups: &[&str]| {
            let mut text =
                "swir 1\ngraph \"t\"\nmesh [a=2, b=3, c=5]\n%v0 = input() name=\"x\" : f32[30]\n".to_owned();
            for (i, g) in groups.iter().enumerate() {
                text += &format!("%v{} = all_reduce(%v{i}) op=sum group=[{g}] : f32[30]\n", i + 1);
            }
            Graph::from_text("t", &(text + &format!("return \"y\" = %v{}\n", groups.len()))).unwrap()
        };
        assert_eq!(within_reach(&program(&[]), &constraints()), Vec::<u32>::new());
        assert_eq!(within_reach(&program(&["a", "a"]), &constraints()), [2]);
        assert_eq!(within_reach(&program(&["a", "b"]), &constraints()), [3, 6]);
        assert_eq!(within_reach(&program(&["a", "b", "c"]), &constraints()), [5, 6, 10, 15, 30]);
        assert_eq!(within_reach(&program(&["a, b", "b"]), &constraints()), [6]);
    }

    #[test]
    fn what_no_output_needs_does_not_set_the_size() {
        let text = "swir 1\ngraph \"t\"\nmesh [a=2, b=3]\n%x = input() name=\"x\" : f32[6]\n\
                    %d = all_reduce(%x) op=sum group=[b] : f32[6]\n\
                    %y = all_reduce(%x) op=sum group=[a] : f32[6]\nreturn \"y\" = %y\n";
        let graph = Graph::from_text("t", text).unwrap();
        assert_eq!(within_reach(&graph, &constraints()), [2]);
        assert_eq!(largest(&graph, &constraints(), |_| true), Some(3));
    }

    #[test]
    fn what_runs_as_a_layer_of_its_own_does_not_set_the_size() {
        let text = "swir 1\ngraph \"t\"\nmesh [a=2, b=3]\n%x = input() name=\"x\" : f32[6]\n\
                    %y = broadcast_from(%x) root=0 group=[b] : f32[6]\nreturn \"y\" = %y\n";
        let graph = Graph::from_text("t", text).unwrap();
        assert_eq!(largest(&graph, &constraints(), |_| true), None);
        assert_eq!(within_reach(&graph, &constraints()), [1, 3]);
        let graph = Graph::from_text("t", &text.replace("f32", "bf16")).unwrap();
        assert_eq!(largest(&graph, &constraints(), |_| true), Some(3), "it may become an all-gather");
    }
}
