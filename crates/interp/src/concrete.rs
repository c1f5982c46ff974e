//! The domain of tensors: what runs when numbers are wanted.

use shardweld_ir::{
    Collective, Graph, Op, StoreError, TensorType, Weight, WeightId, WeightStore, WeightView,
};
use thiserror::Error;

use crate::domain::Domain;
use crate::error::KernelError;
use crate::evaluate::{EvalError, Named, Observed, evaluate};
use crate::tensor::{Tensor, static_shape};
use crate::{attention, cast, collective, conv, layout, matmul, norm, pointwise, reduce, softmax};

/// Where weights come from.
pub trait WeightSource: Sync {
    /// The data of one shard of a weight.
    ///
    /// # Errors
    /// If the data are not at hand or do not fit the weight's type.
    fn shard(&self, weight: &Weight, shard: usize) -> Result<Tensor, ConcreteError>;
}

impl WeightSource for WeightStore {
    fn shard(&self, weight: &Weight, shard: usize) -> Result<Tensor, ConcreteError> {
        let fail =
            |source| ConcreteError::Weight { weight: weight.name.clone(), shard, source: Box::new(source) };
        let view = weight.shards.get(shard).unwrap_or(&WeightView::Absent);
        let bytes = self.view_bytes(view).map_err(fail)?;
        Ok(Tensor::from_bytes(weight.ty.dtype, &static_shape(&weight.ty)?, &bytes)?)
    }
}

/// Why an op on tensors has no result.
#[derive(Debug, Error)]
pub enum ConcreteError {
    /// A kernel refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A weight cannot be read.
    #[error("weight `{weight}`, shard {shard}: {source}")]
    Weight {
        /// Name of the weight.
        weight: String,
        /// Index in its table of shards.
        shard: usize,
        /// What the store says.
        source: Box<StoreError>,
    },
    /// A weight without data.
    #[error("there are no data for weight `{0}`")]
    NoData(String),
    /// Attributes that do not fit the operands; the verifier would say more.
    #[error("{op} with {operands} operands is malformed")]
    Malformed {
        /// Mnemonic.
        op: &'static str,
        /// Number of operands.
        operands: usize,
    },
}

/// What a failed run says.
pub type RunError = EvalError<ConcreteError>;

/// Runs a program on all ranks. `inputs[rank]` are that rank's inputs by name; so are the outputs.
///
/// # Errors
/// As [`EvalError`] says.
pub fn run(
    graph: &Graph,
    weights: &dyn WeightSource,
    inputs: &[Named<Tensor>],
) -> Result<Vec<Named<Tensor>>, RunError> {
    run_observed(graph, weights, inputs, &mut |_| {})
}

/// As [`run`], showing every node's results to an observer right after it ran: to bisect a difference, or for progress.
///
/// # Errors
/// As [`EvalError`] says.
pub fn run_observed(
    graph: &Graph,
    weights: &dyn WeightSource,
    inputs: &[Named<Tensor>],
    observer: &mut dyn FnMut(Observed<'_, Tensor>),
) -> Result<Vec<Named<Tensor>>, RunError> {
    evaluate(graph, &Concrete { weights }, inputs, observer)
}

/// The domain of tensors over a source of weights.
#[expect(missing_debug_implementations, reason = "a weight source need not be printable")]
pub struct Concrete<'a> {
    /// Where weights come from.
    pub weights: &'a dyn WeightSource,
}

impl Domain for Concrete<'_> {
    type Value = Tensor;
    type Error = ConcreteError;

    fn ty(&self, value: &Tensor) -> TensorType {
        value.ty()
    }

    fn same(&self, a: &Tensor, b: &Tensor) -> bool {
        a.same(b)
    }

    fn weight(&self, graph: &Graph, id: WeightId, shard: usize) -> Result<Tensor, ConcreteError> {
        match graph.weights().get(id.0 as usize) {
            Some(w) => self.weights.shard(w, shard),
            None => Err(ConcreteError::NoData(format!("#{}", id.0))),
        }
    }

    fn local(
        &self,
        op: &Op,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, ConcreteError> {
        local(op, operands, results)
    }

    fn collective(
        &self,
        kind: Collective,
        operands: &[Tensor],
        _result: &TensorType,
    ) -> Result<Vec<Option<Tensor>>, ConcreteError> {
        Ok(collective::run(kind, operands)?)
    }
}

