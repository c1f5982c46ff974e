//! Rewriting a program for a target: the options that several commands share, and how its failures are told.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};
use shardweld_interp::fold::MAX_CONSTANT_BYTES;
use shardweld_interp::fold_constants;
use shardweld_ir::Graph;
use shardweld_rewrite::{
    AllGather, Boundary, Certificate, Exactness, Options, PASSES, Report, RewriteError, TargetProfile,
    Topology, optimise_observed,
};

use crate::failure::{Failure, Problem, Result, io};
use crate::progress::Progress;

/// Profile for commands that load no library and are given none: the library that `cargo xtask setup` installs.
pub const DEFAULT_PROFILE: &str = "tensorrt-rtx-1.7.1";
/// The step before the passes: what depends on no input is computed now, in the element types that the program asks for.
pub const FOLD: &str = "fold-constants";

/// How the program is rewritten.
#[derive(Args, Debug)]
pub struct RewriteArgs {
    /// What the target can build: a shipped profile's name or a JSON file; `build` takes that of the library's version, other commands
    /// tensorrt-rtx-1.7.1
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Loosest class of step allowed: same bits, NaN payloads aside, sign of zero aside, or equal over the reals
    #[arg(long, value_name = "bit|nan|zero|real", default_value = "nan", value_parser = exactness)]
    exactness: Exactness,
    /// Where collectives on narrow floats travel in f32
    #[arg(long, value_name = "auto|off|f32", default_value = "auto", value_parser = boundary)]
    boundary: Boundary,
    /// What becomes of all-gathers
    #[arg(long, value_name = "auto|native|all-reduce", default_value = "auto", value_parser = all_gather)]
    all_gather: AllGather,
    /// Link costs: nvlink, pcie or a JSON file
    #[arg(long, value_name = "NAME|FILE", default_value = "nvlink")]
    topology: String,
    /// An input that is equal on all ranks along the given mesh axes; may be given more than once
    #[arg(long, value_name = "INPUT=AXIS,AXIS", value_parser = replicated)]
    replicated: Vec<(String, Vec<String>)>,
    /// Leave windows from this number on as they are, to bisect a bad result
    #[arg(long, value_name = "N")]
    stop_after: Option<usize>,
}

fn exactness(name: &str) -> std::result::Result<Exactness, String> {
    Exactness::from_name(name).ok_or_else(|| "expected bit, nan, zero or real".into())
}

fn boundary(name: &str) -> std::result::Result<Boundary, String> {
    Boundary::from_name(name).ok_or_else(|| "expected auto, off or f32".into())
}

fn all_gather(name: &str) -> std::result::Result<AllGather, String> {
    AllGather::from_name(name).ok_or_else(|| "expected auto, native or all-reduce".into())
}

/// Reads `INPUT=AXIS,AXIS`.
pub fn replicated(text: &str) -> std::result::Result<(String, Vec<String>), String> {
    let (input, axes) = text.split_once('=').ok_or("expected INPUT=AXIS or INPUT=AXIS,AXIS")?;
    Ok((input.to_owned(), axes.split(',').map(str::to_owned).collect()))
}

/// A program rewritten for a target.
#[derive(Debug)]
pub struct Rewritten {
    /// The program.
    pub graph: Graph,
    /// What was done to each collective.
    pub report: Report,
    /// Why it may be.
    pub certificate: Certificate,
    /// Nodes that folding replaced by constants.
    pub folded: usize,
}

impl Rewritten {
    /// Collectives of the source that nothing stands for any more, each with the rules that removed it.
    pub fn eliminated(&self) -> BTreeMap<&str, &[String]> {
        let gone = self.report.collectives.iter().filter(|c| c.after.is_empty());
        gone.flat_map(|c| c.sources.iter().map(|s| (s.as_str(), c.rules.as_slice()))).collect()
    }

