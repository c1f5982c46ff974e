//! Collectives over NCCL: a world by rendezvous or from a user's communicator, children per group, bounded waits.
//!
//! | module | holds |
//! |---|---|
//! | `ffi` | the loaded functions |
//! | `comm` | one communicator: calls, waiting, abort |

mod comm;
mod ffi;

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardweld_ir::ReduceOp;

pub use comm::NcclComm;
pub use ffi::NcclLibrary;

use crate::call::{Call, Kind};
use crate::device::{Device, DeviceBuffer};
use crate::element::ElementType;
use crate::error::CommError;
use crate::library::{Seat, gate_world};
use crate::rendezvous::Rendezvous;
use crate::transport::{Communicator, PeerWatch, Transport, disagreement};
use crate::version::{MULTI_RANK_ENV, NcclVersion};
use comm::Handle;

/// One rank of an NCCL world, on one GPU.
///
/// Drop the communicators split from it first; all ranks drop theirs in the same order.
pub struct NcclTransport {
    rank: u32,
    world: Vec<u32>,
    /// For agreements without a rendezvous: a child over all ranks, since a user's communicator is never run on.
    everybody: Option<NcclComm>,
    /// After its children, since fields are dropped in order.
    parent: Handle,
    rendezvous: Option<Box<dyn Rendezvous>>,
    limit: Duration,
    splits: usize,
}

/// What a rank tells the others before there is a communicator.
#[derive(Serialize, Deserialize)]
struct SeatText {
    version: (u32, u32, u32),
    gpu: String,
    sharing: bool,
}

impl NcclTransport {
    /// Makes a world of the ranks that met. Every later wait that is longer than `limit` fails.
    ///
    /// # Errors
    /// Before any rank can hang: different NCCL versions, or ranks on one GPU without NCCL >= 2.30 or without
    /// `NCCL_MULTI_RANK_GPU_ENABLE=1`.
    pub fn connect(
        library: Arc<NcclLibrary>,
        device: Device,
        mut rendezvous: Box<dyn Rendezvous>,
        limit: Duration,
    ) -> Result<NcclTransport, CommError> {
        check_seats(&library, &device, rendezvous.as_mut())?;
        let rank = rendezvous.rank();
        let id = if rank == 0 { library.unique_id()?.internal.map(|c| c as u8).to_vec() } else { vec![] };
        let ids = rendezvous.exchange("NCCL unique id", &id)?;
        let id: [u8; 128] = ids.first().and_then(|i| i.as_slice().try_into().ok()).ok_or_else(|| {
            let found = ids.first().map_or(0, Vec::len);
            CommError::Nccl { what: "unique id".into(), detail: format!("{found} bytes, needed 128") }
        })?;
        let world: Vec<u32> = (0..rendezvous.world_size()).collect();
        let parent = Handle::init(library, device, id, rank, &world, rendezvous.watch(), limit)?;
        Ok(NcclTransport {
            rank,
            world,
            parent,
            everybody: None,
            rendezvous: Some(rendezvous),
            limit,
            splits: 0,
        })
    }

    /// Works on children of a communicator that the caller made, such as the one a TensorRT context uses.
    ///
    /// The caller's communicator is only split: no collective runs on it, it is never aborted and never destroyed. A
    /// rendezvous is optional; with one, errors name the rank that was lost.
    ///
    /// # Safety
    /// `raw` is a live `ncclComm_t` of the NCCL instance `library`, made on `device`'s GPU. It outlives the transport,
    /// and no other thread uses it during [`Transport::split`] and [`Transport::agree`].
    pub unsafe fn adopt(
        library: Arc<NcclLibrary>,
        device: Device,
        raw: *mut c_void,
        mut rendezvous: Option<Box<dyn Rendezvous>>,
        limit: Duration,
    ) -> Result<NcclTransport, CommError> {
        if let Some(r) = &mut rendezvous {
            check_seats(&library, &device, r.as_mut())?;
        }
        let watch = rendezvous.as_ref().map_or_else(PeerWatch::default, |r| r.watch());
        // SAFETY: the caller's promise is the same.
        let (parent, rank, size) = unsafe { Handle::adopt(library, device, raw, watch)? };
        if let Some(r) = rendezvous.as_ref().filter(|r| (r.rank(), r.world_size()) != (rank, size)) {
            return Err(CommError::Nccl {
                what: "adopting a communicator".into(),
                detail: format!(
                    "it is rank {rank} of {size}, the rendezvous has rank {} of {}",
                    r.rank(),
                    r.world_size()
                ),
            });
        }
        let world = (0..size).collect();
        Ok(NcclTransport { rank, world, parent, everybody: None, rendezvous, limit, splits: 0 })
    }

    /// The world's `ncclComm_t`, for `IExecutionContext::setCommunicator`. It lives as long as this transport.
    pub fn as_raw(&self) -> *mut c_void {
        self.parent.as_raw()
    }

    /// The NCCL in use.
    pub fn library(&self) -> &NcclLibrary {
        self.parent.library()
    }

