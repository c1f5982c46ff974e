//! One small case per layer kind, worked out by hand from the operator reference.

use shardweld_interp::{Bool, Tensor};
use shardweld_ir::{
    Blob, BlobEntry, DType, Literal, Scalar, StridedView, TensorType, WeightStore, WeightView,
};
use shardweld_trt::interpret::interpret;
use shardweld_trt::trace::{
    ActivationType, Call, CausalMaskKind, ElementWiseOperation, ReduceOperation, TraceBuilder, TraceWeight,
    UnaryOperation,
};

use crate::network::{apply, assert_close, cast, f32s, floats, i32s, layer, network, run, tampered};

fn bools(shape: &[usize], elements: &[u8]) -> Tensor {
    Tensor::new(shape, &elements.iter().map(|&b| Bool(b)).collect::<Vec<_>>()).unwrap()
}

fn truths(x: &Tensor) -> Vec<u8> {
    x.slice::<Bool>().iter().map(|b| b.0).collect()
}

fn unary(x: &Tensor, op: UnaryOperation) -> Tensor {
    apply(&[x], |x| Call::Unary { input: x[0], op })
}

fn elementwise(a: &Tensor, b: &Tensor, op: ElementWiseOperation) -> Tensor {
    apply(&[a, b], |x| Call::ElementWise { a: x[0], b: x[1], op })
}

#[test]
fn unary_functions() {
    use UnaryOperation as U;
    let x = f32s(&[4], &[0.5, 1.5, 2.5, -0.5]);
    assert_eq!(floats(&unary(&x, U::Round)), [0.0, 2.0, 2.0, -0.0], "halves go to even");
    assert_close(&unary(&f32s(&[2], &[0.0, 1.0]), U::Exp), &[1.0, std::f32::consts::E]);
    assert_close(&unary(&f32s(&[2], &[0.5, -3.0]), U::Erf), &[0.520_499_9, -0.999_977_9]);
    assert_close(&unary(&f32s(&[3], &[-2.0, 0.0, 7.0]), U::Sign), &[-1.0, 0.0, 1.0]);
    assert_eq!(unary(&i32s(&[2], &[3, -4]), U::Neg).slice::<i32>(), [-3, 4]);
    assert_eq!(truths(&unary(&f32s(&[3], &[f32::NAN, f32::INFINITY, 1.0]), U::IsInf)), [0, 1, 0]);
    assert_eq!(truths(&unary(&bools(&[2], &[1, 0]), U::Not)), [0, 1]);
    let third = cast(&f32s(&[1], &[3.0]), DType::BF16);
    assert_eq!(floats(&unary(&third, U::Recip)), [0.333_984_38], "rounded to bf16");
}

#[test]
fn elementwise_functions() {
    use ElementWiseOperation as E;
    let (column, row) = (f32s(&[2, 1], &[1.0, 2.0]), f32s(&[1, 3], &[10.0, 20.0, 30.0]));
    let sum = elementwise(&column, &row, E::Sum);
    assert_eq!((sum.shape(), floats(&sum)), (&[2, 3][..], vec![11.0, 21.0, 31.0, 12.0, 22.0, 32.0]));
    let (a, b) = (i32s(&[3], &[-7, 7, -8]), i32s(&[3], &[2, -2, 2]));
    assert_eq!(elementwise(&a, &b, E::Div).slice::<i32>(), [-3, -3, -4], "drops the remainder");
    assert_eq!(elementwise(&a, &b, E::FloorDiv).slice::<i32>(), [-4, -4, -4], "rounds down");
    assert_eq!(truths(&elementwise(&a, &b, E::Greater)), [0, 1, 0]);
    assert_close(&elementwise(&f32s(&[2], &[2.0, 9.0]), &f32s(&[2], &[3.0, 0.5]), E::Pow), &[8.0, 3.0]);
    assert_eq!(truths(&elementwise(&bools(&[2], &[1, 0]), &bools(&[2], &[1, 1]), E::Xor)), [0, 1]);
    let (one, small) =
        (cast(&f32s(&[1], &[1.0]), DType::BF16), cast(&f32s(&[1], &[0.001_953_125]), DType::BF16));
    assert_eq!(floats(&elementwise(&one, &small, E::Sum)), [1.0], "rounded to bf16");
}

