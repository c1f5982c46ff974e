//! The main job on the sample that the repository holds, as a user would type it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::{Result, capture, root, shown};

const MODEL: &str = "samples/ltx2_tiny_cp8/ltx2_tiny_cp8.rank0.pt2";
const GROUPS: &str = "samples/ltx2_tiny_cp8/ltx2_tiny_cp8.rank0.json";
const TENSORS: &str = "samples/ltx2_tiny_cp8/ltx2_tiny_cp8.parity.safetensors";
/// Where the demo writes; git ignores it.
const OUT: &str = "out/demo";
/// What eight ranks in f32 must reach against PyTorch's own run.
const LIMITS: [&str; 4] = ["--min-cosine", "0.9999999", "--max-abs", "2e-5"];

/// Checks, builds, runs and compares with the given binary; prints each command with its output.
pub fn demo(library: &Path, shardweld: &Path) -> Result<()> {
    fs::create_dir_all(root().join(OUT)).map_err(|e| format!("cannot create {OUT}: {e}"))?;
    let engine = format!("{OUT}/engine");
    let step = |args: &[&str]| -> Result<()> {
        let mut c = Command::new(shardweld);
        c.args(args).current_dir(root()).env("SHARDWELD_TENSORRT_RTX_LIB", library);
        println!("\n$ {}", shown(&c));
        print!("{}", capture(&mut c)?);
        Ok(())
    };
    println!(
        "One LTX-2 graph for 8 ranks (context parallel), exported by torch.export, becomes one TensorRT engine."
    );
    step(&["check", MODEL, "--groups", GROUPS])?;
    step(&["build", MODEL, "--groups", GROUPS, "--out", &engine])?;
    for stage in ["source", "rewritten", "trace"] {
        let outputs = format!("{OUT}/{stage}.safetensors");
        step(&["run", MODEL, "--groups", GROUPS, "--inputs", TENSORS, "--stage", stage, "--out", &outputs])?;
        let mut compare = vec!["compare", &outputs, TENSORS];
        compare.extend(LIMITS);
        step(&compare)?;
    }
    println!(
        "\nThe engine is in {engine}; source program, rewritten program and network definition match PyTorch's run on 8 ranks."
    );
    Ok(())
}
