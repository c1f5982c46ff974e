//! The trace interpreter: runs network traces on the CPU, for all ranks at once, as TensorRT's operator reference says.
//!
//! It is what shows that lowering is right where no TensorRT runtime can be had, so nothing here is taken from lowering or
//! from the trace builder: [`contract`] states TensorRT's own rules on types and shapes (and the builder's contract for
//! collectives) and refuses a trace that breaks one before anything is computed; `layer` computes each layer kind from
//! its definition. Every layer is computed in f32 and rounded once to its type. Only dense kernels (matrix product,
//! convolution, casts, data movement) are shared with the reference interpreter.
//!
//! Where TensorRT leaves a result open, this is what happens here: a query that may see no key gives NaN (softmax over
//! nothing but -inf); MAX and MIN of a NaN are NaN; a reducing collective rounds after every step, in group order; integer
//! averages are refused.
//!
//! | module | holds |
//! |---|---|
//! | [`contract`] | what TensorRT refuses, and the type of what it makes |
//! | `layer` | the layers without communication |
//! | `collective` | the collective layer of one group |
//! | `schedule` | all ranks side by side, from collective to collective |
//! | [`error`] | why a run fails |
//!
//! ```
//! # use shardweld_ir::{DType, WeightStore};
//! # use shardweld_interp::{Named, Tensor};
//! # use shardweld_trt::trace::{Call, TraceBuilder, UnaryOperation};
//! # use shardweld_trt::interpret::interpret;
//! let mut b = TraceBuilder::new("negate", 1);
//! let x = b.input("x", DType::F32, &[2])?;
//! let y = b.add("neg", &[], Call::Unary { input: x, op: UnaryOperation::Neg })?;
//! b.output("y", y)?;
//! let trace = b.finish()?;
//! let rank0 = Named::from([("x".to_owned(), Tensor::new(&[2], &[1.0f32, -2.0])?)]);
//! let outputs = interpret(&[&trace], &WeightStore::new(), &[rank0])?;
//! assert_eq!(outputs[0]["y"].slice::<f32>(), [-1.0, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
mod collective;
pub mod contract;
pub mod error;
mod layer;
mod schedule;

use shardweld_interp::{Named, Tensor};
use shardweld_ir::WeightStore;

pub use error::InterpretError;

use crate::lower::RankTrace;
use crate::trace::NetworkTrace;

/// Runs one trace per rank, or one for all. `inputs[rank]` are that rank's inputs by name (others are ignored); so are the
/// outputs.
///
/// # Errors
/// As [`InterpretError`] says. Everything that TensorRT would refuse is found before anything is computed.
pub fn interpret(
    traces: &[&NetworkTrace],
    weights: &WeightStore,
    inputs: &[Named<Tensor>],
) -> Result<Vec<Named<Tensor>>, InterpretError> {
    let ranks = inputs.len();
    let traces: Vec<&NetworkTrace> = match traces {
        [one] => vec![*one; ranks],
        all if all.len() == ranks => all.to_vec(),
        all => return Err(InterpretError::Traces { traces: all.len(), ranks }),
    };
    let classes = schedule::classes(&traces);
    for (trace, members) in &classes {
        contract::check(trace)?;
        contract::check_ranks(trace, members, ranks)?;
    }
    schedule::run(classes, weights, inputs)
}

/// As [`interpret`], for what [`lower_all`](crate::lower::lower_all) gives.
///
/// # Errors
/// As [`interpret`]; if a rank with inputs has no trace or two, that is [`InterpretError::Traces`].
pub fn interpret_ranks(
    traces: &[RankTrace],
    weights: &WeightStore,
    inputs: &[Named<Tensor>],
) -> Result<Vec<Named<Tensor>>, InterpretError> {
    let given = traces.iter().map(|t| t.ranks.len()).sum();
    let of_rank: Option<Vec<&NetworkTrace>> = (0..inputs.len())
        .map(|rank| traces.iter().find(|t| t.ranks.iter().any(|&r| r as usize == rank)).map(|t| &t.trace))
        .collect();
    match of_rank {
        Some(all) if given == inputs.len() => interpret(&all, weights, inputs),
        _ => Err(InterpretError::Traces { traces: given, ranks: inputs.len() }),
    }
}
