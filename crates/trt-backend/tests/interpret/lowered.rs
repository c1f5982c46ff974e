//! Lowered programs against the reference interpreter: node by node on the reference's own operands, and as a whole.

use std::collections::{BTreeMap, BTreeSet};

use shardweld_interp::{Named, Slot, Tensor, distance, run, run_observed};
use shardweld_ir::testing::{ProgramOptions, Rng, random_program};
use shardweld_ir::{
    Binary, DType, Graph, Mesh, Node, NormKind, Op, Scalar, TensorType, Unary, Value, WeightStore,
};
use shardweld_trt::interpret::interpret_ranks;
use shardweld_trt::lower::{LowerError, LowerOptions, RanksError, lower_all};

/// Random programs per test; `SHARDWELD_TEST_SEEDS` asks for more.
const SEEDS: u64 = 400;

fn seeds() -> u64 {
    std::env::var("SHARDWELD_TEST_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SEEDS)
}

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

/// Outputs of the lowered program; `None` if TensorRT cannot do one of its nodes, or a collective of it leads nowhere.
pub fn lowered(graph: &Graph, inputs: &[Named<Tensor>]) -> Option<Vec<Named<Tensor>>> {
    let weights = WeightStore::new();
    let traces = match lower_all(graph, &LowerOptions::default(), &weights) {
        Ok(t) => t,
        Err(RanksError::Lower { source: LowerError::Refused(_) | LowerError::Trace(_), .. }) => return None,
        Err(e) => panic!("{e}"),
    };
    Some(interpret_ranks(&traces, &weights, inputs).unwrap_or_else(|e| panic!("{e}\n{graph:?}")))
}

/// Bits are the same, all NaN taken as one.
pub fn equal(a: &Tensor, b: &Tensor) -> bool {
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

/// How far an op with sums in another order, or made of several layers, may be off, in units in the last place of the
/// largest element. Scores of hundreds cost attention in f32 some digits.
const CLOSE_UNITS: f64 = 128.0;
/// The same for f16 and bf16, which are computed in f32.
const CLOSE_HALF_UNITS: f64 = 4.0;

/// Whether all elements are close.
pub fn close(a: &Tensor, b: &Tensor) -> bool {
    if a.ty() != b.ty() {
        return false;
    }
    let allowed = match a.dtype() {
        DType::F32 => CLOSE_UNITS * f64::from(f32::EPSILON),
        DType::F16 => CLOSE_HALF_UNITS * 2f64.powi(-10),
        DType::BF16 => CLOSE_HALF_UNITS * 2f64.powi(-7),
        _ => return equal(a, b),
    };
    let wide = |x: &Tensor| shardweld_interp::cast::cast(x, DType::F64).unwrap().slice::<f64>().to_vec();
    let (x, y) = (wide(a), wide(b));
    let largest = y.iter().filter(|v| v.is_finite()).fold(0f64, |m, v| m.max(v.abs()));
    x.iter().zip(&y).all(|(x, y)| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= allowed * largest)
}

/// Whether lowering may change the bits of an op: its sums are ordered otherwise, or it becomes several layers.
fn may_differ(op: &Op) -> bool {
    match op {
        // A bias is added by a layer of its own.
        Op::MatMul { .. } | Op::Normalize { .. } | Op::Attention { .. } => true,
        Op::Unary(u) => *u == Unary::Silu,
        _ => false,
    }
}

/// As [`may_differ`], next to other ops: a product with 1 / sqrt(x) becomes a quotient, which rounds once less.
fn may_differ_in_company(op: &Op) -> bool {
    let is_rsqrt = match op {
        Op::Unary(u) => *u == Unary::Rsqrt,
        Op::BinaryScalar { op: Binary::Pow, scalar, .. } => scalar.as_f64() == -0.5,
        _ => false,
    };
    is_rsqrt || may_differ(op)
}

/// Largest operand for which scores of f16 do not overflow where attention is spelled out in layers.
const TAME: f64 = 32.0;

/// Attention leaves scores that overflow their type open. Such operands say nothing about lowering.
fn is_open(op: &Op, given: &[Named<Tensor>]) -> bool {
    let Op::Attention { .. } = op else { return false };
    let wide = |x: &Tensor| shardweld_interp::cast::cast(x, DType::F64).unwrap();
    let wild = |x: &Tensor| wide(x).slice::<f64>().iter().any(|v| v.is_nan() || v.abs() > TAME);
    given.iter().any(|g| ["a0", "a1", "a2"].iter().any(|n| wild(&g[*n])))
}

/// Element type of a node's first operand, or else of its result.
fn node_type(graph: &Graph, node: &Node) -> DType {
    node.operands.first().map_or(node.results[0].dtype, |&v| graph.ty(v).dtype)
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
    let (mut checked, mut refused) = (BTreeSet::new(), BTreeMap::new());
    for seed in 0..seeds() {
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
            if is_open(&node.op, &given) {
                continue;
            }
            let Some(out) = lowered(&alone(&graph, node), &given) else {
                *refused
                    .entry(format!("{} of {}", node.op.name(), node_type(&graph, node)))
                    .or_insert(0u32) += 1;
                continue;
            };
            for (rank, out) in out.iter().enumerate() {
                for (r, v) in results.iter().enumerate() {
                    let (found, expected) = (&out[&format!("r{r}")], defined(v, rank).unwrap());
                    let ok =
                        if may_differ(&node.op) { close(found, &expected) } else { equal(found, &expected) };
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
    println!("refused: {refused:?}; checked: {checked:?}");
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
    for seed in 1_000_000..1_000_000 + seeds() {
        let graph = random_program(seed, &options);
        if graph.nodes().any(|(_, n)| may_differ_in_company(&n.op)) {
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
                    "seed {seed}, rank {rank}, `{name}`: {:?}\n{}",
                    distance(&found[name], e),
                    graph.to_text().unwrap()
                );
            }
        }
    }
    println!("{compared} programs compared, {refused} refused");
    assert!(compared >= 20, "{compared} programs are too few to say anything");
}

/// Whether a small change of an operand can be a large one of the result.
fn jumps(op: &Op) -> bool {
    match op {
        Op::Unary(u) => {
            u.is_predicate()
                || matches!(u, Unary::Ceil | Unary::Floor | Unary::Round | Unary::Trunc | Unary::Sign)
        }
        Op::Binary(b) | Op::BinaryScalar { op: b, .. } => {
            b.is_comparison()
                || matches!(b, Binary::FloorDiv | Binary::TruncDiv | Binary::Rem | Binary::Fmod | Binary::Pow)
        }
        Op::Cast { to } => *to != DType::F32,
        _ => false,
    }
}

/// Inputs with every element off by a few units in the last place.
fn perturbed(inputs: &[Named<Tensor>], seed: u64) -> Vec<Named<Tensor>> {
    let mut rng = Rng::new(seed);
    let mut shake = |t: &Tensor| {
        let step = 4.0 * f32::EPSILON;
        let off: Vec<f32> =
            t.slice::<f32>().iter().map(|v| v * (1.0 + if rng.one_in(2) { step } else { -step })).collect();
        Tensor::new(t.shape(), &off).unwrap()
    };
    inputs.iter().map(|named| named.iter().map(|(n, t)| (n.clone(), shake(t))).collect()).collect()
}

/// How much more than such a change of the inputs the order of sums may change a result.
const AMPLIFICATION: f32 = 64.0;

/// Programs of products, norms and attention: as near to the reference as the program itself is well conditioned.
#[test]
fn whole_programs_with_sums_stay_close() {
    let options =
        ProgramOptions { max_ranks: 4, nodes: 14, dtypes: vec![DType::F32], ..ProgramOptions::default() };
    let mut compared = 0;
    for seed in 2_000_000..2_000_000 + seeds() {
        let graph = random_program(seed, &options);
        if graph.nodes().any(|(_, n)| jumps(&n.op)) || !graph.nodes().any(|(_, n)| may_differ(&n.op)) {
            continue;
        }
        let given = inputs(&graph, seed);
        let reference = |given: &[Named<Tensor>]| run(&graph, &WeightStore::new(), given).unwrap();
        let expected = reference(&given);
        let shaken: Vec<_> = (0..4).map(|i| reference(&perturbed(&given, seed + i))).collect();
        let Some(found) = lowered(&graph, &given) else { continue };
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (name, e) in expected {
                if e.dtype() != DType::F32 || e.slice::<f32>().iter().any(|v| !v.is_finite()) {
                    continue;
                }
                compared += 1;
                let largest =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f32, |m, (x, y)| m.max((x - y).abs()));
                let e = e.slice::<f32>();
                let sway = shaken.iter().map(|s| largest(s[rank][name].slice(), e)).fold(0f32, f32::max);
                let size = e.iter().fold(0f32, |m, v| m.max(v.abs()));
                let error = largest(found[name].slice(), e);
                assert!(
                    error <= AMPLIFICATION * (sway + f32::EPSILON * size),
                    "seed {seed}, rank {rank}, `{name}`: off by {error}, up to {size} large, sways by {sway}\n{}",
                    graph.to_text().unwrap()
                );
            }
        }
    }
    println!("{compared} outputs compared");
    assert!(compared >= 50, "{compared} outputs are too few to say anything");
}

/// What the tests above rest on: a wrong lowering would be seen.
#[test]
fn a_trace_of_another_program_is_seen() {
    let x = Tensor::new(&[1, 4], &[1.0f32, 2.0, 3.0, 5.0]).unwrap();
    let norm = |kind| {
        let mut g = Graph::new("norm", Mesh::new([("tp", 1)]).unwrap());
        let ty = TensorType::new(DType::F32, &[1, 4]);
        let a: Value = g.add_input("a", ty).unwrap().into();
        let epsilon = Scalar::Float(1e-5);
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

#[test]
fn causal_attention_of_head_size_one_was_not_causal() {
    let mut g = Graph::new("attention", Mesh::new([("tp", 1)]).unwrap());
    let x: Value = g.add_input("x", TensorType::new(DType::F32, &[1, 1, 3, 1])).unwrap().into();
    let op = |causal| Op::Attention { scale: Scalar::Float(0.5), causal, mask: false };
    let y = g.add("y", op(true), &[x, x, x]).unwrap();
    g.add_output("y", y).unwrap();
    let given = [Named::from([("x".to_owned(), Tensor::new(&[1, 1, 3, 1], &[1.0f32, -2.0, 3.0]).unwrap())])];
    let out = lowered(&g, &given).unwrap();
    assert_eq!(out[0]["y"].slice::<f32>()[0], 1.0, "the first query sees the first key alone");
    assert!(close(&out[0]["y"], &run(&g, &WeightStore::new(), &given).unwrap()[0]["y"]));
}

#[test]
fn cubes_and_inverse_squares_of_bf16_were_rounded_once() {
    let x = Tensor::new(&[3], &[1.0625f32, 1.2109375, 1.2421875]).unwrap();
    // Of f16 they are.
    for (exponent, dtype) in [(3.0, DType::BF16), (-2.0, DType::BF16), (3.0, DType::F16), (-2.0, DType::F16)]
    {
        let mut g = Graph::new("power", Mesh::new([("tp", 1)]).unwrap());
        let a: Value = g.add_input("x", TensorType::new(dtype, &[3])).unwrap().into();
        let op = Op::BinaryScalar { op: Binary::Pow, scalar: Scalar::Float(exponent), scalar_first: false };
        let y = g.add("y", op, &[a]).unwrap();
        g.add_output("y", y).unwrap();
        let given = [Named::from([("x".to_owned(), shardweld_interp::cast::cast(&x, dtype).unwrap())])];
        let expected = run(&g, &WeightStore::new(), &given).unwrap();
        assert!(
            equal(&lowered(&g, &given).unwrap()[0]["y"], &expected[0]["y"]),
            "power {exponent} of {dtype}"
        );
    }
}

/// Masks over `[2, 3, 5, 7]` scores that hide each key with a chance of 7 in 8, so that some queries see none.
#[test]
fn a_query_that_sees_no_key_gives_zeros_as_in_the_reference() {
    let mut all_hidden = 0;
    for seed in 0..24u64 {
        let mut rng = Rng::new(seed);
        for (dtype, bool_mask, causal, shape, wide) in [
            (DType::F32, true, false, vec![2, 3, 5, 7], 8),
            (DType::F32, true, true, vec![1, 1, 5, 7], 8),
            (DType::F32, false, false, vec![2, 1, 1, 7], 8),
            (DType::F32, false, true, vec![1, 3, 5, 7], 6),
            (DType::BF16, false, false, vec![1, 1, 5, 7], 8),
            (DType::F16, true, false, vec![2, 1, 5, 1], 6),
        ] {
            let random = |shape: &[usize], rng: &mut Rng| {
                let n: usize = shape.iter().product();
                let x: Vec<f32> = (0..n).map(|_| rng.small_float() as f32 / 8.0).collect();
                shardweld_interp::cast::cast(&Tensor::new(shape, &x).unwrap(), dtype).unwrap()
            };
            let (q, k) = (random(&[2, 3, 5, 8], &mut rng), random(&[2, 3, 7, 8], &mut rng));
            let v = random(&[2, 3, 7, wide], &mut rng);
            let shows: Vec<bool> = (0..shape.iter().product()).map(|_| rng.one_in(8)).collect();
            let numbers: Vec<f32> = shows
                .iter()
                .map(|&s| match (bool_mask, s) {
                    (true, s) => f32::from(u8::from(s)),
                    (false, true) => 0.5,
                    (false, false) => f32::NEG_INFINITY,
                })
                .collect();
            let mask_type = if bool_mask { DType::Bool } else { dtype };
            let m = Tensor::new(&shape, &numbers).unwrap();
            let m = shardweld_interp::cast::cast(&m, mask_type).unwrap();
            let mut graph = Graph::new("test", Mesh::new([("tp", 1)]).unwrap());
            let given = [("q", q), ("k", k), ("v", v), ("m", m)];
            let operands: Vec<Value> =
                given.iter().map(|(n, t)| graph.add_input(n, t.ty().clone()).unwrap().into()).collect();
            let op = Op::Attention { scale: Scalar::Float(0.5), causal, mask: true };
            let y = graph.add("y", op, &operands).unwrap();
            graph.add_output("y", y).unwrap();
            let given: Vec<Named<Tensor>> = vec![given.into_iter().map(|(n, t)| (n.to_owned(), t)).collect()];
            let expected = run(&graph, &WeightStore::new(), &given).unwrap();
            let found = lowered(&graph, &given).expect("attention lowers");
            let (f, e) = (&found[0]["y"], &expected[0]["y"]);
            assert!(close(f, e), "seed {seed}, {dtype}, causal {causal}: {:?}\n{f:?}\n{e:?}", distance(f, e));
            let zero = |x: &Tensor| {
                shardweld_interp::cast::cast(x, DType::F64).unwrap().slice::<f64>().iter().all(|&x| x == 0.0)
            };
            all_hidden += usize::from(
                !zero(f) && f.bytes().chunks_exact(wide * dtype.size()).any(|r| r.iter().all(|&b| b == 0)),
            );
        }
    }
    assert!(all_hidden > 24, "{all_hidden} cases with a hidden query say little");
}
