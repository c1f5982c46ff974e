//! Files that appear whole or not at all: written under a temporary name, then renamed.

use std::io;
use std::path::Path;

use tempfile::NamedTempFile;

/// A temporary file in the folder that it will stay in, so that renaming it is atomic. It goes away unless [`keep`] is
/// called.
pub(crate) fn temporary(folder: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(".shardweld-").tempfile_in(folder)
}

/// Gives a finished file its name. Temporary files are private; the result is an ordinary file.
pub(crate) fn keep(file: NamedTempFile, path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    file.persist(path).map(drop).map_err(|e| e.error)
}
