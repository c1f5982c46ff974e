//! Proof records: what the prover found for each rule, committed as files and bound to the rule's definition.
//!
//! A record is current if it carries the hash of the rule's text and of the code that gives the text its meaning. Rules
//! without a current record are not used.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::{CompiledRule, Rule, RuleError, families};
use crate::class::Class;

/// Sources that give rule texts their meaning: a change here makes every record stale.
const MEANING: &[&str] = &[
    include_str!("functions.rs"),
    include_str!("branch.rs"),
    include_str!("../prover/evaluate.rs"),
    include_str!("../prover/instances.rs"),
    include_str!("../prover/normalise.rs"),
    include_str!("../prover/polynomial.rs"),
    include_str!("../prover/rule.rs"),
    include_str!("../../../interp/src/symbolic/local.rs"),
    include_str!("../../../interp/src/symbolic/mod.rs"),
    include_str!("../../../interp/src/symbolic/term.rs"),
];

/// The committed records, by family.
const COMMITTED: &[(&str, &str)] = &[
    ("trivial_groups", include_str!("../../proofs/trivial_groups.json")),
    ("layout", include_str!("../../proofs/layout.json")),
    ("casts", include_str!("../../proofs/casts.json")),
    ("boundary", include_str!("../../proofs/boundary.json")),
    ("gather_as_reduce", include_str!("../../proofs/gather_as_reduce.json")),
    ("small_groups", include_str!("../../proofs/small_groups.json")),
    ("inverse", include_str!("../../proofs/inverse.json")),
    ("nesting", include_str!("../../proofs/nesting.json")),
    ("rooted", include_str!("../../proofs/rooted.json")),
];

/// What was found for one branch of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchRecord {
    /// Strictest class that holds on all instances, where float reductions may depend on position and buffer size.
    pub class: Class,
    /// The same where the target declares that they do not.
    pub fixed_order: Class,
    /// Instances evaluated.
    pub instances: u64,
}

/// The proof record of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofRecord {
    /// Name of the rule.
    pub rule: String,
    /// Its text.
    pub equation: String,
    /// [`definition`] of the rule that was proved.
    pub definition: String,
    /// Classes by branch.
    pub branches: BTreeMap<String, BranchRecord>,
    /// Well-typed instances that the guards let through, evaluated or not.
    pub instances_found: u64,
    /// Meshes of the instances.
    pub meshes: Vec<String>,
    /// For each guard, a counter-example that appears when it is dropped.
    pub guards_needed: BTreeMap<String, String>,
}

/// Hash of what a rule says and of the code that gives it its meaning.
pub fn definition(rule: &Rule) -> String {
    let mut h = blake3::Hasher::new();
    h.update(rule.name.as_bytes());
    h.update(b"\0");
    h.update(rule.equation().as_bytes());
    for text in MEANING {
        h.update(b"\0");
        h.update(text.as_bytes());
    }
    h.finalize().to_hex().to_string()
}

/// All committed records by rule name; `Err` names a file that cannot be read.
fn committed() -> &'static Result<BTreeMap<String, ProofRecord>, String> {
    static RECORDS: OnceLock<Result<BTreeMap<String, ProofRecord>, String>> = OnceLock::new();
    RECORDS.get_or_init(|| {
        let mut all = BTreeMap::new();
        for (family, text) in COMMITTED {
            let list: Vec<ProofRecord> =
                serde_json::from_str(text).map_err(|e| format!("proofs/{family}.json: {e}"))?;
            all.extend(list.into_iter().map(|r| (r.rule.clone(), r)));
        }
        Ok(all)
    })
}

/// Whether a rule may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Proved as it stands.
    Proved(ProofRecord),
    /// There is a record, of another definition.
    Stale,
    /// There is no record.
    Unproved,
}

/// Standing of a rule.
pub fn standing(rule: &Rule) -> Standing {
    match committed().as_ref().ok().and_then(|all| all.get(rule.name)) {
        None => Standing::Unproved,
        Some(r) if r.definition == definition(rule) => Standing::Proved(r.clone()),
        Some(_) => Standing::Stale,
    }
}

/// A rule that may be used, with its record.
#[derive(Clone, Debug)]
pub struct ProvedRule {
    /// The rule.
    pub rule: CompiledRule,
    /// Its record.
    pub record: ProofRecord,
}

impl ProvedRule {
    /// The class of an application in the given branch; `None` if that branch was not proved.
    pub fn class(&self, branch: &str, fixed_order: bool) -> Option<Class> {
        self.record.branches.get(branch).map(|b| if fixed_order { b.fixed_order } else { b.class })
    }
}

/// All rules with a current record, compiled once.
///
/// # Errors
/// If a rule's text is wrong.
pub fn proved() -> Result<&'static [ProvedRule], RuleError> {
    static PROVED: OnceLock<Result<Vec<ProvedRule>, RuleError>> = OnceLock::new();
    let all = PROVED.get_or_init(|| {
        let mut out = Vec::new();
        for (_, rules) in families() {
            for rule in rules {
                if let Standing::Proved(record) = standing(rule) {
                    out.push(ProvedRule { rule: rule.compile()?, record });
                }
            }
        }
        Ok(out)
    });
    all.as_deref().map_err(Clone::clone)
}

/// Hash over the definitions of all rules in use; certificates are bound to it.
///
/// # Errors
/// As [`proved`].
pub fn rule_set() -> Result<String, RuleError> {
    let mut h = blake3::Hasher::new();
    for p in proved()? {
        h.update(p.record.definition.as_bytes());
    }
    Ok(h.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rules;

    #[test]
    fn every_rule_has_a_current_record() {
        if let Err(e) = committed() {
            panic!("{e}");
        }
        let bad: Vec<String> = rules()
            .filter_map(|r| match standing(r) {
                Standing::Proved(_) => None,
                Standing::Stale => Some(format!("{}: stale", r.name)),
                Standing::Unproved => Some(format!("{}: no record", r.name)),
            })
            .collect();
        assert!(bad.is_empty(), "run `cargo run -p shardweld-rewrite --example prove_rules`: {bad:?}");
    }

    #[test]
    fn a_changed_rule_has_no_standing() {
        let mut rule = *rules().next().unwrap();
        rule.guards = &[];
        assert_eq!(standing(&rule), Standing::Stale);
        rule.name = "unheard_of";
        assert_eq!(standing(&rule), Standing::Unproved);
    }
}
