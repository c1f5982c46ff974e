//! Memory maps of files. The only place of this crate that calls into the system for memory.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// Bytes that stay where they are: a mapped file, or a few held in memory. Clones share them.
#[derive(Clone, Debug)]
pub(super) enum Map {
    File(Arc<Mmap>),
    Memory(Arc<[u8]>),
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        match self {
            Map::File(map) => map,
            Map::Memory(bytes) => bytes,
        }
    }
}

/// Maps a regular file for reading.
pub(super) fn map_path(path: &Path) -> io::Result<Map> {
    // A pipe or device would block or lie about its length.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    map_file(&File::open(path)?)
}

/// Maps an open regular file for reading.
pub(super) fn map_file(file: &File) -> io::Result<Map> {
    // SAFETY: the map is read-only and private to this process. It is undefined for others to shorten or change the file
    // meanwhile, which no process can prevent; `WeightStore` documents it as the caller's duty for named files, and the
    // temporary files have no name that others could open.
    let map = unsafe { Mmap::map(file) }?;
    Ok(Map::File(Arc::new(map)))
}
