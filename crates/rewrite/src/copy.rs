//! Copying a program into a new one, in program order, with some nodes left out or replaced.

use rustc_hash::FxHashMap;
use shardweld_ir::{Graph, GraphError, NodeId, Op, Value};

/// A copy in progress.
#[derive(Debug)]
pub struct Copy<'a> {
    from: &'a Graph,
    /// The copy.
    pub to: Graph,
    map: FxHashMap<Value, Value>,
}

impl<'a> Copy<'a> {
    /// An empty copy: name, mesh and weights, no nodes yet.
    ///
    /// # Errors
    /// If two weights have one name.
    pub fn new(from: &'a Graph) -> Result<Copy<'a>, GraphError> {
        let mut to = Graph::new(from.name.clone(), from.mesh().clone());
        for w in from.weights() {
            to.add_weight(w.clone())?;
        }
        let mut map = FxHashMap::default();
        map.reserve(from.len());
        Ok(Copy { from, to, map })
    }

    /// What a value of the source is in the copy.
    ///
    /// # Errors
    /// If it has not been copied yet.
    pub fn value(&self, v: Value) -> Result<Value, GraphError> {
        self.map.get(&v).copied().ok_or_else(|| GraphError::Dangling {
            node: self.from.try_node(v.node).map(|n| n.name.clone()).unwrap_or_default(),
            index: v.node.index(),
            result: v.result,
        })
    }

    /// Says what a value of the source becomes.
    pub fn set(&mut self, from: Value, to: Value) {
        self.map.insert(from, to);
    }

    /// Copies a node as it is, with its operands as they became.
    ///
    /// # Errors
    /// If an operand has not been copied.
    pub fn node(&mut self, id: NodeId) -> Result<NodeId, GraphError> {
        let node = self.from.node(id);
        let new = match (&node.op, node.results.first()) {
            (Op::Input { name }, Some(ty)) => self.to.add_input_as(&node.name, name, ty.clone())?,
            _ => {
                let operands = node.operands.iter().map(|&v| self.value(v)).collect::<Result<Vec<_>, _>>()?;
                self.to.add(&node.name, node.op.clone(), &operands)?
            }
        };
        self.to.set_sources(new, node.sources.clone());
        for result in 0..node.results.len() as u32 {
            self.set(Value { node: id, result }, Value { node: new, result });
        }
        Ok(new)
    }

    /// Declares the outputs and returns the copy.
    ///
    /// # Errors
    /// If an output has not been copied.
    pub fn finish(mut self) -> Result<Graph, GraphError> {
        for o in self.from.outputs() {
            let value = self.value(o.value)?;
            self.to.add_output(&o.name, value)?;
        }
        Ok(self.to)
    }
}

/// Names that stand for a collective in reports: its sources, or its own name if it has none.
pub fn tags(graph: &Graph, id: NodeId) -> Vec<String> {
    let node = graph.node(id);
    if node.sources.is_empty() { vec![node.name.clone()] } else { node.sources.clone() }
}
