//! All-gather and reduce-scatter by collectives whose result has the operand's shape, for targets that compute other shapes
//! with one group size.

use super::{Policy, Rule};

/// The rules.
pub const RULES: &[Rule] = &[
    // Every rank sends its whole operand to every rank: as many bytes as the all-gather, and one local copy.
    Rule::new(
        "all_gather_as_all_to_all",
        "(all_gather ?x ?d ?g)",
        "(all_to_all (reshape (broadcast (reshape ?x ?s) ?b) ?t) ?d ?d ?g)",
    )
    .compute(&[
        ("?s", "one_before(?x, ?d)"),
        ("?b", "group_before(?x, ?d, ?g)"),
        ("?h", "shape_of(?x)"),
        ("?t", "multiplied(?h, ?d, ?g)"),
    ])
    .policy(Policy::WhereGroupTooSmall),
    Rule::new(
        "reduce_scatter_as_slice_of_all_reduce",
        "(reduce_scatter ?x ?o ?d ?a ?g)",
        "(own_slice (all_reduce ?x ?o ?a ?g) ?d ?g)",
    )
    .policy(Policy::WhereGroupTooSmall),
    // Sums only: a local max keeps a NaN that the transport's max may drop.
    Rule::new(
        "reduce_scatter_as_sum_of_all_to_all",
        "(reduce_scatter ?x sum ?d none ?g)",
        "(add (slice (all_to_all ?x ?d ?d ?g) ?d ?z ?k ?i) (slice (all_to_all ?x ?d ?d ?g) ?d ?k ?n ?i))",
    )
    .compute(&[("?z", "zero()"), ("?k", "block(?x, ?d, ?g)"), ("?n", "extent(?x, ?d)"), ("?i", "one()")])
    .guards(&["pair(?g)"])
    .policy(Policy::WhereGroupTooSmall),
];
