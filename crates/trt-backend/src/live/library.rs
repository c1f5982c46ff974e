//! Finding, loading and checking a TensorRT library. Nothing is linked; everything goes through `dlopen`.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use thiserror::Error;

use super::bindings::{SwtApi, shardweld_trt_api, shardweld_trt_rtx_api};
use crate::flavour::{Flavour, Version};

/// Oldest TensorRT whose builder has collectives with the layout that the 11.4 headers describe.
const OLDEST_TENSORRT: Version = Version::new(11, 0, 0);
/// Oldest TensorRT-RTX that adds collectives to a network; 1.4 and 1.5 answer every one of them with null.
const OLDEST_TENSORRT_RTX: Version = Version::new(1, 6, 0);

/// Why no library could be used.
#[derive(Debug, Error)]
pub enum LibraryError {
    /// Nothing was found anywhere.
    #[error(
        "no {flavour} library found; looked for {soname} {places}. Name it with `--tensorrt-library`, or {variable}"
    )]
    NotFound {
        /// Wanted library.
        flavour: Flavour,
        /// File name looked for.
        soname: &'static str,
        /// Where.
        places: String,
        /// Environment variable that can name it.
        variable: &'static str,
    },
    /// A named library cannot be loaded.
    #[error("cannot load the {flavour} library {path} (named by {named_by}): {reason}")]
    Unreadable {
        /// Wanted library.
        flavour: Flavour,
        /// The file.
        path: PathBuf,
        /// Who named it.
        named_by: String,
        /// The loader's message.
        reason: String,
    },
    /// It loads, but is another library.
    #[error("{path} is not a {flavour} library: it has no symbol `{symbol}`")]
    WrongLibrary {
        /// Wanted library.
        flavour: Flavour,
        /// The file.
        path: PathBuf,
        /// Symbol missed.
        symbol: &'static str,
    },
    /// Its version is out of range.
    #[error("{path} is {flavour} {found}; needed is {oldest} or newer of major version {major}")]
    Version {
        /// Wanted library.
        flavour: Flavour,
        /// The file.
        path: PathBuf,
        /// Version found.
        found: Version,
        /// Oldest version that works.
        oldest: Version,
        /// Major version that the binding is made for.
        major: u32,
    },
}

/// A loaded library with the binding that fits it. Cheap to clone; stays loaded as long as any clone lives.
#[derive(Clone, Debug)]
pub struct Library {
    flavour: Flavour,
    path: PathBuf,
    version: Version,
    entry: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    // Keeps `entry` valid.
    _handle: Arc<libloading::Library>,
}

impl Library {
    /// Finds and loads a library: the given file or folder, else the environment variable of the flavour, else the
    /// system's loader, else the folders of `python3`'s packages. A named library that does not work is an error;
    /// nothing else is tried then.
    ///
    /// # Errors
    /// If no library is found, or the one found is unreadable, another library, or of an unusable version.
    pub fn find(flavour: Flavour, path: Option<&Path>) -> Result<Library, LibraryError> {
        if let Some(path) = path {
            return Library::load(flavour, &file_in(flavour, path), "the caller");
        }
        if let Some(path) = std::env::var_os(flavour.variable()).filter(|v| !v.is_empty()) {
            return Library::load(flavour, &file_in(flavour, Path::new(&path)), flavour.variable());
        }
        let mut places = vec!["through the system's loader".to_owned()];
        // A bare file name makes dlopen use LD_LIBRARY_PATH and the ldconfig cache.
        match Library::load(flavour, Path::new(flavour.soname()), "the system's loader") {
            Err(LibraryError::Unreadable { .. }) => {}
            other => return other,
        }
        for folder in python_folders() {
            let file = folder.join(flavour.python_package()).join(flavour.soname());
            if file.is_file() {
                return Library::load(flavour, &file, "python3's packages");
            }
            places.push(format!("in {}", folder.join(flavour.python_package()).display()));
        }
        Err(LibraryError::NotFound {
            flavour,
            soname: flavour.soname(),
            places: places.join(", "),
            variable: flavour.variable(),
        })
    }

