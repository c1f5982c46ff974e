//! The full set of real exports, in every form, where it is at hand: the folder that `SHARDWELD_DATA` names.

use std::path::PathBuf;

use crate::builds::{everything_placed, library};
use crate::shardweld::{Case, F32_LIMITS, arg, shardweld};

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

/// The f32 form of the same case agrees to 1e-5; these limits are how far two correct bf16 runs are from each other.
#[test]
fn forty_eight_blocks_in_bf16_have_parity() {
    let Some(folder) = data("forty_eight_blocks_in_bf16_have_parity") else { return };
    for (case, model, groups) in [
        ("ltx2_deep48_cp8", "rank0.pt2", "rank0.json"),
        ("ltx23_deep48_cp4tp2", "rank{tp}.pt2", "rank{tp}.json"),
    ] {
        let case = Case::in_folder(&folder, case, model, groups);
        for stage in ["source", "rewritten"] {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("out.safetensors");
            case.run(stage, &out);
            for (output, min_cosine) in [("sample", "0.9985"), ("audio_sample", "0.9997")] {
                let only: Vec<String> = (0..8).map(|r| format!("rank{r}/out/{output}")).collect();
                let mut args =
                    vec!["compare", arg(&out), &case.tensors, "--min-cosine", min_cosine, "--json"];
                args.extend(only.iter().flat_map(|o| ["--only", o.as_str()]));
                assert_eq!(shardweld(&args).done().json()["compared"], 8, "{output}");
            }
        }
    }
}

/// All but the 48-block cases, whose builds take minutes.
#[test]
fn every_case_builds() {
    let Some(folder) = data("every_case_builds") else { return };
    if !library("every_case_builds") {
        return;
    }
    for (case, model) in [
        ("mlp_tp2", "rank{rank}.pt2"),
        ("mlp_tp2", "rank{rank}.functional.pt2"),
        ("mlp_tp2", "rank{rank}.core.pt2"),
        ("mlp_tp2_sp", "rank{rank}.pt2"),
        ("mlp_tp2_sp", "rank{rank}.functional.pt2"),
        ("mlp_tp2_sp", "rank{rank}.core.pt2"),
        ("mlp_tp2_inplace", "rank{rank}.pt2"),
        ("mlp_tp2_inplace", "rank{rank}.functional.pt2"),
        ("mlp_tp2_inplace", "rank{rank}.core.pt2"),
        ("mlp_tp2_hashgroup", "rank{rank}.pt2"),
        ("ltx2_tiny_cp2", "rank0.pt2"),
        ("ltx2_tiny_cp2", "rank0.core.pt2"),
        ("ltx2_tiny_cp8", "rank0.pt2"),
        ("ltx2_tiny_cp4tp2", "rank{rank}.pt2"),
        ("ltx23_tiny_cp2", "rank0.pt2"),
        ("ltx23_tiny_cp2", "rank0.functional.pt2"),
        ("ltx23_tiny_cp4tp2", "rank{rank}.pt2"),
    ] {
        let groups = if model.contains("{rank}") { "rank{rank}.json" } else { "rank0.json" };
        let case = Case::in_folder(&folder, case, model, groups);
        let report = shardweld(&["build", &case.model, "--groups", &case.groups, "--json"]).done().json();
        everything_placed(&case, &report);
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
