//! Random programs: what rewriting makes of them computes the same on the reference interpreter, within the promised class,
//! and is the same bytes every time.

mod common;

use std::collections::BTreeMap;

use shardweld_ir::DType;
use shardweld_ir::testing::{ProgramOptions, Rng, random_program};
use shardweld_rewrite::{
    AllGather, Boundary, CertificateStep, Class, Exactness, Options, RewriteError, TargetProfile, optimise,
};

/// Programs per run; `SHARDWELD_RANDOM_PROGRAMS` overrides.
const PROGRAMS: u64 = 300;

fn pick_options(rng: &mut Rng) -> Options {
    let profiles = TargetProfile::shipped().unwrap();
    let mut profile = profiles[rng.below(profiles.len())].clone();
    if rng.one_in(2) {
        profile.sub_groups = true;
    }
    Options {
        profile: Some(profile),
        exactness: [Exactness::Bit, Exactness::Nan, Exactness::Nan, Exactness::Nan][rng.below(4)],
        boundary: [Boundary::Auto, Boundary::Off, Boundary::Auto][rng.below(3)],
        all_gather: [AllGather::Auto, AllGather::AllReduce, AllGather::Native][rng.below(3)],
        ..Options::default()
    }
}

#[test]
fn rewritten_programs_compute_the_same() {
    let programs =
        std::env::var("SHARDWELD_RANDOM_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(PROGRAMS);
    let (mut ran, mut refused, mut changed) = (0, 0, 0);
    let mut fired: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..programs {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let shape = ProgramOptions {
            nodes: 24,
            max_ranks: 6,
            max_elements: 256,
            dtypes: vec![
                DType::F32,
                DType::BF16,
                DType::F16,
                DType::I64,
                DType::I32,
                DType::I8,
                DType::U8,
                DType::Bool,
            ],
            heavy_ops: false,
            ..ProgramOptions::default()
        };
        let source = random_program(seed, &shape);
        let options = pick_options(&mut rng);
        let result = match optimise(&source, &options) {
            Ok(r) => r,
            Err(RewriteError::Illegal { .. }) => {
                refused += 1;
                continue;
            }
            Err(e) => panic!("seed {seed}: {e}\n{}", source.to_text().unwrap()),
        };
        for step in &result.certificate.steps {
            if let CertificateStep::Windows { derivations, .. } = step {
                changed += 1;
                for s in derivations.iter().flat_map(|d| &d.steps) {
                    *fired.entry(s.rule.clone()).or_default() += 1;
                }
            }
        }
        for (_, node) in result.graph.nodes().filter(|(_, n)| n.op.collective().is_some()) {
            assert!(!node.sources.is_empty(), "seed {seed}: `{}` stands for nothing", node.name);
        }
        for c in &result.report.collectives {
            assert!(
                !c.after.is_empty() || !c.rules.is_empty() || dead(&source, &c.before.node),
                "seed {seed}: {c:?}"
            );
        }
        if result.report.class == Class::Accuracy {
            continue;
        }
        let inputs = common::inputs(&source, seed);
        let Some(a) = common::outputs(&source, &inputs) else { continue };
        let b = common::outputs(&result.graph, &inputs).unwrap_or_else(|| {
            panic!("seed {seed}: the result does not run\n{}", result.graph.to_text().unwrap())
        });
        ran += 1;
        if let Some(d) = common::difference(&a, &b, result.report.class) {
            panic!("seed {seed}: {d}\n{}\n{}", source.to_text().unwrap(), result.graph.to_text().unwrap());
        }
        if seed % 16 == 0 {
            let again = optimise(&source, &options).unwrap();
            assert_eq!(again.certificate, result.certificate, "seed {seed}");
            assert_eq!(again.graph.to_text().unwrap(), result.graph.to_text().unwrap(), "seed {seed}");
        }
    }
    println!("{ran} run, {refused} refused, {changed} derivations; rules fired: {fired:#?}");
    assert!(ran * 2 > programs, "only {ran} of {programs} ran");
    assert!(changed * 10 > programs && fired.len() > 8, "too little was rewritten: {changed}, {fired:?}");
}

/// Programs per run of the test below.
const PROGRAMS_OF_ONE_SIZE: u64 = 400;

#[test]
fn on_a_target_with_one_group_size_results_fit_it_and_compute_the_same() {
    let profile = TargetProfile::named("tensorrt-rtx-1.7.1").unwrap();
    assert!(profile.one_group_size_for_shapes);
    let (mut ran, mut refused) = (0, 0);
    let mut fired: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..PROGRAMS_OF_ONE_SIZE {
        // Class `real` re-associates: on integers that changes no bit.
        let (exactness, dtypes) = match seed % 3 {
            0 => (Exactness::Real, vec![DType::I64, DType::I32, DType::I8, DType::Bool]),
            1 => (Exactness::Bit, vec![DType::F32, DType::BF16, DType::I32]),
            _ => (Exactness::Nan, vec![DType::F32, DType::BF16, DType::F16, DType::I64]),
        };
        let shape = ProgramOptions {
            nodes: 16,
            max_ranks: 12,
            max_elements: 512,
            dtypes,
            heavy_ops: false,
            ..ProgramOptions::default()
        };
        let source = random_program(seed ^ 0x517e, &shape);
        let options = Options { profile: Some(profile.clone()), exactness, ..Options::default() };
        let result = match optimise(&source, &options) {
            Ok(r) => r,
            Err(RewriteError::Illegal { illegal, .. }) => {
                // Only what no rule of the class helps: each names the rule and the class that would, or is no matter of size.
                for i in illegal {
                    let of_size = i.reason.contains("one group size");
                    assert!(
                        !of_size || i.would_help.iter().any(|(_, c)| !exactness.admits(*c)),
                        "{seed}: {i:?}"
                    );
                }
                refused += 1;
                continue;
            }
            Err(e) => panic!("seed {seed}: {e}\n{}", source.to_text().unwrap()),
        };
        let mesh = result.graph.mesh();
        let collectives = || result.graph.nodes().filter_map(|(_, n)| n.op.collective());
        let rooted = ["broadcast_from", "reduce_to", "gather_to", "scatter_from"];
        let fused = collectives().filter(|(k, _)| !rooted.contains(&k.name()));
        let largest = fused.map(|(_, g)| g.size(mesh)).max();
        for (kind, group) in
            collectives().filter(|(k, _)| ["all_gather", "reduce_scatter"].contains(&k.name()))
        {
            assert_eq!(Some(group.size(mesh)), largest, "seed {seed}: {}", kind.name());
        }
        for step in &result.certificate.steps {
            if let CertificateStep::Windows { derivations, .. } = step {
                for s in derivations.iter().flat_map(|d| &d.steps) {
                    *fired.entry(s.rule.clone()).or_default() += 1;
                }
            }
        }
        if result.report.class == Class::Accuracy {
            continue;
        }
        let inputs = common::inputs(&source, seed);
        let Some(a) = common::outputs(&source, &inputs) else { continue };
        let b = common::outputs(&result.graph, &inputs).unwrap_or_else(|| {
            panic!("seed {seed}: the result does not run\n{}", result.graph.to_text().unwrap())
        });
        ran += 1;
        if let Some(d) = common::difference(&a, &b, result.report.class.min(Class::Nan)) {
            panic!("seed {seed}: {d}\n{}\n{}", source.to_text().unwrap(), result.graph.to_text().unwrap());
        }
    }
    println!("{ran} run, {refused} refused; rules fired: {fired:#?}");
    assert!(ran * 2 > PROGRAMS_OF_ONE_SIZE, "only {ran} ran");
    // The third rule of the family pays on large buffers only: a file test shows it.
    for rule in ["all_gather_as_all_to_all", "reduce_scatter_as_slice_of_all_reduce"] {
        assert!(fired.get(rule).is_some_and(|n| *n >= 5), "{rule}: {fired:?}");
    }
}

/// Whether no output needs the node.
fn dead(source: &shardweld_ir::Graph, name: &str) -> bool {
    let mut live = source.clone();
    live.remove_dead();
    live.find(name).is_none()
}
