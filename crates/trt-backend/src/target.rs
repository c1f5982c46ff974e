//! What a version of a library cannot build, as far as it is known. Measured rows say on what; a probe goes deeper.

use shardweld_ir::DType;

use crate::flavour::{Flavour, Version};
use crate::trace::{CollectiveKind, DistCollective};

/// First TensorRT that honours a group smaller than the communicator inside a fused node.
const SUBGROUPS_TENSORRT: Version = Version::new(11, 4, 0);
/// The same for TensorRT-RTX.
const SUBGROUPS_TENSORRT_RTX: Version = Version::new(1, 7, 0);
/// First TensorRT-RTX that fuses an int64 all-to-all; 1.6.1 fails on it.
const I64_ALL_TO_ALL_RTX: Version = Version::new(1, 7, 0);
/// First TensorRT-RTX that refuses rooted collectives of bf16; 1.6.1 builds them on their own.
const NO_BF16_ROOTED_RTX: Version = Version::new(1, 7, 0);

/// First TensorRT-RTX that derives the shapes of every all-gather and reduce-scatter of a network from one group size, the
/// largest of its collectives without a root; measured on 1.7.1 alone. Earlier ones have no smaller groups at all.
/// In truth that is per part compiled together; where the builder cuts is not known beforehand, so the whole network counts.
const ONE_GROUP_SIZE_FOR_SHAPES_RTX: Version = Version::new(1, 7, 0);

/// A library and its version, as lowering sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Which library.
    pub flavour: Flavour,
    /// Its version.
    pub version: Version,
}

impl Target {
    /// Why the target cannot build a collective of the given type; `None` if nothing is known against it.
    ///
    /// bf16 and int64 rows for TensorRT follow the RTX library of the same compiler generation.
    pub fn refuses(&self, collective: &DistCollective, dtype: DType) -> Option<String> {
        let kind = collective.kind();
        let at = format!("{} {}", self.flavour, self.version);
        let since = |rtx: Version, trt: Version| match self.flavour {
            Flavour::TensorRt => self.version >= trt,
            Flavour::TensorRtRtx => self.version >= rtx,
        };
        if matches!(dtype, DType::U8 | DType::F8E4M3 | DType::F64) {
            return Some(format!("{at} has no collectives of {dtype}"));
        }
        if !collective.is_world() && !since(SUBGROUPS_TENSORRT_RTX, SUBGROUPS_TENSORRT) {
            let first = match self.flavour {
                Flavour::TensorRt => SUBGROUPS_TENSORRT,
                Flavour::TensorRtRtx => SUBGROUPS_TENSORRT_RTX,
            };
            return Some(format!(
                "{at} ignores groups smaller than the communicator ({:?} of {} ranks); {first} honours them",
                collective.ranks(),
                collective.world_size()
            ));
        }
        if kind.is_rooted() && dtype == DType::I64 {
            return Some(format!(
                "{at} has no int64 {}; cast to i32, or use a collective without a root",
                kind.name()
            ));
        }
        if kind.is_rooted() && dtype == DType::BF16 && since(NO_BF16_ROOTED_RTX, SUBGROUPS_TENSORRT) {
            return Some(format!("{at} has no bf16 {}; an f32 cast around it works", kind.name()));
        }
        if kind == CollectiveKind::AllToAll
            && dtype == DType::I64
            && self.flavour == Flavour::TensorRtRtx
            && self.version < I64_ALL_TO_ALL_RTX
        {
            return Some(format!("{at} has no int64 all_to_all; {I64_ALL_TO_ALL_RTX} has"));
        }
        None
    }

    /// Whether an all-gather or reduce-scatter builds only if no collective of the network has a larger group; those with a root do not
    /// count.
    pub fn one_group_size_for_shapes(&self) -> bool {
        self.flavour == Flavour::TensorRtRtx && self.version >= ONE_GROUP_SIZE_FOR_SHAPES_RTX
    }