    /// The GPU in use.
    pub fn device(&self) -> &Device {
        self.parent.device()
    }

    /// Which rank the rendezvous knows to be lost.
    pub fn watch(&self) -> &PeerWatch {
        self.parent.watch()
    }

    /// Exchanges small values over the rendezvous; `None` for an adopted communicator without one.
    pub fn exchange(&mut self, what: &str, mine: &[u8]) -> Option<Result<Vec<Vec<u8>>, CommError>> {
        Some(self.rendezvous.as_mut()?.exchange(what, mine).map_err(CommError::from))
    }

    /// Closes the world in order: waits until the other ranks close it too.
    pub fn finish(mut self) -> Result<(), CommError> {
        self.everybody = None;
        self.parent.close();
        match self.rendezvous.take() {
            Some(r) => Ok(r.finish()?),
            None => Ok(()),
        }
    }

    fn split_all(&mut self, partition: &[Vec<u32>]) -> Result<NcclComm, CommError> {
        let part = partition.iter().position(|p| p.contains(&self.rank));
        let Some((color, members)) = part.and_then(|i| Some((i as i32, partition.get(i)?))) else {
            return Err(CommError::UnknownGroup {
                group: format!("of rank {}", self.rank),
                known: format!("{partition:?}"),
            });
        };
        let position = members.iter().position(|&r| r == self.rank).unwrap_or(0) as u32;
        let child = self.parent.split(self.rank, color, position, members, self.limit)?;
        let key = format!("split {} of ranks {members:?}", self.splits);
        self.splits += 1;
        Ok(NcclComm::new(child, self.rank, position, members.clone(), self.limit, key))
    }
}

impl Transport for NcclTransport {
    type Buffer = DeviceBuffer;
    type Comm = NcclComm;

    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world.len() as u32
    }

    fn agree(&mut self, what: &str, digest: [u8; 32]) -> Result<(), CommError> {
        if let Some(r) = &mut self.rendezvous {
            let parts = r.exchange(what, &digest)?;
            let digests: Vec<[u8; 32]> = parts.iter().filter_map(|p| p.as_slice().try_into().ok()).collect();
            return disagreement(what, &digests);
        }
        let n = self.world_size();
        if self.everybody.is_none() {
            self.everybody = Some(self.split_all(&[(0..n).collect()])?);
        }
        let call = Call::new(format!("agreement on {what}"), Kind::AllGather, ElementType::U8, &[32], n)?;
        let send = self.upload(&digest)?;
        let mut recv = self.upload(&vec![0; call.recv_bytes()])?;
        if let Some(c) = &mut self.everybody {
            c.run(&call, &send, &mut recv)?;
        }
        let bytes = self.download(&recv)?;
        let digests: Vec<[u8; 32]> = bytes.chunks_exact(32).filter_map(|c| c.try_into().ok()).collect();
        disagreement(what, &digests)
    }

    fn split(&mut self, partition: &[Vec<u32>]) -> Result<NcclComm, CommError> {
        self.agree("the groups of a split", *blake3::hash(format!("{partition:?}").as_bytes()).as_bytes())?;
        self.split_all(partition)
    }

    fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer, CommError> {
        self.device().upload(bytes)
    }

    fn download(&self, buffer: &DeviceBuffer) -> Result<Vec<u8>, CommError> {
        self.device().download(buffer)
    }
}

/// Tells the other ranks which NCCL and GPU this one has, and refuses what NCCL would refuse or hang on.
fn check_seats(library: &NcclLibrary, device: &Device, met: &mut dyn Rendezvous) -> Result<(), CommError> {
    let bad = |e: serde_json::Error| CommError::Nccl { what: "seats".into(), detail: e.to_string() };
    let v = library.version();
    let mine = SeatText {
        version: (v.major, v.minor, v.patch),
        gpu: device.identity()?,
        sharing: std::env::var(MULTI_RANK_ENV).is_ok_and(|v| v == "1"),
    };
    let texts = met.exchange("NCCL version and GPU", &serde_json::to_vec(&mine).map_err(bad)?)?;
    let seats = texts
        .iter()
        .map(|t| {
            let s: SeatText = serde_json::from_slice(t).map_err(bad)?;
            let (major, minor, patch) = s.version;
            Ok(Seat { version: NcclVersion::new(major, minor, patch), gpu: s.gpu, sharing: s.sharing })
        })
        .collect::<Result<Vec<Seat>, CommError>>()?;
    Ok(gate_world(library.path(), &seats)?)
}

/// NCCL's number for a combination.
fn reduce_op(op: ReduceOp) -> i32 {
    use cudarc::nccl::sys::ncclRedOp_t::*;
    (match op {
        ReduceOp::Sum => ncclSum,
        ReduceOp::Prod => ncclProd,
        ReduceOp::Max => ncclMax,
        ReduceOp::Min => ncclMin,
        ReduceOp::Avg => ncclAvg,
    }) as i32
}

impl std::fmt::Debug for NcclTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclTransport").field("rank", &self.rank).field("world", &self.world.len()).finish()
    }
}
