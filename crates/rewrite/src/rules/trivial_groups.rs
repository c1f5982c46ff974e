//! Groups of one rank: every collective over them, and every own block, is its operand.

use super::Rule;

macro_rules! trivial {
    ($name:literal, $lhs:literal) => {
        Rule::new($name, $lhs, "?x").guards(&["trivial(?g)"])
    };
}

/// The rules.
pub const RULES: &[Rule] = &[
    trivial!("all_reduce_of_one", "(all_reduce ?x ?o ?a ?g)"),
    trivial!("all_gather_of_one", "(all_gather ?x ?d ?g)"),
    trivial!("reduce_scatter_of_one", "(reduce_scatter ?x ?o ?d ?a ?g)"),
    trivial!("all_to_all_of_one", "(all_to_all ?x ?s ?c ?g)"),
    trivial!("broadcast_of_one", "(broadcast_from ?x ?r ?g)"),
    trivial!("reduce_of_one", "(reduce_to ?x ?o ?r ?a ?g)"),
    trivial!("gather_of_one", "(gather_to ?x ?d ?r ?g)"),
    trivial!("scatter_of_one", "(scatter_from ?x ?d ?r ?g)"),
    trivial!("own_slice_of_one", "(own_slice ?x ?d ?g)"),
    trivial!("own_pad_of_one", "(own_pad ?x ?d ?g ?v)"),
];
