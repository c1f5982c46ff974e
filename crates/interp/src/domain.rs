//! What values are: the interface between the evaluator, which walks the program for all ranks, and a value domain, which
//! computes. [`crate::concrete`] is the domain of tensors.

use shardweld_ir::{Collective, Graph, Op, TensorType, WeightId};

/// A value domain. Rank-dependent ops never reach it: the evaluator turns them into slices, pads and constants first.
pub trait Domain: Sync {
    /// A value on one rank; cheap to clone.
    type Value: Clone + Send + Sync;
    /// Why an op has no result.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Type of a value.
    fn ty(&self, value: &Self::Value) -> TensorType;

    /// Whether two values are known to be equal, cheaply; `false` when that would have to be found out.
    fn same(&self, a: &Self::Value, b: &Self::Value) -> bool;

    /// The shard of a weight with the given index in its table.
    ///
    /// # Errors
    /// If the data are not at hand.
    fn weight(&self, graph: &Graph, id: WeightId, shard: usize) -> Result<Self::Value, Self::Error>;

    /// Results of an op without communication. Operands are defined and have the types that the graph says.
    ///
    /// # Errors
    /// If the domain refuses the op or the operands.
    fn local(
        &self,
        op: &Op,
        operands: &[&Self::Value],
        results: &[TensorType],
    ) -> Result<Vec<Self::Value>, Self::Error>;

    /// Results of a collective for the ranks of one group; operands and results in group order, `None` for undefined ones.
    ///
    /// # Errors
    /// If the domain refuses the collective or the operands.
    fn collective(
        &self,
        kind: Collective,
        operands: &[Self::Value],
        result: &TensorType,
    ) -> Result<Vec<Option<Self::Value>>, Self::Error>;
}
