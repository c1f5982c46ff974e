//! The evaluator: walks a graph in program order for all ranks at once, over any value domain.
//!
//! Ranks whose operands are known to be the same share one computation. Every rank reaches a collective at the same step, so
//! a collective is a barrier without any waiting. A weight is read when its first user comes, a value dropped when its last has run.
//!
//! Results of rooted collectives are *undefined* off root. Undefined values spread through ops without communication and are
//! harmless until somebody sees them: an output, or a collective that needs the operand, is then an error.

use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use shardweld_ir::{
    Collective, DType, Graph, GraphError, Group, Literal, Node, NodeId, Op, Scalar, TensorType, Value,
    WeightId,
};
use thiserror::Error;

use crate::domain::Domain;

/// Below this many result elements over all ranks, a node runs on the calling thread.
const PARALLEL_ELEMENTS: u64 = 1 << 12;

/// Values by name, of one rank.
pub type Named<V> = BTreeMap<String, V>;

/// What a rank holds for one result.
#[derive(Clone, Debug)]
pub enum Slot<V> {
    /// A value.
    Defined(V),
    /// Nothing that may be looked at: comes from the off-root side of the named node.
    Undefined {
        /// Name of the rooted collective.
        origin: String,
    },
}

/// Results of one node, handed to an observer right after it ran.
#[derive(Debug)]
pub struct Observed<'a, V> {
    /// The node.
    pub id: NodeId,
    /// What it is.
    pub node: &'a Node,
    /// `results[result][rank]`.
    pub results: &'a [Vec<Slot<V>>],
}

/// Why a program has no outputs.
#[derive(Debug, Error)]
pub enum EvalError<E: std::error::Error + 'static> {
    /// The graph has no program order.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Inputs for another number of ranks than the mesh has.
    #[error("inputs are given for {found} ranks, the mesh {mesh} has {expected}")]
    Ranks {
        /// Ranks with inputs.
        found: usize,
        /// Ranks of the mesh.
        expected: u32,
        /// The mesh as text.
        mesh: String,
    },
    /// A rank lacks an input.
    #[error("rank {rank} has no input `{input}`; it has: {present}")]
    MissingInput {
        /// Global rank.
        rank: u32,
        /// Name of the input.
        input: String,
        /// Names given, as text.
        present: String,
    },
    /// An input of another type than declared.
    #[error("input `{input}` of rank {rank} is {found}, the program declares {expected}")]
    InputType {
        /// Global rank.
        rank: u32,
        /// Name of the input.
        input: String,
        /// Type given.
        found: TensorType,
        /// Type declared.
        expected: TensorType,
    },
    /// A node failed.
    #[error("node `{node}` ({op}) on rank {rank}: {source}")]
    Node {
        /// Name of the node.
        node: String,
        /// Mnemonic.
        op: &'static str,
        /// Global rank (the lowest of those that share the computation).
        rank: u32,
        /// What the domain says.
        source: Box<E>,
    },
    /// A node gave something else than its type says: the graph is not well typed.
    #[error("node `{node}` ({op}) on rank {rank} gave {found}, the graph says {expected}")]
    ResultType {
        /// Name of the node.
        node: String,
        /// Mnemonic.
        op: &'static str,
        /// Global rank.
        rank: u32,
        /// What came, as text.
        found: String,
        /// What the graph says, as text.
        expected: String,
    },
    /// An undefined value was looked at.
    #[error(
        "`{user}` on rank {rank} needs a value that is undefined there: `{origin}` defines it at its root only"
    )]
    Undefined {
        /// The output or collective that looks.
        user: String,
        /// Global rank whose value is undefined.
        rank: u32,
        /// The rooted collective it comes from.
        origin: String,
    },
    /// The graph is malformed in a way that the builder API rules out.
    #[error("node `{node}`: {reason}; run the verifier on this graph")]
    Malformed {
        /// Name of the node.
        node: String,
        /// What is wrong.
        reason: String,
    },
}

type Result<T, D> = std::result::Result<T, EvalError<<D as Domain>::Error>>;
type PerRank<V> = Vec<Slot<V>>;

