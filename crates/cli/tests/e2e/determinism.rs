//! The same input gives the same bytes, whatever the number of threads.

use std::fs;
use std::path::Path;

use crate::shardweld::{Case, arg, command, finish, listing};

const THREADS: [&str; 2] = ["1", "5"];

fn bytes(dir: &Path) -> Vec<(String, Vec<u8>)> {
    listing(dir).into_iter().map(|n| (n.clone(), fs::read(dir.join(n)).unwrap())).collect()
}

fn twice(call: impl Fn(&Path) -> Vec<String>) {
    let results: Vec<_> = THREADS
        .iter()
        .map(|threads| {
            let dir = tempfile::tempdir().unwrap();
            let args = call(dir.path());
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            finish(command(&args).env("RAYON_NUM_THREADS", threads)).done();
            let sub = dir.path().join("out");
            if sub.is_dir() { bytes(&sub) } else { bytes(dir.path()) }
        })
        .collect();
    assert!(!results[0].is_empty());
    for (a, b) in results[0].iter().zip(&results[1]) {
        assert!(a == b, "{} differs between thread counts", a.0);
    }
    assert_eq!(results[0].len(), results[1].len());
}

#[test]
fn runs() {
    let case = Case::cp4tp2();
    twice(|dir| {
        [
            "run",
            &case.model,
            "--groups",
            &case.groups,
            "--inputs",
            &case.tensors,
            "--stage",
            "rewritten",
            "--out",
        ]
        .into_iter()
        .chain([arg(&dir.join("out.safetensors"))])
        .map(str::to_owned)
        .collect()
    });
}

#[test]
fn builds() {
    let case = Case::cp4tp2();
    twice(|dir| {
        [
            "build",
            &case.model,
            "--groups",
            &case.groups,
            "--target",
            "trace",
            "--emit",
            "cpp",
            "--out",
            arg(&dir.join("out")),
        ]
        .map(str::to_owned)
        .into()
    });
}

#[test]
fn rewrites() {
    let case = Case::cp4tp2();
    twice(|dir| {
        ["opt", &case.model, "--groups", &case.groups, "--out", arg(&dir.join("out.swir"))]
            .map(str::to_owned)
            .into()
    });
}
