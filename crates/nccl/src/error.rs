//! What can go wrong between ranks.

use std::time::Duration;

use shardweld_ir::MeshError;
use thiserror::Error;

use crate::call::CallError;
use crate::library::LibraryError;
use crate::rendezvous::RendezvousError;
use crate::transport::{LostRank, Missing};

/// Why a communicator could not be made or a collective did not finish.
#[derive(Debug, Error)]
pub enum CommError {
    /// The call itself is wrong.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A group does not fit the mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The NCCL library is missing or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The ranks could not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The CUDA driver refused something.
    #[error("CUDA: {what}: {detail}")]
    Cuda {
        /// What was tried.
        what: String,
        /// What the driver said.
        detail: String,
    },
    /// NCCL refused something.
    #[error("NCCL: {what}: {detail}")]
    Nccl {
        /// What was tried.
        what: String,
        /// NCCL's error and its last message.
        detail: String,
    },
    /// A collective failed; see the cause.
    #[error("rank {rank}: {call} (group {group:?}): {cause}")]
    Collective {
        /// Global rank that reports.
        rank: u32,
        /// The collective as text, with its node's name.
        call: String,
        /// Global ranks of the group.
        group: Vec<u32>,
        /// Why.
        cause: Cause,
    },
    /// Ranks of one program do not agree on something they must agree on.
    #[error("ranks 0 and {rank} disagree on {what}; all ranks must run the same program")]
    Disagree {
        /// What they differ in.
        what: String,
        /// First rank that differs from rank 0.
        rank: u32,
    },
    /// A group that [`crate::Groups`] was not made with.
    #[error("no communicator was made for group {group}; known groups: {known}")]
    UnknownGroup {
        /// Group asked for.
        group: String,
        /// Groups there are.
        known: String,
    },
}

/// Why a collective failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// Ranks did not arrive in time.
    #[error("not finished after {limit:?}{}", missing_text(.missing))]
    Timeout {
        /// The limit.
        limit: Duration,
        /// Ranks known not to have arrived; empty if the transport cannot tell.
        missing: Vec<Missing>,
    },
    /// A rank is gone.
    #[error("rank {} is lost: {}", .0.rank, .0.how)]
    Lost(LostRank),
    /// Two ranks of the group make different calls at the same place in their order.
    #[error("rank {rank} calls {theirs} where this rank calls {ours}")]
    OrderMismatch {
        /// Other rank.
        rank: u32,
        /// Its call.
        theirs: String,
        /// Call of this rank, or of the rank that found out.
        ours: String,
    },
    /// Ranks wait for each other in different groups.
    #[error("deadlock: {}", .waits.join("; "))]
    Deadlock {
        /// `rank r waits in CALL for rank s`, in a circle.
        waits: Vec<String>,
    },
    /// The communicator was aborted before.
    #[error("the communicator was aborted: {0}")]
    Aborted(String),
    /// A buffer does not hold what the call says.
    #[error("the {which} buffer has {found} bytes, the call needs {expected}")]
    Buffer {
        /// `send` or `recv`.
        which: &'static str,
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// The call was made for another group size.
    #[error("the call is for {expected} ranks, the group has {found}")]
    GroupSize {
        /// Ranks of the group.
        found: usize,
        /// Ranks of the call.
        expected: u32,
    },
    /// The transport reported an error.
    #[error("{0}")]
    Transport(String),
}

fn missing_text(missing: &[Missing]) -> String {
    let one = |m: &Missing| match &m.last_call {
        Some(call) => format!("; rank {} did not arrive, its last call was {call}", m.rank),
        None => format!("; rank {} did not arrive", m.rank),
    };
    missing.iter().map(one).collect()
}
