//! Replication: over which mesh axes is a value equal on all ranks? Computed on the whole graph, before any window.
//!
//! A set of axes says: the value of a rank does not depend on its coordinates on these axes. Explicit rank lists are handled
//! conservatively: they give nothing unless the operand is equal on all ranks.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};
use shardweld_ir::{AxisId, Collective, Graph, GraphError, Group, Mesh, NodeId, Op, Weight};

/// Most mesh axes that are tracked; a mesh with more gets no replication facts.
const MAX_AXES: usize = 64;

/// A set of mesh axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisSet(pub u64);

impl AxisSet {
    /// No axis.
    pub const NONE: AxisSet = AxisSet(0);

    /// All axes of a mesh.
    pub fn all(mesh: &Mesh) -> AxisSet {
        match mesh.axes().len() {
            n if n > MAX_AXES => AxisSet::NONE,
            0 => AxisSet::NONE,
            n => AxisSet(u64::MAX >> (MAX_AXES - n)),
        }
    }

    /// The given axes.
    pub fn of(axes: &[AxisId]) -> AxisSet {
        AxisSet(axes.iter().filter(|a| (a.0 as usize) < MAX_AXES).fold(0, |s, a| s | 1 << a.0))
    }

    /// Axes along which members of one group differ: those of the group, or for rank lists those that any list spans.
    pub fn spanned(group: &Group, mesh: &Mesh) -> AxisSet {
        match group {
            Group::Axes(axes) => AxisSet::of(axes),
            Group::Ranks(lists) => AxisSet(
                (0..mesh.axes().len() as u32)
                    .filter(|&a| {
                        (a as usize) < MAX_AXES
                            && lists.iter().any(|l| {
                                let at: BTreeSet<u32> =
                                    l.iter().map(|&r| mesh.coordinate(r, AxisId(a))).collect();
                                at.len() > 1
                            })
                    })
                    .fold(0, |s, a| s | 1 << a),
            ),
        }
    }

    /// Both.
    pub fn union(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 | other.0)
    }

    /// Common ones.
    pub fn intersection(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & other.0)
    }

    /// Those not in `other`.
    pub fn without(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & !other.0)
    }

    /// Whether all of `other` is in here.
    pub fn contains(self, other: AxisSet) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether the axis is in here.
    pub fn has(self, axis: AxisId) -> bool {
        (axis.0 as usize) < MAX_AXES && self.0 >> axis.0 & 1 == 1
    }
}

/// Whether a value replicated over `rep` is equal on all members of each group.
pub fn covers(rep: AxisSet, group: &Group, mesh: &Mesh) -> bool {
    mesh.axes().len() <= MAX_AXES && rep.contains(AxisSet::spanned(group, mesh))
}

/// Replication of the results of `op`, given that of its operands. `inputs` is what inputs are declared to be.
pub fn transfer(op: &Op, operands: &[AxisSet], mesh: &Mesh, weights: &[Weight], input: AxisSet) -> AxisSet {
    let all = AxisSet::all(mesh);
    // Axes of one coordinate cannot tell ranks apart.
    let trivial = AxisSet(
        (0..mesh.axes().len().min(MAX_AXES) as u32)
            .filter(|&a| mesh.axis_size(AxisId(a)) == Some(1))
            .fold(0, |s, a| s | 1 << a),
    )
    .intersection(all);
    let common = operands.iter().fold(all, |s, &o| s.intersection(o));
    let gathered = |group: &Group| match group {
        Group::Axes(axes) => common.union(AxisSet::of(axes)),
        Group::Ranks(_) if common == all => all,
        Group::Ranks(_) => AxisSet::NONE,
    };
    let scattered = |group: &Group| match group {
        Group::Axes(axes) => common.without(AxisSet::of(axes)),
        Group::Ranks(_) => AxisSet::NONE,
    };
    let set = match op {
        Op::Input { .. } => input,
        Op::Weight(id) => {
            weights.get(id.0 as usize).map_or(AxisSet::NONE, |w| all.without(AxisSet::of(&w.over)))
        }
        Op::Collective { kind, group } => match kind {
            Collective::AllReduce { .. } | Collective::AllGather { .. } | Collective::Broadcast { .. } => {
                gathered(group)
            }
            Collective::ReduceScatter { .. }
            | Collective::AllToAll { .. }
            | Collective::Scatter { .. }
            | Collective::Reduce { .. }
            | Collective::Gather { .. } => scattered(group),
        },
        Op::OwnSlice { group, .. } | Op::OwnPad { group, .. } | Op::GroupRank { group } => scattered(group),
        Op::AxisSelect { axis } => common.without(AxisSet::of(&[*axis])),
        _ => common,
    };
    set.intersection(all).union(trivial)
}

