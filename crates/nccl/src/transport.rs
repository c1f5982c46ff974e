//! The interface that NCCL and the in-process transport share: ranks, communicators, buffers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::error::{Cause, CommError};

/// A rank that the rendezvous heartbeat, or the transport itself, knows to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRank {
    /// Global rank.
    pub rank: u32,
    /// How it was noticed.
    pub how: String,
}

/// The last collective a rank has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Which communicator; the same text on all its members.
    pub comm: String,
    /// How many calls this rank made on it before.
    pub seq: u64,
    /// The call as text.
    pub call: String,
}

/// What a rank knows of the others between collectives: who is lost, and where each one is. Clones share it.
///
/// The rendezvous heartbeat carries it, so it is a few beats old.
#[derive(Clone, Debug, Default)]
pub struct PeerWatch(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    lost: Option<LostRank>,
    /// Whether heartbeats carry arrivals; without, nothing follows from not knowing one.
    tracking: bool,
    mine: Option<Arrival>,
    arrivals: BTreeMap<u32, Arrival>,
}

impl PeerWatch {
    /// A watch whose owner passes arrivals on.
    pub fn tracking() -> PeerWatch {
        PeerWatch(Arc::new(Mutex::new(Known { tracking: true, ..Known::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first rank reported lost.
    pub fn lost(&self) -> Option<LostRank> {
        self.lock().lost.clone()
    }

    /// Reports a lost rank; the first report stands.
    pub fn report(&self, rank: u32, how: impl Into<String>) {
        self.lock().lost.get_or_insert_with(|| LostRank { rank, how: how.into() });
    }

    /// This rank comes to a collective.
    pub fn arrive(&self, arrival: Arrival) {
        self.lock().mine = Some(arrival);
    }

    /// Where this rank is.
    pub fn mine(&self) -> Option<Arrival> {
        self.lock().mine.clone()
    }

    /// Another rank has come to a collective.
    pub fn learn(&self, rank: u32, arrival: Arrival) {
        self.lock().arrivals.insert(rank, arrival);
    }

    /// The members that are not known to have come to `at`; empty if arrivals are not tracked.
    pub fn missing(&self, at: &Arrival, members: &[u32], own: u32) -> Vec<Missing> {
        let known = self.lock();
        if !known.tracking {
            return vec![];
        }
        let here = |r: u32| known.arrivals.get(&r).is_some_and(|a| a.comm == at.comm && a.seq >= at.seq);
        let away = members.iter().filter(|&&r| r != own && !here(r));
        away.map(|&rank| Missing { rank, last_call: known.arrivals.get(&rank).map(|a| a.call.clone()) })
            .collect()
    }

    /// A member that is at the same place in its order as `at`, with another call.
    pub fn mismatch(&self, at: &Arrival, members: &[u32]) -> Option<(u32, String)> {
        let known = self.lock();
        members.iter().find_map(|r| {
            let a = known.arrivals.get(r)?;
            (a.comm == at.comm && a.seq == at.seq && a.call != at.call).then(|| (*r, a.call.clone()))
        })
    }
}

/// A rank that did not come to a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Global rank.
    pub rank: u32,
    /// Its last call, where known.
    pub last_call: Option<String>,
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

/// What every transport checks before it moves a byte.
pub(crate) fn check(call: &Call, group: usize, send: usize, recv: usize) -> Result<(), Cause> {
    if call.ranks() as usize != group {
        return Err(Cause::GroupSize { found: group, expected: call.ranks() });
    }
    for (which, found, expected) in [("send", send, call.send_bytes()), ("recv", recv, call.recv_bytes())] {
        if found != expected {
            return Err(Cause::Buffer { which, found, expected });
        }
    }
    Ok(())
}

/// Finds two entries that differ, for the error of [`Transport::agree`].
pub(crate) fn disagreement(what: &str, digests: &[[u8; 32]]) -> Result<(), CommError> {
    let Some(first) = digests.first() else { return Ok(()) };
    match digests.iter().position(|d| d != first) {
        None => Ok(()),
        Some(other) => Err(CommError::Disagree { what: what.to_owned(), rank: other as u32 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(comm: &str, seq: u64, call: &str) -> Arrival {
        Arrival { comm: comm.into(), seq, call: call.into() }
    }

    #[test]
    fn who_is_missing_and_where_it_is_follows_from_arrivals() {
        let watch = PeerWatch::tracking();
        watch.learn(1, at("a", 3, "q"));
        watch.learn(2, at("a", 2, "p"));
        watch.learn(3, at("b", 9, "z"));
        let here = at("a", 3, "q");
        let missing = watch.missing(&here, &[0, 1, 2, 3, 4], 0);
        let text: Vec<_> = missing.iter().map(|m| (m.rank, m.last_call.as_deref())).collect();
        assert_eq!(text, [(2, Some("p")), (3, Some("z")), (4, None)]);
        assert_eq!(
            PeerWatch::default().missing(&here, &[0, 1], 0),
            [],
            "nothing is known without heartbeats"
        );
    }

    #[test]
    fn another_call_at_the_same_place_is_a_mismatch() {
        let watch = PeerWatch::tracking();
        watch.learn(1, at("a", 3, "k"));
        assert_eq!(watch.mismatch(&at("a", 3, "q"), &[0, 1]), Some((1, "k".into())));
        assert_eq!(watch.mismatch(&at("a", 3, "k"), &[0, 1]), None);
        assert_eq!(watch.mismatch(&at("a", 4, "q"), &[0, 1]), None, "it is only behind");
        assert_eq!(watch.mismatch(&at("b", 3, "q"), &[0, 1]), None, "another communicator");
        assert_eq!(watch.mismatch(&at("a", 3, "q"), &[0, 2]), None, "not a member");
    }

    #[test]
    fn the_first_lost_rank_stands() {
        let watch = PeerWatch::default();
        watch.report(2, "died");
        watch.clone().report(1, "followed");
        assert_eq!(watch.lost(), Some(LostRank { rank: 2, how: "died".into() }));
    }
}
