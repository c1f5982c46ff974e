//! Hashes of graphs. Weights count by reference (file, entry, window); `WeightStore::content_hash` hashes their bytes.

use crate::graph::{Graph, GraphError};
use crate::text::{Detail, print};

impl Graph {
    /// Hash of everything that the text form says: program, node and weight names, sources, types, attributes, order.
    ///
    /// # Errors
    /// If the graph has a cycle.
    pub fn content_hash(&self) -> Result<blake3::Hash, GraphError> {
        Ok(blake3::hash(print(self, Detail::Exact)?.as_bytes()))
    }

    /// Hash of what the program does: as [`Graph::content_hash`] without program name, node names and sources. Public
    /// names of inputs, outputs and weights count, and so does the program order.
    ///
    /// # Errors
    /// If the graph has a cycle.
    pub fn meaning_hash(&self) -> Result<blake3::Hash, GraphError> {
        Ok(blake3::hash(print(self, Detail::Meaning)?.as_bytes()))
    }
}
