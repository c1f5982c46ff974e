//! Where every collective went: the engine's layers, read from the builder's log or the engine inspector, matched by name
//! with the trace.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shardweld_ir::{DType, Graph, ReduceOp};
use thiserror::Error;

use crate::trace::{CollectiveKind, NetworkTrace, name};

/// What the builder prints before each layer of its listing.
const LINE_START: &str = "Name: ";
/// What separates a layer's name from its type in the listing.
const TYPE_START: &str = ", LayerType: ";
/// Layer type of a collective that runs on its own.
const STANDALONE_TYPE: &str = "DistCollective";
/// Prefix of the layer types of collectives inside a fused node.
const FUSED_PREFIX: &str = "comm_";

/// One layer of a built engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineLayer {
    /// Name in the engine.
    pub name: String,
    /// Type, such as `kgen` or `comm_allgather`.
    pub layer_type: String,
}

/// How a collective runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Inside a node that the compiler fused with its neighbours.
    Fused,
    /// A layer of its own, which splits what is around it.
    Standalone,
}

/// One collective of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectivePlacement {
    /// Nodes of the source program that this collective stands for.
    pub sources: Vec<String>,
    /// Name in the trace, decoded.
    pub layer: String,
    /// Name in the engine.
    pub engine_layer: String,
    /// Type in the engine.
    pub engine_type: String,
    /// How it runs.
    pub placement: Placement,
    /// Kind.
    pub kind: CollectiveKind,
    /// How operands are combined.
    pub reduce: Option<ReduceOp>,
    /// Global root rank, or -1.
    pub root: i64,
    /// Global ranks in group order.
    pub ranks: Vec<u32>,
    /// Number of ranks.
    pub rank_count: usize,
    /// Element type.
    pub dtype: DType,
    /// Bytes of the operand on this rank.
    pub operand_bytes: u64,
    /// Bytes that this rank sends, by the ring algorithm.
    pub wire_bytes: u64,
}

/// Every collective of an engine. Exists only if nothing is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementReport {
    /// Layers of the engine, of any kind.
    pub engine_layers: usize,
    /// Ranks of the communicator that the engine needs.
    pub world_size: u32,
    /// In issue order.
    pub collectives: Vec<CollectivePlacement>,
}

/// The engine does not hold the collectives that the trace has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// The log has no listing.
    #[error("the builder's log lists no engine layers; it must be built with detailed profiling verbosity")]
    NoListing,
    /// A line or record that cannot be read.
    #[error("cannot read the engine's layers: {0}")]
    Unreadable(String),
    /// Collectives that are in the trace and not in the engine.
    #[error("{} of {total} collectives are missing in the engine: {}", .missing.len(), .missing.join(", "))]
    Missing {
        /// Names of the layers, with their source nodes.
        missing: Vec<String>,
        /// Collectives in the trace.
        total: usize,
    },
    /// A collective that is in the engine twice.
    #[error("collective `{layer}` is in the engine twice: as `{first}` and as `{second}`")]
    Twice {
        /// Name of the layer.
        layer: String,
        /// Engine layer.
        first: String,
        /// Other engine layer.
        second: String,
    },
    /// A collective that no one asked for.
    #[error("the engine has a collective `{engine_layer}` ({engine_type}) that the network does not have")]
    Unknown {
        /// Engine layer.
        engine_layer: String,
        /// Its type.
        engine_type: String,
    },
    /// A collective of another kind.
    #[error("collective `{layer}` is a {expected} in the network and a {found} in the engine")]
    WrongKind {
        /// Name of the layer.
        layer: String,
        /// Kind in the trace.
        expected: &'static str,
        /// Type in the engine.
        found: String,
    },
    /// Collectives of the source program without a collective in the engine.
    #[error("{} collectives of the source program have no collective in the engine: {}", .0.len(), .0.join(", "))]
    SourceMissing(Vec<String>),
}

