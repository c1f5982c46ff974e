//! The symbolic domain: tensors whose elements are terms, so that a program can be proved equal to another.
//!
//! Data movement is exact: it only moves terms. Arithmetic is not interpreted here; what is known about it is the business of
//! whoever compares terms.

mod local;
mod term;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardweld_ir::{Collective, DType, Graph, Op, ReduceOp, TensorType, WeightId};
use thiserror::Error;

use crate::domain::Domain;
pub use term::{Place, Term, TermId, Terms};

/// Most elements of one symbolic tensor.
const MAX_ELEMENTS: u64 = 1 << 20;

/// A tensor of terms.
#[derive(Debug, PartialEq, Eq)]
pub struct SymbolicTensor {
    /// Type.
    pub ty: TensorType,
    /// Elements in row-major order.
    pub data: Vec<TermId>,
}

/// Why a program has no symbolic value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SymbolicError {
    /// A shape with symbols, or too large.
    #[error("{0} is no tensor of at most {MAX_ELEMENTS} elements with static sizes")]
    Shape(TensorType),
    /// An op that is given operands that its shape rules exclude.
    #[error("{op}: {reason}")]
    Operands {
        /// Mnemonic.
        op: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// The domain of symbolic tensors, with the table of their terms.
#[derive(Debug, Default)]
pub struct Symbolic {
    terms: Mutex<Terms>,
}

impl Symbolic {
    /// The table of terms.
    pub fn terms(&self) -> MutexGuard<'_, Terms> {
        // A panic elsewhere leaves the append-only table whole.
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An unknown tensor. `rank` numbers the values that differ between ranks. With `from`, its elements are unknown
    /// elements of that type, cast to the tensor's.
    ///
    /// # Errors
    /// If the type is not static and small.
    pub fn unknown(
        &self,
        ty: &TensorType,
        tensor: u32,
        rank: u32,
        from: Option<DType>,
    ) -> Result<Arc<SymbolicTensor>, SymbolicError> {
        let n = elements(ty)?;
        let mut terms = self.terms();
        let data = (0..n as u32)
            .map(|index| {
                let x = terms.intern(Term::Symbol { tensor, rank, index, dtype: from.unwrap_or(ty.dtype) });
                match from {
                    Some(_) => terms.intern(Term::Cast { to: ty.dtype, x }),
                    None => x,
                }
            })
            .collect();
        Ok(Arc::new(SymbolicTensor { ty: ty.clone(), data }))
    }
}

/// Number of elements of a type that is static and small.
pub(crate) fn elements(ty: &TensorType) -> Result<usize, SymbolicError> {
    match ty.shape.elements() {
        Some(n) if n <= MAX_ELEMENTS => Ok(n as usize),
        _ => Err(SymbolicError::Shape(ty.clone())),
    }
}

impl Domain for Symbolic {
    type Value = Arc<SymbolicTensor>;
    type Error = SymbolicError;

    fn ty(&self, value: &Self::Value) -> TensorType {
        value.ty.clone()
    }

    fn same(&self, a: &Self::Value, b: &Self::Value) -> bool {
        Arc::ptr_eq(a, b)
    }

    fn weight(&self, graph: &Graph, id: WeightId, shard: usize) -> Result<Self::Value, SymbolicError> {
        let ty = graph.weights().get(id.0 as usize).map(|w| w.ty.clone()).ok_or_else(|| {
            SymbolicError::Operands { op: "weight", reason: format!("there is no weight #{}", id.0) }
        })?;
        // Weights are numbered from the top, inputs from 0.
        self.unknown(&ty, u32::MAX - id.0, shard as u32, None)
    }

    fn local(
        &self,
        op: &Op,
        operands: &[&Self::Value],
        results: &[TensorType],
    ) -> Result<Vec<Self::Value>, SymbolicError> {
        let operands: Vec<&SymbolicTensor> = operands.iter().map(|v| v.as_ref()).collect();
        local::evaluate(&mut self.terms(), op, &operands, results)
    }

    fn collective(
        &self,
        kind: Collective,
        operands: &[Self::Value],
        result: &TensorType,
    ) -> Result<Vec<Option<Self::Value>>, SymbolicError> {
        let n = operands.len();
        let all: Vec<&SymbolicTensor> = operands.iter().map(|v| v.as_ref()).collect();
        let Some(first) = all.first() else { return Ok(Vec::new()) };
        let mut terms = self.terms();
        let root = |r: u32| {
            operands.get(r as usize).ok_or_else(|| SymbolicError::Operands {
                op: kind.name(),
                reason: format!("root {r} of {n} ranks"),
            })
        };
        let at_root = |value: Self::Value, r: u32| {
            (0..n).map(|i| (i == r as usize).then(|| value.clone())).collect::<Vec<_>>()
        };
        let blocks = |whole: &SymbolicTensor, dim: u32| -> Result<Vec<Option<Self::Value>>, SymbolicError> {
            (0..n).map(|i| local::block(whole, dim, i, n, result).map(|t| Some(Arc::new(t)))).collect()
        };
        match kind {
            Collective::AllReduce { op, accum } => {
                let value = Arc::new(combine(&mut terms, kind.name(), op, accum, &all));
                Ok(vec![Some(value); n])
            }
            Collective::Reduce { op, accum, root: r } => {
                root(r)?;
                let value = Arc::new(combine(&mut terms, kind.name(), op, accum, &all));
                Ok(at_root(value, r))
            }
            Collective::ReduceScatter { op, dim, accum } => {
                let whole = combine(&mut terms, kind.name(), op, accum, &all);
                blocks(&whole, dim)
            }
            Collective::AllGather { dim } => {
                Ok(vec![Some(Arc::new(local::concatenate(&all, dim, result)?)); n])
            }
            Collective::Gather { dim, root: r } => {
                root(r)?;
                Ok(at_root(Arc::new(local::concatenate(&all, dim, result)?), r))
            }
            Collective::Broadcast { root: r } => Ok(vec![Some(root(r)?.clone()); n]),
            Collective::Scatter { dim, root: r } => blocks(root(r)?, dim),
            Collective::AllToAll { split_dim, concat_dim } => {
                let mut part = first.ty.clone();
                if let Some(d) = part.shape.0.get_mut(split_dim as usize)
                    && let Some(size) = d.as_static()
                {
                    *d = (size / n as u64).into();
                }
                (0..n)
                    .map(|i| {
                        let parts = all
                            .iter()
                            .map(|x| local::block(x, split_dim, i, n, &part))
                            .collect::<Result<Vec<_>, _>>()?;
                        let parts: Vec<&SymbolicTensor> = parts.iter().collect();
                        Ok(Some(Arc::new(local::concatenate(&parts, concat_dim, result)?)))
                    })
                    .collect()
            }
        }
    }
}

fn combine(
    terms: &mut Terms,
    kind: &'static str,
    op: ReduceOp,
    accum: Option<DType>,
    operands: &[&SymbolicTensor],
) -> SymbolicTensor {
    let first = operands[0];
    let size = first.data.len() as u64;
    let data = (0..first.data.len())
        .map(|i| {
            let at: Vec<TermId> = operands.iter().filter_map(|o| o.data.get(i).copied()).collect();
            match at.as_slice() {
                // A group of one moves its operand.
                [only] => *only,
                _ => terms.intern(Term::Combine {
                    op,
                    dtype: first.ty.dtype,
                    accum,
                    place: Place { kind, position: i as u64, size },
                    operands: at,
                }),
            }
        })
        .collect();
    SymbolicTensor { ty: first.ty.clone(), data }
}
