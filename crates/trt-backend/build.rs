//! Compiles the C ABI shim twice, against the TensorRT and the TensorRT-RTX headers.
//!
//! Headers come from the folder named by `SHARDWELD_TENSORRT_HEADERS` / `SHARDWELD_TENSORRT_RTX_HEADERS`, else from the
//! pinned `trtx-sys` package, which is only unpacked by Cargo and never compiled.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The header package and the exact version that the shim was written against.
const HEADER_PACKAGE: &str = "trtx-sys";
const HEADER_PACKAGE_VERSION: &str = "0.9.1";

struct Flavour {
    /// Suffix of everything that must differ between the two copies.
    suffix: &'static str,
    rtx: &'static str,
    variable: &'static str,
    /// Folder inside the header package.
    folder: &'static str,
}

const FLAVOURS: [Flavour; 2] = [
    Flavour {
        suffix: "trt",
        rtx: "0",
        variable: "SHARDWELD_TENSORRT_HEADERS",
        folder: "TensorRT-Headers/TRT-Enterprise-11.4",
    },
    Flavour {
        suffix: "rtx",
        rtx: "1",
        variable: "SHARDWELD_TENSORRT_RTX_HEADERS",
        folder: "TensorRT-Headers/TRT-RTX-1.7",
    },
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=Cargo.toml");
    for f in &FLAVOURS {
        println!("cargo:rerun-if-env-changed={}", f.variable);
    }
    if env::var_os("CARGO_FEATURE_LIVE").is_none() {
        return;
    }
    for f in &FLAVOURS {
        if let Err(e) = compile(f) {
            eprintln!("error: cannot build the TensorRT binding: {e}");
            std::process::exit(1);
        }
    }
}

fn compile(f: &Flavour) -> Result<(), String> {
    let headers = match env::var_os(f.variable) {
        Some(dir) => PathBuf::from(dir),
        None => header_package()?.join(f.folder),
    };
    if !headers.join("NvInfer.h").is_file() {
        return Err(format!(
            "{} holds no NvInfer.h; set {} to the folder that does",
            headers.display(),
            f.variable
        ));
    }
    // The tests compile emitted C++ source against the same headers.
    println!("cargo:rustc-env=SHARDWELD_HEADERS_{}={}", f.suffix.to_uppercase(), headers.display());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .define("SWT_RTX", f.rtx)
        // Inline methods of the two header sets would otherwise be one symbol, and the linker would keep one copy.
        .define("nvinfer1", format!("nvinfer1_{}", f.suffix).as_str())
        .define("SwtSession", format!("SwtSession_{}", f.suffix).as_str())
        .include("cpp")
        // Headers of a real CUDA toolkit are not needed, and the two names that are used are the same there.
        .include("cpp/cuda_shim")
        .include(&headers)
        .file("cpp/shardweld_trt.cpp")
        .try_compile(&format!("shardweld_trt_{}", f.suffix))
        .map_err(|e| e.to_string())
}

/// Where Cargo unpacked the header package.
fn header_package() -> Result<PathBuf, String> {
    let manifest = Path::new(&env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?)
        .join("Cargo.toml");
    let cargo = env::var_os("CARGO").ok_or("CARGO is not set")?;
    let out = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(&manifest)
        // A build script's own target must not narrow what is listed: the package sits under a target that never is.
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let meta: serde_json::Value =
        serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = meta["packages"].as_array().ok_or("cargo metadata names no packages")?;
    packages
        .iter()
        .find(|p| {
            p["name"] == HEADER_PACKAGE
                && p["version"].as_str().is_some_and(|v| v.split('+').next() == Some(HEADER_PACKAGE_VERSION))
        })
        .and_then(|p| Path::new(p["manifest_path"].as_str()?).parent().map(Path::to_path_buf))
        .ok_or_else(|| {
            format!(
                "the package {HEADER_PACKAGE} {HEADER_PACKAGE_VERSION} is not in the dependency graph; name header \
                 folders with {} and {}",
                FLAVOURS[0].variable, FLAVOURS[1].variable
            )
        })
}
