//! Reading the files that `torch.export.save` writes: a zip archive with any root folder, or the bare graph JSON.
//!
//! JSON entries are read into memory within limits; weight entries are only located. Sizes come from the central directory, since torch
//! writes data descriptors. Nothing is ever unpacked to a path that the archive names.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use rustc_hash::FxHashMap;
use zip::{CompressionMethod, ZipArchive};

use crate::error::ImportError;

/// Most entries an archive may have; LTX-2.3, the largest model seen, has 4,200.
pub const MAX_ENTRIES: usize = 200_000;
/// Most bytes a JSON entry may have when inflated: 20 times the largest graph seen with its stack traces.
pub const MAX_JSON_BYTES: u64 = 1 << 30;
/// Largest ratio of inflated to stored size for JSON; graphs reach 30.
pub const MAX_JSON_RATIO: u64 = 250;
/// JSON below this inflated size may have any ratio: it cannot do harm.
pub const RATIO_FREE_BYTES: u64 = 1 << 20;

/// Where the bytes of an archive entry are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Full name in the archive, root folder included.
    pub name: String,
    /// Index in the central directory.
    pub index: usize,
    /// Offset of the data in the file if the entry is stored as it is; `None` if it is deflated.
    pub stored_at: Option<u64>,
    /// Size in bytes once inflated.
    pub size: u64,
    /// Size in bytes in the file.
    pub compressed: u64,
    /// CRC-32 of the inflated bytes, as the central directory gives it.
    pub crc: u32,
}

/// The zip archive of an exported program.
#[derive(Debug)]
pub struct Archive {
    zip: ZipArchive<BufReader<File>>,
    /// Entries by name without the root folder.
    entries: FxHashMap<String, Entry>,
}

/// A model file: the graph JSON, and the archive around it where there is one.
#[derive(Debug)]
pub struct ModelFile {
    /// The path it was read from.
    pub path: PathBuf,
    /// The graph JSON as bytes.
    pub json: Vec<u8>,
    /// The archive; `None` for bare JSON.
    pub archive: Option<Archive>,
    /// Name of the model in the archive (`model` unless several were packed together).
    pub model_name: String,
}

const ZIP_MAGIC: &[u8] = b"PK";
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
/// The graph's entry before torch 2.8, in an archive without a root folder.
const LEGACY_GRAPH: &str = "serialized_exported_program.json";

fn io(file: &Path) -> impl FnOnce(std::io::Error) -> ImportError + '_ {
    move |source| ImportError::Io { file: file.into(), source }
}

fn bad(file: &Path, reason: impl Into<String>) -> ImportError {
    ImportError::Archive { file: file.into(), reason: reason.into() }
}

impl ModelFile {
    /// Opens `path`, telling a zip archive, gzip and plain JSON apart by content.
    pub fn open(path: &Path) -> Result<ModelFile, ImportError> {
        let mut magic = [0u8; 2];
        let mut file = File::open(path).map_err(io(path))?;
        let len = file.metadata().map_err(io(path))?.len();
        let got = file.read(&mut magic).map_err(io(path))?;
        drop(file);
        let file = File::open(path).map_err(io(path))?;
        match &magic[..got] {
            ZIP_MAGIC => {
                let mut archive = Archive::open(path, file, len)?;
                let (entry, model_name) = archive.graph_entry(path)?;
                let json = archive.read_json(path, &entry)?;
                Ok(ModelFile { path: path.into(), json, archive: Some(archive), model_name })
            }
            GZIP_MAGIC => {
                let json = read_limited(path, GzDecoder::new(BufReader::new(file)), len)?;
                Ok(ModelFile { path: path.into(), json, archive: None, model_name: "model".into() })
            }
            [first, ..] if *first == b'{' || first.is_ascii_whitespace() => {
                if len > MAX_JSON_BYTES {
                    return Err(bad(path, format!("{len} bytes of JSON; at most {MAX_JSON_BYTES} are read")));
                }
                let json = read_limited(path, BufReader::new(file), len)?;
                Ok(ModelFile { path: path.into(), json, archive: None, model_name: "model".into() })
            }
            _ => Err(bad(path, "neither a .pt2 archive (zip) nor a graph JSON, plain or gzip")),
        }
    }
}

impl Archive {
    fn open(path: &Path, file: File, len: u64) -> Result<Archive, ImportError> {
        let mut zip = ZipArchive::new(BufReader::new(file))
            .map_err(|e| bad(path, format!("damaged or truncated archive: {e}")))?;
        // A file cut short may end in the directory of an archive that was stored inside it.
        if zip.offset() != 0 {
            let at = zip.offset();
            return Err(bad(
                path,
                format!("damaged or truncated archive: its directory is that of an archive at byte {at}"),
            ));
        }
        if zip.len() > MAX_ENTRIES {
            return Err(bad(path, format!("{} entries; at most {MAX_ENTRIES} are read", zip.len())));
        }
        let names: Vec<String> = zip.file_names().map(str::to_owned).collect();
        for n in &names {
            check_entry_name(n).map_err(|r| bad(path, format!("entry name {n:?} {r}: refused")))?;
        }
        let root = root_folder(&names);
        let mut entries = FxHashMap::default();
        for index in 0..zip.len() {
            let e = zip
                .by_index_raw(index)
                .map_err(|e| bad(path, format!("damaged or truncated archive, entry {index}: {e}")))?;
            let stored_at = match e.compression() {
                CompressionMethod::Stored => Some(e.data_start()),
                CompressionMethod::Deflated => None,
                other => {
                    return Err(bad(
                        path,
                        format!(
                            "entry {:?} is compressed with {other}; only stored and deflated entries are read",
                            e.name()
                        ),
                    ));
                }
            };
            if e.encrypted() {
                return Err(bad(path, format!("entry {:?} is encrypted", e.name())));
            }
            let end = e.data_start().checked_add(e.compressed_size());
            if end.is_none_or(|end| end > len) {
                return Err(bad(
                    path,
                    format!("truncated archive: entry {:?} ends after the file's {len} bytes", e.name()),
                ));
            }
            if stored_at.is_some() && e.size() != e.compressed_size() {
                return Err(bad(
                    path,
                    format!(
                        "stored entry {:?} gives two sizes, {} and {}",
                        e.name(),
                        e.size(),
                        e.compressed_size()
                    ),
                ));
            }
            let name = e.name().to_owned();
            let short = name.strip_prefix(root.as_str()).unwrap_or(&name).to_owned();
            let (size, compressed, crc) = (e.size(), e.compressed_size(), e.crc32());
            let entry = Entry { name, index, stored_at, size, compressed, crc };
            if let Some(old) = entries.insert(short, entry) {
                return Err(bad(path, format!("entry {:?} stands twice", old.name)));
            }
        }
        Ok(Archive { zip, entries })
    }

