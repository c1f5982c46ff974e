//! Boundary casts around data movement: travel in a wider type where the target cannot move the narrow one.
//!
//! Boundary casts around reductions change rounding and are no equations: see `legalise`.

use super::{Policy, Rule};

macro_rules! boundary {
    ($name:literal, $head:literal, $attributes:literal) => {
        Rule::new(
            $name,
            concat!("(", $head, " ?x ", $attributes, ")"),
            concat!("(cast (", $head, " (cast ?x ?w) ", $attributes, ") ?t)"),
        )
        .compute(&[("?w", "wider(?x)"), ("?t", "dtype_of(?x)")])
        .policy(Policy::WhereUnbuildable)
    };
}

/// The rules.
pub const RULES: &[Rule] = &[
    boundary!("all_gather_in_wider_type", "all_gather", "?d ?g"),
    boundary!("all_to_all_in_wider_type", "all_to_all", "?s ?c ?g"),
    boundary!("broadcast_in_wider_type", "broadcast_from", "?r ?g"),
    boundary!("scatter_in_wider_type", "scatter_from", "?d ?r ?g"),
    boundary!("gather_in_wider_type", "gather_to", "?d ?r ?g"),
];
