//! The collective call: operation, reduction, root and ordered ranks in one validated value.

use serde::{Deserialize, Serialize};
use shardweld_ir::{DType, Mesh, ReduceOp};
use thiserror::Error;

/// Which collective, in TensorRT's sense: always over dimension 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// Every rank gets the combination.
    AllReduce,
    /// Dimension 0 grows by the number of ranks.
    AllGather,
    /// Every rank gets the root's tensor.
    Broadcast,
    /// The root gets the combination.
    Reduce,
    /// Dimension 0 shrinks by the number of ranks.
    ReduceScatter,
    /// Blocks of dimension 0 change places.
    AllToAll,
    /// Dimension 0 grows by the number of ranks, on the root.
    Gather,
    /// Dimension 0 shrinks by the number of ranks; data come from the root.
    Scatter,
}

impl CollectiveKind {
    /// Every kind.
    pub const ALL: [CollectiveKind; 8] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
        CollectiveKind::Gather,
        CollectiveKind::Scatter,
    ];

    /// Name in messages and reports.
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Gather => "gather",
            CollectiveKind::Scatter => "scatter",
        }
    }

    /// Whether operands are combined, so that a reduce operation is needed.
    pub const fn reduces(self) -> bool {
        matches!(self, CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter)
    }

    /// Whether one rank is special.
    pub const fn is_rooted(self) -> bool {
        matches!(
            self,
            CollectiveKind::Broadcast
                | CollectiveKind::Reduce
                | CollectiveKind::Gather
                | CollectiveKind::Scatter
        )
    }
}

/// Everything a collective layer needs. Only [`DistCollective::new`] makes one, so a wrong or late rank count cannot be
/// written down.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct DistCollective {
    kind: CollectiveKind,
    reduce: Option<ReduceOp>,
    root: Option<u32>,
    ranks: Vec<u32>,
    world_size: u32,
}

/// The serialised form, before its checks.
#[derive(Deserialize)]
struct Unchecked {
    kind: CollectiveKind,
    reduce: Option<ReduceOp>,
    root: Option<u32>,
    ranks: Vec<u32>,
    world_size: u32,
}

impl TryFrom<Unchecked> for DistCollective {
    type Error = CollectiveError;

    fn try_from(u: Unchecked) -> Result<Self, CollectiveError> {
        DistCollective::new(u.kind, u.reduce, u.root, u.ranks, u.world_size)
    }
}

/// A collective that TensorRT would reject, or worse, build.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CollectiveError {
    /// Reduce operation where there must be none, or none where there must be one.
    #[error("{kind} {needs} a reduce operation, found {found}")]
    Reduce {
        /// Kind.
        kind: &'static str,
        /// `needs` or `must not have`.
        needs: &'static str,
        /// What was given.
        found: &'static str,
    },
    /// Root where there must be none, or none where there must be one.
    #[error("{kind} {needs} a root, found {found}")]
    Root {
        /// Kind.
        kind: &'static str,
        /// `needs` or `must not have`.
        needs: &'static str,
        /// What was given.
        found: String,
    },
    /// Root is no member.
    #[error("root rank {root} is not among the ranks {ranks:?}")]
    RootOutside {
        /// Global rank.
        root: u32,
        /// Members.
        ranks: Vec<u32>,
    },
    /// A group of nobody.
    #[error("the group has no ranks")]
    Empty,
    /// A rank twice.
    #[error("rank {rank} stands twice in {ranks:?}")]
    Repeated {
        /// Global rank.
        rank: u32,
        /// Members.
        ranks: Vec<u32>,
    },
    /// A rank outside the communicator.
    #[error("rank {rank} is outside the communicator of {world_size} ranks")]
    OutsideWorld {
        /// Global rank.
        rank: u32,
        /// Size of the communicator.
        world_size: u32,
    },
    /// A scalar has no dimension 0.
    #[error("{kind} of a scalar; collectives need at least one dimension")]
    Scalar {
        /// Kind.
        kind: &'static str,
    },
    /// Dimension 0 does not split.
    #[error("{kind} over {ranks} ranks needs a dimension 0 that {ranks} divides, found {size}")]
    Indivisible {
        /// Kind.
        kind: &'static str,
        /// Number of ranks.
        ranks: usize,
        /// Dimension 0.
        size: u64,
    },
    /// A type that the layer does not take.
    #[error("{kind} of {dtype}")]
    DType {
        /// Kind.
        kind: &'static str,
        /// Element type.
        dtype: DType,
    },
}

