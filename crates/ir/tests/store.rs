//! Weight bytes from files: what is read, what is copied, and what hostile files are told.

use std::borrow::Cow;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use shardweld_ir::{Blob, BlobEntry, DType, StoreError, StridedView, WeightStore, WeightView};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn floats(n: u32) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn archive(entries: &[(&str, CompressionMethod, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, method, data) in entries {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(*method)).unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn zip_view(path: &Path, entry: &str, shape: &[u64]) -> StridedView {
    let blob = Blob { file: path.to_owned(), entry: BlobEntry::Zip(entry.into()) };
    StridedView::contiguous(blob, DType::F32, shape)
}

fn raw_view(path: &Path, len: u64, shape: &[u64]) -> StridedView {
    let blob = Blob { file: path.to_owned(), entry: BlobEntry::Raw { offset: 0, len } };
    StridedView::contiguous(blob, DType::F32, shape)
}

#[test]
fn stored_and_deflated_entries_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let data = floats(24);
    let large = floats(1 << 16);
    let bytes = archive(&[
        ("a/w", CompressionMethod::Stored, &data),
        ("a/d", CompressionMethod::Deflated, &data),
        ("a/large", CompressionMethod::Deflated, &large),
    ]);
    let path = file(dir.path(), "m.pt2", &bytes);
    let store = WeightStore::new();
    for entry in ["a/w", "a/d"] {
        let got = store.bytes(&zip_view(&path, entry, &[4, 6])).unwrap();
        assert!(matches!(got, Cow::Borrowed(_)), "{entry} was copied");
        assert_eq!(*got, data[..]);
    }
    assert_eq!(*store.bytes(&zip_view(&path, "a/large", &[1 << 16])).unwrap(), large[..]);
    assert_eq!(
        store.content_hash(&WeightView::Strided(zip_view(&path, "a/w", &[4, 6]))).unwrap(),
        store.content_hash(&WeightView::Strided(zip_view(&path, "a/d", &[4, 6]))).unwrap()
    );
    assert_ne!(
        store.content_hash(&WeightView::Strided(zip_view(&path, "a/w", &[4, 6]))).unwrap(),
        store.content_hash(&WeightView::Strided(zip_view(&path, "a/w", &[6, 4]))).unwrap(),
        "the shape is part of the content"
    );
}

/// What torch writes: DOS date 0, flags 0x808, sizes in a data descriptor after the data.
#[test]
fn archives_with_data_descriptors_and_date_zero_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let data = floats(8);
    let mut bytes = archive(&[("w", CompressionMethod::Stored, &data)]);
    let central = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    for (at, flags) in [(10, 6), (central + 12, central + 8)] {
        bytes[at..at + 4].fill(0); // time and date
        bytes[flags..flags + 2].copy_from_slice(&0x808u16.to_le_bytes());
    }
    bytes[14..26].fill(0); // checksum and sizes of the local header
    let path = file(dir.path(), "m.pt2", &bytes);
    assert_eq!(*WeightStore::new().bytes(&zip_view(&path, "w", &[8])).unwrap(), data[..]);
}

