//! The builder's contract for collective layers, on the plain numbers that a call hands over.

use shardweld_ir::{DType, ReduceOp};

use super::{Rule, types};
use crate::trace::CollectiveKind;

/// The arguments of `addDistCollective` and `setNbRanks`.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveTerms<'a> {
    /// Collective operation.
    pub kind: CollectiveKind,
    /// Reduce operation; `None` is TensorRT's `NONE`.
    pub reduce: Option<ReduceOp>,
    /// Root rank, or -1.
    pub root: i64,
    /// Ranks of the group, in order.
    pub ranks: &'a [u32],
    /// Size of the communicator.
    pub world_size: u32,
}

/// Shape of the result on an operand of the given type and shape.
///
/// # Errors
/// The rule that is broken.
pub fn collective(c: &CollectiveTerms<'_>, d: DType, dims: &[u64]) -> Rule<Vec<u64>> {
    use CollectiveKind as K;
    let name = c.kind.name();
    let reduces = matches!(c.kind, K::AllReduce | K::Reduce | K::ReduceScatter);
    if reduces != c.reduce.is_some() {
        let needs = if reduces { "must not be NONE" } else { "must be NONE" };
        return Err(format!("the reduce operation of {name} {needs}"));
    }
    let rooted = matches!(c.kind, K::Broadcast | K::Reduce | K::Gather | K::Scatter);
    if rooted != (c.root >= 0) || c.root < -1 {
        let needs = if rooted { "must be a rank" } else { "must be -1" };
        return Err(format!("the root of {name} {needs}, is {}", c.root));
    }
    if c.ranks.is_empty() {
        return Err("the group has no ranks".into());
    }
    for (i, r) in c.ranks.iter().enumerate() {
        if c.ranks[..i].contains(r) {
            return Err(format!("rank {r} is twice in the group {:?}", c.ranks));
        }
        if *r >= c.world_size {
            return Err(format!("rank {r} is outside of the communicator of {} ranks", c.world_size));
        }
    }
    if rooted && !c.ranks.iter().any(|&r| i64::from(r) == c.root) {
        return Err(format!("the root {} is not in the group {:?}", c.root, c.ranks));
    }
    types::moved(d)?;
    match c.reduce {
        Some(ReduceOp::Sum | ReduceOp::Prod) if d == DType::Bool => {
            return Err("sums and products of bool add bytes; only MIN and MAX keep truth values".into());
        }
        Some(ReduceOp::Avg) if !types::is_float(d) => {
            return Err(format!("AVG of {d}: how it rounds is not specified"));
        }
        _ => {}
    }
    let Some((&first, rest)) = dims.split_first() else {
        return Err(format!("{name} needs an operand with at least one dimension"));
    };
    let n = c.ranks.len() as u64;
    let divisible = matches!(c.kind, K::ReduceScatter | K::Scatter | K::AllToAll);
    if divisible && first % n != 0 {
        return Err(format!("{n} ranks do not divide dimension 0 of {dims:?}"));
    }
    let first = match c.kind {
        K::AllGather | K::Gather => first.saturating_mul(n),
        K::ReduceScatter | K::Scatter => first / n,
        K::AllReduce | K::Broadcast | K::Reduce | K::AllToAll => first,
    };
    Ok([&[first], rest].concat())
}
