//! What TensorRT refuses: each case is a network that runs, with one thing changed.

use serde_json::{Value, json};
use shardweld_interp::Tensor;
use shardweld_ir::{DType, ReduceOp, Scalar};
use shardweld_trt::interpret::contract::{CollectiveTerms, collective};
use shardweld_trt::trace::{
    ActivationType, Call, CausalMaskKind, CollectiveKind, ElementWiseOperation, NetworkTrace,
    ReduceOperation, UnaryOperation,
};

use crate::network::{assert_refused, cast, f32s, i32s, layer, network, run, tampered};

/// Runs as it is; is refused with the layer changed.
#[track_caller]
fn refused(trace: &NetworkTrace, inputs: &[&Tensor], words: &str, edit: impl FnOnce(&mut Value)) {
    run(trace, inputs).expect("the network runs before it is changed");
    assert_refused(&tampered(trace, edit), words);
}

#[test]
fn functions_of_the_wrong_type() {
    let x = i32s(&[2], &[1, 2]);
    let neg = network(&[&x], |x| Call::Unary { input: x[0], op: UnaryOperation::Neg });
    refused(&neg, &[&x], "is i32, must be f32", |t| layer(t, "layer")["call"]["unary"]["op"] = json!("EXP"));
    let relu = network(&[&x], |x| Call::Activation { input: x[0], op: ActivationType::Relu });
    refused(&relu, &[&x], "is i32", |t| layer(t, "layer")["call"]["activation"]["op"] = json!("SIGMOID"));
    let sum = |op| network(&[&x], |x| Call::Reduce { input: x[0], op, axes: vec![0], keep_dims: true });
    refused(&sum(ReduceOperation::Sum), &[&x], "AVG of i32", |t| {
        layer(t, "layer")["call"]["reduce"]["op"] = json!("AVG");
    });
    let equal =
        network(&[&x, &x], |x| Call::ElementWise { a: x[0], b: x[1], op: ElementWiseOperation::Equal });
    refused(&equal, &[&x, &x], "must be bool", |t| {
        layer(t, "layer")["call"]["element_wise"]["op"] = json!("AND");
    });
    let f = f32s(&[1, 1], &[1.0]);
    let product =
        network(&[&f, &f], |x| Call::MatMul { a: x[0], transpose_a: false, b: x[1], transpose_b: false });
    refused(&product, &[&f, &f], "is i8, must be f32", |t| {
        ["x0", "x1", "layer"].iter().for_each(|n| layer(t, n)["dtype"] = json!("i8"));
    });
}

#[test]
fn types_that_strong_typing_does_not_mix() {
    let x = f32s(&[2], &[1.0, 2.0]);
    let sum = network(&[&x, &x], |x| Call::ElementWise { a: x[0], b: x[1], op: ElementWiseOperation::Sum });
    refused(&sum, &[&x, &x], "f32 and f16 differ", |t| layer(t, "x1")["dtype"] = json!("f16"));
    let concat = network(&[&x, &x], |x| Call::Concat { inputs: x.to_vec(), axis: 0 });
    refused(&concat, &[&x, &x], "f32 and bf16 differ", |t| layer(t, "x1")["dtype"] = json!("bf16"));
    let norm = network(&[&x, &x, &x], |x| Call::Normalization {
        input: x[0],
        scale: x[1],
        bias: x[2],
        axes: vec![0],
        epsilon: Scalar::Float(1e-5),
    });
    refused(&norm, &[&x, &x, &x], "differ", |t| layer(t, "x0")["dtype"] = json!("f16"));
    refused(&norm, &[&x, &x, &x], "no axis", |t| {
        layer(t, "layer")["call"]["normalization"]["axes"] = json!([])
    });
    refused(&norm, &[&x, &x, &x], "do not broadcast", |t| {
        ["x1", "x2"].iter().for_each(|n| layer(t, n)["dims"] = json!([3]));
    });
}