#[test]
fn activations() {
    let x = f32s(&[3], &[-1.0, 0.0, 1.0]);
    let act = |op| apply(&[&x], |x| Call::Activation { input: x[0], op });
    assert_eq!(floats(&act(ActivationType::Relu)), [0.0, 0.0, 1.0]);
    assert_close(&act(ActivationType::Sigmoid), &[0.268_941_43, 0.5, 0.731_058_6]);
    assert_close(&act(ActivationType::Tanh), &[-0.761_594_2, 0.0, 0.761_594_2]);
    assert_close(&act(ActivationType::GeluErf), &[-0.158_655_25, 0.0, 0.841_344_7]);
    assert_close(&act(ActivationType::GeluTanh), &[-0.158_808, 0.0, 0.841_192]);
}

#[test]
fn select_broadcasts_all_three() {
    let (c, x, y) = (bools(&[2, 1], &[1, 0]), f32s(&[1, 2], &[1.0, 2.0]), f32s(&[1, 1], &[9.0]));
    let out = apply(&[&c, &x, &y], |x| Call::Select { condition: x[0], then_input: x[1], else_input: x[2] });
    assert_eq!(floats(&out), [1.0, 2.0, 9.0, 9.0]);
}

#[test]
fn casts() {
    let x = f32s(&[4], &[-1.7, 0.0, 2.9, 1.000_488_3]);
    let to = |to| apply(&[&x], |x| Call::Cast { input: x[0], to });
    assert_eq!(to(DType::I32).slice::<i32>(), [-1, 0, 2, 1], "toward zero");
    assert_eq!(truths(&to(DType::Bool)), [1, 0, 1, 1]);
    assert_eq!(floats(&to(DType::F16))[3], 1.0, "a tie goes to even");
}

