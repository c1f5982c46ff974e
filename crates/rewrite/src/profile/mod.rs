//! Target profiles: what a version of a target library can build, as data. Shipped ones are JSON files next to this one.

use serde::{Deserialize, Serialize};
use shardweld_ir::{Collective, DType, Group, Mesh};

/// Version of the profile format.
pub const PROFILE_VERSION: u32 = 1;

const SHIPPED: &[&str] = &[
    include_str!("tensorrt-rtx-1.7.1.json"),
    include_str!("tensorrt-rtx-1.6.1.json"),
    include_str!("tensorrt-11.4.json"),
    include_str!("tensorrt-11.0.json"),
];

/// What a target can build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetProfile {
    /// Version of the format: [`PROFILE_VERSION`].
    pub format: u32,
    /// Name, as `--profile` takes it.
    pub name: String,
    /// Library.
    pub library: String,
    /// Library version.
    pub version: String,
    /// How this is known: `measured`, `headers`, `reports`; then, after a colon, details.
    pub provenance: String,
    /// Whether collectives may run over a part of the ranks.
    pub sub_groups: bool,
    /// Whether all-gathers and reduce-scatters can be built only over groups as large as the largest group of any fused
    /// collective of the program: the target computes shapes with one group size.
    #[serde(default)]
    pub one_group_size_for_shapes: bool,
    /// Whether the order in which floats are combined depends on neither position nor buffer size.
    pub fixed_reduction_order: bool,
    /// What can be built. What is not listed cannot.
    pub buildable: Vec<Buildable>,
    /// What is known to fail, with the target's own words; for messages.
    #[serde(default)]
    pub failures: Vec<Failure>,
}

/// Collectives that can be built on some element types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buildable {
    /// Names of collectives, as in the text form of programs.
    pub collectives: Vec<String>,
    /// Element types.
    pub dtypes: Vec<DType>,
    /// Where they run.
    pub placement: Placement,
}

/// Where a collective runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Inside a compiled region.
    Fused,
    /// As a layer of its own, which splits the region around it.
    Standalone,
}

/// A known failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// Names of collectives.
    pub collectives: Vec<String>,
    /// Element types.
    pub dtypes: Vec<DType>,
    /// What the target says or does.
    pub message: String,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No shipped profile has the name.
    #[error("there is no profile `{name}`; shipped are: {}", known.join(", "))]
    Unknown {
        /// Name asked for.
        name: String,
        /// Names there are.
        known: Vec<String>,
    },
    /// The text is no profile.
    #[error("not a target profile: {0}")]
    Json(#[from] serde_json::Error),
    /// Another version of the format.
    #[error("the profile has format {found}, expected {PROFILE_VERSION}")]
    Format {
        /// Version found.
        found: u32,
    },
    /// A collective that does not exist.
    #[error("profile `{profile}` names a collective `{name}`, which does not exist")]
    Collective {
        /// The profile.
        profile: String,
        /// The name.
        name: String,
    },
}

const COLLECTIVES: [&str; 8] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast_from",
    "reduce_to",
    "gather_to",
    "scatter_from",
];

impl TargetProfile {
    /// The shipped profiles.
    ///
    /// # Errors
    /// If a shipped file is damaged.
    pub fn shipped() -> Result<Vec<TargetProfile>, ProfileError> {
        SHIPPED.iter().map(|text| TargetProfile::from_json(text)).collect()
    }

    /// The shipped profile of the given name.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<TargetProfile, ProfileError> {
        let all = TargetProfile::shipped()?;
        let known = all.iter().map(|p| p.name.clone()).collect();
        all.into_iter()
            .find(|p| p.name == name)
            .ok_or_else(|| ProfileError::Unknown { name: name.to_owned(), known })
    }

    /// A profile from JSON text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_json(text: &str) -> Result<TargetProfile, ProfileError> {
        let p: TargetProfile = serde_json::from_str(text)?;
        if p.format != PROFILE_VERSION {
            return Err(ProfileError::Format { found: p.format });
        }
        let named =
            p.buildable.iter().map(|b| &b.collectives).chain(p.failures.iter().map(|f| &f.collectives));
        match named.flatten().find(|c| !COLLECTIVES.contains(&c.as_str())) {
            Some(name) => Err(ProfileError::Collective { profile: p.name.clone(), name: name.clone() }),
            None => Ok(p),
        }
    }

    /// Where a collective on the given element type runs; `None` if it cannot be built.
    pub fn placement(&self, kind: &Collective, dtype: DType) -> Option<Placement> {
        self.buildable
            .iter()
            .find(|b| b.dtypes.contains(&dtype) && b.collectives.iter().any(|c| c == kind.name()))
            .map(|b| b.placement)
    }

    /// Why a collective cannot be built, if so.
    pub fn refusal(&self, kind: &Collective, dtype: DType, group: &Group, mesh: &Mesh) -> Option<String> {
        if !self.sub_groups && group.size(mesh) != mesh.world_size() {
            return Some(format!(
                "{} {} has one communicator: collectives over {} of {} ranks are not possible",
                self.library,
                self.version,
                group.size(mesh),
                mesh.world_size()
            ));
        }
        if self.placement(kind, dtype).is_some() {
            return None;
        }
        let known = self
            .failures
            .iter()
            .find(|f| f.dtypes.contains(&dtype) && f.collectives.iter().any(|c| c == kind.name()));
        Some(format!(
            "{} {} does not build {} on {dtype}{}",
            self.library,
            self.version,
            kind.name(),
            known.map(|f| format!(": {}", f.message)).unwrap_or_default()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_profiles_say_what_was_measured() {
        let rtx = TargetProfile::named("tensorrt-rtx-1.7.1").unwrap();
        let broadcast = Collective::Broadcast { root: 0 };
        assert_eq!(rtx.placement(&broadcast, DType::F32), Some(Placement::Standalone));
        assert_eq!(rtx.placement(&broadcast, DType::BF16), None);
        assert_eq!(rtx.placement(&Collective::AllGather { dim: 0 }, DType::BF16), Some(Placement::Fused));
        let mesh = Mesh::new([("a", 2)]).unwrap();
        let why = rtx.refusal(&broadcast, DType::BF16, &mesh.world_group(), &mesh).unwrap();
        assert!(why.contains("asymmetric"), "{why}");
        let old = TargetProfile::named("tensorrt-rtx-1.6.1").unwrap();
        let exchange = Collective::AllToAll { split_dim: 0, concat_dim: 0 };
        assert_eq!(old.placement(&exchange, DType::I64), None);
        assert_eq!(old.placement(&exchange, DType::BF16), Some(Placement::Standalone));
        assert!(!old.sub_groups);
        assert!(rtx.one_group_size_for_shapes && !old.one_group_size_for_shapes);
    }

    #[test]
    fn unknown_and_damaged_profiles_are_refused() {
        let e = TargetProfile::named("tensorrt-9").unwrap_err().to_string();
        assert!(e.contains("tensorrt-rtx-1.7.1"), "{e}");
        assert!(TargetProfile::from_json("{}").is_err());
        let text = SHIPPED[0].replace("all_gather", "all_getter");
        assert!(matches!(TargetProfile::from_json(&text), Err(ProfileError::Collective { .. })));
    }
}
