//! The project's tasks: `cargo xtask setup | demo | test | generate`.

#[cfg(feature = "bindgen")]
mod bindings;
mod demo;
mod generate;
mod process;
#[cfg_attr(not(feature = "bindgen"), allow(dead_code))]
mod recorded;
mod setup;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the shardweld repository")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the TensorRT-RTX library into .cache/ (pip, checksum verified)
    Setup,
    /// Set up, then check, build, run and compare the sample that the repository holds
    Demo,
    /// Set up, then run every check of the project
    Test,
    /// Regenerate every generated file
    Generate(generate::Generate),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Setup => setup::setup().map(|_| ()),
        Task::Demo => setup::setup().and_then(|library| demo::demo(&library, &process::build_shardweld()?)),
        Task::Test => test::test(),
        Task::Generate(args) => generate::generate(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
