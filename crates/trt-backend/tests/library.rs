//! Finding and refusing libraries.
#![cfg(feature = "live")]

mod support;

use shardweld_trt::flavour::{Flavour, Version};
use shardweld_trt::live::{Library, LibraryError, header_version};

#[test]
fn both_header_sets_are_compiled_in() {
    assert_eq!(header_version(Flavour::TensorRt).major, 11);
    assert_eq!(header_version(Flavour::TensorRtRtx).major, 1);
}

#[test]
fn a_file_that_is_no_library_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libtensorrt_rtx.so.1");
    std::fs::write(&file, b"not an ELF file").unwrap();
    // A folder stands for the file in it.
    for path in [folder.path(), file.as_path()] {
        let e = Library::find(Flavour::TensorRtRtx, Some(path)).unwrap_err();
        assert!(matches!(&e, LibraryError::Unreadable { path, .. } if *path == file), "{e}");
    }
    let e = Library::find(Flavour::TensorRt, Some(&file.with_extension("missing"))).unwrap_err();
    assert!(matches!(e, LibraryError::Unreadable { .. }), "{e}");
}

/// A shared library made of the given C source.
fn shared_library(folder: &std::path::Path, source: &str) -> std::path::PathBuf {
    let (c, so) = (folder.join("fake.c"), folder.join("fake.so"));
    std::fs::write(&c, source).unwrap();
    let out = std::process::Command::new("g++")
        .args(["-x", "c", "-shared", "-fPIC", "-o"])
        .args([&so, &c])
        .output()
        .expect("the C++ compiler that built this crate runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    so
}

#[test]
fn another_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let so = shared_library(folder.path(), "int unrelated(void) { return 0; }");
    let e = Library::find(Flavour::TensorRtRtx, Some(&so)).unwrap_err();
    assert!(matches!(e, LibraryError::WrongLibrary { symbol: "getInferLibMajorVersion", .. }), "{e}");
}

#[test]
fn a_version_that_does_not_fit_is_named_with_the_needed_one() {
    let fake = |major: u32, minor: u32| {
        format!(
            "int getInferLibMajorVersion(void) {{ return {major}; }} int getInferLibMinorVersion(void) {{ return {minor}; }}
             int getInferLibPatchVersion(void) {{ return 2; }} int getInferLibBuildVersion(void) {{ return 3; }}
             void* createInferBuilder_INTERNAL(void* l, int v) {{ return 0; }}"
        )
    };
    for (flavour, major, minor, fits) in [
        (Flavour::TensorRtRtx, 1, 5, false),
        (Flavour::TensorRtRtx, 1, 6, true),
        (Flavour::TensorRtRtx, 2, 0, false),
        (Flavour::TensorRt, 10, 16, false),
        (Flavour::TensorRt, 11, 0, true),
        (Flavour::TensorRt, 12, 0, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let so = shared_library(folder.path(), &fake(major, minor));
        match Library::find(flavour, Some(&so)) {
            Ok(l) => {
                assert!(fits, "{flavour} {major}.{minor}");
                assert_eq!(l.version(), Version { major, minor, patch: 2, build: 3 });
            }
            Err(e @ LibraryError::Version { .. }) => {
                assert!(!fits, "{e}");
                let text = e.to_string();
                assert!(
                    text.contains(&format!("{major}.{minor}.2.3")) && text.contains("needed is"),
                    "{text}"
                );
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn a_library_without_a_builder_is_an_error_not_a_crash() {
    use shardweld_ir::store::WeightStore;
    use shardweld_trt::live::LiveSink;
    use shardweld_trt::sink::Sink;
    let folder = tempfile::tempdir().unwrap();
    let so = shared_library(
        folder.path(),
        "int getInferLibMajorVersion(void) { return 1; } int getInferLibMinorVersion(void) { return 7; }
         int getInferLibPatchVersion(void) { return 1; } int getInferLibBuildVersion(void) { return 1; }
         void* createInferBuilder_INTERNAL(void* l, int v) { return 0; }",
    );
    let library = Library::find(Flavour::TensorRtRtx, Some(&so)).unwrap();
    let mut p = support::Program::new(&[("tp", 1)]);
    let x = p.input("x", shardweld_ir::DType::F32, &[1]);
    let y = p.add("y", shardweld_ir::Op::Unary(shardweld_ir::Unary::Exp), &[x]);
    p.output(y);
    let sink = LiveSink { library: &library, compute_capability: Some(80), threads: 1, progress: None };
    let e = sink.replay(&p.lower(0), &WeightStore::new()).unwrap_err();
    assert!(e.to_string().contains("gave no builder"), "{e}");
}
