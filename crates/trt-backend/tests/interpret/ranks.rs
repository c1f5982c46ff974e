//! Several ranks: what collectives move, and traces that do not belong together.

use shardweld_interp::{Named, Tensor};
use shardweld_ir::{DType, ReduceOp, WeightStore};
use shardweld_trt::interpret::{InterpretError, interpret, interpret_ranks};
use shardweld_trt::lower::RankTrace;
use shardweld_trt::trace::{
    Call, CollectiveKind, DistCollective, NetworkTrace, TensorId, TraceBuilder, UnaryOperation,
};

use crate::network::{f32s, floats, layer, tampered};

/// A collective to be: kind, ranks, world size.
type Step<'a> = (CollectiveKind, &'a [u32]);

fn dist(kind: CollectiveKind, ranks: &[u32], world: u32) -> DistCollective {
    let reduce = kind.reduces().then_some(ReduceOp::Sum);
    let root = kind.is_rooted().then(|| ranks[0]);
    DistCollective::new(kind, reduce, root, ranks.to_vec(), world).unwrap()
}

fn collect(
    b: &mut TraceBuilder,
    name: &str,
    input: TensorId,
    kind: CollectiveKind,
    ranks: &[u32],
    world: u32,
) -> TensorId {
    let collective = dist(kind, ranks, world);
    b.add(name, &[name.to_owned()], Call::Collective { input, collective }).unwrap()
}

