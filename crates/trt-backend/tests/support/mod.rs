//! Shared by the tests: small programs, and the library they are built with.
#![allow(dead_code, reason = "each test file uses a part")]

use shardweld_ir::store::WeightStore;
use shardweld_ir::{DType, Graph, Mesh, NodeId, Op, TensorType, Value};
use shardweld_trt::flavour::Flavour;
use shardweld_trt::live::{Library, LibraryError, LiveSink};
use shardweld_trt::lower::{LowerOptions, lower};
use shardweld_trt::placement::{PlacementReport, layers_from_log};
use shardweld_trt::sink::Sink;
use shardweld_trt::trace::NetworkTrace;

/// The TensorRT-RTX library, or `None` with a printed line. With `SHARDWELD_REQUIRE_TRT=1` a missing library is a failure.
pub fn library() -> Option<Library> {
    match Library::find(Flavour::TensorRtRtx, None) {
        Ok(l) => Some(l),
        Err(e @ LibraryError::NotFound { .. }) => {
            let required = std::env::var("SHARDWELD_REQUIRE_TRT").is_ok_and(|v| v == "1");
            assert!(!required, "SHARDWELD_REQUIRE_TRT=1, but: {e}");
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// A program under construction.
pub struct Program(pub Graph);

impl Program {
    pub fn new(mesh: &[(&str, u32)]) -> Program {
        Program(Graph::new("test", Mesh::new(mesh.iter().copied()).unwrap()))
    }

    pub fn input(&mut self, name: &str, dtype: DType, dims: &[u64]) -> NodeId {
        self.0.add_input(name, TensorType::new(dtype, dims)).unwrap()
    }

    pub fn add(&mut self, name: &str, op: Op, operands: &[NodeId]) -> NodeId {
        let operands: Vec<Value> = operands.iter().map(|&n| n.into()).collect();
        self.0.add(name, op, &operands).unwrap()
    }

    pub fn output(&mut self, value: NodeId) {
        let name = format!("out_{}", self.0.node(value).name);
        self.0.add_output(&name, value).unwrap();
    }

    pub fn lower(&self, rank: u32) -> NetworkTrace {
        lower(&self.0, rank, &LowerOptions::default()).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Builds a trace for compute capability 8.0 and reads where its collectives went.
pub fn build(library: &Library, trace: &NetworkTrace) -> (Vec<u8>, PlacementReport) {
    trace.validate().unwrap();
    let sink = LiveSink { library, compute_capability: Some(80), threads: 1, progress: None };
    let engine = sink.replay(trace, &WeightStore::new()).unwrap_or_else(|e| panic!("{e}\n{trace:#?}"));
    let layers = layers_from_log(&engine.listing).unwrap();
    (engine.bytes().to_vec(), PlacementReport::new(trace, &layers).unwrap())
}
