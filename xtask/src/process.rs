//! Running other programs: every command is shown, and one that fails or is missing becomes a sentence.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An error of a task, ready to print.
pub type Result<T> = std::result::Result<T, String>;

/// Root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in a folder of the repository")
}

/// `cargo` with the given arguments, run in the root of the repository.
pub fn cargo(args: &[&str]) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.args(args).current_dir(root());
    c
}

/// Shows a command and runs it to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|e| format!("cannot start `{line}`: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}")) }
}

/// Runs a command and returns what it printed; its standard error is part of the message if it fails.
pub fn capture(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let out = command.output().map_err(|e| format!("cannot start `{line}`: {e}"))?;
    if !out.status.success() {
        return Err(format!(
            "`{line}` failed: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        ));
    }
    String::from_utf8(out.stdout).map_err(|_| format!("`{line}` printed something that is not UTF-8"))
}

/// A command as one would type it, paths inside the repository relative to its root.
pub fn shown(command: &Command) -> String {
    let prefix = format!("{}/", root().display());
    let word = |s: &std::ffi::OsStr| {
        let s = s.to_string_lossy().replace(&prefix, "");
        if s.contains(' ') || s.is_empty() { format!("'{s}'") } else { s }
    };
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program()).to_owned();
    std::iter::once(word(&program)).chain(command.get_args().map(word)).collect::<Vec<_>>().join(" ")
}

/// Builds the `shardweld` binary of the development profile.
pub fn build_shardweld() -> Result<PathBuf> {
    run(&mut cargo(&["build", "--package", "shardweld-cli", "--bins"]))?;
    shardweld()
}

/// Where the `shardweld` binary of the development profile is; the command's own tests build it too.
pub fn shardweld() -> Result<PathBuf> {
    let meta = capture(&mut cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    let meta: serde_json::Value = serde_json::from_str(&meta).map_err(|e| format!("cargo metadata: {e}"))?;
    let target = meta["target_directory"].as_str().ok_or("cargo metadata names no target directory")?;
    let binary = Path::new(target).join("debug").join("shardweld");
    if binary.is_file() { Ok(binary) } else { Err(format!("{} was not built", binary.display())) }
}
