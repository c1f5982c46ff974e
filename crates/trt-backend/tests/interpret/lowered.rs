//! Lowered programs against the reference interpreter: node by node on the reference's own operands, and as a whole.

use std::collections::BTreeSet;

use shardweld_interp::{Named, Slot, Tensor, distance, run, run_observed};
use shardweld_ir::testing::{ProgramOptions, Rng, random_program};
use shardweld_ir::{Binary, DType, Graph, Node, NormKind, Op, Unary, Value, WeightStore};
use shardweld_trt::interpret::interpret_ranks;
use shardweld_trt::lower::{LowerError, LowerOptions, RanksError, lower_all};

/// Random inputs of a program for every rank. Floats are exact in every type.
fn inputs(graph: &Graph, seed: u64) -> Vec<Named<Tensor>> {
    let mut rng = Rng::new(seed ^ 0x1234_5678);
    (0..graph.mesh().world_size())
        .map(|_| {
            let one = |&id: &shardweld_ir::NodeId| {
                let node = graph.node(id);
                let Op::Input { name } = &node.op else { panic!("an input") };
                let shape: Vec<usize> =
                    node.results[0].shape.as_static().unwrap().iter().map(|&d| d as usize).collect();
                let n = shape.iter().product();
                let dtype = node.results[0].dtype;
                let numbers: Vec<f32> = (0..n)
                    .map(|_| {
                        let x = rng.small_float() as f32;
                        if dtype.is_float() { x } else { x.round() }
                    })
                    .collect();
                let x = Tensor::new(&shape, &numbers).unwrap();
                (name.clone(), shardweld_interp::cast::cast(&x, dtype).unwrap())
            };
            graph.inputs().iter().map(one).collect()
        })
        .collect()
}

/// Outputs of the lowered program; `None` if TensorRT cannot do one of its nodes.
fn lowered(graph: &Graph, inputs: &[Named<Tensor>]) -> Option<Vec<Named<Tensor>>> {
    let weights = WeightStore::new();
    let traces = match lower_all(graph, &LowerOptions::default(), &weights) {
        Ok(t) => t,
        Err(RanksError::Lower { source: LowerError::Refused(_), .. }) => return None,
        Err(e) => panic!("{e}"),
    };
    Some(interpret_ranks(&traces, &weights, inputs).unwrap_or_else(|e| panic!("{e}\n{graph:?}")))
}

/// Bits are the same, all NaN taken as one.
fn equal(a: &Tensor, b: &Tensor) -> bool {
    if a.ty() != b.ty() {
        return false;
    }
    if !a.dtype().is_float() {
        return a.bytes() == b.bytes();
    }
    let wide = |x: &Tensor| shardweld_interp::cast::cast(x, DType::F64).unwrap();
    let (x, y) = (wide(a), wide(b));
    x.slice::<f64>()
        .iter()
        .zip(y.slice::<f64>())
        .all(|(x, y)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan())
}

/// Units in the last place of the larger operand of f32, f16 or bf16 that a re-associated or decomposed op may be off by.
const CLOSE_ULPS: f64 = 16.0;

/// Whether all elements are within a few units in the last place, relative to the largest element.
fn close(a: &Tensor, b: &Tensor) -> bool {
    if a.ty() != b.ty() {
        return false;
    }
    let unit = match a.dtype() {
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => return equal(a, b),
    };
    let wide = |x: &Tensor| shardweld_interp::cast::cast(x, DType::F64).unwrap().slice::<f64>().to_vec();
    let (x, y) = (wide(a), wide(b));
    let largest = y.iter().filter(|v| v.is_finite()).fold(0f64, |m, v| m.max(v.abs()));
    x.iter().zip(&y).all(|(x, y)| {
        x == y
            || x.is_nan() && y.is_nan()
            || (x - y).abs() <= CLOSE_ULPS * unit * largest.max(f64::MIN_POSITIVE)
    })
}

/// Whether lowering may change the bits of an op: its sums are ordered otherwise, or it becomes several layers.
fn may_differ(node: &Node) -> bool {
    match &node.op {
        Op::MatMul { .. }
        | Op::Softmax { .. }
        | Op::Normalize { .. }
        | Op::Attention { .. }
        | Op::Conv { .. } => true,
        Op::Unary(u) => matches!(
            u,
            Unary::Silu
                | Unary::Gelu
                | Unary::GeluTanh
                | Unary::Softplus
                | Unary::Exp2
                | Unary::Expm1
                | Unary::Log1p
                | Unary::Log2
                | Unary::Rsqrt
                | Unary::Erf
        ),
        Op::Binary(b) | Op::BinaryScalar { op: b, .. } => {
            matches!(b, Binary::Pow | Binary::Rem | Binary::Fmod)
        }
        Op::Reduce { .. } => true,
        _ => false,
    }
}

/// The program that is one node of another, its operands inputs `a0`, `a1`, ..
fn alone(graph: &Graph, node: &Node) -> Graph {
    let mut g = Graph::new(node.name.clone(), graph.mesh().clone());
    let mut operands: Vec<Value> = Vec::new();
    for (i, &v) in node.operands.iter().enumerate() {
        operands.push(g.add_input(&format!("a{i}"), graph.ty(v).clone()).unwrap().into());
    }
    let id = g.add(&node.name, node.op.clone(), &operands).unwrap();
    for r in 0..node.results.len() {
        g.add_output(&format!("r{r}"), Value { node: id, result: r as u32 }).unwrap();
    }
    g
}

