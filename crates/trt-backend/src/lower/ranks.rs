//! Traces of all ranks, and which ranks share one.

use indexmap::{IndexMap, IndexSet};
use rayon::prelude::*;
use shardweld_ir::store::{StoreError, WeightStore};
use shardweld_ir::{AxisId, Graph, Group, Op, WeightView};
use thiserror::Error;

use super::{LowerError, LowerOptions, WeightMode, lower};
use crate::trace::NetworkTrace;

/// A trace and the ranks that run it.
#[derive(Debug)]
pub struct RankTrace {
    /// Global ranks, sorted.
    pub ranks: Vec<u32>,
    /// Their network.
    pub trace: NetworkTrace,
}

impl RankTrace {
    /// Name of this network's files: `name` where all ranks run it, else `name.rankR` with its first rank.
    pub fn stem(&self, name: &str) -> String {
        match self.ranks.first() {
            Some(rank) if self.ranks.len() < self.trace.world_size() as usize => format!("{name}.rank{rank}"),
            _ => name.to_owned(),
        }
    }
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
        source: Box<StoreError>,
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
    let traits = RankTraits::of(graph, options);
    let mut alike: IndexMap<Vec<u32>, Vec<u32>> = IndexMap::new();
    for rank in 0..graph.mesh().world_size() {
        alike.entry(traits.values(graph, rank)).or_default().push(rank);
    }
    let traces: Vec<_> = alike
        .into_values()
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|ranks| {
            let rank = ranks.first().copied().unwrap_or(0);
            let trace = lower(graph, rank, options).map_err(|source| RanksError::Lower { rank, source })?;
            let hash = trace.structure_hash();
            Ok((ranks, hash, trace))
        })
        .collect::<Result<_, RanksError>>()?;
    let mut shared: Vec<(blake3::Hash, RankTrace)> = Vec::new();
    for (ranks, hash, trace) in traces {
        let mut home = None;
        for (i, (h, t)) in shared.iter().enumerate() {
            if *h == hash && same_weights(&t.trace, &trace, weights)? {
                home = Some(i);
                break;
            }
        }
        match home {
            Some(i) => shared[i].1.ranks.extend(ranks),
            None => shared.push((hash, RankTrace { ranks, trace })),
        }
    }
    for (_, t) in &mut shared {
        t.ranks.sort_unstable();
    }
    Ok(shared.into_iter().map(|(_, t)| t).collect())
}

/// Everything in a program through which a rank can differ from another. Ranks that agree on all of it have one trace, and
/// it is made once.
#[derive(Default)]
struct RankTraits<'g> {
    communicating: IndexSet<&'g Group>,
    positions: IndexSet<&'g Group>,
    coordinates: IndexSet<AxisId>,
}

impl<'g> RankTraits<'g> {
    fn of(graph: &'g Graph, options: &LowerOptions) -> RankTraits<'g> {
        let mut t = RankTraits::default();
        for (_, node) in graph.nodes() {
            match &node.op {
                Op::Collective { group, .. } => {
                    t.communicating.insert(group);
                }
                Op::AxisSelect { axis } => {
                    t.coordinates.insert(*axis);
                }
                Op::Weight(w) if options.weights == WeightMode::Embed => {
                    let over = graph.weights().get(w.0 as usize).map(|w| w.over.as_slice());
                    t.coordinates.extend(over.unwrap_or_default());
                }
                op => t.positions.extend(op.group()),
            }
        }
        t
    }

    fn values(&self, graph: &Graph, rank: u32) -> Vec<u32> {
        let mesh = graph.mesh();
        let mut v = Vec::new();
        for g in &self.communicating {
            v.extend(g.members(mesh, rank));
        }
        v.extend(self.positions.iter().map(|g| g.position(mesh, rank)));
        v.extend(self.coordinates.iter().map(|&a| mesh.coordinate(rank, a)));
        v
    }
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
                .map_err(|e| RanksError::Weight { weight: x.name.clone(), source: Box::new(e) })
        };
        if hash(&x.view)? != hash(&y.view)? {
            return Ok(false);
        }
    }
    Ok(true)
}
