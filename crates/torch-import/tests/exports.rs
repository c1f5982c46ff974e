//! The small exports that `scripts/torch/make_exports.py` makes: every form is imported and run, and compared with what eager torch computed.

use std::path::{Path, PathBuf};

use shardweld_interp::{Named, Tensor, distance, run, tensor_file};
use shardweld_ir::{Collective, Graph, Op, ReduceOp, WeightStore};
use shardweld_torch::{Groups, ImportError, Source, load};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn import(file: &str) -> Result<Graph, ImportError> {
    let mut source = Source::for_all(data(file));
    // Graph JSON has no weights, and the archives of older versions keep them as a pickle.
    let base = file.strip_suffix(".model.json.gz").or(file.strip_suffix(".pt2")).unwrap();
    let separate = data(&format!("{base}.weights.safetensors"));
    if separate.exists() && (!file.ends_with(".pt2") || file.starts_with("torch2.7")) {
        source.weights = Some(separate);
    }
    load(&[source], None, &WeightStore::new())
}

/// Largest error that a result may have, in units in the last place of its type, where only rounding differs.
const MAX_ULP: u64 = 16;
/// Absolute error below which units in the last place do not count: sums that cancel.
const SMALL: f64 = 4e-6;

/// Runs an export on eager torch's inputs and lists the outputs that are not what torch computed.
fn differences(case: &str, file: &str) -> Vec<String> {
    let graph = match import(file) {
        Ok(g) => g,
        Err(e) => return vec![format!("{file}: {e}")],
    };
    if let Err(e) = graph.verify() {
        return vec![format!("{file}: {e}")];
    }
    let io = tensor_file::read(&data(&format!("{case}.io.safetensors"))).unwrap();
    let pick = |prefix: &str| -> Named<Tensor> {
        io.iter().filter_map(|(k, t)| Some((k.strip_prefix(prefix)?.to_owned(), t.clone()))).collect()
    };
    let expected = pick("out/");
    let outputs: Vec<String> = graph.outputs().iter().map(|o| o.name.clone()).collect();
    assert_eq!(outputs.len(), expected.len(), "{file}");
    let found = match run(&graph, &WeightStore::new(), &[pick("in/")]) {
        Ok(mut ranks) => ranks.remove(0),
        Err(e) => return vec![format!("{file}: {e}")],
    };
    let mut bad = Vec::new();
    for (i, name) in outputs.iter().enumerate() {
        match distance(&found[name], &expected[&i.to_string()]) {
            Ok(d) if d.nan_mismatches == 0 && (d.max_ulp <= MAX_ULP || d.max_abs <= SMALL) => {}
            Ok(d) => bad.push(format!("{file}: output {i} `{name}` {}: {d:?}", found[name].ty())),
            Err(e) => bad.push(format!("{file}: output {i} `{name}`: {e}")),
        }
    }
    bad
}

fn agrees(case: &str, archive: bool) {
    let as_exported = if archive { format!("{case}.pt2") } else { format!("{case}.model.json.gz") };
    let files =
        [as_exported, format!("{case}.functional.model.json.gz"), format!("{case}.core.model.json.gz")];
    let bad: Vec<String> = files.iter().flat_map(|f| differences(case, f)).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn writes_through_views() {
    agrees("writes_through_views", false);
}

#[test]
fn copies_are_no_views() {
    agrees("copies_are_no_views", false);
}

#[test]
fn type_promotion() {
    agrees("promotion", false);
}

#[test]
fn pointwise() {
    agrees("pointwise", false);
}

#[test]
fn reductions() {
    agrees("reductions", false);
}

#[test]
fn shapes() {
    agrees("shapes", false);
}

#[test]
fn einsums() {
    agrees("einsums", false);
}

/// `padding` of a convolution at its default, an integer to pad with, `|=` and the like: all were refused.
#[test]
fn arguments_left_out_and_ops_spelled_otherwise() {
    agrees("left_out_and_spelled_otherwise", false);
}

#[test]
fn network() {
    agrees("network", true);
}

#[test]
fn regions_without_gradients_or_autocast_are_inlined() {
    agrees("regions", false);
}

#[test]
fn a_region_with_autocast_is_refused() {
    refused(
        import("autocast.model.json.gz"),
        &["wrap_with_autocast", "autocast is on", "run_decompositions({})"],
    );
}

#[test]
fn resampling_by_whole_factors() {
    // The core form gathers with index tensors instead.
    for form in ["", ".functional"] {
        let bad = differences("resampled", &format!("resampled{form}.model.json.gz"));
        assert!(bad.is_empty(), "{}", bad.join("\n"));
    }
}

#[test]
fn resampling_by_other_factors_is_refused() {
    let words =
        ["4 nodes", "6 pixels to 9 by 1.5", "6 pixels to 9;", "6 pixels to 3", "not each pixel 41 times"];
    refused(import("resampled_unevenly.model.json.gz"), &words);
}

/// Padding `valid` is the default that an export leaves out, a pad value is a float whatever the tensor, and `|=` is in place.
#[test]
fn defaults_and_operators_that_were_refused() {
    agrees("defaults_and_operators", false);
}

#[test]
fn in_place_operators_that_are_not_supported_are_refused_by_name() {
    refused(import("shift_in_place.model.json.gz"), &["aten.__ilshift__.Scalar", "not supported"]);
}

#[test]
fn unsupported_ops_whose_results_nobody_uses_blocked_the_import() {
    let found = ops(&import("unused.model.json.gz").unwrap());
    assert_eq!(found, ["input", "add"]);
}

#[test]
fn unsupported_ops_that_a_write_uses_are_refused() {
    refused(import("used_by_a_write.model.json.gz"), &["1 node ", "cumsum"]);
}

fn ops(g: &Graph) -> Vec<&'static str> {
    g.order().unwrap().into_iter().map(|id| g.node(id).op.name()).collect()
}

