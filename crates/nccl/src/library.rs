//! Finding the NCCL library: the user's path, the environment, the loader's path, Python's site-packages.

use std::env;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::version::NcclVersion;

/// Names the library file, or the folder it is in.
pub const LIBRARY_ENV: &str = "SHARDWELD_NCCL";

/// File names, the versioned one first: TensorRT opens it, and two copies of NCCL in one process do not mix.
const FILE_NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Where the wheels `nvidia-nccl-cu12` and `nvidia-nccl-cu13` put it below site-packages.
const IN_SITE_PACKAGES: &str = "nvidia/nccl/lib";

/// Why there is no NCCL.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LibraryError {
    /// Not found.
    #[error("no NCCL library found; needed: NCCL >= {}. Name one with {LIBRARY_ENV}. Tried: {}", NcclVersion::NEEDED, .tried.join("; "))]
    NotFound {
        /// What was tried, each with the loader's answer.
        tried: Vec<String>,
    },
    /// A file that is not a usable NCCL.
    #[error("{path}: not a usable NCCL library: {detail}")]
    Unusable {
        /// File.
        path: String,
        /// The loader's answer.
        detail: String,
    },
    /// Too old.
    #[error("{path}: found NCCL {found}, needed >= {needed}: {why}")]
    TooOld {
        /// File.
        path: String,
        /// Version found.
        found: NcclVersion,
        /// Version needed.
        needed: NcclVersion,
        /// What needs it.
        why: &'static str,
    },
    /// Several ranks on one GPU without NCCL's consent.
    #[error(
        "ranks {ranks:?} share one GPU; NCCL allows that only with {env}=1 in the environment of every rank"
    )]
    SharedGpu {
        /// Ranks on the GPU.
        ranks: Vec<u32>,
        /// The variable.
        env: &'static str,
    },
    /// Ranks with different libraries.
    #[error("rank 0 has NCCL {ours}, rank {rank} has {theirs}; all ranks need the same version")]
    Mixed {
        /// Version of rank 0.
        ours: NcclVersion,
        /// Other rank.
        rank: u32,
        /// Its version.
        theirs: NcclVersion,
    },
}

/// What was found out about the environment; a value, so that the search can be tested.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The user's own choice (a flag): a file or a folder. Nothing else is tried then.
    pub chosen: Option<PathBuf>,
    /// Value of [`LIBRARY_ENV`]. Nothing further is tried then.
    pub environment: Option<PathBuf>,
    /// Folders that may hold Python packages.
    pub site_packages: Vec<PathBuf>,
}

impl Search {
    /// The search of this process; `chosen` is the user's flag.
    pub fn from_environment(chosen: Option<PathBuf>) -> Search {
        let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let mut site_packages: Vec<PathBuf> = Vec::new();
        if let Some(paths) = env::var_os("PYTHONPATH") {
            site_packages.extend(env::split_paths(&paths).filter(|p| !p.as_os_str().is_empty()));
        }
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set);
        let python = env::var_os("PATH")
            .and_then(|p| env::split_paths(&p).map(|d| d.join("python3")).find(|f| f.is_file()))
            .and_then(|f| Some(f.parent()?.parent()?.to_owned()));
        for prefix in prefixes.chain(python) {
            site_packages.extend(site_packages_of(&prefix));
        }
        Search { chosen, environment: set(LIBRARY_ENV), site_packages }
    }

    /// What to open, in order. Names without a folder are left to the loader.
    pub fn candidates(&self) -> Vec<PathBuf> {
        if let Some(choice) = self.chosen.as_ref().or(self.environment.as_ref()) {
            return if choice.is_dir() { in_folder(choice) } else { vec![choice.clone()] };
        }
        let loader = FILE_NAMES.iter().map(PathBuf::from);
        let wheels = self.site_packages.iter().flat_map(|s| in_folder(&s.join(IN_SITE_PACKAGES)));
        loader.chain(wheels.filter(|p| p.is_file())).collect()
    }
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    FILE_NAMES.iter().map(|n| folder.join(n)).collect()
}

/// `lib/python3.*/site-packages` of an installation, in order of name.
fn site_packages_of(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else { return vec![] };
    let python =
        |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("python3"));
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(python).collect();
    found.sort();
    found.into_iter().map(|p| p.join("site-packages")).filter(|p| p.is_dir()).collect()
}

