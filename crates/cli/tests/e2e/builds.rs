//! The real builder on the samples: engines, the report, and where each collective went.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::shardweld::{Call, Case, arg, listing, shardweld};

/// Whether the library is there. Where tests must not skip, its absence is a failure.
pub fn library(test: &str) -> bool {
    let there = std::env::var_os("SHARDWELD_TENSORRT_RTX_LIB").is_some_and(|p| Path::new(&p).exists());
    let required = std::env::var_os("SHARDWELD_REQUIRE_TRT").is_some_and(|v| v == "1");
    assert!(there || !required, "SHARDWELD_REQUIRE_TRT is 1 and SHARDWELD_TENSORRT_RTX_LIB names no library");
    if !there {
        println!("skipped {test}: SHARDWELD_TENSORRT_RTX_LIB names no library");
    }
    there
}

fn build(case: &Case, out: &Path, more: &[&str]) -> Call {
    shardweld(
        &[&["build", &case.model, "--groups", &case.groups, "--out", arg(out), "--json"], more].concat(),
    )
}

/// Every collective that `check` counts in the source is in the report, placed.
pub fn everything_placed(case: &Case, report: &Value) {
    let source = shardweld(&["check", &case.model, "--groups", &case.groups, "--json"]).done().json();
    let count = source["collectives"].as_array().unwrap().len();
    for engine in report["engines"].as_array().unwrap() {
        let placed = engine["placement"]["collectives"].as_array().unwrap();
        let sources: usize = placed.iter().map(|c| c["sources"].as_array().unwrap().len()).sum();
        assert_eq!(sources, count, "{engine}");
    }
}

#[test]
fn one_engine_for_eight_ranks() {
    if !library("one_engine_for_eight_ranks") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let case = Case::cp8();
    build(&case, &out, &[]).done();
    let report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["engines"].as_array().unwrap().len(), 1);
    assert_eq!(report["engines"][0]["ranks"].as_array().unwrap().len(), 8);
    everything_placed(&case, &report);
    let file = report["engines"][0]["file"].as_str().unwrap();
    assert!(fs::metadata(out.join(file)).unwrap().len() > 0);
    assert_eq!(listing(dir.path()), ["out"]);
    // A second build replaces the first.
    build(&case, &out, &[]).done();
    assert_eq!(listing(dir.path()), ["out"]);
}

#[test]
fn one_engine_per_rank_where_ranks_differ() {
    if !library("one_engine_per_rank_where_ranks_differ") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let case = Case::sample("mlp_tp2", "mlp_tp2_sp", "rank{rank}.pt2", "rank{rank}.json");
    let report = build(&case, &out, &[]).done().json();
    assert_eq!(report["engines"].as_array().unwrap().len(), 2);
    everything_placed(&case, &report);
    // With the weights as inputs the two ranks are one program.
    let report = build(&case, &out, &["--weights", "inputs"]).done().json();
    assert_eq!(report["engines"].as_array().unwrap().len(), 1);
}

/// Each host of a job can build the engines of its own ranks; names do not depend on what else is built.
#[test]
fn engines_of_some_ranks() {
    if !library("engines_of_some_ranks") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let case = Case::cp4tp2();
    let out = dir.path().join("out");
    build(&case, &out, &["--ranks", "5"]).done();
    assert!(out.join("model.rank5.engine").is_file(), "{:?}", listing(&out));
    assert!(!out.join("model.rank0.engine").exists());
    let refused = build(&case, &dir.path().join("none"), &["--ranks", "0,8"]);
    refused.refuses(&["rank 8", "below 8"]);
}
