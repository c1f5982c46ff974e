//! Between IR operations and operators with attribute leaves.

use shardweld_ir::{Collective, Group, Op, Shape};

use super::{Attr, Head};

/// The operator and its attributes (in signature order, tensors left out) of an IR operation, if the language has it.
pub fn from_op(op: &Op) -> Option<(Head, Vec<Attr>)> {
    let int = |d: u32| Attr::Int(u64::from(d));
    let dims = |s: &Shape| s.as_static().map(Attr::Dims);
    Some(match op {
        Op::Collective { kind, group } => from_collective(kind, group),
        Op::OwnSlice { dim, group } => (Head::OwnSlice, vec![int(*dim), Attr::Group(group.clone())]),
        Op::OwnPad { dim, group, value } => {
            (Head::OwnPad, vec![int(*dim), Attr::Group(group.clone()), Attr::Scalar(*value)])
        }
        Op::Cast { to } => (Head::Cast, vec![Attr::DType(*to)]),
        Op::Reshape { shape } => (Head::Reshape, vec![dims(shape)?]),
        Op::Broadcast { shape } => (Head::Broadcast, vec![dims(shape)?]),
        Op::Transpose { perm } => {
            (Head::Transpose, vec![Attr::Dims(perm.iter().map(|&p| u64::from(p)).collect())])
        }
        Op::Slice { dim, start, limit, stride } => {
            (Head::Slice, vec![int(*dim), Attr::Int(*start), Attr::Int(*limit), Attr::Int(*stride)])
        }
        Op::Binary(shardweld_ir::Binary::Add) => (Head::Add, vec![]),
        Op::Binary(shardweld_ir::Binary::Mul) => (Head::Mul, vec![]),
        _ => return None,
    })
}

fn from_collective(kind: &Collective, group: &Group) -> (Head, Vec<Attr>) {
    let int = |d: u32| Attr::Int(u64::from(d));
    let group = Attr::Group(group.clone());
    match *kind {
        Collective::AllReduce { op, accum } => {
            (Head::AllReduce, vec![Attr::Reduce(op), Attr::Accum(accum), group])
        }
        Collective::AllGather { dim } => (Head::AllGather, vec![int(dim), group]),
        Collective::ReduceScatter { op, dim, accum } => {
            (Head::ReduceScatter, vec![Attr::Reduce(op), int(dim), Attr::Accum(accum), group])
        }
        Collective::AllToAll { split_dim, concat_dim } => {
            (Head::AllToAll, vec![int(split_dim), int(concat_dim), group])
        }
        Collective::Broadcast { root } => (Head::BroadcastFrom, vec![int(root), group]),
        Collective::Reduce { op, root, accum } => {
            (Head::ReduceTo, vec![Attr::Reduce(op), int(root), Attr::Accum(accum), group])
        }
        Collective::Gather { dim, root } => (Head::GatherTo, vec![int(dim), int(root), group]),
        Collective::Scatter { dim, root } => (Head::ScatterFrom, vec![int(dim), int(root), group]),
    }
}

