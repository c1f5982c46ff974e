//! The e-class analysis: type, replication and representability of every class, and which source collectives it stands for.
//!
//! Unequal types on a merge, or a term that the shape rules refuse, are kept as errors; the window is then given up.

use std::collections::BTreeSet;

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use shardweld_ir::Mesh;

use crate::facts::{Facts, derive};
use crate::language::{Attr, Sort, Spmd, convert::to_op};

/// The e-graph of a window.
pub type Egraph = EGraph<Spmd, SpmdAnalysis>;

/// What is known about an e-class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A tensor.
    Tensor {
        /// Facts that hold for every term of the class.
        facts: Facts,
        /// Collectives of the window (by node number) that a collective of this class stands for.
        origins: BTreeSet<u32>,
    },
    /// An attribute leaf.
    Attr(Attr),
    /// A term that the shape rules refuse.
    Invalid,
}

impl Data {
    /// The facts of a tensor.
    pub fn facts(&self) -> Option<&Facts> {
        match self {
            Data::Tensor { facts, .. } => Some(facts),
            _ => None,
        }
    }
}

/// What the analysis needs to know, and the errors it found.
#[derive(Clone, Debug)]
pub struct SpmdAnalysis {
    /// The mesh.
    pub mesh: Mesh,
    /// Facts of the values from outside, by number.
    pub live: Vec<Facts>,
    /// Whether what is known of one term of a class holds for all. It does while all terms of a class are equal but for NaN
    /// payloads; terms equal over the reals only share what is known of each.
    pub terms_agree: bool,
    /// What went wrong.
    pub errors: Vec<String>,
}

impl Analysis<Spmd> for SpmdAnalysis {
    type Data = Data;

    fn make(egraph: &mut Egraph, enode: &Spmd) -> Data {
        let tensor = |facts: Facts| Data::Tensor { facts, origins: BTreeSet::new() };
        match enode {
            Spmd::Attr(a) => Data::Attr(a.clone()),
            Spmd::Live(k) => match egraph.analysis.live.get(*k as usize) {
                Some(f) => tensor(f.clone()),
                None => {
                    egraph.analysis.errors.push(format!("there is no live-in {k}"));
                    Data::Invalid
                }
            },
            Spmd::Op(head, children) => {
                let mut operands = Vec::new();
                let mut attrs = Vec::new();
                for (&c, sort) in children.iter().zip(head.signature()) {
                    match (&egraph[c].data, sort) {
                        (Data::Tensor { facts, .. }, Sort::Tensor) => operands.push(facts),
                        (Data::Attr(a), _) => attrs.push(a.clone()),
                        _ => {}
                    }
                }
                let made = match to_op(*head, &attrs) {
                    Some(op) => derive(&op, &operands, &egraph.analysis.mesh, &[]).map_err(|e| e.to_string()),
                    None => Err("an attribute is missing or of another kind".into()),
                };
                match made {
                    Ok(f) => tensor(f),
                    Err(e) => {
                        egraph.analysis.errors.push(format!("{}: {e}", head.name()));
                        Data::Invalid
                    }
                }
            }
        }
    }

    fn merge(&mut self, a: &mut Data, b: Data) -> DidMerge {
        match (&mut *a, b) {
            (Data::Tensor { facts: x, origins: o }, Data::Tensor { facts: y, origins: p }) => {
                if x.ty != y.ty {
                    self.errors.push(format!("{} united with {}", x.ty, y.ty));
                    return DidMerge(false, true);
                }
                let both = if self.terms_agree {
                    (x.replicated.union(y.replicated), x.fits.union(y.fits), x.defined || y.defined)
                } else {
                    (
                        x.replicated.intersection(y.replicated),
                        x.fits.intersection(y.fits),
                        x.defined && y.defined,
                    )
                };
                let all: BTreeSet<u32> = o.union(&p).copied().collect();
                let first = both != (x.replicated, x.fits, x.defined) || all != *o;
                let second = both != (y.replicated, y.fits, y.defined) || all != p;
                (x.replicated, x.fits, x.defined) = both;
                *o = all;
                DidMerge(first, second)
            }
            (Data::Attr(x), Data::Attr(y)) if *x == y => DidMerge(false, false),
            (x, y) => {
                self.errors.push(format!("{x:?} united with {y:?}"));
                DidMerge(false, true)
            }
        }
    }
}

/// Classes of the operator nodes of an instantiated pattern, by pattern node; variables are looked up in the substitution.
pub fn pattern_classes(
    egraph: &Egraph,
    pattern: &egg::PatternAst<Spmd>,
    subst: &egg::Subst,
) -> Option<Vec<Id>> {
    let mut ids: Vec<Id> = Vec::with_capacity(pattern.as_ref().len());
    for node in pattern.as_ref() {
        let id = match node {
            egg::ENodeOrVar::Var(v) => *subst.get(*v)?,
            egg::ENodeOrVar::ENode(n) => egraph.lookup(n.clone().map_children(|c| ids[usize::from(c)]))?,
        };
        ids.push(egraph.find(id));
    }
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::AxisSet;
    use shardweld_ir::{DType, TensorType};

    fn egraph(types: &[TensorType], terms_agree: bool) -> Egraph {
        let live = types
            .iter()
            .zip(0u64..)
            .map(|(ty, k)| Facts { replicated: AxisSet(k), ..Facts::of(ty.clone()) })
            .collect();
        let mesh = Mesh::new([("a", 2)]).unwrap();
        EGraph::new(SpmdAnalysis { mesh, live, terms_agree, errors: Vec::new() })
    }

    #[test]
    fn a_merge_of_unequal_types_is_an_error_value() {
        let mut g = egraph(&[TensorType::new(DType::F32, &[4]), TensorType::new(DType::F32, &[8])], true);
        let (a, b) = (g.add(Spmd::Live(0)), g.add(Spmd::Live(1)));
        g.union(a, b);
        g.rebuild();
        assert_eq!(g.analysis.errors, ["f32[4] united with f32[8]"]);
    }

    #[test]
    fn facts_of_terms_that_agree_join_and_of_others_meet() {
        let ty = TensorType::new(DType::F32, &[4]);
        for (agree, expected) in [(true, AxisSet(1)), (false, AxisSet::NONE)] {
            let mut g = egraph(&[ty.clone(), ty.clone()], agree);
            let (a, b) = (g.add(Spmd::Live(0)), g.add(Spmd::Live(1)));
            g.union(a, b);
            g.rebuild();
            assert!(g.analysis.errors.is_empty());
            assert_eq!(g[a].data.facts().unwrap().replicated, expected);
        }
    }

    #[test]
    fn an_ill_typed_term_is_an_error_value() {
        let mut g = egraph(&[TensorType::new(DType::F32, &[4])], true);
        let expr: egg::RecExpr<Spmd> = "(transpose $0 [1,0])".parse().unwrap();
        g.add_expr(&expr);
        assert_eq!(g.analysis.errors.len(), 1);
        let expr: egg::RecExpr<Spmd> = "(cast $7 f32)".parse().unwrap();
        g.add_expr(&expr);
        assert!(g.analysis.errors.iter().any(|e| e.contains("live-in 7")));
    }
}