/// Replication of every node of a graph, and which results are undefined on some rank.
#[derive(Clone, Debug)]
pub struct Replication {
    of: FxHashMap<NodeId, AxisSet>,
    undefined: FxHashSet<NodeId>,
}

impl Replication {
    /// Computes replication. `declared` says which inputs are equal on which ranks; all others may differ on every rank.
    ///
    /// # Errors
    /// If the graph has a cycle.
    pub fn of(graph: &Graph, declared: &dyn Fn(&str) -> AxisSet) -> Result<Replication, GraphError> {
        let mut of: FxHashMap<NodeId, AxisSet> = FxHashMap::default();
        let mut undefined: FxHashSet<NodeId> = FxHashSet::default();
        of.reserve(graph.len());
        let mut operands = Vec::new();
        for id in graph.order()? {
            let node = graph.node(id);
            operands.clear();
            operands.extend(node.operands.iter().map(|v| of.get(&v.node).copied().unwrap_or_default()));
            let input = match &node.op {
                Op::Input { name } => declared(name),
                _ => AxisSet::NONE,
            };
            of.insert(id, transfer(&node.op, &operands, graph.mesh(), graph.weights(), input));
            let all = node.operands.iter().all(|v| !undefined.contains(&v.node));
            if !crate::facts::defined(&node.op, all, graph.mesh()) {
                undefined.insert(id);
            }
        }
        Ok(Replication { of, undefined })
    }

    /// Whether the results of a node are defined on every rank.
    pub fn defined(&self, node: NodeId) -> bool {
        !self.undefined.contains(&node)
    }

    /// Axes over which the results of a node are equal.
    pub fn axes(&self, node: NodeId) -> AxisSet {
        self.of.get(&node).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardweld_ir::{ReduceOp, TensorType, Unary};

    fn graph() -> (Graph, NodeId) {
        let mut g = Graph::new("t", Mesh::new([("a", 2), ("b", 2)]).unwrap());
        let x = g.add_input("x", TensorType::new(shardweld_ir::DType::F32, &[4])).unwrap();
        (g, x)
    }

    fn reduce(group: Group) -> Op {
        Op::Collective { kind: Collective::AllReduce { op: ReduceOp::Sum, accum: None }, group }
    }

    #[test]
    fn all_reduce_replicates_over_its_axes_only() {
        let (mut g, x) = graph();
        let y = g.add("y", reduce(Group::axis(AxisId(0))), &[x.into()]).unwrap();
        let z = g.add("z", Op::Unary(Unary::Exp), &[y.into()]).unwrap();
        let s = g.add("s", Op::OwnSlice { dim: 0, group: Group::axis(AxisId(0)) }, &[z.into()]).unwrap();
        let r = Replication::of(&g, &|_| AxisSet::NONE).unwrap();
        assert_eq!(r.axes(x), AxisSet::NONE);
        assert_eq!(r.axes(z), AxisSet(1));
        assert!(!covers(r.axes(z), &g.mesh().world_group(), g.mesh()));
        assert_eq!(r.axes(s), AxisSet::NONE);
    }

    #[test]
    fn explicit_lists_give_nothing_for_varying_values() {
        let (mut g, x) = graph();
        let diagonal = Group::Ranks(vec![vec![0, 3], vec![1, 2]]);
        let y = g.add("y", reduce(diagonal.clone()), &[x.into()]).unwrap();
        let varying = Replication::of(&g, &|_| AxisSet(1)).unwrap();
        assert_eq!(varying.axes(y), AxisSet::NONE);
        let equal = Replication::of(&g, &|_| AxisSet(3)).unwrap();
        assert_eq!(equal.axes(y), AxisSet(3));
        assert!(covers(equal.axes(y), &diagonal, g.mesh()));
        assert!(!covers(AxisSet(1), &diagonal, g.mesh()));
    }
}
