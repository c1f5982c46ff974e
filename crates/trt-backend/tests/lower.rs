//! What lowering makes of a program: few layers, static ranks, and refusals that are complete.
#![cfg(feature = "live")]

mod support;

use shardweld_ir::store::WeightStore;
use shardweld_ir::{
    AxisId, Binary, Blob, BlobEntry, Collective, DType, Group, Literal, Mesh, Op, ReduceOp, Scalar, Shape,
    StridedView, TensorType, Unary, Weight, WeightView,
};
use shardweld_trt::flavour::{Flavour, Version};
use shardweld_trt::lower::{LowerError, LowerOptions, WeightMode, lower, lower_all};
use shardweld_trt::target::Target;
use shardweld_trt::trace::{Call, NetworkTrace};
use support::Program;

fn kinds(trace: &NetworkTrace) -> Vec<&'static str> {
    trace.layers().iter().map(|l| l.call.kind()).filter(|k| *k != "input").collect()
}

#[test]
fn head_split_and_merge_are_one_shuffle_each() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[2, 6, 12]);
    let y = p.add("split", Op::Reshape { shape: Shape::of(&[2, 6, 3, 4]) }, &[x]);
    let y = p.add("heads", Op::Transpose { perm: vec![0, 2, 1, 3] }, &[y]);
    let y = p.add("softmax", Op::Softmax { dim: 3 }, &[y]);
    let y = p.add("back", Op::Transpose { perm: vec![0, 2, 1, 3] }, &[y]);
    let y = p.add("merge", Op::Reshape { shape: Shape::of(&[2, 6, 12]) }, &[y]);
    p.output(y);
    assert_eq!(kinds(&p.lower(0)), ["shuffle", "softmax", "shuffle"]);
}

#[test]
fn a_transpose_before_a_product_costs_no_layer() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[4, 8]);
    let t = p.add("t", Op::Transpose { perm: vec![1, 0] }, &[x]);
    let y = p.add("gram", Op::MatMul { transpose_a: true, transpose_b: false }, &[t, t]);
    p.output(y);
    let trace = p.lower(0);
    assert_eq!(kinds(&trace), ["matmul"]);
    let Call::MatMul { transpose_a, transpose_b, .. } = trace.layers()[1].call else { panic!("{trace:?}") };
    assert!(!transpose_a && transpose_b);
}

#[test]
fn writing_both_halves_of_a_base_is_a_concatenation() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[2, 8]);
    let half = p.input("half", DType::F32, &[2, 4]);
    let y = p.add("first", Op::UpdateSlice { dim: 1, start: 0, stride: 1 }, &[x, half]);
    let y = p.add("second", Op::UpdateSlice { dim: 1, start: 4, stride: 1 }, &[y, half]);
    p.output(y);
    assert_eq!(kinds(&p.lower(0)), ["concat"]);
}

#[test]
fn unbinding_shares_one_shuffle() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[2, 3, 5]);
    for i in 0..3 {
        let s = p.add(&format!("s{i}"), Op::Slice { dim: 1, start: i, limit: i + 1, stride: 1 }, &[x]);
        let y = p.add(&format!("y{i}"), Op::Reshape { shape: Shape::of(&[2, 5]) }, &[s]);
        p.output(y);
    }
    let trace = p.lower(0);
    assert_eq!(kinds(&trace), ["shuffle", "slice", "slice", "slice"]);
    let slices: Vec<_> = trace
        .layers()
        .iter()
        .filter_map(|l| match &l.call {
            Call::Slice { start, size, .. } => Some((start[1], size.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(slices, [(0, vec![2, 5]), (5, vec![2, 5]), (10, vec![2, 5])]);
}

#[test]
fn shuffles_fold_across_pointwise_ops() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[2, 3, 4]);
    let y = p.add("t", Op::Transpose { perm: vec![2, 0, 1] }, &[x]);
    let y = p.add("neg", Op::Unary(Unary::Neg), &[y]);
    let y = p.add("back", Op::Transpose { perm: vec![1, 2, 0] }, &[y]);
    p.output(y);
    assert_eq!(kinds(&p.lower(0)), ["unary"]);
}

#[test]
fn repetition_is_left_to_layers_that_broadcast() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[4, 8]);
    let row = p.input("row", DType::F32, &[1, 8]);
    let wide = p.add("wide", Op::Broadcast { shape: Shape::of(&[4, 8]) }, &[row]);
    let y = p.add("sum", Op::Binary(Binary::Add), &[x, wide]);
    p.output(y);
    assert_eq!(kinds(&p.lower(0)), ["elementwise"]);
    // Alone it must be spelled out.
    p.output(wide);
    assert_eq!(kinds(&p.lower(0)), ["elementwise", "slice"]);
}

