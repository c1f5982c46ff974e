//! Text of the language, as rules and certificates write it: `(all_gather $0 1 @0)`.
//!
//! Leaves: `$k` live-in, `3` dimension or size, `[2,3]` shape or permutation, `f32` type, `none` / `accum:f32` accumulation,
//! `sum` combination, `s:-0.0` number, `@0,1` group over mesh axes 0 and 1 (0 major), `@` the group of one,
//! `@r:0,2|1,3` explicit rank lists.

use std::fmt;

use egg::{FromOp, FromOpError, Id};
use shardweld_ir::{AxisId, DType, Group, ReduceOp, Scalar};

use super::{Attr, Head, Spmd};

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Int(i) => write!(f, "{i}"),
            Attr::Group(Group::Axes(axes)) => {
                write!(f, "@{}", axes.iter().map(|a| a.0.to_string()).collect::<Vec<_>>().join(","))
            }
            Attr::Group(Group::Ranks(lists)) => {
                let list = |l: &Vec<u32>| l.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                write!(f, "@r:{}", lists.iter().map(list).collect::<Vec<_>>().join("|"))
            }
            Attr::DType(d) => write!(f, "{d}"),
            Attr::Accum(None) => f.write_str("none"),
            Attr::Accum(Some(d)) => write!(f, "accum:{d}"),
            Attr::Reduce(r) => f.write_str(r.name()),
            Attr::Dims(d) => {
                write!(f, "[{}]", d.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
            }
            Attr::Scalar(s) => write!(f, "s:{s}"),
        }
    }
}

/// Reads what [`Attr`]'s `Display` writes.
pub fn parse_attr(text: &str) -> Option<Attr> {
    if let Some(rest) = text.strip_prefix("@r:") {
        let lists = rest.split('|').map(numbers).collect::<Option<Vec<_>>>()?;
        return Some(Attr::Group(Group::Ranks(lists)));
    }
    if let Some(rest) = text.strip_prefix('@') {
        return Some(Attr::Group(Group::Axes(numbers(rest)?.into_iter().map(AxisId).collect())));
    }
    if let Some(rest) = text.strip_prefix("s:") {
        return scalar(rest).map(Attr::Scalar);
    }
    if let Some(rest) = text.strip_prefix("accum:") {
        return DType::from_name(rest).map(|d| Attr::Accum(Some(d)));
    }
    if let Some(rest) = text.strip_prefix('[') {
        return numbers(rest.strip_suffix(']')?).map(Attr::Dims);
    }
    if text == "none" {
        return Some(Attr::Accum(None));
    }
    text.parse()
        .ok()
        .map(Attr::Int)
        .or_else(|| DType::from_name(text).map(Attr::DType))
        .or_else(|| ReduceOp::from_name(text).map(Attr::Reduce))
}

fn numbers<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|n| n.parse().ok()).collect()
}

fn scalar(text: &str) -> Option<Scalar> {
    match text {
        "true" => Some(Scalar::Bool(true)),
        "false" => Some(Scalar::Bool(false)),
        _ if text.contains(['.', 'e', 'n']) => text.parse().ok().map(Scalar::Float),
        _ => text.parse().ok().map(Scalar::Int),
    }
}

impl fmt::Display for Spmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spmd::Live(k) => write!(f, "${k}"),
            Spmd::Attr(a) => a.fmt(f),
            Spmd::Op(h, _) => f.write_str(h.name()),
        }
    }
}

impl FromOp for Spmd {
    type Error = FromOpError;

    fn from_op(op: &str, children: Vec<Id>) -> Result<Self, FromOpError> {
        let leaf = children.is_empty();
        if let Some(k) = op.strip_prefix('$').filter(|_| leaf).and_then(|k| k.parse().ok()) {
            return Ok(Spmd::Live(k));
        }
        match Head::from_name(op).filter(|h| h.signature().len() == children.len()) {
            Some(h) => Ok(Spmd::Op(h, children.into())),
            None => match parse_attr(op).filter(|_| leaf) {
                Some(a) => Ok(Spmd::Attr(a)),
                None => Err(FromOpError::new(op, children)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_read_back() {
        for text in [
            "(all_gather (transpose $0 [1,0]) 1 @1,0)",
            "(own_pad (cast $3 f32) 0 @ s:-0.0)",
            "(all_reduce $0 max accum:f32 @r:0,2|1,3)",
            "(own_pad $1 0 @0 s:false)",
        ] {
            let expr: egg::RecExpr<Spmd> = text.parse().unwrap();
            assert_eq!(expr.to_string(), text);
        }
    }

    #[test]
    fn wrong_arity_and_unknown_leaves_are_refused() {
        assert!("(all_gather $0 1)".parse::<egg::RecExpr<Spmd>>().is_err());
        assert!("(cast $0 f33)".parse::<egg::RecExpr<Spmd>>().is_err());
    }
}
