//! The prover on laws that hold and laws that do not: every refuted law is one that a shipped compiler or a catalogue got
//! wrong, next to its sibling that holds.

use shardweld_ir::{
    AxisId, Binary, Collective, DType, Graph, Group, Mesh, Op, ReduceKind, ReduceOp, Scalar, Shape,
    TensorType, Unary, Value,
};
use shardweld_rewrite::replication::AxisSet;
use shardweld_rewrite::{Assumption, Class, Classes, Verdict, prove};

struct Program {
    g: Graph,
}

impl Program {
    fn new(axes: &[(&str, u32)]) -> Program {
        Program { g: Graph::new("law", Mesh::new(axes.iter().copied()).unwrap()) }
    }
    fn input(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Value {
        self.g.add_input(name, TensorType::new(dtype, dims)).unwrap().into()
    }
    fn op(&mut self, op: Op, operands: &[Value]) -> Value {
        self.g.add("v", op, operands).unwrap().into()
    }
    fn all_reduce(&mut self, op: ReduceOp, x: Value, group: &Group) -> Value {
        let kind = Collective::AllReduce { op, accum: None };
        self.op(Op::Collective { kind, group: group.clone() }, &[x])
    }
    fn reduce_scatter(&mut self, x: Value, dim: u32, group: &Group) -> Value {
        let kind = Collective::ReduceScatter { op: ReduceOp::Sum, dim, accum: None };
        self.op(Op::Collective { kind, group: group.clone() }, &[x])
    }
    fn all_gather(&mut self, x: Value, dim: u32, group: &Group) -> Value {
        self.op(Op::Collective { kind: Collective::AllGather { dim }, group: group.clone() }, &[x])
    }
    fn own_slice(&mut self, x: Value, dim: u32, group: &Group) -> Value {
        self.op(Op::OwnSlice { dim, group: group.clone() }, &[x])
    }
    fn cast(&mut self, x: Value, to: DType) -> Value {
        self.op(Op::Cast { to }, &[x])
    }
}

type Side = fn(&mut Program, &[Value]) -> Value;

/// Verdict on two programs over inputs `x`, `y`, .. of one type.
fn judge(
    axes: &[(&str, u32)],
    dtype: DType,
    dims: &[u64],
    replicated: u64,
    left: Side,
    right: Side,
) -> Verdict {
    let build = |side: Side| {
        let mut p = Program::new(axes);
        let inputs: Vec<Value> = ["x", "y"].iter().map(|n| p.input(n, dtype, dims)).collect();
        let out = side(&mut p, &inputs);
        p.g.add_output("out", out).unwrap();
        p.g
    };
    let assume = |_: &str| Assumption { replicated: AxisSet(replicated), from: None };
    prove(&build(left), &build(right), &assume).unwrap()
}

fn class(v: Verdict) -> Class {
    match v {
        Verdict::Equal(Classes { class, .. }) => class,
        Verdict::Refuted(e) => panic!("refuted: {e}"),
    }
}

fn refuted(v: Verdict) {
    match v {
        Verdict::Refuted(e) => assert!(e.to_string().contains("against"), "{e}"),
        Verdict::Equal(c) => panic!("a false law was accepted in class {c:?}"),
    }
}

fn a() -> Group {
    Group::axis(AxisId(0))
}

fn b() -> Group {
    Group::axis(AxisId(1))
}

const TWO: &[(&str, u32)] = &[("a", 2)];
const FOUR: &[(&str, u32)] = &[("a", 4)];
const GRID: &[(&str, u32)] = &[("a", 2), ("b", 2)];

#[test]
fn reduce_scatter_and_all_reduce_do_not_commute_over_one_group() {
    let left: Side = |p, x| {
        let y = p.all_reduce(ReduceOp::Sum, x[0], &a());
        p.reduce_scatter(y, 0, &a())
    };
    let right: Side = |p, x| {
        let y = p.reduce_scatter(x[0], 0, &a());
        p.all_reduce(ReduceOp::Sum, y, &a())
    };
    refuted(judge(TWO, DType::F32, &[4], 0, left, right));
    refuted(judge(FOUR, DType::I32, &[4], 0, left, right));
}

#[test]
fn reduce_scatter_and_all_reduce_commute_over_disjoint_axes() {
    let left: Side = |p, x| {
        let y = p.all_reduce(ReduceOp::Sum, x[0], &a());
        p.reduce_scatter(y, 0, &b())
    };
    let right: Side = |p, x| {
        let y = p.reduce_scatter(x[0], 0, &b());
        p.all_reduce(ReduceOp::Sum, y, &a())
    };
    assert_eq!(class(judge(GRID, DType::F32, &[4], 0, left, right)), Class::Real);
    assert_eq!(class(judge(GRID, DType::I32, &[4], 0, left, right)), Class::Bit);
}

fn padded(value: f64) -> impl Fn(&mut Program, Value) -> Value {
    move |p, x| {
        let y = p.op(Op::OwnPad { dim: 0, group: a(), value: Scalar::Float(value) }, &[x]);
        p.all_reduce(ReduceOp::Sum, y, &a())
    }
}

#[test]
fn padding_of_an_all_gather_decides_its_class() {
    let gather: Side = |p, x| p.all_gather(x[0], 0, &a());
    let negative: Side = |p, x| padded(-0.0)(p, x[0]);
    let positive: Side = |p, x| padded(0.0)(p, x[0]);
    let one: Side = |p, x| padded(1.0)(p, x[0]);
    assert_eq!(class(judge(FOUR, DType::F32, &[2], 0, gather, negative)), Class::Nan);
    assert_eq!(class(judge(FOUR, DType::BF16, &[2], 0, gather, positive)), Class::Zero);
    refuted(judge(FOUR, DType::F32, &[2], 0, gather, one));
}

#[test]
fn what_follows_a_zero_step_tells_its_sides_apart() {
    let gather: Side = |p, x| {
        let y = p.all_gather(x[0], 0, &a());
        p.op(Op::Unary(Unary::Recip), &[y])
    };
    let negative: Side = |p, x| {
        let y = padded(-0.0)(p, x[0]);
        p.op(Op::Unary(Unary::Recip), &[y])
    };
    let positive: Side = |p, x| {
        let y = padded(0.0)(p, x[0]);
        p.op(Op::Unary(Unary::Recip), &[y])
    };
    assert_eq!(class(judge(FOUR, DType::F32, &[2], 0, gather, negative)), Class::Nan);
    refuted(judge(FOUR, DType::F32, &[2], 0, gather, positive));
}

#[test]
fn all_reduce_is_gathered_reduce_scatter_and_two_ranks_are_stricter() {
    let left: Side = |p, x| p.all_reduce(ReduceOp::Sum, x[0], &a());
    let right: Side = |p, x| {
        let y = p.reduce_scatter(x[0], 0, &a());
        p.all_gather(y, 0, &a())
    };
    assert_eq!(class(judge(FOUR, DType::F32, &[4], 0, left, right)), Class::Real);
    assert_eq!(class(judge(TWO, DType::F32, &[4], 0, left, right)), Class::Nan);
    assert_eq!(class(judge(FOUR, DType::I32, &[4], 0, left, right)), Class::Bit);
}

#[test]
fn gathering_own_slices_needs_replication() {
    let left: Side = |p, x| {
        let y = p.own_slice(x[0], 0, &a());
        p.all_gather(y, 0, &a())
    };
    let right: Side = |_, x| x[0];
    refuted(judge(GRID, DType::F32, &[4], 0, left, right));
    refuted(judge(GRID, DType::F32, &[4], 2, left, right));
    assert_eq!(class(judge(GRID, DType::F32, &[4], 1, left, right)), Class::Bit);
}

#[test]
fn inner_gathers_are_over_the_minor_axis() {
    let nested: Side = |p, x| {
        let y = p.all_gather(x[0], 0, &b());
        p.all_gather(y, 0, &a())
    };
    let right: Side = |p, x| p.all_gather(x[0], 0, &Group::Axes(vec![AxisId(0), AxisId(1)]));
    let wrong: Side = |p, x| p.all_gather(x[0], 0, &Group::Axes(vec![AxisId(1), AxisId(0)]));
    assert_eq!(class(judge(GRID, DType::F32, &[2], 0, nested, right)), Class::Bit);
    refuted(judge(GRID, DType::F32, &[2], 0, nested, wrong));
}

#[test]
fn sums_do_not_move_across_addition_of_a_replicated_value() {
    let left: Side = |p, x| {
        let s = p.op(Op::Binary(Binary::Add), &[x[0], x[1]]);
        p.all_reduce(ReduceOp::Sum, s, &a())
    };
    let wrong: Side = |p, x| {
        let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
        p.op(Op::Binary(Binary::Add), &[s, x[1]])
    };
    let right: Side = |p, x| {
        let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
        let t = p.all_reduce(ReduceOp::Sum, x[1], &a());
        p.op(Op::Binary(Binary::Add), &[s, t])
    };
    refuted(judge(FOUR, DType::F32, &[2], 1, left, wrong));
    assert_eq!(class(judge(FOUR, DType::F32, &[2], 0, left, right)), Class::Real);
}

#[test]
fn sums_move_across_products_with_replicated_factors_only() {
    let left: Side = |p, x| {
        let s = p.op(Op::Binary(Binary::Mul), &[x[0], x[1]]);
        p.all_reduce(ReduceOp::Sum, s, &a())
    };
    // The product is with this rank's factor.
    let right: Side = |p, x| {
        let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
        p.op(Op::Binary(Binary::Mul), &[s, x[1]])
    };
    refuted(judge(FOUR, DType::F32, &[2], 0, left, right));
    assert_eq!(class(judge(FOUR, DType::I32, &[2], 1, left, right)), Class::Bit);
}

#[test]
fn matmul_moves_across_a_sum_when_the_weight_is_replicated() {
    fn left(p: &mut Program, x: &[Value]) -> Value {
        let s = p.op(Op::MatMul { transpose_a: false, transpose_b: false }, &[x[0], x[1]]);
        p.all_reduce(ReduceOp::Sum, s, &a())
    }
    fn right(p: &mut Program, x: &[Value]) -> Value {
        let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
        p.op(Op::MatMul { transpose_a: false, transpose_b: false }, &[s, x[1]])
    }
    refuted(judge(TWO, DType::F32, &[2, 2], 0, left, right));
    let shared = |name: &str| Assumption {
        replicated: if name == "y" { AxisSet(1) } else { AxisSet::NONE },
        from: None,
    };
    let build = |side: Side| {
        let mut p = Program::new(TWO);
        let inputs = [p.input("x", DType::F32, &[2, 2]), p.input("y", DType::F32, &[2, 2])];
        let out = side(&mut p, &inputs);
        p.g.add_output("out", out).unwrap();
        p.g
    };
    let verdict = prove(&build(left), &build(right), &shared).unwrap();
    assert_eq!(class(verdict), Class::Real);
}

#[test]
fn sums_do_not_move_across_nonlinear_functions() {
    let left: Side = |p, x| {
        let s = p.op(Op::Unary(Unary::Exp), &[x[0]]);
        p.all_reduce(ReduceOp::Sum, s, &a())
    };
    let right: Side = |p, x| {
        let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
        p.op(Op::Unary(Unary::Exp), &[s])
    };
    refuted(judge(TWO, DType::F32, &[2], 0, left, right));
    let max_left: Side = |p, x| {
        let s = p.op(Op::Unary(Unary::Abs), &[x[0]]);
        p.all_reduce(ReduceOp::Max, s, &a())
    };
    let max_right: Side = |p, x| {
        let s = p.all_reduce(ReduceOp::Max, x[0], &a());
        p.op(Op::Unary(Unary::Abs), &[s])
    };
    refuted(judge(TWO, DType::F32, &[2], 0, max_left, max_right));
}

fn pad(value: i64) -> Op {
    Op::Pad { dim: 0, low: 1, high: 0, value: Scalar::Int(value) }
}

#[test]
fn sums_commute_with_padding_by_zero_only() {
    let zero: [Side; 2] = [
        |p, x| {
            let s = p.op(pad(0), &[x[0]]);
            p.all_reduce(ReduceOp::Sum, s, &a())
        },
        |p, x| {
            let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
            p.op(pad(0), &[s])
        },
    ];
    let five: [Side; 2] = [
        |p, x| {
            let s = p.op(pad(5), &[x[0]]);
            p.all_reduce(ReduceOp::Sum, s, &a())
        },
        |p, x| {
            let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
            p.op(pad(5), &[s])
        },
    ];
    assert_eq!(class(judge(FOUR, DType::I32, &[2], 0, zero[0], zero[1])), Class::Bit);
    refuted(judge(FOUR, DType::I32, &[2], 0, five[0], five[1]));
}

#[test]
fn concatenation_on_the_gathered_dimension_is_another_order() {
    type Boxed = Box<dyn Fn(&mut Program, &[Value]) -> Value>;
    fn sides(dim: u32) -> [Boxed; 2] {
        [
            Box::new(move |p, x| {
                let c = p.op(Op::Concat { dim }, &[x[0], x[1]]);
                p.all_gather(c, 0, &a())
            }),
            Box::new(move |p, x| {
                let (s, t) = (p.all_gather(x[0], 0, &a()), p.all_gather(x[1], 0, &a()));
                p.op(Op::Concat { dim }, &[s, t])
            }),
        ]
    }
    let verdict = |dim| {
        let [l, r] = sides(dim).map(|side| {
            let mut p = Program::new(TWO);
            let inputs = [p.input("x", DType::F32, &[2, 2]), p.input("y", DType::F32, &[2, 2])];
            let out = side(&mut p, &inputs);
            p.g.add_output("out", out).unwrap();
            p.g
        });
        prove(&l, &r, &|_| Assumption::default()).unwrap()
    };
    refuted(verdict(0));
    assert_eq!(class(verdict(1)), Class::Bit);
}

#[test]
fn a_reshape_may_not_merge_a_dimension_on_the_left_into_the_gathered_one() {
    let reshape = |dims: &[u64]| Op::Reshape { shape: Shape::of(dims) };
    let build = |dim: u32, before: bool| {
        let mut p = Program::new(TWO);
        let x = p.input("x", DType::F32, &[2, 2]);
        let out = if before {
            let flat = p.op(reshape(&[4]), &[x]);
            p.all_gather(flat, 0, &a())
        } else {
            let g = p.all_gather(x, dim, &a());
            p.op(reshape(&[8]), &[g])
        };
        p.g.add_output("out", out).unwrap();
        p.g
    };
    let none = |_: &str| Assumption::default();
    refuted(prove(&build(1, false), &build(1, true), &none).unwrap());
    assert_eq!(class(prove(&build(0, false), &build(0, true), &none).unwrap()), Class::Bit);
}

#[test]
fn sum_and_max_over_different_axes_do_not_swap() {
    let left: Side = |p, x| {
        let s = p.all_reduce(ReduceOp::Sum, x[0], &a());
        p.all_reduce(ReduceOp::Max, s, &b())
    };
    let right: Side = |p, x| {
        let s = p.all_reduce(ReduceOp::Max, x[0], &b());
        p.all_reduce(ReduceOp::Sum, s, &a())
    };
    refuted(judge(GRID, DType::I32, &[2], 0, left, right));
    let maxima: [Side; 2] = [
        |p, x| {
            let s = p.all_reduce(ReduceOp::Max, x[0], &a());
            p.all_reduce(ReduceOp::Max, s, &b())
        },
        |p, x| {
            let s = p.all_reduce(ReduceOp::Max, x[0], &b());
            p.all_reduce(ReduceOp::Max, s, &a())
        },
    ];
    assert_eq!(class(judge(GRID, DType::I32, &[2], 0, maxima[0], maxima[1])), Class::Bit);
    assert_eq!(class(judge(GRID, DType::F32, &[2], 0, maxima[0], maxima[1])), Class::Zero);
}

#[test]
fn double_rounding_is_not_single_rounding() {
    let left: Side = |p, x| {
        let y = p.cast(x[0], DType::F32);
        p.cast(y, DType::BF16)
    };
    let right: Side = |p, x| p.cast(x[0], DType::BF16);
    refuted(judge(TWO, DType::F64, &[2], 0, left, right));
    assert_eq!(class(judge(TWO, DType::F16, &[2], 0, left, right)), Class::Nan);
}

#[test]
fn reductions_in_a_wider_type_are_no_equality() {
    let left: Side = |p, x| p.all_reduce(ReduceOp::Sum, x[0], &a());
    let right: Side = |p, x| {
        let y = p.cast(x[0], DType::F32);
        let s = p.all_reduce(ReduceOp::Sum, y, &a());
        p.cast(s, DType::BF16)
    };
    refuted(judge(FOUR, DType::BF16, &[2], 0, left, right));
    let wide: Side = |p, x| {
        let y = p.cast(x[0], DType::I32);
        let s = p.all_reduce(ReduceOp::Sum, y, &a());
        p.cast(s, DType::I64)
    };
    let wider: Side = |p, x| {
        let y = p.cast(x[0], DType::I64);
        p.all_reduce(ReduceOp::Sum, y, &a())
    };
    refuted(judge(FOUR, DType::I8, &[2], 0, wide, wider));
}

#[test]
fn reduce_is_not_all_reduce_because_it_is_undefined_off_root() {
    let left: Side = |p, x| {
        let kind = Collective::Reduce { op: ReduceOp::Sum, root: 0, accum: None };
        p.op(Op::Collective { kind, group: a() }, &[x[0]])
    };
    let right: Side = |p, x| p.all_reduce(ReduceOp::Sum, x[0], &a());
    refuted(judge(TWO, DType::I32, &[2], 0, left, right));
    refuted(judge(TWO, DType::I32, &[2], 0, right, left));
    let whole: Side = |p, x| {
        let kind = Collective::Reduce { op: ReduceOp::Sum, root: 1, accum: None };
        let r = p.op(Op::Collective { kind, group: a() }, &[x[0]]);
        p.op(Op::Collective { kind: Collective::Broadcast { root: 1 }, group: a() }, &[r])
    };
    assert_eq!(class(judge(TWO, DType::I32, &[2], 0, whole, right)), Class::Bit);
}

#[test]
fn selection_by_a_varying_mask_does_not_move_across_a_reduction() {
    let side = |inside: bool| {
        let mut p = Program::new(TWO);
        let m = p.input("m", DType::Bool, &[2]);
        let (x, y) = (p.input("x", DType::I32, &[2]), p.input("y", DType::I32, &[2]));
        let out = if inside {
            let s = p.op(Op::Select, &[m, x, y]);
            p.all_reduce(ReduceOp::Max, s, &a())
        } else {
            let (s, t) = (p.all_reduce(ReduceOp::Max, x, &a()), p.all_reduce(ReduceOp::Max, y, &a()));
            p.op(Op::Select, &[m, s, t])
        };
        p.g.add_output("out", out).unwrap();
        p.g
    };
    refuted(prove(&side(false), &side(true), &|_| Assumption::default()).unwrap());
}

#[test]
fn local_sums_and_gathers_are_sums() {
    let left: Side = |p, x| {
        let g = p.all_gather(x[0], 0, &a());
        p.op(Op::Reduce { kind: ReduceKind::Sum, dims: vec![0], keep_dims: false }, &[g])
    };
    let right: Side = |p, x| {
        let s = p.op(Op::Reduce { kind: ReduceKind::Sum, dims: vec![0], keep_dims: false }, &[x[0]]);
        p.all_reduce(ReduceOp::Sum, s, &a())
    };
    assert_eq!(class(judge(FOUR, DType::F32, &[2, 2], 0, left, right)), Class::Real);
    assert_eq!(class(judge(FOUR, DType::I64, &[2, 2], 0, left, right)), Class::Bit);
    let max: Side = |p, x| {
        let s = p.op(Op::Reduce { kind: ReduceKind::Max, dims: vec![0], keep_dims: false }, &[x[0]]);
        p.all_reduce(ReduceOp::Sum, s, &a())
    };
    refuted(judge(FOUR, DType::I64, &[2, 2], 0, left, max));
}

#[test]
fn a_local_max_of_floats_is_not_the_max_of_a_transport() {
    // NCCL's max drops NaN where a number is beside it; a local max does not.
    let left: Side = |p, x| {
        let g = p.all_gather(x[0], 0, &a());
        p.op(Op::Reduce { kind: ReduceKind::Max, dims: vec![0], keep_dims: false }, &[g])
    };
    let right: Side = |p, x| {
        let s = p.op(Op::Reduce { kind: ReduceKind::Max, dims: vec![0], keep_dims: false }, &[x[0]]);
        p.all_reduce(ReduceOp::Max, s, &a())
    };
    assert_eq!(class(judge(FOUR, DType::I64, &[2, 2], 0, left, right)), Class::Bit);
    refuted(judge(FOUR, DType::F32, &[2, 2], 0, left, right));
}

mod rules {
    use shardweld_rewrite::prover::{RuleProofError, prove_rule};
    use shardweld_rewrite::rules::{Direction, Policy, Rule};

