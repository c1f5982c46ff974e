//! The graph itself: nodes with ordered operands and several results, on a petgraph stable graph that stays hidden.
//!
//! A [`Graph`] is one SPMD program: every rank runs every node. Nodes are only added with a type that the shape rules
//! computed, so a graph built through this API is well typed; `verify` re-checks graphs from elsewhere.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use crate::infer::{InferError, check_result, infer};
use crate::mesh::Mesh;
use crate::op::Op;
use crate::types::TensorType;
use crate::weight::{Weight, WeightId};

/// A node of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) NodeIndex<u32>);

impl NodeId {
    /// A number that identifies the node in its graph. Grows in order of creation until nodes are removed, whose numbers
    /// are given out again.
    pub fn index(self) -> usize {
        self.0.index()
    }
}

/// One result of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub result: u32,
}

impl From<NodeId> for Value {
    fn from(node: NodeId) -> Self {
        Value { node, result: 0 }
    }
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name, unique in the graph.
    pub name: String,
    /// Operation.
    pub op: Op,
    /// Operands in order.
    pub operands: Vec<Value>,
    /// Result types, at least one.
    pub results: Vec<TensorType>,
    /// Names of the frontend's nodes that this one stands for; several after merging, none if it is the compiler's own.
    pub sources: Vec<String>,
}

/// A named output of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Public name.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// Why a graph operation was refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GraphError {
    /// The shape rules refuse the node.
    #[error("node `{node}` ({op}): {source}")]
    Infer {
        /// Name of the node.
        node: String,
        /// Mnemonic.
        op: &'static str,
        /// The rule broken.
        source: InferError,
    },
    /// An operand or output refers to no value of this graph.
    #[error("`{node}`: there is no result #{result} of node #{index} in this graph")]
    Dangling {
        /// Who refers.
        node: String,
        /// Node index referred to.
        index: usize,
        /// Result referred to.
        result: u32,
    },
    /// A replacement has another type.
    #[error("`{node}` has type {found}, its replacement needs {expected}")]
    TypeMismatch {
        /// Name of the replaced node.
        node: String,
        /// Type of the replacement.
        found: TensorType,
        /// Type needed.
        expected: TensorType,
    },
    /// Two outputs, inputs or weights of one name.
    #[error("the {kind} name `{name}` is used twice")]
    DuplicateName {
        /// `input`, `output` or `weight`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The graph has a cycle.
    #[error("the graph has a cycle through node `{0}`")]
    Cycle(String),
}

/// One SPMD program over a mesh.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Name of the program.
    pub name: String,
    mesh: Mesh,
    graph: StableDiGraph<Node, Use, u32>,
    inputs: Vec<NodeId>,
    outputs: Vec<Output>,
    weights: Vec<Weight>,
    names: FxHashMap<String, NodeId>,
    next_suffix: FxHashMap<String, u32>,
    input_names: FxHashSet<String>,
    output_names: FxHashSet<String>,
    weight_names: FxHashSet<String>,
}

/// An edge: result `result` of the source is operand `operand` of the target.
#[derive(Clone, Copy, Debug)]
struct Use {
    operand: u32,
}

