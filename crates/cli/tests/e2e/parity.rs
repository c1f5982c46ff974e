//! Source and rewritten program against PyTorch's own multi-rank run, every tensor of every rank.

use crate::shardweld::{Call, Case, F32_LIMITS};

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
