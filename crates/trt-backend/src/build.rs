//! Building all engines of a program: in parallel within a memory bound, all files or none.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shardweld_ir::store::WeightStore;
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::files;
use crate::interpret::contract::{self, Refused};
use crate::live::{Library, LiveError, LiveSink, ProgressEvent};
use crate::lower::RankTrace;
use crate::placement::{PlacementError, PlacementReport, layers_from_log};
use crate::sink::Sink;

/// Memory that a build needs besides weights and layers. Measured in all: 0.4 GB for 1,152 layers, 1.05 GB for 18,624, 2.24 GB
/// for 26,300.
const BASE_BYTES: u64 = 352 << 20;
/// Memory per layer of the network.
const LAYER_BYTES: u64 = 72 << 10;
/// Memory per byte of embedded weights, in tenths; measured 1.3.
const WEIGHT_FACTOR_TENTHS: u64 = 13;

/// Called with the position of the trace and a step of its builder; `false` cancels everything.
pub type BuildProgressFn<'a> = dyn Fn(usize, ProgressEvent<'_>) -> bool + Sync + 'a;

/// How to build.
pub struct BuildOptions<'a> {
    /// The library.
    pub library: &'a Library,
    /// Compute capability as major * 10 + minor, such as 80; `None` builds for the GPU of this machine.
    pub compute_capability: Option<u32>,
    /// Most builds at one time; each has one thread.
    pub parallel: usize,
    /// Memory that all builds together may take, in bytes. A build that alone needs more still runs, alone.
    pub memory_bytes: u64,
    /// Called at every step.
    pub progress: Option<&'a BuildProgressFn<'a>>,
}

impl std::fmt::Debug for BuildOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildOptions")
            .field("library", &self.library)
            .field("compute_capability", &self.compute_capability)
            .field("parallel", &self.parallel)
            .field("memory_bytes", &self.memory_bytes)
            .finish_non_exhaustive()
    }
}

/// An engine on disk.
#[derive(Debug)]
pub struct EngineFile {
    /// Global ranks that it is for.
    pub ranks: Vec<u32>,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Layers of the network definition.
    pub network_layers: usize,
    /// Where its collectives went.
    pub placement: PlacementReport,
    /// Time in the builder.
    pub build_time: Duration,
}

/// Why there are no engines. No file was written then.
#[derive(Debug, Error)]
pub enum BuildError {
    /// TensorRT would refuse a network, or build something else than it says.
    #[error("ranks {ranks:?}: {source}")]
    Refused {
        /// Ranks of the engine.
        ranks: Vec<u32>,
        /// The rule.
        source: Refused,
    },
    /// The builder failed.
    #[error("ranks {ranks:?}: {source}")]
    Live {
        /// Ranks of the engine.
        ranks: Vec<u32>,
        /// Why.
        source: LiveError,
    },
    /// A collective is not where it must be.
    #[error("ranks {ranks:?}: {source}")]
    Placement {
        /// Ranks of the engine.
        ranks: Vec<u32>,
        /// Why.
        source: PlacementError,
    },
    /// The file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another build failed first.
    #[error("cancelled")]
    Cancelled,
}

/// Builds an engine per trace into `folder`, named by [`RankTrace::stem`] and `.engine`. All files appear under their names only when all builds are done.
///
/// # Errors
/// The first failure; nothing is left on disk then.
pub fn build_all(
    traces: &[RankTrace],
    weights: &WeightStore,
    folder: &Path,
    name: &str,
    options: &BuildOptions<'_>,
) -> Result<Vec<EngineFile>, BuildError> {
    for t in traces {
        contract::check(&t.trace).map_err(|source| BuildError::Refused { ranks: t.ranks.clone(), source })?;
    }
    let stop = AtomicBool::new(false);
    let queue = Queue::new(
        traces.iter().map(|t| estimate(t.trace.weight_bytes(), t.trace.layer_count() as u64)),
        options.memory_bytes,
    );
    let slots: Vec<Mutex<Option<Result<Staged, BuildError>>>> =
        traces.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..options.parallel.clamp(1, traces.len().max(1)) {
            scope.spawn(|| {
                while let Some(job) = queue.take() {
                    let result = if stop.load(Ordering::Relaxed) {
                        Err(BuildError::Cancelled)
                    } else {
                        stage(job, &traces[job], weights, (folder, name), options, &stop)
                    };
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    *slots[job].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                    queue.done(job);
                }
            });
        }
    });
    let mut staged = Vec::with_capacity(traces.len());
    let mut cancelled = false;
    for slot in slots {
        match slot.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(s)) => staged.push(s),
            None | Some(Err(BuildError::Cancelled)) => cancelled = true,
            Some(Err(BuildError::Live { source: LiveError::Cancelled, .. })) => cancelled = true,
            Some(Err(e)) => return Err(e),
        }
    }
    if cancelled {
        return Err(BuildError::Cancelled);
    }
    publish(staged, folder)
}

