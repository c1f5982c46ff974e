//! The verifier: what it accepts, and beside it what it refuses.

use shardweld_ir::verify::MAX_PROBLEMS;
use shardweld_ir::{
    AxisId, Blob, BlobEntry, DType, Graph, Op, Shape, StridedView, TensorType, Unary, VerifyError, WeightView,
};

fn read(body: &str) -> Graph {
    let head = "swir 1\ngraph \"g\"\nmesh [cp=2, tp=2]\n%x = input() name=\"x\" : f32[4,8]\n";
    Graph::from_text("t", &format!("{head}{body}")).unwrap()
}

fn refused(g: &Graph, message: &str) -> VerifyError {
    let error = g.verify().expect_err(message);
    assert!(error.to_string().contains(message), "`{error}` does not say `{message}`");
    error
}

#[test]
fn rooted_results_may_go_to_the_root_only() {
    let ok = |body: &str| read(body).verify().unwrap_or_else(|e| panic!("{e}\n{body}"));
    let bad = |body: &str, message: &str| {
        refused(&read(body), message);
    };
    let reduce = "%r = reduce_to(%x) op=sum root=1 group=[tp] : f32[4,8]\n";
    // Taken from the root, at once, after local ops, and by a scatter.
    ok(&format!("{reduce}%y = broadcast_from(%r) root=1 group=[tp] : f32[4,8]\nreturn \"y\" = %y\n"));
    ok(&format!(
        "{reduce}%e = exp(%r) : f32[4,8]\n%y = broadcast_from(%e) root=1 group=[tp] : f32[4,8]\nreturn \"y\" = %y\n"
    ));
    ok(&format!("{reduce}%y = scatter_from(%r) dim=0 root=1 group=[tp] : f32[2,8]\nreturn \"y\" = %y\n"));
    // Unused.
    ok(&format!("{reduce}return \"y\" = %x\n"));
    // Another root, another group, another collective, an output.
    bad(
        &format!("{reduce}%y = broadcast_from(%r) root=0 group=[tp] : f32[4,8]\n"),
        "node `y` (broadcast_from): found operand `r`, which is undefined on rank 0",
    );
    bad(&format!("{reduce}%y = broadcast_from(%r) root=1 group=[cp] : f32[4,8]\n"), "undefined on rank 2");
    bad(&format!("{reduce}%y = all_reduce(%r) op=sum group=[tp] : f32[4,8]\n"), "undefined on rank 0");
    bad(
        &format!("{reduce}%e = add(%x, %r) : f32[4,8]\nreturn \"y\" = %e\n"),
        "output `y`: found a value that is undefined on rank 0",
    );
    bad(
        "%r = gather_to(%x) dim=0 root=0 group=[cp, tp] : f32[16,8]\nreturn \"y\" = %r\n",
        "undefined on rank 1",
    );
    // A group of one rank has no "off root"; neither has a group whose root is every rank's.
    ok("%r = reduce_to(%x) op=sum root=0 group=[] : f32[4,8]\nreturn \"y\" = %r\n");
    // A value that each rank reads only where it is defined.
    let select = "%s = axis_select(%x, %r) axis=tp : f32[4,8]\nreturn \"y\" = %s\n";
    ok(&format!("{reduce}{select}"));
    bad(&format!("{}{select}", reduce.replace("root=1", "root=0")), "undefined on rank 1");
    // Two roots meet: defined nowhere.
    let two = "%r = reduce_to(%x) op=sum root=0 group=[tp] : f32[4,8]\n%q = reduce_to(%x) op=sum root=1 group=[tp] : f32[4,8]\n%m = add(%r, %q) : f32[4,8]\n";
    bad(&format!("{two}%y = broadcast_from(%m) root=0 group=[tp] : f32[4,8]\n"), "undefined on rank 0");
    bad(&format!("{two}%y = broadcast_from(%m) root=1 group=[tp] : f32[4,8]\n"), "undefined on rank 1");
}

