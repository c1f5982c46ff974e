//! Branches: the cases that a rule's class depends on, found from what its variables stand for.

use egg::{ENodeOrVar, Language};
use shardweld_ir::{DType, Mesh, Scalar};

use super::functions::Bound;
use super::{Bindings, CompiledRule};
use crate::language::{Attr, Spmd};

/// The branch of an application: kind of element (unless the rule moves data of any type), combinations, fill values, size of
/// each group.
///
/// `None` if a variable is not bound.
pub fn branch(rule: &CompiledRule, bindings: &Bindings, mesh: &Mesh) -> Option<String> {
    let mut kind = None;
    let mut parts: Vec<String> = Vec::new();
    let mut sizes: Vec<&'static str> = Vec::new();
    let mut seen = Vec::new();
    let mut attr = |a: &Attr| match a {
        Attr::Reduce(op) => parts.push(op.name().to_owned()),
        Attr::Group(g) => sizes.push(size(g.size(mesh))),
        Attr::Scalar(s) => parts.push(fill(*s).to_owned()),
        _ => {}
    };
    for node in rule.lhs.ast.as_ref() {
        match node {
            ENodeOrVar::Var(v) if seen.contains(v) => {}
            ENodeOrVar::Var(v) => {
                seen.push(*v);
                match bindings.0.get(v)? {
                    Bound::Tensor(facts) if rule.depends_on_type() => {
                        kind.get_or_insert(kind_of(facts.ty.dtype));
                    }
                    Bound::Tensor(_) => {}
                    Bound::Attr(a) => attr(a),
                }
            }
            ENodeOrVar::ENode(Spmd::Attr(a)) => attr(a),
            ENodeOrVar::ENode(n) => debug_assert!(!n.is_leaf()),
        }
    }
    let sizes = match sizes.len() {
        0 => None,
        _ => Some(format!("n{}", sizes.join(", "))),
    };
    let all: Vec<&str> =
        kind.into_iter().chain(parts.iter().map(String::as_str)).chain(sizes.as_deref()).collect();
    Some(if all.is_empty() { "any".to_owned() } else { all.join(" ") })
}

fn size(n: u32) -> &'static str {
    match n {
        0 | 1 => "=1",
        2 => "=2",
        _ => ">2",
    }
}

fn kind_of(dtype: DType) -> &'static str {
    match dtype {
        d if d.is_float() => "float",
        DType::Bool => "bool",
        _ => "int",
    }
}

fn fill(value: Scalar) -> &'static str {
    match value {
        Scalar::Float(v) if v == 0.0 && v.is_sign_negative() => "fill -0.0",
        Scalar::Float(0.0) => "fill +0.0",
        Scalar::Int(0) | Scalar::Bool(false) => "fill 0",
        _ => "fill other",
    }
}
