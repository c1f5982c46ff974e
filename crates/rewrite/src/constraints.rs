//! What a run may and must do: the target's profile and the user's orders, asked as one question per collective.

use shardweld_ir::{Collective, DType, Group, Mesh};

use crate::options::{AllGather, Boundary, Options};
use crate::profile::TargetProfile;
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
}

impl Constraints {
    /// The constraints of a run.
    pub fn new(profile: TargetProfile, options: &Options) -> Constraints {
        Constraints {
            profile,
            boundary: options.boundary,
            all_gather: options.all_gather,
            topology: options.topology.clone(),
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
        None
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
