//! The evaluator: rank-dependent ops, groups, undefined values, errors, sharing between ranks.

use std::sync::atomic::{AtomicUsize, Ordering};

use shardweld_interp::{
    ConcreteError, Domain, EvalError, Named, Slot, Tensor, WeightSource, evaluate, run, run_observed,
};
use shardweld_ir::{
    Builder, Collective, DType, Graph, Mesh, Op, ReduceOp, Scalar, TensorType, Unary, Value, Weight,
    WeightId, WeightStore,
};

fn t(v: &[f32]) -> Tensor {
    Tensor::new(&[v.len()], v).unwrap()
}

/// Inputs `x` of consecutive numbers: rank r has r * n, r * n + 1, ..
fn counting(ranks: usize, n: usize) -> Vec<Named<Tensor>> {
    (0..ranks)
        .map(|r| {
            let values: Vec<f32> = (0..n).map(|i| (r * n + i) as f32).collect();
            Named::from([("x".to_owned(), t(&values))])
        })
        .collect()
}

fn program(axes: &[(&str, u32)], n: u64, build: impl FnOnce(&mut Builder, Value) -> Value) -> Graph {
    let mut b = Builder::new("test", Mesh::new(axes.iter().copied()).unwrap());
    let x = b.input("x", DType::F32, &[n]).unwrap();
    let y = build(&mut b, x);
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

fn outputs(graph: &Graph, inputs: &[Named<Tensor>]) -> Vec<Vec<f32>> {
    let all = run(graph, &WeightStore::new(), inputs).unwrap();
    all.iter().map(|named| named["y"].slice::<f32>().to_vec()).collect()
}

#[test]
fn groups_follow_mesh_axes() {
    let gather = |axes: &'static [&'static str]| {
        let g = program(&[("cp", 2), ("tp", 2)], 1, |b, x| b.all_gather(x, 0, axes).unwrap());
        outputs(&g, &counting(4, 1))
    };
    assert_eq!(gather(&["tp"]), [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]);
    assert_eq!(gather(&["cp"]), [[0.0, 2.0], [1.0, 3.0], [0.0, 2.0], [1.0, 3.0]]);
    assert_eq!(gather(&["tp", "cp"])[3], [0.0, 2.0, 1.0, 3.0]);
}

#[test]
fn own_slice_undoes_all_gather() {
    let g = program(&[("cp", 4)], 2, |b, x| {
        let all = b.all_gather(x, 0, &["cp"]).unwrap();
        b.own_slice(all, 0, &["cp"]).unwrap()
    });
    let inputs = counting(4, 2);
    let got = outputs(&g, &inputs);
    for (rank, named) in inputs.iter().enumerate() {
        assert_eq!(got[rank], named["x"].slice::<f32>());
    }
}

#[test]
fn own_pad_and_sum_are_all_gather() {
    let g = program(&[("cp", 3)], 2, |b, x| {
        let group = b.group(&["cp"]).unwrap();
        let padded = b.op(Op::OwnPad { dim: 0, group, value: Scalar::Float(-0.0) }, &[x]).unwrap();
        b.all_reduce(padded.into(), ReduceOp::Sum, &["cp"]).unwrap()
    });
    assert_eq!(outputs(&g, &counting(3, 2)), vec![vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]; 3]);
}

#[test]
fn axis_select_and_group_rank_differ_by_rank() {
    let g = program(&[("cp", 2), ("tp", 2)], 1, |b, x| {
        let group = b.group(&["cp"]).unwrap();
        let rank = b.op(Op::GroupRank { group }, &[]).unwrap();
        let position = b.cast(rank.into(), DType::F32).unwrap();
        let position = b.reshape(position, &[1]).unwrap();
        let axis = b.graph().mesh().axis("tp").unwrap();
        b.op(Op::AxisSelect { axis }, &[x, position]).unwrap().into()
    });
    assert_eq!(outputs(&g, &counting(4, 1)), [[0.0], [0.0], [2.0], [1.0]]);
}

