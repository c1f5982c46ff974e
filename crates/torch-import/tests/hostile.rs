//! Damaged, hostile and inconsistent input: a clear error, never a panic.

use std::{
    fs,
    io::{Cursor, Read, Write},
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use serde_json::{Value, json};
use shardweld_ir::{Graph, WeightStore};
use shardweld_torch::{Groups, ImportError, Source, archive::ModelFile, load};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/mlp_tp2").join(name)
}

/// Entries of the sample archive.
fn entries() -> Vec<(String, Vec<u8>)> {
    let mut zip = ZipArchive::new(Cursor::new(fs::read(sample("mlp_tp2.rank0.pt2")).unwrap())).unwrap();
    (0..zip.len())
        .map(|i| {
            let mut e = zip.by_index(i).unwrap();
            let mut data = Vec::new();
            e.read_to_end(&mut data).unwrap();
            (e.name().to_owned(), data)
        })
        .collect()
}

fn archive(entries: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in entries {
        zip.start_file(name.as_str(), SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Imports bytes as a model file that both ranks of the sample run.
fn import(bytes: &[u8]) -> Result<Graph, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pt2");
    fs::write(&file, bytes).unwrap();
    let groups = Groups::read(&[sample("mlp_tp2.rank0.json")]).unwrap();
    load(&[Source::for_all(file)], Some(&groups), &WeightStore::new())
}

#[track_caller]
fn refused(result: Result<Graph, ImportError>, words: &[&str]) {
    let e = result.expect_err("the import must be refused").to_string();
    for w in words {
        assert!(e.contains(w), "`{w}` is not in: {e}");
    }
}

fn changed(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut all = entries();
    change(&mut all.iter_mut().find(|(n, _)| n.ends_with(name)).unwrap().1);
    archive(&all, CompressionMethod::Stored)
}

#[test]
fn stored_and_deflated_archives_are_read() {
    let as_torch_wrote_it = import(&fs::read(sample("mlp_tp2.rank0.pt2")).unwrap()).unwrap();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let g = import(&archive(&entries(), method)).unwrap();
        assert_eq!(g.len(), as_torch_wrote_it.len());
    }
}

#[test]
fn any_root_folder_will_do() {
    for root in ["other", "a b.c"] {
        let renamed: Vec<_> =
            entries().into_iter().map(|(n, d)| (n.replacen("mlp_tp2.rank0", root, 1), d)).collect();
        import(&archive(&renamed, CompressionMethod::Stored)).unwrap();
    }
}

#[test]
fn a_truncated_archive_is_refused_wherever_it_ends() {
    let whole = fs::read(sample("mlp_tp2.rank0.pt2")).unwrap();
    for n in [2, 100, whole.len() / 2, whole.len() - 1000, whole.len() - 30, whole.len() - 1] {
        refused(import(&whole[..n]), &["model.pt2", "truncated"]);
    }
}

#[test]
fn a_zip_bomb_is_refused() {
    let bomb = vec![("m/models/model.json".to_owned(), vec![b' '; 64 << 20])];
    refused(
        import(&archive(&bomb, CompressionMethod::Deflated)),
        &["models/model.json", "inflates", "limits"],
    );
}

#[test]
fn a_gzip_bomb_is_refused() {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz.write_all(&vec![b' '; 64 << 20]).unwrap();
    refused(import(&gz.finish().unwrap()), &["inflates", "limits"]);
}

#[test]
fn path_traversal_in_an_entry_name_is_refused() {
    for name in ["../../x", "mlp_tp2.rank0/../../x", "/etc/x", "mlp_tp2.rank0/c:\\x"] {
        let mut all = entries();
        all.push((name.to_owned(), vec![1]));
        refused(import(&archive(&all, CompressionMethod::Stored)), &["entry name", "refused"]);
    }
}

#[test]
fn a_weight_shorter_than_its_shape_is_refused() {
    let short = changed("weights/weight_2", |d| d.truncate(4092));
    refused(import(&short), &["`up.weight`", "4092 bytes", "4096"]);
}

#[test]
fn a_weight_without_data_is_refused() {
    let gone: Vec<_> = entries().into_iter().filter(|(n, _)| !n.ends_with("weight_2")).collect();
    refused(import(&archive(&gone, CompressionMethod::Stored)), &["`up.weight`", "no entry"]);
}

#[test]
fn a_damaged_graph_entry_is_refused() {
    let whole = fs::read(sample("mlp_tp2.rank0.pt2")).unwrap();
    let at = whole.windows(12).position(|w| w == b"graph_module").unwrap();
    let mut damaged = whole.clone();
    damaged[at] ^= 1;
    refused(import(&damaged), &["models/model.json", "damaged"]);
}

#[test]
fn what_is_no_model_is_refused() {
    refused(import(b""), &["neither"]);
    refused(import(b"pickle"), &["neither"]);
    refused(import(b"{}"), &["not a graph of torch.export"]);
    refused(import(b"{\"graph_module\": 3"), &["not a graph of torch.export"]);
    refused(
        import(&archive(&[("a/b".into(), vec![])], CompressionMethod::Stored)),
        &["no entry `models/model.json`"],
    );
}

/// A graph JSON: inputs with shapes, nodes, names of the outputs.
fn program(inputs: &[(&str, &[u64])], values: &[(&str, &[u64])], nodes: Value, outputs: &[&str]) -> Vec<u8> {
    let meta = |dims: &[u64]| {
        let strides: Vec<u64> = (0..dims.len()).map(|i| dims[i + 1..].iter().product()).collect();
        let ints = |v: &[u64]| v.iter().map(|d| json!({"as_int": d})).collect::<Vec<_>>();
        json!({"dtype": 7, "sizes": ints(dims), "strides": ints(&strides), "storage_offset": {"as_int": 0}, "layout": 7})
    };
    let tensors: serde_json::Map<String, Value> =
        inputs.iter().chain(values).map(|(n, d)| ((*n).to_owned(), meta(d))).collect();
    let tensor = |n: &str| json!({"as_tensor": {"name": n}});
    let out: Vec<Value> = outputs.iter().map(|n| json!({"user_output": {"arg": tensor(n)}})).collect();
    let ins: Vec<Value> = inputs.iter().map(|(n, _)| json!({"user_input": {"arg": tensor(n)}})).collect();
    let program = json!({
        "schema_version": {"major": 8, "minor": 1},
        "something_new": [1, {"as_int": null}],
        "graph_module": {
            "graph": {"inputs": [], "outputs": [], "nodes": nodes, "tensor_values": tensors},
            "signature": {"input_specs": ins, "output_specs": out},
        },
    });
    program.to_string().into_bytes()
}

/// A node with one tensor result of the name.
fn node(target: &str, name: &str, args: Value) -> Value {
    let inputs: Vec<Value> =
        args.as_object().unwrap().iter().map(|(k, v)| json!({"name": k, "arg": v})).collect();
    json!({"target": format!("torch.ops.{target}"), "inputs": inputs, "outputs": [{"as_tensor": {"name": name}}]})
}

fn on_ranks(world: u32, programs: &[(Vec<u8>, Vec<u32>)]) -> Result<Graph, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    let table: serde_json::Map<String, Value> = (0..world)
        .map(|r| (r.to_string(), json!({"0": {"ranks": (0..world).collect::<Vec<_>>()}})))
        .collect();
    let side = json!({"world_size": world, "groups": table}).to_string();
    let groups = Groups::from_json(Path::new("side.json"), side.as_bytes()).unwrap();
    let sources: Vec<Source> = programs
        .iter()
        .enumerate()
        .map(|(i, (bytes, ranks))| {
            let file = folder.path().join(format!("part{i}.json"));
            fs::write(&file, bytes).unwrap();
            Source::for_ranks(file, ranks.clone())
        })
        .collect();
    load(&sources, Some(&groups), &WeightStore::new())
}

