//! What the passes of one run share: constraints, rules, and what they note down for report and certificate.

use std::collections::BTreeMap;

use shardweld_ir::{Graph, Op};

use crate::certificate::CertificateStep;
use crate::class::{Class, Exactness};
use crate::constraints::Constraints;
use crate::error::RewriteError;
use crate::options::Options;
use crate::replication::AxisSet;
use crate::report::Counters;
use crate::rules::record::ProvedRule;

/// The state of a run.
#[derive(Clone, Debug)]
pub struct Context {
    /// Profile, orders, topology.
    pub constraints: Constraints,
    /// The loosest class allowed.
    pub exactness: Exactness,
    /// Rules in use.
    pub rules: &'static [ProvedRule],
    /// Replication of inputs as declared.
    pub declared: BTreeMap<String, AxisSet>,
    /// Windows with a number from here on stay as they are.
    pub stop_after: Option<usize>,
    /// Rules applied per collective, by tag, in order.
    pub trail: BTreeMap<String, Vec<String>>,
    /// Certificate so far.
    pub steps: Vec<CertificateStep>,
    /// Counters so far.
    pub counters: Counters,
    /// Loosest class of a directed step so far.
    pub loosest_directed: Option<Class>,
}

impl Context {
    /// Notes that a rule was applied to the collective that the tags stand for.
    pub fn note(&mut self, tags: &[String], rule: &str) {
        for tag in tags {
            let list = self.trail.entry(tag.clone()).or_default();
            if list.last().is_none_or(|last| last != rule) {
                list.push(rule.to_owned());
            }
        }
    }

    /// What an input is declared to be.
    pub fn declared(&self, input: &str) -> AxisSet {
        self.declared.get(input).copied().unwrap_or_default()
    }
}

/// The declared replication of inputs, checked against the program.
///
/// # Errors
/// If an input or axis does not exist.
pub fn declared_inputs(graph: &Graph, options: &Options) -> Result<BTreeMap<String, AxisSet>, RewriteError> {
    let unknown = |what, name: &str| RewriteError::UnknownName {
        option: "replicated_inputs",
        what,
        name: name.to_owned(),
    };
    let mut out = BTreeMap::new();
    for (input, axes) in &options.replicated_inputs {
        let exists =
            graph.inputs().iter().any(|&i| matches!(&graph.node(i).op, Op::Input { name } if name == input));
        if !exists {
            return Err(unknown("input", input));
        }
        let ids = axes
            .iter()
            .map(|a| graph.mesh().axis(a).ok_or_else(|| unknown("mesh axis", a)))
            .collect::<Result<Vec<_>, _>>()?;
        out.insert(input.clone(), AxisSet::of(&ids));
    }
    Ok(out)
}
