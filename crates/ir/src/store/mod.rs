//! Weight bytes on demand: maps files, finds blobs in them, copies only what is not contiguous.

mod archive;
mod error;
mod gather;
mod map;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};

use elsa::sync::FrozenMap;
use rustc_hash::FxHashMap;
use safetensors::SafeTensors;

pub use archive::{
    MAX_DEFLATE_RATIO, MAX_ENTRIES, MAX_INFLATED_PER_NEEDED, MAX_INFLATED_TOTAL, MIN_INFLATE_LIMIT,
};
pub use error::StoreError;

use crate::types::DType;
use crate::view::ViewError;
use crate::weight::{Blob, BlobEntry, StridedView, WeightView, row_major_strides};
use archive::{Archive, Budget};
use gather::{Target, copy_strided};
use map::{Map, map_path};

/// Most bytes that one view is copied into; larger views are read only where they are contiguous.
pub const MAX_COPY_BYTES: u64 = 64 << 30;

/// Open weight files. Shared between threads; every file is mapped once and every deflated entry inflated once.
///
/// The files must not change while the store lives. Bytes are little-endian elements and not aligned.
pub struct WeightStore {
    files: FrozenMap<PathBuf, Box<OpenFile>>,
    budget: Budget,
    hashes: Mutex<FxHashMap<WeightView, blake3::Hash>>,
}

#[derive(Default)]
struct OpenFile {
    map: OnceLock<Result<Map, StoreError>>,
    archive: OnceLock<Result<Archive, StoreError>>,
    tensors: OnceLock<Result<Tensors, StoreError>>,
}

/// Index of a safetensors file: name to dtype and byte range in the file.
type Tensors = FxHashMap<String, (safetensors::Dtype, std::ops::Range<usize>)>;

impl Default for WeightStore {
    fn default() -> WeightStore {
        WeightStore::new()
    }
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightStore").field("files", &self.files.keys_cloned()).finish_non_exhaustive()
    }
}

impl WeightStore {
    /// A store without open files, which inflates at most [`MAX_INFLATED_TOTAL`] bytes.
    pub fn new() -> WeightStore {
        WeightStore::with_inflate_limit(MAX_INFLATED_TOTAL)
    }

    /// A store that inflates at most `limit` bytes into temporary files.
    pub fn with_inflate_limit(limit: u64) -> WeightStore {
        WeightStore {
            files: FrozenMap::default(),
            budget: Budget { limit, used: AtomicU64::new(0) },
            hashes: Mutex::default(),
        }
    }