/// Results of an op without communication; `results` are the types that the graph says.
///
/// # Errors
/// If the op needs a rank, or the operands do not fit it.
pub fn local(op: &Op, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, ConcreteError> {
    let malformed = || ConcreteError::Malformed { op: op.name(), operands: operands.len() };
    let index = |n: u64| usize::try_from(n).map_err(|_| malformed());
    let shape = |s: &shardweld_ir::Shape| -> Result<Vec<usize>, ConcreteError> {
        s.as_static().ok_or_else(malformed)?.into_iter().map(index).collect()
    };
    let one = match (op, operands) {
        (Op::Constant(literal), []) => Tensor::from_literal(literal)?,
        (Op::Iota { dtype, shape: s, dim, first, step }, []) => {
            layout::iota(*dtype, &shape(s)?, *dim, *first, *step)?
        }
        (Op::Cast { to }, [x]) => cast::cast(x, *to)?,
        (Op::Unary(u), [x]) => pointwise::unary(*u, x)?,
        (Op::Binary(b), [x, y]) => pointwise::binary(*b, x, y)?,
        (Op::BinaryScalar { op, scalar, scalar_first }, [x]) => {
            pointwise::binary_scalar(*op, x, *scalar, *scalar_first)?
        }
        (Op::Select, [c, x, y]) => pointwise::select(c, x, y)?,
        (Op::MatMul { transpose_a, transpose_b }, [a, b, bias @ ..]) if bias.len() < 2 => {
            matmul::matmul(a, b, bias.first().copied(), *transpose_a, *transpose_b)?
        }
        (Op::Reduce { kind, dims, keep_dims }, [x]) => reduce::reduce(x, *kind, dims, *keep_dims)?,
        (Op::Softmax { dim }, [x]) => softmax::softmax(x, *dim)?,
        (Op::Normalize { kind, trailing, epsilon, scale, bias }, [x, rest @ ..])
            if rest.len() == usize::from(*scale) + usize::from(*bias) =>
        {
            let scaled = scale.then(|| rest[0]);
            let shifted = if *bias { rest.last().copied() } else { None };
            norm::normalize(x, scaled, shifted, *kind, *trailing, *epsilon)?
        }
        (Op::Attention { scale, causal, mask }, [q, k, v, rest @ ..]) if rest.len() == usize::from(*mask) => {
            attention::attention(q, k, v, rest.first().copied(), *scale, *causal)?
        }
        (Op::Reshape { shape: s }, [x]) => x.reshaped(&shape(s)?)?,
        (Op::Transpose { perm }, [x]) => {
            layout::transpose(x, &perm.iter().map(|&p| p as usize).collect::<Vec<_>>())?
        }
        (Op::Broadcast { shape: s }, [x]) => layout::broadcast_to(x, &shape(s)?)?,
        (Op::Slice { dim, start, limit, stride }, [x]) => {
            layout::slice(x, *dim, index(*start)?, index(*limit)?, index(*stride)?)?
        }
        (Op::UpdateSlice { dim, start, stride }, [base, update]) => {
            layout::update_slice(base, update, *dim, index(*start)?, index(*stride)?)?
        }
        (Op::Split { dim, sizes }, [x]) => {
            let sizes = sizes.iter().map(|&n| index(n)).collect::<Result<Vec<_>, _>>()?;
            return Ok(layout::split(x, *dim, &sizes)?);
        }
        (Op::Concat { dim }, parts) => layout::concat(parts, *dim)?,
        (Op::Pad { dim, low, high, value }, [x]) => {
            layout::pad(x, *dim, index(*low)?, index(*high)?, *value)?
        }
        (Op::Gather { mode, dim }, [data, indices]) => layout::gather(data, indices, *mode, *dim)?,
        (Op::Conv { stride, padding, dilation, groups, bias }, [x, w, rest @ ..])
            if rest.len() == usize::from(*bias) =>
        {
            let window = conv::Window { stride, padding, dilation, groups: *groups };
            conv::conv(x, w, rest.first().copied(), window)?
        }
        _ => return Err(malformed()),
    };
    debug_assert!(results.len() == 1, "only split has several results");
    Ok(vec![one])
}
