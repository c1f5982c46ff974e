//! What a run may and must do: the target's profile and the user's orders, asked as one question per collective.

use shardweld_ir::{Collective, DType, Group, Mesh};

use crate::options::{AllGather, Boundary, Options};
use crate::profile::{Placement, TargetProfile};
use crate::topology::Topology;

/// Profile, orders and topology of a run.
#[derive(Clone, Debug)]
pub struct Constraints {
    /// What the target can build.
    pub profile: TargetProfile,
    /// Orders about boundary casts.
    pub boundary: Boundary,
    /// Orders about all-gathers.
    pub all_gather: AllGather,
    /// Link costs.
    pub topology: Topology,
    /// The largest group that the program's collectives have or may have, for a target that computes shapes with it. `None`
    /// where it does not matter, or is not known yet.
    pub group_size: Option<u32>,
}

impl Constraints {
    /// The constraints of a run.
    pub fn new(profile: TargetProfile, options: &Options) -> Constraints {
        Constraints {
            profile,
            boundary: options.boundary,
            all_gather: options.all_gather,
            topology: options.topology.clone(),
            group_size: None,
        }
    }

    /// Why a collective on this element type may not stay, if so.
    pub fn refusal(&self, kind: &Collective, dtype: DType, group: &Group, mesh: &Mesh) -> Option<String> {
        if let Some(reason) = self.profile.refusal(kind, dtype, group, mesh) {
            return Some(reason);
        }
        if self.boundary == Boundary::F32 && narrow(dtype) {
            return Some(format!("`--boundary f32` orders collectives on {dtype} to run in f32"));
        }
        if self.all_gather == AllGather::AllReduce && matches!(kind, Collective::AllGather { .. }) {
            return Some("`--all-gather all-reduce` orders all-gathers to become all-reduces".into());
        }
        let (size, largest) = (group.size(mesh), self.group_size?);
        if size > largest && self.sets_group_size(kind, dtype) {
            return Some(format!("shapes are computed for groups of {largest} ranks"));
        }
        self.too_small(kind, group, mesh).then(|| {
            format!(
                "{} {} computes shapes with one group size, {largest} in this program: it does not build {} over {size} ranks",
                self.profile.library,
                self.profile.version,
                kind.name(),
            )
        })
    }

    /// Whether the group of the collective is among those of which the largest sets the size for shapes: what runs as a layer
    /// of its own is not compiled with the rest.
    pub fn sets_group_size(&self, kind: &Collective, dtype: DType) -> bool {
        self.profile.placement(kind, dtype) != Some(Placement::Standalone)
    }

    /// Whether the target does not build the collective because a larger group sets the size for shapes.
    pub fn too_small(&self, kind: &Collective, group: &Group, mesh: &Mesh) -> bool {
        matches!(kind, Collective::AllGather { .. } | Collective::ReduceScatter { .. })
            && self.group_size.is_some_and(|largest| group.size(mesh) < largest)
    }

    /// Whether all-gathers may become whatever is cheapest.
    pub fn gathers_are_free(&self) -> bool {
        self.all_gather == AllGather::Auto
    }

    /// Whether all-gathers may become all-reduces.
    pub fn gathers_may_reduce(&self) -> bool {
        self.all_gather != AllGather::Native
    }
}

/// Floats that f32 holds exactly, and is wider than.
pub fn narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F8E4M3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardweld_ir::AxisId;

    #[test]
    fn a_larger_group_refuses_smaller_gathers_and_scatters_only() {
        let profile = TargetProfile::named("tensorrt-rtx-1.7.1").unwrap();
        let mut c = Constraints::new(profile, &Options::default());
        let mesh = Mesh::new([("cp", 2), ("tp", 4)]).unwrap();
        let (small, large) = (Group::axis(AxisId(0)), Group::axis(AxisId(1)));
        let gather = Collective::AllGather { dim: 0 };
        let scatter = Collective::ReduceScatter { op: shardweld_ir::ReduceOp::Sum, dim: 0, accum: None };
        let exchange = Collective::AllToAll { split_dim: 0, concat_dim: 0 };
        let refused = |c: &Constraints, k: &Collective, g: &Group| c.refusal(k, DType::F32, g, &mesh);
        assert_eq!(refused(&c, &gather, &small), None);
        c.group_size = Some(4);
        for kind in [gather, scatter] {
            let why = refused(&c, &kind, &small).unwrap();
            assert!(why.contains("4 in this program") && why.contains("over 2 ranks"), "{why}");
            assert_eq!(refused(&c, &kind, &large), None);
        }
        assert_eq!(refused(&c, &exchange, &small), None);
        // While the search assumes groups of up to 2 ranks, it may not make larger ones.
        c.group_size = Some(2);
        assert!(refused(&c, &exchange, &large).is_some());
        assert_eq!(refused(&c, &Collective::Broadcast { root: 0 }, &large), None);
    }
}