fn rooted(read_off_root: bool) -> Graph {
    let mut b = Builder::new("rooted", Mesh::new([("cp", 2)]).unwrap());
    let x = b.input("x", DType::F32, &[1]).unwrap();
    let kind = Collective::Reduce { op: ReduceOp::Sum, root: 1, accum: None };
    let sum = b.named("sum").collective(kind, x, &["cp"]).unwrap();
    let doubled = b.add(sum, sum).unwrap();
    let y = if read_off_root {
        doubled
    } else {
        b.collective(Collective::Broadcast { root: 1 }, doubled, &["cp"]).unwrap()
    };
    let mut graph = b.graph().clone();
    graph.add_output("y", y).unwrap();
    graph
}

#[test]
fn undefined_values_may_be_computed_with_but_not_seen() {
    assert_eq!(outputs(&rooted(false), &counting(2, 1)), [[2.0], [2.0]]);
    let error = run(&rooted(true), &WeightStore::new(), &counting(2, 1)).unwrap_err();
    match error {
        EvalError::Undefined { user, rank, origin } => {
            assert_eq!((user.as_str(), rank, origin.as_str()), ("output y", 0, "sum"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_collective_that_needs_an_undefined_operand_is_an_error() {
    let mut graph = rooted(true);
    let y = graph.outputs()[0].value;
    let group = graph.mesh().world_group();
    let kind = Collective::AllGather { dim: 0 };
    graph.add("gathered", Op::Collective { kind, group }, &[y]).unwrap();
    let error = run(&graph, &WeightStore::new(), &counting(2, 1)).unwrap_err();
    assert!(matches!(&error, EvalError::Undefined { user, rank: 0, .. } if user == "gathered"), "{error}");
}

#[test]
fn inputs_are_checked() {
    let g = program(&[("cp", 2)], 2, |b, x| b.neg(x).unwrap());
    let of = |inputs: &[Named<Tensor>]| run(&g, &WeightStore::new(), inputs).unwrap_err();
    assert!(matches!(of(&counting(3, 2)), EvalError::Ranks { found: 3, expected: 2, .. }));
    let mut missing = counting(2, 2);
    missing[1] = Named::from([("other".to_owned(), t(&[0.0]))]);
    let text = of(&missing).to_string();
    assert!(text.contains("rank 1 has no input `x`") && text.contains("other"), "{text}");
    let mut wrong = counting(2, 2);
    wrong[1].insert("x".to_owned(), t(&[1.0, 2.0, 3.0]));
    let text = of(&wrong).to_string();
    assert!(text.contains("rank 1") && text.contains("f32[3]") && text.contains("f32[2]"), "{text}");
}

#[test]
fn errors_name_node_and_rank() {
    let mut b = Builder::new("gather", Mesh::new([("cp", 2)]).unwrap());
    let x = b.input("x", DType::F32, &[2]).unwrap();
    let i = b.input("i", DType::I64, &[1]).unwrap();
    let y = b.named("pick").gather(x, i, shardweld_ir::GatherMode::Take, 0).unwrap();
    b.output("y", y).unwrap();
    let mut inputs = counting(2, 2);
    for (rank, named) in inputs.iter_mut().enumerate() {
        named.insert("i".to_owned(), Tensor::new(&[1], &[1 + rank as i64]).unwrap());
    }
    let text = run(&b.finish().unwrap(), &WeightStore::new(), &inputs).unwrap_err().to_string();
    assert!(text.contains("`pick`") && text.contains("rank 1") && text.contains("index 2"), "{text}");
}

struct Ones;
impl WeightSource for Ones {
    fn shard(&self, _: &Weight, _: usize) -> Result<Tensor, ConcreteError> {
        Ok(t(&[1.0, 1.0]))
    }
}

#[test]
fn a_weight_is_read_when_its_first_user_comes() {
    let mut b = Builder::new("weights", Mesh::new([("cp", 1)]).unwrap());
    let [first, second, third] = ["w1", "w2", "w3"].map(|w| b.weight(w, DType::F32, &[2]).unwrap());
    let x = b.input("x", DType::F32, &[2]).unwrap();
    let y = b.named("a").add(x, second).unwrap();
    let y = b.named("b").add(y, first).unwrap();
    b.output("y", y).unwrap();
    b.output("w", third).unwrap();
    let mut seen = Vec::new();
    let graph = b.finish().unwrap();
    let out = run_observed(&graph, &Ones, &counting(1, 2), &mut |o| seen.push(o.node.name.clone())).unwrap();
    assert_eq!(seen, ["x", "w2", "a", "w1", "b", "w3"]);
    assert_eq!(out[0]["y"].slice::<f32>(), [2.0, 3.0]);
    assert_eq!(out[0]["w"].slice::<f32>(), [1.0, 1.0]);
}

#[test]
fn absent_weights_are_named() {
    let mut b = Builder::new("weight", Mesh::new([("cp", 1)]).unwrap());
    let w = b.weight("layer.weight", DType::F32, &[2]).unwrap();
    b.output("y", w).unwrap();
    let graph = b.finish().unwrap();
    let text = run(&graph, &WeightStore::new(), &[Named::new()]).unwrap_err().to_string();
    assert!(text.contains("layer.weight"), "{text}");

    assert_eq!(run(&graph, &Ones, &[Named::new()]).unwrap()[0]["y"].slice::<f32>(), [1.0, 1.0]);
}

#[test]
fn the_observer_sees_every_node_in_program_order() {
    let g = program(&[("cp", 2)], 1, |b, x| {
        let n = b.neg(x).unwrap();
        b.abs(n).unwrap()
    });
    let mut seen = Vec::new();
    run_observed(&g, &WeightStore::new(), &counting(2, 1), &mut |o| {
        let Slot::Defined(v) = &o.results[0][1] else { panic!("undefined") };
        seen.push((o.node.name.clone(), v.slice::<f32>()[0]));
    })
    .unwrap();
    let expected = [("x", 1.0), ("neg", -1.0), ("abs", 1.0)];
    assert_eq!(seen, expected.map(|(n, v)| (n.to_owned(), v)));
}

/// A domain that counts: values are numbers, equal numbers are known to be the same.
#[derive(Default)]
struct Counting {
    local: AtomicUsize,
    collective: AtomicUsize,
}

impl Domain for Counting {
    type Value = u64;
    type Error = std::fmt::Error;
    fn ty(&self, _: &u64) -> TensorType {
        TensorType::new(DType::F32, &[1])
    }
    fn same(&self, a: &u64, b: &u64) -> bool {
        a == b
    }
    fn weight(&self, _: &Graph, _: WeightId, _: usize) -> Result<u64, Self::Error> {
        Err(std::fmt::Error)
    }
    fn local(&self, op: &Op, operands: &[&u64], _: &[TensorType]) -> Result<Vec<u64>, Self::Error> {
        self.local.fetch_add(1, Ordering::Relaxed);
        assert!(matches!(op, Op::Unary(Unary::Neg)));
        Ok(vec![operands[0] + 100])
    }
    fn collective(
        &self,
        _: Collective,
        operands: &[u64],
        _: &TensorType,
    ) -> Result<Vec<Option<u64>>, Self::Error> {
        self.collective.fetch_add(1, Ordering::Relaxed);
        Ok(vec![Some(operands.iter().sum()); operands.len()])
    }
}

#[test]
fn ranks_with_the_same_operands_share_one_computation() {
    let g = program(&[("cp", 2), ("tp", 2)], 1, |b, x| {
        let n = b.neg(x).unwrap();
        b.all_reduce(n, ReduceOp::Max, &["tp"]).unwrap()
    });
    let run = |values: [u64; 4]| {
        let domain = Counting::default();
        let inputs: Vec<Named<u64>> = values.iter().map(|&v| Named::from([("x".to_owned(), v)])).collect();
        let out = evaluate(&g, &domain, &inputs, &mut |_| {}).unwrap();
        let out: Vec<u64> = out.iter().map(|n| n["y"]).collect();
        (out, domain.local.into_inner(), domain.collective.into_inner())
    };
    assert_eq!(run([1, 1, 1, 1]), (vec![202; 4], 1, 1));
    assert_eq!(run([1, 2, 1, 2]), (vec![203; 4], 2, 1));
    assert_eq!(run([1, 1, 2, 2]), (vec![202, 202, 204, 204], 2, 2));
    assert_eq!(run([1, 2, 3, 4]), (vec![203, 203, 207, 207], 4, 2));
}