/// Runs a program for all ranks. `inputs[rank]` holds that rank's inputs by name; names that the program lacks are ignored.
///
/// # Errors
/// As [`EvalError`] says; the first failing node in program order.
pub fn evaluate<D: Domain>(
    graph: &Graph,
    domain: &D,
    inputs: &[Named<D::Value>],
    observer: &mut dyn FnMut(Observed<'_, D::Value>),
) -> Result<Vec<Named<D::Value>>, D> {
    let world = graph.mesh().world_size();
    if inputs.len() != world as usize {
        return Err(EvalError::Ranks {
            found: inputs.len(),
            expected: world,
            mesh: graph.mesh().to_string(),
        });
    }
    let order = graph.order()?;
    let mut uses: FxHashMap<NodeId, usize> = FxHashMap::default();
    let read = order.iter().flat_map(|&id| graph.node(id).operands.iter()).map(|v| v.node);
    for id in read.chain(graph.outputs().iter().map(|o| o.value.node)) {
        *uses.entry(id).or_default() += 1;
    }
    let mut walk = Walk { graph, domain, inputs, uses, values: FxHashMap::default() };
    for id in order {
        let node = graph.node(id);
        if matches!(node.op, Op::Weight(_)) {
            continue;
        }
        walk.read_weights(node.operands.iter().map(|v| v.node), observer)?;
        walk.step(id, observer)?;
        for v in &node.operands {
            walk.used(v.node);
        }
    }
    walk.read_weights(graph.outputs().iter().map(|o| o.value.node), observer)?;
    walk.outputs()
}

struct Walk<'a, D: Domain> {
    graph: &'a Graph,
    domain: &'a D,
    inputs: &'a [Named<D::Value>],
    /// Readers of a node's results that have not run yet, outputs among them.
    uses: FxHashMap<NodeId, usize>,
    values: FxHashMap<NodeId, Vec<PerRank<D::Value>>>,
}

