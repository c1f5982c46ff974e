//! `shardweld run MODEL --inputs FILE`: runs a program for all its ranks on the reference interpreter.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use shardweld_interp::tensor_file::{self, Role};
use shardweld_interp::{Named, Tensor};
use shardweld_ir::{Graph, Op};
use shardweld_trt::interpret::interpret_ranks;
use shardweld_trt::lower::{LowerOptions, lower_all};

use crate::failure::{Problem, Result};
use crate::model::{Model, ModelArgs};
use crate::output::Answer;
use crate::progress::Progress;
use crate::rewriting::RewriteArgs;
use crate::staging;

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    model: ModelArgs,
    /// Safetensors files with tensors `rank{r}/in/NAME`; other keys are ignored
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    inputs: Vec<PathBuf>,
    /// Safetensors file to write, with tensors `rank{r}/out/NAME`
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// What to run
    #[arg(long, value_enum, default_value = "source")]
    stage: StageName,
    #[command(flatten)]
    rewrite: RewriteArgs,
}

/// A stage of the compilation that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StageName {
    /// The program as imported
    Source,
    /// The program as rewritten for the target
    Rewritten,
    /// The network definition, by an interpreter of TensorRT's layers
    Trace,
}

/// Runs, and writes the outputs of all ranks.
pub fn run(args: &Run, progress: Progress) -> Result<Answer> {
    staging::check_file(&args.out)?;
    let Model { mut graph, weights } = args.model.load(progress)?;
    let inputs = read_inputs(args, &graph)?;
    if args.stage != StageName::Source {
        graph = args.rewrite.apply(&graph, None, progress)?.graph;
    }
    let failed = |e: &dyn std::error::Error| Problem::new(format!("{}: {e}", args.model.name())).bad();
    let outputs = if args.stage == StageName::Trace {
        let traces = progress
            .stage("lower", |_| lower_all(&graph, &LowerOptions::default(), &weights))
            .map_err(|e| failed(&e))?;
        progress.stage("run", |_| interpret_ranks(&traces, &weights, &inputs)).map_err(|e| failed(&e))?
    } else {
        let (total, mut done) = (graph.len(), 0usize);
        progress
            .stage("run", |stage| {
                shardweld_interp::run_observed(&graph, &weights, &inputs, &mut |seen| {
                    done += 1;
                    stage.at(format!("{done}/{total} {}", seen.node.name));
                })
            })
            .map_err(|e| failed(&e))?
    };
    let named = tensor_file::keyed(&outputs, Role::Output);
    tensor_file::write(&args.out, &named).map_err(|e| Problem::new(e.to_string()).file(&args.out).bad())?;
    let text = format!(
        "{} tensors of {} ranks written to {}",
        named.len(),
        graph.mesh().world_size(),
        args.out.display()
    );
    let keys: Vec<&String> = named.keys().collect();
    Ok(Answer { text, json: json!({"out": args.out, "tensors": keys}), no: None })
}

/// Inputs of each rank, from all files together. A key in two files is an error.
fn read_inputs(args: &Run, graph: &Graph) -> Result<Vec<Named<Tensor>>> {
    let ranks = graph.mesh().world_size() as usize;
    let wanted: Vec<&str> = graph
        .inputs()
        .iter()
        .filter_map(|id| match &graph.node(*id).op {
            Op::Input { name } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let mut inputs = vec![Named::new(); ranks];
    for file in &args.inputs {
        let all = tensor_file::read(file).map_err(|e| Problem::new(e.to_string()).file(file).bad())?;
        for (rank, named) in tensor_file::of_ranks(&all, Role::Input, ranks).into_iter().enumerate() {
            for (name, tensor) in named {
                if wanted.contains(&name.as_str()) && inputs[rank].insert(name.clone(), tensor).is_some() {
                    return Err(Problem::new(format!("input `{name}` of rank {rank} is in two files"))
                        .file(file)
                        .bad());
                }
            }
        }
    }
    Ok(inputs)
}