#[test]
fn windows_are_copied_in_row_major_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "w.bin", &floats(24));
    let store = WeightStore::new();
    let whole = WeightView::Strided(raw_view(&path, 96, &[2, 3, 4]));
    let get = |v: &WeightView| -> Vec<f32> {
        let bytes = store.view_bytes(v).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let index = |i, j, k| (i * 12 + j * 4 + k) as f32;
    let sliced = whole.slice(2, 1, 4, 2).unwrap();
    let expected: Vec<f32> =
        (0..2).flat_map(|i| (0..3).flat_map(move |j| [1, 3].map(|k| index(i, j, k)))).collect();
    assert_eq!(get(&sliced), expected);
    let turned = whole.transpose(&[2, 0, 1]).unwrap();
    let expected: Vec<f32> =
        (0..4).flat_map(|k| (0..2).flat_map(move |i| (0..3).map(move |j| index(i, j, k)))).collect();
    assert_eq!(get(&turned), expected);
    // Concatenation of two slices along the middle is the whole again, in another order of parts it is not.
    let (a, b) = (whole.slice(1, 0, 1, 1).unwrap(), whole.slice(1, 1, 3, 1).unwrap());
    assert_eq!(WeightView::concat(1, vec![a.clone(), b.clone()]).unwrap(), whole);
    let swapped = WeightView::concat(1, vec![b, a]).unwrap();
    let expected: Vec<f32> = (0..2)
        .flat_map(|i| [1, 2, 0].into_iter().flat_map(move |j| (0..4).map(move |k| index(i, j, k))))
        .collect();
    assert_eq!(get(&swapped), expected);
    // Slicing across parts, with a step that does not start a part evenly.
    let across = swapped.slice(1, 0, 3, 2).unwrap();
    let expected: Vec<f32> = (0..2)
        .flat_map(|i| [1, 0].into_iter().flat_map(move |j| (0..4).map(move |k| index(i, j, k))))
        .collect();
    assert_eq!(get(&across), expected);
    // Lazy ops on the concatenation agree with ops on the bytes.
    assert_eq!(get(&swapped.reshape(&[2, 12]).unwrap().unwrap()), get(&swapped));
    assert_eq!(get(&turned.transpose(&[1, 2, 0]).unwrap()), get(&whole));
    assert_eq!(turned.reshape(&[24]).unwrap(), None, "only a copy could reshape a transposed view");
    assert!(get(&whole.slice(0, 1, 1, 1).unwrap()).is_empty());
}

#[test]
fn lazy_operations_check_their_arguments() {
    let view = WeightView::Strided(raw_view(Path::new("w"), 96, &[2, 3, 4]));
    assert!(view.slice(3, 0, 1, 1).is_err());
    assert!(view.slice(1, 0, 4, 1).is_err());
    assert!(view.slice(1, 2, 1, 1).is_err());
    assert!(view.slice(1, 0, 3, 0).is_err());
    assert!(view.transpose(&[0, 1]).is_err());
    assert!(view.transpose(&[0, 1, 1]).is_err());
    assert!(view.reshape(&[5, 5]).is_err());
    assert!(view.reshape(&[u64::MAX, u64::MAX]).is_err());
    assert!(WeightView::concat(0, vec![]).is_err());
    let other = view.slice(2, 0, 3, 1).unwrap();
    assert!(WeightView::concat(0, vec![view.clone(), other]).is_err());
    assert!(WeightView::concat(9, vec![view.clone(), view.clone()]).is_err());
    assert!(WeightView::concat(0, vec![view, WeightView::Absent]).is_err());
}

#[test]
fn safetensors_are_read_by_name_and_type() {
    let dir = tempfile::tempdir().unwrap();
    let header = br#"{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(floats(4));
    let path = file(dir.path(), "m.safetensors", &bytes);
    let view = |name: &str, dtype| {
        let blob = Blob { file: path.clone(), entry: BlobEntry::Safetensors(name.into()) };
        StridedView::contiguous(blob, dtype, &[2, 2])
    };
    let store = WeightStore::new();
    assert_eq!(*store.bytes(&view("x", DType::F32)).unwrap(), floats(4)[..]);
    assert!(matches!(store.bytes(&view("x", DType::I32)), Err(StoreError::DType { .. })));
    assert!(matches!(store.bytes(&view("y", DType::F32)), Err(StoreError::NoEntry { .. })));
    let cut = file(dir.path(), "cut.safetensors", &bytes[..bytes.len() - 1]);
    let blob = Blob { file: cut, entry: BlobEntry::Safetensors("x".into()) };
    let error = store.bytes(&StridedView::contiguous(blob, DType::F32, &[2, 2])).unwrap_err();
    assert!(matches!(error, StoreError::Format { .. }), "{error}");
}

