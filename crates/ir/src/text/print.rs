//! Prints a graph.

use std::fmt::{self, Write};

use rustc_hash::FxHashMap;

use super::TEXT_VERSION;
use super::attr::{Attr, write_quoted, write_type, write_value_name};
use super::attrs::{Context, to_attrs};
use super::field::Field;
use super::view::write_view;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;

/// What of a graph is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Everything.
    Exact,
    /// No sources and no program name; nodes are called by their place in the order.
    Meaning,
}

pub(crate) fn print(graph: &Graph, detail: Detail) -> Result<String, GraphError> {
    let mut order: Vec<NodeId> = graph.inputs().to_vec();
    order.extend(graph.order()?.into_iter().filter(|id| !matches!(graph.node(*id).op, Op::Input { .. })));
    let numbers: FxHashMap<NodeId, usize> = match detail {
        Detail::Exact => FxHashMap::default(),
        Detail::Meaning => order.iter().enumerate().map(|(i, id)| (*id, i)).collect(),
    };
    let mut out = String::new();
    let printer = Printer { graph, detail, numbers };
    printer.program(&mut out, &order).expect("writing to a string cannot fail");
    Ok(out)
}

struct Printer<'a> {
    graph: &'a Graph,
    detail: Detail,
    /// Numbers in place of names; empty if names are printed.
    numbers: FxHashMap<NodeId, usize>,
}

impl Printer<'_> {
    fn program(&self, out: &mut String, order: &[NodeId]) -> fmt::Result {
        let mesh = self.graph.mesh();
        writeln!(out, "swir {TEXT_VERSION}")?;
        if self.detail == Detail::Exact {
            out.write_str("graph ")?;
            write_quoted(out, &self.graph.name)?;
            out.write_char('\n')?;
        }
        out.write_str("mesh [")?;
        for (i, axis) in mesh.axes().iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(out, "{comma}{}={}", Attr::name(&axis.name), axis.size)?;
        }
        out.write_str("]\n")?;
        for w in self.graph.weights() {
            out.write_str("weight ")?;
            write_quoted(out, &w.name)?;
            out.write_str(" : ")?;
            write_type(out, &w.ty)?;
            if !w.over.is_empty() {
                write!(out, " over {}", w.over.write(mesh))?;
            }
            writeln!(out, " = {}", Attr::List(w.shards.iter().map(write_view).collect()))?;
        }
        for id in order {
            self.node(out, *id)?;
        }
        for o in self.graph.outputs() {
            out.write_str("return ")?;
            write_quoted(out, &o.name)?;
            out.write_str(" = ")?;
            self.value(out, o.value)?;
            out.write_char('\n')?;
        }
        Ok(())
    }

    fn node(&self, out: &mut String, id: NodeId) -> fmt::Result {
        let node = self.graph.node(id);
        self.name(out, id)?;
        write!(out, " = {}(", node.op.name())?;
        for (i, v) in node.operands.iter().enumerate() {
            if i > 0 {
                out.write_str(", ")?;
            }
            self.value(out, *v)?;
        }
        out.write_char(')')?;
        let weight_name =
            |id: crate::weight::WeightId| self.graph.weights().get(id.0 as usize).map(|w| w.name.as_str());
        let context = Context { mesh: self.graph.mesh(), weight_name: &weight_name, weight: &|_| None };
        for (key, attr) in to_attrs(&node.op, context) {
            write!(out, " {key}={attr}")?;
        }
        for (i, ty) in node.results.iter().enumerate() {
            out.write_str(if i == 0 { " : " } else { ", " })?;
            write_type(out, ty)?;
        }
        if self.detail == Detail::Exact {
            for (i, source) in node.sources.iter().enumerate() {
                out.write_str(if i == 0 { " ; from " } else { ", " })?;
                write_quoted(out, source)?;
            }
        }
        out.write_char('\n')
    }

    fn name(&self, out: &mut String, id: NodeId) -> fmt::Result {
        match self.numbers.get(&id) {
            Some(n) => write!(out, "%{n}"),
            None => write_value_name(out, &self.graph.node(id).name),
        }
    }

    fn value(&self, out: &mut String, v: Value) -> fmt::Result {
        self.name(out, v.node)?;
        match v.result {
            0 => Ok(()),
            n => write!(out, "#{n}"),
        }
    }
}