#[test]
fn every_node_of_random_programs_computes_what_it_means() {
    let (mut checked, mut refused) = (BTreeSet::new(), 0);
    for seed in 0..120u64 {
        let graph = random_program(seed, &ProgramOptions { max_ranks: 4, ..ProgramOptions::default() });
        let mut cases = Vec::new();
        let mut values: std::collections::HashMap<Value, Vec<Slot<Tensor>>> = Default::default();
        run_observed(&graph, &WeightStore::new(), &inputs(&graph, seed), &mut |seen| {
            for (r, slots) in seen.results.iter().enumerate() {
                values.insert(Value { node: seen.id, result: r as u32 }, slots.clone());
            }
            cases.push(seen.id);
        })
        .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for id in cases {
            let node = graph.node(id);
            if matches!(node.op, Op::Input { .. }) {
                continue;
            }
            let defined = |v: &Value, rank: usize| match &values[v][rank] {
                Slot::Defined(t) => Some(t.clone()),
                Slot::Undefined { .. } => None,
            };
            let ranks = graph.mesh().world_size() as usize;
            let given: Option<Vec<Named<Tensor>>> = (0..ranks)
                .map(|rank| {
                    node.operands
                        .iter()
                        .enumerate()
                        .map(|(i, v)| Some((format!("a{i}"), defined(v, rank)?)))
                        .collect()
                })
                .collect();
            let results: Vec<Value> =
                (0..node.results.len()).map(|r| Value { node: id, result: r as u32 }).collect();
            let whole = results.iter().all(|v| (0..ranks).all(|rank| defined(v, rank).is_some()));
            let (Some(given), true) = (given, whole) else { continue };
            let Some(out) = lowered(&alone(&graph, node), &given) else {
                refused += 1;
                continue;
            };
            for (rank, out) in out.iter().enumerate() {
                for (r, v) in results.iter().enumerate() {
                    let (found, expected) = (&out[&format!("r{r}")], defined(v, rank).unwrap());
                    let ok = if may_differ(node) { close(found, &expected) } else { equal(found, &expected) };
                    assert!(
                        ok,
                        "seed {seed}, `{}` ({:?}) on rank {rank}: {:?}\n{found:?}\n{expected:?}\n{given:?}",
                        node.name,
                        node.op,
                        distance(found, &expected)
                    );
                }
            }
            checked.insert(node.op.name());
        }
    }
    println!("{refused} nodes refused; checked {checked:?}");
    for op in [
        "all_gather",
        "all_reduce",
        "all_to_all",
        "reduce_scatter",
        "broadcast_from",
        "scatter_from",
        "own_slice",
        "own_pad",
        "axis_select",
        "group_rank",
        "matmul",
        "attention",
        "normalize",
        "conv",
        "softmax",
        "gather",
        "pad",
        "update_slice",
        "slice",
        "split",
        "concat",
        "transpose",
        "reshape",
        "broadcast",
        "reduce",
        "select",
        "cast",
        "iota",
    ] {
        assert!(checked.contains(op), "no program had a {op} that could be lowered");
    }
}

#[test]
fn whole_programs_keep_their_bits() {
    let options = ProgramOptions { max_ranks: 8, heavy_ops: false, nodes: 24, ..ProgramOptions::default() };
    let (mut compared, mut refused) = (0, 0);
    for seed in 1000..1200u64 {
        let graph = random_program(seed, &options);
        if graph.nodes().any(|(_, n)| may_differ(n)) {
            continue;
        }
        let given = inputs(&graph, seed);
        let expected = run(&graph, &WeightStore::new(), &given).unwrap();
        let Some(found) = lowered(&graph, &given) else {
            refused += 1;
            continue;
        };
        compared += 1;
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len());
            for (name, e) in expected {
                assert!(
                    equal(&found[name], e),
                    "seed {seed}, rank {rank}, `{name}`: {:?}",
                    distance(&found[name], e)
                );
            }
        }
    }
    println!("{compared} programs compared, {refused} refused");
    assert!(compared >= 20, "{compared} programs are too few to say anything");
}

/// What the tests above rest on: a wrong lowering would be seen.
#[test]
fn a_trace_of_another_program_is_seen() {
    let x = Tensor::new(&[1, 4], &[1.0f32, 2.0, 3.0, 5.0]).unwrap();
    let norm = |kind| {
        let mut g = Graph::new("norm", shardweld_ir::Mesh::new([("tp", 1)]).unwrap());
        let ty = shardweld_ir::TensorType::new(DType::F32, &[1, 4]);
        let a: Value = g.add_input("a", ty).unwrap().into();
        let epsilon = shardweld_ir::Scalar::Float(1e-5);
        let op = Op::Normalize { kind, trailing: 1, epsilon, scale: false, bias: false };
        let y = g.add("y", op, &[a]).unwrap();
        g.add_output("y", y).unwrap();
        g
    };
    let given = [Named::from([("a".to_owned(), x)])];
    let expected = run(&norm(NormKind::Rms), &WeightStore::new(), &given).unwrap();
    assert!(close(&lowered(&norm(NormKind::Rms), &given).unwrap()[0]["y"], &expected[0]["y"]));
    assert!(!close(&lowered(&norm(NormKind::Layer), &given).unwrap()[0]["y"], &expected[0]["y"]));
}
