//! Source and rewritten program against PyTorch's own multi-rank run, every tensor of every rank.

use crate::shardweld::{Call, Case, F32_LIMITS, arg, command, finish, samples, shardweld};

fn both_stages(case: &Case, outputs: u64) {
    for stage in ["source", "rewritten"] {
        let call = case.parity(stage, F32_LIMITS).done();
        assert_eq!(compared(&call), outputs, "{stage} of {case:?}");
    }
}

fn compared(call: &Call) -> u64 {
    call.json()["compared"].as_u64().unwrap()
}

#[test]
fn mlp_in_every_form() {
    for case in ["mlp_tp2", "mlp_tp2_sp", "mlp_tp2_inplace"] {
        for form in ["rank{rank}.pt2", "rank{rank}.functional.pt2", "rank{rank}.core.pt2"] {
            both_stages(&Case::sample("mlp_tp2", case, form, "rank{rank}.json"), 2);
        }
    }
    both_stages(&Case::sample("mlp_tp2", "mlp_tp2_hashgroup", "rank{rank}.pt2", "rank{rank}.json"), 2);
}

#[test]
fn context_parallel_8() {
    both_stages(&Case::cp8(), 16);
}

#[test]
fn context_parallel_4_tensor_parallel_2() {
    both_stages(&Case::cp4tp2(), 16);
}

/// A program written as text elsewhere named its weights relative to where it was made, and could not be run.
#[test]
fn a_program_written_elsewhere_finds_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (program, outputs) = (dir.path().join("mlp.swir"), dir.path().join("out.safetensors"));
    let (model, groups) = ("mlp_tp2.rank{rank}.pt2", "mlp_tp2.rank{rank}.json");
    let opt = ["opt", model, "--groups", groups, "--out", arg(&program)];
    finish(command(&opt).current_dir(samples().join("mlp_tp2"))).done();
    let tensors = samples().join("mlp_tp2/mlp_tp2.parity.safetensors");
    shardweld(&["run", arg(&program), "--inputs", arg(&tensors), "--out", arg(&outputs)]).done();
    shardweld(&["compare", arg(&outputs), arg(&tensors), "--max-abs", "2e-5"]).done();
    // A relative name counts from the program's own folder.
    let folder = samples().join("mlp_tp2").canonicalize().unwrap();
    let text = std::fs::read_to_string(&program).unwrap();
    assert!(text.contains(arg(&folder)), "{text}");
    std::fs::write(&program, text.replace(arg(&folder), ".")).unwrap();
    shardweld(&["run", arg(&program), "--inputs", arg(&tensors), "--out", arg(&outputs)])
        .refuses(&[arg(dir.path())]);
}
