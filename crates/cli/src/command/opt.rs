//! `shardweld opt MODEL`: IR in, IR out.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use shardweld_ir::Graph;
use shardweld_ir::dot::DotOptions;

use crate::failure::{Problem, Result};
use crate::model::ModelArgs;
use crate::output::Answer;
use crate::progress::Progress;
use crate::rewriting::{RewriteArgs, pass_names};
use crate::staging;

/// Arguments of `opt`.
#[derive(Args, Debug)]
pub struct Opt {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rewrite: RewriteArgs,
    /// Run only this pass; may be given more than once, passes keep their order
    #[arg(long, value_name = "NAME")]
    pass: Vec<String>,
    /// Print the program after this pass to standard error; may be given more than once
    #[arg(long, value_name = "NAME")]
    dump_after: Vec<String>,
    /// File to write: .json for IR JSON, .dot for Graphviz, else text; without it text goes to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Rewrites a program and prints it.
pub fn opt(args: &Opt, progress: Progress) -> Result<Answer> {
    let known = pass_names();
    if let Some(name) = args.pass.iter().chain(&args.dump_after).find(|n| !known.contains(&n.as_str())) {
        return Err(Problem::new(format!("there is no pass `{name}`")).expected(known.join(", ")).bad());
    }
    if let Some(out) = &args.out {
        staging::check_file(out)?;
    }
    let model = args.model.load(progress)?;
    let mut dumps = Vec::new();
    let rewritten =
        args.rewrite.apply_observed(&model.graph, None, &args.pass, progress, &mut |pass, g| {
            if args.dump_after.iter().any(|n| n == pass) {
                dumps.push((pass, g.to_text()));
            }
        })?;
    for (pass, text) in dumps {
        eprintln!("# after {pass}\n{}", text.map_err(|e| not_printed(&e))?);
    }
    let mut report = rewritten.to_json()?;
    let printed = print(&rewritten.graph, args.out.as_deref().and_then(|o| o.extension()?.to_str()))?;
    let text = match &args.out {
        Some(out) => {
            staging::write_file(out, printed.as_bytes())?;
            format!("{} nodes written to {}", rewritten.graph.len(), out.display())
        }
        None => {
            report["program"] = json!(printed);
            printed
        }
    };
    Ok(Answer { text, json: report, no: None })
}

fn print(graph: &Graph, extension: Option<&str>) -> Result<String> {
    match extension {
        Some("json") => graph.to_json().map_err(|e| not_printed(&e)),
        Some("dot") => Ok(graph.to_dot(DotOptions::default())),
        _ => graph.to_text().map_err(|e| not_printed(&e)),
    }
}

fn not_printed(e: &dyn std::error::Error) -> crate::failure::Failure {
    Problem::new(format!("the program cannot be printed: {e}")).bad()
}
