//! What replays a trace: the one trait that all sinks share.

use shardweld_ir::store::WeightStore;

use crate::trace::NetworkTrace;

/// Turns a network trace into something: an engine, source code, an evaluation.
pub trait Sink {
    /// What comes out.
    type Output;
    /// Why nothing came out.
    type Error;

    /// Replays the calls in order.
    ///
    /// # Errors
    /// If the sink cannot express or do what a call says, or a weight cannot be read.
    fn replay(&self, trace: &NetworkTrace, weights: &WeightStore) -> Result<Self::Output, Self::Error>;
}