    /// Row-major bytes of a strided window: borrowed from the map if it is contiguous, a copy otherwise.
    ///
    /// # Errors
    /// If the file, the entry or the window is bad, or the file does not hold what the window needs.
    pub fn bytes(&self, view: &StridedView) -> Result<Cow<'_, [u8]>, StoreError> {
        let (blob, len) = self.window(view)?;
        if view.is_contiguous() {
            let start = view.offset as usize * view.dtype.size();
            return Ok(Cow::Borrowed(&blob[start..start + len as usize]));
        }
        let mut out = zeroed(len, || describe(&view.blob))?;
        copy_window(
            &mut Target { data: &mut out, strides: &row_major_strides(&view.shape), offset: 0 },
            blob,
            view,
        );
        Ok(Cow::Owned(out))
    }

    /// Row-major bytes of any view.
    ///
    /// # Errors
    /// As [`WeightStore::bytes`]; [`StoreError::Absent`] if there are no data.
    pub fn view_bytes(&self, view: &WeightView) -> Result<Cow<'_, [u8]>, StoreError> {
        if let WeightView::Strided(v) = view {
            return self.bytes(v);
        }
        let (dtype, shape) = view.ty()?.ok_or(StoreError::Absent)?;
        let len = byte_len(dtype, &shape).ok_or(ViewError::Overflow)?;
        let mut out = zeroed(len, || (PathBuf::new(), "a concatenation".into()))?;
        self.fill(&mut Target { data: &mut out, strides: &row_major_strides(&shape), offset: 0 }, view)?;
        Ok(Cow::Owned(out))
    }

    /// Hash of the content of a view: its element type, shape and row-major bytes, wherever they lie. Remembered per view.
    ///
    /// # Errors
    /// As [`WeightStore::view_bytes`].
    pub fn content_hash(&self, view: &WeightView) -> Result<blake3::Hash, StoreError> {
        let known = self.hashes.lock().unwrap_or_else(PoisonError::into_inner).get(view).copied();
        if let Some(hash) = known {
            return Ok(hash);
        }
        let (dtype, shape) = view.ty()?.ok_or(StoreError::Absent)?;
        let bytes = self.view_bytes(view)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{dtype}{shape:?}\0").as_bytes());
        hasher.update_rayon(&bytes);
        let hash = hasher.finalize();
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner).insert(view.clone(), hash);
        Ok(hash)
    }

    /// Checks a view against its file without reading elements; deflated entries are inflated.
    ///
    /// # Errors
    /// As [`WeightStore::view_bytes`].
    pub fn check(&self, view: &WeightView) -> Result<(), StoreError> {
        match view {
            WeightView::Absent => Err(StoreError::Absent),
            WeightView::Strided(v) => self.window(v).map(|_| ()),
            WeightView::Concat { parts, .. } => {
                view.ty()?;
                parts.iter().try_for_each(|p| self.check(p))
            }
        }
    }

    /// Copies a view into a target window of the view's shape.
    fn fill(&self, target: &mut Target<'_>, view: &WeightView) -> Result<(), StoreError> {
        match view {
            WeightView::Absent => Err(StoreError::Absent),
            WeightView::Strided(v) => {
                let (blob, _) = self.window(v)?;
                copy_window(target, blob, v);
                Ok(())
            }
            WeightView::Concat { dim, parts } => {
                let start = target.offset;
                for p in parts {
                    let (_, shape) = p.ty()?.ok_or(StoreError::Absent)?;
                    self.fill(target, p)?;
                    target.offset += shape[*dim as usize] * target.strides[*dim as usize];
                }
                target.offset = start;
                Ok(())
            }
        }
    }

    /// The blob of a window that lies inside it, and the window's size in bytes.
    fn window(&self, view: &StridedView) -> Result<(&[u8], u64), StoreError> {
        let bad = || {
            let (file, entry) = describe(&view.blob);
            StoreError::BadView { file, entry }
        };
        if view.strides.len() != view.shape.len() {
            return Err(bad());
        }
        let size = view.dtype.size() as u64;
        let needed = view.end().and_then(|e| e.checked_mul(size)).ok_or_else(bad)?;
        let len = byte_len(view.dtype, &view.shape).ok_or_else(bad)?;
        let blob = self.blob(&view.blob, view.dtype, needed)?;
        if needed > blob.len() as u64 {
            let (file, entry) = describe(&view.blob);
            return Err(StoreError::TooShort { file, entry, found: blob.len() as u64, expected: needed });
        }
        Ok((blob, len))
    }

    fn blob(&self, blob: &Blob, dtype: DType, needed: u64) -> Result<&[u8], StoreError> {
        let open = match self.files.get(&blob.file) {
            Some(open) => open,
            // Of two threads that come here at once the first inserts, both get what it inserted.
            None => self.files.insert(blob.file.clone(), Box::default()),
        };
        let map = open.map.get_or_init(|| {
            map_path(&blob.file).map_err(|e| StoreError::Io {
                file: blob.file.clone(),
                action: "map the file",
                reason: e.to_string(),
            })
        });
        let map = map.as_ref().map_err(Clone::clone)?;
        match &blob.entry {
            BlobEntry::Raw { offset, len } => {
                let bytes = map.as_ref();
                let end = offset.checked_add(*len);
                end.and_then(|e| bytes.get(usize::try_from(*offset).ok()?..usize::try_from(e).ok()?))
                    .ok_or_else(|| StoreError::TooShort {
                        file: blob.file.clone(),
                        entry: format!("{len} bytes from {offset}"),
                        found: bytes.len() as u64,
                        expected: end.unwrap_or(u64::MAX),
                    })
            }
            BlobEntry::Zip(entry) => {
                let archive = open.archive.get_or_init(|| Archive::open(&blob.file, map.clone()));
                archive.as_ref().map_err(Clone::clone)?.bytes(entry, needed, &self.budget)
            }
            BlobEntry::Safetensors(name) => {
                let tensors = open.tensors.get_or_init(|| read_tensors(&blob.file, map.as_ref()));
                let tensors = tensors.as_ref().map_err(Clone::clone)?;
                let (stored, range) = tensors.get(name).ok_or_else(|| StoreError::NoEntry {
                    file: blob.file.clone(),
                    entry: name.clone(),
                    entries: tensors.len(),
                })?;
                if safetensors_dtype(*stored) != Some(dtype) {
                    return Err(StoreError::DType {
                        file: blob.file.clone(),
                        entry: name.clone(),
                        found: format!("{stored:?}"),
                        expected: dtype,
                    });
                }
                map.as_ref().get(range.clone()).ok_or_else(|| StoreError::TooShort {
                    file: blob.file.clone(),
                    entry: format!("tensor `{name}`"),
                    found: map.as_ref().len() as u64,
                    expected: range.end as u64,
                })
            }
        }
    }
}

