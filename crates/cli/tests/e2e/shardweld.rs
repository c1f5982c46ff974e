//! Calling the binary, and the samples that it is called on.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Folder of the repository's samples.
pub fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples")
}

/// A finished call.
#[derive(Debug)]
pub struct Call {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Call {
    /// Fails the test unless the exit code is 0.
    pub fn done(self) -> Call {
        self.exits(0)
    }

    /// Fails the test unless the answer is no and names all of `words`.
    pub fn says_no(self, words: &[&str]) -> Call {
        self.exits(1).mentions(words)
    }

    /// Fails the test unless the input is refused with a message that names all of `words`.
    pub fn refuses(self, words: &[&str]) -> Call {
        self.exits(2).mentions(words)
    }

    fn exits(self, code: i32) -> Call {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    fn mentions(self, words: &[&str]) -> Call {
        // Diagnostics are wrapped to the width of the terminal.
        let text: String = self.stderr.split_whitespace().filter(|w| *w != "│").collect::<Vec<_>>().join(" ");
        for w in words {
            assert!(text.contains(w), "no {w:?} in:\n{}", self.stderr);
        }
        assert!(!text.contains("panicked"), "{}", self.stderr);
        self
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.stdout))
    }
}

/// The binary with arguments, not yet started.
pub fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_shardweld"));
    // Messages on one line, so that words of them can be looked for.
    c.args(args).stdin(Stdio::null()).env("NO_COLOR", "1").env_remove("SHARDWELD_LOG");
    c
}

/// Calls the binary.
pub fn shardweld(args: &[&str]) -> Call {
    finish(&mut command(args))
}

/// Runs a prepared command to its end.
pub fn finish(command: &mut Command) -> Call {
    let Output { status, stdout, stderr } = command.output().unwrap();
    Call {
        code: status
            .code()
            .unwrap_or_else(|| panic!("killed: {status}; {}", String::from_utf8_lossy(&stderr))),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// A path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Names of all files in a folder, hidden ones too, sorted.
pub fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A case: where its model, side file and tensors lie.
#[derive(Clone, Debug)]
pub struct Case {
    /// MODEL argument.
    pub model: String,
    /// `--groups` argument.
    pub groups: String,
    /// Inputs and PyTorch's outputs.
    pub tensors: String,
}

impl Case {
    /// A case of the samples: `model` and `groups` are what follows `CASE.`.
    pub fn sample(folder: &str, case: &str, model: &str, groups: &str) -> Case {
        Case::in_folder(&samples().join(folder), case, model, groups)
    }

    /// A case in any folder.
    pub fn in_folder(folder: &Path, case: &str, model: &str, groups: &str) -> Case {
        let file = |rest: &str| folder.join(format!("{case}.{rest}")).to_str().unwrap().to_owned();
        Case { model: file(model), groups: file(groups), tensors: file("parity.safetensors") }
    }

    /// Eight ranks, one graph, context parallel.
    pub fn cp8() -> Case {
        Case::sample("ltx2_tiny_cp8", "ltx2_tiny_cp8", "rank0.pt2", "rank0.json")
    }

    /// Eight ranks on a 4x2 mesh, one file per rank.
    pub fn cp4tp2() -> Case {
        Case::sample("ltx23_tiny_cp4tp2", "ltx23_tiny_cp4tp2", "rank{rank}.pt2", "rank{rank}.json")
    }

    /// Runs a stage and writes the outputs of all ranks.
    pub fn run(&self, stage: &str, out: &Path) {
        shardweld(&[
            "run",
            &self.model,
            "--groups",
            &self.groups,
            "--inputs",
            &self.tensors,
            "--stage",
            stage,
            "--out",
            arg(out),
        ])
        .done();
    }

    /// Runs a stage and compares every output of every rank with PyTorch's; the call is `compare`'s.
    pub fn parity(&self, stage: &str, limits: [&str; 2]) -> Call {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out.safetensors");
        self.run(stage, &out);
        shardweld(&[
            "compare",
            arg(&out),
            &self.tensors,
            "--min-cosine",
            limits[0],
            "--max-abs",
            limits[1],
            "--json",
        ])
    }
}

/// What f32 programs must reach: cosine and largest difference.
pub const F32_LIMITS: [&str; 2] = ["0.9999999", "2e-5"];
