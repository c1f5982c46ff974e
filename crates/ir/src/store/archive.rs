//! Entries of zip archives as byte ranges: stored ones lie in the map of the archive, deflated ones are inflated once.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use zip::{CompressionMethod, ZipArchive};

use super::error::StoreError;
use super::map::{Map, map_file};

/// An entry may inflate to at most this many times the bytes that a view needs, so that a zip bomb stops early.
pub const MAX_INFLATED_PER_NEEDED: u64 = 1024;
/// Inflated sizes up to this are allowed whatever the view needs (small views on large shared storages).
pub const MIN_INFLATE_LIMIT: u64 = 256 << 20;
/// Most bytes that one store inflates into temporary files, unless it is told otherwise.
pub const MAX_INFLATED_TOTAL: u64 = 256 << 30;
/// Deflate cannot shrink data further than this; a larger declared size is a lie.
pub const MAX_DEFLATE_RATIO: u64 = 1032;
/// Most entries of an archive that is read at all (a 48-layer model has some thousands).
pub const MAX_ENTRIES: usize = 1 << 20;
/// Bytes inflated at a time.
const CHUNK: usize = 1 << 16;
/// Largest entry that is inflated into memory: a file and a map each would cost more than its bytes.
const MAX_INFLATED_IN_MEMORY: u64 = 1 << 16;

/// How much one store may inflate, and how much it has.
#[derive(Debug)]
pub(super) struct Budget {
    pub limit: u64,
    pub used: AtomicU64,
}

/// A mapped zip archive with its index.
#[derive(Debug)]
pub(super) struct Archive {
    file: PathBuf,
    map: Map,
    zip: ZipArchive<Cursor<Map>>,
    /// Inflated entries by index in the archive.
    inflated: FxHashMap<usize, OnceLock<Result<Map, StoreError>>>,
}

impl Archive {
    pub fn open(file: &Path, map: Map) -> Result<Archive, StoreError> {
        let format = |reason: String| StoreError::Format { file: file.to_owned(), expected: "zip", reason };
        let mut zip = ZipArchive::new(Cursor::new(map.clone())).map_err(|e| format(e.to_string()))?;
        if zip.len() > MAX_ENTRIES {
            return Err(format(format!("{} entries; at most {MAX_ENTRIES} are read", zip.len())));
        }
        let mut inflated = FxHashMap::default();
        for i in 0..zip.len() {
            // An entry with a broken local header is reported when it is asked for.
            if zip.by_index_raw(i).is_ok_and(|e| e.compression() != CompressionMethod::Stored) {
                inflated.insert(i, OnceLock::new());
            }
        }
        Ok(Archive { file: file.to_owned(), map, zip, inflated })
    }

    /// All bytes of an entry of which a view needs the first `needed`. `budget` is the store's.
    pub fn bytes(&self, entry: &str, needed: u64, budget: &Budget) -> Result<&[u8], StoreError> {
        let index = self.zip.index_for_name(entry).ok_or_else(|| StoreError::NoEntry {
            file: self.file.clone(),
            entry: entry.to_owned(),
            entries: self.zip.len(),
        })?;
        // A clone shares the index; it has a reading position of its own.
        let mut zip = self.zip.clone();
        let raw = zip.by_index_raw(index).map_err(|e| self.bad(entry, e.to_string(), "a local header"))?;
        let (size, packed, start) = (raw.size(), raw.compressed_size(), raw.data_start());
        if raw.encrypted() {
            return Err(self.bad(entry, "encrypted data".into(), "plain data"));
        }
        let method = raw.compression();
        drop(raw);
        let file_len = self.map.as_ref().len() as u64;
        let end = start.checked_add(packed).filter(|&e| e <= file_len).ok_or_else(|| {
            let found = format!("{packed} bytes from {start}");
            self.bad(entry, found, &format!("data inside the {file_len} bytes of the file"))
        })?;
        match method {
            CompressionMethod::Stored if size == packed => {
                Ok(&self.map.as_ref()[start as usize..end as usize])
            }
            CompressionMethod::Stored => {
                Err(self.bad(entry, format!("stored {packed} bytes"), &format!("the declared {size}")))
            }
            CompressionMethod::Deflated => {
                self.check_size(entry, size, packed, needed)?;
                let slot = self.inflated.get(&index).ok_or_else(|| {
                    self.bad(entry, "a local header that changed".into(), "an unchanged file")
                })?;
                match slot.get_or_init(|| self.inflate(entry, index, size, budget)) {
                    Ok(map) => Ok(map.as_ref()),
                    Err(e) => Err(e.clone()),
                }
            }
            other => Err(self.bad(entry, format!("compression {other}"), "stored or deflated")),
        }
    }

