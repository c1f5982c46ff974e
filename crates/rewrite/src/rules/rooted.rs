//! Rooted collectives: whole compositions are symmetric collectives; single ones by symmetric ones where the target cannot
//! build them. What is undefined off root is refined, one way, never united.

use super::{Policy, Rule};

/// The rules.
pub const RULES: &[Rule] = &[
    Rule::new(
        "broadcast_of_gather",
        "(broadcast_from (gather_to ?x ?d ?r ?g) ?r ?g)",
        "(all_gather ?x ?d ?g)",
    ),
    Rule::new("scatter_of_gather", "(scatter_from (gather_to ?x ?d ?r ?g) ?d ?r ?g)", "?x"),
    Rule::new(
        "broadcast_of_reduce",
        "(broadcast_from (reduce_to ?x ?o ?r ?a ?g) ?r ?g)",
        "(all_reduce ?x ?o ?a ?g)",
    ),
    Rule::new(
        "scatter_of_reduce",
        "(scatter_from (reduce_to ?x ?o ?r ?a ?g) ?d ?r ?g)",
        "(reduce_scatter ?x ?o ?d ?a ?g)",
    ),
    Rule::new(
        "scatter_as_slice_of_broadcast",
        "(scatter_from ?x ?d ?r ?g)",
        "(own_slice (broadcast_from ?x ?r ?g) ?d ?g)",
    )
    .policy(Policy::WhereUnbuildable),
    Rule::new(
        "broadcast_as_slice_of_all_gather",
        "(broadcast_from ?x ?r ?g)",
        "(reshape (slice (all_gather (reshape ?x ?s) ?z ?g) ?z ?r ?q ?i) ?t)",
    )
    .compute(&[
        ("?s", "stacked(?x)"),
        ("?z", "zero()"),
        ("?q", "next(?r)"),
        ("?i", "one()"),
        ("?t", "shape_of(?x)"),
    ])
    // A broadcast reads its root only, an all-gather every rank.
    .guards(&["defined(?x)"])
    .policy(Policy::WhereUnbuildable),
    Rule::new("gather_as_all_gather", "(gather_to ?x ?d ?r ?g)", "(all_gather ?x ?d ?g)").refinement(),
    Rule::new("reduce_as_all_reduce", "(reduce_to ?x ?o ?r ?a ?g)", "(all_reduce ?x ?o ?a ?g)").refinement(),
];
