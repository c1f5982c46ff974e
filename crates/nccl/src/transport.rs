//! The interface that NCCL and the in-process transport share: ranks, communicators, buffers.

use std::sync::{Arc, Mutex, PoisonError};

use crate::call::Call;
use crate::error::CommError;

/// A rank that the rendezvous heartbeat, or the transport itself, knows to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRank {
    /// Global rank.
    pub rank: u32,
    /// How it was noticed.
    pub how: String,
}

/// Says which rank was lost first. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub struct PeerWatch(Arc<Mutex<Option<LostRank>>>);

impl PeerWatch {
    /// The first rank reported lost.
    pub fn lost(&self) -> Option<LostRank> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports a lost rank; the first report stands.
    pub fn report(&self, rank: u32, how: impl Into<String>) {
        let mut lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| LostRank { rank, how: how.into() });
    }
}

/// One rank's end of a group. Every method that waits ends within the limit its transport was made with.
pub trait Communicator {
    /// Memory that collectives read and write.
    type Buffer;

    /// Global ranks of the group, in group order.
    fn members(&self) -> &[u32];

    /// This rank's position in the group.
    fn position(&self) -> u32;

    /// Makes the call and waits for it. `send` and `recv` hold exactly the call's bytes.
    ///
    /// # Errors
    /// Names the collective, and the rank that is missing, dead or doing something else where that is known. After an
    /// error the communicator is aborted and every later call fails.
    fn run(&mut self, call: &Call, send: &Self::Buffer, recv: &mut Self::Buffer) -> Result<(), CommError>;

    /// Gives up: calls in flight and later ones fail, here and, as soon as they notice, on the other ranks.
    fn abort(&mut self, why: &str);
}

/// One rank's end of the world: makes communicators and buffers.
pub trait Transport {
    /// Memory that collectives read and write.
    type Buffer;
    /// Communicators made here.
    type Comm: Communicator<Buffer = Self::Buffer>;

    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn world_size(&self) -> u32;

    /// Fails on all ranks, naming two that differ, unless all pass the same `digest`. All ranks call it together.
    fn agree(&mut self, what: &str, digest: [u8; 32]) -> Result<(), CommError>;

    /// This rank's communicator of an ordered partition of all ranks. All ranks call it together, in the same order.
    fn split(&mut self, partition: &[Vec<u32>]) -> Result<Self::Comm, CommError>;

    /// A buffer holding `bytes`.
    fn upload(&self, bytes: &[u8]) -> Result<Self::Buffer, CommError>;

    /// What a buffer holds.
    fn download(&self, buffer: &Self::Buffer) -> Result<Vec<u8>, CommError>;
}

/// Finds two entries that differ, for the error of [`Transport::agree`].
pub(crate) fn disagreement(what: &str, digests: &[[u8; 32]]) -> Result<(), CommError> {
    let Some(first) = digests.first() else { return Ok(()) };
    match digests.iter().position(|d| d != first) {
        None => Ok(()),
        Some(other) => Err(CommError::Disagree { what: what.to_owned(), rank: other as u32 }),
    }
}
