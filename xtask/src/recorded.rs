//! Files that scripts make with PyTorch, which neither users nor CI have: a manifest records the hashes of scripts and files.
//!
//! The check fails if a script was changed without running it, or a file by hand. Whether a run gives the same files again is not
//! checked here: the last bits of some depend on the processor.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::process::{Result, root, run};

/// Where hashes are recorded.
const MANIFEST: &str = "xtask/recorded.json";

/// A script and the files that it makes.
struct Set {
    name: &'static str,
    /// What is run: a shell script gets the Python as its first argument.
    script: &'static str,
    /// Folder of the script and what it imports.
    scripts: &'static str,
    /// Folder that it writes to, its last argument.
    output: &'static str,
    /// What the names of its files start with.
    prefix: &'static str,
}

const SETS: [Set; 3] = [
    Set {
        name: "goldens",
        script: "scripts/goldens/make_goldens.py",
        scripts: "scripts/goldens",
        output: "crates/interp/tests/data",
        prefix: "goldens_",
    },
    Set {
        name: "exports",
        script: "scripts/torch/make_exports.py",
        scripts: "scripts/torch",
        output: "crates/torch-import/tests/data",
        prefix: "",
    },
    Set {
        name: "samples",
        script: "scripts/samples/make_samples.sh",
        scripts: "scripts/samples",
        output: "samples",
        prefix: "",
    },
];

type Hashes = BTreeMap<String, String>;

/// Names of the sets.
pub fn names() -> Vec<&'static str> {
    SETS.iter().map(|s| s.name).collect()
}

/// Runs the scripts of the named sets with a Python that has PyTorch, and records the hashes.
pub fn regenerate(python: &Path, names: &[String]) -> Result<()> {
    let mut manifest = read()?;
    for set in SETS.iter().filter(|s| names.iter().any(|n| n == s.name)) {
        let script = root().join(set.script);
        let mut command = if set.script.ends_with(".sh") {
            let mut c = Command::new("bash");
            c.arg(script).arg(python);
            c
        } else {
            let mut c = Command::new(python);
            c.arg(script);
            c
        };
        run(command.arg(root().join(set.output)))?;
        manifest.insert(set.name.to_owned(), hashes(set)?);
    }
    let text = serde_json::to_string_pretty(&manifest).map_err(|e| e.to_string())? + "\n";
    fs::write(root().join(MANIFEST), text).map_err(|e| format!("cannot write {MANIFEST}: {e}"))
}

/// Names of the files whose hash is not the recorded one.
pub fn stale() -> Result<Vec<String>> {
    let manifest = read()?;
    let mut stale = Vec::new();
    for set in &SETS {
        let recorded = manifest.get(set.name).cloned().unwrap_or_default();
        let found = hashes(set)?;
        let names = recorded.keys().chain(found.keys()).filter(|f| recorded.get(*f) != found.get(*f));
        stale.extend(names.cloned());
    }
    stale.sort();
    stale.dedup();
    Ok(stale)
}

fn read() -> Result<BTreeMap<String, Hashes>> {
    let text =
        fs::read_to_string(root().join(MANIFEST)).map_err(|e| format!("cannot read {MANIFEST}: {e}"))?;
    serde_json::from_str(&text).map_err(|e| format!("{MANIFEST}: {e}"))
}

/// Hashes of the scripts and the files of a set, by path from the root.
fn hashes(set: &Set) -> Result<Hashes> {
    let mut all = Hashes::new();
    let mut folders = vec![(root().join(set.scripts), ""), (root().join(set.output), set.prefix)];
    while let Some((folder, prefix)) = folders.pop() {
        let failed = |e: std::io::Error| format!("cannot read {}: {e}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path: PathBuf = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                // Python leaves its caches beside the scripts.
                if name != "__pycache__" {
                    folders.push((path, prefix));
                }
            } else if name.starts_with(prefix) && name != "README.md" {
                let bytes = fs::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
                let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
                all.insert(shown, format!("{:x}", Sha256::digest(&bytes)));
            }
        }
    }
    Ok(all)
}