impl DistCollective {
    /// A collective among `ranks` (global, in group order) of a communicator of `world_size` ranks. `root` is a global
    /// rank.
    ///
    /// # Errors
    /// If the builder's contract is broken in any way that does not depend on the operand.
    pub fn new(
        kind: CollectiveKind,
        reduce: Option<ReduceOp>,
        root: Option<u32>,
        ranks: Vec<u32>,
        world_size: u32,
    ) -> Result<DistCollective, CollectiveError> {
        let name = kind.name();
        if kind.reduces() != reduce.is_some() {
            return Err(CollectiveError::Reduce {
                kind: name,
                needs: if kind.reduces() { "needs" } else { "must not have" },
                found: reduce.map_or("none", ReduceOp::name),
            });
        }
        if kind.is_rooted() != root.is_some() {
            return Err(CollectiveError::Root {
                kind: name,
                needs: if kind.is_rooted() { "needs" } else { "must not have" },
                found: root.map_or_else(|| "none".to_owned(), |r| format!("rank {r}")),
            });
        }
        if ranks.is_empty() {
            return Err(CollectiveError::Empty);
        }
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(w) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return Err(CollectiveError::Repeated { rank: w[0], ranks });
        }
        if let Some(&rank) = sorted.last().filter(|&&r| r >= world_size) {
            return Err(CollectiveError::OutsideWorld { rank, world_size });
        }
        if let Some(root) = root.filter(|r| !ranks.contains(r)) {
            return Err(CollectiveError::RootOutside { root, ranks });
        }
        Ok(DistCollective { kind, reduce, root, ranks, world_size })
    }

    /// Kind.
    pub const fn kind(&self) -> CollectiveKind {
        self.kind
    }

    /// How operands are combined; `None` exactly where TensorRT wants `NONE`.
    pub const fn reduce(&self) -> Option<ReduceOp> {
        self.reduce
    }

    /// The root as TensorRT wants it: a global rank, or exactly -1.
    pub fn root_or_minus_one(&self) -> i64 {
        self.root.map_or(-1, i64::from)
    }

    /// Global ranks in group order. Their number is the layer's rank count.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Size of the communicator that the engine will be given.
    pub const fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Whether the group is the mesh's whole world, in whatever order.
    pub fn is_world(&self) -> bool {
        self.ranks.len() as u64 == u64::from(self.world_size)
    }

    /// Shape of the result on an operand of the given type and shape.
    ///
    /// # Errors
    /// If the operand has no dimension 0, or one that does not split where it must.
    pub fn result_dims(&self, dtype: DType, dims: &[u64]) -> Result<Vec<u64>, CollectiveError> {
        let kind = self.kind.name();
        let Some((&first, rest)) = dims.split_first() else {
            return Err(CollectiveError::Scalar { kind });
        };
        if matches!(dtype, DType::F64) {
            return Err(CollectiveError::DType { kind, dtype });
        }
        let n = self.ranks.len() as u64;
        let divided = || {
            if first % n == 0 {
                Ok(first / n)
            } else {
                Err(CollectiveError::Indivisible { kind, ranks: self.ranks.len(), size: first })
            }
        };
        let size = match self.kind {
            CollectiveKind::AllReduce | CollectiveKind::Broadcast | CollectiveKind::Reduce => first,
            CollectiveKind::AllGather | CollectiveKind::Gather => first.saturating_mul(n),
            CollectiveKind::ReduceScatter | CollectiveKind::Scatter => divided()?,
            CollectiveKind::AllToAll => divided()? * n,
        };
        Ok(std::iter::once(size).chain(rest.iter().copied()).collect())
    }

    /// Checks that this is what `rank` must issue for a group of the mesh.
    pub fn belongs_to(&self, mesh: &Mesh, rank: u32) -> bool {
        self.world_size == mesh.world_size() && self.ranks.contains(&rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(
        kind: CollectiveKind,
        reduce: Option<ReduceOp>,
        root: Option<u32>,
        ranks: &[u32],
    ) -> Result<DistCollective, CollectiveError> {
        DistCollective::new(kind, reduce, root, ranks.to_vec(), 8)
    }

    #[test]
    fn accepts_what_the_contract_allows() {
        for kind in CollectiveKind::ALL {
            let reduce = kind.reduces().then_some(ReduceOp::Max);
            let root = kind.is_rooted().then_some(5);
            let c = make(kind, reduce, root, &[7, 5]).unwrap();
            assert_eq!(c.ranks().len(), 2);
            assert_eq!(c.root_or_minus_one(), if kind.is_rooted() { 5 } else { -1 });
        }
    }

    #[test]
    fn refuses_each_broken_term_of_the_contract() {
        use CollectiveKind::*;
        assert!(matches!(
            make(AllGather, Some(ReduceOp::Sum), None, &[0, 1]),
            Err(CollectiveError::Reduce { .. })
        ));
        assert!(matches!(make(AllReduce, None, None, &[0, 1]), Err(CollectiveError::Reduce { .. })));
        assert!(matches!(make(AllGather, None, Some(0), &[0, 1]), Err(CollectiveError::Root { .. })));
        assert!(matches!(make(Broadcast, None, None, &[0, 1]), Err(CollectiveError::Root { .. })));
        assert!(matches!(make(Broadcast, None, Some(2), &[0, 1]), Err(CollectiveError::RootOutside { .. })));
        assert!(matches!(make(AllToAll, None, None, &[]), Err(CollectiveError::Empty)));
        assert!(matches!(
            make(AllToAll, None, None, &[3, 1, 3]),
            Err(CollectiveError::Repeated { rank: 3, .. })
        ));
        assert!(matches!(
            make(AllToAll, None, None, &[3, 8]),
            Err(CollectiveError::OutsideWorld { rank: 8, .. })
        ));
    }

    #[test]
    fn shapes_follow_the_rank_count() {
        let dims = |kind: CollectiveKind, dims: &[u64]| {
            make(kind, kind.reduces().then_some(ReduceOp::Sum), kind.is_rooted().then_some(1), &[0, 1])
                .unwrap()
                .result_dims(DType::F32, dims)
        };
        assert_eq!(dims(CollectiveKind::AllGather, &[4, 8]).unwrap(), [8, 8]);
        assert_eq!(dims(CollectiveKind::Scatter, &[4, 8]).unwrap(), [2, 8]);
        assert_eq!(dims(CollectiveKind::AllToAll, &[4, 8]).unwrap(), [4, 8]);
        assert!(matches!(
            dims(CollectiveKind::ReduceScatter, &[3, 8]),
            Err(CollectiveError::Indivisible { size: 3, .. })
        ));
        assert!(matches!(dims(CollectiveKind::AllReduce, &[]), Err(CollectiveError::Scalar { .. })));
    }

    #[test]
    fn serialised_form_passes_the_same_checks() {
        let c = make(CollectiveKind::Reduce, Some(ReduceOp::Sum), Some(1), &[1, 0]).unwrap();
        let text = serde_json::to_string(&c).unwrap();
        assert_eq!(serde_json::from_str::<DistCollective>(&text).unwrap(), c);
        let broken = text.replace("[1,0]", "[1,1]");
        assert!(serde_json::from_str::<DistCollective>(&broken).is_err());
    }
}
