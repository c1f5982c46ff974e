//! Regions that torch.export wraps in an op of their own: under `no_grad` and with autocast off they are what they are without it, so their
//! nodes are converted in place of the op.

use crate::{
    alias::TensorId,
    call::{Call, Refused},
    context::Binding,
    program::Conversion,
    schema::{Argument, Subgraph},
};

/// Namespace of ops that run graphs.
pub(crate) const HIGHER_ORDER: &str = "higher_order";

impl<'p> Conversion<'p> {
    /// Converts the graph that a call runs, and gives its results. Operands and results are the same tensors inside and outside, so writes in
    /// place reach through. (Graphs nest as deep as the JSON reader allows.)
    pub(crate) fn inline(&mut self, call: &Call<'p>) -> Refused<Vec<TensorId>> {
        let (region, operands) = region(call)?;
        let graph = &region.graph;
        if operands.len() != graph.inputs.len() {
            return Err(format!(
                "{} operands for {} inputs of {region:?}",
                operands.len(),
                graph.inputs.len()
            ));
        }
        let names = operands
            .iter()
            .zip(&graph.inputs)
            .map(|(operand, input)| match (operand, input) {
                (Argument::Tensor(outer), Argument::Tensor(inner)) => {
                    Ok((inner.as_ref(), Binding::Tensor(self.cx.bound(outer)?)))
                }
                (outer, inner) => Err(format!("operand {outer:?} for {inner:?}, expected tensors")),
            })
            .collect::<Refused<_>>()?;
        // Names inside are names of their own.
        let outer_names = std::mem::replace(&mut self.cx.names, names);
        let outer_metas = std::mem::replace(&mut self.cx.metas, &graph.tensor_values);
        let results = self.region_results(region);
        self.cx.names = outer_names;
        self.cx.metas = outer_metas;
        results
    }

    fn region_results(&mut self, region: &'p Subgraph<'p>) -> Refused<Vec<TensorId>> {
        for input in &region.graph.inputs {
            if let Argument::Tensor(name) = input {
                let tensor = self.cx.bound(name)?;
                let value = self.cx.read(tensor)?;
                self.check(name, value)?;
            }
        }
        self.nodes(&region.graph.nodes, region.graph.outputs.iter());
        let result = |o: &Argument| match o {
            Argument::Tensor(name) => self.cx.bound(name),
            other => Err(format!("a result of {region:?} is {other:?}, expected a tensor")),
        };
        region.graph.outputs.iter().map(result).collect()
    }
}

/// The graph and its operands, if running it is all that the call does.
fn region<'p>(call: &Call<'p>) -> Refused<(&'p Subgraph<'p>, Vec<&'p Argument<'p>>)> {
    let args: Vec<&Argument> = call.node.inputs.iter().map(|a| &a.arg).collect();
    let (settings, region, operands) = args
        .iter()
        .position(|a| matches!(a, Argument::Graph(_)))
        .and_then(|at| match args[at] {
            Argument::Graph(g) => Some((&args[..at], g.as_ref(), args[at + 1..].to_vec())),
            _ => None,
        })
        .ok_or("this higher-order op is not supported")?;
    match (call.op, settings) {
        ("wrap_with_set_grad_enabled", [Argument::Bool(_)]) => {}
        ("wrap_with_autocast", [Argument::Str(_), _, Argument::Bool(false), ..]) => {}
        ("wrap_with_autocast", [Argument::Str(_), _, Argument::Bool(true), ..]) => {
            return Err("autocast is on in this region; `run_decompositions({})` writes its casts out".into());
        }
        _ => return Err("this higher-order op is not supported".into()),
    }
    Ok((region, operands))
}
