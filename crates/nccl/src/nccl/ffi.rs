//! NCCL's functions, loaded from the library that the search found.
//!
//! `cudarc` has the types, but its own loader opens the first library of its name and panics when there is none, so the
//! functions are loaded here. Enums come back as integers: a newer NCCL may return a number that an older header lacks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};
use libloading::Library;

use crate::error::CommError;
use crate::library::{LibraryError, Search, gate};
use crate::version::NcclVersion;

/// `ncclResult_t` as it comes over the wire.
pub(super) type Code = c_int;
/// A CUDA stream.
pub(super) type Stream = *mut c_void;
type Comm = ncclComm_t;

pub(super) const SUCCESS: Code = ncclResult_t::ncclSuccess as Code;
pub(super) const IN_PROGRESS: Code = ncclResult_t::ncclInProgress as Code;

/// `NCCL_API_MAGIC` of `nccl.h`.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT` of `nccl.h`.
const UNDEFINED: c_int = c_int::MIN;
/// Version whose config struct `cudarc`'s feature `nccl-02028` describes; newer libraries accept the shorter struct.
const CONFIG_VERSION: u32 = 22_800;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// A loaded NCCL.
        pub(super) struct Functions { $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $ret,)* }

        impl Functions {
            /// # Safety
            /// `library` is an NCCL library and outlives the result.
            unsafe fn load(library: &Library) -> Result<Functions, libloading::Error> {
                Ok(Functions { $(
                    // SAFETY: the symbol is NCCL's, so it has the signature that `nccl.h` gives it.
                    $field: unsafe { *library.get(concat!($symbol, "\0").as_bytes())? },
                )* })
            }
        }
    };
}

functions! {
    get_unique_id = "ncclGetUniqueId": fn(*mut ncclUniqueId) -> Code;
    comm_init_rank_config = "ncclCommInitRankConfig": fn(*mut Comm, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> Code;
    comm_split = "ncclCommSplit": fn(Comm, c_int, c_int, *mut Comm, *mut ncclConfig_t) -> Code;
    comm_finalize = "ncclCommFinalize": fn(Comm) -> Code;
    comm_destroy = "ncclCommDestroy": fn(Comm) -> Code;
    comm_abort = "ncclCommAbort": fn(Comm) -> Code;
    comm_count = "ncclCommCount": fn(Comm, *mut c_int) -> Code;
    comm_user_rank = "ncclCommUserRank": fn(Comm, *mut c_int) -> Code;
    comm_get_async_error = "ncclCommGetAsyncError": fn(Comm, *mut Code) -> Code;
    get_error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
    get_last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Code;
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    all_to_all = "ncclAlltoAll": fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Code;
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> Code;
    gather = "ncclGather": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    scatter = "ncclScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
}

/// The NCCL library of this process.
pub struct NcclLibrary {
    pub(super) functions: Functions,
    path: PathBuf,
    version: NcclVersion,
    /// Keeps the code mapped. Never closed while a function of it can be called.
    _library: Library,
}

impl NcclLibrary {
    /// Opens the first library that `search` finds and that is new enough.
    pub fn open(search: &Search) -> Result<Arc<NcclLibrary>, LibraryError> {
        let mut tried = Vec::new();
        for path in search.candidates() {
            // SAFETY: opening runs the library's initialisers; the user, the environment or the loader's path vouch for
            // a file of this name being NCCL.
            match unsafe { Library::new(&path) } {
                Ok(library) => return NcclLibrary::from_library(library, path).map(Arc::new),
                Err(e) if path.is_file() => {
                    return Err(LibraryError::Unusable {
                        path: path.display().to_string(),
                        detail: e.to_string(),
                    });
                }
                Err(e) => tried.push(format!("{} ({e})", path.display())),
            }
        }
        Err(LibraryError::NotFound { tried })
    }

    fn from_library(library: Library, path: PathBuf) -> Result<NcclLibrary, LibraryError> {
        let unusable = |detail: String| LibraryError::Unusable { path: path.display().to_string(), detail };
        // SAFETY: `ncclGetVersion` has had this signature since NCCL 1.
        let code = unsafe {
            let get_version = library
                .get::<unsafe extern "C" fn(*mut c_int) -> Code>(b"ncclGetVersion\0")
                .map_err(|e| unusable(e.to_string()))?;
            let mut code = 0;
            match get_version(&mut code) {
                SUCCESS => code,
                other => return Err(unusable(format!("ncclGetVersion failed with {other}"))),
            }
        };
        let version = NcclVersion::from_code(u32::try_from(code).map_err(|e| unusable(e.to_string()))?);
        gate(&path, version)?;
        // SAFETY: it is NCCL, as its version shows, and it is kept in the same struct as the functions.
        let functions = unsafe { Functions::load(&library) }.map_err(|e| unusable(e.to_string()))?;
        Ok(NcclLibrary { functions, path, version, _library: library })
    }

    /// File, or the name the loader resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version.
    pub fn version(&self) -> NcclVersion {
        self.version
    }

    /// A fresh id for a world; rank 0 makes it and gives it to the others.
    pub(super) fn unique_id(&self) -> Result<ncclUniqueId, CommError> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: `id` is writable and of NCCL's type.
        let code = unsafe { (self.functions.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code)?;
        Ok(id)
    }

    /// `Ok` for success and for a call that goes on in the background.
    pub(super) fn check(&self, what: &str, code: Code) -> Result<(), CommError> {
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            _ => Err(CommError::Nccl { what: what.to_owned(), detail: self.describe(code) }),
        }
    }

    /// NCCL's words for a result, with the last message it logged.
    pub(super) fn describe(&self, code: Code) -> String {
        // SAFETY: both return static or library-owned nul-terminated strings, or null; the communicator may be null.
        let (name, last) = unsafe {
            (
                text((self.functions.get_error_string)(code)),
                text((self.functions.get_last_error)(std::ptr::null_mut())),
            )
        };
        if last.is_empty() { name } else { format!("{name} ({last})") }
    }
}

/// # Safety
/// `s` is null or points to a nul-terminated string that lives during the call.
unsafe fn text(s: *const c_char) -> String {
    if s.is_null() {
        return String::new();
    }
    // SAFETY: not null; the rest is the caller's promise.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().trim().to_owned()
}

/// A configuration in which no call blocks, so that every wait can end at its limit.
pub(super) fn nonblocking_config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        version: CONFIG_VERSION,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

impl std::fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclLibrary").field("path", &self.path).field("version", &self.version).finish()
    }
}
