//! Traces of all ranks, and which ranks share one.

use rayon::prelude::*;
use shardweld_ir::store::{StoreError, WeightStore};
use shardweld_ir::{Graph, WeightView};
use thiserror::Error;

use super::{LowerError, LowerOptions, lower};
use crate::trace::NetworkTrace;

/// A trace and the ranks that run it.
#[derive(Debug)]
pub struct RankTrace {
    /// Global ranks, sorted.
    pub ranks: Vec<u32>,
    /// Their network.
    pub trace: NetworkTrace,
}

/// Why the traces of the ranks are not known.
#[derive(Debug, Error)]
pub enum RanksError {
    /// A rank's program cannot be lowered.
    #[error("rank {rank}: {source}")]
    Lower {
        /// Global rank.
        rank: u32,
        /// Why.
        source: LowerError,
    },
    /// Weights of two ranks cannot be compared.
    #[error("weight `{weight}`: {source}")]
    Weight {
        /// Name.
        weight: String,
        /// Why.
        source: StoreError,
    },
}

/// Lowers the program for every rank. Ranks share a trace exactly if theirs are equal, the content of embedded weights
/// included. The list is sorted by first rank.
///
/// # Errors
/// If a rank's program cannot be lowered, or weights that lie in different places cannot be read to compare them.
pub fn lower_all(
    graph: &Graph,
    options: &LowerOptions,
    weights: &WeightStore,
) -> Result<Vec<RankTrace>, RanksError> {
    let world = graph.mesh().world_size();
    let traces: Vec<_> = (0..world)
        .into_par_iter()
        .map(|rank| {
            let trace = lower(graph, rank, options).map_err(|source| RanksError::Lower { rank, source })?;
            let hash = trace.structure_hash();
            Ok((rank, hash, trace))
        })
        .collect::<Result<_, RanksError>>()?;
    let mut shared: Vec<(blake3::Hash, RankTrace)> = Vec::new();
    for (rank, hash, trace) in traces {
        let mut home = None;
        for (i, (h, t)) in shared.iter().enumerate() {
            if *h == hash && same_weights(&t.trace, &trace, weights)? {
                home = Some(i);
                break;
            }
        }
        match home {
            Some(i) => shared[i].1.ranks.push(rank),
            None => shared.push((hash, RankTrace { ranks: vec![rank], trace })),
        }
    }
    Ok(shared.into_iter().map(|(_, t)| t).collect())
}

/// Whether two traces of one structure embed the same numbers.
fn same_weights(a: &NetworkTrace, b: &NetworkTrace, store: &WeightStore) -> Result<bool, RanksError> {
    for (x, y) in a.weights().iter().zip(b.weights()) {
        if x.view == y.view {
            continue;
        }
        // Without data nothing says that they are equal.
        if x.view == WeightView::Absent || y.view == WeightView::Absent {
            return Ok(false);
        }
        let hash = |view| {
            store
                .content_hash(view)
                .map_err(|source| RanksError::Weight { weight: x.name.clone(), source })
        };
        if hash(&x.view)? != hash(&y.view)? {
            return Ok(false);
        }
    }
    Ok(true)
}
