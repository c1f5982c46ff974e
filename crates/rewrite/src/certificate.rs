//! Certificates: every step that turned the source into the result, bound to hashes of both and of the rule set, so that a
//! checker that shares no code with the search can replay them.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::plan::Derivation;

/// Version of the certificate format.
pub const CERTIFICATE_VERSION: u32 = 1;

/// The record of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// [`CERTIFICATE_VERSION`].
    pub version: u32,
    /// Content hash of the source program.
    pub source: String,
    /// Content hash of the result.
    pub result: String,
    /// Hash of the rule set.
    pub rules: String,
    /// Name of the target profile.
    pub profile: String,
    /// Inputs declared equal along mesh axes.
    pub replicated_inputs: Vec<(String, Vec<String>)>,
    /// The steps, in order.
    pub steps: Vec<CertificateStep>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateStep {
    /// A directed step on one node.
    Directed {
        /// Rule.
        rule: String,
        /// Class.
        class: Class,
        /// The node replaced.
        node: String,
        /// The nodes that replace it, in order.
        by: Vec<String>,
    },
    /// Nodes with equal operation and operands became one.
    Merged {
        /// The one that stays.
        kept: String,
        /// The others.
        dropped: Vec<String>,
    },
    /// Windows with one derivation.
    Windows {
        /// A derivation per output.
        derivations: Vec<Derivation>,
        /// Where it was applied.
        places: Vec<Place>,
    },
}

/// A place where a window's derivation was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Values that `$0`, `$1`, .. stand for, by node name in the program before the pass.
    pub live: Vec<String>,
    /// Nodes whose values the derivations are about.
    pub outs: Vec<String>,
}
