//! Deterministic inputs for any program.

use shardweld_interp::{Named, Tensor, cast};
use shardweld_ir::testing::Rng;
use shardweld_ir::{DType, Graph, Op};

/// Small numbers for every input of every rank.
pub fn inputs_for(graph: &Graph, seed: u64) -> Vec<Named<Tensor>> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut ranks = vec![Named::new(); graph.mesh().world_size() as usize];
    for named in &mut ranks {
        for &id in graph.inputs() {
            let node = graph.node(id);
            let Op::Input { name } = &node.op else { continue };
            let shape: Vec<usize> =
                node.results[0].shape.as_static().unwrap().iter().map(|&d| d as usize).collect();
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.small_float()).collect();
            let wide = Tensor::new(&shape, &values).unwrap();
            let narrow = cast::cast(&wide, DType::F32).unwrap();
            named.insert(name.clone(), cast::cast(&narrow, node.results[0].dtype).unwrap());
        }
    }
    ranks
}
