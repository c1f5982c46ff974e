//! The samples, lowered to network traces and run by the trace interpreter, against what PyTorch's ranks computed.

use std::path::{Path, PathBuf};

use shardweld_interp::fold::MAX_CONSTANT_BYTES;
use shardweld_interp::tensor_file::{self, Role};
use shardweld_interp::{Named, Tensor, distance, fold_constants};
use shardweld_ir::{Collective, Graph, Group, Op, WeightStore};
use shardweld_torch::{Groups, Source, load};
use shardweld_trt::interpret::interpret_ranks;
use shardweld_trt::lower::{LowerOptions, lower_all};

/// How near f32 results have to be.
const MIN_COSINE: f64 = 0.999_999_9;
const MAX_ABS: f64 = 2e-5;

struct Case {
    graph: Graph,
    weights: WeightStore,
    inputs: Vec<Named<Tensor>>,
    expected: Vec<Named<Tensor>>,
}

/// A case of `folder`, from the files of the given ranks, with the saved inputs and outputs of all `world` ranks.
fn case(folder: &str, name: &str, form: &str, files: &[u32], world: usize) -> Case {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples").join(folder);
    let file = |rank: u32, rest: &str| dir.join(format!("{name}.rank{rank}{rest}"));
    let sides: Vec<PathBuf> = files.iter().map(|&r| file(r, ".json")).collect();
    let sources: Vec<Source> = match files {
        [one] => vec![Source::for_all(file(*one, form))],
        all => all.iter().map(|&r| Source::for_ranks(file(r, form), [r])).collect(),
    };
    let weights = WeightStore::new();
    let mut graph = load(&sources, Some(&Groups::read(&sides).unwrap()), &weights).unwrap();
    // Frequency tables are computed in f64, which TensorRT has not.
    fold_constants(&mut graph, MAX_CONSTANT_BYTES).unwrap();
    let saved = tensor_file::read(&dir.join(format!("{name}.parity.safetensors"))).unwrap();
    let of = |role| tensor_file::of_ranks(&saved, role, world);
    Case { graph, weights, inputs: of(Role::Input), expected: of(Role::Output) }
}

/// Largest difference of any output of any rank; the cosine must not be far from 1 anywhere.
fn largest_error(case: &Case, graph: &Graph) -> (f64, f64) {
    let traces = lower_all(graph, &LowerOptions::default(), &case.weights).unwrap();
    let found = interpret_ranks(&traces, &case.weights, &case.inputs).unwrap();
    let (mut cosine, mut max_abs, mut compared) = (1f64, 0f64, 0);
    for (found, expected) in found.iter().zip(&case.expected) {
        for (name, e) in expected {
            let d = distance(found.get(name).unwrap_or_else(|| panic!("no output {name}")), e).unwrap();
            (cosine, max_abs, compared) = (cosine.min(d.cosine), max_abs.max(d.max_abs), compared + 1);
        }
    }
    assert!(compared >= case.inputs.len(), "every rank has an output to compare");
    (cosine, max_abs)
}

#[track_caller]
fn assert_matches(case: &Case) {
    let (cosine, max_abs) = largest_error(case, &case.graph);
    println!("{}: cosine {cosine}, max abs {max_abs:e}", case.graph.name);
    assert!(cosine >= MIN_COSINE && max_abs <= MAX_ABS, "cosine {cosine}, max abs {max_abs:e}");
}

#[test]
fn traces_of_the_mlp_match_pytorch_in_every_form() {
    for name in ["mlp_tp2", "mlp_tp2_sp", "mlp_tp2_inplace", "mlp_tp2_hashgroup"] {
        for form in [".pt2", ".functional.pt2", ".core.pt2"] {
            let file = format!("../samples/mlp_tp2/{name}.rank0{form}");
            if Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists() {
                assert_matches(&case("mlp_tp2", name, form, &[0, 1], 2));
            }
        }
    }
}

#[test]
fn one_trace_for_eight_ranks_matches_pytorch() {
    let case = case("ltx2_tiny_cp8", "ltx2_tiny_cp8", ".pt2", &[0], 8);
    assert_eq!(lower_all(&case.graph, &LowerOptions::default(), &case.weights).unwrap().len(), 1);
    assert_matches(&case);
}

#[test]
fn eight_traces_of_two_axes_match_pytorch() {
    let case = case("ltx23_tiny_cp4tp2", "ltx23_tiny_cp4tp2", ".pt2", &[0, 1, 2, 3, 4, 5, 6, 7], 8);
    assert_eq!(lower_all(&case.graph, &LowerOptions::default(), &case.weights).unwrap().len(), 8);
    assert_matches(&case);
}

/// The graph with the first gather over the ranks in another order.
fn permuted_gather(graph: &Graph) -> Graph {
    let mut changed = graph.clone();
    let is_gather = |op: &Op| matches!(op, Op::Collective { kind: Collective::AllGather { .. }, .. });
    let (old, node) = graph.nodes().find(|(_, n)| is_gather(&n.op)).expect("the sample gathers");
    let Op::Collective { kind, .. } = node.op else { unreachable!("just seen") };
    let op = Op::Collective { kind, group: Group::Ranks(vec![vec![1, 0]]) };
    let new = changed.add("permuted", op, &node.operands).unwrap();
    changed.replace_uses(old.into(), new.into()).unwrap();
    changed.remove_dead();
    changed
}

/// What the tests above rest on: ranks of a group in another order are seen.
#[test]
fn a_gather_in_permuted_rank_order_does_not_match() {
    let case = case("mlp_tp2", "mlp_tp2_sp", ".pt2", &[0, 1], 2);
    let (cosine, _) = largest_error(&case, &permuted_gather(&case.graph));
    assert!(cosine < MIN_COSINE, "cosine {cosine}");
}
