//! Collectives over products of mesh axes, and reduce-scatter with all-gather against all-reduce.

use super::Rule;

/// The rules.
pub const RULES: &[Rule] = &[
    // The inner gather is over the minor axes.
    Rule::new(
        "all_gather_of_all_gather",
        "(all_gather (all_gather ?x ?d ?b) ?d ?a)",
        "(all_gather ?x ?d ?g)",
    )
    .compute(&[("?g", "product_group(?a, ?b)")]),
    // The inner scatter is over the major axes.
    Rule::new(
        "reduce_scatter_of_reduce_scatter",
        "(reduce_scatter (reduce_scatter ?x ?o ?d ?m ?a) ?o ?d ?m ?b)",
        "(reduce_scatter ?x ?o ?d ?m ?g)",
    )
    .compute(&[("?g", "product_group(?a, ?b)")]),
    Rule::new(
        "all_reduce_of_all_reduce",
        "(all_reduce (all_reduce ?x ?o ?m ?b) ?o ?m ?a)",
        "(all_reduce ?x ?o ?m ?g)",
    )
    .compute(&[("?g", "product_group(?a, ?b)")]),
    Rule::new(
        "own_slice_of_all_reduce",
        "(own_slice (all_reduce ?x ?o ?m ?g) ?d ?g)",
        "(reduce_scatter ?x ?o ?d ?m ?g)",
    ),
    Rule::new(
        "all_gather_of_reduce_scatter",
        "(all_gather (reduce_scatter ?x ?o ?d ?m ?g) ?d ?g)",
        "(all_reduce ?x ?o ?m ?g)",
    ),
    Rule::new(
        "own_slice_of_all_reduce_over_other_axes",
        "(own_slice (all_reduce ?x ?o ?m ?a) ?d ?b)",
        "(all_reduce (own_slice ?x ?d ?b) ?o ?m ?a)",
    )
    .guards(&["disjoint(?a, ?b)"]),
];
