//! Runs every collective on real NCCL and prints, as Markdown, what its bits are. For a host with a GPU:
//!
//! `NCCL_MULTI_RANK_GPU_ENABLE=1 evidence [--ranks 2,3,4,8] [--nccl FILE] [--gpus 1]`
//!
//! The launcher starts one process per rank. Rank 0 prints the report; the launcher adds what the faults did.
//!
//! | module | holds |
//! |---|---|
//! | `launch` | processes, their deadline, their output |
//! | `bench` | one rank: communicator, calls, tables |
//! | `bits` | float formats, classes of values, pseudo-random inputs |
//! | `collectives` | every collective and type against the expected bytes; sub-groups; an adopted communicator |
//! | `gather` | all-gather against padded all-reduce |
//! | `extremes` | MAX and MIN of NaN and signed zeros; SUM at the edges of formats; AVG of integers |
//! | `sums` | order of float sums |
//! | `timing` | time per collective |
//! | `faults` | a rank that dies, does not come, or calls something else |

mod bench;
mod bits;
mod collectives;
mod extremes;
mod faults;
mod gather;
mod launch;
mod sums;
mod timing;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Evidence of what real NCCL does.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    run: Run,
    #[command(subcommand)]
    rank: Option<RankCommand>,
}

#[derive(Args, Clone)]
struct Run {
    /// Numbers of ranks to run with.
    #[arg(long, value_delimiter = ',', default_value = "2,3,4,8")]
    ranks: Vec<u32>,
    /// NCCL library, or its folder.
    #[arg(long, global = true)]
    nccl: Option<PathBuf>,
    /// GPUs to spread the ranks over; with fewer GPUs than ranks, ranks share them.
    #[arg(long, global = true, default_value_t = 1)]
    gpus: u32,
    /// Seconds that one collective may take.
    #[arg(long, global = true, default_value_t = 60)]
    limit: u64,
    /// Seconds that all of one number of ranks may take.
    #[arg(long, global = true, default_value_t = 240)]
    deadline: u64,
    /// Only the sections whose name contains this.
    #[arg(long, global = true, default_value = "")]
    only: String,
}

/// What the launcher starts for each rank.
#[derive(Subcommand)]
enum RankCommand {
    /// One rank.
    Rank(RankArgs),
}

#[derive(Args, Clone)]
struct RankArgs {
    #[arg(long)]
    rank: u32,
    #[arg(long)]
    world: u32,
    /// `tcp:HOST:PORT` or `file:FOLDER`.
    #[arg(long)]
    meet: String,
    #[arg(long)]
    token: String,
    /// `report`, `killed`, `absent` or `swapped`.
    #[arg(long)]
    job: String,
}

/// Errors of the evidence run are only printed.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.rank {
        None => launch::run(&cli.run),
        Some(RankCommand::Rank(args)) => rank(&cli.run, args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("evidence: {e}");
            ExitCode::FAILURE
        }
    }
}

fn rank(run: &Run, args: &RankArgs) -> Outcome<()> {
    let limit = Duration::from_secs(run.limit);
    let mut bench = bench::Bench::start(run, args, limit)?;
    if args.job != "report" {
        return faults::rank(bench, &args.job);
    }
    type Section = (&'static str, fn(&mut bench::Bench) -> Outcome<()>);
    let sections: [Section; 9] = [
        ("collectives", collectives::all),
        ("groups", collectives::groups),
        ("adopted", collectives::adopted),
        ("gather", gather::padded),
        ("extremes", extremes::max_min),
        ("edges", extremes::sum_edges),
        ("averages", extremes::integer_avg),
        ("sums", sums::order),
        ("timing", timing::table),
    ];
    for (name, section) in sections {
        if name.contains(&run.only) {
            section(&mut bench)?;
        }
    }
    bench.finish()
}