#[test]
fn a_weight_shorter_than_its_shape_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = floats(8);
    let bytes =
        archive(&[("w", CompressionMethod::Stored, &data), ("d", CompressionMethod::Deflated, &data)]);
    let path = file(dir.path(), "m.pt2", &bytes);
    let store = WeightStore::new();
    for entry in ["w", "d"] {
        let error = store.bytes(&zip_view(&path, entry, &[9])).unwrap_err();
        assert!(matches!(error, StoreError::TooShort { found: 32, expected: 36, .. }), "{error}");
        assert!(error.to_string().contains("m.pt2") && error.to_string().contains(entry), "{error}");
    }
    assert!(matches!(store.bytes(&zip_view(&path, "missing", &[1])), Err(StoreError::NoEntry { .. })));
    let raw = file(dir.path(), "w.bin", &data);
    assert!(store.bytes(&raw_view(&raw, 32, &[8])).is_ok());
    assert!(matches!(store.bytes(&raw_view(&raw, 33, &[8])), Err(StoreError::TooShort { .. })));
    assert!(matches!(store.bytes(&raw_view(&raw, u64::MAX, &[8])), Err(StoreError::TooShort { .. })));
    assert!(matches!(store.bytes(&raw_view(dir.path(), 32, &[8])), Err(StoreError::Io { .. })), "a folder");
    assert!(matches!(store.bytes(&raw_view(&dir.path().join("none"), 32, &[8])), Err(StoreError::Io { .. })));
}

#[test]
fn windows_that_overflow_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "w.bin", &floats(8));
    let store = WeightStore::new();
    let with = |change: fn(&mut StridedView)| {
        let mut v = raw_view(&path, 32, &[2, 4]);
        change(&mut v);
        store.bytes(&v).map(|b| b.len())
    };
    assert!(with(|_| {}).is_ok());
    assert!(with(|v| v.offset = u64::MAX).is_err());
    assert!(with(|v| v.offset = 1).is_err());
    assert!(with(|v| v.strides[0] = u64::MAX).is_err());
    assert!(with(|v| v.strides = vec![1]).is_err());
    // A window of stride 0 needs one element but would be copied into 2^62 bytes.
    let error = with(|v| (v.shape[0], v.strides[0], v.shape[1]) = (1 << 58, 0, 4)).unwrap_err();
    assert!(matches!(error, StoreError::Limit { .. }), "{error}");
}

#[test]
fn zip_bombs_and_lies_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let zeros = vec![0u8; 300 << 20];
    let bomb = file(dir.path(), "bomb.pt2", &archive(&[("w", CompressionMethod::Deflated, &zeros)]));
    let store = WeightStore::new();
    let error = store.bytes(&zip_view(&bomb, "w", &[1])).unwrap_err();
    assert!(matches!(error, StoreError::Limit { .. }), "{error}");
    assert_eq!(
        store.bytes(&zip_view(&bomb, "w", &[75 << 20])).unwrap().len(),
        300 << 20,
        "a view of all of it"
    );

    // Declared sizes that do not match what inflates, in both directions.
    let good = archive(&[("w", CompressionMethod::Deflated, &floats(64))]);
    let central = good.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    for (i, declared) in [252u32, 260, 1 << 30].into_iter().enumerate() {
        let mut bytes = good.clone();
        bytes[22..26].copy_from_slice(&declared.to_le_bytes());
        bytes[central + 24..central + 28].copy_from_slice(&declared.to_le_bytes());
        let path = file(dir.path(), &format!("lie{i}.pt2"), &bytes);
        assert!(store.bytes(&zip_view(&path, "w", &[63])).is_err(), "declared {declared}");
    }
    // A flipped bit in deflated data is seen by the checksum.
    let mut bytes = archive(&[("w", CompressionMethod::Deflated, &floats(64))]);
    bytes[14] ^= 1;
    let central = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    bytes[central + 16] ^= 1;
    let path = file(dir.path(), "crc.pt2", &bytes);
    assert!(matches!(store.bytes(&zip_view(&path, "w", &[64])), Err(StoreError::Entry { .. })));
}

#[test]
fn the_store_inflates_no_more_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let data = floats(16);
    let entries =
        [("a", CompressionMethod::Deflated, &data[..]), ("b", CompressionMethod::Deflated, &data[..])];
    let path = file(dir.path(), "m.pt2", &archive(&entries));
    let store = WeightStore::with_inflate_limit(127);
    assert!(store.bytes(&zip_view(&path, "a", &[16])).is_ok());
    assert!(store.bytes(&zip_view(&path, "a", &[16])).is_ok(), "inflated once, counted once");
    let error = store.bytes(&zip_view(&path, "b", &[16])).unwrap_err();
    assert!(matches!(error, StoreError::Limit { found: 128, limit: 127, .. }), "{error}");
}

