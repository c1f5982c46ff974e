//! Building all engines of a program: files, progress, cancellation, and nothing left behind on failure.
#![cfg(feature = "live")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use shardweld_ir::store::WeightStore;
use shardweld_ir::{AxisId, Collective, DType, Graph, Group, Op, ReduceOp, Unary};
use shardweld_trt::build::{BuildError, BuildOptions, BuildProgressFn, build_all};
use shardweld_trt::live::Library;
use shardweld_trt::lower::{LowerOptions, RankTrace, lower_all};
use shardweld_trt::trace::{Call, ReduceOperation, TraceBuilder};
use support::{Program, library};

/// Ranks of different groups need different engines.
fn program(groups: bool) -> Graph {
    let mut p = Program::new(&[("cp", 2), ("tp", 2)]);
    let x = p.input("x", DType::F32, &[4, 8]);
    let x = p.add("act", Op::Unary(Unary::Exp), &[x]);
    let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
    let group = if groups { Group::axis(AxisId(0)) } else { p.0.mesh().world_group() };
    let y = p.add("sum", Op::Collective { kind, group }, &[x]);
    p.output(y);
    p.0
}

fn options<'a>(library: &'a Library, progress: Option<&'a BuildProgressFn<'a>>) -> BuildOptions<'a> {
    BuildOptions { library, compute_capability: Some(80), parallel: 2, memory_bytes: 4 << 30, progress }
}

fn files(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn one_engine_for_all_ranks_or_one_per_distinct_trace() {
    let Some(library) = library() else { return };
    let store = WeightStore::new();
    for (groups, expected) in
        [(false, vec!["net.engine"]), (true, vec!["net.rank0.engine", "net.rank1.engine"])]
    {
        let folder = tempfile::tempdir().unwrap();
        let traces = lower_all(&program(groups), &LowerOptions::default(), &store).unwrap();
        let steps = AtomicUsize::new(0);
        let progress = |_: usize, _: shardweld_trt::live::ProgressEvent<'_>| {
            steps.fetch_add(1, Ordering::Relaxed);
            true
        };
        let built =
            build_all(&traces, &store, folder.path(), "net", &options(&library, Some(&progress))).unwrap();
        assert_eq!(files(folder.path()), expected);
        assert!(steps.into_inner() > 10);
        for e in &built {
            assert_eq!(std::fs::metadata(&e.path).unwrap().len(), e.bytes);
            assert_eq!(e.placement.collectives.len(), 1);
        }
        let ranks: Vec<_> = built.iter().map(|e| e.ranks.clone()).collect();
        assert_eq!(ranks, if groups { vec![vec![0, 2], vec![1, 3]] } else { vec![vec![0, 1, 2, 3]] });
    }
}

#[test]
fn a_cancelled_build_leaves_nothing() {
    let Some(library) = library() else { return };
    let store = WeightStore::new();
    let folder = tempfile::tempdir().unwrap();
    let traces = lower_all(&program(true), &LowerOptions::default(), &store).unwrap();
    let progress = |_: usize, _: shardweld_trt::live::ProgressEvent<'_>| false;
    let e =
        build_all(&traces, &store, folder.path(), "net", &options(&library, Some(&progress))).unwrap_err();
    assert!(matches!(e, BuildError::Cancelled), "{e}");
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let Some(library) = library() else { return };
    let store = WeightStore::new();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let traces = lower_all(&program(false), &LowerOptions::default(), &store).unwrap();
    let e = build_all(&traces, &store, &missing, "net", &options(&library, None)).unwrap_err();
    assert!(e.to_string().contains("missing"), "{e}");
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_name_that_cannot_be_given_takes_the_others_back() {
    let Some(library) = library() else { return };
    let store = WeightStore::new();
    let folder = tempfile::tempdir().unwrap();
    // A folder is in the way of the second file.
    std::fs::create_dir(folder.path().join("net.rank1.engine")).unwrap();
    let traces = lower_all(&program(true), &LowerOptions::default(), &store).unwrap();
    let e = build_all(&traces, &store, folder.path(), "net", &options(&library, None)).unwrap_err();
    assert!(matches!(e, BuildError::Write { .. }), "{e}");
    assert_eq!(files(folder.path()), ["net.rank1.engine"]);
}

#[test]
fn a_network_against_the_contract_never_reaches_the_builder() {
    let Some(library) = library() else { return };
    let store = WeightStore::new();
    let mean = |dtype| {
        let mut b = TraceBuilder::new("test", 1);
        let input = b.input("x", dtype, &[2, 4]).unwrap();
        let call = Call::Reduce { input, op: ReduceOperation::Avg, axes: vec![1], keep_dims: true };
        let y = b.add("mean", &[], call).unwrap();
        b.output("y", y).unwrap();
        RankTrace { ranks: vec![0], trace: b.finish().unwrap() }
    };
    let folder = tempfile::tempdir().unwrap();
    let steps = AtomicUsize::new(0);
    let progress = |_: usize, _: shardweld_trt::live::ProgressEvent<'_>| {
        steps.fetch_add(1, Ordering::Relaxed);
        true
    };
    let build = |traces: &[RankTrace]| {
        build_all(traces, &store, folder.path(), "net", &options(&library, Some(&progress)))
    };
    // The builder takes it; how it rounds is nowhere said.
    let e = build(&[mean(DType::F32), mean(DType::I32)]).unwrap_err();
    assert!(matches!(e, BuildError::Refused { .. }) && e.to_string().contains("`mean`"), "{e}");
    assert_eq!(steps.load(Ordering::Relaxed), 0);
    assert!(files(folder.path()).is_empty());
    build(&[mean(DType::F32)]).unwrap();
}