/// The IR operation of an operator with the given attributes; `None` if an attribute is of the wrong kind or size.
pub fn to_op(head: Head, attrs: &[Attr]) -> Option<Op> {
    let int = |i: usize| match attrs.get(i)? {
        Attr::Int(n) => u32::try_from(*n).ok(),
        _ => None,
    };
    let size = |i: usize| match attrs.get(i)? {
        Attr::Int(n) => Some(*n),
        _ => None,
    };
    let group = |i: usize| match attrs.get(i)? {
        Attr::Group(g) => Some(g.clone()),
        _ => None,
    };
    let reduce = |i: usize| match attrs.get(i)? {
        Attr::Reduce(r) => Some(*r),
        _ => None,
    };
    let accum = |i: usize| match attrs.get(i)? {
        Attr::Accum(a) => Some(*a),
        _ => None,
    };
    let dims = |i: usize| match attrs.get(i)? {
        Attr::Dims(d) => Some(d.as_slice()),
        _ => None,
    };
    let collective = |kind: Collective, g: Group| Op::Collective { kind, group: g };
    Some(match head {
        Head::AllReduce => collective(Collective::AllReduce { op: reduce(0)?, accum: accum(1)? }, group(2)?),
        Head::AllGather => collective(Collective::AllGather { dim: int(0)? }, group(1)?),
        Head::ReduceScatter => collective(
            Collective::ReduceScatter { op: reduce(0)?, dim: int(1)?, accum: accum(2)? },
            group(3)?,
        ),
        Head::AllToAll => {
            collective(Collective::AllToAll { split_dim: int(0)?, concat_dim: int(1)? }, group(2)?)
        }
        Head::BroadcastFrom => collective(Collective::Broadcast { root: int(0)? }, group(1)?),
        Head::ReduceTo => {
            collective(Collective::Reduce { op: reduce(0)?, root: int(1)?, accum: accum(2)? }, group(3)?)
        }
        Head::GatherTo => collective(Collective::Gather { dim: int(0)?, root: int(1)? }, group(2)?),
        Head::ScatterFrom => collective(Collective::Scatter { dim: int(0)?, root: int(1)? }, group(2)?),
        Head::OwnSlice => Op::OwnSlice { dim: int(0)?, group: group(1)? },
        Head::OwnPad => Op::OwnPad {
            dim: int(0)?,
            group: group(1)?,
            value: match attrs.get(2)? {
                Attr::Scalar(s) => *s,
                _ => return None,
            },
        },
        Head::Cast => match attrs.first()? {
            Attr::DType(to) => Op::Cast { to: *to },
            _ => return None,
        },
        Head::Reshape => Op::Reshape { shape: Shape::of(dims(0)?) },
        Head::Broadcast => Op::Broadcast { shape: Shape::of(dims(0)?) },
        Head::Transpose => {
            Op::Transpose { perm: dims(0)?.iter().map(|&p| u32::try_from(p).ok()).collect::<Option<_>>()? }
        }
        Head::Slice => Op::Slice { dim: int(0)?, start: size(1)?, limit: size(2)?, stride: size(3)? },
        Head::Add => Op::Binary(shardweld_ir::Binary::Add),
        Head::Mul => Op::Binary(shardweld_ir::Binary::Mul),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardweld_ir::{AxisId, DType, ReduceOp, Scalar};

    #[test]
    fn ops_survive_the_round_trip() {
        let group = Group::axis(AxisId(1));
        let c = |kind| Op::Collective { kind, group: group.clone() };
        let accum = Some(DType::F32);
        for op in [
            c(Collective::AllReduce { op: ReduceOp::Avg, accum }),
            c(Collective::AllGather { dim: 2 }),
            c(Collective::ReduceScatter { op: ReduceOp::Max, dim: 1, accum: None }),
            c(Collective::AllToAll { split_dim: 1, concat_dim: 0 }),
            c(Collective::Broadcast { root: 1 }),
            c(Collective::Reduce { op: ReduceOp::Sum, root: 1, accum }),
            c(Collective::Gather { dim: 1, root: 0 }),
            c(Collective::Scatter { dim: 1, root: 0 }),
            Op::OwnSlice { dim: 1, group: group.clone() },
            Op::OwnPad { dim: 1, group: group.clone(), value: Scalar::Float(-0.0) },
            Op::Cast { to: DType::BF16 },
            Op::Reshape { shape: Shape::of(&[2, 3]) },
            Op::Broadcast { shape: Shape::of(&[2, 3]) },
            Op::Transpose { perm: vec![1, 0] },
            Op::Slice { dim: 0, start: 1, limit: 4, stride: 2 },
        ] {
            let (head, attrs) = from_op(&op).unwrap();
            assert_eq!(to_op(head, &attrs).as_ref(), Some(&op));
        }
    }

    #[test]
    fn attributes_of_the_wrong_kind_are_refused() {
        assert_eq!(to_op(Head::Cast, &[Attr::Int(1)]), None);
        assert_eq!(to_op(Head::AllGather, &[Attr::Int(u64::MAX), Attr::Group(Group::Axes(vec![]))]), None);
    }
}
