//! What the user asks of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::class::Exactness;
use crate::profile::TargetProfile;
use crate::topology::Topology;

/// Where collectives on narrow floats travel in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    /// Where the target needs it.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// Everywhere.
    F32,
}

/// What becomes of all-gathers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllGather {
    /// All-reduces where the target cannot build all-gathers.
    #[default]
    Auto,
    /// They stay.
    Native,
    /// All of them become all-reduces over a padded buffer.
    AllReduce,
}

impl Boundary {
    /// The member called `name` on the command line.
    pub fn from_name(name: &str) -> Option<Boundary> {
        match name {
            "auto" => Some(Boundary::Auto),
            "off" => Some(Boundary::Off),
            "f32" => Some(Boundary::F32),
            _ => None,
        }
    }
}

impl AllGather {
    /// The member called `name` on the command line.
    pub fn from_name(name: &str) -> Option<AllGather> {
        match name {
            "auto" => Some(AllGather::Auto),
            "native" => Some(AllGather::Native),
            "all-reduce" => Some(AllGather::AllReduce),
            _ => None,
        }
    }
}

/// Options of [`crate::optimise`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the target can build. Without a profile there is no answer.
    pub profile: Option<TargetProfile>,
    /// The loosest class of step allowed.
    pub exactness: Exactness,
    /// Boundary casts.
    pub boundary: Boundary,
    /// All-gathers.
    pub all_gather: AllGather,
    /// Link costs.
    pub topology: Topology,
    /// Inputs that are equal on all ranks along the named mesh axes, by public name. All others may differ on every rank.
    pub replicated_inputs: BTreeMap<String, Vec<String>>,
    /// Passes to run, by name; all of them if empty.
    pub passes: Vec<String>,
    /// Windows with a number from here on stay as they are: bisects a bad result to one window.
    pub stop_after: Option<usize>,
}
