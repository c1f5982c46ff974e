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

use shardweld_ir::Graph;

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
