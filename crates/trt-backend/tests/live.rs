//! The real builder on small programs: every op of the IR becomes an engine.
#![cfg(feature = "live")]

mod support;

use shardweld_ir::store::WeightStore;
use shardweld_ir::{
    AxisId, Binary, Collective, DType, GatherMode, Group, Literal, NormKind, Op, ReduceKind, ReduceOp,
    Scalar, Shape, TensorType, Unary,
};
use shardweld_trt::live::LiveSink;
use shardweld_trt::lower::{LowerOptions, lower};
use shardweld_trt::placement::Placement;
use shardweld_trt::sink::Sink;
use shardweld_trt::target::Target;
use support::{Program, build, library};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

#[test]
fn every_unary_of_every_float_builds() {
    let Some(lib) = library() else { return };
    for dtype in FLOATS {
        let mut p = Program::new(&[("tp", 1)]);
        let x = p.input("x", dtype, &[4, 8]);
        for &u in Unary::ALL {
            if u == Unary::Not {
                continue;
            }
            let y = p.add(u.name(), Op::Unary(u), &[x]);
            p.output(y);
        }
        build(&lib, &p.lower(0));
    }
}

#[test]
fn integer_and_bool_unaries_build() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("tp", 1)]);
    for (dtype, ops) in [
        (DType::I32, vec![Unary::Neg, Unary::Abs, Unary::Sign, Unary::Not, Unary::Relu]),
        (DType::I64, vec![Unary::Neg, Unary::Abs, Unary::Sign, Unary::Not, Unary::Relu]),
        (DType::Bool, vec![Unary::Not]),
    ] {
        let x = p.input(&format!("x_{dtype}"), dtype, &[4, 8]);
        for u in ops {
            let y = p.add(&format!("{}_{dtype}", u.name()), Op::Unary(u), &[x]);
            p.output(y);
        }
    }
    build(&lib, &p.lower(0));
}

#[test]
fn every_binary_builds_or_is_refused_by_name() {
    let Some(lib) = library() else { return };
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::I64, DType::Bool] {
        let mut p = Program::new(&[("tp", 1)]);
        let a = p.input("a", dtype, &[4, 8]);
        let b = p.input("b", dtype, &[1, 8]);
        for &op in Binary::ALL {
            let refused = matches!(op, Binary::Atan2)
                || (dtype.is_int() && (op == Binary::Pow || op.is_bitwise()))
                || (dtype == DType::Bool && matches!(op, Binary::Pow));
            if refused {
                continue;
            }
            // The shape rules say what a dtype allows.
            if let Ok(y) = p.0.add(op.name(), Op::Binary(op), &[a.into(), b.into()]) {
                p.output(y);
            }
        }
        build(&lib, &p.lower(0));
    }
}

#[test]
fn scalars_of_every_kind_build() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("tp", 1)]);
    for dtype in FLOATS {
        let x = p.input(&format!("x_{dtype}"), dtype, &[4, 8]);
        for (i, e) in [2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.0, 1.7].into_iter().enumerate() {
            let op = Op::BinaryScalar { op: Binary::Pow, scalar: Scalar::Float(e), scalar_first: false };
            let y = p.add(&format!("pow_{dtype}_{i}"), op, &[x]);
            p.output(y);
        }
        for (i, (op, first)) in [
            (Binary::Add, false),
            (Binary::Sub, true),
            (Binary::Div, true),
            (Binary::Pow, true),
            (Binary::Lt, false),
        ]
        .into_iter()
        .enumerate()
        {
            let op = Op::BinaryScalar { op, scalar: Scalar::Float(0.1), scalar_first: first };
            let y = p.add(&format!("scalar_{dtype}_{i}"), op, &[x]);
            p.output(y);
        }
    }
    let i = p.input("i", DType::I64, &[4]);
    let op = Op::BinaryScalar { op: Binary::Rem, scalar: Scalar::Int(3), scalar_first: false };
    let y = p.add("rem_i", op, &[i]);
    p.output(y);
    build(&lib, &p.lower(0));
}