    fn bad(&self, entry: &str, found: String, expected: &str) -> StoreError {
        StoreError::Entry {
            file: self.file.clone(),
            entry: entry.to_owned(),
            found,
            expected: expected.to_owned(),
        }
    }

    fn over(&self, entry: &str, found: u64, limit: u64, name: &'static str) -> StoreError {
        StoreError::Limit { file: self.file.clone(), entry: format!("entry `{entry}`"), found, limit, name }
    }

    fn check_size(&self, entry: &str, size: u64, packed: u64, needed: u64) -> Result<(), StoreError> {
        if size < needed {
            return Err(StoreError::TooShort {
                file: self.file.clone(),
                entry: format!("entry `{entry}`"),
                found: size,
                expected: needed,
            });
        }
        let possible = packed.saturating_mul(MAX_DEFLATE_RATIO);
        if size > possible {
            return Err(self.over(entry, size, possible, "MAX_DEFLATE_RATIO times the packed size"));
        }
        let allowed = needed.saturating_mul(MAX_INFLATED_PER_NEEDED).max(MIN_INFLATE_LIMIT);
        if size > allowed {
            return Err(self.over(entry, size, allowed, "MAX_INFLATED_PER_NEEDED times what the view needs"));
        }
        Ok(())
    }

    /// Inflates a large entry into a temporary file without a name and maps it, a small one into memory.
    fn inflate(&self, entry: &str, index: usize, size: u64, budget: &Budget) -> Result<Map, StoreError> {
        let sum = budget.used.fetch_add(size, Ordering::Relaxed).saturating_add(size);
        if sum > budget.limit {
            budget.used.fetch_sub(size, Ordering::Relaxed);
            return Err(self.over(entry, sum, budget.limit, "all that the store may inflate"));
        }
        let io = |action: &'static str| {
            move |e: std::io::Error| StoreError::Io {
                file: self.file.clone(),
                action,
                reason: format!("{e} (entry `{entry}`)"),
            }
        };
        let mut zip = self.zip.clone();
        let mut reader =
            zip.by_index(index).map_err(|e| self.bad(entry, e.to_string(), "deflated data"))?.take(size + 1);
        let mut file = match size {
            0..=MAX_INFLATED_IN_MEMORY => None,
            _ => Some(tempfile::tempfile().map_err(io("make a temporary file to inflate into"))?),
        };
        let mut held = Vec::new();
        let mut written = 0u64;
        let mut chunk = vec![0u8; CHUNK];
        loop {
            let n = match reader.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    return Err(self.bad(entry, e.to_string(), "deflated data with the right checksum"));
                }
            };
            written += n as u64;
            if written > size {
                return Err(self.bad(
                    entry,
                    "data that inflate to more".into(),
                    &format!("the declared {size} bytes"),
                ));
            }
            match &mut file {
                Some(f) => f.write_all(&chunk[..n]).map_err(io("write a temporary file while inflating"))?,
                None => held.extend_from_slice(&chunk[..n]),
            }
        }
        if written != size {
            return Err(self.bad(
                entry,
                format!("data that inflate to {written} bytes"),
                &format!("the declared {size}"),
            ));
        }
        match &file {
            Some(f) => map_file(f).map_err(io("map a temporary file")),
            None => Ok(Map::Memory(held.into())),
        }
    }
}
