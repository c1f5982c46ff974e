//! Collectives and own blocks that undo each other or do nothing.

use super::Rule;

/// The rules.
pub const RULES: &[Rule] = &[
    Rule::new("own_slice_of_all_gather", "(own_slice (all_gather ?x ?d ?g) ?d ?g)", "?x"),
    Rule::new("all_gather_of_own_slice", "(all_gather (own_slice ?x ?d ?g) ?d ?g)", "?x")
        .guards(&["replicated(?x, ?g)"]),
    Rule::new("own_slice_of_own_pad", "(own_slice (own_pad ?x ?d ?g ?v) ?d ?g)", "?x"),
    Rule::new("all_to_all_of_all_to_all", "(all_to_all (all_to_all ?x ?s ?c ?g) ?c ?s ?g)", "?x"),
    Rule::new(
        "own_slice_of_all_gather_elsewhere",
        "(own_slice (all_gather ?x ?c ?g) ?s ?g)",
        "(all_to_all ?x ?s ?c ?g)",
    )
    .guards(&["different(?s, ?c)"]),
    Rule::new("broadcast_of_replicated", "(broadcast_from ?x ?r ?g)", "?x").guards(&["replicated(?x, ?g)"]),
    Rule::new("all_reduce_max_of_replicated", "(all_reduce ?x max ?a ?g)", "?x")
        .guards(&["replicated(?x, ?g)"]),
    Rule::new("all_reduce_min_of_replicated", "(all_reduce ?x min ?a ?g)", "?x")
        .guards(&["replicated(?x, ?g)"]),
];