#[test]
fn bytes_and_fp8_inside_the_network() {
    let x = f32s(&[2], &[1.0, 2.0]);
    let bytes = network(&[&x], |x| Call::Cast { input: x[0], to: DType::U8 });
    assert_eq!(run(&bytes, &[&x]).unwrap().slice::<u8>(), [1, 2]);
    refused(&bytes, &[&x], "no conversion from i32 to u8", |t| layer(t, "x0")["dtype"] = json!("i32"));
    refused(&bytes, &[&x], "to f8e4m3", |t| {
        layer(t, "layer")["call"]["cast"]["to"] = json!("f8e4m3");
        layer(t, "layer")["dtype"] = json!("f8e4m3");
    });
    let shuffle = network(&[&x], |x| Call::Shuffle { input: x[0], first: None, reshape: None, second: None });
    refused(&shuffle, &[&x], "is u8", |t| {
        ["x0", "layer"].iter().for_each(|n| layer(t, n)["dtype"] = json!("u8"));
    });
    refused(&shuffle, &[&x], "no f64", |t| layer(t, "x0")["dtype"] = json!("f64"));
}

#[test]
fn shapes_that_do_not_fit() {
    let x = f32s(&[2, 3], &[0.0; 6]);
    let sum = network(&[&x, &x], |x| Call::ElementWise { a: x[0], b: x[1], op: ElementWiseOperation::Sum });
    refused(&sum, &[&x, &x], "differ in rank", |t| layer(t, "x1")["dims"] = json!([3]));
    refused(&sum, &[&x, &x], "do not broadcast", |t| layer(t, "x1")["dims"] = json!([2, 2]));
    refused(&sum, &[&x, &x], "TensorRT makes f32[2, 3]", |t| layer(t, "layer")["dims"] = json!([3, 2]));
    let product =
        network(&[&x, &x], |x| Call::MatMul { a: x[0], transpose_a: false, b: x[1], transpose_b: true });
    refused(&product, &[&x, &x], "contracted sizes", |t| {
        layer(t, "layer")["call"]["mat_mul"]["transpose_b"] = json!(false);
    });
    let reduce = network(&[&x], |x| Call::Reduce {
        input: x[0],
        op: ReduceOperation::Sum,
        axes: vec![0, 1],
        keep_dims: true,
    });
    refused(&reduce, &[&x], "given twice", |t| layer(t, "layer")["call"]["reduce"]["axes"] = json!([0, 0]));
    refused(&reduce, &[&x], "no axis", |t| layer(t, "layer")["call"]["reduce"]["axes"] = json!([]));
    let softmax = network(&[&x], |x| Call::Softmax { input: x[0], axis: 1 });
    refused(&softmax, &[&x], "does not exist", |t| layer(t, "layer")["call"]["softmax"]["axis"] = json!(2));
    let shuffle = network(&[&x], |x| Call::Shuffle {
        input: x[0],
        first: Some(vec![1, 0]),
        reshape: Some(vec![6]),
        second: None,
    });
    refused(&shuffle, &[&x], "number of elements", |t| {
        layer(t, "layer")["call"]["shuffle"]["reshape"] = json!([7]);
    });
    refused(&shuffle, &[&x], "no permutation", |t| {
        layer(t, "layer")["call"]["shuffle"]["first"] = json!([1, 1]);
    });
    let concat = network(&[&x, &x], |x| Call::Concat { inputs: x.to_vec(), axis: 0 });
    refused(&concat, &[&x, &x], "differ off axis", |t| layer(t, "x1")["dims"] = json!([2, 2]));
}

#[test]
fn slices_that_leave_their_operand() {
    let x = f32s(&[4], &[0.0; 4]);
    let slice = network(&[&x], |x| Call::Slice {
        input: x[0],
        start: vec![1],
        size: vec![3],
        stride: vec![1],
        fill: None,
    });
    refused(&slice, &[&x], "reads 2 to 4", |t| layer(t, "layer")["call"]["slice"]["start"] = json!([2]));
    refused(&slice, &[&x], "reads -1", |t| layer(t, "layer")["call"]["slice"]["start"] = json!([-1]));
    refused(&slice, &[&x], "reads 1 to 5", |t| layer(t, "layer")["call"]["slice"]["stride"] = json!([2]));
    let fill = f32s(&[], &[0.0]);
    let padded = network(&[&x, &fill], |x| Call::Slice {
        input: x[0],
        start: vec![-1],
        size: vec![6],
        stride: vec![1],
        fill: Some(x[1]),
    });
    refused(&padded, &[&x, &fill], "must be a scalar", |t| layer(t, "x1")["dims"] = json!([1]));
    refused(&padded, &[&x, &fill], "f32 and f16", |t| layer(t, "x1")["dtype"] = json!("f16"));
}

