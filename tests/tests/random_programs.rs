//! Properties of random SPMD programs that no crate can show alone: what rewriting promises, and forms of what it gives.

use shardweld_interp::{Named, Tensor, distance, run};
use shardweld_ir::testing::{ProgramOptions, random_program};
use shardweld_ir::{DType, Graph, WeightStore};
use shardweld_rewrite::{
    AllGather, Boundary, Class, Options, RewriteError, Rewritten, TargetProfile, optimise,
};

#[path = "../../crates/interp/tests/support/inputs.rs"]
mod inputs;
use inputs::inputs_for;

/// Programs per profile and option.
const PROGRAMS: u64 = 60;

fn program(seed: u64) -> Graph {
    // Narrow floats are what boundaries are about, so that every other program has nothing else.
    let dtypes = if seed.is_multiple_of(2) { vec![DType::BF16] } else { ProgramOptions::default().dtypes };
    random_program(seed, &ProgramOptions { dtypes, max_elements: 256, ..ProgramOptions::default() })
}

fn outputs(graph: &Graph, inputs: &[Named<Tensor>], what: &str) -> Vec<Named<Tensor>> {
    run(graph, &WeightStore::new(), inputs).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// The result where the target can build the program.
fn rewritten(graph: &Graph, options: &Options, what: &str) -> Option<Rewritten> {
    match optimise(graph, options) {
        Ok(r) => Some(r),
        Err(RewriteError::Illegal { .. }) => None,
        Err(e) => panic!("{what}: {e}"),
    }
}

#[test]
fn a_rewritten_program_equals_its_source() {
    let (mut compared, mut changed) = (0, 0);
    for profile in TargetProfile::shipped().unwrap() {
        for all_gather in [AllGather::Auto, AllGather::AllReduce] {
            let options = Options {
                profile: Some(profile.clone()),
                boundary: Boundary::Auto,
                all_gather,
                ..Options::default()
            };
            for seed in 0..PROGRAMS {
                let what = format!("seed {seed}, {}, {all_gather:?}", profile.name);
                let source = program(seed);
                let Some(result) = rewritten(&source, &options, &what) else { continue };
                if result.report.class > Class::Nan {
                    continue;
                }
                let inputs = inputs_for(&source, seed);
                let (a, b) = (outputs(&source, &inputs, &what), outputs(&result.graph, &inputs, &what));
                for (rank, (a, b)) in a.iter().zip(&b).enumerate() {
                    assert_eq!(a.len(), b.len(), "{what}");
                    for (name, x) in a {
                        let d = distance(x, &b[name]).unwrap_or_else(|e| panic!("{what}, {name}: {e}"));
                        assert_eq!(d.different, 0, "{what}, rank {rank}, output {name}: {d:?}");
                    }
                }
                compared += 1;
                changed += usize::from(result.report.counters.windows_rewritten > 0);
            }
        }
    }
    // A generator or a rule set under which nothing happens would pass as well.
    assert!(compared > 200 && changed > 50, "compared {compared}, changed {changed}");
}

#[test]
fn forms_of_sources_and_results_round_trip() {
    let options =
        Options { profile: Some(TargetProfile::named("tensorrt-11.0").unwrap()), ..Options::default() };
    for seed in 0..PROGRAMS {
        let source = program(seed);
        let result = rewritten(&source, &options, &format!("seed {seed}")).map(|r| r.graph);
        for g in [Some(source), result].into_iter().flatten() {
            let text = g.to_text().unwrap();
            let from_text = Graph::from_text("t.swir", &text).unwrap();
            assert_eq!(from_text.to_text().unwrap(), text, "seed {seed}");
            let json = g.to_json().unwrap();
            let from_json = Graph::from_json("t.json", json.as_bytes()).unwrap();
            assert_eq!(from_json.to_json().unwrap(), json, "seed {seed}");
            assert_eq!(from_json.content_hash().unwrap(), from_text.content_hash().unwrap(), "seed {seed}");
        }
    }
}
