//! Output that appears whole or not at all: written beside its final place, then renamed.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{NamedTempFile, TempDir};

use crate::failure::{Problem, Result, io};

/// The file that marks a folder as one that `shardweld build` wrote, and that it may therefore replace.
pub const REPORT: &str = "report.json";

/// Exit code after Ctrl-C or SIGTERM, as shells use it.
const INTERRUPTED: i32 = 130;

/// Temporary files and folders of this process.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes Ctrl-C and SIGTERM remove what is half-written before the process ends.
pub fn clean_up_on_interrupt() -> std::result::Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        for path in open().iter() {
            // The process ends either way, and nobody is left to tell.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        std::process::exit(INTERRUPTED);
    })
}

fn open() -> MutexGuard<'static, Vec<PathBuf>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary path, listed in [`OPEN`] while this lives.
#[derive(Debug)]
struct Listed(PathBuf);

impl Listed {
    fn new(path: &Path) -> Listed {
        open().push(path.to_path_buf());
        Listed(path.to_path_buf())
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        open().retain(|p| *p != self.0);
    }
}

/// A folder being filled. Dropped without [`Staging::publish`], it leaves nothing.
#[derive(Debug)]
pub struct Staging {
    temporary: TempDir,
    listed: Listed,
    target: Option<PathBuf>,
}

impl Staging {
    /// Starts to fill the folder `target`. It may exist only if it is empty or the output of an earlier build.
    pub fn new(target: &Path) -> Result<Staging> {
        if target.exists() {
            let mut entries = fs::read_dir(target).map_err(|e| io(target, "read", &e))?;
            if entries.next().is_some() && !target.join(REPORT).is_file() {
                return Err(Problem::new(format!(
                    "{} exists and is not the output of a build",
                    target.display()
                ))
                .file(target)
                .found(format!("a folder with files and no {REPORT}"))
                .help("name another folder with --out, or empty this one")
                .bad());
            }
        }
        let parent = parent_of(target);
        let temporary = tempfile::Builder::new()
            .prefix(".shardweld-partial-")
            .tempdir_in(parent)
            .map_err(|e| io(parent, "create a folder in", &e))?;
        Ok(Staging { listed: Listed::new(temporary.path()), temporary, target: Some(target.to_path_buf()) })
    }

    /// A folder for what nobody wants to keep; publishing it drops it.
    pub fn scratch() -> Result<Staging> {
        let parent = std::env::temp_dir();
        let temporary = tempfile::tempdir_in(&parent).map_err(|e| io(&parent, "create a folder in", &e))?;
        Ok(Staging { listed: Listed::new(temporary.path()), temporary, target: None })
    }

    /// Where the files lie until the folder is published.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Writes one file of the folder.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let shown = self.target.as_deref().unwrap_or(self.path()).join(name);
        File::create(self.temporary.path().join(name))
            .and_then(|mut f| {
                f.write_all(bytes)?;
                f.sync_all()
            })
            .map_err(|e| io(&shown, "write", &e))
    }

    /// Gives the folder its name. What an earlier build left there goes away only after that has worked.
    pub fn publish(self) -> Result<()> {
        let Some(target) = &self.target else { return Ok(()) };
        let old = if target.exists() {
            let parent = parent_of(target);
            let aside = tempfile::Builder::new()
                .prefix(".shardweld-old-")
                .tempdir_in(parent)
                .map_err(|e| io(parent, "create a folder in", &e))?;
            fs::rename(target, aside.path().join("old")).map_err(|e| io(target, "replace", &e))?;
            Some(aside)
        } else {
            None
        };
        if let Err(e) = make_readable(self.path()).and_then(|()| fs::rename(self.path(), target)) {
            if let Some(aside) = &old {
                fs::rename(aside.path().join("old"), target).map_err(|e| io(target, "restore", &e))?;
            }
            return Err(io(target, "create", &e));
        }
        // It has its final name now; the guard would look for the old one.
        drop(self.listed);
        let _renamed = self.temporary.keep();
        Ok(())
    }
}

/// Refuses a target that is there and no regular file: a rename would put a file in the place of `/dev/null`.
pub fn check_file(target: &Path) -> Result<()> {
    if target.exists() && !target.is_file() {
        return Err(Problem::new(format!("{} is not a regular file", target.display())).file(target).bad());
    }
    Ok(())
}

/// Writes a file whole or not at all.
pub fn write_file(target: &Path, bytes: &[u8]) -> Result<()> {
    check_file(target)?;
    let parent = parent_of(target);
    let mut temporary = tempfile::Builder::new()
        .prefix(".shardweld-partial-")
        .tempfile_in(parent)
        .map_err(|e| io(parent, "create a file in", &e))?;
    let _listed = Listed::new(temporary.path());
    write_all(&mut temporary, bytes).map_err(|e| io(target, "write", &e))?;
    temporary.persist(target).map_err(|e| io(target, "create", &e.error))?;
    Ok(())
}

/// Temporary folders are private; the output is an ordinary one.
fn make_readable(folder: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn write_all(file: &mut NamedTempFile, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all(bytes)?;
    file.as_file().sync_all()
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
