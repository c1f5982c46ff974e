//! Rewrites a program several times and prints how long it took and what became of it:
//! `cargo run --release -p shardweld-rewrite --example measure -- FILE.swir|FILE.json PROFILE [EXACTNESS]`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use shardweld_ir::Graph;
use shardweld_rewrite::{Exactness, Options, TargetProfile, optimise_observed};

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, profile, rest @ ..] = args.as_slice() else {
        return Err("usage: measure FILE PROFILE [EXACTNESS]".into());
    };
    let text = std::fs::read_to_string(file)?;
    let source = if file.ends_with(".json") {
        Graph::from_json(file, text.as_bytes())?
    } else {
        Graph::from_text(file, &text)?
    };
    let options = Options {
        profile: Some(TargetProfile::named(profile)?),
        exactness: match rest.first() {
            Some(name) => Exactness::from_name(name).ok_or("no such exactness class")?,
            None => Exactness::default(),
        },
        ..Options::default()
    };
    let kinds = |g: &Graph| {
        let mut n: BTreeMap<String, usize> = BTreeMap::new();
        for (_, node) in g.nodes() {
            if let Some((kind, _)) = node.op.collective() {
                *n.entry(kind.name().to_owned()).or_default() += 1;
            }
        }
        n
    };
    let mut result = None;
    for _ in 0..5 {
        let start = Instant::now();
        let mut last = start;
        let mut passes = Vec::new();
        let r = optimise_observed(&source, &options, &mut |pass, _| {
            passes.push(format!("{pass} {:.0?}", last.elapsed()));
            last = Instant::now();
        })?;
        println!("{:.3?}: {}", start.elapsed(), passes.join(", "));
        result = Some(r);
    }
    if let Some(r) = result {
        println!("nodes {} -> {}, wire bytes {:?}", source.len(), r.graph.len(), r.report.wire_bytes());
        println!("{:?} -> {:?}", kinds(&source), kinds(&r.graph));
        println!("{:?}", r.report.counters);
    }
    Ok(())
}
