//! Every check of the project, in the order in which a failure is cheapest to find.

use std::time::Instant;

use crate::process::{Result, cargo, run, shardweld};
use crate::{demo, generate, setup};

/// Runs everything; tests that need TensorRT fail rather than skip.
pub fn test() -> Result<()> {
    let start = Instant::now();
    let library = setup::setup()?;
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    // One profile and one set of features for tests and binary: nothing is compiled twice.
    run(cargo(&["test", "--workspace", "--no-fail-fast"])
        .env("SHARDWELD_REQUIRE_TRT", "1")
        .env("SHARDWELD_TENSORRT_RTX_LIB", &library))?;
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(cargo(&["doc", "--no-deps", "-p", "shardweld-ir", "-p", "shardweld-rewrite"])
        .env("RUSTDOCFLAGS", "-D warnings"))?;
    let shardweld = shardweld()?;
    generate::check(&shardweld)?;
    demo::demo(&library, &shardweld)?;
    eprintln!("all checks passed in {} s", start.elapsed().as_secs());
    Ok(())
}