fn all_to_all(rows: u64) -> Vec<u8> {
    let args = json!({"input": {"as_tensor": {"name": "x"}}, "output_split_sizes": {"as_ints": []},
        "input_split_sizes": {"as_ints": []}, "group_name": {"as_string": "0"}});
    let n = node("_c10d_functional.all_to_all_single.default", "y", args);
    program(&[("x", &[rows, 2])], &[("y", &[rows, 2])], json!([n]), &["y"])
}

#[test]
fn three_ranks_over_a_dimension_of_eight_are_refused() {
    on_ranks(4, &[(all_to_all(8), vec![])]).unwrap();
    refused(
        on_ranks(3, &[(all_to_all(8), vec![])]),
        &["all_to_all_single", "3 ranks do not divide", "size 8"],
    );
}

#[test]
fn ranks_without_a_file_and_with_two_are_refused() {
    refused(on_ranks(4, &[(all_to_all(8), vec![0, 1, 3])]), &["no file is given for rank 2"]);
    refused(on_ranks(2, &[(all_to_all(8), vec![0, 1]), (all_to_all(8), vec![1])]), &["rank 1 has two files"]);
    refused(on_ranks(2, &[(all_to_all(8), vec![0, 1, 2])]), &["rank 2", "2 ranks"]);
}

