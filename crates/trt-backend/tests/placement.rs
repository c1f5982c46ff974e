//! The placement report: forms of the log, and every way in which an engine can lack what the network has.
#![cfg(feature = "live")]

mod support;

use shardweld_ir::{AxisId, Collective, DType, Group, Op, ReduceOp};
use shardweld_trt::placement::{
    EngineLayer, Placement, PlacementError, PlacementReport, layers_from_inspector, layers_from_log,
};
use shardweld_trt::trace::NetworkTrace;
use support::Program;

/// Two collectives that stand for three nodes of the source.
fn trace() -> NetworkTrace {
    let mut p = Program::new(&[("cp", 2), ("tp", 2)]);
    let x = p.input("x", DType::BF16, &[4, 8]);
    let group = Group::axis(AxisId(0));
    let g = p.add(
        "gather",
        Op::Collective { kind: Collective::AllGather { dim: 0 }, group: group.clone() },
        &[x],
    );
    p.0.set_sources(g, vec!["k".into(), "v".into()]);
    let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
    let s = p.add("s um", Op::Collective { kind, group }, &[g]);
    p.output(s);
    p.lower(1)
}

fn log(lines: &[(&str, &str)]) -> String {
    let mut text = String::from("[noise] Layers are coming\nLayers:\n");
    for (name, ty) in lines {
        text += &format!(
            "Name: {name}, LayerType: {ty}, Inputs: [ {{ Name: x, Dimensions: [4,8] }}], StreamId: 0\n"
        );
    }
    text + "\nI/O Tensors:\n Name: x, IOMode: Input\nEngine Metadata:\nName: not a layer, LayerType: comm_allreduce\n"
}

fn report(lines: &[(&str, &str)]) -> Result<PlacementReport, PlacementError> {
    PlacementReport::new(&trace(), &layers_from_log(&log(lines))?)
}

#[test]
fn fused_and_standalone_collectives_are_told_apart() {
    let r = report(&[
        ("gather_myl0_12", "comm_allgather"),
        ("__myl_Sin_myl0_3", "kgen"),
        ("s%20um", "DistCollective"),
    ])
    .unwrap();
    assert_eq!(r.engine_layers, 3);
    assert_eq!(r.counts(), (1, 1));
    let [g, s] = r.collectives.as_slice() else { panic!("{r:?}") };
    assert_eq!((g.placement, s.placement), (Placement::Fused, Placement::Standalone));
    assert_eq!(
        (g.sources.as_slice(), s.layer.as_str()),
        (["k".to_owned(), "v".to_owned()].as_slice(), "s um")
    );
    assert_eq!(
        (g.ranks.as_slice(), g.rank_count, g.operand_bytes, g.wire_bytes),
        ([1, 3].as_slice(), 2, 64, 64)
    );
    assert_eq!((s.operand_bytes, s.wire_bytes), (128, 128));
    r.require_sources(&["k".into(), "v".into(), "s um".into()]).unwrap();
    let e = r.require_sources(&["k".into(), "lost".into()]).unwrap_err();
    assert_eq!(e, PlacementError::SourceMissing(vec!["lost".into()]));
}

#[test]
fn merged_layers_carry_both_names() {
    let r = PlacementReport::new(
        &{
            let mut p = Program::new(&[("tp", 2)]);
            let x = p.input("x", DType::F32, &[4]);
            for name in ["a", "b"] {
                let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
                let y = p.add(name, Op::Collective { kind, group: Group::axis(AxisId(0)) }, &[x]);
                p.output(y);
            }
            p.lower(0)
        },
        &layers_from_log(&log(&[("a + b_myl0_1", "comm_allreduce")])).unwrap(),
    )
    .unwrap();
    assert!(r.collectives.iter().all(|c| c.engine_layer == "a + b_myl0_1"));
}

#[test]
fn a_collective_left_out_of_the_engine_is_an_error() {
    let e = report(&[("gather_myl0_12", "comm_allgather")]).unwrap_err();
    assert_eq!(e, PlacementError::Missing { missing: vec!["s um (from s um)".into()], total: 2 });
    let e = report(&[("__myl_Sin_myl0_3", "kgen")]).unwrap_err();
    assert!(e.to_string().contains("gather (from k, v)"), "{e}");
}

#[test]
fn a_collective_that_is_there_twice_is_an_error() {
    let lines = [
        ("gather_myl0_12", "comm_allgather"),
        ("gather_myl0_13", "comm_allgather"),
        ("s%20um", "DistCollective"),
    ];
    assert!(matches!(report(&lines), Err(PlacementError::Twice { .. })));
}

#[test]
fn foreign_and_wrong_collectives_are_errors() {
    let ok = [("gather_myl0_12", "comm_allgather"), ("s%20um", "DistCollective")];
    let with = |extra: (&str, &str)| report(&[ok[0], ok[1], (extra.0, extra.1)]);
    assert!(matches!(with(("other_myl0_1", "comm_allgather")), Err(PlacementError::Unknown { .. })));
    assert!(with(("other_myl0_1", "kgen")).is_ok());
    let wrong = [("gather_myl0_12", "comm_allreduce"), ok[1]];
    assert!(matches!(report(&wrong), Err(PlacementError::WrongKind { .. })));
}

#[test]
fn a_log_without_a_listing_is_an_error() {
    assert_eq!(layers_from_log("nothing here"), Err(PlacementError::NoListing));
    assert_eq!(layers_from_log("Layers:\n"), Err(PlacementError::NoListing));
    assert!(matches!(layers_from_log("Layers:\nName: x\n"), Err(PlacementError::Unreadable(_))));
}

#[test]
fn the_inspector_says_the_same() {
    let json = r#"{"Layers": [{"Name": "gather_myl0_12", "LayerType": "comm_allgather"},
                              {"Name": "s%20um", "LayerType": "DistCollective", "Extra": 1}], "Bindings": []}"#;
    let layers = layers_from_inspector(json).unwrap();
    assert_eq!(layers[0], EngineLayer { name: "gather_myl0_12".into(), layer_type: "comm_allgather".into() });
    assert_eq!(
        PlacementReport::new(&trace(), &layers).unwrap(),
        report(&[("gather_myl0_12", "comm_allgather"), ("s%20um", "DistCollective")]).unwrap()
    );
    for bad in ["", "[]", "{\"Layers\": [\"only a name\"]}", "{\"Layers\": 3}"] {
        assert!(matches!(layers_from_inspector(bad), Err(PlacementError::Unreadable(_))), "{bad}");
    }
}