/// Refuses a version that lacks collectives.
pub(crate) fn gate(path: &Path, found: NcclVersion) -> Result<(), LibraryError> {
    if found >= NcclVersion::NEEDED {
        return Ok(());
    }
    Err(LibraryError::TooOld {
        path: path.display().to_string(),
        found,
        needed: NcclVersion::NEEDED,
        why: "all-to-all, gather and scatter appeared there",
    })
}

/// What one rank tells the others about where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) version: NcclVersion,
    /// Host and GPU; equal for ranks on one GPU.
    pub(crate) gpu: String,
    /// Whether the rank's environment lets ranks share a GPU.
    pub(crate) sharing: bool,
}

/// Refuses ranks whose libraries differ, and ranks on one GPU that NCCL will not put there.
pub(crate) fn gate_world(path: &Path, seats: &[Seat]) -> Result<(), LibraryError> {
    let Some(first) = seats.first() else { return Ok(()) };
    for (rank, s) in seats.iter().enumerate() {
        if s.version != first.version {
            let (ours, theirs) = (first.version, s.version);
            return Err(LibraryError::Mixed { ours, rank: rank as u32, theirs });
        }
    }
    for s in seats {
        let ranks: Vec<u32> = (0..seats.len()).filter(|&r| seats[r].gpu == s.gpu).map(|r| r as u32).collect();
        if ranks.len() < 2 {
            continue;
        }
        if s.version < NcclVersion::NEEDED_FOR_SHARED_GPU {
            return Err(LibraryError::TooOld {
                path: path.display().to_string(),
                found: s.version,
                needed: NcclVersion::NEEDED_FOR_SHARED_GPU,
                why: "several ranks are on one GPU",
            });
        }
        if !s.sharing {
            return Err(LibraryError::SharedGpu { ranks, env: crate::version::MULTI_RANK_ENV });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_goes_before_the_environment_and_both_end_the_search() {
        let dir = tempfile::tempdir().unwrap();
        let wheel = dir.path().join(IN_SITE_PACKAGES);
        std::fs::create_dir_all(&wheel).unwrap();
        std::fs::write(wheel.join("libnccl.so.2"), "").unwrap();
        let mut s = Search { site_packages: vec![dir.path().to_owned()], ..Search::default() };
        let names: Vec<PathBuf> = FILE_NAMES.iter().map(PathBuf::from).collect();
        assert_eq!(s.candidates(), [names.clone(), vec![wheel.join("libnccl.so.2")]].concat());
        s.environment = Some(wheel.clone());
        assert_eq!(s.candidates(), in_folder(&wheel));
        s.chosen = Some("/x/libnccl.so.2".into());
        assert_eq!(s.candidates(), [PathBuf::from("/x/libnccl.so.2")]);
    }

    #[test]
    fn an_old_library_is_refused_with_both_versions() {
        let e = gate(Path::new("/x"), NcclVersion::new(2, 27, 7)).unwrap_err().to_string();
        assert!(e.contains("found NCCL 2.27.7") && e.contains(">= 2.28.0"), "{e}");
        assert!(gate(Path::new("/x"), NcclVersion::new(2, 28, 0)).is_ok());
    }

    #[test]
    fn ranks_share_a_gpu_only_from_2_30_and_only_if_told_so() {
        let seat = |minor, gpu: &str, sharing| Seat {
            version: NcclVersion::new(2, minor, 3),
            gpu: gpu.into(),
            sharing,
        };
        let world = |seats: &[Seat]| gate_world(Path::new("/x"), seats);
        assert!(world(&[seat(28, "a", false), seat(28, "b", false)]).is_ok());
        let e = world(&[seat(29, "a", true), seat(29, "a", true)]).unwrap_err().to_string();
        assert!(e.contains("2.29.3") && e.contains("2.30.0"), "{e}");
        let e = world(&[seat(30, "b", false), seat(30, "a", false), seat(30, "a", false)]).unwrap_err();
        assert_eq!(e, LibraryError::SharedGpu { ranks: vec![1, 2], env: crate::version::MULTI_RANK_ENV });
        assert!(world(&[seat(30, "a", true), seat(30, "a", true)]).is_ok());
        assert!(matches!(
            world(&[seat(30, "a", true), seat(28, "b", true)]),
            Err(LibraryError::Mixed { rank: 1, .. })
        ));
    }
}
