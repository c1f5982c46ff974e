//! Making traces: unique names, one call for equal calls, and nothing that no output needs.

use rustc_hash::{FxHashMap, FxHashSet};
use shardweld_ir::DType;
use thiserror::Error;

use super::call::{Call, TensorId};
use super::infer::{check_type, constant_type, elements, infer};
use super::{Layer, NetworkTrace, TRACE_VERSION, TraceOutput, TraceWeight, name};

/// A call that TensorRT's contract does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("layer `{layer}` ({call}): {what}")]
pub struct TraceError {
    /// Name of the layer, as it would have been.
    pub layer: String,
    /// Kind of the call.
    pub call: &'static str,
    /// The rule broken, with what was found.
    pub what: String,
}

/// Builds a [`NetworkTrace`] call by call.
#[derive(Debug)]
pub struct TraceBuilder {
    trace: NetworkTrace,
    names: FxHashSet<String>,
    known: FxHashMap<Call, TensorId>,
    known_weights: FxHashMap<String, u32>,
    /// Weights by place in the table and shape.
    weight_tensors: FxHashMap<(u32, Vec<u64>), TensorId>,
}

impl TraceBuilder {
    /// An empty network. `world_size` is that of the communicator.
    pub fn new(name: &str, world_size: u32) -> TraceBuilder {
        TraceBuilder {
            trace: NetworkTrace {
                version: TRACE_VERSION,
                name: name.to_owned(),
                world_size,
                weights: Vec::new(),
                layers: Vec::new(),
                outputs: Vec::new(),
            },
            names: FxHashSet::default(),
            known: FxHashMap::default(),
            known_weights: FxHashMap::default(),
            weight_tensors: FxHashMap::default(),
        }
    }

    /// Type and shape of a tensor.
    pub fn ty(&self, tensor: TensorId) -> (DType, &[u64]) {
        let layer = &self.trace.layers[tensor.index()];
        (layer.dtype, &layer.dims)
    }

    /// The call that made a tensor.
    pub fn call(&self, tensor: TensorId) -> &Call {
        &self.trace.layers[tensor.index()].call
    }

    /// Adds an input of the given public name.
    ///
    /// # Errors
    /// If the name is taken or the type is none of TensorRT's.
    pub fn input(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Result<TensorId, TraceError> {
        let error = |what| TraceError { layer: name.to_owned(), call: "input", what };
        check_type(dtype, dims).map_err(error)?;
        if !self.names.insert(name.to_owned()) {
            return Err(error("the name is taken".into()));
        }
        Ok(self.push(name.to_owned(), &[name.to_owned()], Call::Input, dtype, dims.to_vec()))
    }

    /// Adds a weight in the given shape, which has as many elements as the weight's own.
    ///
    /// # Errors
    /// If the shape does not fit or the type is none of TensorRT's.
    pub fn weight(&mut self, weight: TraceWeight, dims: &[u64]) -> Result<TensorId, TraceError> {
        let error = |what| TraceError { layer: weight.name.clone(), call: "weight", what };
        check_type(weight.dtype, dims).map_err(error)?;
        constant_type(weight.dtype).map_err(error)?;
        if elements(dims) != elements(&weight.dims) {
            return Err(error(format!("shape {dims:?} does not hold the weight's {:?}", weight.dims)));
        }
        let index = match self.known_weights.get(&weight.name).copied() {
            Some(i) if self.trace.weights[i as usize] == weight => i,
            Some(_) => return Err(error("another weight has this name".into())),
            None => {
                let i = self.trace.weights.len() as u32;
                self.known_weights.insert(weight.name.clone(), i);
                self.trace.weights.push(weight.clone());
                i
            }
        };
        if let Some(&t) = self.weight_tensors.get(&(index, dims.to_vec())) {
            return Ok(t);
        }
        let name = self.unique(&weight.name);
        let t = self.push(name, &[], Call::Weight(index), weight.dtype, dims.to_vec());
        self.weight_tensors.insert((index, dims.to_vec()), t);
        Ok(t)
    }

    /// Adds a call, or finds the equal one that is there already; its `sources` are added to that one's then. Collectives
    /// are always added.
    ///
    /// # Errors
    /// If TensorRT's rules do not allow it.
    pub fn add(&mut self, name: &str, sources: &[String], call: Call) -> Result<TensorId, TraceError> {
        let is_collective = matches!(call, Call::Collective { .. });
        if let Some(&id) = self.known.get(&call).filter(|_| !is_collective) {
            self.add_sources(id, sources);
            return Ok(id);
        }
        let (dtype, dims) = infer(&call, &self.trace).map_err(|what| TraceError {
            layer: name.to_owned(),
            call: call.kind(),
            what,
        })?;
        let name = self.unique(name);
        let id = self.push(name, sources, call.clone(), dtype, dims);
        if !is_collective {
            self.known.insert(call, id);
        }
        Ok(id)
    }

    fn add_sources(&mut self, id: TensorId, sources: &[String]) {
        let own = &mut self.trace.layers[id.index()].sources;
        for s in sources {
            if !own.contains(s) {
                own.push(s.clone());
            }
        }
    }

    /// Declares an output. A tensor that is an input or an output already is copied, since a tensor has one name only.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn output(&mut self, name: &str, tensor: TensorId) -> Result<(), TraceError> {
        let error = |what: &str| TraceError { layer: name.to_owned(), call: "output", what: what.to_owned() };
        if self.trace.outputs.iter().any(|o| o.name == name)
            || self.trace.layers.iter().any(|l| matches!(l.call, Call::Input) && l.name == name)
        {
            return Err(error("the name is taken"));
        }
        let taken = matches!(self.call(tensor), Call::Input | Call::Constant(_) | Call::Weight(_))
            || self.trace.outputs.iter().any(|o| o.tensor == tensor);
        let tensor = if taken {
            let call = Call::Shuffle { input: tensor, first: None, reshape: None, second: None };
            let (dtype, dims) = self.ty(tensor);
            let dims = dims.to_vec();
            let layer = self.unique(&format!("{name}.copy"));
            // Not shared with an equal call: each output needs a tensor of its own.
            self.push(layer, &[], call, dtype, dims)
        } else {
            tensor
        };
        // The builder renames a layer whose name is an output's, and it would not be found in the engine's listing.
        if let Some(i) = self.trace.layers.iter().position(|l| l.name == name) {
            self.trace.layers[i].name = self.unique(&format!("{name}.layer"));
        }
        self.trace.outputs.push(TraceOutput { name: name.to_owned(), tensor });
        Ok(())
    }

