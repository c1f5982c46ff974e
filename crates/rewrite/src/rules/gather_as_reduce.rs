//! All-gather as an all-reduce over a padded buffer: twice the wire bytes, for targets without all-gather.
//!
//! One non-neutral operand per element, so order and accumulation type do not matter. -0.0 is the neutral element of float
//! addition; +0.0 turns -0.0 into +0.0.

use super::{Policy, Rule};

macro_rules! padded {
    ($name:literal, $op:literal, $value:literal) => {
        Rule::new(
            $name,
            "(all_gather ?x ?d ?g)",
            concat!("(all_reduce (own_pad ?x ?d ?g ?v) ", $op, " none ?g)"),
        )
        .compute(&[("?v", $value)])
        .policy(Policy::AllGatherAsReduce)
    };
}

/// The rules.
pub const RULES: &[Rule] = &[
    padded!("all_gather_as_sum_over_negative_zero", "sum", "negative_zero(?x)"),
    padded!("all_gather_as_sum_over_positive_zero", "sum", "positive_zero(?x)"),
    padded!("all_gather_as_sum_of_integers", "sum", "integer_zero(?x)"),
    padded!("all_gather_as_or", "max", "false_if_bool(?x)"),
];
