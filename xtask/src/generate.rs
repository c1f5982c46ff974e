//! Regenerates every generated file of the repository, or checks that each is current.

use std::path::Path;

use crate::process::Result;

/// Does it in a build of this program that has bindgen, which the other tasks need not wait for.
#[cfg(not(feature = "bindgen"))]
pub fn generate(check: bool, torch: Option<&Path>) -> Result<()> {
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
    if check {
        c.arg("--check");
    }
    if let Some(python) = torch {
        c.arg("--torch").arg(python);
    }
    crate::process::run(&mut c)
}

/// Regenerates, or with `check` only compares. `torch` is a Python with PyTorch for the files that need one.
#[cfg(feature = "bindgen")]
pub fn generate(check: bool, torch: Option<&Path>) -> Result<()> {
    use std::fs;

    use crate::bindings::{BINDINGS, bindings};
    use crate::process::root;

    let _ = torch;
    let files = [(BINDINGS, bindings()?)];
    let mut stale = Vec::new();
    for (name, text) in &files {
        let path = root().join(name);
        let current = fs::read_to_string(&path).is_ok_and(|old| old == *text);
        if current {
            eprintln!("current: {name}");
        } else if check {
            stale.push(*name);
        } else {
            fs::write(&path, text).map_err(|e| format!("cannot write {name}: {e}"))?;
            eprintln!("written: {name}");
        }
    }
    if stale.is_empty() {
        Ok(())
    } else {
        Err(format!("not current: {}; run `cargo xtask generate` and commit the result", stale.join(", ")))
    }
}