/// `x` through the steps, one after another, to `y`.
fn chain(world: u32, x: &[u64], steps: &[Step<'_>]) -> NetworkTrace {
    let mut b = TraceBuilder::new("test", world);
    let mut t = b.input("x", DType::F32, x).unwrap();
    for (kind, ranks) in steps {
        t = collect(&mut b, kind.name(), t, *kind, ranks, world);
    }
    b.output("y", t).unwrap();
    b.finish().unwrap()
}

fn run(traces: &[&NetworkTrace], inputs: &[Tensor]) -> Result<Vec<Tensor>, InterpretError> {
    let inputs: Vec<Named<Tensor>> =
        inputs.iter().map(|t| Named::from([("x".to_owned(), t.clone())])).collect();
    let outputs = interpret(traces, &WeightStore::new(), &inputs)?;
    Ok(outputs.into_iter().map(|mut o| o.remove("y").unwrap()).collect())
}

#[test]
fn groups_are_ordered() {
    let inputs = [f32s(&[2], &[1.0, 2.0]), f32s(&[2], &[30.0, 40.0])];
    let of = |kind, ranks: &[u32]| -> Vec<Vec<f32>> {
        run(&[&chain(2, &[2], &[(kind, ranks)])], &inputs).unwrap().iter().map(floats).collect()
    };
    use CollectiveKind as K;
    assert_eq!(of(K::AllReduce, &[0, 1]), [[31.0, 42.0], [31.0, 42.0]]);
    assert_eq!(of(K::AllGather, &[0, 1]), [[1.0, 2.0, 30.0, 40.0], [1.0, 2.0, 30.0, 40.0]]);
    assert_eq!(of(K::AllGather, &[1, 0])[0], [30.0, 40.0, 1.0, 2.0]);
    assert_eq!(of(K::ReduceScatter, &[0, 1]), [[31.0], [42.0]]);
    assert_eq!(of(K::ReduceScatter, &[1, 0]), [[42.0], [31.0]]);
    assert_eq!(of(K::AllToAll, &[0, 1]), [[1.0, 30.0], [2.0, 40.0]]);
    assert_eq!(of(K::AllToAll, &[1, 0]), [[40.0, 2.0], [30.0, 1.0]]);
    assert_eq!(of(K::Broadcast, &[1, 0]), [[30.0, 40.0], [30.0, 40.0]]);
    assert_eq!(of(K::Scatter, &[1, 0]), [[40.0], [30.0]]);
}

#[test]
fn rooted_results_are_undefined_off_root() {
    use CollectiveKind as K;
    let inputs = [f32s(&[1], &[1.0]), f32s(&[1], &[2.0])];
    for kind in [K::Reduce, K::Gather] {
        let error = run(&[&chain(2, &[1], &[(kind, &[1, 0])])], &inputs).unwrap_err();
        match error {
            InterpretError::Undefined { user, rank: 0, origin } => {
                assert_eq!((user.as_str(), origin.as_str()), ("output y", kind.name()));
            }
            other => panic!("{other}"),
        }
        // A broadcast from the root does not look at what the others hold.
        let sizes = if kind == K::Gather { vec![1.0, 2.0] } else { vec![3.0] };
        let both = run(&[&chain(2, &[1], &[(kind, &[0, 1]), (K::Broadcast, &[0, 1])])], &inputs).unwrap();
        assert_eq!(both.iter().map(floats).collect::<Vec<_>>(), [sizes.clone(), sizes]);
        let error =
            run(&[&chain(2, &[1], &[(kind, &[0, 1]), (K::AllReduce, &[0, 1])])], &inputs).unwrap_err();
        assert!(matches!(error, InterpretError::Undefined { rank: 1, .. }), "{error}");
    }
}

#[test]
fn subgroups_run_side_by_side() {
    use CollectiveKind as K;
    let inputs: Vec<Tensor> = (0..4).map(|r| f32s(&[1], &[10f32.powi(r)])).collect();
    // Rank r of a 2 x 2 mesh: first with its row, then with its column.
    let traces: Vec<NetworkTrace> = (0..4u32)
        .map(|r| {
            let (row, column) = ([r / 2 * 2, r / 2 * 2 + 1], [r % 2, r % 2 + 2]);
            chain(4, &[1], &[(K::AllReduce, &row), (K::AllGather, &column)])
        })
        .collect();
    let out = run(&traces.iter().collect::<Vec<_>>(), &inputs).unwrap();
    for y in out {
        assert_eq!(floats(&y), [11.0, 1100.0]);
    }
}

#[test]
fn ranks_with_the_same_operands_share_a_result() {
    let mut b = TraceBuilder::new("test", 1);
    let x = b.input("x", DType::F32, &[1]).unwrap();
    let y = b.add("neg", &[], Call::Unary { input: x, op: UnaryOperation::Neg }).unwrap();
    b.output("y", y).unwrap();
    let trace = b.finish().unwrap();
    let (x, other) = (f32s(&[1], &[1.0]), f32s(&[1], &[1.0]));
    let y = run(&[&trace], &[x.clone(), other, x]).unwrap();
    assert!(y[0].same(&y[2]));
    assert!(!y[0].same(&y[1]));
    assert_eq!(floats(&y[1]), [-1.0]);
}

#[track_caller]
fn mismatch(traces: &[&NetworkTrace], words: &[&str]) {
    let inputs = vec![f32s(&[2], &[0.0; 2]); traces.len()];
    match run(traces, &inputs) {
        Err(e @ InterpretError::Mismatch { .. }) => {
            let text = e.to_string();
            assert!(words.iter().all(|w| text.contains(w)), "{text}");
        }
        other => panic!("expected a mismatch, got {other:?}"),
    }
}

#[test]
fn collectives_in_another_order_on_one_rank() {
    use CollectiveKind as K;
    let a = chain(2, &[2], &[(K::AllReduce, &[0, 1]), (K::Broadcast, &[0, 1])]);
    let b = chain(2, &[2], &[(K::Broadcast, &[0, 1]), (K::AllReduce, &[0, 1])]);
    mismatch(&[&a, &b], &["`all_reduce`", "`broadcast`", "rank 0", "rank 1"]);
}

#[test]
fn collectives_that_differ_in_group_order_shape_or_source() {
    use CollectiveKind as K;
    let gather = chain(2, &[2], &[(K::AllGather, &[0, 1])]);
    mismatch(&[&gather, &chain(2, &[2], &[(K::AllGather, &[1, 0])])], &["[0, 1]", "[1, 0]"]);
    let wider = tampered(&gather, |t| {
        layer(t, "x")["dims"] = serde_json::json!([2, 1]);
        layer(t, "all_gather")["dims"] = serde_json::json!([4, 1]);
    });
    let inputs = [f32s(&[2], &[0.0; 2]), f32s(&[2, 1], &[0.0; 2])];
    assert!(matches!(run(&[&gather, &wider], &inputs), Err(InterpretError::Mismatch { .. })));
    let other = tampered(&gather, |t| layer(t, "all_gather")["sources"] = serde_json::json!(["k"]));
    mismatch(&[&gather, &other], &["of all_gather", "of k"]);
}

#[test]
fn a_rank_that_ends_early_or_waits_in_a_circle() {
    use CollectiveKind as K;
    let two = chain(2, &[2], &[(K::AllReduce, &[0, 1]), (K::Broadcast, &[0, 1])]);
    let one = chain(2, &[2], &[(K::AllReduce, &[0, 1])]);
    mismatch(&[&two, &one], &["`broadcast`", "rank 1 has ended"]);
    let waits = |first: &[u32], then: &[u32]| chain(3, &[2], &[(K::AllReduce, first), (K::AllReduce, then)]);
    let circle = [waits(&[0, 1], &[2, 0]), waits(&[1, 2], &[0, 1]), waits(&[2, 0], &[1, 2])];
    mismatch(&circle.iter().collect::<Vec<_>>(), &["[0, 1]", "[1, 2]"]);
}

#[test]
fn traces_and_ranks_that_do_not_fit() {
    use CollectiveKind as K;
    let trace = chain(2, &[2], &[(K::AllReduce, &[0, 1])]);
    let x = f32s(&[2], &[0.0; 2]);
    let refused = |traces: &[&NetworkTrace], n: usize| match run(traces, &vec![x.clone(); n]) {
        Err(InterpretError::Refused(r)) => r.rule,
        other => panic!("expected a refusal, got {other:?}"),
    };
    assert!(refused(&[&trace], 3).contains("communicator of 2 ranks"));
    let subgroup = chain(3, &[2], &[(K::AllReduce, &[0, 1])]);
    assert!(refused(&[&subgroup], 3).contains("rank 2 issues it but is not in its group"));
    assert!(matches!(
        run(&[&trace; 3], &[x.clone(), x.clone()]),
        Err(InterpretError::Traces { traces: 3, ranks: 2 })
    ));
    let error = interpret(&[&trace], &WeightStore::new(), &[Named::new(), Named::new()]).unwrap_err();
    assert!(matches!(error, InterpretError::MissingInput { rank: 0, .. }), "{error}");
    let error = run(&[&trace], &[x, f32s(&[1, 2], &[0.0; 2])]).unwrap_err();
    assert!(matches!(error, InterpretError::InputType { rank: 1, .. }), "{error}");
}

#[test]
fn every_rank_has_one_trace() {
    let trace = chain(2, &[1], &[(CollectiveKind::AllReduce, &[0, 1])]);
    let run = |ranks: &[&[u32]]| {
        let traces: Vec<RankTrace> =
            ranks.iter().map(|r| RankTrace { ranks: r.to_vec(), trace: trace.clone() }).collect();
        let x = Named::from([("x".to_owned(), f32s(&[1], &[1.5]))]);
        interpret_ranks(&traces, &WeightStore::new(), &[x.clone(), x])
    };
    for ranks in [&[&[0u32, 1] as &[u32]] as &[&[u32]], &[&[1], &[0]]] {
        assert_eq!(floats(&run(ranks).unwrap()[1]["y"]), [3.0]);
    }
    for ranks in [&[&[0u32] as &[u32]] as &[&[u32]], &[&[0, 1], &[1]], &[&[0, 2]]] {
        assert!(matches!(run(ranks), Err(InterpretError::Traces { ranks: 2, .. })), "{ranks:?}");
    }
}
