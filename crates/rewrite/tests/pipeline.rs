//! The pipeline: what it refuses, what it writes down, and its limits.

mod common;

use shardweld_ir::Graph;
use shardweld_rewrite::{
    Boundary, CertificateStep, Class, Exactness, Options, PASSES, RewriteError, TargetProfile, optimise,
    optimise_observed,
};

fn program(body: &str) -> Graph {
    Graph::from_text("test", &format!("swir 1\ngraph \"test\"\nmesh [cp=2, tp=2]\n{body}")).unwrap()
}

fn options(profile: &str) -> Options {
    Options { profile: Some(TargetProfile::named(profile).unwrap()), ..Options::default() }
}

const RTX: &str = "tensorrt-rtx-1.7.1";

const GATHER: &str = r#"%x = input() name="x" : bf16[4]
%y = all_gather(%x) dim=0 group=[cp] : bf16[8] ; from "gather", "wait"
%z = all_gather(%y) dim=0 group=[tp] : bf16[16]
return "z" = %z
"#;

#[test]
fn a_target_without_profile_is_an_error() {
    let e = optimise(&program(GATHER), &Options::default()).unwrap_err();
    assert!(matches!(e, RewriteError::NoProfile), "{e}");
}

#[test]
fn unknown_passes_inputs_and_axes_are_named() {
    let mut o = options(RTX);
    o.passes = vec!["inline".into()];
    let e = optimise(&program(GATHER), &o).unwrap_err().to_string();
    assert!(e.contains("`inline`") && e.contains("rewrite-windows"), "{e}");
    for (input, axis, found) in [("w", "cp", "input `w`"), ("x", "dp", "mesh axis `dp`")] {
        let mut o = options(RTX);
        o.replicated_inputs.insert(input.into(), vec![axis.into()]);
        let e = optimise(&program(GATHER), &o).unwrap_err().to_string();
        assert!(e.contains(found), "{e}");
    }
}

#[test]
fn passes_are_observed_in_order() {
    let mut seen = Vec::new();
    optimise_observed(&program(GATHER), &options(RTX), &mut |pass, _| seen.push(pass)).unwrap();
    assert_eq!(seen, PASSES.iter().map(|p| p.name).collect::<Vec<_>>());
    let mut o = options(RTX);
    o.passes = vec!["remove-dead".into()];
    let r = optimise(&program(GATHER), &o).unwrap();
    assert_eq!(r.report.passes.len(), 1);
    assert!(r.certificate.steps.is_empty());
}

#[test]
fn merged_gathers_carry_both_names_and_the_rule() {
    let r = optimise(&program(GATHER), &options(RTX)).unwrap();
    let [first, second] = r.report.collectives.as_slice() else { panic!("{:?}", r.report.collectives) };
    assert_eq!(first.sources, ["gather", "wait"]);
    assert_eq!(first.after, second.after);
    assert_eq!(first.rules, ["all_gather_of_all_gather"]);
    let node = r.graph.find(&first.after[0].node).unwrap();
    assert_eq!(r.graph.node(node).sources, ["gather", "wait", "z"]);
}

#[test]
fn certificates_are_bound_to_source_and_result() {
    let source = program(GATHER);
    let r = optimise(&source, &options(RTX)).unwrap();
    let hash = |g: &Graph| g.content_hash().unwrap().to_hex().to_string();
    assert_eq!(r.certificate.source, hash(&source));
    assert_eq!(r.certificate.result, hash(&r.graph));
    assert_ne!(r.certificate.source, r.certificate.result);
    let [CertificateStep::Windows { derivations, places }] = r.certificate.steps.as_slice() else {
        panic!("{:?}", r.certificate.steps)
    };
    assert_eq!(derivations[0].source, "(all_gather (all_gather $0 0 @0) 0 @1)");
    let last = derivations[0].steps.last().unwrap();
    assert_eq!(last.term, "(all_gather $0 0 @1,0)");
    assert!(last.forward);
    assert_eq!(places[0].live, ["x"]);
    let text = serde_json::to_string(&r.certificate).unwrap();
    assert_eq!(serde_json::from_str::<shardweld_rewrite::Certificate>(&text).unwrap(), r.certificate);
}