#[test]
fn casts_selects_and_gathers_build() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("tp", 1)]);
    let x = p.input("x", DType::F32, &[4, 8]);
    for to in [DType::F16, DType::BF16, DType::I32, DType::I64, DType::Bool] {
        let y = p.add(&format!("to_{to}"), Op::Cast { to }, &[x]);
        p.output(y);
    }
    let c = p.input("c", DType::Bool, &[4, 1]);
    let one = Literal::full(TensorType::new(DType::F32, &[4, 8]), Scalar::Float(1.0)).unwrap();
    let one = p.add("ones", Op::Constant(one), &[]);
    let s = p.add("select", Op::Select, &[c, x, one]);
    p.output(s);
    let narrow = p.input("narrow", DType::F32, &[1, 1]);
    let s = p.add("select_all_narrow", Op::Select, &[c, narrow, narrow]);
    p.output(s);
    let index = p.input("index", DType::I64, &[2, 3]);
    let g = p.add("take", Op::Gather { mode: GatherMode::Take, dim: 1 }, &[x, index]);
    p.output(g);
    let g = p.add("elements", Op::Gather { mode: GatherMode::Elements, dim: 0 }, &[x, index]);
    p.output(g);
    build(&lib, &p.lower(0));
}

#[test]
fn layout_ops_build() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::BF16, &[2, 6, 8]);
    let tp = Group::axis(AxisId(0));
    let ops = [
        Op::Reshape { shape: Shape::of(&[12, 8]) },
        Op::Transpose { perm: vec![2, 0, 1] },
        Op::Slice { dim: 1, start: 1, limit: 6, stride: 2 },
        Op::Slice { dim: 2, start: 2, limit: 5, stride: 1 },
        Op::Pad { dim: 2, low: 1, high: 2, value: Scalar::Float(-0.0) },
        Op::OwnSlice { dim: 1, group: tp.clone() },
        Op::OwnPad { dim: 0, group: tp, value: Scalar::Float(-0.0) },
        Op::Concat { dim: 0 },
    ];
    for (i, op) in ops.into_iter().enumerate() {
        let y = p.add(&format!("op{i}"), op, &[x]);
        p.output(y);
    }
    let both = p.add("both", Op::Concat { dim: 2 }, &[x, x]);
    p.output(both);
    let even = p.input("even", DType::BF16, &[2, 3, 8]);
    let y = p.add("interleave", Op::UpdateSlice { dim: 1, start: 1, stride: 2 }, &[x, even]);
    p.output(y);
    let y = p.add("head", Op::UpdateSlice { dim: 1, start: 0, stride: 1 }, &[x, even]);
    p.output(y);
    let row = p.input("row", DType::BF16, &[2, 1, 8]);
    let y = p.add("repeat", Op::Broadcast { shape: Shape::of(&[2, 6, 8]) }, &[row]);
    p.output(y);
    let iota = Op::Iota {
        dtype: DType::F32,
        shape: Shape::of(&[2, 5, 3]),
        dim: 1,
        first: Scalar::Float(0.5),
        step: Scalar::Float(0.25),
    };
    let y = p.add("iota", iota, &[]);
    p.output(y);
    let y = p.add("me", Op::GroupRank { group: Group::axis(AxisId(0)) }, &[]);
    p.output(y);
    build(&lib, &p.lower(1));
}