/// Reads the engine's layers from the builder's verbose log, from its `Layers:` heading on.
///
/// # Errors
/// If there is no listing.
pub fn layers_from_log(log: &str) -> Result<Vec<EngineLayer>, PlacementError> {
    let listing = log.find("Layers:").map(|at| &log[at..]).ok_or(PlacementError::NoListing)?;
    let mut layers = Vec::new();
    for line in listing.lines().skip(1) {
        let Some(rest) = line.strip_prefix(LINE_START) else {
            // The listing ends where the I/O tensors or any other section begins.
            if layers.is_empty() || line.trim_start().starts_with("Name:") {
                continue;
            }
            break;
        };
        let Some((layer, rest)) = rest.split_once(TYPE_START) else {
            return Err(PlacementError::Unreadable(format!("no layer type in {line:?}")));
        };
        let layer_type = rest.split(',').next().unwrap_or(rest).trim();
        layers.push(EngineLayer { name: layer.to_owned(), layer_type: layer_type.to_owned() });
    }
    if layers.is_empty() { Err(PlacementError::NoListing) } else { Ok(layers) }
}

/// Reads the engine's layers from the JSON of the engine inspector.
///
/// # Errors
/// If it is no such JSON, or holds names only because the engine was not built with detailed verbosity.
pub fn layers_from_inspector(json: &str) -> Result<Vec<EngineLayer>, PlacementError> {
    let bad = |what: String| PlacementError::Unreadable(what);
    let value: serde_json::Value = serde_json::from_str(json).map_err(|e| bad(e.to_string()))?;
    let layers = value
        .get("Layers")
        .and_then(serde_json::Value::as_array)
        .ok_or_else(|| bad("no array `Layers`".into()))?;
    layers
        .iter()
        .map(|l| {
            let text = |key: &str| l.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
            match (text("Name"), text("LayerType")) {
                (Some(name), Some(layer_type)) => Ok(EngineLayer { name, layer_type }),
                _ => Err(bad(format!("a layer without name or type: {l}"))),
            }
        })
        .collect()
}

impl PlacementReport {
    /// Matches the collectives of a trace with the layers of the engine built from it.
    ///
    /// # Errors
    /// If any collective of the trace is missing, doubled or of another kind in the engine, or the engine has another.
    pub fn new(trace: &NetworkTrace, layers: &[EngineLayer]) -> Result<PlacementReport, PlacementError> {
        let mut found: FxHashMap<&str, &EngineLayer> = FxHashMap::default();
        let wanted: FxHashMap<&str, _> =
            trace.collectives().map(|(l, c)| (l.name.as_str(), c.kind())).collect();
        for engine in layers.iter().filter(|l| placement_of(&l.layer_type).is_some()) {
            // The compiler may merge layers, and then joins their names; `+` is in no encoded name.
            for part in engine.name.split('+').map(str::trim) {
                let Some((layer, &kind)) =
                    [part, without_suffix(part)].into_iter().find_map(|n| wanted.get_key_value(n))
                else {
                    return Err(PlacementError::Unknown {
                        engine_layer: engine.name.clone(),
                        engine_type: engine.layer_type.clone(),
                    });
                };
                if let Some(first) = found.insert(layer, engine) {
                    return Err(PlacementError::Twice {
                        layer: decoded(layer),
                        first: first.name.clone(),
                        second: engine.name.clone(),
                    });
                }
                if fused_type(kind).is_some_and(|t| t != engine.layer_type)
                    && engine.layer_type != STANDALONE_TYPE
                {
                    return Err(PlacementError::WrongKind {
                        layer: decoded(layer),
                        expected: kind.name(),
                        found: engine.layer_type.clone(),
                    });
                }
            }
        }
        let mut missing = Vec::new();
        let mut collectives = Vec::new();
        for (l, c) in trace.collectives() {
            let Some(engine) = found.get(l.name.as_str()) else {
                missing.push(match l.sources.as_slice() {
                    [] => decoded(&l.name),
                    sources => format!("{} (from {})", decoded(&l.name), sources.join(", ")),
                });
                continue;
            };
            let operand_bytes =
                l.call.operands().first().and_then(|&t| trace.layer(t)).map_or(0, |operand| operand.bytes());
            collectives.push(CollectivePlacement {
                sources: l.sources.clone(),
                layer: decoded(&l.name),
                engine_layer: engine.name.clone(),
                engine_type: engine.layer_type.clone(),
                placement: placement_of(&engine.layer_type).unwrap_or(Placement::Standalone),
                kind: c.kind(),
                reduce: c.reduce(),
                root: c.root_or_minus_one(),
                ranks: c.ranks().to_vec(),
                rank_count: c.ranks().len(),
                dtype: l.dtype,
                operand_bytes,
                wire_bytes: wire_bytes(c.kind(), c.ranks().len() as u64, operand_bytes),
            });
        }
        if !missing.is_empty() {
            return Err(PlacementError::Missing { missing, total: wanted.len() });
        }
        Ok(PlacementReport { engine_layers: layers.len(), world_size: trace.world_size(), collectives })
    }

