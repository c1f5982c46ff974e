//! The network trace: a network definition as a list of typed calls, for one rank or for all.
//!
//! Lowering writes traces, sinks replay them. Weights are references; a trace is small, serialisable and comparable.
//! Only [`TraceBuilder`] makes traces, and it computes every shape and type by TensorRT's rules.

mod builder;
mod call;
mod collective;
mod infer;
pub mod name;
mod validate;

use serde::{Deserialize, Serialize};
use shardweld_ir::{DType, WeightView};

pub use builder::{TraceBuilder, TraceError};
pub use call::{
    ActivationType, Call, CausalMaskKind, ElementWiseOperation, ReduceOperation, TensorId, UnaryOperation,
};
pub use collective::{CollectiveError, CollectiveKind, DistCollective};
pub use infer::MAX_DIMS;

/// Version of the serialised form.
pub const TRACE_VERSION: u32 = 1;

/// A call, the names it goes by and the type of what it makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Layer name in the engine, unique; [`name::decode`] gives the name before encoding.
    pub name: String,
    /// Names of the source program's nodes that this layer stands for.
    pub sources: Vec<String>,
    /// The call.
    pub call: Call,
    /// Element type of the result.
    pub dtype: DType,
    /// Shape of the result.
    pub dims: Vec<u64>,
}

impl Layer {
    /// Size of the result in bytes.
    pub fn bytes(&self) -> u64 {
        self.dims.iter().fold(self.dtype.size() as u64, |n, &d| n.saturating_mul(d))
    }
}

/// A weight that the network embeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceWeight {
    /// Name in the source program.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape in the source program.
    pub dims: Vec<u64>,
    /// Where the bytes are.
    pub view: WeightView,
}

/// A tensor that the engine hands out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TraceOutput {
    /// Public name.
    pub name: String,
    /// The tensor.
    pub tensor: TensorId,
}

/// A network definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkTrace {
    version: u32,
    name: String,
    world_size: u32,
    weights: Vec<TraceWeight>,
    layers: Vec<Layer>,
    outputs: Vec<TraceOutput>,
}

impl NetworkTrace {
    /// Name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ranks of the communicator that the engine needs; 1 if it has no collectives.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Embedded weights.
    pub fn weights(&self) -> &[TraceWeight] {
        &self.weights
    }

    /// Calls in order, inputs and constants among them. [`TensorId`]s are positions in this list.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The call that makes a tensor.
    pub fn layer(&self, tensor: TensorId) -> Option<&Layer> {
        self.layers.get(tensor.index())
    }

    /// Outputs in order.
    pub fn outputs(&self) -> &[TraceOutput] {
        &self.outputs
    }

    /// Number of layers as TensorRT counts them: inputs are none.
    pub fn layer_count(&self) -> usize {
        self.layers.iter().filter(|l| !matches!(l.call, Call::Input)).count()
    }

    /// The collective layers in issue order.
    pub fn collectives(&self) -> impl Iterator<Item = (&Layer, &DistCollective)> {
        self.layers.iter().filter_map(|l| match &l.call {
            Call::Collective { collective, .. } => Some((l, collective)),
            _ => None,
        })
    }

    /// Largest rank count of any collective: the engine is a multi-device engine if it is above 1.
    pub fn max_ranks(&self) -> usize {
        self.collectives().map(|(_, c)| c.ranks().len()).max().unwrap_or(1)
    }

    /// Bytes of the embedded weights.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().fold(0u64, |n, w| {
            n.saturating_add(w.dims.iter().fold(w.dtype.size() as u64, |n, &d| n.saturating_mul(d)))
        })
    }

    /// Hash of everything but where the weights' bytes are. Equal traces of two ranks may still embed other weights.
    pub fn structure_hash(&self) -> blake3::Hash {
        let weights: Vec<_> = self.weights.iter().map(|w| (&w.name, w.dtype, &w.dims)).collect();
        let mut hasher = blake3::Hasher::new();
        let all = (self.version, self.world_size, &self.name, weights, &self.layers, &self.outputs);
        // Writing to a hasher cannot fail, and every part has string keys.
        serde_json::to_writer(&mut hasher, &all).expect("a trace serialises");
        hasher.finalize()
    }

    /// Checks a trace that came through serde: everything that [`TraceBuilder`] guarantees.
    ///
    /// # Errors
    /// The first call that the builder would not have made like this.
    pub fn validate(&self) -> Result<(), TraceError> {
        validate::validate(self)
    }
}