#[test]
fn relative_files_are_resolved_against_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let absolute = file(dir.path(), "w.bin", &floats(2));
    let text = "swir 1\nmesh []\nweight \"w\" : f32[2] = [concat(0, raw(\"w.bin\", 4, 4, f32[1]), raw(\"w.bin\", 0, 4, f32[1]))]\n";
    let mut g = shardweld_ir::Graph::from_text("t", text).unwrap();
    let store = WeightStore::new();
    assert!(store.view_bytes(&g.weights()[0].shards[0]).is_err());
    g.resolve_weight_files(dir.path());
    assert_eq!(
        *store.view_bytes(&g.weights()[0].shards[0]).unwrap(),
        [1f32, 0.0].map(f32::to_le_bytes).concat()[..]
    );
    g.resolve_weight_files(Path::new("/elsewhere"));
    let WeightView::Concat { parts, .. } = &g.weights()[0].shards[0] else { panic!("still a concatenation") };
    assert!(matches!(&parts[0], WeightView::Strided(v) if v.blob.file == absolute), "absolute names stay");
}

/// Whatever is cut off or changed in an archive, the store answers with bytes or with an error.
#[test]
fn damaged_archives_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let good = archive(&[
        ("w", CompressionMethod::Stored, &floats(16)),
        ("d", CompressionMethod::Deflated, &floats(16)),
    ]);
    let try_both = |path: &Path| {
        let store = WeightStore::new();
        let w = store.bytes(&zip_view(path, "w", &[16])).map(|b| b.len());
        let d = store.bytes(&zip_view(path, "d", &[16])).map(|b| b.len());
        (w, d)
    };
    for n in 0..good.len() {
        let path = file(dir.path(), "cut", &good[..n]);
        let (w, d) = try_both(&path);
        assert!(w.is_err() && d.is_err(), "an archive cut to {n} bytes has no central directory");
    }
    for i in 0..good.len() {
        for value in [0u8, 0xff, good[i] ^ 0x80] {
            let mut bytes = good.clone();
            bytes[i] = value;
            let path = file(dir.path(), "changed", &bytes);
            let (w, d) = try_both(&path);
            for n in [w, d].into_iter().flatten() {
                assert_eq!(n, 64);
            }
        }
    }
}

#[test]
fn threads_share_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let data = floats(4096);
    let path = file(dir.path(), "m.pt2", &archive(&[("d", CompressionMethod::Deflated, &data)]));
    let store = WeightStore::new();
    let addresses: Vec<usize> = std::thread::scope(|s| {
        let handles: Vec<_> = (0..8)
            .map(|_| s.spawn(|| store.bytes(&zip_view(&path, "d", &[4096])).unwrap().as_ptr() as usize))
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    assert!(addresses.iter().all(|a| *a == addresses[0]), "the entry was inflated once");
}

/// The real archives, where they are at hand.
#[test]
fn real_archives_are_read() {
    let Some(data) = std::env::var_os("SHARDWELD_DATA").map(PathBuf::from) else {
        println!("skipped: SHARDWELD_DATA is not set");
        return;
    };
    for (file, deflated) in [("mlp_tp2.rank0.pt2", false), ("ltx2_tiny_cp4tp2.rank2.pt2", true)] {
        let path = [data.join("ltx2").join(file), data.join(file)].into_iter().find(|p| p.exists()).unwrap();
        let mut zip = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
        let mut seen = 0;
        for i in 0..zip.len() {
            let mut entry = zip.by_index(i).unwrap();
            if !entry.name().contains("/weight_") {
                continue;
            }
            seen += 1;
            let mut expected = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut expected).unwrap();
            let view = zip_view(&path, entry.name(), &[expected.len() as u64 / 4]);
            assert_eq!(*WeightStore::new().bytes(&view).unwrap(), expected[..], "{}", entry.name());
            assert_eq!(entry.compression() == CompressionMethod::Deflated, deflated);
        }
        assert!(seen > 0, "{file} has weights");
    }
}
