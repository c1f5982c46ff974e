//! Extraction by DAG cost: shared terms count once. (egg's own extractor counts trees, where a residual path doubles per
//! block.)
//!
//! Every class keeps the set of classes that its best term so far needs, with their costs; classes improve until none does.
//! Greedy, but exact where nothing is shared. Costs are positive, so a class never needs itself.

use std::collections::BTreeMap;

use egg::{Id, Language};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{Data, Egraph};
use crate::constraints::Constraints;
use crate::cost::{Cost, node_cost};
use crate::language::{Sort, Spmd, convert::to_op};

/// Most sweeps over the classes; chains are short, so improvements settle in a few.
const MAX_SWEEPS: usize = 64;

/// The best term of a class.
#[derive(Clone, Debug)]
struct Best {
    node: Spmd,
    total: Cost,
    needs: BTreeMap<Id, Cost>,
}

/// The chosen e-node of every class that has one.
#[derive(Clone, Debug)]
pub struct Extraction {
    chosen: FxHashMap<Id, Spmd>,
}

impl Extraction {
    /// Chooses an e-node per class. `source` are the e-nodes of the source program, canonical.
    pub fn new(egraph: &Egraph, source: &FxHashSet<Spmd>, constraints: &Constraints) -> Extraction {
        let mut classes: Vec<Id> = egraph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        let mut best: FxHashMap<Id, Best> = FxHashMap::default();
        for _ in 0..MAX_SWEEPS {
            let mut improved = false;
            for &class in &classes {
                let mut nodes: Vec<&Spmd> = egraph[class].nodes.iter().collect();
                nodes.sort_unstable();
                for node in nodes {
                    let Some(candidate) = price(egraph, class, node, source, constraints, &best) else {
                        continue;
                    };
                    if best.get(&class).is_none_or(|b| candidate.total < b.total) {
                        best.insert(class, candidate);
                        improved = true;
                    }
                }
            }
            if !improved {
                break;
            }
        }
        Extraction { chosen: best.into_iter().map(|(id, b)| (id, b.node)).collect() }
    }

    /// The chosen e-node of a class.
    pub fn node(&self, egraph: &Egraph, class: Id) -> Option<&Spmd> {
        self.chosen.get(&egraph.find(class))
    }
}

fn price(
    egraph: &Egraph,
    class: Id,
    node: &Spmd,
    source: &FxHashSet<Spmd>,
    constraints: &Constraints,
    best: &FxHashMap<Id, Best>,
) -> Option<Best> {
    let own = own_cost(egraph, class, node, source, constraints)?;
    let mut needs: BTreeMap<Id, Cost> = BTreeMap::new();
    for &child in node.children() {
        let b = best.get(&egraph.find(child))?;
        needs.extend(&b.needs);
    }
    if needs.contains_key(&class) {
        return None;
    }
    needs.insert(class, own);
    let total = needs.values().fold(Cost::default(), |a, &b| a + b);
    Some(Best { node: node.clone(), total, needs })
}

fn own_cost(
    egraph: &Egraph,
    class: Id,
    node: &Spmd,
    source: &FxHashSet<Spmd>,
    constraints: &Constraints,
) -> Option<Cost> {
    let Spmd::Op(head, children) = node else { return Some(Cost::default()) };
    let mut attrs = Vec::new();
    let mut operand = None;
    for (&c, sort) in children.iter().zip(head.signature()) {
        match (sort, &egraph[c].data) {
            (Sort::Tensor, Data::Tensor { facts, .. }) => {
                operand.get_or_insert(&facts.ty);
            }
            (_, Data::Attr(a)) => attrs.push(a.clone()),
            _ => return None,
        }
    }
    let result = &egraph[class].data.facts()?.ty;
    let op = to_op(*head, &attrs)?;
    let mut cost = node_cost(&op, operand, result, &egraph.analysis.mesh, constraints);
    let canonical = node.clone().map_children(|c| egraph.find(c));
    if source.contains(&canonical) {
        cost.new = 0;
    }
    Some(cost)
}