impl Graph {
    /// An empty program over a mesh.
    pub fn new(name: impl Into<String>, mesh: Mesh) -> Graph {
        Graph {
            name: name.into(),
            mesh,
            graph: StableDiGraph::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            weights: Vec::new(),
            names: FxHashMap::default(),
            next_suffix: FxHashMap::default(),
            input_names: FxHashSet::default(),
            output_names: FxHashSet::default(),
            weight_names: FxHashSet::default(),
        }
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Adds a node; its result types are computed by the shape rules. A name in use gets a numeric suffix.
    ///
    /// # Errors
    /// If an operand is not of this graph or the shape rules refuse the operands.
    pub fn add(&mut self, name: &str, op: Op, operands: &[Value]) -> Result<NodeId, GraphError> {
        let mut types = Vec::with_capacity(operands.len());
        for v in operands {
            types.push(self.try_ty(*v).ok_or_else(|| GraphError::Dangling {
                node: name.to_owned(),
                index: v.node.index(),
                result: v.result,
            })?);
        }
        let results = infer(&op, &types, &self.mesh, &self.weights).map_err(|source| GraphError::Infer {
            node: name.to_owned(),
            op: op.name(),
            source,
        })?;
        Ok(self.insert(name, op, operands, results))
    }

    /// Adds an input of the given type.
    ///
    /// # Errors
    /// If the public name is taken, or no tensor can have the type.
    pub fn add_input(&mut self, name: &str, ty: TensorType) -> Result<NodeId, GraphError> {
        self.add_input_as(name, name, ty)
    }

    /// Adds an input whose node is called `node` and whose public name is `public`.
    ///
    /// # Errors
    /// As [`Graph::add_input`].
    pub fn add_input_as(&mut self, node: &str, public: &str, ty: TensorType) -> Result<NodeId, GraphError> {
        check_result(&ty).map_err(|source| GraphError::Infer {
            node: node.to_owned(),
            op: "input",
            source,
        })?;
        if !self.input_names.insert(public.to_owned()) {
            return Err(GraphError::DuplicateName { kind: "input", name: public.to_owned() });
        }
        Ok(self.insert(node, Op::Input { name: public.to_owned() }, &[], vec![ty]))
    }

    fn insert(&mut self, name: &str, op: Op, operands: &[Value], results: Vec<TensorType>) -> NodeId {
        let name = self.unique_name(name);
        let is_input = matches!(op, Op::Input { .. });
        let node = Node { name: name.clone(), op, operands: operands.to_vec(), results, sources: Vec::new() };
        let id = NodeId(self.graph.add_node(node));
        for (i, v) in operands.iter().enumerate() {
            self.graph.add_edge(v.node.0, id.0, Use { operand: i as u32 });
        }
        self.names.insert(name, id);
        if is_input {
            self.inputs.push(id);
        }
        id
    }

    fn unique_name(&mut self, name: &str) -> String {
        let base = if name.is_empty() { "v" } else { name };
        if !self.names.contains_key(base) {
            return base.to_owned();
        }
        let n = self.next_suffix.entry(base.to_owned()).or_insert(0);
        loop {
            *n += 1;
            let candidate = format!("{base}_{n}");
            if !self.names.contains_key(&candidate) {
                return candidate;
            }
        }
    }

    /// Adds a weight to the table.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn add_weight(&mut self, weight: Weight) -> Result<WeightId, GraphError> {
        if !self.weight_names.insert(weight.name.clone()) {
            return Err(GraphError::DuplicateName { kind: "weight", name: weight.name });
        }
        self.weights.push(weight);
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    /// The weight table.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The weight table, for attaching data; types must stay as they are (`verify` checks).
    pub fn weights_mut(&mut self) -> &mut [Weight] {
        &mut self.weights
    }

    /// Records which frontend nodes a node stands for.
    pub fn set_sources(&mut self, node: NodeId, sources: Vec<String>) {
        if let Some(n) = self.graph.node_weight_mut(node.0) {
            n.sources = sources;
        }
    }

    /// Declares an output.
    ///
    /// # Errors
    /// If the value is not of this graph or the name is taken.
    pub fn add_output(&mut self, name: &str, value: impl Into<Value>) -> Result<(), GraphError> {
        let value = value.into();
        if self.try_ty(value).is_none() {
            return Err(GraphError::Dangling {
                node: format!("output {name}"),
                index: value.node.index(),
                result: value.result,
            });
        }
        if !self.output_names.insert(name.to_owned()) {
            return Err(GraphError::DuplicateName { kind: "output", name: name.to_owned() });
        }
        self.outputs.push(Output { name: name.to_owned(), value });
        Ok(())
    }

    /// Input nodes in order of declaration.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// Outputs in order of declaration.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// A node of this graph.
    ///
    /// # Panics
    /// If the node was removed or belongs to another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        self.graph.node_weight(id.0).expect("a NodeId is used with the graph that made it")
    }

    /// A node, if it is in this graph.
    pub fn try_node(&self, id: NodeId) -> Option<&Node> {
        self.graph.node_weight(id.0)
    }

    /// The node of the given name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    /// Type of a value of this graph.
    ///
    /// # Panics
    /// If the value is not of this graph.
    pub fn ty(&self, value: impl Into<Value>) -> &TensorType {
        self.try_ty(value.into()).expect("a Value is used with the graph that made it")
    }

    /// Type of a value, if it is of this graph.
    pub fn try_ty(&self, value: Value) -> Option<&TensorType> {
        self.graph.node_weight(value.node.0)?.results.get(value.result as usize)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.graph.node_count()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.graph.node_count() == 0
    }

