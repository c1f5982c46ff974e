//! The graph: order, uses, replacement, removal.

use shardweld_ir::{Binary, DType, Graph, GraphError, Mesh, Op, TensorType, Unary, Value};

fn graph() -> Graph {
    let mut g = Graph::new("g", Mesh::new([("tp", 2)]).unwrap());
    g.add_input("x", TensorType::new(DType::F32, &[4])).unwrap();
    g
}

fn x(g: &Graph) -> Value {
    g.inputs()[0].into()
}

#[test]
fn order_is_topological_and_by_creation() {
    let mut g = graph();
    let a = g.add("a", Op::Unary(Unary::Exp), &[x(&g)]).unwrap();
    let b = g.add("b", Op::Unary(Unary::Sin), &[x(&g)]).unwrap();
    let c = g.add("c", Op::Binary(Binary::Add), &[b.into(), a.into()]).unwrap();
    assert_eq!(g.order().unwrap(), [g.inputs()[0], a, b, c]);
    assert_eq!(g.users(g.inputs()[0]), [(a, 0), (b, 0)]);
    assert_eq!(g.users(a), [(c, 1)]);
    // A later node before an earlier one, because the earlier one now needs it.
    let d = g.add("d", Op::Unary(Unary::Cos), &[x(&g)]).unwrap();
    g.replace_uses(b.into(), d.into()).unwrap();
    assert_eq!(g.order().unwrap(), [g.inputs()[0], a, b, d, c]);
}

#[test]
fn replacement_keeps_operand_places_and_outputs() {
    let mut g = graph();
    let split = g.add("s", Op::Split { dim: 0, sizes: vec![2, 2] }, &[x(&g)]).unwrap();
    let (s0, s1) = (Value { node: split, result: 0 }, Value { node: split, result: 1 });
    let sub = g.add("sub", Op::Binary(Binary::Sub), &[s0, s1]).unwrap();
    g.add_output("y", s1).unwrap();
    let e = g.add("e", Op::Unary(Unary::Exp), &[s0]).unwrap();
    g.replace_uses(s1, e.into()).unwrap();
    assert_eq!(g.node(sub).operands, [s0, e.into()]);
    assert_eq!(g.outputs()[0].value, e.into());
    g.verify().unwrap();
    let wrong = g.replace_uses(s0, x(&g));
    assert!(matches!(wrong, Err(GraphError::TypeMismatch { .. })), "{wrong:?}");
    let none = Value { node: split, result: 2 };
    assert!(matches!(g.replace_uses(none, e.into()), Err(GraphError::Dangling { result: 2, .. })));
    assert!(matches!(g.add_output("z", none), Err(GraphError::Dangling { .. })));
    assert!(matches!(g.add("n", Op::Unary(Unary::Exp), &[none]), Err(GraphError::Dangling { .. })));
}

#[test]
fn dead_nodes_go_and_inputs_stay() {
    let mut g = graph();
    let a = g.add("a", Op::Unary(Unary::Exp), &[x(&g)]).unwrap();
    let dead = g.add("dead", Op::Unary(Unary::Sin), &[a.into()]).unwrap();
    g.add_output("y", a).unwrap();
    assert_eq!(g.remove_dead(), 1);
    assert_eq!((g.find("dead"), g.try_node(dead)), (None, None));
    assert_eq!(g.remove_dead(), 0);
    assert_eq!(g.len(), 2);
    // The name is free again, the number may be used again.
    let again = g.add("dead", Op::Unary(Unary::Cos), &[a.into()]).unwrap();
    assert_eq!(g.node(again).name, "dead");
    g.verify().unwrap();
}
