//! Casts: redundant ones, and casts across data movement (both ways, so that they meet and cancel, and so that the
//! collective ends up on the narrower side).

use super::Rule;

/// A cast moves through a data movement `(head ?x attributes)`, out and in.
macro_rules! across {
    ($out:literal, $into:literal, $head:literal, $attributes:literal) => {
        [
            Rule::new(
                $out,
                concat!("(", $head, " (cast ?x ?t) ", $attributes, ")"),
                concat!("(cast (", $head, " ?x ", $attributes, ") ?t)"),
            ),
            Rule::new(
                $into,
                concat!("(cast (", $head, " ?x ", $attributes, ") ?t)"),
                concat!("(", $head, " (cast ?x ?t) ", $attributes, ")"),
            ),
        ]
    };
}

const REDUNDANT: [Rule; 4] = [
    Rule::new("cast_to_own_type", "(cast ?x ?t)", "?x").guards(&["has_dtype(?x, ?t)"]),
    Rule::new("cast_there_and_back", "(cast (cast ?x ?w) ?t)", "?x")
        .guards(&["has_dtype(?x, ?t)", "embeds(?x, ?w)"]),
    Rule::new("cast_through_wider", "(cast (cast ?x ?w) ?t)", "(cast ?x ?t)").guards(&[
        "embeds(?x, ?w)",
        "one_kind(?x, ?w)",
        "one_kind(?x, ?t)",
    ]),
    // Narrowing loses nothing where the value came from the narrow type.
    Rule::new("cast_of_representable", "(cast (cast ?x ?n) ?t)", "?x")
        .guards(&["has_dtype(?x, ?t)", "representable(?x, ?n)"]),
];

const ACROSS: [[Rule; 2]; 8] = [
    across!("all_gather_of_cast", "cast_of_all_gather", "all_gather", "?d ?g"),
    across!("all_to_all_of_cast", "cast_of_all_to_all", "all_to_all", "?s ?c ?g"),
    across!("broadcast_of_cast", "cast_of_broadcast", "broadcast_from", "?r ?g"),
    across!("scatter_of_cast", "cast_of_scatter", "scatter_from", "?d ?r ?g"),
    across!("gather_of_cast", "cast_of_gather", "gather_to", "?d ?r ?g"),
    across!("own_slice_of_cast", "cast_of_own_slice", "own_slice", "?d ?g"),
    across!("reshape_of_cast", "cast_of_reshape", "reshape", "?s"),
    across!("transpose_of_cast", "cast_of_transpose", "transpose", "?p"),
];

/// The rules.
pub const RULES: &[Rule] = &{
    let mut all = [REDUNDANT[0]; REDUNDANT.len() + 2 * ACROSS.len()];
    let mut i = 0;
    while i < REDUNDANT.len() {
        all[i] = REDUNDANT[i];
        i += 1;
    }
    let mut j = 0;
    while j < ACROSS.len() {
        all[i] = ACROSS[j][0];
        all[i + 1] = ACROSS[j][1];
        i += 2;
        j += 1;
    }
    all
};
