//! The prover: evaluates two programs symbolically, one unknown per (rank, element), and finds the strictest exactness class
//! in which they are equal, or a counter-example.
//!
//! | module | holds |
//! |---|---|
//! | [`evaluate`] | evaluation and comparison of two programs |
//! | [`normalise`] | what is known about arithmetic, per class |
//! | [`polynomial`] | sums and products |
//! | [`instances`] | instances of a rule |
//! | [`rule`] | proof of a rule |

pub mod evaluate;
pub mod instances;
pub mod normalise;
pub mod polynomial;
pub mod rule;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use shardweld_ir::Graph;

use crate::rules::record::ProofRecord;
use crate::rules::{Rule, RuleError};

pub use evaluate::{Assumption, Classes, CounterExample, ProveError};
pub use rule::{RuleProofError, prove_rule};

/// What the prover found out about two programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are equal in these classes.
    Equal(Classes),
    /// They are not.
    Refuted(Box<CounterExample>),
}

/// Proves or refutes that two programs with equal inputs and outputs compute the same on every rank.
///
/// `assumption` says what may be assumed of each input.
///
/// # Errors
/// If the programs cannot be compared or evaluated.
pub fn prove(
    left: &Graph,
    right: &Graph,
    assumption: &dyn Fn(&str) -> Assumption,
) -> Result<Verdict, ProveError> {
    Ok(match evaluate::compare(left, right, assumption, false)? {
        Ok(classes) => Verdict::Equal(classes),
        Err(e) => Verdict::Refuted(Box::new(e)),
    })
}

/// Why a rule has no proof record.
#[derive(Debug, thiserror::Error)]
pub enum NoRecord {
    /// Its text is wrong.
    #[error(transparent)]
    Text(#[from] RuleError),
    /// It is not proved.
    #[error(transparent)]
    Proof(#[from] RuleProofError),
}

/// Proves rules on all cores; results in the order of the rules.
pub fn prove_rules(rules: &[&Rule]) -> Vec<Result<ProofRecord, NoRecord>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(rules.len().max(1));
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(rules.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(rule) = rules.get(at) else { break };
                    let proof = match rule.compile() {
                        Ok(r) => prove_rule(&r).map_err(NoRecord::from),
                        Err(e) => Err(e.into()),
                    };
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, proof));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, proof)| proof).collect()
}
