//! Which nodes matter: those that have an effect, and those whose results reach one of these or a result of the program.

use rustc_hash::FxHashSet;

use crate::{
    call::Call,
    schema::{Argument, Node, Text},
};

/// For each node, whether anything depends on it; `kept` are the values that are used after the last node.
pub(crate) fn live<'p>(nodes: &'p [Node<'p>], kept: impl Iterator<Item = &'p Argument<'p>>) -> Vec<bool> {
    let mut needed: FxHashSet<&str> = kept.flat_map(tensors).collect();
    let mut live: Vec<bool> = nodes
        .iter()
        .rev()
        .map(|node| {
            let live = !pure(node) || node.outputs.iter().flat_map(tensors).any(|n| needed.contains(n));
            if live {
                needed.extend(node.inputs.iter().flat_map(|a| tensors(&a.arg)));
            }
            live
        })
        .collect();
    live.reverse();
    live
}

/// Names of the tensors of an argument.
fn tensors<'p>(a: &'p Argument<'p>) -> Vec<&'p str> {
    match a {
        Argument::Tensor(n) => vec![n.as_ref()],
        Argument::Tensors(v) => v.iter().map(Text::as_ref).collect(),
        Argument::OptionalTensors(v) => v.iter().flatten().map(Text::as_ref).collect(),
        _ => Vec::new(),
    }
}

/// The schema's number of an argument that is given by keyword.
const KEYWORD: u8 = 2;

/// Whether a node does nothing but compute its results: an aten op that writes to no operand.
fn pure(node: &Node) -> bool {
    let call = Call::new(node);
    // aten ops without results are there for what they do; `running_...`, `noise` and `out...` are written by ops without a `_` at the end.
    call.namespace == "aten"
        && !call.in_place
        && !call.op.ends_with("_inplace")
        && node.outputs.iter().any(|o| !tensors(o).is_empty())
        && node.inputs.iter().all(|a| {
            let written = a.kind == Some(KEYWORD)
                || a.name.starts_with("out")
                || a.name.starts_with("running_")
                || a.name == "noise";
            !written || tensors(&a.arg).is_empty()
        })
}
