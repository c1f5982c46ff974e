//! Installs what the project needs beyond Cargo into `.cache/`, through pip, each file checked against a committed hash.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Result, capture, root, run};

/// A pinned pip package, unpacked into a folder of `.cache/`.
pub struct Package {
    /// Folder below `.cache/`.
    folder: &'static str,
    /// File below `xtask/requirements/` with version and hash.
    requirements: &'static str,
    /// The file of the package that is wanted.
    file: &'static str,
}

/// The library that engines are built with.
pub const TENSORRT_RTX: Package = Package {
    folder: "tensorrt-rtx-1.7.1.116",
    requirements: "tensorrt-rtx.txt",
    file: "tensorrt_rtx_libs/libtensorrt_rtx.so.1",
};

/// The library that bindgen parses headers with.
#[cfg(not(feature = "bindgen"))]
pub const LIBCLANG: Package =
    Package { folder: "libclang", requirements: "libclang.txt", file: "clang/native/libclang.so" };

/// Installs the TensorRT-RTX library and checks for a C++ compiler; does nothing where that was done.
pub fn setup() -> Result<PathBuf> {
    capture(Command::new("g++").arg("--version")).map_err(|e| {
        format!("a C++17 compiler is needed and g++ does not answer (on Debian: apt-get install g++)\n{e}")
    })?;
    let library = install(&TENSORRT_RTX)?;
    eprintln!("TensorRT-RTX: {}", library.strip_prefix(root()).unwrap_or(&library).display());
    Ok(library)
}

/// Path of a package's file, installing the package if it is not there.
///
/// pip writes into a folder beside the final one, which then gets its name: a broken download leaves nothing that looks
/// installed.
pub fn install(package: &Package) -> Result<PathBuf> {
    let cache = root().join(".cache");
    let folder = cache.join(package.folder);
    let file = folder.join(package.file);
    if file.is_file() {
        return Ok(file);
    }
    let python = python_with_pip()?;
    let partial = cache.join(format!("{}.partial-{}", package.folder, std::process::id()));
    let outcome = fill(&python, package, &partial).and_then(|()| {
        if !partial.join(package.file).is_file() {
            return Err(format!("the package of {} holds no {}", package.requirements, package.file));
        }
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(|e| format!("cannot remove {}: {e}", folder.display()))?;
        }
        fs::rename(&partial, &folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))
    });
    if outcome.is_err() && partial.exists() {
        fs::remove_dir_all(&partial).map_err(|e| format!("cannot remove {}: {e}", partial.display()))?;
    }
    outcome.map(|()| file)
}

/// Downloads and unpacks a package. `--target` keeps it out of the system's Python, so PEP 668 does not apply.
fn fill(python: &Path, package: &Package, into: &Path) -> Result<()> {
    fs::create_dir_all(into).map_err(|e| format!("cannot create {}: {e}", into.display()))?;
    run(Command::new(python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action",
            "ignore",
        ])
        .args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "--target"])
        .arg(into)
        .arg("--requirement")
        .arg(root().join("xtask/requirements").join(package.requirements)))
}

/// A Python that has pip: the system's, or a virtual environment in `.cache/` where the system's has none.
fn python_with_pip() -> Result<PathBuf> {
    let python = PathBuf::from("python3");
    capture(Command::new(&python).arg("--version")).map_err(|e| {
        format!("python3 is needed to install packages (on Debian: apt-get install python3)\n{e}")
    })?;
    if capture(Command::new(&python).args(["-m", "pip", "--version"])).is_ok() {
        return Ok(python);
    }
    let venv = root().join(".cache/venv");
    capture(Command::new(&python).args(["-m", "venv"]).arg(&venv)).map_err(|e| {
        format!(
            "python3 has neither pip nor venv (on Debian: apt-get install python3-pip or python3-venv)\n{e}"
        )
    })?;
    Ok(venv.join("bin/python3"))
}
