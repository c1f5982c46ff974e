//! What an operation costs: first how many things the target cannot build, then predicted time.

use std::ops::Add;

use shardweld_ir::{Collective, Mesh, Op, TensorType};

use crate::constraints::Constraints;
use crate::topology::Topology;

/// Cost of a set of nodes, compared field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Nodes that the target cannot build, or that the user forbids.
    pub unbuildable: u64,
    /// Predicted time in picoseconds.
    pub time_ps: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Nodes that the source does not have: what costs the same stays as it was.
    pub new: u64,
}

impl Add for Cost {
    type Output = Cost;
    fn add(self, o: Cost) -> Cost {
        Cost {
            unbuildable: self.unbuildable.saturating_add(o.unbuildable),
            time_ps: self.time_ps.saturating_add(o.time_ps),
            nodes: self.nodes.saturating_add(o.nodes),
            new: self.new.saturating_add(o.new),
        }
    }
}

/// Bytes that a rank sends, on average over the group, with ring algorithms (direct exchange for all-to-all).
pub fn wire_bytes(kind: &Collective, operand: &TensorType, result: &TensorType, ranks: u64) -> u64 {
    let n = ranks.max(1);
    let share = |ty: &TensorType| {
        let bytes = u128::from(ty.bytes().unwrap_or(u64::MAX));
        u64::try_from(bytes * u128::from(n - 1) / u128::from(n)).unwrap_or(u64::MAX)
    };
    match kind {
        Collective::AllReduce { .. } => share(operand).saturating_mul(2),
        Collective::AllGather { .. } | Collective::Gather { .. } => share(result),
        Collective::ReduceScatter { .. }
        | Collective::AllToAll { .. }
        | Collective::Broadcast { .. }
        | Collective::Reduce { .. }
        | Collective::Scatter { .. } => share(operand),
    }
}

/// Message steps, the fewer of ring and tree.
fn steps(kind: &Collective, ranks: u64) -> u64 {
    let n = ranks.max(1);
    let log = u64::from(n.next_power_of_two().trailing_zeros());
    match kind {
        Collective::AllReduce { .. } => (2 * (n - 1)).min(2 * log),
        Collective::AllGather { .. } | Collective::ReduceScatter { .. } | Collective::AllToAll { .. } => {
            n - 1
        }
        _ => log,
    }
}

/// Predicted time of a collective, in picoseconds, without layout changes.
pub fn collective_time(
    kind: &Collective,
    operand: &TensorType,
    result: &TensorType,
    ranks: u64,
    topology: &Topology,
) -> u64 {
    let wire = wire_bytes(kind, operand, result, ranks).saturating_mul(topology.wire_ps_per_byte);
    let start = topology.launch_ns.saturating_add(steps(kind, ranks).saturating_mul(topology.step_ns));
    start.saturating_mul(1000).saturating_add(wire)
}