/// Bytes before the data of a safetensors file that hold the header's length.
const SAFETENSORS_PREFIX: usize = 8;

fn read_tensors(file: &Path, bytes: &[u8]) -> Result<Tensors, StoreError> {
    let format =
        |reason: String| StoreError::Format { file: file.to_owned(), expected: "safetensors", reason };
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| format(e.to_string()))?;
    let base = header + SAFETENSORS_PREFIX;
    metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (start, end) = info.data_offsets;
            match (base.checked_add(start), base.checked_add(end)) {
                (Some(s), Some(e)) if s <= e => Ok((name, (info.dtype, s..e))),
                _ => Err(format(format!("data offsets {start}..{end} of `{name}`"))),
            }
        })
        .collect()
}

/// The element type of a safetensors type, if the IR has it.
pub fn safetensors_dtype(dtype: safetensors::Dtype) -> Option<DType> {
    use safetensors::Dtype as S;
    Some(match dtype {
        S::F32 => DType::F32,
        S::F16 => DType::F16,
        S::BF16 => DType::BF16,
        S::F64 => DType::F64,
        S::F8_E4M3 => DType::F8E4M3,
        S::I64 => DType::I64,
        S::I32 => DType::I32,
        S::I8 => DType::I8,
        S::U8 => DType::U8,
        S::BOOL => DType::Bool,
        _ => return None,
    })
}

fn byte_len(dtype: DType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d)).filter(|&n| n <= i64::MAX as u64)
}

fn describe(blob: &Blob) -> (PathBuf, String) {
    let entry = match &blob.entry {
        BlobEntry::Raw { offset, len } => format!("{len} bytes from {offset}"),
        BlobEntry::Zip(entry) => format!("entry `{entry}`"),
        BlobEntry::Safetensors(name) => format!("tensor `{name}`"),
    };
    (blob.file.clone(), entry)
}

fn copy_window(target: &mut Target<'_>, blob: &[u8], view: &StridedView) {
    copy_strided(target, blob, &view.strides, view.offset, &view.shape, view.dtype.size());
}

/// A zeroed buffer, or an error where `vec!` would abort.
fn zeroed(len: u64, what: impl Fn() -> (PathBuf, String)) -> Result<Vec<u8>, StoreError> {
    if len > MAX_COPY_BYTES {
        let (file, entry) = what();
        return Err(StoreError::Limit {
            file,
            entry,
            found: len,
            limit: MAX_COPY_BYTES,
            name: "MAX_COPY_BYTES",
        });
    }
    let mut out = Vec::new();
    out.try_reserve_exact(len as usize).map_err(|_| StoreError::Memory(len))?;
    out.resize(len as usize, 0);
    Ok(out)
}