#[test]
fn older_majors_of_the_schema_are_refused() {
    let text = String::from_utf8(all_to_all(8)).unwrap().replace("\"major\":8", "\"major\":7");
    refused(on_ranks(4, &[(text.into_bytes(), vec![])]), &["7.1", "expected major version 8"]);
}

#[test]
fn a_result_of_another_type_than_recorded_is_refused() {
    let n = node("aten.neg.default", "y", json!({"self": {"as_tensor": {"name": "x"}}}));
    let p = program(&[("x", &[2, 3])], &[("y", &[3, 2])], json!([n]), &["y"]);
    refused(on_ranks(1, &[(p, vec![])]), &["`y` is recorded as f32[3,2]", "f32[2,3]"]);
}

#[test]
fn an_argument_that_is_not_understood_is_refused() {
    let args = json!({"self": {"as_tensor": {"name": "x"}}, "surprise": {"as_int": 1}});
    let p = program(&[("x", &[2])], &[("y", &[2])], json!([node("aten.neg.default", "y", args)]), &["y"]);
    refused(on_ranks(1, &[(p, vec![])]), &["`surprise`", "aten.neg.default"]);
}

/// An op that gives `z`, which nobody uses, before `y = neg(x)`.
fn unused(target: &str, more: Value) -> Result<Graph, ImportError> {
    let mut args = json!({"self": {"as_tensor": {"name": "x"}}});
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let neg = node("aten.neg.default", "y", json!({"self": {"as_tensor": {"name": "x"}}}));
    let nodes = json!([node(target, "z", args), neg]);
    on_ranks(1, &[(program(&[("x", &[2])], &[("y", &[2]), ("z", &[2])], nodes, &["y"]), vec![])])
}

#[test]
fn only_pure_aten_ops_are_dropped_with_their_results() {
    unused("aten.surprise.default", json!({})).unwrap();
    // In place, unknown namespaces, collectives, and operands that are written though the name does not end in `_`.
    for target in [
        "aten.surprise_.default",
        "mine.surprise.default",
        "_c10d_functional.surprise.default",
        "aten.__ilshift__.Tensor",
    ] {
        refused(unused(target, json!({})), &["node `z`", target]);
    }
    for written in ["out", "running_mean"] {
        let e = unused("aten.surprise.default", json!({written: {"as_tensor": {"name": "x"}}}));
        refused(e, &["node `z`", "aten.surprise.default"]);
    }
    let mut p: Value = serde_json::from_slice(&half(0, "aten.exp.default")).unwrap();
    let effect = json!({"target": "torch.ops.aten.surprise.default", "inputs": [], "outputs": []});
    p["graph_module"]["graph"]["nodes"].as_array_mut().unwrap().push(effect);
    refused(on_ranks(1, &[(p.to_string().into_bytes(), vec![])]), &["aten.surprise.default"]);
}

#[test]
fn what_follows_from_a_refusal_was_refused_without_a_reason() {
    let of = |n: &str| json!({"self": {"as_tensor": {"name": n}}});
    let nodes = json!([node("aten.surprise.default", "z", of("x")), node("aten.neg.default", "y", of("z"))]);
    let mut p: Value =
        serde_json::from_slice(&program(&[("x", &[2])], &[("y", &[2]), ("z", &[2])], nodes, &["y"])).unwrap();
    // A complex tensor, for which nothing can stand in.
    p["graph_module"]["graph"]["tensor_values"]["z"]["dtype"] = json!(10);
    refused(on_ranks(1, &[(p.to_string().into_bytes(), vec![])]), &["1 node ", "aten.surprise.default"]);
}

