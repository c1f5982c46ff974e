//! Random well-typed SPMD programs for property tests: a seed gives a graph, always the same one.
//!
//! Programs verify, are small enough for the reference interpreter, and avoid what has no defined result: indices out of
//! range, integer division by zero, floats cast to integers, rooted results read off root.

mod communicate;
mod generate;
mod rng;

pub use generate::random_program;
pub use rng::Rng;

use crate::types::DType;

/// Bounds of a random program.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// Nodes besides inputs and constants; the program may be somewhat larger.
    pub nodes: usize,
    /// Most ranks of the mesh.
    pub max_ranks: u32,
    /// Most elements of a value.
    pub max_elements: u64,
    /// Element types of inputs; casts stay among these too.
    pub dtypes: Vec<DType>,
    /// Whether collectives occur.
    pub collectives: bool,
    /// Whether matmul, attention, normalisation, convolution and softmax occur.
    pub heavy_ops: bool,
    /// Whether weights occur; their views refer to files that do not exist, so the program cannot be evaluated.
    pub weights: bool,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        ProgramOptions {
            nodes: 20,
            max_ranks: 8,
            max_elements: 1024,
            dtypes: vec![DType::F32, DType::BF16, DType::F16, DType::I64],
            collectives: true,
            heavy_ops: true,
            weights: false,
        }
    }
}