#[test]
fn matrix_products_broadcast_batches() {
    let a = f32s(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let b = f32s(&[1, 3, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    let out = apply(&[&a, &b], |x| Call::MatMul { a: x[0], transpose_a: false, b: x[1], transpose_b: true });
    assert_eq!((out.shape(), floats(&out)), (&[2, 1, 3][..], vec![1.0, 2.0, 3.0, 3.0, 4.0, 7.0]));
    let square = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let row = f32s(&[2, 1], &[1.0, 1.0]);
    let out =
        apply(&[&square, &row], |x| Call::MatMul { a: x[0], transpose_a: true, b: x[1], transpose_b: false });
    assert_eq!(floats(&out), [4.0, 6.0]);
}

#[test]
fn reductions() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let reduce = |op, axes: &[u32], keep_dims| {
        apply(&[&x], |x| Call::Reduce { input: x[0], op, axes: axes.to_vec(), keep_dims })
    };
    let sums = reduce(ReduceOperation::Sum, &[0], true);
    assert_eq!((sums.shape(), floats(&sums)), (&[1, 3][..], vec![5.0, 7.0, 9.0]));
    let all = reduce(ReduceOperation::Avg, &[1, 0], false);
    assert_eq!((all.shape(), floats(&all)), (&[][..], vec![3.5]));
    assert_eq!(floats(&reduce(ReduceOperation::Max, &[1], false)), [3.0, 6.0]);
    assert_eq!(floats(&reduce(ReduceOperation::Prod, &[1], false)), [6.0, 120.0]);
}

#[test]
fn reductions_of_nothing_give_the_identity() {
    let of =
        |x: &Tensor, op| apply(&[x], |x| Call::Reduce { input: x[0], op, axes: vec![1], keep_dims: false });
    let empty = f32s(&[1, 0], &[]);
    assert_eq!(floats(&of(&empty, ReduceOperation::Sum)), [0.0]);
    assert_eq!(floats(&of(&empty, ReduceOperation::Prod)), [1.0]);
    assert_eq!(floats(&of(&empty, ReduceOperation::Max)), [f32::NEG_INFINITY]);
    assert_eq!(floats(&of(&empty, ReduceOperation::Min)), [f32::INFINITY]);
    assert_eq!(of(&i32s(&[1, 0], &[]), ReduceOperation::Max).slice::<i32>(), [i32::MIN]);
}

#[test]
fn softmax_along_the_first_dimension() {
    let x = f32s(&[2, 2], &[0.0, 1.0, 3f32.ln(), 1.0]);
    assert_close(&apply(&[&x], |x| Call::Softmax { input: x[0], axis: 0 }), &[0.25, 0.5, 0.75, 0.5]);
}

#[test]
fn normalization_over_leading_axes_removes_the_mean() {
    // Columns 1, 3 and 2, 6: means 2 and 4, variances 1 and 4.
    let x = f32s(&[2, 2], &[1.0, 2.0, 3.0, 6.0]);
    let (scale, bias) = (f32s(&[1, 2], &[1.0, 10.0]), f32s(&[1, 2], &[0.0, 0.5]));
    let norm = |epsilon| {
        apply(&[&x, &scale, &bias], |x| Call::Normalization {
            input: x[0],
            scale: x[1],
            bias: x[2],
            axes: vec![0],
            epsilon: Scalar::Float(epsilon),
        })
    };
    assert_close(&norm(0.0), &[-1.0, -9.5, 1.0, 10.5]);
    // Epsilon is added to the variance: 1 / sqrt(1 + 3).
    assert_close(&norm(3.0), &[-0.5, 0.5 - 20.0 / 7f32.sqrt(), 0.5, 0.5 + 20.0 / 7f32.sqrt()]);
}

#[test]
fn attention_does_not_scale_scores() {
    let q = f32s(&[1, 1, 1, 4], &[3f32.ln(), 0.0, 0.0, 0.0]);
    let k = f32s(&[1, 1, 2, 4], &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let v = f32s(&[1, 1, 2, 4], &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    let attend = |mask: Option<&Tensor>| {
        let all: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(mask).collect();
        apply(&all, |x| Call::Attention {
            query: x[0],
            key: x[1],
            value: x[2],
            mask: x.get(3).copied(),
            causal: CausalMaskKind::None,
        })
    };
    assert_close(&attend(None), &[0.75, 0.25, 0.0, 0.0]);
    assert_close(&attend(Some(&f32s(&[1, 1, 1, 2], &[0.0, 3f32.ln()]))), &[0.5, 0.5, 0.0, 0.0]);
    assert_close(&attend(Some(&bools(&[1, 1, 1, 2], &[0, 1]))), &[0.0, 1.0, 0.0, 0.0]);
    assert!(floats(&attend(Some(&bools(&[1, 1, 1, 2], &[0, 0]))))[0].is_nan(), "nothing to attend to");
}

#[test]
fn causal_attention_is_anchored_at_the_upper_left() {
    let zeros = f32s(&[1, 1, 2, 1], &[0.0; 2]);
    let (k, v) = (f32s(&[1, 1, 3, 1], &[0.0; 3]), f32s(&[1, 1, 3, 1], &[1.0, 2.0, 4.0]));
    let out = apply(&[&zeros, &k, &v], |x| Call::Attention {
        query: x[0],
        key: x[1],
        value: x[2],
        mask: None,
        causal: CausalMaskKind::UpperLeft,
    });
    assert_close(&out, &[1.0, 1.5]);
}

#[test]
fn heads_of_keys_serve_neighbouring_queries() {
    let one = |heads: usize| f32s(&[1, heads, 1, 1], &vec![0.0; heads]);
    let (q, k, v) = (one(2), one(2), f32s(&[1, 2, 1, 1], &[5.0, 7.0]));
    let trace = network(&[&q, &k, &v], |x| Call::Attention {
        query: x[0],
        key: x[1],
        value: x[2],
        mask: None,
        causal: CausalMaskKind::None,
    });
    let four = tampered(&trace, |t| {
        layer(t, "x0")["dims"][1] = 4.into();
        layer(t, "layer")["dims"][1] = 4.into();
    });
    assert_close(&run(&four, &[&one(4), &k, &v]).unwrap(), &[5.0, 5.0, 7.0, 7.0]);
}

#[test]
fn shuffle_transposes_reshapes_and_transposes() {
    let x = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let out = apply(&[&x], |x| Call::Shuffle {
        input: x[0],
        first: Some(vec![1, 0]),
        reshape: Some(vec![3, 2, 1]),
        second: Some(vec![1, 2, 0]),
    });
    // [[0, 3], [1, 4], [2, 5]], and then dimension i of the result is dimension order[i].
    assert_eq!((out.shape(), floats(&out)), (&[2, 1, 3][..], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
}

#[test]
fn a_zero_in_a_reshape_is_an_empty_dimension() {
    let x = f32s(&[3, 0], &[]);
    let out =
        apply(&[&x], |x| Call::Shuffle { input: x[0], first: None, reshape: Some(vec![0, 7]), second: None });
    assert_eq!(out.shape(), [0, 7]);
}

#[test]
fn slices_step_repeat_and_fill() {
    let x = f32s(&[2, 4], &[0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]);
    let slice = |start: [i64; 2], size: [u64; 2], stride: [u64; 2]| {
        let call = |x: &[_]| Call::Slice {
            input: x[0],
            start: start.to_vec(),
            size: size.to_vec(),
            stride: stride.to_vec(),
            fill: x.get(1).copied(),
        };
        let fill = f32s(&[], &[-1.0]);
        (floats(&apply(&[&x, &fill], call)), network(&[&x, &fill], call))
    };
    assert_eq!(slice([1, 1], [1, 2], [1, 2]).0, [11.0, 13.0]);
    assert_eq!(slice([0, 2], [1, 3], [1, 0]).0, [2.0, 2.0, 2.0]);
    assert_eq!(slice([1, -2], [1, 7], [1, 1]).0, [-1.0, -1.0, 10.0, 11.0, 12.0, 13.0, -1.0]);
    assert_eq!(slice([0, -1], [1, 4], [1, 3]).0, [-1.0, 2.0, -1.0, -1.0]);
    assert_eq!(slice([-1, 3], [2, 1], [1, 1]).0, [-1.0, 3.0]);
    assert_eq!(slice([0, 9], [1, 2], [1, 1]).0, [-1.0, -1.0]);
    assert_eq!(slice([0, -5], [1, 2], [1, 0]).0, [-1.0, -1.0]);
    assert!(slice([0, 1], [2, 0], [1, 1]).0.is_empty());
}

#[test]
fn concatenation_along_the_last_dimension() {
    let (a, b) = (f32s(&[2, 1], &[1.0, 2.0]), f32s(&[2, 2], &[3.0, 4.0, 5.0, 6.0]));
    let out = apply(&[&a, &b], |x| Call::Concat { inputs: x.to_vec(), axis: 1 });
    assert_eq!(floats(&out), [1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
}

#[test]
fn gathers_count_back_and_read_zero_outside() {
    let data = f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let rows = i32s(&[2, 2], &[2, 0, -1, 3]);
    let gather = |indices: &Tensor, axis, elements| {
        apply(&[&data, indices], |x| Call::Gather { data: x[0], indices: x[1], axis, elements })
    };
    let out = gather(&rows, 0, false);
    assert_eq!((out.shape(), floats(&out)), (&[2, 2, 2][..], vec![5.0, 6.0, 1.0, 2.0, 5.0, 6.0, 0.0, 0.0]));
    let out = gather(&i32s(&[], &[1]), 1, false);
    assert_eq!((out.shape(), floats(&out)), (&[3][..], vec![2.0, 4.0, 6.0]));
    assert_eq!(floats(&gather(&i32s(&[2, 1], &[1, -2]), 1, true)), [2.0, 3.0]);
    assert_eq!(floats(&gather(&i32s(&[1, 2], &[2, 5]), 0, true)), [5.0, 0.0]);
}

#[test]
fn convolution_pads_strides_and_groups() {
    // Two channels, each its own group; a 1 x 2 kernel over rows padded by one on the right.
    let x = f32s(&[1, 2, 1, 3], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
    let kernel = f32s(&[2, 1, 1, 2], &[1.0, 1.0, 1.0, -1.0]);
    let bias = f32s(&[2], &[0.5, 0.0]);
    let out = apply(&[&x, &kernel, &bias], |x| Call::Convolution {
        input: x[0],
        kernel: x[1],
        bias: Some(x[2]),
        stride: vec![1, 2],
        pre_padding: vec![0, 0],
        post_padding: vec![0, 1],
        dilation: vec![1, 1],
        groups: 2,
    });
    assert_eq!((out.shape(), floats(&out)), (&[1, 2, 1, 2][..], vec![3.5, 3.5, -10.0, 30.0]));
}

#[test]
fn constants_and_weights() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("w.bin");
    std::fs::write(&file, [1f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat()).unwrap();
    let blob = Blob { file, entry: BlobEntry::Raw { offset: 0, len: 16 } };
    // The transpose of the stored matrix, handed over as one row.
    let view = StridedView { blob, dtype: DType::F32, shape: vec![2, 2], strides: vec![1, 2], offset: 0 };
    let weight = |view| TraceWeight { name: "w".into(), dtype: DType::F32, dims: vec![2, 2], view };
    let sum = |view| {
        let mut b = TraceBuilder::new("test", 1);
        let w = b.weight(weight(view), &[1, 4]).unwrap();
        let ten = Literal::full(TensorType::new(DType::F32, &[1, 1]), Scalar::Float(10.0)).unwrap();
        let ten = b.add("ten", &[], Call::Constant(ten)).unwrap();
        let y = b.add("sum", &[], Call::ElementWise { a: w, b: ten, op: ElementWiseOperation::Sum }).unwrap();
        b.output("y", y).unwrap();
        interpret(&[&b.finish().unwrap()], &WeightStore::new(), &[Default::default()])
    };
    assert_eq!(floats(&sum(WeightView::Strided(view)).unwrap()[0]["y"]), [11.0, 13.0, 12.0, 14.0]);
    let error = sum(WeightView::Absent).unwrap_err().to_string();
    assert!(error.contains("weight `w`"), "{error}");
}