    fn rule(lhs: &'static str, rhs: &'static str, guards: &'static [&'static str]) -> Rule {
        Rule {
            name: "candidate",
            lhs,
            rhs,
            compute: &[],
            guards,
            direction: Direction::Equation,
            policy: Policy::Always,
        }
    }

    const GATHER_OF_SLICE: &str = "(all_gather (own_slice ?x ?d ?g) ?d ?g)";

    #[test]
    fn a_rule_without_its_guard_is_refuted() {
        let wrong = rule(GATHER_OF_SLICE, "?x", &[]).compile().unwrap();
        match prove_rule(&wrong) {
            Err(RuleProofError::Refuted { example, .. }) => {
                assert!(example.mesh.contains("a=2"), "{example}")
            }
            other => panic!("{other:?}"),
        }
        let right = rule(GATHER_OF_SLICE, "?x", &["replicated(?x, ?g)"]).compile().unwrap();
        let record = prove_rule(&right).unwrap();
        assert!(record.guards_needed["replicated(?x, ?g)"].contains("against"));
    }

    #[test]
    fn a_refinement_written_as_an_equation_is_refuted() {
        let mut r = rule("(gather_to ?x ?d ?r ?g)", "(all_gather ?x ?d ?g)", &[]);
        assert!(matches!(prove_rule(&r.compile().unwrap()), Err(RuleProofError::Refuted { .. })));
        r.direction = Direction::Refinement;
        assert!(prove_rule(&r.compile().unwrap()).is_ok());
    }