    /// For reports and `--json`; the same on every run.
    pub fn to_json(&self) -> Result<Value> {
        let (before, after) = self.report.wire_bytes();
        let failed =
            |e: serde_json::Error| Problem::new(format!("cannot write the report as JSON: {e}")).bad();
        Ok(json!({
            "profile": self.certificate.profile,
            "constants_folded": self.folded,
            "wire_bytes_before": before,
            "wire_bytes_after": after,
            "report": serde_json::to_value(&self.report).map_err(failed)?,
        }))
    }
}

impl RewriteArgs {
    /// Rewrites for a profile: the one the user named, else `library_profile`, else [`DEFAULT_PROFILE`].
    pub fn apply(
        &self,
        graph: &Graph,
        library_profile: Option<&str>,
        progress: Progress,
    ) -> Result<Rewritten> {
        self.apply_observed(graph, library_profile, &[], progress, &mut |_, _| {})
    }

    /// As [`RewriteArgs::apply`], with the named passes only (all if none are named), showing the program after each.
    pub fn apply_observed(
        &self,
        graph: &Graph,
        library_profile: Option<&str>,
        passes: &[String],
        progress: Progress,
        observe: &mut dyn FnMut(&'static str, &Graph),
    ) -> Result<Rewritten> {
        let options = Options {
            profile: Some(read_profile(
                self.profile.as_deref().or(library_profile).unwrap_or(DEFAULT_PROFILE),
            )?),
            exactness: self.exactness,
            boundary: self.boundary,
            all_gather: self.all_gather,
            topology: read_topology(&self.topology)?,
            replicated_inputs: self.replicated.iter().cloned().collect(),
            passes: passes.iter().filter(|p| *p != FOLD).cloned().collect(),
            stop_after: self.stop_after,
        };
        progress.stage("rewrite", |stage| {
            let mut folded = graph.clone();
            let stats = if passes.is_empty() || passes.iter().any(|p| p == FOLD) {
                fold_constants(&mut folded, MAX_CONSTANT_BYTES)
                    .map_err(|e| Problem::new(format!("pass `{FOLD}`: {e}")).bad())?
                    .constants
            } else {
                0
            };
            observe(FOLD, &folded);
            let result = optimise_observed(&folded, &options, &mut |pass, g| {
                stage.at(format!("{pass}: {} nodes", g.len()));
                observe(pass, g);
            })
            .map_err(not_rewritten)?;
            Ok(Rewritten {
                graph: result.graph,
                report: result.report,
                certificate: result.certificate,
                folded: stats,
            })
        })
    }
}

/// Every name that `--pass` and `--dump-after` take.
pub fn pass_names() -> Vec<&'static str> {
    std::iter::once(FOLD).chain(PASSES.iter().map(|p| p.name)).collect()
}

fn not_rewritten(e: RewriteError) -> Failure {
    let problem = Problem::new(e.to_string());
    match e {
        RewriteError::Illegal { illegal, .. } => {
            let node = illegal.first().map(|i| i.node.clone()).unwrap_or_default();
            problem
                .node(node)
                .help("--exactness, --boundary and --all-gather say what may be done about it")
                .no()
        }
        _ => problem.bad(),
    }
}

fn read_profile(name: &str) -> Result<TargetProfile> {
    let named = TargetProfile::named(name);
    if named.is_ok() || !Path::new(name).is_file() {
        return named.map_err(|e| {
            Problem::new(e.to_string())
                .help("--profile takes one of these names, or a JSON file of that form")
                .bad()
        });
    }
    let file = Path::new(name);
    let text = std::fs::read_to_string(file).map_err(|e| io(file, "read", &e))?;
    TargetProfile::from_json(&text).map_err(|e| Problem::new(format!("{name}: {e}")).file(file).bad())
}

fn read_topology(name: &str) -> Result<Topology> {
    if let Some(preset) = Topology::preset(name) {
        return Ok(preset);
    }
    let file = Path::new(name);
    let text = std::fs::read_to_string(file).map_err(|e| {
        Problem::new(format!("no topology {name}: {e}")).expected("nvlink, pcie or a JSON file").bad()
    })?;
    Topology::from_json(&text)
        .map_err(|e| Problem::new(format!("{name}: not a topology: {e}")).file(file).bad())
}