#[test]
fn attention_operands() {
    let x = f32s(&[1, 2, 3, 4], &[0.0; 24]);
    let mask = f32s(&[1, 1, 3, 3], &[0.0; 9]);
    let all = [&x, &x, &x, &mask];
    let trace = network(&all, |x| Call::Attention {
        query: x[0],
        key: x[1],
        value: x[2],
        mask: Some(x[3]),
        causal: CausalMaskKind::None,
    });
    refused(&trace, &all, "one only", |t| {
        layer(t, "layer")["call"]["attention"]["causal"] = json!("UPPER_LEFT")
    });
    refused(&trace, &all, "must be bool or f32", |t| layer(t, "x3")["dtype"] = json!("f16"));
    refused(&trace, &all, "the mask [3, 3]", |t| layer(t, "x3")["dims"] = json!([3, 3]));
    refused(&trace, &all, "differ in shape", |t| layer(t, "x2")["dims"] = json!([1, 2, 3, 2]));
    refused(&trace, &all, "no multiple", |t| {
        ["x1", "x2"].iter().for_each(|n| layer(t, n)["dims"][1] = json!(3));
    });
    refused(&trace, &all, "batch or head size", |t| layer(t, "x0")["dims"][0] = json!(2));
}

#[test]
fn gathers_and_convolutions() {
    let (data, indices) = (f32s(&[2, 2], &[0.0; 4]), i32s(&[1, 2], &[0, 1]));
    let trace =
        network(&[&data, &indices], |x| Call::Gather { data: x[0], indices: x[1], axis: 0, elements: true });
    refused(&trace, &[&data, &indices], "must be i32 or i64", |t| layer(t, "x1")["dtype"] = json!("f32"));
    refused(&trace, &[&data, &indices], "reach beyond", |t| {
        ["x1", "layer"].iter().for_each(|n| layer(t, n)["dims"] = json!([1, 3]));
    });
    let (x, kernel) = (f32s(&[1, 2, 2, 2], &[0.0; 8]), f32s(&[2, 2, 1, 1], &[0.0; 4]));
    let trace = network(&[&x, &kernel], |x| Call::Convolution {
        input: x[0],
        kernel: x[1],
        bias: None,
        stride: vec![1, 1],
        pre_padding: vec![0, 0],
        post_padding: vec![0, 0],
        dilation: vec![1, 1],
        groups: 1,
    });
    refused(&trace, &[&x, &kernel], "groups do not divide", |t| {
        layer(t, "layer")["call"]["convolution"]["groups"] = json!(2);
    });
    refused(&trace, &[&x, &kernel], "two or three spatial", |t| {
        layer(t, "x0")["dims"] = json!([1, 2, 2]);
        layer(t, "x1")["dims"] = json!([2, 2, 1]);
    });
    refused(&trace, &[&x, &kernel], "larger than the padded", |t| {
        layer(t, "x1")["dims"] = json!([2, 2, 3, 1])
    });
}

#[test]
fn eight_bit_constants_and_conditions() {
    let x = f32s(&[2], &[1.0, 0.0]);
    let c = cast(&x, DType::Bool);
    let trace =
        network(&[&c, &x, &x], |x| Call::Select { condition: x[0], then_input: x[1], else_input: x[2] });
    refused(&trace, &[&c, &x, &x], "the condition is i32", |t| layer(t, "x0")["dtype"] = json!("i32"));
    let ty = shardweld_ir::TensorType::new(DType::I32, &[1]);
    let literal = shardweld_ir::Literal::full(ty, Scalar::Int(1)).unwrap();
    let constant = network(&[], |_| Call::Constant(literal));
    // The builder copies constants that are outputs.
    refused(&constant, &[], "a constant of i8", |t| {
        for l in t["layers"].as_array_mut().unwrap() {
            l["dtype"] = json!("i8");
            if let Some(c) = l["call"].get_mut("constant") {
                c["ty"]["dtype"] = json!("i8");
                c["data"] = json!("01");
            }
        }
    });
}