#[test]
fn weights_are_checked_against_mesh_and_type() {
    let base = "weight \"w\" : f32[4,8] over [tp] = [raw(\"f\", 0, 128, f32[4,8]), raw(\"f\", 128, 128, f32[4,8])]\n%w = weight() name=\"w\" : f32[4,8]\nreturn \"y\" = %w\n";
    read(base).verify().unwrap();
    let changed = |change: &dyn Fn(&mut shardweld_ir::Weight), message: &str| {
        let mut g = read(base);
        change(&mut g.weights_mut()[0]);
        let error = refused(&g, message);
        assert!(error.to_string().contains("`w`"), "{error}");
    };
    changed(&|w| w.shards.truncate(1), "found 1 shards, expected 2");
    changed(&|w| w.over = vec![], "found 2 shards, expected 1");
    changed(&|w| w.over = vec![AxisId(1), AxisId(1)], "axis #1 twice");
    changed(&|w| w.over = vec![AxisId(7)], "axis #7");
    changed(&|w| w.over = vec![AxisId(0); 100], "100 axes");
    changed(&|w| w.ty.shape = Shape::of(&[8, 4]), "found f32[4, 8], expected f32[8,4]");
    changed(&|w| w.ty.shape = Shape::of(&[8, 4]), "node `w` (weight): found f32[4,8], expected f32[8,4]");
    let view = |change: &dyn Fn(&mut StridedView), message: &str| {
        let with = |w: &mut shardweld_ir::Weight| {
            if let WeightView::Strided(v) = &mut w.shards[1] {
                change(v);
            }
        };
        changed(&with, message);
    };
    view(&|v| v.offset = 1, "shard 1: found a window that needs 132 bytes, expected at most the blob's 128");
    view(&|v| v.strides = vec![1], "1 strides");
    view(&|v| v.strides = vec![u64::MAX, 1], "overflows");
    view(&|v| v.dtype = DType::BF16, "found bf16[4, 8], expected f32[4,8]");
    changed(&|w| w.shards[0] = WeightView::Concat { dim: 0, parts: vec![] }, "there are none");
    changed(&|w| w.shards[0] = WeightView::Concat { dim: 0, parts: vec![WeightView::Absent] }, "no data");
    changed(
        &|w| w.shards[0] = WeightView::Concat { dim: 9, parts: vec![w.shards[1].clone()] },
        "dimension 9",
    );
    // Absent shards and shards in parts are fine.
    let mut g = read(base);
    g.weights_mut()[0].shards[0] = WeightView::Absent;
    g.verify().unwrap();
    let halves = [(0u64, 1u64), (1, 3)].map(|(start, n)| {
        let blob = Blob { file: "g".into(), entry: BlobEntry::Zip(format!("part{start}")) };
        WeightView::Strided(StridedView::contiguous(blob, DType::F32, &[n, 8]))
    });
    g.weights_mut()[0].shards[1] = WeightView::concat(0, halves.to_vec()).unwrap();
    g.verify().unwrap();
    let mut twice = read(&format!("weight \"v\" : f32[1] = [absent]\n{base}"));
    twice.weights_mut()[0].name = "w".into();
    refused(&twice, "weight `w`: found the name twice");
}

#[cfg(unix)]
#[test]
fn file_names_that_text_cannot_hold_are_refused() {
    use std::os::unix::ffi::OsStringExt;
    let mut g = read("weight \"w\" : f32[1] = [raw(\"f\", 0, 4, f32[1])]\n");
    g.verify().unwrap();
    if let WeightView::Strided(v) = &mut g.weights_mut()[0].shards[0] {
        v.blob.file = std::ffi::OsString::from_vec(vec![b'a', 0xff]).into();
    }
    refused(&g, "Unicode");
}

#[test]
fn cycles_are_found() {
    let mut g = read("%a = exp(%x) : f32[4,8]\n%b = neg(%a) : f32[4,8]\nreturn \"y\" = %b\n");
    g.verify().unwrap();
    let (x, b) = (g.find("x").unwrap(), g.find("b").unwrap());
    g.replace_uses(x.into(), b.into()).unwrap();
    refused(&g, "the graph has a cycle through node `a`");
}

#[test]
fn symbols_of_one_name_have_one_range() {
    let symbol = |max: u64| {
        format!(
            "%y = input() name=\"y\" : f32[dim(\"t\", 1, 4, {max}, 1)]\n%z = exp(%y) : f32[dim(\"t\", 1, 4, {max}, 1)]\n"
        )
    };
    read(&symbol(8)).verify().unwrap();
    refused(&read(&symbol(3)), "min <= opt <= max");
    let other = "%u = input() name=\"u\" : f32[dim(\"t\", 1, 4, 9, 1)]\n";
    refused(&read(&format!("{}{other}", symbol(8))), "as elsewhere");
}

#[test]
fn problems_are_listed_at_once_and_bounded() {
    let mut body = String::new();
    for i in 0..100 {
        body +=
            &format!("%r{i} = reduce_to(%x) op=sum root=0 group=[tp] : f32[4,8]\nreturn \"y{i}\" = %r{i}\n");
    }
    let error = refused(&read(&body), "100 problems");
    assert_eq!((error.total, error.problems.len()), (100, MAX_PROBLEMS));
    assert!(
        error.to_string().contains("output `y7`") && error.to_string().contains("and 36 more"),
        "{error}"
    );
}

#[test]
fn the_pass_is_named() {
    let g = read("%r = reduce_to(%x) op=sum root=0 group=[tp] : f32[4,8]\nreturn \"y\" = %r\n");
    match g.verify_after("fuse") {
        Err(e) if cfg!(debug_assertions) => assert!(e.to_string().contains("after pass `fuse`"), "{e}"),
        other => assert!(other.is_ok() && !cfg!(debug_assertions)),
    }
}

#[test]
fn public_names_are_unique() {
    let mut g = read("return \"y\" = %x\n");
    let ty = TensorType::new(DType::F32, &[1]);
    assert!(g.add_input("x", ty.clone()).is_err());
    assert!(g.add_output("y", g.inputs()[0]).is_err());
    assert!(g.add_input("x2", ty).is_ok());
    let e = g.add("x", Op::Unary(Unary::Exp), &[g.inputs()[0].into()]).unwrap();
    assert_eq!(g.node(e).name, "x_1", "node names are made unique");
    g.verify().unwrap();
}