    /// All nodes in order of creation.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.graph.node_indices().map(|i| (NodeId(i), self.node(NodeId(i))))
    }

    /// Who uses any result of a node, as (user, operand index), sorted.
    pub fn users(&self, node: NodeId) -> Vec<(NodeId, u32)> {
        let mut users: Vec<_> = self
            .graph
            .edges_directed(node.0, Direction::Outgoing)
            .map(|e| (NodeId(e.target()), e.weight().operand))
            .collect();
        users.sort_unstable();
        users
    }

    /// Program order: topological, ties by order of creation. This is the order in which every rank issues collectives.
    ///
    /// # Errors
    /// If the graph has a cycle.
    pub fn order(&self) -> Result<Vec<NodeId>, GraphError> {
        let mut missing: FxHashMap<NodeIndex<u32>, usize> = FxHashMap::default();
        let mut ready = BinaryHeap::new();
        for i in self.graph.node_indices() {
            let n = self.graph.edges_directed(i, Direction::Incoming).count();
            if n == 0 {
                ready.push(Reverse(i));
            } else {
                missing.insert(i, n);
            }
        }
        let mut order = Vec::with_capacity(self.len());
        while let Some(Reverse(i)) = ready.pop() {
            order.push(NodeId(i));
            for e in self.graph.edges_directed(i, Direction::Outgoing) {
                if let Some(n) = missing.get_mut(&e.target()) {
                    *n -= 1;
                    if *n == 0 {
                        missing.remove(&e.target());
                        ready.push(Reverse(e.target()));
                    }
                }
            }
        }
        match missing.keys().min() {
            None => Ok(order),
            Some(&i) => Err(GraphError::Cycle(self.node(NodeId(i)).name.clone())),
        }
    }

    /// Makes every user and output of `old` use `new` instead.
    ///
    /// # Errors
    /// If either value is not of this graph, or the types differ. A cycle that this makes is found by [`Graph::order`].
    pub fn replace_uses(&mut self, old: Value, new: Value) -> Result<(), GraphError> {
        let (Some(a), Some(b)) = (self.try_ty(old), self.try_ty(new)) else {
            let bad = if self.try_ty(old).is_none() { old } else { new };
            return Err(GraphError::Dangling {
                node: "replacement".into(),
                index: bad.node.index(),
                result: bad.result,
            });
        };
        if a != b {
            return Err(GraphError::TypeMismatch {
                node: self.node(old.node).name.clone(),
                found: b.clone(),
                expected: a.clone(),
            });
        }
        let edges: Vec<_> = self
            .graph
            .edges_directed(old.node.0, Direction::Outgoing)
            .map(|e| (e.id(), e.target(), *e.weight()))
            .collect();
        for (edge, user, u) in edges {
            let Some(slot) =
                self.graph.node_weight_mut(user).and_then(|n| n.operands.get_mut(u.operand as usize))
            else {
                continue;
            };
            if *slot == old {
                *slot = new;
                self.graph.remove_edge(edge);
                self.graph.add_edge(new.node.0, user, u);
            }
        }
        for o in &mut self.outputs {
            if o.value == old {
                o.value = new;
            }
        }
        Ok(())
    }

    /// Removes nodes that no output depends on; inputs stay. Returns how many went.
    ///
    /// Collectives go too where no rank uses them: the program is the same on all ranks, so all drop it together.
    pub fn remove_dead(&mut self) -> usize {
        let mut live: FxHashSet<NodeIndex<u32>> = self.inputs.iter().map(|i| i.0).collect();
        let mut stack: Vec<_> = self.outputs.iter().map(|o| o.value.node.0).collect();
        while let Some(i) = stack.pop() {
            if live.insert(i) {
                stack.extend(self.node(NodeId(i)).operands.iter().map(|v| v.node.0));
            }
        }
        let before = self.len();
        self.graph.retain_nodes(|_, i| live.contains(&i));
        self.names.retain(|_, id| live.contains(&id.0));
        before - self.len()
    }

    /// Whether the edges of the stable graph say the same as the operand lists; for `verify`.
    pub(crate) fn edges_agree(&self, id: NodeId) -> bool {
        let mut from_edges: Vec<(u32, NodeId)> = self
            .graph
            .edges_directed(id.0, Direction::Incoming)
            .map(|e| (e.weight().operand, NodeId(e.source())))
            .collect();
        from_edges.sort_unstable();
        let operands = &self.node(id).operands;
        from_edges.len() == operands.len()
            && from_edges.iter().zip(operands.iter().enumerate()).all(|(e, (i, v))| *e == (i as u32, v.node))
    }
}
