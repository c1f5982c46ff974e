//! The `shardweld` command: arguments, exit codes, and how results and errors are printed.

mod build_report;
mod command;
mod failure;
mod model;
mod output;
mod pattern;
mod progress;
mod rewriting;
mod staging;
mod summary;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::failure::{Failure, Problem};
use crate::output::Answer;
use crate::progress::Progress;

/// Environment variable that selects diagnostic log lines, such as `debug` or `shardweld_trt=trace`.
const LOG_VARIABLE: &str = "SHARDWELD_LOG";

/// Welds a sharded model graph into one TensorRT engine with native in-engine collectives.
///
/// MODEL is a torch.export archive (.pt2), its bare graph (model.json, model.json.gz), text IR (.swir) or IR JSON (.json): one file
/// for all ranks, or a pattern with {rank} or a mesh coordinate such as {tp}.
///
/// Exit codes: 0 done, 1 the answer is no, 2 bad input or usage.
#[derive(Parser, Debug)]
#[command(name = "shardweld", version)]
struct Cli {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    json: bool,
    /// No progress on standard error
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Build the engine, or one per rank where ranks need different ones
    Build(command::build::Build),
    /// Verify a program and summarise it: ops, collectives, groups, bytes
    Check(command::check::Check),
    /// Rewrite a program: IR in, IR out
    Opt(command::opt::Opt),
    /// Run a program for all its ranks on the CPU
    Run(command::run::Run),
    /// Compare the tensors of two safetensors files
    Compare(command::compare::Compare),
    /// Prove in which exactness class two programs are equal, or show where they are not
    Prove(command::prove::Prove),
    /// List every rewrite rule with its equation, classes and proof record
    Rules(command::rules::Rules),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new("off")))
        .with_writer(std::io::stderr)
        .init();
    // File names stay whole; off a terminal nothing is wrapped, so that logs can be searched.
    let terminal = std::io::stderr().is_terminal();
    let hook = miette::set_hook(Box::new(move |_| {
        let style = miette::MietteHandlerOpts::new().break_words(false).wrap_lines(terminal);
        Box::new(style.build())
    }));
    if let Err(e) = hook {
        tracing::debug!("diagnostics keep their default style: {e}");
    }
    if let Err(e) = staging::clean_up_on_interrupt() {
        tracing::debug!("an interrupt will leave temporary files: {e}");
    }
    let progress = Progress::new(cli.quiet);
    let result = match &cli.command {
        Command::Build(a) => command::build::build(a, progress),
        Command::Check(a) => command::check::check(a, progress),
        Command::Opt(a) => command::opt::opt(a, progress),
        Command::Run(a) => command::run::run(a, progress),
        Command::Compare(a) => command::compare::compare(a),
        Command::Prove(a) => command::prove::prove(a, progress),
        Command::Rules(a) => command::rules::rules(a, progress),
    };
    match finish(result, cli.json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (problem, code) = match failure {
                Failure::No(p) => (p, 1),
                Failure::Bad(p) => (p, 2),
            };
            eprintln!("{:?}", miette::Report::new(*problem));
            ExitCode::from(code)
        }
    }
}

/// Prints the answer; with `--json` an error too, so that standard output is always one object.
fn finish(result: failure::Result<Answer>, as_json: bool) -> failure::Result<()> {
    match result {
        Ok(answer) => {
            if as_json {
                let mut object = answer.json;
                annotate(&mut object, if answer.no.is_some() { "no" } else { "done" }, answer.no.as_ref());
                output::print(&object.to_string())?;
            } else if !answer.text.is_empty() {
                output::print(&answer.text)?;
            }
            answer.no.map_or(Ok(()), |p| Err(p.no()))
        }
        Err(failure) => {
            if as_json {
                let (outcome, problem) = match &failure {
                    Failure::No(p) => ("no", p),
                    Failure::Bad(p) => ("error", p),
                };
                let mut object = json!({});
                annotate(&mut object, outcome, Some(problem));
                output::print(&object.to_string())?;
            }
            Err(failure)
        }
    }
}

fn annotate(object: &mut Value, outcome: &str, problem: Option<&Problem>) {
    if let Value::Object(map) = object {
        map.insert("outcome".into(), outcome.into());
        if let Some(p) = problem {
            map.insert("problem".into(), p.to_json());
        }
    }
}