#[test]
fn products_reductions_norms_and_convolutions_build() {
    let Some(lib) = library() else { return };
    for dtype in FLOATS {
        let mut p = Program::new(&[("tp", 1)]);
        let x = p.input("x", dtype, &[2, 6, 8]);
        let w = p.input("w", dtype, &[5, 8]);
        let b = p.input("b", dtype, &[5]);
        let mm = |transpose_a, transpose_b| Op::MatMul { transpose_a, transpose_b };
        let y = p.add("linear", mm(false, true), &[x, w, b]);
        p.output(y);
        let t = p.add("xt", Op::Transpose { perm: vec![0, 2, 1] }, &[x]);
        let y = p.add("gram", mm(false, false), &[x, t]);
        p.output(y);
        for (i, kind) in
            [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min]
                .into_iter()
                .enumerate()
        {
            let op = Op::Reduce { kind, dims: vec![0, 2], keep_dims: i % 2 == 0 };
            let y = p.add(&format!("reduce{i}"), op, &[x]);
            p.output(y);
        }
        let y = p.add("softmax", Op::Softmax { dim: 1 }, &[x]);
        p.output(y);
        let s = p.input("s", dtype, &[8]);
        for kind in [NormKind::Layer, NormKind::Rms] {
            for affine in [false, true] {
                let op = Op::Normalize {
                    kind,
                    trailing: 1,
                    epsilon: Scalar::Float(1e-6),
                    scale: affine,
                    bias: affine,
                };
                let operands = if affine { vec![x, s, s] } else { vec![x] };
                let y = p.add(&format!("norm_{}_{affine}", kind.name()), op, &operands);
                p.output(y);
            }
        }
        let flat = p.input("flat", dtype, &[6, 8]);
        let op = Op::Normalize {
            kind: NormKind::Layer,
            trailing: 1,
            epsilon: Scalar::Float(1e-5),
            scale: false,
            bias: false,
        };
        let y = p.add("norm2d", op, &[flat]);
        p.output(y);
        for spatial in 1..=3usize {
            let dims: Vec<u64> = [1, 4].into_iter().chain(std::iter::repeat_n(9, spatial)).collect();
            let kernel: Vec<u64> = [6, 2].into_iter().chain(std::iter::repeat_n(3, spatial)).collect();
            let x = p.input(&format!("image{spatial}"), dtype, &dims);
            let k = Literal::full(TensorType::new(dtype, &kernel), Scalar::Float(0.5)).unwrap();
            let k = p.add(&format!("kernel{spatial}"), Op::Constant(k), &[]);
            let bias = Literal::full(TensorType::new(dtype, &[6]), Scalar::Float(0.5)).unwrap();
            let bias = p.add(&format!("bias{spatial}"), Op::Constant(bias), &[]);
            let op = Op::Conv {
                stride: vec![2; spatial],
                padding: vec![(1, 0); spatial],
                dilation: vec![1; spatial],
                groups: 2,
                bias: true,
            };
            let y = p.add(&format!("conv{spatial}"), op, &[x, k, bias]);
            p.output(y);
        }
        build(&lib, &p.lower(0));
    }
}

#[test]
fn attention_of_every_shape_builds() {
    let Some(lib) = library() else { return };
    for dtype in FLOATS {
        let mut p = Program::new(&[("tp", 1)]);
        let q = p.input("q", dtype, &[2, 3, 5, 16]);
        let k = p.input("k", dtype, &[2, 3, 7, 16]);
        let v = p.input("v", dtype, &[2, 3, 7, 16]);
        let wide = p.input("wide", dtype, &[2, 3, 7, 24]);
        let add = p.input("add", dtype, &[2, 1, 1, 7]);
        let keep = p.input("keep", DType::Bool, &[1, 1, 5, 7]);
        let op = |causal, mask| Op::Attention { scale: Scalar::Float(0.25), causal, mask };
        for (name, op, operands) in [
            ("plain", op(false, false), vec![q, k, v]),
            ("causal", op(true, false), vec![q, k, v]),
            ("additive", op(false, true), vec![q, k, v, add]),
            ("bool", op(false, true), vec![q, k, v, keep]),
            ("causal_bool", op(true, true), vec![q, k, v, keep]),
            ("causal_additive", op(true, true), vec![q, k, v, add]),
            ("wide", op(true, true), vec![q, k, wide, add]),
            ("wide_bool", op(false, true), vec![q, k, wide, keep]),
        ] {
            let y = p.add(name, op, &operands);
            p.output(y);
        }
        // A product with a number that something else uses too made the builder crash.
        let half = Op::BinaryScalar { op: Binary::Mul, scalar: Scalar::Float(0.5), scalar_first: false };
        let scaled = p.add("scaled", half, &[q]);
        let unscaled = Op::Attention { scale: Scalar::Float(1.0), causal: false, mask: false };
        let y = p.add("pre_scaled", unscaled, &[scaled, k, v]);
        p.output(y);
        p.output(scaled);
        let q3 = p.input("q3", dtype, &[3, 5, 16]);
        let y = p.add("three", op(false, false), &[q3, q3, q3]);
        p.output(y);
        build(&lib, &p.lower(0));
    }
}

