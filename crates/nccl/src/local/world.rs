//! Where in-process ranks meet: arrivals by group and sequence number, lost ranks, order mismatches, circles of waiting.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Cause;
use crate::transport::{LostRank, Missing};

/// Which split made a group, and which part of the partition it is.
pub(super) type GroupKey = (usize, usize);

#[derive(Debug)]
pub(super) struct World {
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    meetings: HashMap<(GroupKey, u64), Meeting>,
    /// What each rank waits for.
    waits: Vec<Option<Wait>>,
    gone: Vec<Option<String>>,
}

#[derive(Debug)]
struct Meeting {
    /// Call text and operand of each member that arrived, by position.
    parts: Vec<Option<(String, Vec<u8>)>>,
    results: Option<Result<Vec<Vec<u8>>, Cause>>,
    /// Members that have not taken their result.
    open: usize,
}

#[derive(Clone, Debug)]
struct Wait {
    at: (GroupKey, u64),
    members: Vec<u32>,
    call: String,
}

impl World {
    pub(super) fn new(ranks: u32, limit: Duration) -> World {
        let n = ranks as usize;
        let state = State { meetings: HashMap::new(), waits: vec![None; n], gone: vec![None; n] };
        World { limit, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn size(&self) -> u32 {
        self.lock().waits.len() as u32
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leave(&self, rank: u32) {
        self.go(rank, "its thread ended before it arrived");
    }

    pub(super) fn abort(&self, rank: u32, why: &str) {
        self.go(rank, &format!("it aborted: {why}"));
    }

    fn go(&self, rank: u32, how: &str) {
        if let Some(slot) = self.lock().gone.get_mut(rank as usize) {
            slot.get_or_insert_with(|| how.to_owned());
        }
        self.changed.notify_all();
    }

    /// Arrives at meeting `seq` of a group with a call and an operand; returns this rank's result.
    ///
    /// The last to arrive computes `perform` on all operands, in group order.
    #[expect(clippy::too_many_arguments, reason = "one meeting is described by exactly these")]
    pub(super) fn meet(
        &self,
        rank: u32,
        group: GroupKey,
        seq: u64,
        members: &[u32],
        call: &str,
        operand: &[u8],
        perform: impl FnOnce(&[&[u8]]) -> Vec<Vec<u8>>,
    ) -> Result<Vec<u8>, Cause> {
        let at = (group, seq);
        let Some(position) = members.iter().position(|&m| m == rank) else {
            return Err(Cause::Transport(format!("rank {rank} is not in its group {members:?}")));
        };
        let deadline = Instant::now() + self.limit;
        let mut state = self.lock();
        let meeting = state.meetings.entry(at).or_insert_with(|| Meeting {
            parts: vec![None; members.len()],
            results: None,
            open: members.len(),
        });
        let other = meeting.parts.iter().enumerate().find_map(|(p, part)| {
            let (theirs, _) = part.as_ref()?;
            (theirs != call).then(|| (members[p], theirs.clone()))
        });
        meeting.parts[position] = Some((call.to_owned(), operand.to_vec()));
        if let Some((rank, theirs)) = other {
            let cause = Cause::OrderMismatch { rank, theirs, ours: call.to_owned() };
            meeting.results.get_or_insert(Err(cause));
            self.changed.notify_all();
        } else if meeting.results.is_none() && meeting.parts.iter().all(Option::is_some) {
            let parts: Vec<&[u8]> = meeting.parts.iter().flatten().map(|(_, o)| o.as_slice()).collect();
            meeting.results = Some(Ok(perform(&parts)));
            self.changed.notify_all();
        }
        state.waits[rank as usize] = Some(Wait { at, members: members.to_vec(), call: call.to_owned() });
        let result = loop {
            if let Some(result) = state.take(at, position) {
                break result;
            }
            if state.fail_hopeless() {
                self.changed.notify_all();
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = state.missing(at, members).into_iter();
                let missing = missing.map(|rank| Missing { rank, last_call: None }).collect();
                let cause = Cause::Timeout { limit: self.limit, missing };
                state.fail(at, &cause);
                self.changed.notify_all();
                break Err(cause);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.waits[rank as usize] = None;
        result
    }
}

impl State {
    /// This member's result, if there is one; forgets the meeting when all have theirs.
    fn take(&mut self, at: (GroupKey, u64), position: usize) -> Option<Result<Vec<u8>, Cause>> {
        let meeting = self.meetings.get_mut(&at)?;
        let result = match meeting.results.as_mut()? {
            Ok(all) => Ok(all.get_mut(position).map(std::mem::take).unwrap_or_default()),
            Err(cause) => Err(cause.clone()),
        };
        meeting.open -= 1;
        if meeting.open == 0 {
            self.meetings.remove(&at);
        }
        Some(result)
    }

    fn fail(&mut self, at: (GroupKey, u64), cause: &Cause) {
        if let Some(m) = self.meetings.get_mut(&at) {
            m.results.get_or_insert_with(|| Err(cause.clone()));
        }
    }

    fn missing(&self, at: (GroupKey, u64), members: &[u32]) -> Vec<u32> {
        let Some(m) = self.meetings.get(&at) else { return vec![] };
        members.iter().zip(&m.parts).filter(|(_, p)| p.is_none()).map(|(&r, _)| r).collect()
    }

    /// Fails every meeting that can never be complete; whether there was one.
    fn fail_hopeless(&mut self) -> bool {
        let doomed: Vec<((GroupKey, u64), Cause)> = (0..self.waits.len())
            .filter_map(|r| {
                let at = self.waits[r].as_ref()?.at;
                Some((at, self.blocked(r as u32, &mut Vec::new())?))
            })
            .collect();
        for (at, cause) in &doomed {
            self.fail(*at, cause);
        }
        !doomed.is_empty()
    }

    /// Why the meeting that `rank` waits for can never be complete: a missing member is gone, or waits in a circle.
    fn blocked(&self, rank: u32, trail: &mut Vec<u32>) -> Option<Cause> {
        let wait = self.waits.get(rank as usize)?.as_ref()?;
        if self.meetings.get(&wait.at).is_some_and(|m| m.results.is_some()) {
            return None;
        }
        trail.push(rank);
        for missing in self.missing(wait.at, &wait.members) {
            if let Some(Some(how)) = self.gone.get(missing as usize) {
                return Some(Cause::Lost(LostRank { rank: missing, how: how.clone() }));
            }
            if let Some(start) = trail.iter().position(|&r| r == missing) {
                let circle = &trail[start..];
                let next = circle.iter().cycle().skip(1);
                let waits = circle.iter().zip(next).filter_map(|(&r, s)| {
                    let call = &self.waits.get(r as usize)?.as_ref()?.call;
                    Some(format!("rank {r} waits in {call} for rank {s}"))
                });
                return Some(Cause::Deadlock { waits: waits.collect() });
            }
            if let Some(cause) = self.blocked(missing, trail) {
                return Some(cause);
            }
        }
        trail.pop();
        None
    }
}