/// `y = region(x)` where the region computes `op` of an input called `inner`.
fn region(target: &str, settings: Value, op: &str, inner: &str, width: u64) -> Result<Graph, ImportError> {
    let tensor = |n: &str| json!({"as_tensor": {"name": n}});
    let body = node(op, "x", json!({"self": tensor(inner)}));
    let mut whole: Value =
        serde_json::from_slice(&program(&[(inner, &[width])], &[("x", &[2])], json!([body]), &[])).unwrap();
    let mut graph = whole["graph_module"]["graph"].take();
    graph["inputs"] = json!([tensor(inner)]);
    graph["outputs"] = json!([tensor("x")]);
    let mut args: Vec<Value> = settings.as_array().unwrap().clone();
    args.push(json!({"as_graph": {"name": "part", "graph": graph}}));
    args.push(tensor("x"));
    let args: Vec<Value> = args.into_iter().map(|a| json!({"name": "", "arg": a})).collect();
    let call = json!({"target": format!("torch.ops.higher_order.{target}"), "inputs": args, "outputs": [tensor("y")]});
    // The outer `x` must still be the input after the region.
    let after = node("aten.neg.default", "z", json!({"self": tensor("x")}));
    on_ranks(
        1,
        &[(program(&[("x", &[2])], &[("y", &[2]), ("z", &[2])], json!([call, after]), &["y", "z"]), vec![])],
    )
}

#[test]
fn names_in_a_region_are_names_of_their_own() {
    let grad = json!([{"as_bool": false}]);
    let g = region("wrap_with_set_grad_enabled", grad.clone(), "aten.exp.default", "i", 2).unwrap();
    g.verify().unwrap();
    assert_eq!(ops(&g), ["input", "exp", "neg"]);
    let neg = g.outputs()[1].value.node;
    assert!(matches!(g.node(g.node(neg).operands[0].node).op, shardweld_ir::Op::Input { .. }));
    // An op in the region is refused by its own name, a type that differs by the value's, and nothing else is said to be wrong.
    refused(
        region("wrap_with_set_grad_enabled", grad.clone(), "aten.sort.default", "i", 2),
        &["1 node ", "aten.sort.default"],
    );
    refused(
        region("wrap_with_set_grad_enabled", grad, "aten.exp.default", "i", 3),
        &["`i` is recorded as f32[3]"],
    );
    refused(region("cond", json!([]), "aten.exp.default", "i", 2), &["higher_order.cond", "not supported"]);
    let autocast =
        |on: bool| json!([{"as_string": "cuda"}, {"as_none": true}, {"as_bool": on}, {"as_none": true}]);
    region("wrap_with_autocast", autocast(false), "aten.exp.default", "i", 2).unwrap();
    refused(region("wrap_with_autocast", autocast(true), "aten.exp.default", "i", 2), &["autocast is on"]);
}

/// `y = op(x)` on one rank whose side file has the given public inputs.
fn public(inputs: &Value) -> Result<Graph, ImportError> {
    let n = node("aten.neg.default", "y", json!({"self": {"as_tensor": {"name": "x"}}}));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.json");
    fs::write(&file, program(&[("x", &[2])], &[("y", &[2])], json!([n]), &["y"])).unwrap();
    let side = json!({"world_size": 1, "groups": {"0": {}}, "inputs": inputs}).to_string();
    let groups = Groups::from_json(Path::new("side.json"), side.as_bytes())?;
    load(&[Source::for_all(file)], Some(&groups), &WeightStore::new())
}

#[test]
fn a_public_element_type_was_not_compared_with_the_graph() {
    for good in ["float32", "torch.float32"] {
        public(&json!([{"name": "in", "dtype": good}])).unwrap();
    }
    let e = public(&json!([{"name": "in", "dtype": "float16"}]));
    refused(e, &["side.json", "`in`", "float16", "`x`", "f32"]);
    refused(public(&json!([{"name": "in", "dtype": "quux"}])), &["side.json", "`in`", "`quux`"]);
}

#[test]
fn public_names_were_not_checked() {
    for bad in ["", "a/b", "a\nb"] {
        refused(public(&json!([{"name": bad}])), &["side.json", "is no name"]);
    }
    public(&json!([{"name": "a.b-c d"}])).unwrap();
}

/// x cut in two halves, one of which is used.
fn half(start: i64, op: &str) -> Vec<u8> {
    let cut = json!({"self": {"as_tensor": {"name": "x"}}, "dim": {"as_int": 1}, "start": {"as_int": start}, "end": {"as_int": start + 4}});
    let nodes = json!([
        node("aten.slice.Tensor", "h", cut),
        node(op, "y", json!({"self": {"as_tensor": {"name": "h"}}}))
    ]);
    program(&[("x", &[2, 8])], &[("h", &[2, 4]), ("y", &[2, 4])], nodes, &["y"])
}

