//! Text and JSON forms: exact round trips, and refusals that name the place.

use std::time::Instant;

use proptest::prelude::*;
use shardweld_ir::testing::{ProgramOptions, Rng, random_program};
use shardweld_ir::text::TextErrorKind;
use shardweld_ir::{
    AxisId, Binary, DType, Dim, Graph, Group, Literal, Mesh, Op, Scalar, Shape, SymbolicDim, TensorType,
    Unary, Value, Weight, WeightView,
};

fn random(seed: u64) -> Graph {
    let options =
        ProgramOptions { nodes: 5 + (seed % 60) as usize, weights: true, ..ProgramOptions::default() };
    random_program(seed, &options)
}

fn round_trips(g: &Graph) {
    let text = g.to_text().unwrap();
    let read = Graph::from_text("t.swir", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(read.to_text().unwrap(), text);
    let json = g.to_json().unwrap();
    let from_json = Graph::from_json("t.json", json.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{json}"));
    assert_eq!(from_json.to_json().unwrap(), json);
    // Both forms say the same, and say everything: nodes, order, weights, outputs.
    assert_eq!(from_json.to_text().unwrap(), text);
    assert_eq!(read.weights(), g.weights());
    let nodes = |g: &Graph| -> Vec<_> {
        let mut n: Vec<_> =
            g.nodes().map(|(_, n)| (n.name.clone(), n.op.clone(), n.results.clone())).collect();
        n.sort_by(|a, b| a.0.cmp(&b.0));
        n
    };
    assert_eq!(nodes(&read), nodes(g));
    let public = |g: &Graph| -> Vec<_> { g.inputs().iter().map(|i| g.node(*i).name.clone()).collect() };
    assert_eq!(public(&read), public(g));
    assert_eq!(read.content_hash().unwrap(), g.content_hash().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_verify_and_round_trip(seed in any::<u64>()) {
        let g = random(seed);
        g.verify().map_err(|e| TestCaseError::fail(e.to_string()))?;
        round_trips(&g);
        prop_assert_eq!(g.to_text().unwrap(), random(seed).to_text().unwrap());
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = Graph::from_text("t", &text);
        let _ = Graph::from_text("t", &format!("swir 1\nmesh [a=2]\n{text}"));
        let _ = Graph::from_json("t", &bytes);
    }

    #[test]
    fn changed_texts_never_panic(seed in any::<u64>(), edits in 1usize..6) {
        let mut rng = Rng::new(seed);
        let mut text = random(seed % 64).to_text().unwrap().into_bytes();
        const PIECES: &[&str] = &["(", ")", "[", "{", "\"", "%", "#9", ",", " ", "=", "-", "99999999999999999999",
            "18446744073709551615", "\n", "f32", "nan:0x0", "x\"0", "//", ";", "\\u{d800}", "é", "absent"];
        for _ in 0..edits {
            let at = rng.below(text.len());
            match rng.below(3) {
                0 => { text.remove(at); }
                1 => { let piece = rng.pick(PIECES).unwrap(); text.splice(at..at, piece.bytes()); }
                _ => { let other = rng.below(text.len()); text.swap(at, other); }
            }
            if text.is_empty() { break; }
        }
        let text = String::from_utf8_lossy(&text);
        if let Ok(g) = Graph::from_text("t", &text) {
            let _ = g.verify();
            let printed = g.to_text().unwrap();
            prop_assert_eq!(Graph::from_text("t", &printed).unwrap().to_text().unwrap(), printed);
        }
    }

    #[test]
    fn changed_json_never_panics(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let mut json = random(seed % 64).to_json().unwrap().into_bytes();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(json.len());
            json[at] = *rng.pick(b"0129-\"{}[],:aex").unwrap();
        }
        if let Ok(g) = Graph::from_json("t", &json) {
            let _ = g.verify();
            round_trips(&g);
        }
    }
}

/// The generator is of use only if what it makes is varied.
#[test]
fn random_programs_hold_every_kind_of_op() {
    let mut seen = std::collections::BTreeSet::new();
    let mut nodes = 0;
    for seed in 0..400 {
        let g = random(seed);
        nodes += g.len();
        seen.extend(g.nodes().map(|(_, n)| n.op.name()));
    }
    let wanted = [
        "input",
        "weight",
        "constant",
        "iota",
        "cast",
        "neg",
        "add",
        "select",
        "matmul",
        "reduce",
        "softmax",
        "normalize",
        "attention",
        "reshape",
        "transpose",
        "broadcast",
        "slice",
        "update_slice",
        "split",
        "concat",
        "pad",
        "gather",
        "conv",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast_from",
        "reduce_to",
        "gather_to",
        "scatter_from",
        "own_slice",
        "own_pad",
        "axis_select",
        "group_rank",
    ];
    let missing: Vec<_> = wanted.iter().filter(|w| !seen.contains(*w)).collect();
    assert!(missing.is_empty(), "never generated: {missing:?}");
    assert!(nodes > 400 * 20, "programs are too short: {nodes} nodes in 400 programs");
}

#[test]
fn odd_names_and_values_round_trip() {
    let mesh = Mesh::new([("0", 2), ("inf", 2), ("x", 1), ("_a1", 1)]).unwrap();
    let mut g = Graph::new("a \"b\"\n\\ é \u{7f}\r", mesh);
    let odd = [
        "",
        " ",
        "%",
        "a b",
        "1",
        "inf",
        "x\"",
        "é",
        "\n",
        "\\u{41}",
        "\r\t\0",
        "// no comment",
        "a:b",
        "a#1",
    ];
    let mut last = None;
    for (i, name) in odd.iter().enumerate() {
        let id = g.add_input_as(name, name, TensorType::new(DType::F32, &[i as u64])).unwrap();
        g.set_sources(id, odd.iter().map(|s| (*s).to_owned()).collect());
        last = Some(id);
        g.add_output(name, id).unwrap();
    }
    let x: Value = last.unwrap().into();
    for bits in [
        0u64,
        1 << 63,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        0x7ff8_0000_0000_0001,
        0xfff0_0000_0000_0001,
        1,
    ] {
        let scalar = Scalar::Float(f64::from_bits(bits));
        for scalar_first in [false, true] {
            g.add("s", Op::BinaryScalar { op: Binary::Add, scalar, scalar_first }, &[x]).unwrap();
        }
        let ty = TensorType::new(DType::F64, &[2]);
        let data: Vec<u8> = [bits, bits].iter().flat_map(|b| b.to_le_bytes()).collect();
        g.add("c", Op::Constant(Literal::dense(ty, data).unwrap()), &[]).unwrap();
    }
    for dtype in DType::ALL {
        let element = vec![0xffu8; dtype.size()];
        let ty = TensorType::new(dtype, &[3]);
        g.add("c", Op::Constant(Literal::splat(ty.clone(), element.clone()).unwrap()), &[]).unwrap();
        g.add("c", Op::Constant(Literal::dense(ty, element.repeat(3)).unwrap()), &[]).unwrap();
        let empty = TensorType::new(dtype, &[0]);
        g.add("c", Op::Constant(Literal::dense(empty, vec![]).unwrap()), &[]).unwrap();
    }
    let symbol =
        Dim::Symbol(SymbolicDim { name: "s \"0\"".into(), min: 1, opt: 4, max: u64::MAX, multiple_of: 2 });
    let ty = TensorType { dtype: DType::BF16, shape: Shape(vec![symbol, Dim::Static(4)]) };
    let s = g.add_input("dynamic", ty).unwrap();
    g.add("e", Op::Unary(Unary::Exp), &[s.into()]).unwrap();
    let axes: Vec<AxisId> = [2, 1, 0].map(AxisId).to_vec();
    let r = g.add_input("r", TensorType::new(DType::F32, &[4])).unwrap();
    g.add("o", Op::OwnSlice { dim: 0, group: Group::Axes(axes.clone()) }, &[r.into()]).unwrap();
    let weight = Weight {
        name: odd.concat(),
        ty: TensorType::new(DType::F32, &[1]),
        over: axes,
        shards: vec![WeightView::Absent; 4],
    };
    let id = g.add_weight(weight).unwrap();
    g.add("w", Op::Weight(id), &[]).unwrap();
    g.verify().unwrap();
    round_trips(&g);
}

/// Inputs that were declared after other nodes keep their order.
#[test]
fn inputs_declared_late_keep_their_order() {
    let mut g = Graph::new("late", Mesh::new([("tp", 2)]).unwrap());
    let ty = TensorType::new(DType::F32, &[4]);
    let x = g.add_input("x", ty.clone()).unwrap();
    let e = g.add("e", Op::Unary(Unary::Exp), &[x.into()]).unwrap();
    let dead = g.add("dead", Op::Unary(Unary::Exp), &[x.into()]).unwrap();
    let y = g.add_input("y", ty).unwrap();
    g.add_output("out", e).unwrap();
    assert_eq!(g.remove_dead(), 1);
    assert!(g.try_node(dead).is_none());
    let sum = g.add("sum", Op::Binary(Binary::Add), &[y.into(), e.into()]).unwrap();
    g.add_output("sum", sum).unwrap();
    round_trips(&g);
    let read = Graph::from_text("t", &g.to_text().unwrap()).unwrap();
    let names: Vec<_> = read.inputs().iter().map(|i| read.node(*i).name.as_str()).collect();
    assert_eq!(names, ["x", "y"]);
}

const HEAD: &str = "swir 1\ngraph \"g\"\nmesh [cp=2, tp=2]\n%x = input() name=\"x\" : f32[4,8]\n";

/// Refused with this message, at this line and column.
fn refused(body: &str, at: (usize, usize), message: &str) {
    let error = Graph::from_text("bad.swir", &format!("{HEAD}{body}")).expect_err(body);
    assert_eq!((error.line, error.column), at, "{error}");
    assert!(error.to_string().starts_with("bad.swir:"), "{error}");
    assert!(error.to_string().contains(message), "`{error}` does not say `{message}`");
}

#[test]
fn dangling_and_cyclic_references_are_refused() {
    refused("%y = exp(%z) : f32[4,8]\n", (5, 10), "found `%z`, which no line before defines");
    refused("%y = exp(%y) : f32[4,8]\n", (5, 10), "`%y`");
    refused("%a = exp(%b) : f32[4,8]\n%b = exp(%a) : f32[4,8]\n", (5, 10), "`%b`");
    refused("return \"o\" = %z\n", (5, 14), "`%z`");
    refused("%y = exp(%x#1) : f32[4,8]\n", (5, 10), "result #1 of `%x`, which has 1");
    refused("%x = exp(%x) : f32[4,8]\n", (5, 1), "used twice");
    refused("return \"o\" = %x\nreturn \"o\" = %x\n", (6, 1), "output name `o` is used twice");
    refused("%y = input() name=\"x\" : f32[4,8]\n", (5, 1), "input name `x` is used twice");
}

#[test]
fn wrong_types_and_attributes_are_refused() {
    refused("%y = exp(%x) : f32[4,9]\n", (5, 1), "written with type f32[4,9], the shape rules give f32[4,8]");
    refused("%y = exp(%x) : f32[4,8], f32[4,8]\n", (5, 1), "written with type");
    refused("%y = exp(%x) : f33[4,8]\n", (5, 16), "element type `f33`, expected one of f32");
    refused("%y = foo(%x) : f32[4,8]\n", (5, 6), "op `foo`");
    refused("%y = exp(%x) dim=1 : f32[4,8]\n", (5, 6), "attribute `dim`");
    refused("%y = softmax(%x) : f32[4,8]\n", (5, 6), "expected attribute `dim`");
    refused("%y = softmax(%x) dim=a : f32[4,8]\n", (5, 6), "found dim=`a`, expected a whole number");
    refused("%y = softmax(%x) dim=1 dim=1 : f32[4,8]\n", (5, 24), "each attribute once");
    refused("%y = softmax(%x) dim=2 : f32[4,8]\n", (5, 1), "node `y` (softmax): dimension 2");
    refused("%y = all_gather(%x) dim=0 group=[dp] : f32[8,8]\n", (5, 6), "mesh [cp=2, tp=2]");
    refused("%y = all_gather(%x) dim=0 group={{0,1},{2}} : f32[8,8]\n", (5, 1), "do not split the 4 ranks");
    refused("%y = own_slice(%x) dim=0 group={{0,1,2}} : f32[8,8]\n", (5, 1), "rank 3");
    refused("%w = weight() name=\"w\" : f32[4]\n", (5, 6), "declared before");
    refused("weight \"w\" : f32[2] over [dp] = [absent]\n", (5, 26), "an axis of the mesh");
    refused(
        "%c = constant() splat=1.5 : i64[4]\n%d = constant() data=[1, 2] : i64[3]\n",
        (6, 6),
        "another size",
    );
    refused("%c = constant() splat=256 : u8[4]\n", (5, 6), "a value of u8");
}

#[test]
fn broken_syntax_is_refused() {
    refused("%y = exp(%x : f32[4,8]\n", (5, 13), "found `:`, expected `)`");
    refused("%y = exp(%x) : f32[4,8] f\n", (5, 25), "expected the end of the line");
    refused("%é = exp(%x) : f32[4,8]\n", (5, 2), "expected a value's name");
    refused("return \"é\" %x\n", (5, 12), "found `%`, expected `=`");
    refused("return \"o = %x\n", (5, 15), "at the end of the string");
    refused("hello\n", (5, 1), "found `hello`, expected `%`, `weight` or `return`");
    let deep = format!("%y = softmax(%x) dim={}1 : f32[4,8]\n", "[".repeat(100_000));
    refused(&deep, (5, 55), "deeper nesting");
    let many =
        format!("%y = exp(%x) {}: f32[4,8]\n", (0..100).map(|i| format!("a{i}=1 ")).collect::<String>());
    let error = Graph::from_text("t", &format!("{HEAD}{many}")).unwrap_err();
    assert!(matches!(*error.kind, TextErrorKind::Limit { limit: 16, .. }), "{error}");
    for (text, message) in [
        ("", "expected `swir 1`"),
        ("swir 2\n", "expected 1"),
        ("graph \"g\"\n", "expected `swir`"),
        ("swir 1\n%x = input() name=\"x\" : f32[4]\n", "expected `graph` or `mesh`"),
        ("swir 1\nmesh [a=0]\n", "size 0"),
        ("swir 1\nmesh [a=70000]\n", "ranks"),
        ("swir 1\nmesh [a=2, a=2]\n", "repeated"),
        ("swir 1\nmesh [a=99999999999]\n", "32 bits"),
        ("swir 1\nmesh []\n%x = input() name=\"x\" : f32[9223372036854775807,9]\n", "larger than memory"),
    ] {
        let error = Graph::from_text("t", text).expect_err(text);
        assert!(error.to_string().contains(message), "`{error}` does not say `{message}`");
    }
    let ok = format!("// a comment\n\n{HEAD}  %y   =exp( %x ):f32[ 4 , 8 ]// another\r\n");
    assert!(Graph::from_text("t", &ok).is_ok());
}

#[test]
fn json_is_checked_on_load() {
    let g = Graph::from_text("t", &format!("{HEAD}%y = exp(%x) : f32[4,8]\nreturn \"o\" = %y\n")).unwrap();
    let json = g.to_json().unwrap();
    for (from, to, message) in [
        ("\"version\":1", "\"version\":2", "version 2, expected `shardweld-ir` version 1"),
        ("shardweld-ir", "other", "format `other`"),
        (
            "[4,8]}],\"sources\":[]}],\"outputs",
            "[4,9]}],\"sources\":[]}],\"outputs",
            "the shape rules give f32[4,8]",
        ),
        ("\"operands\":[[0,0]]", "\"operands\":[[1,0]]", "uses [1, 0]"),
        ("\"operands\":[[0,0]]", "\"operands\":[[0,1]]", "uses [0, 1]"),
        ("\"value\":[1,0]", "\"value\":[18446744073709551615,0]", "stands before"),
        ("{\"unary\":\"exp\"}", "{\"unary\":\"expo\"}", "expo"),
        ("{\"unary\":\"exp\"}", "{\"softmax\":{\"dim\":2}}", "dimension 2"),
        ("\"name\":\"y\"", "\"name\":\"x\"", "used twice"),
        ("\"size\":2", "\"size\":0", "size 0"),
        ("\"sources\"", "\"source\"", "source"),
    ] {
        let changed = json.replacen(from, to, 1);
        assert_ne!(changed, json, "{from} does not occur in {json}");
        let error = Graph::from_json("g.json", changed.as_bytes()).expect_err(to).to_string();
        assert!(error.contains(message), "`{error}` does not say `{message}`");
        assert!(error.contains("g.json"), "{error}");
    }
}

/// A literal from JSON whose data do not fill its type must not get into a graph.
#[test]
fn json_literals_are_checked() {
    let text = "swir 1\nmesh []\n%c = constant() data=[1.0, 2.0] : f32[2]\nreturn \"o\" = %c\n";
    let json = Graph::from_text("t", text).unwrap().to_json().unwrap();
    assert!(json.contains("0000803f00000040"), "{json}");
    let short = json.replace("0000803f00000040", "0000803f000000");
    let error = Graph::from_json("t", short.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("do not fill"), "{error}");
}

#[test]
fn hashes_tell_meaning_from_names() {
    let text = |name: &str, op: &str| {
        format!("{HEAD}%{name} = {op}(%x) : f32[4,8] ; from \"{name}\"\nreturn \"o\" = %{name}\n")
    };
    let read = |t: String| Graph::from_text("t", &t).unwrap();
    let (a, b, c) = (read(text("a", "exp")), read(text("b", "exp")), read(text("a", "sin")));
    assert_ne!(a.content_hash().unwrap(), b.content_hash().unwrap());
    assert_eq!(a.meaning_hash().unwrap(), b.meaning_hash().unwrap());
    assert_ne!(a.meaning_hash().unwrap(), c.meaning_hash().unwrap());
}

/// As large as the largest real graph: building, printing and parsing stay linear.
#[test]
fn a_graph_of_forty_thousand_nodes_is_quick() {
    const NODES: u64 = 40_000;
    let start = Instant::now();
    let mut g = Graph::new("large", Mesh::new([("cp", 4), ("tp", 2)]).unwrap());
    let mut last: Value = g.add_input("x", TensorType::new(DType::BF16, &[1, 1536, 4096])).unwrap().into();
    for i in 1..NODES {
        let op = match i % 4 {
            0 => Op::Unary(Unary::Exp),
            1 => Op::BinaryScalar { op: Binary::Mul, scalar: Scalar::Float(0.1), scalar_first: false },
            2 => Op::Binary(Binary::Add),
            _ => Op::Transpose { perm: vec![0, 2, 1] },
        };
        let operands = if matches!(op, Op::Binary(_)) { vec![last, last] } else { vec![last] };
        let id = g.add("node", op, &operands).unwrap();
        g.set_sources(id, vec![format!("aten_op_{i}")]);
        last = id.into();
    }
    g.add_output("y", last).unwrap();
    let built = start.elapsed();
    let text = g.to_text().unwrap();
    let printed = start.elapsed() - built;
    let read = Graph::from_text("t", &text).unwrap();
    let parsed = start.elapsed() - built - printed;
    read.verify().unwrap();
    let total = start.elapsed();
    println!(
        "build {built:?}, print {printed:?}, parse {parsed:?}, all with verify {total:?}, {} bytes",
        text.len()
    );
    assert_eq!(read.len() as u64, NODES);
    // Far above what it takes (release: a tenth of a second), far below what anything quadratic takes.
    assert!(total.as_secs() < 20, "{total:?}");
}

#[test]
fn views_in_text_are_checked() {
    let refused = |view: &str, message: &str| {
        let text = format!("swir 1\nmesh []\nweight \"w\" : f32[2] = [{view}]\n");
        let error = Graph::from_text("t", &text).expect_err(view);
        assert_eq!((error.line, error.column), (3, 24), "{error}");
        assert!(error.to_string().contains(message), "`{error}` does not say `{message}`");
    };
    refused("tar(\"f\", f32[2])", "zip(..), raw(..)");
    refused("1", "absent, concat(..)");
    refused("zip(\"f\", f32[2])", "a quoted entry name");
    refused("raw(\"f\", 0, -1, f32[2])", "the number of bytes");
    refused("zip(\"f\", \"e\")", "a type in zip(..)");
    refused("zip(\"f\", \"e\", f32[dim(\"t\", 1, 1, 1, 1)])", "numbers as sizes");
    refused("zip(\"f\", \"e\", f32[2], stride=[1])", "strides=[..] or offset=N");
    refused("zip(\"f\", \"e\", f32[2], offset=1, offset=2)", "once");
    refused("concat(absent, absent)", "a dimension");
    let nested = format!("swir 1\nmesh []\nweight \"w\" : f32[2] = [{}]\n", "concat(0, ".repeat(100_000));
    assert!(Graph::from_text("t", &nested).is_err());
}
