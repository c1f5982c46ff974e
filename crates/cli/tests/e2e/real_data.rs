//! The full set of real exports, in every form, where it is at hand: the folder that `SHARDWELD_DATA` names.

use std::path::PathBuf;

use crate::shardweld::{Case, F32_LIMITS, shardweld};

/// The folder, or a printed line that says why nothing was tested.
fn data(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SHARDWELD_DATA").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped {test}: SHARDWELD_DATA names no folder");
    }
    folder
}

#[test]
fn every_f32_case_has_parity() {
    let Some(folder) = data("every_f32_case_has_parity") else { return };
    let cases = [
        ("ltx2_tiny_cp2", "rank0.pt2"),
        ("ltx2_tiny_cp2", "rank0.core.pt2"),
        ("ltx2_tiny_cp8", "rank0.pt2"),
        ("ltx2_tiny_cp4tp2", "rank{rank}.pt2"),
        ("ltx23_tiny_cp2", "rank0.pt2"),
        ("ltx23_tiny_cp2", "rank0.functional.pt2"),
        ("ltx23_tiny_cp4tp2", "rank{rank}.pt2"),
    ];
    for (case, model) in cases {
        let groups = if model.contains("{rank}") { "rank{rank}.json" } else { "rank0.json" };
        let case = Case::in_folder(&folder, case, model, groups);
        for stage in ["source", "rewritten"] {
            case.parity(stage, F32_LIMITS).done();
        }
    }
}

#[test]
fn full_size_graphs_lower_without_weights() {
    let Some(folder) = data("full_size_graphs_lower_without_weights") else { return };
    for (case, model, groups) in [
        ("ltx2_full_cp8", "rank0.model.json.gz", "rank0.json"),
        ("ltx23_full_cp4tp2", "rank{tp}.model.json.gz", "rank{tp}.json"),
    ] {
        let case = Case::in_folder(&folder, case, model, groups);
        shardweld(&[
            "build",
            &case.model,
            "--groups",
            &case.groups,
            "--target",
            "trace",
            "--weights",
            "inputs",
        ])
        .done();
    }
}
