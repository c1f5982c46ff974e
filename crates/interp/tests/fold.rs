//! The pass `fold_constants`.

use shardweld_interp::fold::MAX_CONSTANT_BYTES;
use shardweld_interp::{Named, Tensor, fold_constants, run};
use shardweld_ir::testing::{ProgramOptions, random_program};
use shardweld_ir::{Binary, Builder, DType, Graph, Mesh, Op, Scalar, WeightStore};

#[path = "support/inputs.rs"]
mod random_inputs;
use random_inputs::inputs_for;

/// Rotary frequencies as LTX-2 computes them: a float64 chain, cast at its end.
fn frequencies(size: u64) -> Graph {
    let mut b = Builder::new("rope", Mesh::new([("cp", 2)]).unwrap());
    let x = b.input("x", DType::F32, &[size]).unwrap();
    let step = 1.0 / (size as f64 - 1.0);
    let line = b.iota(DType::F64, &[size], 0, 0.0, step).unwrap();
    let power = b.scalar_first(Binary::Pow, 10000.0, line).unwrap();
    let angle = b.mul(power, std::f64::consts::FRAC_PI_2).unwrap();
    let angle = b.cast(angle, DType::F32).unwrap();
    let y = b.mul(x, angle).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

fn ops(graph: &Graph) -> Vec<&'static str> {
    graph.order().unwrap().into_iter().map(|id| graph.node(id).op.name()).collect()
}

fn inputs(size: usize) -> Vec<Named<Tensor>> {
    let x = Tensor::new(&[size], &vec![1.5f32; size]).unwrap();
    vec![Named::from([("x".to_owned(), x)]); 2]
}

#[test]
fn float64_chains_become_one_constant() {
    let source = frequencies(16);
    let mut folded = source.clone();
    let stats = fold_constants(&mut folded, MAX_CONSTANT_BYTES).unwrap();
    assert_eq!((stats.constants, stats.removed, stats.too_large), (1, 4, 0));
    folded.verify().unwrap();
    let mut names = ops(&folded);
    names.sort_unstable();
    assert_eq!(names, ["constant", "input", "mul"]);
    let of = |g: &Graph| run(g, &WeightStore::new(), &inputs(16)).unwrap()[1]["y"].bytes().to_vec();
    assert_eq!(of(&source), of(&folded));
}

#[test]
fn a_constant_above_the_limit_stays_an_expression() {
    let mut graph = frequencies(16);
    let before = ops(&graph);
    let stats = fold_constants(&mut graph, 63).unwrap();
    assert_eq!((stats.constants, stats.too_large), (0, 1));
    assert_eq!(ops(&graph), before);
    assert_eq!(fold_constants(&mut graph, 64).unwrap().constants, 1);
}

#[test]
fn what_depends_on_rank_or_input_stays() {
    let mut b = Builder::new("kept", Mesh::new([("cp", 2)]).unwrap());
    let x = b.input("x", DType::F32, &[2]).unwrap();
    let line = b.iota(DType::F32, &[4], 0, 0.0, 1.0).unwrap();
    let own = b.own_slice(line, 0, &["cp"]).unwrap();
    let y = b.add(x, own).unwrap();
    b.output("y", y).unwrap();
    let mut graph = b.finish().unwrap();
    let before = ops(&graph);
    assert_eq!(fold_constants(&mut graph, MAX_CONSTANT_BYTES).unwrap().constants, 0);
    assert_eq!(ops(&graph), before);
}

#[test]
fn one_repeated_element_needs_no_space() {
    let mut b = Builder::new("zeros", Mesh::new([("cp", 1)]).unwrap());
    let x = b.input("x", DType::F32, &[64]).unwrap();
    let zero = b.full(DType::F32, &[1], Scalar::Float(0.0)).unwrap();
    let wide = b.broadcast(zero, &[64]).unwrap();
    let y = b.add(x, wide).unwrap();
    b.output("y", y).unwrap();
    let mut graph = b.finish().unwrap();
    assert_eq!(fold_constants(&mut graph, 1).unwrap().constants, 1);
    let constant = graph.nodes().find_map(|(_, n)| match &n.op {
        Op::Constant(literal) => Some(literal.clone()),
        _ => None,
    });
    assert!(constant.unwrap().is_splat());
}

#[test]
fn an_expression_without_a_value_is_an_error() {
    let mut b = Builder::new("zero", Mesh::new([("cp", 1)]).unwrap());
    let one = b.full(DType::I64, &[2], Scalar::Int(1)).unwrap();
    let y = b.named("broken").binary(Binary::FloorDiv, one, 0i64).unwrap();
    b.output("y", y).unwrap();
    let text = fold_constants(&mut b.finish().unwrap(), 64).unwrap_err().to_string();
    assert!(text.contains("`broken`") && text.contains("division by zero"), "{text}");
}

#[test]
fn random_programs_keep_their_meaning() {
    let mut folded_some = 0;
    for seed in 0..200 {
        let source = random_program(seed, &ProgramOptions::default());
        let inputs = inputs_for(&source, seed);
        let mut folded = source.clone();
        folded_some += fold_constants(&mut folded, MAX_CONSTANT_BYTES).unwrap().constants;
        folded.verify().unwrap();
        let of =
            |g: &Graph| run(g, &WeightStore::new(), &inputs).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (rank, (a, b)) in of(&source).iter().zip(&of(&folded)).enumerate() {
            for (name, value) in a {
                assert_eq!(value.bytes(), b[name].bytes(), "seed {seed}, rank {rank}, output {name}");
            }
        }
    }
    assert!(folded_some > 0, "no random program had anything to fold");
}