impl<D: Domain> Walk<'_, D> {
    fn world(&self) -> u32 {
        self.graph.mesh().world_size()
    }

    /// Runs a node and keeps its results if anybody reads them.
    fn step(&mut self, id: NodeId, observer: &mut dyn FnMut(Observed<'_, D::Value>)) -> Result<(), D> {
        let node = self.graph.node(id);
        let results = self.node(node)?;
        self.check(node, &results)?;
        observer(Observed { id, node, results: &results });
        if self.uses.contains_key(&id) {
            self.values.insert(id, results);
        }
        Ok(())
    }

    /// Weights are read when their first user comes, so that they do not all lie in memory at once.
    fn read_weights(
        &mut self,
        ids: impl Iterator<Item = NodeId>,
        observer: &mut dyn FnMut(Observed<'_, D::Value>),
    ) -> Result<(), D> {
        for id in ids {
            if matches!(self.graph.node(id).op, Op::Weight(_)) && !self.values.contains_key(&id) {
                self.step(id, observer)?;
            }
        }
        Ok(())
    }

    /// One reader of a node has run; the last one drops its results.
    fn used(&mut self, id: NodeId) {
        if let Some(n) = self.uses.get_mut(&id) {
            *n -= 1;
            if *n == 0 {
                self.values.remove(&id);
            }
        }
    }

    fn per_rank(&self, node: &Node, value: Value) -> Result<&[Slot<D::Value>], D> {
        self.values.get(&value.node).and_then(|r| r.get(value.result as usize)).map(Vec::as_slice).ok_or_else(
            || EvalError::Malformed {
                node: node.name.clone(),
                reason: format!("operand result #{} does not exist", value.result),
            },
        )
    }

    fn operands(&self, node: &Node) -> Result<Vec<&[Slot<D::Value>]>, D> {
        node.operands.iter().map(|&v| self.per_rank(node, v)).collect()
    }

    fn node(&self, node: &Node) -> Result<Vec<PerRank<D::Value>>, D> {
        match &node.op {
            Op::Input { name } => self.input(node, name),
            Op::Weight(id) => self.weight(node, *id),
            Op::Collective { kind, group } => self.collective(node, *kind, group),
            Op::AxisSelect { axis } => {
                let operands = self.operands(node)?;
                let pick = |rank: u32| {
                    let at = self.graph.mesh().coordinate(rank, *axis) as usize;
                    operands.get(at).and_then(|o| o.get(rank as usize)).cloned().ok_or_else(|| {
                        EvalError::Malformed {
                            node: node.name.clone(),
                            reason: format!("no operand for coordinate {at}"),
                        }
                    })
                };
                Ok(vec![(0..self.world()).map(pick).collect::<Result<_, D>>()?])
            }
            _ => self.local(node),
        }
    }

    fn input(&self, node: &Node, name: &str) -> Result<Vec<PerRank<D::Value>>, D> {
        let mut slots = Vec::with_capacity(self.inputs.len());
        for (rank, given) in (0u32..).zip(self.inputs) {
            let value = given.get(name).ok_or_else(|| EvalError::MissingInput {
                rank,
                input: name.to_owned(),
                present: if given.is_empty() {
                    "none".to_owned()
                } else {
                    given.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
                },
            })?;
            let found = self.domain.ty(value);
            match node.results.first() {
                Some(expected) if *expected != found => {
                    return Err(EvalError::InputType {
                        rank,
                        input: name.to_owned(),
                        found,
                        expected: expected.clone(),
                    });
                }
                _ => slots.push(Slot::Defined(value.clone())),
            }
        }
        Ok(vec![slots])
    }

    fn weight(&self, node: &Node, id: WeightId) -> Result<Vec<PerRank<D::Value>>, D> {
        let weight = self.graph.weights().get(id.0 as usize).ok_or_else(|| EvalError::Malformed {
            node: node.name.clone(),
            reason: format!("there is no weight #{}", id.0),
        })?;
        let shards: Vec<usize> =
            (0..self.world()).map(|r| self.graph.mesh().index_over(r, &weight.over)).collect();
        self.shared(node, &shards, |_, &shard| {
            self.domain.weight(self.graph, id, shard).map(|v| vec![Slot::Defined(v)])
        })
    }

    /// Computes once per distinct key and hands the results to every rank with that key.
    fn shared<K: PartialEq + Sync>(
        &self,
        node: &Node,
        keys: &[K],
        compute: impl Fn(usize, &K) -> std::result::Result<Vec<Slot<D::Value>>, D::Error> + Sync,
    ) -> Result<Vec<PerRank<D::Value>>, D> {
        // first[rank]: the lowest rank with the same key.
        let first: Vec<usize> =
            (0..keys.len()).map(|r| keys.iter().position(|k| *k == keys[r]).unwrap_or(r)).collect();
        let distinct: Vec<usize> = (0..keys.len()).filter(|&r| first[r] == r).collect();
        let one = |&r: &usize| {
            compute(r, &keys[r]).map_err(|source| EvalError::Node {
                node: node.name.clone(),
                op: node.op.name(),
                rank: r as u32,
                source: Box::new(source),
            })
        };
        let elements: u64 = node.results.iter().filter_map(|t| t.shape.elements()).sum();
        // Collected in rank order, so the error named is that of the lowest rank whatever ran first.
        let computed: Vec<Result<Vec<Slot<D::Value>>, D>> =
            if distinct.len() > 1 && elements.saturating_mul(distinct.len() as u64) >= PARALLEL_ELEMENTS {
                distinct.par_iter().map(one).collect()
            } else {
                distinct.iter().map(one).collect()
            };
        let mut of_rank = FxHashMap::default();
        for (r, c) in distinct.into_iter().zip(computed) {
            of_rank.insert(r, c?);
        }
        let mut results = vec![Vec::with_capacity(keys.len()); node.results.len()];
        for r in first {
            let found = of_rank.get(&r).map_or(&[][..], Vec::as_slice);
            if found.len() != results.len() {
                return Err(EvalError::ResultType {
                    node: node.name.clone(),
                    op: node.op.name(),
                    rank: r as u32,
                    found: format!("{} results", found.len()),
                    expected: format!("{} results", results.len()),
                });
            }
            for (slots, v) in results.iter_mut().zip(found) {
                slots.push(v.clone());
            }
        }
        Ok(results)
    }

    fn local(&self, node: &Node) -> Result<Vec<PerRank<D::Value>>, D> {
        let operands = self.operands(node)?;
        let mesh = self.graph.mesh();
        let keys = (0..self.world())
            .map(|rank| {
                let op = for_rank(node, rank, self.graph)?;
                Ok(Key {
                    domain: self.domain,
                    operands: operands.iter().map(|o| &o[rank as usize]).collect(),
                    position: node.op.group().map(|g| g.position(mesh, rank)),
                    op,
                })
            })
            .collect::<Result<Vec<_>, D>>()?;
        self.shared(node, &keys, |_, key| {
            let mut defined = Vec::with_capacity(key.operands.len());
            for o in &key.operands {
                match o {
                    Slot::Defined(v) => defined.push(v),
                    Slot::Undefined { origin } => {
                        return Ok(vec![Slot::Undefined { origin: origin.clone() }; node.results.len()]);
                    }
                }
            }
            let op = key.op.as_ref().unwrap_or(&node.op);
            let results = self.domain.local(op, &defined, &node.results)?;
            Ok(results.into_iter().map(Slot::Defined).collect())
        })
    }

    fn collective(&self, node: &Node, kind: Collective, group: &Group) -> Result<Vec<PerRank<D::Value>>, D> {
        let operands = self.operands(node)?;
        let malformed =
            |reason: &str| EvalError::Malformed { node: node.name.clone(), reason: reason.into() };
        let (Some(&operand), Some(result)) = (operands.first(), node.results.first()) else {
            return Err(malformed("a collective without operand or result"));
        };
        let groups = group.all(self.graph.mesh());
        let mut sent = Vec::with_capacity(groups.len());
        for members in &groups {
            sent.push(self.sent(node, kind, members, operand)?);
        }
        // Groups that send the same values receive the same values.
        let same = |a: &[D::Value], b: &[D::Value]| a.iter().zip(b).all(|(x, y)| self.domain.same(x, y));
        let first: Vec<usize> =
            (0..sent.len()).map(|g| sent[..g].iter().position(|s| same(s, &sent[g])).unwrap_or(g)).collect();
        let computed: Vec<_> = (0..sent.len())
            .into_par_iter()
            .map(|g| (first[g] == g).then(|| self.domain.collective(kind, &sent[g], result)).transpose())
            .collect();
        let mut received = Vec::with_capacity(groups.len());
        for (members, c) in groups.iter().zip(computed) {
            received.push(c.map_err(|source| EvalError::Node {
                node: node.name.clone(),
                op: node.op.name(),
                rank: members.first().copied().unwrap_or(0),
                source: Box::new(source),
            })?);
        }
        let mut slots: Vec<Option<Slot<D::Value>>> = vec![None; self.world() as usize];
        for (g, members) in groups.iter().enumerate() {
            let values = received[first[g]].as_deref().unwrap_or_default();
            for (&rank, value) in members.iter().zip(values) {
                if let Some(slot) = slots.get_mut(rank as usize) {
                    *slot = Some(match value {
                        Some(v) => Slot::Defined(v.clone()),
                        None => Slot::Undefined { origin: node.name.clone() },
                    });
                }
            }
        }
        let all: Option<PerRank<D::Value>> = slots.into_iter().collect();
        Ok(vec![all.ok_or_else(|| malformed("the group leaves out a rank, or the result lacks one"))?])
    }

    /// What the ranks of one group send. Off root, broadcast and scatter do not look at the operand, so it may be undefined.
    fn sent(
        &self,
        node: &Node,
        kind: Collective,
        members: &[u32],
        operand: &[Slot<D::Value>],
    ) -> Result<Vec<D::Value>, D> {
        let at = |rank: u32| match operand.get(rank as usize) {
            Some(Slot::Defined(v)) => Ok(v.clone()),
            Some(Slot::Undefined { origin }) => {
                Err(EvalError::Undefined { user: node.name.clone(), rank, origin: origin.clone() })
            }
            None => Err(EvalError::Malformed { node: node.name.clone(), reason: format!("no rank {rank}") }),
        };
        let only_root = match kind {
            Collective::Broadcast { root } | Collective::Scatter { root, .. } => members.get(root as usize),
            _ => None,
        };
        match only_root {
            Some(&root) => Ok(vec![at(root)?; members.len()]),
            None => members.iter().map(|&r| at(r)).collect(),
        }
    }

    fn check(&self, node: &Node, results: &[PerRank<D::Value>]) -> Result<(), D> {
        for (slots, expected) in results.iter().zip(&node.results) {
            for (rank, slot) in (0u32..).zip(slots) {
                if let Slot::Defined(v) = slot {
                    let found = self.domain.ty(v);
                    if found != *expected {
                        return Err(EvalError::ResultType {
                            node: node.name.clone(),
                            op: node.op.name(),
                            rank,
                            found: found.to_string(),
                            expected: expected.to_string(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<Named<D::Value>>, D> {
        let mut all = vec![Named::new(); self.world() as usize];
        for output in self.graph.outputs() {
            let slots = self
                .values
                .get(&output.value.node)
                .and_then(|r| r.get(output.value.result as usize))
                .ok_or_else(|| EvalError::Malformed {
                    node: format!("output {}", output.name),
                    reason: "its value does not exist".into(),
                })?;
            for (rank, (slot, named)) in (0u32..).zip(slots.iter().zip(&mut all)) {
                match slot {
                    Slot::Defined(v) => {
                        named.insert(output.name.clone(), v.clone());
                    }
                    Slot::Undefined { origin } => {
                        return Err(EvalError::Undefined {
                            user: format!("output {}", output.name),
                            rank,
                            origin: origin.clone(),
                        });
                    }
                }
            }
        }
        Ok(all)
    }
}

/// What decides the result of a local op on a rank: its operands and, for rank-dependent ops, the position in the group.
struct Key<'a, D: Domain> {
    domain: &'a D,
    operands: Vec<&'a Slot<D::Value>>,
    position: Option<u32>,
    op: Option<Op>,
}

impl<D: Domain> PartialEq for Key<'_, D> {
    fn eq(&self, other: &Self) -> bool {
        self.position == other.position
            && self.operands.iter().zip(&other.operands).all(|pair| match pair {
                (Slot::Defined(a), Slot::Defined(b)) => self.domain.same(a, b),
                (Slot::Undefined { origin: a }, Slot::Undefined { origin: b }) => a == b,
                _ => false,
            })
    }
}

/// A rank-dependent op as the plain op that it is on one rank; `None` for ops that are the same on all ranks.
fn for_rank<E: std::error::Error>(
    node: &Node,
    rank: u32,
    graph: &Graph,
) -> std::result::Result<Option<Op>, EvalError<E>> {
    let malformed = |reason: &str| EvalError::Malformed { node: node.name.clone(), reason: reason.into() };
    let mesh = graph.mesh();
    let size = |ty: Option<&TensorType>, dim: u32| {
        ty.and_then(|t| t.shape.0.get(dim as usize)?.as_static())
            .ok_or_else(|| malformed("a size is not known"))
    };
    Ok(match &node.op {
        Op::OwnSlice { dim, group } => {
            let block = size(node.results.first(), *dim)?;
            let start = u64::from(group.position(mesh, rank)).saturating_mul(block);
            Some(Op::Slice { dim: *dim, start, limit: start.saturating_add(block), stride: 1 })
        }
        Op::OwnPad { dim, group, value } => {
            let block = size(node.operands.first().and_then(|&v| graph.try_ty(v)), *dim)?;
            let position = u64::from(group.position(mesh, rank));
            let after = u64::from(group.size(mesh)).saturating_sub(position + 1);
            Some(Op::Pad {
                dim: *dim,
                low: position.saturating_mul(block),
                high: after.saturating_mul(block),
                value: *value,
            })
        }
        Op::GroupRank { group } => {
            let position = Scalar::Int(i64::from(group.position(mesh, rank)));
            let literal = Literal::full(TensorType::new(DType::I32, &[]), position)
                .ok_or_else(|| malformed("a group position that is no i32"))?;
            Some(Op::Constant(literal))
        }
        _ => None,
    })
}