#[test]
fn stopping_at_a_window_leaves_the_rest() {
    let body = r#"%x = input() name="x" : f32[4]
%a = all_gather(%x) dim=0 group=[] : f32[4]
%b = neg(%a) : f32[4]
%c = all_gather(%b) dim=0 group=[] : f32[4]
%d = neg(%c) : f32[4]
return "d" = %d
"#;
    for (stop, left) in [(Some(0), 2), (Some(1), 1), (None, 0)] {
        let o = Options { stop_after: stop, ..options(RTX) };
        let r = optimise(&program(body), &o).unwrap();
        let collectives = r.graph.nodes().filter(|(_, n)| n.op.collective().is_some()).count();
        assert_eq!(collectives, left, "stop after {stop:?}");
    }
}

#[test]
fn identical_windows_are_solved_once() {
    let mut body = String::from("%v0 = input() name=\"x\" : bf16[4]\n");
    for i in 0..20 {
        body += &format!(
            "%a{i} = cast(%v{i}) : f32[4]\n%b{i} = all_to_all(%a{i}) split_dim=0 concat_dim=0 group=[cp] : f32[4]\n%c{i} = cast(%b{i}) : bf16[4]\n%v{} = neg(%c{i}) : bf16[4]\n",
            i + 1
        );
    }
    body += "return \"out\" = %v20\n";
    let r = optimise(&program(&body), &options(RTX)).unwrap();
    assert_eq!((r.report.counters.windows, r.report.counters.windows_solved), (20, 1));
    assert_eq!(r.report.counters.windows_rewritten, 20);
    assert!(r.graph.nodes().all(|(_, n)| n.op.name() != "cast"));
}

#[test]
fn long_chains_are_cut_and_stay_correct() {
    let mut body = String::from("%v0 = input() name=\"x\" : f32[4,4]\n");
    for i in 0..100 {
        body += &match i % 3 {
            0 => format!("%v{} = transpose(%v{i}) perm=[1, 0] : f32[4,4]\n", i + 1),
            1 => format!("%v{} = all_to_all(%v{i}) split_dim=0 concat_dim=0 group=[cp] : f32[4,4]\n", i + 1),
            _ => format!("%v{} = all_reduce(%v{i}) op=max group=[tp] : f32[4,4]\n", i + 1),
        };
    }
    body += "return \"out\" = %v100\n";
    let source = program(&body);
    let r = optimise(&source, &options(RTX)).unwrap();
    assert!(r.report.counters.windows_shrunk > 0);
    let inputs = common::inputs(&source, 3);
    let (a, b) = (common::outputs(&source, &inputs).unwrap(), common::outputs(&r.graph, &inputs).unwrap());
    assert_eq!(common::difference(&a, &b, Class::Nan), None);
}

#[test]
fn accuracy_is_reported_and_bit_refuses_it() {
    let body = r#"%x = input() name="x" : bf16[4]
%y = all_reduce(%x) op=sum group=[cp, tp] : bf16[4]
return "y" = %y
"#;
    let r = optimise(&program(body), &options("tensorrt-11.0")).unwrap();
    assert_eq!(r.report.class, Class::Accuracy);
    assert_eq!(r.report.counters.directed, 1);
    let bit = Options { exactness: Exactness::Bit, ..options("tensorrt-11.0") };
    let e = optimise(&program(body), &bit).unwrap_err().to_string();
    assert!(e.contains("node `y`") && e.contains("reduce_in_f32") && e.contains("accuracy"), "{e}");
    let ordered = Options { exactness: Exactness::Bit, boundary: Boundary::F32, ..options("tensorrt-11.0") };
    assert_eq!(optimise(&program(body), &ordered).unwrap().report.class, Class::Accuracy);
}

#[test]
fn an_invalid_source_is_refused() {
    let body = r#"%x = input() name="x" : f32[4]
%y = reduce_to(%x) op=sum root=0 group=[cp, tp] : f32[4]
return "y" = %y
"#;
    let e = optimise(&program(body), &options(RTX)).unwrap_err();
    assert!(matches!(e, RewriteError::Verify(_)), "{e}");
}
