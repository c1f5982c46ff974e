//! How the ranks of one job find each other before NCCL can: the interface, the settings and the errors.
//!
//! | module | holds |
//! |---|---|
//! | `frame` | messages on a byte stream |
//! | `proof` | showing that one holds the job's token without sending it |
//! | `hub` | rank 0's side of the TCP rendezvous |
//! | `tcp` | every rank's side of the TCP rendezvous |
//! | `file` | the rendezvous in a folder that all ranks see |

mod file;
mod frame;
mod hub;
mod proof;
mod tcp;

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

pub use file::FileRendezvous;
pub use tcp::TcpRendezvous;

use crate::transport::{LostRank, PeerWatch};

/// Ranks that met. Dropping one without [`Rendezvous::finish`] tells the others that it is lost.
pub trait Rendezvous: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn world_size(&self) -> u32;

    /// Gives `mine` to all ranks and returns what each gave, by rank. All ranks call it together with the same `what`.
    fn exchange(&mut self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError>;

    /// Says which rank's heartbeat stopped.
    fn watch(&self) -> PeerWatch;

    /// Leaves in order: the others are not told that this rank is lost.
    fn finish(self: Box<Self>) -> Result<(), RendezvousError>;
}

/// How a rank joins.
#[derive(Clone, Debug)]
pub struct Join {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// What all ranks of the job know and nobody else does.
    pub token: String,
    /// Time for all ranks to arrive, and for each exchange.
    pub limit: Duration,
    /// Time between two heartbeats.
    pub beat: Duration,
    /// A rank that has not been heard for this long is lost.
    pub dead_after: Duration,
}

impl Join {
    /// Default settings: a minute to arrive, a heartbeat each half second, lost after 10 s of silence.
    pub fn new(rank: u32, world_size: u32, token: impl Into<String>) -> Join {
        Join {
            rank,
            world_size,
            token: token.into(),
            limit: Duration::from_secs(60),
            beat: Duration::from_millis(500),
            dead_after: Duration::from_secs(10),
        }
    }

    fn validate(&self) -> Result<(), RendezvousError> {
        if self.rank >= self.world_size {
            return Err(RendezvousError::RankOutOfRange { rank: self.rank, world_size: self.world_size });
        }
        if self.token.is_empty() {
            return Err(RendezvousError::EmptyToken);
        }
        if self.beat.is_zero() || self.dead_after < self.beat * 2 {
            return Err(RendezvousError::Beat { beat: self.beat, dead_after: self.dead_after });
        }
        Ok(())
    }
}

/// Most bytes that one rank gives in one exchange; far above what communicators need.
pub const MAX_PAYLOAD: usize = 16 << 20;

/// Why ranks did not meet or could not exchange.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RendezvousError {
    /// A rank outside the world.
    #[error("rank {rank} of a world of {world_size}; ranks go from 0 to world size - 1")]
    RankOutOfRange {
        /// Rank found.
        rank: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// An empty token protects nothing.
    #[error("the rendezvous token is empty; give all ranks of the job the same non-empty token")]
    EmptyToken,
    /// Heartbeat settings that would declare living ranks lost.
    #[error("a heartbeat every {beat:?} with ranks lost after {dead_after:?}: at least two beats must fit")]
    Beat {
        /// Time between beats.
        beat: Duration,
        /// Silence that means lost.
        dead_after: Duration,
    },
    /// The token is not that of the job found there.
    #[error("{place}: wrong token: another job meets there, or this rank was given another job's token")]
    WrongToken {
        /// Address or folder.
        place: String,
    },
    /// A rank that is already there.
    #[error("{place}: rank {rank} has joined already ({holder}); two processes were given the same rank")]
    DuplicateRank {
        /// Address or folder.
        place: String,
        /// The rank.
        rank: u32,
        /// Process that holds it.
        holder: String,
    },
    /// Ranks with different world sizes.
    #[error("{place}: this rank was told of {ours} ranks, the job there has {theirs}")]
    WorldSize {
        /// Address or folder.
        place: String,
        /// World size of this rank.
        ours: u32,
        /// World size found.
        theirs: u32,
    },
    /// Ranks that never came.
    #[error("{place}: after {limit:?} ranks {missing:?} are missing{}", refused_text(.refused))]
    Missing {
        /// Address or folder.
        place: String,
        /// The limit.
        limit: Duration,
        /// Ranks that did not arrive.
        missing: Vec<u32>,
        /// Callers that were turned away meanwhile, and why.
        refused: Vec<String>,
    },
    /// The port is taken.
    #[error("{place}: rank 0 cannot listen there: {by}; choose another port for this job")]
    PortTaken {
        /// Address.
        place: String,
        /// Who answers there.
        by: String,
    },
    /// Something else answers at the address.
    #[error("{place}: what answers there is not a shardweld rendezvous of this version ({found})")]
    NotARendezvous {
        /// Address or file.
        place: String,
        /// What came.
        found: String,
    },
    /// Files of an earlier job.
    #[error("{}: stale: left by {holder}, which no longer beats; remove the folder {} or choose another", .file.display(), .folder.display())]
    Stale {
        /// The file.
        file: PathBuf,
        /// The rendezvous folder.
        folder: PathBuf,
        /// Process that left it.
        holder: String,
    },
    /// A rank was lost during an exchange.
    #[error("exchange `{what}`: rank {} is lost: {}", .lost.rank, .lost.how)]
    Lost {
        /// Exchange.
        what: String,
        /// Which rank and how.
        lost: LostRank,
    },
    /// Ranks exchange different things.
    #[error("rank {rank} exchanges `{theirs}` where rank {our_rank} exchanges `{ours}`")]
    OrderMismatch {
        /// First rank.
        our_rank: u32,
        /// Its exchange.
        ours: String,
        /// Second rank.
        rank: u32,
        /// Its exchange.
        theirs: String,
    },
    /// Ranks did not give their part in time.
    #[error("exchange `{what}`: not finished after {limit:?}")]
    Timeout {
        /// Exchange.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// More bytes than an exchange carries.
    #[error("exchange `{what}`: {found} bytes, at most {MAX_PAYLOAD} are carried")]
    TooLarge {
        /// Exchange.
        what: String,
        /// Bytes found.
        found: usize,
    },
    /// The operating system refused something.
    #[error("{place}: {what}: {detail}")]
    Io {
        /// Address or file.
        place: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        detail: String,
    },
}

fn refused_text(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!("; turned away: {}", refused.join(", ")) }
}

/// `pid P on HOST`, for messages that name a process.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "this host" } else { host.trim() };
    format!("pid {} on {host}", std::process::id())
}
