//! Every kernel against PyTorch's eager CPU op, case by case. The data come from `scripts/goldens/make_goldens.py`.

use std::path::Path;

use serde_json::Value as Json;
use shardweld_interp::{Distance, Named, Tensor, concrete, distance, tensor_file};
use shardweld_ir::{Binary, DType, GatherMode, NormKind, Op, ReduceKind, Scalar, Shape, Unary};

struct Case {
    name: String,
    what: Json,
    operands: Vec<Tensor>,
    expected: Tensor,
}

fn cases(family: &str) -> Vec<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/goldens_{family}.safetensors"));
    let tensors: Named<Tensor> = tensor_file::read(&file).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let mut names: Vec<(&String, &String)> = header.metadata().as_ref().unwrap().iter().collect();
    names.sort();
    names
        .into_iter()
        .map(|(name, what)| {
            let what: Json = serde_json::from_str(what).unwrap();
            let tensor = |k: &Json| tensors[k.as_str().unwrap()].clone();
            let operands = what["in"].as_array().unwrap().iter().map(tensor).collect();
            Case { name: name.clone(), operands, expected: tensor(&what["out"]), what }
        })
        .collect()
}

fn numbers(j: &Json) -> Vec<u64> {
    j.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

fn dims(j: &Json) -> Vec<u32> {
    numbers(j).into_iter().map(|n| n as u32).collect()
}

fn op(what: &Json) -> Op {
    let text = |k: &str| what[k].as_str().unwrap();
    let flag = |k: &str| what[k].as_bool().unwrap();
    let number = |k: &str| what[k].as_u64().unwrap();
    let dim = || number("dim") as u32;
    let float = |k: &str| Scalar::Float(what[k].as_f64().unwrap());
    match text("op") {
        "unary" => Op::Unary(Unary::from_name(text("name")).unwrap()),
        "binary" => Op::Binary(Binary::from_name(text("name")).unwrap()),
        "binary_scalar" => Op::BinaryScalar {
            op: Binary::from_name(text("name")).unwrap(),
            scalar: float("scalar"),
            scalar_first: flag("first"),
        },
        "cast" => Op::Cast { to: DType::from_name(text("to")).unwrap() },
        "select" => Op::Select,
        "transpose" => Op::Transpose { perm: dims(&what["perm"]) },
        "broadcast" => Op::Broadcast { shape: Shape::of(&numbers(&what["shape"])) },
        "concat" => Op::Concat { dim: dim() },
        "pad" => Op::Pad { dim: dim(), low: number("low"), high: number("high"), value: float("value") },
        "gather" => Op::Gather { mode: GatherMode::from_name(text("mode")).unwrap(), dim: dim() },
        "slice" => {
            Op::Slice { dim: dim(), start: number("start"), limit: number("limit"), stride: number("stride") }
        }
        "update_slice" => Op::UpdateSlice { dim: dim(), start: number("start"), stride: number("stride") },
        "reduce" => Op::Reduce {
            kind: ReduceKind::from_name(text("kind")).unwrap(),
            dims: dims(&what["dims"]),
            keep_dims: flag("keep"),
        },
        "softmax" => Op::Softmax { dim: dim() },
        "matmul" => Op::MatMul { transpose_a: flag("ta"), transpose_b: flag("tb") },
        "normalize" => Op::Normalize {
            kind: NormKind::from_name(text("kind")).unwrap(),
            trailing: number("trailing") as u32,
            epsilon: float("eps"),
            scale: flag("scale"),
            bias: flag("bias"),
        },
        "attention" => Op::Attention { scale: float("scale"), causal: flag("causal"), mask: flag("mask") },
        "conv" => Op::Conv {
            stride: numbers(&what["stride"]),
            padding: what["padding"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| {
                    let p = numbers(p);
                    (p[0], p[1])
                })
                .collect(),
            dilation: numbers(&what["dilation"]),
            groups: number("groups"),
            bias: flag("bias"),
        },
        other => panic!("the golden file has an op that the test does not know: {other}"),
    }
}

/// What a case may differ by.
#[derive(Clone, Copy)]
struct Allowed {
    /// Units in the last place,
    ulp: u64,
    /// or this much where terms cancel, so that an ulp of a term is many of the result.
    abs: f64,
    /// Share of the elements that may differ at all.
    share: f64,
}

const EXACT: Allowed = Allowed { ulp: 0, abs: 0.0, share: 0.0 };

const fn ulp(ulp: u64, share: f64) -> Allowed {
    Allowed { ulp, abs: 0.0, share }
}

const fn abs(abs: f64) -> Allowed {
    Allowed { ulp: 0, abs, share: 1.0 }
}

/// f32 functions that PyTorch takes from a library whose results are not all correctly rounded, with the share seen to differ.
const F32_LIBRARY: &[(&str, Allowed)] = &[
    ("acos", ulp(1, 0.02)),
    ("asin", ulp(1, 0.01)),
    ("atan", ulp(1, 0.02)),
    ("atan2", ulp(1, 0.025)),
    ("cos", ulp(1, 0.025)),
    ("cosh", ulp(1, 0.03)),
    ("erf", ulp(1, 0.025)),
    ("exp2", ulp(1, 0.015)),
    ("expm1", ulp(1, 0.005)),
    ("gelu", Allowed { ulp: 0, abs: 5e-7, share: 0.09 }),
    ("log", ulp(1, 0.02)),
    ("log1p", ulp(1, 0.01)),
    ("pow", ulp(1, 0.065)),
    ("sin", ulp(1, 0.02)),
    ("sinh", ulp(1, 0.08)),
    ("softplus", ulp(1, 0.005)),
    ("sqrt", ulp(1, 0.08)),
    ("tan", ulp(1, 0.04)),
];

fn pointwise(case: &Case) -> Allowed {
    let name = case.what["name"].as_str().unwrap();
    match case.operands[0].dtype() {
        DType::F32 => F32_LIBRARY.iter().find(|(n, _)| *n == name).map_or(EXACT, |(_, a)| *a),
        // PyTorch rounds every step of this one to f16.
        DType::F16 if name == "floor_div" => ulp(1, 0.005),
        _ => EXACT,
    }
}

fn check(family: &str, allowed: impl Fn(&Case) -> Allowed) {
    let cases = cases(family);
    assert!(!cases.is_empty(), "no cases in family {family}");
    let verbose = std::env::var_os("GOLDENS_VERBOSE").is_some();
    let mut failures = Vec::new();
    for case in &cases {
        let operands: Vec<&Tensor> = case.operands.iter().collect();
        let found = concrete::local(&op(&case.what), &operands, &[case.expected.ty()])
            .unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let d = distance(&found[0], &case.expected).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let limit = allowed(case);
        let share = d.different as f64 / d.elements.max(1) as f64;
        if verbose && d.different > 0 {
            println!("{}: {}", case.name, describe(&d));
        }
        // Beyond the ulp bound, the absolute one may still hold: where terms cancel, one ulp of a term is many of the sum.
        let near = d.max_ulp <= limit.ulp || (d.nan_mismatches == 0 && d.max_abs <= limit.abs);
        if !near || share > limit.share {
            failures.push(format!("{}: {}", case.name, describe(&d)));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn describe(d: &Distance) -> String {
    format!(
        "{} of {} differ, max {} ulp, max abs {:e}, {} NaN mismatches",
        d.different, d.elements, d.max_ulp, d.max_abs, d.nan_mismatches
    )
}

#[test]
fn unary() {
    check("unary", pointwise);
}

#[test]
fn binary() {
    check("binary", pointwise);
}

#[test]
fn casts() {
    check("cast", |_| EXACT);
}

#[test]
fn movement_keeps_every_bit() {
    for case in cases("movement") {
        let operands: Vec<&Tensor> = case.operands.iter().collect();
        let found = concrete::local(&op(&case.what), &operands, &[case.expected.ty()]).unwrap();
        assert_eq!(found[0].shape(), case.expected.shape(), "{}", case.name);
        assert_eq!(found[0].bytes(), case.expected.bytes(), "{}", case.name);
    }
}

#[test]
fn reductions() {
    check("reduce", |case| match (case.what["op"].as_str().unwrap(), case.expected.dtype()) {
        // Along another dimension than the last PyTorch's f32 softmax sums in an order of its own.
        ("softmax", DType::F32)
            if case.expected.shape().len() as u64 != case.what["dim"].as_u64().unwrap() + 1 =>
        {
            ulp(2, 0.25)
        }
        // PyTorch rounds every partial product to bf16.
        _ if case.what["kind"] == "prod" => ulp(1, 1.0),
        _ => EXACT,
    });
}

#[test]
fn products() {
    check("matmul", |case| match case.expected.dtype() {
        // A handful of elements: PyTorch's own loops, which do not fuse.
        DType::F32 if case.name.starts_with("few") => abs(5e-6),
        DType::F16 => ulp(1, 0.005),
        _ => EXACT,
    });
}

#[test]
fn norms() {
    check("norm", |case| match case.expected.dtype() {
        DType::F32 if case.what["kind"] == "layer" => abs(1e-6),
        _ => EXACT,
    });
}

#[test]
fn attentions() {
    check("attention", |case| match case.expected.dtype() {
        // Too small for the BLAS library: PyTorch's own loops, which do not fuse.
        DType::F32 if !case.name.starts_with("large") => abs(5e-7),
        DType::F16 => ulp(1, 0.005),
        _ => EXACT,
    });
}

#[test]
fn convolutions() {
    check("conv", |case| match case.expected.dtype() {
        DType::F32 if case.name.starts_with("three") => abs(1e-6),
        _ => EXACT,
    });
}

#[test]
#[should_panic(expected = "max 1 ulp")]
fn one_ulp_is_noticed_where_bits_must_agree() {
    check("unary", |case| if case.name == "sin.f32" { EXACT } else { ulp(u64::MAX, 1.0) });
}