    /// Why the target cannot build a collective in the network of `largest`, which node `beside` issues: the one without
    /// a root that has the largest group; `None` if nothing is known against it.
    pub fn refuses_beside(
        &self,
        collective: &DistCollective,
        beside: &str,
        largest: &DistCollective,
    ) -> Option<String> {
        let kind = collective.kind();
        let instead = match kind {
            CollectiveKind::AllGather => "an all_to_all of the operand repeated once per rank",
            CollectiveKind::ReduceScatter => "an all_to_all and a local reduction",
            _ => return None,
        };
        let (own, other) = (collective.ranks(), largest.ranks());
        if own.len() >= other.len() || !self.one_group_size_for_shapes() {
            return None;
        }
        Some(format!(
            "{} {} takes the rank count of every {} from the largest group of the network's collectives: this one has the {} ranks {own:?}, \
             {} `{beside}` the {} ranks {other:?}; {instead} over the same group works, and so does one group size throughout",
            self.flavour,
            self.version,
            kind.name(),
            own.len(),
            largest.kind().name(),
            other.len(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collective(kind: CollectiveKind, ranks: &[u32]) -> DistCollective {
        let root = kind.is_rooted().then_some(ranks[0]);
        let reduce = kind.reduces().then_some(shardweld_ir::ReduceOp::Sum);
        DistCollective::new(kind, reduce, root, ranks.to_vec(), 4).unwrap()
    }

    const RTX_161: Target = Target { flavour: Flavour::TensorRtRtx, version: Version::new(1, 6, 1) };
    const RTX_171: Target = Target { flavour: Flavour::TensorRtRtx, version: Version::new(1, 7, 1) };

    #[test]
    fn measured_failures_are_refused_and_their_neighbours_are_not() {
        let world = [0, 1, 2, 3];
        let broadcast = collective(CollectiveKind::Broadcast, &world);
        let a2a = collective(CollectiveKind::AllToAll, &world);
        assert!(RTX_171.refuses(&broadcast, DType::BF16).is_some());
        assert!(RTX_161.refuses(&broadcast, DType::BF16).is_none());
        assert!(RTX_171.refuses(&broadcast, DType::F32).is_none());
        assert!(RTX_171.refuses(&broadcast, DType::I64).is_some());
        assert!(RTX_161.refuses(&a2a, DType::I64).is_some());
        assert!(RTX_171.refuses(&a2a, DType::I64).is_none());
        assert!(RTX_171.refuses(&a2a, DType::U8).is_some());
    }

    #[test]
    fn subgroups_need_a_version_that_honours_them() {
        let sub = collective(CollectiveKind::AllGather, &[1, 3]);
        assert!(RTX_161.refuses(&sub, DType::F32).is_some());
        assert!(RTX_171.refuses(&sub, DType::F32).is_none());
        let trt = |minor| Target { flavour: Flavour::TensorRt, version: Version::new(11, minor, 0) };
        assert!(trt(3).refuses(&sub, DType::F32).is_some());
        assert!(trt(4).refuses(&sub, DType::F32).is_none());
    }

    #[test]
    fn shapes_need_the_largest_group_where_measured() {
        let large = collective(CollectiveKind::AllReduce, &[0, 1, 2, 3]);
        let beside =
            |t: Target, kind, ranks: &[u32]| t.refuses_beside(&collective(kind, ranks), "ar", &large);
        for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
            let why = beside(RTX_171, kind, &[1, 3]).unwrap();
            assert!(
                why.contains(kind.name()) && why.contains("all_reduce `ar`") && why.contains("all_to_all"),
                "{why}"
            );
            assert!(beside(RTX_171, kind, &[0, 1, 2, 3]).is_none());
            assert!(beside(RTX_161, kind, &[1, 3]).is_none());
        }
        assert!(beside(RTX_171, CollectiveKind::AllReduce, &[1, 3]).is_none());
        assert!(beside(RTX_171, CollectiveKind::AllToAll, &[1, 3]).is_none());
        let trt = Target { flavour: Flavour::TensorRt, version: Version::new(11, 4, 0) };
        assert!(!trt.one_group_size_for_shapes());
    }
}