#[test]
fn every_collective_along_every_dimension_is_found_in_the_engine() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("cp", 2), ("tp", 2)]);
    let x = p.input("x", DType::F32, &[4, 6, 8]);
    // A neighbour to fuse with.
    let x = p.add("act", Op::Unary(Unary::Tanh), &[x]);
    let group = Group::axis(AxisId(0));
    let mut kinds = vec![
        Collective::AllReduce { op: ReduceOp::Max, accum: None },
        Collective::Broadcast { root: 1 },
        Collective::Reduce { op: ReduceOp::Sum, root: 0, accum: None },
    ];
    for dim in 0..3 {
        kinds.extend([
            Collective::AllGather { dim },
            Collective::ReduceScatter { op: ReduceOp::Sum, dim, accum: None },
            Collective::Gather { dim, root: 1 },
            Collective::Scatter { dim, root: 1 },
        ]);
        kinds.extend((0..3).map(|concat_dim| Collective::AllToAll { split_dim: dim, concat_dim }));
    }
    let total = kinds.len();
    for (i, kind) in kinds.into_iter().enumerate() {
        let y = p.add(&format!("c{i} \"odd\" name"), Op::Collective { kind, group: group.clone() }, &[x]);
        let y = p.add(&format!("after{i}"), Op::Unary(Unary::Sin), &[y]);
        p.output(y);
    }
    let (_, report) = build(&lib, &p.lower(3));
    assert_eq!(report.collectives.len(), total);
    for c in &report.collectives {
        assert_eq!(c.ranks, [1, 3], "{c:?}");
        assert_eq!(c.placement == Placement::Standalone, c.kind.is_rooted(), "{c:?}");
    }
    report.require_sources(&shardweld_trt::placement::source_collectives(&p.0)).unwrap();
}

/// The builder renames a layer that has an output's name; its collective was then not found in the engine.
#[test]
fn a_collective_named_as_an_output_is_found_in_the_engine() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[4]);
    let x = p.add("act", Op::Unary(Unary::Tanh), &[x]);
    let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
    let y = p.add("y", Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
    p.0.add_output("y", y).unwrap();
    let (_, report) = build(&lib, &p.lower(0));
    report.require_sources(&shardweld_trt::placement::source_collectives(&p.0)).unwrap();
}

#[test]
fn two_builds_give_the_same_bytes() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("tp", 2)]);
    let x = p.input("x", DType::F32, &[4, 8]);
    let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
    let y = p.add("sum", Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
    p.output(y);
    let trace = p.lower(0);
    assert_eq!(build(&lib, &trace).0, build(&lib, &trace).0);
}