    fn load(flavour: Flavour, path: &Path, named_by: &str) -> Result<Library, LibraryError> {
        // SAFETY: loading runs the library's initialisers; the user chose this library, and TensorRT's have no
        // preconditions.
        let handle = unsafe { libloading::Library::new(path) }.map_err(|e| LibraryError::Unreadable {
            flavour,
            path: path.to_owned(),
            named_by: named_by.to_owned(),
            // The loader's own words are one level down.
            reason: std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string()),
        })?;
        let wrong = |symbol| LibraryError::WrongLibrary { flavour, path: path.to_owned(), symbol };
        let number = |symbol: &'static str| {
            // SAFETY: TensorRT's headers declare these symbols as functions without arguments that return int32_t.
            let f = unsafe { handle.get::<unsafe extern "C" fn() -> c_int>(symbol.as_bytes()) }
                .map_err(|_| wrong(symbol))?;
            // SAFETY: as above; the call has no preconditions.
            Ok(u32::try_from(unsafe { f() }).unwrap_or(0))
        };
        let version = Version {
            major: number("getInferLibMajorVersion")?,
            minor: number("getInferLibMinorVersion")?,
            patch: number("getInferLibPatchVersion")?,
            build: number("getInferLibBuildVersion")?,
        };
        // SAFETY: TensorRT's headers declare this symbol with this type.
        let entry = *unsafe {
            handle.get::<unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void>(
                b"createInferBuilder_INTERNAL",
            )
        }
        .map_err(|_| wrong("createInferBuilder_INTERNAL"))?;
        let (oldest, major) = match flavour {
            Flavour::TensorRt => (OLDEST_TENSORRT, OLDEST_TENSORRT.major),
            Flavour::TensorRtRtx => (OLDEST_TENSORRT_RTX, OLDEST_TENSORRT_RTX.major),
        };
        if version.major != major || version < oldest {
            return Err(LibraryError::Version {
                flavour,
                path: path.to_owned(),
                found: version,
                oldest,
                major,
            });
        }
        tracing::debug!(%flavour, %version, path = %path.display(), "library loaded");
        Ok(Library { flavour, path: path.to_owned(), version, entry, _handle: Arc::new(handle) })
    }

    /// Which library this is.
    pub const fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Its own version.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The file it was loaded from; a bare name if the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn entry(&self) -> unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void {
        self.entry
    }

    /// The copy of the shim that fits this library.
    pub(super) fn api(&self) -> &'static SwtApi {
        api(self.flavour)
    }
}

fn api(flavour: Flavour) -> &'static SwtApi {
    // SAFETY: both functions return the address of a constant table with static lifetime.
    unsafe {
        &*match flavour {
            Flavour::TensorRt => shardweld_trt_api(),
            Flavour::TensorRtRtx => shardweld_trt_rtx_api(),
        }
    }
}

/// Version of the headers that the binding of a flavour was compiled against.
pub fn header_version(flavour: Flavour) -> Version {
    let a = api(flavour);
    let n = |x: i32| u32::try_from(x).unwrap_or(0);
    Version {
        major: n(a.header_major),
        minor: n(a.header_minor),
        patch: n(a.header_patch),
        build: n(a.header_build),
    }
}

/// The library's file if `path` is the folder it lies in, also if that is the folder of the Python package's parent.
fn file_in(flavour: Flavour, path: &Path) -> PathBuf {
    if path.is_dir() {
        let nested = path.join(flavour.python_package()).join(flavour.soname());
        return if nested.is_file() { nested } else { path.join(flavour.soname()) };
    }
    path.to_owned()
}

/// Where `python3` looks for packages; none if there is no Python.
fn python_folders() -> Vec<PathBuf> {
    let out = Command::new("python3").args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
    match out {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout)
            .lines()
            .filter(|l| l.starts_with('/'))
            .map(PathBuf::from)
            .collect(),
        _ => Vec::new(),
    }
}