#[test]
fn a_number_that_the_type_holds_needs_no_cast() {
    let count = |value: f64| {
        let mut p = Program::new(&[("tp", 1)]);
        let x = p.input("x", DType::BF16, &[4]);
        let op = Op::BinaryScalar { op: Binary::Mul, scalar: Scalar::Float(value), scalar_first: false };
        let y = p.add("y", op, &[x]);
        p.output(y);
        kinds(&p.lower(0)).iter().filter(|k| **k == "cast").count()
    };
    assert_eq!(count(0.5), 0);
    assert_eq!(count(0.1), 2);
}

#[test]
fn equal_layers_are_one_and_equal_collectives_are_not() {
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[4]);
    for i in 0..2 {
        let a = p.add(&format!("a{i}"), Op::Unary(Unary::Exp), &[x]);
        let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
        let c = p.add(&format!("c{i}"), Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[a]);
        p.output(c);
    }
    let trace = p.lower(0);
    assert_eq!(kinds(&trace), ["unary", "collective", "collective"]);
    assert_eq!(trace.layers()[1].sources, ["a0", "a1"]);
}

#[test]
fn ranks_are_static_and_groups_of_one_vanish() {
    let mut p = Program::new(&[("cp", 2), ("tp", 2), ("pp", 1)]);
    let x = p.input("x", DType::F32, &[4, 4]);
    let all = |a| Op::Collective { kind: Collective::AllGather { dim: 1 }, group: Group::axis(AxisId(a)) };
    let y = p.add("tp", all(1), &[x]);
    let y = p.add("pp", all(2), &[y]);
    let y = p.add("mine", Op::OwnSlice { dim: 0, group: Group::axis(AxisId(0)) }, &[y]);
    let z = p.add("other", Op::Unary(Unary::Exp), &[y]);
    let y = p.add("pick", Op::AxisSelect { axis: AxisId(1) }, &[y, z]);
    p.output(y);
    for rank in 0..4u32 {
        let trace = p.lower(rank);
        trace.validate().unwrap();
        let collectives: Vec<_> = trace.collectives().map(|(_, c)| c.ranks().to_vec()).collect();
        let tp = if rank < 2 { [0, 1] } else { [2, 3] };
        assert_eq!(collectives, [tp]);
        let has_exp = kinds(&trace).contains(&"unary");
        assert_eq!(has_exp, rank % 2 == 1, "rank {rank}");
        let start = trace.layers().iter().find_map(|l| match &l.call {
            Call::Slice { start, .. } => Some(start[0]),
            _ => None,
        });
        assert_eq!(start, Some(if rank < 2 { 0 } else { 2 }));
    }
    let e = lower(&p.0, 4, &LowerOptions::default()).unwrap_err();
    assert!(matches!(e, LowerError::NoSuchRank { rank: 4, world: 4 }));
}

#[test]
fn a_collective_that_only_another_rank_needs_is_refused() {
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[4]);
    let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
    let c = p.add("sum", Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
    let y = p.add("pick", Op::AxisSelect { axis: AxisId(0) }, &[c, x]);
    p.output(y);
    assert!(lower(&p.0, 0, &LowerOptions::default()).is_ok());
    let e = lower(&p.0, 1, &LowerOptions::default()).unwrap_err().to_string();
    assert!(e.contains("`sum`") && e.contains("other ranks issue it"), "{e}");
}

#[test]
fn all_refusals_are_listed_at_once() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[4]);
    let i = p.input("i", DType::I32, &[4]);
    let a = p.add("angle", Op::Binary(Binary::Atan2), &[x, x]);
    let b = p.add("bits", Op::Binary(Binary::And), &[i, i]);
    let d = p.add("double", Op::Cast { to: DType::F64 }, &[x]);
    // Not refused again for what its operand was refused for.
    let after = p.add("after", Op::Unary(Unary::Exp), &[a]);
    for v in [b, d, after] {
        p.output(v);
    }
    let Err(LowerError::Refused(list)) = lower(&p.0, 0, &LowerOptions::default()) else { panic!() };
    let nodes: Vec<&str> = list.iter().map(|r| r.node.as_str()).collect();
    assert_eq!(nodes, ["angle", "bits", "double"]);
}

#[test]
fn known_limits_of_a_target_are_refused_up_front() {
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::BF16, &[4]);
    let group = Group::axis(AxisId(0));
    let y = p.add("spread", Op::Collective { kind: Collective::Broadcast { root: 1 }, group }, &[x]);
    p.output(y);
    let with = |version| {
        let target = Some(Target { flavour: Flavour::TensorRtRtx, version });
        lower(&p.0, 0, &LowerOptions { target, ..LowerOptions::default() })
    };
    assert!(with(Version::new(1, 6, 1)).is_ok());
    let e = with(Version::new(1, 7, 1)).unwrap_err().to_string();
    assert!(e.contains("`spread`") && e.contains("bf16 broadcast") && e.contains("1.7.1"), "{e}");
}

