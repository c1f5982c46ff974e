//! Faults that nothing would report by itself: each is planted in a real export, and parity or the verifier must say no.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::archive::{calls, edit_graph, nodes, operand, redirect, result};
use crate::shardweld::{Case, F32_LIMITS, samples};

/// A copy of a case with the graph of every rank changed.
fn planted(folder: &str, case: &str, ranks: u32, edit: impl Fn(&mut Value)) -> (tempfile::TempDir, Case) {
    let dir = tempfile::tempdir().unwrap();
    let from = samples().join(folder);
    for entry in fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with(&format!("{case}.")) && !name.ends_with(".pt2") {
            fs::copy(&path, dir.path().join(name)).unwrap();
        }
    }
    for rank in 0..ranks {
        let file = format!("{case}.rank{rank}.pt2");
        edit_graph(&from.join(&file), &dir.path().join(&file), &edit);
    }
    let (model, groups) =
        if ranks == 1 { ("rank0.pt2", "rank0.json") } else { ("rank{rank}.pt2", "rank{rank}.json") };
    let case = Case::in_folder(dir.path(), case, model, groups);
    (dir, case)
}

fn no_parity(case: &Case) {
    case.parity("source", F32_LIMITS).says_no(&["tensors are too far apart"]);
}

/// The operand of a collective goes straight to the users of its wait.
fn leave_out(graph: &mut Value, op: &str) {
    let all = nodes(graph);
    let collective = all.iter().find(|n| calls(n, op)).cloned().unwrap();
    let wait =
        all.iter().find(|n| calls(n, "wait_tensor") && operand(n) == result(&collective)).cloned().unwrap();
    assert!(redirect(graph, &result(&wait), &operand(&collective)) > 0);
}

#[test]
fn a_copy_without_fault_has_parity() {
    let (_dir, case) = planted("mlp_tp2", "mlp_tp2_sp", 2, |_| {});
    case.parity("source", F32_LIMITS).done();
}

#[test]
fn an_in_place_addcmul_dropped() {
    let (_dir, case) = planted("ltx23_tiny_cp4tp2", "ltx23_tiny_cp4tp2", 8, |g| {
        let before = nodes(g).len();
        nodes(g).retain(|n| !calls(n, "aten.addcmul_.default"));
        assert!(nodes(g).len() < before);
    });
    no_parity(&case);
}

#[test]
fn an_all_reduce_left_out() {
    let (_dir, case) = planted("mlp_tp2", "mlp_tp2", 2, |g| leave_out(g, "_c10d_functional.all_reduce"));
    no_parity(&case);
}

#[test]
fn an_all_to_all_left_out() {
    let (_dir, case) =
        planted("ltx2_tiny_cp8", "ltx2_tiny_cp8", 1, |g| leave_out(g, "_c10d_functional.all_to_all_single"));
    no_parity(&case);
}

#[test]
fn the_tensor_parallel_group_replaced_by_the_world() {
    let (_dir, case) = planted("ltx23_tiny_cp4tp2", "ltx23_tiny_cp4tp2", 8, |g| {
        let mut replaced = 0;
        for n in nodes(g).iter_mut().filter(|n| calls(n, "_c10d_functional.all_reduce")) {
            set_group(n, "0");
            replaced += 1;
        }
        assert!(replaced > 0);
    });
    no_parity(&case);
}

/// Only the gather: with the scatter permuted as well, the two undo each other.
#[test]
fn an_all_gather_in_permuted_rank_order() {
    let (dir, mut case) = planted("mlp_tp2", "mlp_tp2_sp", 2, |g| {
        let gather =
            nodes(g).iter_mut().find(|n| calls(n, "_c10d_functional.all_gather_into_tensor")).unwrap();
        set_group(gather, "permuted");
    });
    case.groups = side_file(dir.path(), [1, 0]);
    no_parity(&case);
    case.groups = side_file(dir.path(), [0, 1]);
    case.parity("source", F32_LIMITS).done();
}

/// A side file for both ranks with one more group.
fn side_file(dir: &Path, order: [u32; 2]) -> String {
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(dir.join(name)).unwrap()).unwrap() };
    let (side, mut table) = (read("mlp_tp2_sp.rank0.json"), read("mlp_tp2_sp.parity.json"));
    for (_, groups) in table["groups"].as_object_mut().unwrap() {
        groups["permuted"] = json!({"ranks": order, "desc": "permuted"});
    }
    let all = json!({"world_size": 2, "mesh": side["mesh"], "groups": table["groups"], "inputs": side["inputs"],
        "outputs": side["outputs"]});
    let path: PathBuf = dir.join(format!("order{}{}.json", order[0], order[1]));
    fs::write(&path, all.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Replaces the group argument, which is the last string argument of a collective.
fn set_group(node: &mut Value, group: &str) {
    let arg = node["inputs"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .rev()
        .find(|i| i["arg"].get("as_string").is_some())
        .unwrap();
    arg["arg"]["as_string"] = group.into();
}