#[test]
fn names_and_order() {
    let x = f32s(&[1], &[1.0]);
    let trace = network(&[&x, &x], |x| Call::ElementWise { a: x[0], b: x[1], op: ElementWiseOperation::Sum });
    refused(&trace, &[&x, &x], "another tensor has this name", |t| layer(t, "x1")["name"] = json!("x0"));
    refused(&trace, &[&x, &x], "not made before", |t| {
        layer(t, "layer")["call"]["element_wise"]["b"] = json!(2)
    });
    refused(&trace, &[&x, &x], "does not exist", |t| t["outputs"][0]["tensor"] = json!(9));
}

fn terms(kind: CollectiveKind, ranks: &[u32]) -> CollectiveTerms<'_> {
    let reduces =
        matches!(kind, CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter);
    let rooted = matches!(
        kind,
        CollectiveKind::Broadcast | CollectiveKind::Reduce | CollectiveKind::Gather | CollectiveKind::Scatter
    );
    CollectiveTerms {
        kind,
        reduce: reduces.then_some(ReduceOp::Sum),
        root: if rooted { 3 } else { -1 },
        ranks,
        world_size: 4,
    }
}

#[test]
fn every_collective_keeps_the_builders_contract() {
    for kind in CollectiveKind::ALL {
        let good = terms(kind, &[1, 3]);
        let check = |c: CollectiveTerms<'_>| collective(&c, DType::F32, &[4, 3]);
        let dims = check(good).unwrap();
        let expected = match kind {
            CollectiveKind::AllGather | CollectiveKind::Gather => [8, 3],
            CollectiveKind::ReduceScatter | CollectiveKind::Scatter => [2, 3],
            _ => [4, 3],
        };
        assert_eq!(dims, expected, "{}", kind.name());
        let other = if good.reduce.is_some() { None } else { Some(ReduceOp::Max) };
        assert!(check(CollectiveTerms { reduce: other, ..good }).unwrap_err().contains("reduce operation"));
        let root = if good.root < 0 { 3 } else { -1 };
        assert!(check(CollectiveTerms { root, ..good }).unwrap_err().contains("the root"));
        assert!(check(CollectiveTerms { root: -2, ..good }).unwrap_err().contains("the root"));
        assert!(check(CollectiveTerms { ranks: &[], ..good }).unwrap_err().contains("no ranks"));
        assert!(check(CollectiveTerms { ranks: &[3, 3], ..good }).unwrap_err().contains("twice"));
        assert!(check(CollectiveTerms { world_size: 3, ..good }).unwrap_err().contains("outside"));
        if good.root >= 0 {
            assert!(check(CollectiveTerms { root: 2, ..good }).unwrap_err().contains("not in the group"));
        }
        assert!(collective(&good, DType::F32, &[]).unwrap_err().contains("at least one dimension"));
        assert!(collective(&good, DType::U8, &[4, 3]).unwrap_err().contains("u8"));
        let odd = collective(&good, DType::F32, &[3, 3]);
        let splits = matches!(
            kind,
            CollectiveKind::ReduceScatter | CollectiveKind::Scatter | CollectiveKind::AllToAll
        );
        assert_eq!(odd.is_err(), splits, "{}", kind.name());
        if good.reduce.is_some() {
            let with = |op| CollectiveTerms { reduce: Some(op), ..good };
            assert!(collective(&with(ReduceOp::Max), DType::Bool, &[4]).is_ok());
            assert!(collective(&with(ReduceOp::Sum), DType::Bool, &[4]).unwrap_err().contains("truth"));
            assert!(collective(&with(ReduceOp::Avg), DType::I32, &[4]).unwrap_err().contains("AVG"));
        }
    }
}