/// One weight of four numbers per rank, at the given offsets of one file.
fn sharded(folder: &std::path::Path, numbers: &[f32], offsets: [u64; 2]) -> Program {
    let file = folder.join("w.bin");
    std::fs::write(&file, numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[3, 2, 2]);
    let view = |offset| {
        let blob = Blob { file: file.clone(), entry: BlobEntry::Raw { offset, len: 16 } };
        WeightView::Strided(StridedView::contiguous(blob, DType::F32, &[2, 2]))
    };
    let w = p.0.add_weight(Weight {
        name: "w".into(),
        ty: TensorType::new(DType::F32, &[2, 2]),
        over: vec![AxisId(0)],
        shards: offsets.map(view).to_vec(),
    });
    let w = p.add("w", Op::Weight(w.unwrap()), &[]);
    let y = p.add("y", Op::MatMul { transpose_a: false, transpose_b: true }, &[x, w]);
    p.output(y);
    p
}

#[test]
fn ranks_share_a_trace_exactly_if_their_weights_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let same = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0];
    let differ = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 5.0];
    let ranks = |numbers: &[f32], weights| {
        let p = sharded(folder.path(), numbers, [0, 16]);
        let options = LowerOptions { weights, ..LowerOptions::default() };
        let traces = lower_all(&p.0, &options, &WeightStore::new()).unwrap();
        traces.into_iter().map(|t| t.ranks).collect::<Vec<_>>()
    };
    assert_eq!(ranks(&same, WeightMode::Embed), [[0, 1]]);
    assert_eq!(ranks(&differ, WeightMode::Embed), [[0], [1]]);
    // Where weights are inputs, their content is nobody's business.
    assert_eq!(ranks(&differ, WeightMode::Inputs), [[0, 1]]);
}

#[test]
fn weights_as_inputs_have_the_rank_that_their_product_needs() {
    let folder = tempfile::tempdir().unwrap();
    let p = sharded(folder.path(), &[0.0; 8], [0, 16]);
    let options = LowerOptions { weights: WeightMode::Inputs, ..LowerOptions::default() };
    let trace = lower(&p.0, 0, &options).unwrap();
    assert_eq!(kinds(&trace), ["matmul"]);
    let w = trace.layers().iter().find(|l| l.name == "w").unwrap();
    assert_eq!((w.call.kind(), w.dims.as_slice()), ("input", [1, 2, 2].as_slice()));
    assert!(trace.weights().is_empty());
}

#[test]
fn traces_survive_serialisation_and_are_checked_again() {
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[4, 2]);
    let kind = Collective::ReduceScatter { op: ReduceOp::Sum, dim: 0, accum: None };
    let y = p.add("rs", Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
    p.output(y);
    let trace = p.lower(0);
    let text = serde_json::to_string(&trace).unwrap();
    let back: NetworkTrace = serde_json::from_str(&text).unwrap();
    assert_eq!(back, trace);
    back.validate().unwrap();
    assert_eq!(back.structure_hash(), trace.structure_hash());
    // Another shape than the call makes.
    let wrong: NetworkTrace =
        serde_json::from_str(&text.replace("\"dims\":[2,2]", "\"dims\":[4,2]")).unwrap();
    assert!(wrong.validate().unwrap_err().to_string().contains("`rs`"));
    // A rank count that does not fit its list cannot even be read.
    assert!(
        serde_json::from_str::<NetworkTrace>(&text.replace("\"ranks\":[0,1]", "\"ranks\":[0,0]")).is_err()
    );
}

#[test]
fn an_output_that_is_an_input_is_copied() {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[4]);
    p.0.add_output("same", x).unwrap();
    p.0.add_output("again", x).unwrap();
    let one = Literal::full(TensorType::new(DType::F32, &[2]), Scalar::Float(1.0)).unwrap();
    let one = p.add("one", Op::Constant(one), &[]);
    p.0.add_output("ones", one).unwrap();
    let trace = p.lower(0);
    let tensors: std::collections::BTreeSet<_> = trace.outputs().iter().map(|o| o.tensor).collect();
    assert_eq!(tensors.len(), 3);
    if let Some(library) = support::library() {
        support::build(&library, &trace);
    }
}

#[test]
fn the_mesh_bounds_the_world() {
    assert_eq!(Mesh::new([("tp", 2)]).unwrap().world_size(), 2);
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[4]);
    let y = p.add("y", Op::Unary(Unary::Exp), &[x]);
    p.output(y);
    // Without a collective no communicator is needed.
    assert_eq!(p.lower(0).world_size(), 1);
}