/// Cost of one operation that the source does not have.
pub fn node_cost(
    op: &Op,
    operand: Option<&TensorType>,
    result: &TensorType,
    mesh: &Mesh,
    constraints: &Constraints,
) -> Cost {
    let topology = &constraints.topology;
    let bytes = |ty: &TensorType| ty.bytes().unwrap_or(u64::MAX);
    let copy = |moved: u64| {
        let kib = moved.div_ceil(1024);
        topology.kernel_ns.saturating_mul(1000).saturating_add(kib.saturating_mul(topology.memory_ps_per_kib))
    };
    let through = |x: &TensorType| copy(bytes(x).saturating_add(bytes(result)));
    let base = Cost { unbuildable: 0, time_ps: 0, nodes: 1, new: 1 };
    let time_ps = match (op, operand) {
        (Op::Collective { kind, group }, Some(x)) => {
            let n = u64::from(group.size(mesh));
            let (before, after) = moved_dims(kind, x, result);
            let moved = [(before, x), (after, result)].into_iter().fold(0u64, |t, (m, ty)| match m {
                Moved::Transposed => t.saturating_add(copy(2 * bytes(ty))),
                Moved::Not | Moved::Reshaped => t,
            });
            let layout = [before, after].iter().filter(|m| **m != Moved::Not).count() as u64;
            let time = collective_time(kind, x, result, n, topology).saturating_add(moved);
            let unbuildable = u64::from(constraints.refusal(kind, x.dtype, group, mesh).is_some());
            return Cost { unbuildable, time_ps: time, nodes: 1 + layout, ..base };
        }
        (Op::Transpose { perm }, Some(x)) if moves_data(perm, x) => through(x),
        (Op::Transpose { .. } | Op::Reshape { .. }, _) => 0,
        (Op::Cast { .. } | Op::OwnPad { .. }, Some(x)) => through(x),
        // A slice is read in place where it is used, or copied.
        (Op::OwnSlice { .. } | Op::Slice { .. }, _) => copy(2 * bytes(result)),
        (_, Some(x)) => through(x),
        (_, None) => copy(bytes(result)),
    };
    Cost { time_ps, ..base }
}

/// What happens to a buffer so that the collective's dimension comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Not,
    /// Only dimensions of size 1 stand before it.
    Reshaped,
    Transposed,
}

/// What a target that knows dimension 0 only does before and after a collective.
fn moved_dims(kind: &Collective, operand: &TensorType, result: &TensorType) -> (Moved, Moved) {
    let moved = |ty: &TensorType, dim: u32| match ty.shape.0.get(..dim as usize) {
        Some([]) | None => Moved::Not,
        Some(before) if before.iter().all(|d| d.as_static() == Some(1)) => Moved::Reshaped,
        Some(_) => Moved::Transposed,
    };
    let both = |dim: u32| (moved(operand, dim), moved(result, dim));
    match *kind {
        // The blocks of the operand lie in order already: only the result's dimensions have to be put in order.
        Collective::AllGather { dim } | Collective::Gather { dim, .. } => match both(dim) {
            (Moved::Transposed, after) => (Moved::Not, after),
            reshaped => reshaped,
        },
        Collective::ReduceScatter { dim, .. } | Collective::Scatter { dim, .. } => match both(dim) {
            (before, Moved::Transposed) => (before, Moved::Not),
            reshaped => reshaped,
        },
        Collective::AllToAll { split_dim, concat_dim } => {
            (moved(operand, split_dim), moved(result, concat_dim))
        }
        Collective::AllReduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. } => {
            (Moved::Not, Moved::Not)
        }
    }
}

fn moves_data(perm: &[u32], x: &TensorType) -> bool {
    let size = |p: u32| x.shape.0.get(p as usize).and_then(|d| d.as_static());
    let large: Vec<u32> = perm.iter().copied().filter(|&p| size(p) != Some(1)).collect();
    !large.is_sorted()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardweld_ir::{DType, ReduceOp};

    #[test]
    fn wire_bytes_follow_their_definitions() {
        let (small, large) = (TensorType::new(DType::F32, &[2, 8]), TensorType::new(DType::F32, &[8, 8]));
        let sum = |kind| wire_bytes(&kind, &large, &large, 4);
        assert_eq!(wire_bytes(&Collective::AllGather { dim: 0 }, &small, &large, 4), 192);
        assert_eq!(sum(Collective::AllReduce { op: ReduceOp::Sum, accum: None }), 384);
        assert_eq!(sum(Collective::AllToAll { split_dim: 0, concat_dim: 0 }), 192);
        assert_eq!(wire_bytes(&Collective::AllGather { dim: 0 }, &large, &large, 1), 0);
    }

    #[test]
    fn transposes_of_ones_are_free() {
        let x = TensorType::new(DType::F32, &[1, 4, 2]);
        assert!(!moves_data(&[1, 0, 2], &x));
        assert!(moves_data(&[0, 2, 1], &x));
    }
}
