//! `shardweld build MODEL`: import, rewrite, lower, build, and account for every collective.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use shardweld_trt::build::{BuildError, BuildOptions, EngineFile, build_all};
use shardweld_trt::cpp::CppSink;
use shardweld_trt::flavour::Flavour;
use shardweld_trt::live::{Library, LiveError, ProgressEvent};
use shardweld_trt::lower::{LowerError, LowerOptions, RankTrace, RanksError, WeightMode, lower_all};
use shardweld_trt::placement::{PlacementError, source_collectives};
use shardweld_trt::target::Target;

use crate::build_report::{self, Built, REPORT};
use crate::failure::{Failure, Problem, Result, io};
use crate::model::{Model, ModelArgs};
use crate::output::{Answer, bytes};
use crate::progress::{Progress, Stage};
use crate::rewriting::RewriteArgs;
use crate::staging::Staging;

/// File name of what is built: `model.engine`, `model.rank1.engine`.
const STEM: &str = "model";
/// Compute capability that engines are built for unless another is named: the oldest with collectives.
const DEFAULT_COMPUTE_CAPABILITY: u32 = 80;

/// Arguments of `build`.
#[derive(Args, Debug)]
pub struct Build {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rewrite: RewriteArgs,
    /// What to build for
    #[arg(long, value_enum, default_value = "tensorrt-rtx")]
    target: TargetName,
    /// Folder to write engines, report.json and certificate.json to; without it the build is only tried
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How weights reach the engine
    #[arg(long, value_enum, default_value = "embed")]
    weights: Weights,
    /// Also write source code that makes the same network
    #[arg(long, value_enum, requires = "out")]
    emit: Option<Emit>,
    /// The TensorRT library, a file or folder; else SHARDWELD_TENSORRT_RTX_LIB or SHARDWELD_TENSORRT_LIB, the system's loader, Python's
    /// packages
    #[arg(long, value_name = "PATH")]
    tensorrt_lib: Option<PathBuf>,
    /// Compute capability of the GPUs, such as 80, 89, 120; else 80 for TensorRT-RTX, the GPU of this machine for TensorRT
    #[arg(long, value_name = "CC")]
    compute_capability: Option<u32>,
    /// Build only the engines that these ranks run, such as 0,1; each host of a job can build its own
    #[arg(long, value_name = "RANK,RANK", value_delimiter = ',')]
    ranks: Vec<u32>,
    /// Most engines built at one time; else one per core
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Memory that all builds together may take, such as 16G; else what is available
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TargetName {
    /// TensorRT for RTX; builds ahead of time, without a GPU
    TensorrtRtx,
    /// TensorRT
    Tensorrt,
    /// No library: the network definition as JSON
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Weights {
    /// Inside the engine
    Embed,
    /// As engine inputs under the weights' names
    Inputs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// C++
    Cpp,
}

/// Builds, and writes engines and report.
pub fn build(args: &Build, progress: Progress) -> Result<Answer> {
    // What can fail at once does so before the work.
    let staging = args.out.as_deref().map_or_else(Staging::scratch, Staging::new)?;
    let library = library(args)?;
    let Model { graph: source, weights } = args.model.load(progress)?;
    let profile = library.as_ref().map(profile_name);
    let rewritten = args.rewrite.apply(&source, profile.as_deref(), progress)?;
    let options = LowerOptions {
        weights: match args.weights {
            Weights::Embed => WeightMode::Embed,
            Weights::Inputs => WeightMode::Inputs,
        },
        target: library.as_ref().map(|l| Target { flavour: l.flavour(), version: l.version() }),
    };
    let traces =
        progress.stage("lower", |_| lower_all(&rewritten.graph, &options, &weights)).map_err(not_lowered)?;
    let traces = for_ranks(traces, &args.ranks)?;
    if args.emit == Some(Emit::Cpp) {
        for t in &traces {
            let written = CppSink.source(&t.trace).write(staging.path(), &t.stem(STEM), &weights);
            written.map_err(|e| Problem::new(e.to_string()).bad())?;
        }
    }
    let mut engines = Vec::new();
    if let Some(library) = &library {
        let memory_bytes = args.memory.map_or_else(available_memory, Ok)?;
        let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        engines = progress.stage("build", |stage| {
            let watch = |trace: usize, event: ProgressEvent<'_>| show(stage, &traces, trace, &event);
            let options = BuildOptions {
                library,
                compute_capability: compute_capability(args, library),
                parallel: jobs,
                memory_bytes,
                progress: Some(&watch),
            };
            build_all(&traces, &weights, staging.path(), STEM, &options).map_err(not_built)
        })?;
        account(&engines, &source_collectives(&source), &rewritten.eliminated())?;
    } else {
        for t in &traces {
            let json = serde_json::to_vec(&t.trace)
                .map_err(|e| Problem::new(format!("a network cannot be written as JSON: {e}")).bad())?;
            staging.write(&format!("{}.trace.json", t.stem(STEM)), &json)?;
        }
    }
    let built = Built {
        source: &source,
        rewritten: &rewritten,
        traces: &traces,
        engines: &engines,
        library: library.as_ref(),
        compute_capability: library.as_ref().and_then(|l| compute_capability(args, l)),
    };
    let report = build_report::json(&built)?;
    let pretty = |v: &serde_json::Value| {
        serde_json::to_vec_pretty(v)
            .map_err(|e| Problem::new(format!("a report cannot be written as JSON: {e}")).bad())
    };
    staging.write(REPORT, &pretty(&report)?)?;
    staging.write("certificate.json", &pretty(&build_report::certificate(&rewritten)?)?)?;
    staging.publish()?;
    let mut text = build_report::text(&built);
    if let Some(dir) = &args.out {
        text.push_str(&format!("\nwritten to {}", dir.display()));
    }
    Ok(Answer { text, json: report, no: None })
}

/// The traces that the wanted ranks run; all if none is named. Each keeps the full list of its ranks.
fn for_ranks(traces: Vec<RankTrace>, wanted: &[u32]) -> Result<Vec<RankTrace>> {
    if let Some(r) = wanted.iter().find(|r| !traces.iter().any(|t| t.ranks.contains(r))) {
        let world: usize = traces.iter().map(|t| t.ranks.len()).sum();
        return Err(Problem::new(format!("--ranks names rank {r}"))
            .expected(format!("ranks below {world}"))
            .bad());
    }
    let kept = |t: &RankTrace| wanted.is_empty() || wanted.iter().any(|r| t.ranks.contains(r));
    Ok(traces.into_iter().filter(kept).collect())
}

/// Every collective of the source is in every engine by name, unless the rewriting removed it and its certificate says how.
fn account(
    engines: &[EngineFile],
    sources: &[String],
    eliminated: &std::collections::BTreeMap<&str, &[String]>,
) -> Result<()> {
    let needed: Vec<String> =
        sources.iter().filter(|s| !eliminated.contains_key(s.as_str())).cloned().collect();
    for e in engines {
        e.placement.require_sources(&needed).map_err(|p| not_placed(&e.ranks, &p))?;
    }
    Ok(())
}

fn library(args: &Build) -> Result<Option<Library>> {
    let flavour = match args.target {
        TargetName::TensorrtRtx => Flavour::TensorRtRtx,
        TargetName::Tensorrt => Flavour::TensorRt,
        TargetName::Trace => return Ok(None),
    };
    Library::find(flavour, args.tensorrt_lib.as_deref()).map(Some).map_err(|e| {
        Problem::new(e.to_string())
            .help(format!(
                "name the library with --tensorrt-lib or {}; --target trace needs none",
                flavour.variable()
            ))
            .bad()
    })
}

/// Name of the shipped profile for a library: TensorRT-RTX changes between patch releases, TensorRT between minor ones.
fn profile_name(l: &Library) -> String {
    let v = l.version();
    match l.flavour() {
        Flavour::TensorRtRtx => format!("{}-{}.{}.{}", l.flavour().name(), v.major, v.minor, v.patch),
        Flavour::TensorRt => format!("{}-{}.{}", l.flavour().name(), v.major, v.minor),
    }
}

fn compute_capability(args: &Build, library: &Library) -> Option<u32> {
    let ahead_of_time = library.flavour() == Flavour::TensorRtRtx;
    args.compute_capability.or(ahead_of_time.then_some(DEFAULT_COMPUTE_CAPABILITY))
}

/// Shows where the builder is; never cancels.
fn show(stage: &Stage, traces: &[RankTrace], trace: usize, event: &ProgressEvent<'_>) -> bool {
    if let (ProgressEvent::Start { phase, .. }, Some(t)) = (event, traces.get(trace)) {
        stage.at(format!("{}: {phase}", t.stem(STEM)));
    }
    true
}

fn not_lowered(e: RanksError) -> Failure {
    let problem = Problem::new(e.to_string());
    match e {
        RanksError::Lower { source: LowerError::Refused(refusals), .. } => {
            problem.node(refusals.into_iter().next().map(|r| r.node).unwrap_or_default()).no()
        }
        _ => problem.bad(),
    }
}

fn not_built(e: BuildError) -> Failure {
    match e {
        BuildError::Live { source: LiveError::Weight { .. }, .. }
        | BuildError::Write { .. }
        | BuildError::Cancelled => Problem::new(e.to_string()).bad(),
        BuildError::Refused { .. } | BuildError::Live { .. } => Problem::new(format!("no engine: {e}")).no(),
        BuildError::Placement { ranks, source } => not_placed(&ranks, &source),
    }
}

fn not_placed(ranks: &[u32], e: &PlacementError) -> Failure {
    Problem::new(format!("the engine for ranks {ranks:?} is not what the program asks for: {e}"))
        .expected("every collective of the source program, by name, in the engine")
        .no()
}

/// Memory that this machine has to spare, if the system says so.
fn available_memory() -> Result<u64> {
    let help = "say with --memory how much the builds may take, such as 16G";
    let file = std::path::Path::new("/proc/meminfo");
    let text = std::fs::read_to_string(file).map_err(|e| io(file, "read", &e))?;
    text.lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| Problem::new("the system does not say how much memory is available").help(help).bad())
}

/// Reads a size such as `512M` or `16G`; units are powers of 1024.
fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..).unwrap_or("").to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        unit => return Err(format!("unknown unit `{unit}`, expected K, M, G or T")),
    };
    let n: u64 = digits.parse().map_err(|_| format!("`{digits}` is not a whole number"))?;
    n.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than {}", bytes(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16G"), Ok(16 << 30));
        assert_eq!(parse_size("512mib"), Ok(512 << 20));
        assert_eq!(parse_size("7"), Ok(7));
        assert!(parse_size("G").is_err() && parse_size("1X").is_err() && parse_size("99999999T").is_err());
    }
}
