//! The interpreter's contract against the real builder: every layer kind with every element type, and shapes that do not fit.
//! What the contract lets through must build; what it refuses and the builder does not is listed here, with a reason.
#![cfg(feature = "live")]

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use shardweld_ir::store::WeightStore;
use shardweld_ir::{DType, Literal, ReduceOp, Scalar, TensorType};
use shardweld_trt::interpret::contract::check;
use shardweld_trt::live::{Library, LiveSink};
use shardweld_trt::sink::Sink;
use shardweld_trt::trace::{
    ActivationType, Call, CausalMaskKind, CollectiveKind, DistCollective, ElementWiseOperation, NetworkTrace,
    ReduceOperation, TensorId, TraceBuilder, UnaryOperation,
};

/// What the contract refuses on purpose although RTX 1.7.1 builds it.
const STRICTER: [(&str, &str); 9] = [
    ("reduce AVG of i32", "how the average of integers rounds is not documented"),
    ("reduce AVG of i64", "how the average of integers rounds is not documented"),
    ("all_reduce SUM of bool", "adds bytes, so that the result may be 2"),
    ("unary ERF of i8", "the header says floating point; other functions of i8 do not build"),
    ("normalization of i8", "for quantised networks, which have scales"),
    ("convolution of i8", "for quantised networks, which have scales"),
    ("elementwise EQUAL of u8", "the header says that u8 is cast before it is used"),
    ("normalization with a bias of another shape", "the header wants the scale's shape"),
    ("slice with fill of another type", "the header knows one type of data"),
];

fn network(inputs: &[(DType, &[u64])], call: impl FnOnce(&[TensorId]) -> Call) -> NetworkTrace {
    let world = 2;
    let mut b = TraceBuilder::new("test", world);
    let ids: Vec<TensorId> = inputs
        .iter()
        .enumerate()
        .map(|(i, (d, dims))| b.input(&format!("x{i}"), *d, dims).unwrap())
        .collect();
    let y = b.add("layer", &[], call(&ids)).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

fn edited(trace: &NetworkTrace, edit: impl FnOnce(&mut Value)) -> NetworkTrace {
    let mut json = serde_json::to_value(trace).unwrap();
    edit(&mut json);
    serde_json::from_value(json).unwrap()
}

fn layer<'a>(json: &'a mut Value, name: &str) -> &'a mut Value {
    json["layers"].as_array_mut().unwrap().iter_mut().find(|l| l["name"] == name).unwrap()
}

fn builds(library: &Library, trace: &NetworkTrace) -> Result<(), String> {
    let sink = LiveSink { library, compute_capability: Some(80), threads: 1, progress: None };
    sink.replay(trace, &WeightStore::new()).map(|_| ()).map_err(|e| e.to_string())
}

/// Compares the two verdicts; true if the contract alone refuses.
fn is_stricter(library: &Library, name: &str, trace: &NetworkTrace) -> bool {
    match (check(trace), builds(library, trace)) {
        (Ok(()), Ok(())) | (Err(_), Err(_)) => false,
        (Ok(()), Err(e)) => panic!("{name}: the contract lets it through, the builder says {e}"),
        (Err(_), Ok(())) => true,
    }
}

#[track_caller]
fn assert_stricter(stricter: &[String], of: impl Fn(&str) -> bool) {
    let found: BTreeSet<&str> = stricter.iter().map(String::as_str).collect();
    let listed: BTreeSet<&str> = STRICTER.iter().map(|(name, _)| *name).filter(|n| of(n)).collect();
    assert_eq!(found, listed, "what the contract refuses and the builder does not");
}

