//! Regenerates every generated file of the repository, or checks that each is current.

use crate::process::Result;

/// Proof records of the rewrite rules.
#[cfg(feature = "bindgen")]
const PROOFS: &str = "crates/rewrite/proofs";

/// What to do.
#[derive(clap::Args, Debug)]
pub struct Generate {
    /// Change nothing; fail if a file is not what would be generated
    #[arg(long)]
    check: bool,
    /// Also run the scripts that need PyTorch, with this Python (their first lines say what it needs)
    #[arg(long, value_name = "PYTHON", conflicts_with = "check")]
    torch: Option<std::path::PathBuf>,
    /// With --torch, which of the scripts; may be given more than once, else all
    #[arg(long, value_name = "NAME", requires = "torch", value_parser = clap::builder::PossibleValuesParser::new(crate::recorded::names()))]
    set: Vec<String>,
    /// The command to prove rules with, if it is built already
    #[arg(long, hide = true)]
    shardweld: Option<std::path::PathBuf>,
}

/// Does it in a build of this program that has bindgen, which the other tasks need not wait for.
#[cfg(not(feature = "bindgen"))]
pub fn generate(args: &Generate) -> Result<()> {
    let libclang = crate::setup::install(&crate::setup::LIBCLANG)?;
    let mut c = crate::process::cargo(&[
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "bindgen",
        "--",
        "generate",
    ]);
    c.env("LIBCLANG_PATH", libclang.parent().ok_or("libclang lies in no folder")?);
    if args.check {
        c.arg("--check");
    }
    if let Some(python) = &args.torch {
        c.arg("--torch").arg(python);
    }
    c.args(args.set.iter().flat_map(|s| ["--set", s]));
    if let Some(binary) = &args.shardweld {
        c.arg("--shardweld").arg(binary);
    }
    crate::process::run(&mut c)
}

/// Regenerates, or only compares.
#[cfg(feature = "bindgen")]
pub fn generate(args: &Generate) -> Result<()> {
    use std::fs;

    use crate::bindings::{BINDINGS, bindings};
    use crate::process::{build_shardweld, capture, cargo, root, run};
    use crate::recorded;

    let mut stale = Vec::new();
    let text = bindings()?;
    if fs::read_to_string(root().join(BINDINGS)).is_ok_and(|old| old == text) {
        eprintln!("current: {BINDINGS}");
    } else if args.check {
        stale.push(BINDINGS.to_owned());
    } else {
        fs::write(root().join(BINDINGS), text).map_err(|e| format!("cannot write {BINDINGS}: {e}"))?;
        eprintln!("written: {BINDINGS}");
    }
    if args.check {
        let built = args.shardweld.clone().map_or_else(build_shardweld, Ok)?;
        match capture(std::process::Command::new(built).args(["rules", "--prove", "--quiet"])) {
            Ok(_) => eprintln!("current: {PROOFS}"),
            Err(e) => {
                eprintln!("{e}");
                stale.push(PROOFS.to_owned());
            }
        }
    } else {
        run(&mut cargo(&["run", "--quiet", "--package", "shardweld-rewrite", "--example", "prove_rules"]))?;
    }
    if let Some(python) = &args.torch {
        let all: Vec<String> = recorded::names().into_iter().map(str::to_owned).collect();
        recorded::regenerate(python, if args.set.is_empty() { &all } else { &args.set })?;
    }
    stale.extend(recorded::stale()?);
    if stale.is_empty() {
        eprintln!("every generated file is current");
        return Ok(());
    }
    Err(format!(
        "not current:\n  {}\nrun `cargo xtask generate` (with --torch PYTHON for files under xtask/recorded.json) and commit the result",
        stale.join("\n  ")
    ))
}

/// The check alone, with a command that is built already.
pub fn check(shardweld: &std::path::Path) -> Result<()> {
    generate(&Generate { check: true, torch: None, set: Vec::new(), shardweld: Some(shardweld.to_owned()) })
}
