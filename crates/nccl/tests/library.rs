//! Opening NCCL on a machine that may have none: clear errors, no panic.

use std::path::PathBuf;

use shardweld_nccl::{LibraryError, NcclLibrary, Search};

#[test]
fn a_missing_library_lists_what_was_tried() {
    let nowhere = PathBuf::from("/nowhere/libnccl.so.2");
    let search = Search { chosen: Some(nowhere), ..Search::default() };
    let e = NcclLibrary::open(&search).unwrap_err();
    let text = e.to_string();
    assert!(matches!(e, LibraryError::NotFound { .. }), "{text}");
    assert!(text.contains("/nowhere/libnccl.so.2") && text.contains("2.28.0"), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_unusable_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let fake = dir.path().join("libnccl.so.2");
    std::fs::write(&fake, "not a library").unwrap();
    let search = Search { environment: Some(dir.path().to_owned()), ..Search::default() };
    let e = NcclLibrary::open(&search).unwrap_err();
    assert!(matches!(&e, LibraryError::Unusable { path, .. } if path == &fake.display().to_string()), "{e}");
}

/// A library of another purpose lacks NCCL's symbols.
#[test]
fn another_library_is_unusable() {
    let search = Search { chosen: Some("libm.so.6".into()), ..Search::default() };
    let e = NcclLibrary::open(&search).unwrap_err();
    assert!(matches!(&e, LibraryError::Unusable { .. } | LibraryError::NotFound { .. }), "{e}");
    if let LibraryError::Unusable { detail, .. } = &e {
        assert!(detail.contains("ncclGetVersion"), "{e}");
    }
}