fn ops(g: &Graph) -> Vec<&'static str> {
    g.order().unwrap().into_iter().map(|id| g.node(id).op.name()).collect()
}

#[test]
fn slices_that_differ_by_rank_become_an_own_slice() {
    let g = on_ranks(2, &[(half(0, "aten.exp.default"), vec![0]), (half(4, "aten.exp.default"), vec![1])])
        .unwrap();
    assert_eq!(ops(&g), ["input", "own_slice", "exp"]);
}

#[test]
fn slices_in_another_order_become_an_axis_select() {
    let g = on_ranks(2, &[(half(4, "aten.exp.default"), vec![0]), (half(0, "aten.exp.default"), vec![1])])
        .unwrap();
    assert_eq!(ops(&g), ["input", "slice", "slice", "axis_select", "exp"]);
}

#[test]
fn graphs_that_are_not_one_program_are_refused_with_both_nodes() {
    let result =
        on_ranks(2, &[(half(0, "aten.exp.default"), vec![0]), (half(0, "aten.sin.default"), vec![1])]);
    refused(result, &["part0.json", "part1.json", "`y` (exp", "`y` (sin"]);
    let longer = {
        let mut v: Value = serde_json::from_slice(&half(0, "aten.exp.default")).unwrap();
        let nodes = v["graph_module"]["graph"]["nodes"].as_array_mut().unwrap();
        nodes.push(node("aten.neg.default", "h", json!({"self": {"as_tensor": {"name": "y"}}})));
        v.to_string().into_bytes()
    };
    refused(on_ranks(2, &[(half(0, "aten.exp.default"), vec![0]), (longer, vec![1])]), &["goes on", "neg"]);
}

fn no_panic(bytes: &[u8]) {
    // Whether it is an error is not the point: most changes are.
    let _ = import(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0..4) {
        let magic: &[u8] = match kind { 0 => b"PK\x03\x04", 1 => &[0x1f, 0x8b, 8, 0], 2 => b"{\"", _ => b"" };
        bytes.splice(0..0, magic.iter().copied());
        no_panic(&bytes);
    }

    #[test]
    fn changed_archives_never_panic(changes in proptest::collection::vec((0usize..28257, any::<u8>()), 1..8), tail in 0usize..2) {
        let mut bytes = fs::read(sample("mlp_tp2.rank0.pt2")).unwrap();
        let n = bytes.len();
        for (at, to) in changes {
            // Half of the changes go to the central directory, which says where everything is.
            let at = if tail == 1 { n - 1 - at % 2500 } else { at % n };
            bytes[at] = to;
        }
        no_panic(&bytes);
    }

    #[test]
    fn changed_graphs_never_panic(seed in any::<u64>(), count in 1usize..6, which in 0usize..8) {
        let exports = ["writes_through_views", "promotion", "pointwise", "reductions", "shapes", "collectives", "einsums"];
        let file = match exports.get(which) {
            Some(name) => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{name}.model.json.gz")),
            None => sample("mlp_tp2.rank0.pt2"),
        };
        let model = ModelFile::open(&file).unwrap();
        let mut graph: Value = serde_json::from_slice(&model.json).unwrap();
        let mut state = seed | 1;
        let mut next = move || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; state };
        for _ in 0..count {
            let at = next();
            let mut left = at % 4000;
            let by = next();
            mutate(&mut graph, &mut left, by);
        }
        no_panic(graph.to_string().as_bytes());
    }
}

/// Changes the leaf that `left` counts down to.
fn mutate(v: &mut Value, left: &mut u64, by: u64) {
    match v {
        Value::Array(items) => {
            if *left == 0 && by.is_multiple_of(3) {
                items.pop();
            }
            items.iter_mut().for_each(|i| mutate(i, left, by));
        }
        Value::Object(map) => map.values_mut().for_each(|i| mutate(i, left, by)),
        leaf => {
            if *left == 0 {
                *leaf = match by % 9 {
                    0 => json!(-1),
                    1 => json!(i64::MAX),
                    2 => json!(0),
                    3 => json!("x"),
                    4 => Value::Null,
                    5 => json!(1u64 << 40),
                    6 => json!(7),
                    7 => json!([1, 2]),
                    _ => json!(i64::MIN),
                };
            }
            *left = left.wrapping_sub(1);
        }
    }
}