    /// Checks that every given collective of the source program is among the sources of a collective here.
    ///
    /// # Errors
    /// The names that are not.
    pub fn require_sources(&self, sources: &[String]) -> Result<(), PlacementError> {
        let known: rustc_hash::FxHashSet<&str> =
            self.collectives.iter().flat_map(|c| &c.sources).map(String::as_str).collect();
        let missing: Vec<String> = sources.iter().filter(|s| !known.contains(s.as_str())).cloned().collect();
        if missing.is_empty() { Ok(()) } else { Err(PlacementError::SourceMissing(missing)) }
    }

    /// How many collectives are fused and how many stand alone.
    pub fn counts(&self) -> (usize, usize) {
        let fused = self.collectives.iter().filter(|c| c.placement == Placement::Fused).count();
        (fused, self.collectives.len() - fused)
    }
}

/// Names that [`PlacementReport::require_sources`] takes: the frontend's names of all collectives of a program that need
/// communication and that an output depends on.
pub fn source_collectives(graph: &Graph) -> Vec<String> {
    let mut live: rustc_hash::FxHashSet<_> = rustc_hash::FxHashSet::default();
    let mut stack: Vec<_> = graph.outputs().iter().map(|o| o.value.node).collect();
    while let Some(id) = stack.pop() {
        if live.insert(id) {
            stack.extend(graph.node(id).operands.iter().map(|v| v.node));
        }
    }
    graph
        .nodes()
        .filter(|(id, n)| {
            live.contains(id) && n.op.collective().is_some_and(|(_, g)| g.size(graph.mesh()) > 1)
        })
        .flat_map(|(_, n)| if n.sources.is_empty() { vec![n.name.clone()] } else { n.sources.clone() })
        .collect()
}

fn decoded(layer: &str) -> String {
    name::decode(layer).unwrap_or_else(|| layer.to_owned())
}

fn placement_of(layer_type: &str) -> Option<Placement> {
    match layer_type {
        STANDALONE_TYPE => Some(Placement::Standalone),
        t if t.starts_with(FUSED_PREFIX) => Some(Placement::Fused),
        _ => None,
    }
}

/// The compiler's name of a fused collective; `None` for those that it is not known to fuse.
fn fused_type(kind: CollectiveKind) -> Option<&'static str> {
    match kind {
        CollectiveKind::AllReduce => Some("comm_allreduce"),
        CollectiveKind::AllGather => Some("comm_allgather"),
        CollectiveKind::ReduceScatter => Some("comm_reduce_scatter"),
        CollectiveKind::AllToAll => Some("comm_alltoall"),
        _ => None,
    }
}

/// A layer name without what the compiler appends: `_myl<number>_<number>`.
fn without_suffix(engine_name: &str) -> &str {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    engine_name
        .rsplit_once("_myl")
        .filter(|(_, tail)| tail.split_once('_').is_some_and(|(a, b)| digits(a) && digits(b)))
        .map_or(engine_name, |(head, _)| head)
}

/// Bytes sent per rank: (n-1)/n of the full buffer, twice that for an all-reduce. Rooted ones: what the root or a leaf
/// sends at most.
fn wire_bytes(kind: CollectiveKind, n: u64, operand: u64) -> u64 {
    let part = |full: u64| full / n.max(1) * n.saturating_sub(1);
    match kind {
        CollectiveKind::AllReduce => part(operand).saturating_mul(2),
        CollectiveKind::AllGather => operand.saturating_mul(n.saturating_sub(1)),
        CollectiveKind::ReduceScatter | CollectiveKind::AllToAll | CollectiveKind::Scatter => part(operand),
        CollectiveKind::Broadcast | CollectiveKind::Reduce | CollectiveKind::Gather => operand,
    }
}
