//! The collective layer of one group: operands in group order in, results in group order out, always along dimension 0.

use shardweld_interp::{KernelError, Tensor, collective};
use shardweld_ir::Collective;

use crate::trace::{CollectiveKind, DistCollective};

/// The root's position in the group.
pub(super) fn root_position(c: &DistCollective) -> Option<usize> {
    c.ranks().iter().position(|&r| i64::from(r) == c.root_or_minus_one())
}

/// Whether only the root's operand is read.
pub(super) fn reads_root_only(kind: CollectiveKind) -> bool {
    matches!(kind, CollectiveKind::Broadcast | CollectiveKind::Scatter)
}

/// What each rank of the group gets; `None` where the result is undefined.
pub(super) fn run(c: &DistCollective, operands: &[Tensor]) -> Result<Vec<Option<Tensor>>, KernelError> {
    let malformed = |what: &str| KernelError::Shape { op: c.kind().name(), reason: format!("has no {what}") };
    let op = || c.reduce().ok_or_else(|| malformed("reduce operation"));
    let root = || root_position(c).map(|p| p as u32).ok_or_else(|| malformed("root"));
    let (dim, accum) = (0, None);
    let kind = match c.kind() {
        CollectiveKind::AllReduce => Collective::AllReduce { op: op()?, accum },
        CollectiveKind::AllGather => Collective::AllGather { dim },
        CollectiveKind::Broadcast => Collective::Broadcast { root: root()? },
        CollectiveKind::Reduce => Collective::Reduce { op: op()?, root: root()?, accum },
        CollectiveKind::ReduceScatter => Collective::ReduceScatter { op: op()?, dim, accum },
        CollectiveKind::AllToAll => Collective::AllToAll { split_dim: dim, concat_dim: dim },
        CollectiveKind::Gather => Collective::Gather { dim, root: root()? },
        CollectiveKind::Scatter => Collective::Scatter { dim, root: root()? },
    };
    collective::run(kind, operands)
}