    #[test]
    fn needless_guards_and_rules_without_instances_are_refused() {
        let needless = rule("(own_slice (all_gather ?x ?d ?g) ?d ?g)", "?x", &["replicated(?x, ?g)"]);
        assert!(matches!(
            prove_rule(&needless.compile().unwrap()),
            Err(RuleProofError::NeedlessGuard { .. })
        ));
        let vacuous = rule("(own_slice ?x ?d ?g)", "(all_gather ?x ?d ?g)", &["different(?d, ?d)"]);
        assert!(matches!(prove_rule(&vacuous.compile().unwrap()), Err(RuleProofError::Vacuous { .. })));
    }

    #[test]
    fn scatters_nest_with_the_major_axes_inside() {
        let nested = |a, b| Rule {
            compute: if a { &[("?g", "product_group(?a, ?b)")] } else { &[("?g", "product_group(?b, ?a)")] },
            ..rule(b, "(reduce_scatter ?x ?o ?d ?m ?g)", &[])
        };
        let term = "(reduce_scatter (reduce_scatter ?x ?o ?d ?m ?a) ?o ?d ?m ?b)";
        assert!(prove_rule(&nested(true, term).compile().unwrap()).is_ok());
        assert!(matches!(
            prove_rule(&nested(false, term).compile().unwrap()),
            Err(RuleProofError::Refuted { .. })
        ));
    }
}