    /// The entry called `name`, without root folder.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    fn graph_entry(&self, path: &Path) -> Result<(Entry, String), ImportError> {
        let mut graphs: Vec<(&str, &Entry)> = self
            .entries
            .iter()
            .filter_map(|(n, e)| {
                let model = n.strip_prefix("models/")?.strip_suffix(".json")?;
                (!model.contains('/')).then_some((model, e))
            })
            .collect();
        graphs.sort_by_key(|(n, _)| n.to_owned());
        match graphs.as_slice() {
            [(model, e)] => Ok(((*e).clone(), (*model).to_owned())),
            [] => self.entry(LEGACY_GRAPH).map(|e| (e.clone(), "model".to_owned())).ok_or_else(|| {
                bad(path, "no entry `models/model.json`: not an archive of torch.export.save")
            }),
            many => {
                let names: Vec<&str> = many.iter().map(|(n, _)| *n).collect();
                Err(bad(path, format!("several models ({}); one is expected", names.join(", "))))
            }
        }
    }

    /// Reads a JSON entry, within [`MAX_JSON_BYTES`] and [`MAX_JSON_RATIO`].
    pub fn read_json(&mut self, path: &Path, entry: &Entry) -> Result<Vec<u8>, ImportError> {
        let reader =
            self.zip.by_index(entry.index).map_err(|e| bad(path, format!("entry {:?}: {e}", entry.name)))?;
        read_limited(path, reader, entry.compressed).map_err(|e| match e {
            ImportError::Archive { file, reason } => {
                ImportError::Archive { file, reason: format!("entry {:?}: {reason}", entry.name) }
            }
            ImportError::Io { file, source } => ImportError::Archive {
                file,
                reason: format!("entry {:?} is damaged or truncated: {source}", entry.name),
            },
            other => other,
        })
    }
}

impl Archive {
    /// Hash of an entry's inflated bytes, which are streamed and not kept.
    ///
    /// # Errors
    /// If the data are damaged, or more or fewer than the central directory says.
    pub fn digest(&mut self, path: &Path, entry: &Entry) -> Result<blake3::Hash, ImportError> {
        let damaged =
            |reason: String| bad(path, format!("entry {:?} is damaged or truncated: {reason}", entry.name));
        let reader = self.zip.by_index(entry.index).map_err(|e| damaged(e.to_string()))?;
        let mut hasher = blake3::Hasher::new();
        hasher
            .update_reader(reader.take(entry.size.saturating_add(1)))
            .map_err(|e| damaged(e.to_string()))?;
        if hasher.count() != entry.size {
            return Err(damaged(format!("{} bytes or more, expected {}", hasher.count(), entry.size)));
        }
        Ok(hasher.finalize())
    }
}

/// Reads to the end, refusing what grows past the limits; `compressed` is the size that it has in the file.
fn read_limited(path: &Path, reader: impl Read, compressed: u64) -> Result<Vec<u8>, ImportError> {
    let by_ratio = compressed.saturating_mul(MAX_JSON_RATIO).max(RATIO_FREE_BYTES);
    let limit = by_ratio.min(MAX_JSON_BYTES);
    let mut out = Vec::new();
    reader.take(limit + 1).read_to_end(&mut out).map_err(io(path))?;
    if out.len() as u64 > limit {
        return Err(bad(
            path,
            format!(
                "inflates from {compressed} to more than {limit} bytes, beyond the limits of {MAX_JSON_RATIO} times its size and {MAX_JSON_BYTES} bytes"
            ),
        ));
    }
    Ok(out)
}

/// What is wrong with an entry name: entries are never unpacked, but such a name says that the archive is not from torch.
fn check_entry_name(name: &str) -> Result<(), &'static str> {
    if name.starts_with('/') || name.contains('\\') || name.contains('\0') || name.contains(':') {
        return Err("is absolute or holds a character that no relative path has");
    }
    if name.split('/').any(|part| part == "..") {
        return Err("leaves the archive's folder");
    }
    Ok(())
}

/// The folder that all entries are in, with its slash; empty if there is none.
fn root_folder(names: &[String]) -> String {
    let root =
        names.first().and_then(|n| n.split_once('/')).map(|(r, _)| format!("{r}/")).unwrap_or_default();
    if names.iter().all(|n| n.starts_with(&root)) { root } else { String::new() }
}
