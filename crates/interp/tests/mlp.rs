//! A tensor-parallel MLP built by hand, against what PyTorch computed on two real processes.

use std::path::{Path, PathBuf};

use shardweld_interp::{Named, Tensor, distance, run, tensor_file};
use shardweld_ir::{
    AxisId, Blob, BlobEntry, Builder, DType, Graph, Mesh, NormKind, ReduceOp, StridedView, TensorType, Unary,
    Value, Weight, WeightStore, WeightView,
};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/mlp_tp2").join(name)
}

/// A parameter as the export stores it: entry `weight_N` of each rank's archive.
fn weight(b: &mut Builder, name: &str, entry: u32, shape: &[u64]) -> Value {
    let shards = (0..2)
        .map(|rank| {
            let archive = format!("mlp_tp2.rank{rank}");
            let blob = Blob {
                file: sample(&format!("{archive}.pt2")),
                entry: BlobEntry::Zip(format!("{archive}/data/weights/weight_{entry}")),
            };
            WeightView::Strided(StridedView::contiguous(blob, DType::F32, shape))
        })
        .collect();
    let ty = TensorType::new(DType::F32, shape);
    b.weight_from(Weight { name: name.to_owned(), ty, over: vec![AxisId(0)], shards }).unwrap()
}

fn mlp(reduces: bool) -> Graph {
    let mut b = Builder::new("mlp_tp2", Mesh::new([("tp", 2)]).unwrap());
    let x = b.input("x", DType::F32, &[2, 6, 32]).unwrap();
    let [norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias] = [
        weight(&mut b, "norm.weight", 0, &[32]),
        weight(&mut b, "norm.bias", 1, &[32]),
        weight(&mut b, "up.weight", 2, &[32, 32]),
        weight(&mut b, "up.bias", 3, &[32]),
        weight(&mut b, "down.weight", 4, &[32, 32]),
        weight(&mut b, "down.bias", 5, &[32]),
    ];
    let normed = b.normalize(x, NormKind::Layer, 1, 1e-5, Some(norm_weight), Some(norm_bias)).unwrap();
    let up = b.linear(normed, up_weight, Some(up_bias)).unwrap();
    let active = b.unary(Unary::GeluTanh, up).unwrap();
    let mut down = b.linear(active, down_weight, None).unwrap();
    if reduces {
        down = b.all_reduce(down, ReduceOp::Sum, &["tp"]).unwrap();
    }
    let shifted = b.add(down, down_bias).unwrap();
    let y = b.add(x, shifted).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

fn largest_error(graph: &Graph) -> f64 {
    let saved: Named<Tensor> = tensor_file::read(&sample("mlp_tp2.parity.safetensors")).unwrap();
    let inputs = tensor_file::of_ranks(&saved, tensor_file::Role::Input, 2);
    let outputs = run(graph, &WeightStore::new(), &inputs).unwrap();
    let expected = tensor_file::of_ranks(&saved, tensor_file::Role::Output, 2);
    let errors = outputs.iter().zip(&expected).map(|(o, e)| distance(&o["y"], &e["y"]).unwrap().max_abs);
    errors.fold(0.0, f64::max)
}

#[test]
fn agrees_with_two_processes() {
    let error = largest_error(&mlp(true));
    assert!(error <= 1e-6, "largest error {error:e}");
}

#[test]
fn a_missing_all_reduce_is_seen() {
    let error = largest_error(&mlp(false));
    assert!(error > 1e-2, "largest error {error:e}");
}