#[test]
fn what_the_builder_refuses_comes_with_its_own_words() {
    let Some(lib) = library() else { return };
    for (dtype, kind, words) in [
        (
            DType::BF16,
            Collective::Broadcast { root: 0 },
            "does not support BF16 asymmetric DistCollective ops",
        ),
        (DType::I64, Collective::Gather { dim: 0, root: 0 }, "toMyelinCommKind"),
    ] {
        let mut p = Program::new(&[("tp", 2)]);
        let x = p.input("x", dtype, &[4, 8]);
        let x = p.add("before", Op::Unary(Unary::Abs), &[x]);
        let y = p.add("spread", Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
        let y = p.add("after", Op::Unary(Unary::Neg), &[y]);
        p.output(y);
        // Lowered for no target in particular, so that it reaches the builder.
        let sink = LiveSink { library: &lib, compute_capability: Some(80), threads: 1, progress: None };
        let text = sink.replay(&p.lower(0), &WeightStore::new()).unwrap_err().to_string();
        assert!(text.contains("built no engine") && text.contains(words), "{text}");
        // The same in f32 is fine.
        let mut q = Program::new(&[("tp", 2)]);
        let x = q.input("x", DType::F32, &[4, 8]);
        let y = q.add("spread", Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
        q.output(y);
        build(&lib, &q.lower(0));
    }
}

/// Every kind in groups of 2 beside every kind in groups of 4, in both orders: the builder's verdict is the one that lowering
/// for this library gives, and comes with NVIDIA's own words about shapes.
#[test]
fn a_smaller_group_beside_a_larger_one_builds_or_is_refused_first() {
    let Some(lib) = library() else { return };
    let kinds = [
        Collective::AllReduce { op: ReduceOp::Sum, accum: None },
        Collective::AllGather { dim: 0 },
        Collective::ReduceScatter { op: ReduceOp::Sum, dim: 0, accum: None },
        Collective::AllToAll { split_dim: 0, concat_dim: 0 },
        Collective::Broadcast { root: 0 },
        Collective::Reduce { op: ReduceOp::Sum, root: 0, accum: None },
        Collective::Gather { dim: 0, root: 0 },
        Collective::Scatter { dim: 0, root: 0 },
    ];
    let target = Target { flavour: lib.flavour(), version: lib.version() };
    let sink = LiveSink { library: &lib, compute_capability: Some(80), threads: 1, progress: None };
    let mut wrong = Vec::new();
    for small in kinds {
        for large in kinds {
            for small_first in [true, false] {
                let mut p = Program::new(&[("cp", 2), ("tp", 4)]);
                let x = p.input("x", DType::F32, &[32, 4]);
                let small = ("small", Op::Collective { kind: small, group: Group::axis(AxisId(0)) });
                let large = ("large", Op::Collective { kind: large, group: Group::axis(AxisId(1)) });
                let (first, second) = if small_first { (small, large) } else { (large, small) };
                let what = format!(
                    "{} {:?}, {} {:?}",
                    first.0,
                    first.1.collective(),
                    second.0,
                    second.1.collective()
                );
                let y = p.add(first.0, first.1, &[x]);
                let y = p.add("between", Op::Unary(Unary::Neg), &[y]);
                let y = p.add(second.0, second.1, &[y]);
                p.output(y);
                let options = LowerOptions { target: Some(target), ..LowerOptions::default() };
                let refused = lower(&p.0, 0, &options).err().map(|e| e.to_string());
                let failed = sink.replay(&p.lower(0), &WeightStore::new()).err().map(|e| e.to_string());
                let agree = match (&refused, &failed) {
                    (None, None) => true,
                    (Some(ours), Some(theirs)) => {
                        ours.contains("`small`")
                            && ours.contains("`large`")
                            && theirs.contains("expected shape")
                    }
                    _ => false,
                };
                if !agree {
                    wrong.push(format!("{what}: lowering {refused:?}, builder {failed:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A collective with a root runs on its own, so that what is before and after it is compiled apart. Lowering does not count on
/// that: where the builder cuts a network is its own affair.
#[test]
fn lowering_is_stricter_about_group_sizes_where_a_rooted_collective_stands_between() {
    let Some(lib) = library() else { return };
    let mut p = Program::new(&[("cp", 2), ("tp", 4)]);
    let mut y = p.input("x", DType::F32, &[32, 4]);
    for (name, kind, axis) in [
        ("small", Collective::AllGather { dim: 0 }, 0),
        ("between", Collective::Broadcast { root: 0 }, 0),
        ("large", Collective::AllReduce { op: ReduceOp::Sum, accum: None }, 1),
    ] {
        y = p.add(name, Op::Collective { kind, group: Group::axis(AxisId(axis)) }, &[y]);
        y = p.add(&format!("{name}_neg"), Op::Unary(Unary::Neg), &[y]);
    }
    p.output(y);
    build(&lib, &p.lower(0));
    let target = Some(Target { flavour: lib.flavour(), version: lib.version() });
    let e = lower(&p.0, 0, &LowerOptions { target, ..LowerOptions::default() }).unwrap_err().to_string();
    assert!(e.contains("`small`") && e.contains("`large`"), "{e}");
}
