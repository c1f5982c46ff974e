//! Properties of random programs: they run, and the number of threads does not show in the results.

use shardweld_interp::{Named, Tensor, run};
use shardweld_ir::WeightStore;
use shardweld_ir::testing::{ProgramOptions, random_program};

#[path = "support/inputs.rs"]
mod inputs;
use inputs::inputs_for;

const PROGRAMS: u64 = 300;

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
    let (one, many) = (pool(1), pool(7));
    for seed in 0..PROGRAMS {
        // Some programs large enough that work is split.
        let max_elements = if seed % 10 == 0 { 1 << 17 } else { 1 << 10 };
        let graph = random_program(seed, &ProgramOptions { max_elements, ..ProgramOptions::default() });
        let inputs = inputs_for(&graph, seed);
        let of = |p: &rayon::ThreadPool| -> Vec<Named<Tensor>> {
            p.install(|| run(&graph, &WeightStore::new(), &inputs))
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"))
        };
        for (rank, (a, b)) in of(&one).iter().zip(&of(&many)).enumerate() {
            assert_eq!(a.len(), graph.outputs().len());
            for (name, value) in a {
                assert_eq!(value.bytes(), b[name].bytes(), "seed {seed}, rank {rank}, output {name}");
            }
        }
    }
}