/// Networks in f32 or bool, and the tensors that take the type in question.
fn kinds() -> Vec<(&'static str, NetworkTrace, &'static [&'static str])> {
    use DType::{Bool, F32, I32};
    let x: &[u64] = &[2, 4];
    let unary = |op| network(&[(F32, x)], |t| Call::Unary { input: t[0], op });
    let pair = |d, op| network(&[(d, x), (d, x)], |t| Call::ElementWise { a: t[0], b: t[1], op });
    let activation = |op| network(&[(F32, x)], |t| Call::Activation { input: t[0], op });
    let reduce =
        |op| network(&[(F32, x)], |t| Call::Reduce { input: t[0], op, axes: vec![1], keep_dims: true });
    let collective = |kind, reduce: Option<ReduceOp>| {
        let c = DistCollective::new(kind, reduce, None, vec![0, 1], 2).unwrap();
        network(&[(F32, x)], |t| Call::Collective { input: t[0], collective: c })
    };
    let slice = |t: &[TensorId]| Call::Slice {
        input: t[0],
        start: vec![0, if t.len() > 1 { -1 } else { 1 }],
        size: vec![2, 3],
        stride: vec![1, 1],
        fill: t.get(1).copied(),
    };
    let gather = || {
        network(&[(F32, x), (I32, &[3])], |t| Call::Gather {
            data: t[0],
            indices: t[1],
            axis: 1,
            elements: false,
        })
    };
    let one: &[&str] = &["x0", "layer"];
    let two: &[&str] = &["x0", "x1", "layer"];
    let three: &[&str] = &["x0", "x1", "x2", "layer"];
    let four: &[u64] = &[1, 2, 8, 16];
    vec![
        ("unary EXP", unary(UnaryOperation::Exp), one),
        ("unary ROUND", unary(UnaryOperation::Round), one),
        ("unary ERF", unary(UnaryOperation::Erf), one),
        ("unary NEG", unary(UnaryOperation::Neg), one),
        ("unary ABS", unary(UnaryOperation::Abs), one),
        ("unary SIGN", unary(UnaryOperation::Sign), one),
        ("unary ISNAN", unary(UnaryOperation::IsNan), &["x0"]),
        ("unary NOT", network(&[(Bool, x)], |t| Call::Unary { input: t[0], op: UnaryOperation::Not }), one),
        ("elementwise SUM", pair(F32, ElementWiseOperation::Sum), two),
        ("elementwise DIV", pair(F32, ElementWiseOperation::Div), two),
        ("elementwise POW", pair(F32, ElementWiseOperation::Pow), two),
        ("elementwise MAX", pair(F32, ElementWiseOperation::Max), two),
        ("elementwise FLOOR_DIV", pair(F32, ElementWiseOperation::FloorDiv), two),
        ("elementwise AND", pair(Bool, ElementWiseOperation::And), two),
        ("elementwise EQUAL", pair(F32, ElementWiseOperation::Equal), &["x0", "x1"]),
        ("elementwise LESS", pair(F32, ElementWiseOperation::Less), &["x0", "x1"]),
        ("activation RELU", activation(ActivationType::Relu), one),
        ("activation SIGMOID", activation(ActivationType::Sigmoid), one),
        ("activation GELU_TANH", activation(ActivationType::GeluTanh), one),
        (
            "select",
            network(&[(Bool, x), (F32, x), (F32, x)], |t| Call::Select {
                condition: t[0],
                then_input: t[1],
                else_input: t[2],
            }),
            &["x1", "x2", "layer"],
        ),
        (
            "matmul",
            network(&[(F32, x), (F32, x)], |t| Call::MatMul {
                a: t[0],
                transpose_a: false,
                b: t[1],
                transpose_b: true,
            }),
            two,
        ),
        ("reduce SUM", reduce(ReduceOperation::Sum), one),
        ("reduce MAX", reduce(ReduceOperation::Max), one),
        ("reduce AVG", reduce(ReduceOperation::Avg), one),
        ("softmax", network(&[(F32, x)], |t| Call::Softmax { input: t[0], axis: 1 }), one),
        ("normalization", normalization(), three),
        ("attention", network(&[(F32, four); 3], |t| attention(t, CausalMaskKind::None)), three),
        (
            "shuffle",
            network(&[(F32, x)], |t| Call::Shuffle {
                input: t[0],
                first: Some(vec![1, 0]),
                reshape: None,
                second: None,
            }),
            one,
        ),
        ("slice", network(&[(F32, x)], slice), one),
        ("slice with fill", network(&[(F32, x), (F32, &[])], slice), two),
        ("concat", network(&[(F32, x), (F32, x)], |t| Call::Concat { inputs: t.to_vec(), axis: 0 }), two),
        ("gather", gather(), one),
        ("gather by indices", gather(), &["x1"]),
        ("cast to f32", network(&[(I32, x)], |t| Call::Cast { input: t[0], to: F32 }), &["x0"]),
        ("convolution", convolution(), two),
        ("all_reduce SUM", collective(CollectiveKind::AllReduce, Some(ReduceOp::Sum)), one),
        ("all_reduce MAX", collective(CollectiveKind::AllReduce, Some(ReduceOp::Max)), one),
        ("all_gather", collective(CollectiveKind::AllGather, None), one),
        ("all_to_all", collective(CollectiveKind::AllToAll, None), one),
    ]
}

fn attention(t: &[TensorId], causal: CausalMaskKind) -> Call {
    Call::Attention { query: t[0], key: t[1], value: t[2], mask: t.get(3).copied(), causal }
}

fn normalization() -> NetworkTrace {
    network(&[(DType::F32, &[2, 4]), (DType::F32, &[1, 4]), (DType::F32, &[1, 4])], |t| Call::Normalization {
        input: t[0],
        scale: t[1],
        bias: t[2],
        axes: vec![1],
        epsilon: Scalar::Float(1e-5),
    })
}

fn convolution() -> NetworkTrace {
    network(&[(DType::F32, &[1, 2, 4, 4]), (DType::F32, &[2, 2, 3, 3])], |t| Call::Convolution {
        input: t[0],
        kernel: t[1],
        bias: None,
        stride: vec![1, 1],
        pre_padding: vec![0, 0],
        post_padding: vec![0, 0],
        dilation: vec![1, 1],
        groups: 1,
    })
}

#[test]
fn element_types_are_those_of_the_builder() {
    let Some(library) = support::library() else { return };
    let mut stricter = Vec::new();
    for (kind, trace, typed) in kinds() {
        assert_eq!(check(&trace), Ok(()), "{kind} as it is");
        for dtype in DType::ALL {
            let trace = edited(&trace, |t| {
                typed.iter().for_each(|n| layer(t, n)["dtype"] = json!(dtype.name()));
            });
            let name = format!("{kind} of {dtype}");
            if is_stricter(&library, &name, &trace) {
                stricter.push(name);
            }
        }
    }
    assert_stricter(&stricter, |n| n.contains(" of ") && !n.contains("another"));
}

#[test]
fn constants_are_of_the_builders_types() {
    let Some(library) = support::library() else { return };
    let ty = TensorType::new(DType::I64, &[1, 1]);
    let literal = Literal::full(ty, Scalar::Int(0)).unwrap();
    let mut b = TraceBuilder::new("test", 1);
    let x = b.input("x0", DType::I64, &[1, 2]).unwrap();
    let c = b.add("c", &[], Call::Constant(literal)).unwrap();
    let y = b.add("layer", &[], Call::Concat { inputs: vec![x, c], axis: 1 }).unwrap();
    b.output("y", y).unwrap();
    let constant = b.finish().unwrap();
    assert_eq!(check(&constant), Ok(()));
    for dtype in DType::ALL {
        let trace = edited(&constant, |t| {
            for n in ["x0", "c", "layer"] {
                layer(t, n)["dtype"] = json!(dtype.name());
            }
            let c = &mut layer(t, "c")["call"]["constant"];
            c["ty"]["dtype"] = json!(dtype.name());
            c["data"] = json!("00".repeat(dtype.size()));
        });
        assert!(!is_stricter(&library, &format!("constant of {dtype}"), &trace), "constant of {dtype}");
    }
}

#[test]
fn shapes_and_attributes_are_those_of_the_builder() {
    let Some(library) = support::library() else { return };
    let by_name: Vec<_> = kinds();
    let find = |kind: &str| by_name.iter().find(|k| k.0 == kind).map(|k| k.1.clone()).unwrap();
    let mut cases: Vec<(&str, NetworkTrace)> = Vec::new();
    let mut case =
        |name, trace: &NetworkTrace, edit: &dyn Fn(&mut Value)| cases.push((name, edited(trace, edit)));
    let call = |t: &mut Value, kind: &str, field: &str, v: Value| layer(t, "layer")["call"][kind][field] = v;
    let sum = find("elementwise SUM");
    case("elementwise of another rank", &sum, &|t| layer(t, "x1")["dims"] = json!([4]));
    case("elementwise that does not broadcast", &sum, &|t| layer(t, "x1")["dims"] = json!([2, 3]));
    case("elementwise of two types", &sum, &|t| layer(t, "x1")["dtype"] = json!("f16"));
    let matmul = find("matmul");
    case("matmul of two types", &matmul, &|t| layer(t, "x1")["dtype"] = json!("f16"));
    case("matmul of other inner sizes", &matmul, &|t| call(t, "mat_mul", "transpose_b", json!(false)));
    case("matmul of another rank", &matmul, &|t| layer(t, "x1")["dims"] = json!([1, 2, 4]));
    let reduce = find("reduce SUM");
    case("reduce over nothing", &reduce, &|t| call(t, "reduce", "axes", json!([])));
    case("reduce over a missing axis", &reduce, &|t| call(t, "reduce", "axes", json!([2])));
    let norm = find("normalization");
    case("normalization over nothing", &norm, &|t| call(t, "normalization", "axes", json!([])));
    case("normalization with a scale of another type", &norm, &|t| layer(t, "x1")["dtype"] = json!("f16"));
    case("normalization with a scale that does not broadcast", &norm, &|t| {
        ["x1", "x2"].iter().for_each(|n| layer(t, n)["dims"] = json!([1, 3]));
    });
    case("normalization with a scale of another rank", &norm, &|t| {
        ["x1", "x2"].iter().for_each(|n| layer(t, n)["dims"] = json!([4]));
    });
    case("normalization with a bias of another shape", &norm, &|t| layer(t, "x2")["dims"] = json!([1, 1]));
    let four: &[u64] = &[1, 2, 8, 16];
    let masked = network(
        &[(DType::F32, four), (DType::F32, four), (DType::F32, four), (DType::Bool, &[1, 1, 8, 8])],
        |t| attention(t, CausalMaskKind::None),
    );
    case("attention with a bool mask", &masked, &|_| {});
    case("attention with a mask of size 1", &masked, &|t| layer(t, "x3")["dims"] = json!([1, 1, 1, 8]));
    case("attention with a mask of another type", &masked, &|t| layer(t, "x3")["dtype"] = json!("f16"));
    case("attention with a mask of another rank", &masked, &|t| layer(t, "x3")["dims"] = json!([8, 8]));
    case("attention with mask, causal", &masked, &|t| call(t, "attention", "causal", json!("UPPER_LEFT")));
    let plain = find("attention");
    case("attention, causal", &plain, &|t| call(t, "attention", "causal", json!("UPPER_LEFT")));
    case("attention of fewer keys", &plain, &|t| {
        ["x1", "x2"].iter().for_each(|n| layer(t, n)["dims"][2] = json!(5));
    });
    case("attention of fewer key heads", &plain, &|t| {
        ["x1", "x2"].iter().for_each(|n| layer(t, n)["dims"][1] = json!(1));
    });
    case("attention of heads that do not divide", &plain, &|t| {
        ["x0", "layer"].iter().for_each(|n| layer(t, n)["dims"][1] = json!(3));
    });
    case("attention of values of another size", &plain, &|t| layer(t, "x2")["dims"][3] = json!(8));
    case("attention of another batch", &plain, &|t| {
        ["x0", "layer"].iter().for_each(|n| layer(t, n)["dims"][0] = json!(2));
    });
    let shuffle = find("shuffle");
    case("shuffle to another volume", &shuffle, &|t| call(t, "shuffle", "reshape", json!([9])));
    let slice = find("slice");
    case("slice beyond its operand", &slice, &|t| call(t, "slice", "start", json!([0, 2])));
    case("slice before its operand", &slice, &|t| call(t, "slice", "start", json!([0, -1])));
    case("slice that repeats", &slice, &|t| call(t, "slice", "stride", json!([1, 0])));
    let fill = find("slice with fill");
    case("slice with fill of another type", &fill, &|t| layer(t, "x1")["dtype"] = json!("f16"));
    let concat = find("concat");
    case("concat of two types", &concat, &|t| layer(t, "x1")["dtype"] = json!("f16"));
    case("concat of other shapes", &concat, &|t| layer(t, "x1")["dims"] = json!([2, 3]));
    let gather = find("gather");
    case("gather by elements out of shape", &gather, &|t| {
        call(t, "gather", "elements", json!(true));
        layer(t, "x1")["dims"] = json!([3, 4]);
        layer(t, "layer")["dims"] = json!([3, 4]);
    });
    let conv = find("convolution");
    case("convolution of two types", &conv, &|t| layer(t, "x1")["dtype"] = json!("f16"));
    case("convolution of other groups", &conv, &|t| call(t, "convolution", "groups", json!(2)));
    case("convolution with too large a kernel", &conv, &|t| layer(t, "x1")["dims"] = json!([2, 2, 5, 3]));
    let exchange = find("all_to_all");
    case("all_to_all that does not divide", &exchange, &|t| {
        ["x0", "layer"].iter().for_each(|n| layer(t, n)["dims"] = json!([3, 4]));
    });
    let select = find("select");
    case("select by numbers", &select, &|t| layer(t, "x0")["dtype"] = json!("i32"));
    case("select of two types", &select, &|t| layer(t, "x1")["dtype"] = json!("f16"));
    let stricter: Vec<String> = cases
        .iter()
        .filter(|(name, trace)| is_stricter(&library, name, trace))
        .map(|c| c.0.to_owned())
        .collect();
    assert_stricter(&stricter, |n| !n.contains(" of ") || n.contains("another"));
}
