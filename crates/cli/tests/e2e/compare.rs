//! `compare` itself: what it answers, and what it refuses.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::shardweld::{arg, shardweld};

fn file(path: &Path, tensors: &[(&str, &[f32])]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, v), b)| (*name, TensorView::new(Dtype::F32, vec![v.len()], b).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn answers_by_the_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    file(&a, &[("rank0/out/y", &[1.0, 2.0]), ("rank0/in/x", &[1.0])]);
    file(&b, &[("rank0/out/y", &[1.0, 2.5]), ("rank0/in/x", &[1.0]), ("other", &[0.0])]);
    let call = |more: &[&str]| shardweld(&[&["compare", arg(&a), arg(&b), "--json"], more].concat());
    assert_eq!(call(&[]).done().json()["compared"], 2);
    call(&["--max-abs", "0.5"]).done();
    call(&["--max-abs", "0.49"]).says_no(&["rank0/out/y"]);
    call(&["--min-cosine", "0.999999"]).says_no(&["1 of 2 tensors"]);
    assert_eq!(call(&["--only", "rank0/in/", "--max-abs", "0"]).done().json()["compared"], 1);
    assert_eq!(call(&["--max-abs", "0.1"]).json()["outcome"], "no");
}

#[test]
fn a_nan_is_never_close() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    file(&a, &[("y", &[1.0, f32::NAN])]);
    file(&b, &[("y", &[1.0, 2.0])]);
    shardweld(&["compare", arg(&a), arg(&b), "--max-abs", "1e30"]).says_no(&["too far apart"]);
    shardweld(&["compare", arg(&a), arg(&b), "--min-cosine", "0.5"]).says_no(&["too far apart"]);
    shardweld(&["compare", arg(&a), arg(&a), "--max-abs", "0", "--min-cosine", "1"]).done();
}

#[test]
fn nothing_in_common_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    file(&a, &[("rank0/out/y", &[1.0])]);
    file(&b, &[("rank0/out/z", &[1.0])]);
    shardweld(&["compare", arg(&a), arg(&b)]).refuses(&["share no tensor", "rank0/out/y", "rank0/out/z"]);
    shardweld(&["compare", arg(&a), arg(&a), "--only", "rank1"]).refuses(&["share no tensor", "rank1"]);
    std::fs::write(&b, "no tensors").unwrap();
    shardweld(&["compare", arg(&a), arg(&b)]).refuses(&["not a safetensors file"]);
    shardweld(&["compare", arg(&a), arg(&dir.path().join("missing"))]).refuses(&["missing"]);
}

#[test]
fn another_shape_is_a_no() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    file(&a, &[("y", &[1.0])]);
    file(&b, &[("y", &[1.0, 2.0])]);
    shardweld(&["compare", arg(&a), arg(&b)]).says_no(&["f32[1] against f32[2]"]);
}

#[test]
fn an_output_that_one_file_lacks_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    file(&a, &[("rank0/out/y", &[1.0]), ("rank1/out/y", &[1.0]), ("rank0/in/x", &[1.0])]);
    file(&b, &[("rank0/out/y", &[1.0])]);
    let call = shardweld(&["compare", arg(&a), arg(&b)]).done();
    assert!(call.stdout.contains("only one of the files has: rank1/out/y"), "{}", call.stdout);
    let call = shardweld(&["compare", arg(&b), arg(&b)]).done();
    assert!(!call.stdout.contains("only one"), "{}", call.stdout);
}