/// Attention over 2 queries and 3 keys with a constant mask of bools.
fn masked(rows: &[u64], mask: &[u8], causal: bool) -> Program {
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[2, 4]);
    let k = p.input("k", DType::F32, &[3, 4]);
    let m = Literal::dense(TensorType::new(DType::Bool, rows), mask.to_vec()).unwrap();
    let m = p.add("m", Op::Constant(m), &[]);
    let op = Op::Attention { scale: Scalar::Float(1.0), causal, mask: true };
    let y = p.add("y", op, &[x, k, k, m]);
    p.output(y);
    p
}

#[test]
fn only_a_mask_that_may_hide_every_key_is_guarded() {
    let guarded = |p: &Program| kinds(&p.lower(0)).contains(&"reduce");
    assert!(!guarded(&masked(&[2, 3], &[0, 1, 0, 1, 0, 0], false)));
    assert!(guarded(&masked(&[2, 3], &[0, 1, 0, 0, 0, 0], false)));
    // The first query sees the first key only.
    assert!(guarded(&masked(&[2, 3], &[0, 1, 0, 1, 0, 0], true)));
    assert!(!guarded(&masked(&[2, 3], &[1, 0, 0, 0, 1, 0], true)));
    assert!(!guarded(&masked(&[1, 3], &[0, 0, 1], false)));
    assert!(guarded(&masked(&[1, 3], &[0, 0, 1], true)));
    let splat = |value| {
        let mut p = Program::new(&[("tp", 1)]);
        let x = p.input("x", DType::F32, &[1, 1, 2, 4]);
        let m = Literal::full(TensorType::new(DType::F32, &[1, 1, 2, 2]), Scalar::Float(value)).unwrap();
        let m = p.add("m", Op::Constant(m), &[]);
        let op = Op::Attention { scale: Scalar::Float(1.0), causal: false, mask: true };
        let y = p.add("y", op, &[x, x, x, m]);
        p.output(y);
        guarded(&p)
    };
    assert!(splat(f64::NEG_INFINITY) && !splat(-1e30));
    // The causal triangle alone always shows the first key.
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[1, 1, 2, 4]);
    let op = Op::Attention { scale: Scalar::Float(1.0), causal: true, mask: false };
    let y = p.add("y", op, &[x, x, x]);
    p.output(y);
    assert!(!guarded(&p));
}

#[test]
fn a_collective_without_elements_is_refused() {
    let program = |rows| {
        let mut p = Program::new(&[("tp", 2)]);
        let x = p.input("x", DType::F32, &[rows, 4]);
        let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
        let y = p.add("sum", Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
        p.output(y);
        lower(&p.0, 0, &LowerOptions::default())
    };
    let e = program(0).unwrap_err().to_string();
    assert!(e.contains("`sum`") && e.contains("no elements") && e.contains("f32[0,4]"), "{e}");
    program(1).unwrap();
}

/// An all-gather in groups of 2, and an all-reduce in groups of 4 and of 2.
#[test]
fn a_smaller_gather_is_refused_where_shapes_know_one_group_size() {
    let mut p = Program::new(&[("cp", 2), ("tp", 4)]);
    let x = p.input("x", DType::F32, &[8, 4]);
    let group = |axis| Group::axis(AxisId(axis));
    let gather = Op::Collective { kind: Collective::AllGather { dim: 0 }, group: group(0) };
    let y = p.add("gather", gather, &[x]);
    let sum = |axis| Op::Collective {
        kind: Collective::AllReduce { op: ReduceOp::Sum, accum: None },
        group: group(axis),
    };
    let mut q = Program(p.0.clone());
    let z = p.add("sum", sum(1), &[y]);
    p.output(z);
    let z = q.add("sum", sum(0), &[y]);
    q.output(z);
    let rtx = |minor| Some(Target { flavour: Flavour::TensorRtRtx, version: Version::new(1, minor, 1) });
    let lowered = |p: &Program, target| lower(&p.0, 5, &LowerOptions { target, ..LowerOptions::default() });
    let e = lowered(&p, rtx(7)).unwrap_err().to_string();
    for words in [
        "`gather` (all_gather)",
        "the 2 ranks [1, 5]",
        "all_reduce `sum` the 4 ranks [4, 5, 6, 7]",
        "all_to_all",
    ] {
        assert!(e.contains(words), "{e}");
    }
    assert!(!e.contains("`sum` (all_reduce)"), "{e}");
    lowered(&p, None).unwrap();
    lowered(&q, rtx(7)).unwrap();
}
