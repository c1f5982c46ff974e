//! The repository's sample programs through the library: one program for all ranks, and forms that hold it whole.

use std::path::{Path, PathBuf};

use shardweld_ir::{Graph, Op, WeightStore};
use shardweld_torch::{Groups, Source, load};

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples")
}

fn context_parallel() -> Graph {
    let file = |rest: &str| samples().join(format!("ltx2_tiny_cp8/ltx2_tiny_cp8.{rest}"));
    let groups = Groups::read(&[file("rank0.json")]).unwrap();
    load(&[Source::for_all(file("rank0.pt2"))], Some(&groups), &WeightStore::new()).unwrap()
}

fn tensor_parallel() -> Graph {
    let file = |rank: u32, ext: &str| {
        samples().join(format!("ltx23_tiny_cp4tp2/ltx23_tiny_cp4tp2.rank{rank}.{ext}"))
    };
    let sides: Vec<PathBuf> = (0..8).map(|r| file(r, "json")).collect();
    let sources: Vec<Source> = (0..8).map(|r| Source::for_ranks(file(r, "pt2"), [r])).collect();
    load(&sources, Some(&Groups::read(&sides).unwrap()), &WeightStore::new()).unwrap()
}

#[test]
fn forms_hold_a_real_program_whole() {
    for g in [context_parallel(), tensor_parallel()] {
        let hash = g.content_hash().unwrap();
        assert_eq!(Graph::from_text("t.swir", &g.to_text().unwrap()).unwrap().content_hash().unwrap(), hash);
        assert_eq!(
            Graph::from_json("t.json", g.to_json().unwrap().as_bytes()).unwrap().content_hash().unwrap(),
            hash
        );
    }
}

/// Eight files with eight sets of group names; context parallel ranks share their weights.
#[test]
fn eight_graphs_are_one_program() {
    let g = tensor_parallel();
    let tp = g.mesh().axis("tp").unwrap();
    let groups: Vec<_> = g.nodes().filter_map(|(_, n)| n.op.collective().map(|(_, g)| g.clone())).collect();
    assert!(groups.iter().all(|x| matches!(x, shardweld_ir::Group::Axes(a) if a.len() == 1)), "{groups:?}");
    assert!(g.weights().iter().all(|w| w.over.iter().all(|a| *a == tp)), "cp ranks share weights");
    assert!(g.nodes().all(|(_, n)| !matches!(n.op, Op::AxisSelect { axis } if axis != tp)));
}