/// Memory that a build is expected to take.
fn estimate(weight_bytes: u64, layers: u64) -> u64 {
    let weights = (weight_bytes / 10).saturating_mul(WEIGHT_FACTOR_TENTHS);
    layers.saturating_mul(LAYER_BYTES).saturating_add(weights).saturating_add(BASE_BYTES)
}

/// An engine in a temporary file.
struct Staged {
    file: NamedTempFile,
    engine: EngineFile,
}

fn stage(
    job: usize,
    trace: &RankTrace,
    weights: &WeightStore,
    (folder, name): (&Path, &str),
    options: &BuildOptions<'_>,
    stop: &AtomicBool,
) -> Result<Staged, BuildError> {
    let ranks = trace.ranks.clone();
    let start = Instant::now();
    let progress = |event: ProgressEvent<'_>| {
        !stop.load(Ordering::Relaxed) && options.progress.is_none_or(|p| p(job, event))
    };
    let sink = LiveSink {
        library: options.library,
        compute_capability: options.compute_capability,
        threads: 1,
        progress: Some(&progress),
    };
    let built = sink
        .replay(&trace.trace, weights)
        .map_err(|source| BuildError::Live { ranks: ranks.clone(), source })?;
    let build_time = start.elapsed();
    let placement = layers_from_log(&built.listing)
        .and_then(|layers| PlacementReport::new(&trace.trace, &layers))
        .map_err(|source| BuildError::Placement { ranks: ranks.clone(), source })?;
    let failed = |source| BuildError::Write { path: folder.to_owned(), source };
    let mut file = files::temporary(folder).map_err(failed)?;
    file.write_all(built.bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    let engine = EngineFile {
        ranks,
        path: format!("{}.engine", trace.stem(name)).into(),
        bytes: built.bytes().len() as u64,
        network_layers: built.network_layers,
        placement,
        build_time,
    };
    Ok(Staged { file, engine })
}

/// Gives the files their names; takes names back if one cannot be given.
fn publish(staged: Vec<Staged>, folder: &Path) -> Result<Vec<EngineFile>, BuildError> {
    let mut out: Vec<EngineFile> = Vec::with_capacity(staged.len());
    for Staged { file, mut engine } in staged {
        let path = folder.join(&engine.path);
        let kept = files::keep(file, &path);
        if let Err(source) = kept {
            for e in &out {
                // The first failure is what the caller hears about.
                let _ = std::fs::remove_file(&e.path);
            }
            return Err(BuildError::Write { path, source });
        }
        engine.path = path;
        out.push(engine);
    }
    Ok(out)
}

/// Jobs in order, handed out while the memory of those that run stays within a bound.
struct Queue {
    sizes: Vec<u64>,
    bound: u64,
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    next: usize,
    running: usize,
    in_use: u64,
}

impl Queue {
    fn new(sizes: impl Iterator<Item = u64>, bound: u64) -> Queue {
        Queue {
            sizes: sizes.collect(),
            bound,
            state: Mutex::new(QueueState { next: 0, running: 0, in_use: 0 }),
            changed: Condvar::new(),
        }
    }

    /// The next job, once it fits; a job that fits nowhere runs alone.
    fn take(&self) -> Option<usize> {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let size = *self.sizes.get(s.next)?;
            if s.running == 0 || s.in_use.saturating_add(size) <= self.bound {
                let job = s.next;
                s.next += 1;
                s.running += 1;
                s.in_use = s.in_use.saturating_add(size);
                return Some(job);
            }
            s = self.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, job: usize) {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        s.running -= 1;
        s.in_use = s.in_use.saturating_sub(self.sizes[job]);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_stay_within_the_memory_bound() {
        let q = Queue::new([6, 5, 100, 1].into_iter(), 10);
        assert_eq!(q.take(), Some(0));
        // 6 + 5 > 10: the second waits until the first is done.
        std::thread::scope(|s| {
            let waiting = s.spawn(|| q.take());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            q.done(0);
            assert_eq!(waiting.join().unwrap(), Some(1));
        });
        q.done(1);
        // Larger than the bound: runs, alone.
        assert_eq!(q.take(), Some(2));
        q.done(2);
        assert_eq!(q.take(), Some(3));
        assert_eq!(q.take(), None);
    }

    #[test]
    fn estimates_follow_weights_and_layers() {
        assert_eq!(estimate(0, 0), BASE_BYTES);
        assert_eq!(estimate(1000, 2), BASE_BYTES + 1300 + 2 * LAYER_BYTES);
        assert_eq!(estimate(u64::MAX, u64::MAX), u64::MAX);
    }
}