    /// The trace, without calls that no output depends on (inputs stay).
    ///
    /// # Errors
    /// If that would drop a collective: another rank would wait for it forever.
    pub fn finish(self) -> Result<NetworkTrace, TraceError> {
        let mut trace = self.trace;
        let mut live = vec![false; trace.layers.len()];
        let mut stack: Vec<TensorId> = trace.outputs.iter().map(|o| o.tensor).collect();
        while let Some(t) = stack.pop() {
            if !std::mem::replace(&mut live[t.index()], true) {
                stack.extend(trace.layers[t.index()].call.operands());
            }
        }
        for (l, live) in trace.layers.iter().zip(&mut live) {
            match l.call {
                Call::Input => *live = true,
                Call::Collective { .. } if !*live => {
                    return Err(TraceError {
                        layer: l.name.clone(),
                        call: "collective",
                        what: "no output of this rank depends on it, so the builder would drop it and the other \
                               ranks of its group would wait forever"
                            .into(),
                    });
                }
                _ => {}
            }
        }
        retain(&mut trace, &live);
        if trace.collectives().next().is_none() {
            trace.world_size = 1;
        }
        Ok(trace)
    }

    fn unique(&mut self, wanted: &str) -> String {
        let base = name::encode(if wanted.is_empty() { "layer" } else { wanted });
        let mut candidate = base.clone();
        let mut n = 0u32;
        while !self.names.insert(candidate.clone()) {
            n += 1;
            candidate = format!("{base}.{n}");
        }
        candidate
    }

    fn push(
        &mut self,
        name: String,
        sources: &[String],
        call: Call,
        dtype: DType,
        dims: Vec<u64>,
    ) -> TensorId {
        let id = TensorId(self.trace.layers.len() as u32);
        self.trace.layers.push(Layer { name, sources: sources.to_vec(), call, dtype, dims });
        id
    }
}

/// Drops dead calls and renumbers tensors and weights.
fn retain(trace: &mut NetworkTrace, live: &[bool]) {
    let mut next = 0u32;
    let map: Vec<TensorId> = live
        .iter()
        .map(|&l| {
            let id = TensorId(next);
            next += u32::from(l);
            id
        })
        .collect();
    let mut keep = live.iter().copied();
    trace.layers.retain(|_| keep.next().unwrap_or(false));
    let mut weight_map: FxHashMap<u32, u32> = FxHashMap::default();
    let mut weights = Vec::new();
    for l in &mut trace.layers {
        renumber(&mut l.call, &map);
        if let Call::Weight(w) = &mut l.call {
            *w = *weight_map.entry(*w).or_insert_with(|| {
                weights.push(trace.weights[*w as usize].clone());
                weights.len() as u32 - 1
            });
        }
    }
    trace.weights = weights;
    for o in &mut trace.outputs {
        o.tensor = map[o.tensor.index()];
    }
}

fn renumber(call: &mut Call, map: &[TensorId]) {
    let set = |t: &mut TensorId| *t = map[t.index()];
    match call {
        Call::Input | Call::Constant(_) | Call::Weight(_) => {}
        Call::Cast { input, .. }
        | Call::Unary { input, .. }
        | Call::Activation { input, .. }
        | Call::Reduce { input, .. }
        | Call::Softmax { input, .. }
        | Call::Shuffle { input, .. }
        | Call::Collective { input, .. } => set(input),
        Call::ElementWise { a, b, .. } | Call::MatMul { a, b, .. } => {
            set(a);
            set(b);
        }
        Call::Select { condition, then_input, else_input } => {
            set(condition);
            set(then_input);
            set(else_input);
        }
        Call::Normalization { input, scale, bias, .. } => {
            set(input);
            set(scale);
            set(bias);
        }
        Call::Attention { query, key, value, mask, .. } => {
            set(query);
            set(key);
            set(value);
            if let Some(m) = mask {
                set(m);
            }
        }
        Call::Slice { input, fill, .. } => {
            set(input);
            if let Some(f) = fill {
                set(f);
            }
        }
        Call::Concat { inputs, .. } => inputs.iter_mut().for_each(set),
        Call::Gather { data, indices, .. } => {
            set(data);
            set(indices);
        }
        Call::Convolution { input, kernel, bias, .. } => {
            set(input);
            set(kernel);
            if let Some(b) = bias {
                set(b);
            }
        }
    }
}