/// Exports of older versions of torch; what they compute did not change.
#[test]
fn older_versions_of_torch() {
    for version in ["torch2.7", "torch2.9"] {
        for case in ["writes_through_views", "promotion", "pointwise", "reductions", "shapes"] {
            for form in ["", ".core"] {
                let bad = differences(case, &format!("{version}/{case}{form}.model.json.gz"));
                assert!(bad.is_empty(), "{}", bad.join("\n"));
            }
        }
        let bad = differences("network", &format!("{version}/network.pt2"));
        assert!(bad.is_empty(), "{}", bad.join("\n"));
        assert_eq!(
            collectives(&with_groups(&format!("{version}/collectives.model.json.gz")).unwrap()).len(),
            13
        );
    }
}

#[test]
fn pickled_weights_are_refused_with_a_way_out() {
    let source = [Source::for_all(data("torch2.7/network.pt2"))];
    refused(load(&source, None, &WeightStore::new()), &["`up.weight`", "pickle", "safetensors file"]);
}

fn with_groups(file: &str) -> Result<Graph, ImportError> {
    let groups = Groups::read(&[data("groups.json")]).unwrap();
    load(&[Source::for_all(data(file))], Some(&groups), &WeightStore::new())
}

/// Collectives of a graph as text, in program order.
fn collectives(g: &Graph) -> Vec<String> {
    g.order()
        .unwrap()
        .into_iter()
        .filter_map(|id| {
            let n = g.node(id);
            let (kind, group) = n.op.collective()?;
            Some(format!("{} {kind:?} {:?}", n.sources.join("+"), group.members(g.mesh(), 1)))
        })
        .collect()
}

#[test]
fn collectives_of_every_kind() {
    for form in ["", ".functional", ".core"] {
        let g = with_groups(&format!("collectives{form}.model.json.gz")).unwrap();
        g.verify().unwrap();
        let found = collectives(&g);
        // 1 + 1 + three coalesced pairs + reduce_scatter, broadcast, two all_to_all, all_reduce: waits add none.
        assert_eq!(found.len(), 13, "{found:#?}");
        assert!(found.iter().any(|c| c.contains("Broadcast { root: 1 } [0, 1]")), "{found:#?}");
        assert!(found.iter().any(|c| c.contains("AllGather { dim: 0 } [1, 3]")), "{found:#?}");
        assert!(found.iter().any(|c| c.contains("op: Prod")), "{found:#?}");
    }
}

#[test]
fn collectives_in_place_write_their_operand() {
    let g = with_groups("collectives_in_place.model.json.gz").unwrap();
    g.verify().unwrap();
    let producer = |i: usize| g.node(g.outputs()[i].value.node).op.clone();
    assert!(matches!(producer(0), Op::UpdateSlice { dim: 1, start: 0, stride: 1 }), "{:?}", producer(0));
    let reduced =
        |op: &Op| matches!(op, Op::Collective { kind: Collective::AllReduce { op: ReduceOp::Min, .. }, .. });
    assert!(reduced(&producer(1)) && reduced(&producer(2)));
    assert!(matches!(producer(3), Op::Collective { kind: Collective::AllGather { dim: 0 }, .. }));
    assert!(matches!(producer(4), Op::Collective { kind: Collective::Broadcast { root: 0 }, .. }));
}

/// The error of an import that must fail, with the words that it must contain.
#[track_caller]
fn refused(result: Result<Graph, ImportError>, words: &[&str]) {
    let e = result.expect_err("the import must be refused").to_string();
    for w in words {
        assert!(e.contains(w), "`{w}` is not in: {e}");
    }
}

#[test]
fn uneven_all_to_all_is_refused() {
    refused(with_groups("uneven_all_to_all.model.json.gz"), &["all_to_all_single", "uneven", "[1, 3]"]);
}

#[test]
fn collectives_without_a_side_file_are_refused() {
    refused(import("collectives.model.json.gz"), &["group `3`", "--groups", "node `all_reduce`"]);
}

#[test]
fn unknown_ops_are_all_listed() {
    let words = ["linalg_inv", "sort", "cumsum", "einsum", "node `", "4 nodes"];
    refused(import("unknown_ops.model.json.gz"), &words);
}

#[test]
fn symbolic_sizes_are_refused_by_name() {
    refused(import("symbolic.model.json.gz"), &["`x`", "[s77, 6]", "static shapes"]);
}

#[test]
fn unknown_element_types_are_refused_by_name() {
    refused(import("unknown_dtype.model.json.gz"), &["`x`", "float8_e5m2"]);
}

#[test]
fn writes_to_an_input_are_refused() {
    refused(import("writes_to_input.model.json.gz"), &["add_", "program input `x`"]);
}

#[test]
fn writes_through_a_view_that_cannot_be_undone_are_refused() {
    refused(import("writes_to_expanded.model.json.gz"), &["diagonal"]);
}
