//! The in-process transport: ranks are threads, buffers are bytes, collectives are done by whoever arrives last.
//!
//! It has NCCL's interface and order rules, and knows what NCCL cannot tell: which rank is missing, which call each
//! rank made, and that ranks wait for each other in a circle.

mod combine;
mod world;

use std::sync::Arc;
use std::time::Duration;

pub use combine::combine;

use crate::call::Call;
use crate::error::{Cause, CommError};
use crate::transport::{Communicator, Transport, check, disagreement};
use world::World;

/// One rank of an in-process world.
#[derive(Debug)]
pub struct LocalTransport {
    rank: u32,
    world: Arc<World>,
    splits: usize,
}

/// A group of in-process ranks.
#[derive(Debug)]
pub struct LocalComm {
    rank: u32,
    members: Vec<u32>,
    /// Which split made it, and the part of the partition.
    group: (usize, usize),
    next: u64,
    world: Arc<World>,
    aborted: Option<String>,
}

/// Makes `ranks` transports of one world; give each to its own thread. Waits longer than `limit` fail.
pub fn local_world(ranks: u32, limit: Duration) -> Vec<LocalTransport> {
    let world = Arc::new(World::new(ranks, limit));
    (0..ranks).map(|rank| LocalTransport { rank, world: world.clone(), splits: 0 }).collect()
}

impl LocalTransport {
    fn fail(&self, call: String, group: &[u32], cause: Cause) -> CommError {
        CommError::Collective { rank: self.rank, call, group: group.to_vec(), cause }
    }
}

impl Transport for LocalTransport {
    type Buffer = Vec<u8>;
    type Comm = LocalComm;

    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world.size()
    }

    fn agree(&mut self, what: &str, digest: [u8; 32]) -> Result<(), CommError> {
        let all: Vec<u32> = (0..self.world.size()).collect();
        let name = format!("agreement on {what}");
        let parts = self
            .world
            .meet(self.rank, (usize::MAX, 0), self.splits as u64, &all, &name, &digest, |parts| {
                let joined = parts.concat();
                vec![joined; all.len()]
            })
            .map_err(|cause| self.fail(name.clone(), &all, cause))?;
        self.splits += 1;
        let digests: Vec<[u8; 32]> = parts.chunks_exact(32).filter_map(|c| c.try_into().ok()).collect();
        disagreement(what, &digests)
    }

    fn split(&mut self, partition: &[Vec<u32>]) -> Result<LocalComm, CommError> {
        self.agree("the groups of a split", *blake3::hash(format!("{partition:?}").as_bytes()).as_bytes())?;
        let part = partition.iter().position(|p| p.contains(&self.rank));
        let Some((part, members)) = part.and_then(|i| Some((i, partition.get(i)?))) else {
            return Err(CommError::UnknownGroup {
                group: format!("of rank {}", self.rank),
                known: format!("{partition:?}"),
            });
        };
        Ok(LocalComm {
            rank: self.rank,
            members: members.clone(),
            group: (self.splits, part),
            next: 0,
            world: self.world.clone(),
            aborted: None,
        })
    }

    fn upload(&self, bytes: &[u8]) -> Result<Vec<u8>, CommError> {
        Ok(bytes.to_vec())
    }

    fn download(&self, buffer: &Vec<u8>) -> Result<Vec<u8>, CommError> {
        Ok(buffer.clone())
    }
}

impl Drop for LocalTransport {
    /// A thread that ends is a rank that no longer arrives anywhere.
    fn drop(&mut self) {
        self.world.leave(self.rank);
    }
}

impl Communicator for LocalComm {
    type Buffer = Vec<u8>;

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn position(&self) -> u32 {
        self.members.iter().position(|&r| r == self.rank).unwrap_or(0) as u32
    }

    fn run(&mut self, call: &Call, send: &Vec<u8>, recv: &mut Vec<u8>) -> Result<(), CommError> {
        self.try_run(call, send, recv).map_err(|cause| {
            self.aborted.get_or_insert_with(|| cause.to_string());
            CommError::Collective {
                rank: self.rank,
                call: call.to_string(),
                group: self.members.clone(),
                cause,
            }
        })
    }

    fn abort(&mut self, why: &str) {
        self.aborted.get_or_insert_with(|| why.to_owned());
        self.world.abort(self.rank, why);
    }
}

impl LocalComm {
    fn try_run(&mut self, call: &Call, send: &[u8], recv: &mut [u8]) -> Result<(), Cause> {
        if let Some(why) = &self.aborted {
            return Err(Cause::Aborted(why.clone()));
        }
        check(call, self.members.len(), send.len(), recv.len())?;
        let seq = self.next;
        self.next += 1;
        let text = call.to_string();
        let result = self
            .world
            .meet(self.rank, self.group, seq, &self.members, &text, send, |parts| perform(call, parts))?;
        if call.kind().defined_at(self.position()) {
            recv.copy_from_slice(&result);
        }
        Ok(())
    }
}

/// The results of all ranks, from the operands of all ranks; empty where undefined.
pub fn perform(call: &Call, operands: &[&[u8]]) -> Vec<Vec<u8>> {
    use crate::call::Kind::*;
    let n = operands.len();
    let everywhere = |v: Vec<u8>| vec![v; n];
    let at = |root: u32, v: Vec<u8>| {
        let mut out = vec![Vec::new(); n];
        if let Some(slot) = out.get_mut(root as usize) {
            *slot = v;
        }
        out
    };
    let blocks = |v: &[u8]| -> Vec<Vec<u8>> {
        let size = v.len() / n.max(1);
        (0..n).map(|i| v[i * size..(i + 1) * size].to_vec()).collect()
    };
    let root_operand = |root: u32| operands.get(root as usize).copied().unwrap_or_default();
    match call.kind() {
        AllReduce(op) => everywhere(combine(call.element(), op, operands)),
        AllGather => everywhere(operands.concat()),
        ReduceScatter(op) => blocks(&combine(call.element(), op, operands)),
        AllToAll => {
            let cut: Vec<Vec<Vec<u8>>> = operands.iter().map(|o| blocks(o)).collect();
            (0..n).map(|to| cut.iter().flat_map(|from| from[to].iter().copied()).collect()).collect()
        }
        Broadcast { root } => everywhere(root_operand(root).to_vec()),
        Reduce { op, root } => at(root, combine(call.element(), op, operands)),
        Gather { root } => at(root, operands.concat()),
        Scatter { root } => blocks(root_operand(root)),
    }
}
