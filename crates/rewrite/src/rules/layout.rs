//! Transposes and reshapes: redundant ones, and those around a collective folded into its dimension.
//!
//! Both directions are rules of their own, because the attributes of one side are computed from the other's.

use super::Rule;

/// The rules.
pub const RULES: &[Rule] = &[
    Rule::new("transpose_of_transpose", "(transpose (transpose ?x ?p) ?q)", "(transpose ?x ?r)")
        .compute(&[("?r", "compose(?p, ?q)")]),
    Rule::new("transpose_by_identity", "(transpose ?x ?p)", "?x").guards(&["identity(?p)"]),
    Rule::new("transpose_of_ones", "(transpose ?x ?p)", "(reshape ?x ?s)")
        .compute(&[("?s", "permuted(?x, ?p)")])
        .guards(&["moves_ones(?x, ?p)"]),
    Rule::new("reshape_of_reshape", "(reshape (reshape ?x ?s) ?t)", "(reshape ?x ?t)"),
    Rule::new("reshape_to_own_shape", "(reshape ?x ?s)", "?x").guards(&["has_shape(?x, ?s)"]),
    // Transposes.
    Rule::new(
        "all_gather_of_transpose",
        "(all_gather (transpose ?x ?p) ?d ?g)",
        "(transpose (all_gather ?x ?e ?g) ?p)",
    )
    .compute(&[("?e", "element(?p, ?d)")]),
    Rule::new(
        "transpose_of_all_gather",
        "(transpose (all_gather ?x ?e ?g) ?p)",
        "(all_gather (transpose ?x ?p) ?d ?g)",
    )
    .compute(&[("?d", "index_in(?p, ?e)")]),
    Rule::new(
        "own_slice_of_transpose",
        "(own_slice (transpose ?x ?p) ?d ?g)",
        "(transpose (own_slice ?x ?e ?g) ?p)",
    )
    .compute(&[("?e", "element(?p, ?d)")]),
    Rule::new(
        "transpose_of_own_slice",
        "(transpose (own_slice ?x ?e ?g) ?p)",
        "(own_slice (transpose ?x ?p) ?d ?g)",
    )
    .compute(&[("?d", "index_in(?p, ?e)")]),
    Rule::new(
        "all_to_all_of_transpose",
        "(all_to_all (transpose ?x ?p) ?s ?c ?g)",
        "(transpose (all_to_all ?x ?e ?f ?g) ?p)",
    )
    .compute(&[("?e", "element(?p, ?s)"), ("?f", "element(?p, ?c)")]),
    Rule::new(
        "transpose_of_all_to_all",
        "(transpose (all_to_all ?x ?e ?f ?g) ?p)",
        "(all_to_all (transpose ?x ?p) ?s ?c ?g)",
    )
    .compute(&[("?s", "index_in(?p, ?e)"), ("?c", "index_in(?p, ?f)")]),
    Rule::new(
        "reduce_scatter_of_transpose",
        "(reduce_scatter (transpose ?x ?p) ?o ?d ?a ?g)",
        "(transpose (reduce_scatter ?x ?o ?e ?a ?g) ?p)",
    )
    .compute(&[("?e", "element(?p, ?d)")]),
    Rule::new(
        "transpose_of_reduce_scatter",
        "(transpose (reduce_scatter ?x ?o ?e ?a ?g) ?p)",
        "(reduce_scatter (transpose ?x ?p) ?o ?d ?a ?g)",
    )
    .compute(&[("?d", "index_in(?p, ?e)")]),
    Rule::new(
        "all_reduce_of_transpose",
        "(all_reduce (transpose ?x ?p) ?o ?a ?g)",
        "(transpose (all_reduce ?x ?o ?a ?g) ?p)",
    ),
    Rule::new(
        "transpose_of_all_reduce",
        "(transpose (all_reduce ?x ?o ?a ?g) ?p)",
        "(all_reduce (transpose ?x ?p) ?o ?a ?g)",
    ),
    Rule::new(
        "broadcast_of_transpose",
        "(broadcast_from (transpose ?x ?p) ?r ?g)",
        "(transpose (broadcast_from ?x ?r ?g) ?p)",
    ),
    Rule::new(
        "transpose_of_broadcast",
        "(transpose (broadcast_from ?x ?r ?g) ?p)",
        "(broadcast_from (transpose ?x ?p) ?r ?g)",
    ),
    // Reshapes: the collective's dimension must start at the same element on both sides.
    Rule::new(
        "reshape_of_all_gather",
        "(reshape (all_gather ?x ?d ?g) ?s)",
        "(all_gather (reshape ?x ?t) ?e ?g)",
    )
    .compute(&[("?e", "aligned(?x, ?d, ?s)"), ("?t", "divided(?s, ?e, ?g)")]),
    Rule::new(
        "all_gather_of_reshape",
        "(all_gather (reshape ?x ?s) ?e ?g)",
        "(reshape (all_gather ?x ?d ?g) ?t)",
    )
    .compute(&[("?d", "aligned_in(?x, ?s, ?e)"), ("?t", "multiplied(?s, ?e, ?g)")]),
    Rule::new(
        "reshape_of_own_slice",
        "(reshape (own_slice ?x ?d ?g) ?s)",
        "(own_slice (reshape ?x ?t) ?e ?g)",
    )
    .compute(&[("?e", "aligned(?x, ?d, ?s)"), ("?t", "multiplied(?s, ?e, ?g)")]),
    Rule::new(
        "own_slice_of_reshape",
        "(own_slice (reshape ?x ?s) ?e ?g)",
        "(reshape (own_slice ?x ?d ?g) ?t)",
    )
    .compute(&[("?d", "aligned_in(?x, ?s, ?e)"), ("?t", "divided(?s, ?e, ?g)")]),
    Rule::new(
        "reshape_of_reduce_scatter",
        "(reshape (reduce_scatter ?x ?o ?d ?a ?g) ?s)",
        "(reduce_scatter (reshape ?x ?t) ?o ?e ?a ?g)",
    )
    .compute(&[("?e", "aligned(?x, ?d, ?s)"), ("?t", "multiplied(?s, ?e, ?g)")]),
    Rule::new(
        "reduce_scatter_of_reshape",
        "(reduce_scatter (reshape ?x ?s) ?o ?e ?a ?g)",
        "(reshape (reduce_scatter ?x ?o ?d ?a ?g) ?t)",
    )
    .compute(&[("?d", "aligned_in(?x, ?s, ?e)"), ("?t", "divided(?s, ?e, ?g)")]),
    Rule::new(
        "all_to_all_of_reshape",
        "(all_to_all (reshape ?x ?h) ?e ?f ?g)",
        "(reshape (all_to_all ?x ?s ?c ?g) ?t)",
    )
    .compute(&[
        ("?s", "aligned_in(?x, ?h, ?e)"),
        ("?c", "aligned_in(?x, ?h, ?f)"),
        ("?t", "exchanged(?h, ?e, ?f, ?g)"),
    ]),
    Rule::new(
        "reshape_of_all_reduce",
        "(reshape (all_reduce ?x ?o ?a ?g) ?s)",
        "(all_reduce (reshape ?x ?s) ?o ?a ?g)",
    ),
    Rule::new(
        "all_reduce_of_reshape",
        "(all_reduce (reshape ?x ?s) ?o ?a ?g)",
        "(reshape (all_reduce ?x ?o ?a ?g) ?s)",
    ),
    Rule::new(
        "reshape_of_broadcast",
        "(reshape (broadcast_from ?x ?r ?g) ?s)",
        "(broadcast_from (reshape ?x ?s) ?r ?g)",
    ),
    Rule::new(
        "broadcast_of_reshape",
        "(broadcast_from (reshape ?x ?s) ?r ?g)",
        "(reshape (broadcast_from ?x ?r ?g) ?s)",
    ),
];
