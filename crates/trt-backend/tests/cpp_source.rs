//! The emitted C++: it compiles against either header set and builds the engine that the live sink builds.
#![cfg(feature = "live")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use shardweld_ir::store::WeightStore;
use shardweld_ir::{
    AxisId, Binary, Blob, BlobEntry, Collective, DType, Group, NormKind, Op, ReduceOp, Scalar, StridedView,
    TensorType, Unary, Weight, WeightView,
};
use shardweld_trt::cpp::CppSink;
use shardweld_trt::flavour::Flavour;
use shardweld_trt::live::Library;
use support::{Program, build, library};

/// Runs the C++ compiler on a source file.
fn compile(source: &Path, headers: &str, more: &[&str]) -> Output {
    Command::new("g++")
        .args(["-std=c++17", "-w", "-I", headers, "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp/cuda_shim"))
        .arg(source)
        .args(more)
        .output()
        .expect("the C++ compiler that built this crate runs")
}

fn assert_success(out: &Output) {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A program with a weight file, every kind of list in the source, and names that C++ would choke on.
fn program(folder: &Path) -> Program {
    let file = folder.join("weights.bin");
    let numbers: Vec<u8> = (0..128u16).flat_map(|i| (f32::from(i) / 7.0).to_le_bytes()).collect();
    std::fs::write(&file, &numbers).unwrap();
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[2, 4, 8]);
    let blob = Blob { file, entry: BlobEntry::Raw { offset: 0, len: 512 } };
    let w = p.0.add_weight(Weight {
        name: "layer \"0\" \\ weight??/".into(),
        ty: TensorType::new(DType::F32, &[16, 8]),
        over: vec![],
        shards: vec![WeightView::Strided(StridedView::contiguous(blob, DType::F32, &[16, 8]))],
    });
    let w = p.add("w", Op::Weight(w.unwrap()), &[]);
    let y = p.add("lin*/ear \\", Op::MatMul { transpose_a: false, transpose_b: true }, &[x, w]);
    let y = p.add("act", Op::Unary(Unary::Silu), &[y]);
    let y = p.add(
        "norm",
        Op::Normalize {
            kind: NormKind::Layer,
            trailing: 1,
            epsilon: Scalar::Float(1e-6),
            scale: false,
            bias: false,
        },
        &[y],
    );
    let y = p.add(
        "shift",
        Op::BinaryScalar { op: Binary::Add, scalar: Scalar::Float(0.1), scalar_first: false },
        &[y],
    );
    let group = Group::axis(AxisId(0));
    let kind = Collective::AllToAll { split_dim: 2, concat_dim: 1 };
    let y = p.add("a2a", Op::Collective { kind, group: group.clone() }, &[y]);
    let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
    let y = p.add("sum", Op::Collective { kind, group: group.clone() }, &[y]);
    let q = p.add("q", Op::Reshape { shape: shardweld_ir::Shape::of(&[2, 2, 4, 8]) }, &[y]);
    let y =
        p.add("attend", Op::Attention { scale: Scalar::Float(0.3), causal: true, mask: false }, &[q, q, q]);
    let y = p.add("own", Op::OwnPad { dim: 1, group, value: Scalar::Float(-0.0) }, &[y]);
    p.0.add_output("y \"quoted\"", y).unwrap();
    p
}

#[test]
fn it_compiles_against_both_header_sets() {
    let folder = tempfile::tempdir().unwrap();
    let p = program(folder.path());
    let [source, _] = CppSink.source(&p.lower(1)).write(folder.path(), "net", &WeightStore::new()).unwrap();
    for headers in [env!("SHARDWELD_HEADERS_TRT"), env!("SHARDWELD_HEADERS_RTX")] {
        assert_success(&compile(&source, headers, &["-fsyntax-only"]));
    }
    // The compiler does look at the calls.
    let text = std::fs::read_to_string(&source).unwrap();
    let broken = folder.path().join("broken.cpp");
    std::fs::write(
        &broken,
        text.replacen("addUnary", "addUnry", 1).replacen("addElementWise", "addElement", 1),
    )
    .unwrap();
    assert!(!compile(&broken, env!("SHARDWELD_HEADERS_RTX"), &["-fsyntax-only"]).status.success());
}

#[test]
fn it_builds_the_same_bytes_as_the_live_sink() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let trace = program(folder.path()).lower(1);
    let (engine, _) = build(&library, &trace);
    let [source, weights] = CppSink.source(&trace).write(folder.path(), "net", &WeightStore::new()).unwrap();
    let file = library_file(&library);
    let program = folder.path().join("net");
    let more = ["-o", program.to_str().unwrap(), file.to_str().unwrap()];
    assert_success(&compile(&source, env!("SHARDWELD_HEADERS_RTX"), &more));
    let out = folder.path().join("net.engine");
    let run = |weights: &Path| {
        Command::new(&program)
            .args([weights, out.as_path()])
            .arg("80")
            .env("LD_LIBRARY_PATH", file.parent().unwrap())
            .output()
            .unwrap()
    };
    assert_success(&run(&weights));
    assert!(std::fs::read(&out).unwrap() == engine, "the engines differ");
    // A weights file of the wrong size is refused.
    std::fs::write(&weights, b"short").unwrap();
    assert!(!run(&weights).status.success());
}

fn library_file(library: &Library) -> PathBuf {
    assert_eq!(library.flavour(), Flavour::TensorRtRtx);
    library.path().to_owned()
}
