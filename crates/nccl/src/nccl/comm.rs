//! One NCCL communicator: launching calls, waiting with a limit, aborting.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{DevicePtr, DevicePtrMut};
use cudarc::nccl::sys::{ncclComm_t, ncclUniqueId};

use super::ffi::{Code, IN_PROGRESS, NcclLibrary, SUCCESS, Stream, nonblocking_config};
use super::reduce_op;
use crate::call::{Call, Kind};
use crate::device::{Device, DeviceBuffer};
use crate::error::{Cause, CommError};
use crate::transport::{Arrival, Communicator, PeerWatch, check};

/// Time an abort may take before it is left to a background thread.
const ABORT_LIMIT: Duration = Duration::from_secs(10);
/// Time an orderly close waits for the other ranks.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Longest text of a call that is passed around with heartbeats.
const MAX_CALL_TEXT: usize = 300;
/// Shortest and longest pause between two looks at a call in flight.
const POLL: (Duration, Duration) = (Duration::from_micros(5), Duration::from_millis(1));

/// A communicator pointer that may move between threads.
#[derive(Clone, Copy)]
struct Raw(ncclComm_t);

// SAFETY: NCCL allows a communicator to be used from any thread, one at a time; the owner is not `Sync`, and helper
// threads use the pointer only while their caller waits or has given it up.
unsafe impl Send for Raw {}

/// A communicator with what its calls need.
pub(super) struct Handle {
    library: Arc<NcclLibrary>,
    device: Device,
    raw: Raw,
    /// Ours to abort and destroy, and made so that its calls do not block.
    owned: bool,
    watch: PeerWatch,
    closed: bool,
}

impl Handle {
    /// Joins the world with `id`.
    pub(super) fn init(
        library: Arc<NcclLibrary>,
        device: Device,
        id: [u8; 128],
        rank: u32,
        world: &[u32],
        watch: PeerWatch,
        limit: Duration,
    ) -> Result<Handle, CommError> {
        device.bind()?;
        let id = ncclUniqueId { internal: id.map(|b| b as std::ffi::c_char) };
        let mut config = nonblocking_config();
        // NCCL may write it in the background, so it must not move before the communicator is ready.
        let slot = Box::into_raw(Box::new(std::ptr::null_mut()));
        let count = world.len() as c_int;
        // SAFETY: `slot` and `config` are valid and of NCCL's types; `slot` stays allocated while NCCL may write it.
        let code =
            unsafe { (library.functions.comm_init_rank_config)(slot, count, id, rank as c_int, &mut config) };
        library.check("ncclCommInitRankConfig", code)?;
        // SAFETY: NCCL sets the pointer before the call returns, in progress or not; `slot` is still allocated.
        let raw = Raw(unsafe { *slot });
        let handle = Handle { library, device, raw, owned: true, watch, closed: false };
        match handle.settle(Instant::now() + limit, limit) {
            Ok(()) => {
                // SAFETY: made by `Box::into_raw` above; NCCL is done with it.
                drop(unsafe { Box::from_raw(slot) });
                Ok(handle)
            }
            // `slot` is leaked: NCCL's background thread may still hold it.
            Err(cause) => Err(CommError::Collective {
                rank,
                call: format!("making the communicator of {} ranks", world.len()),
                group: world.to_vec(),
                cause,
            }),
        }
    }

    /// Takes a caller's communicator; also gives its rank and size.
    ///
    /// # Safety
    /// As for [`super::NcclTransport::adopt`].
    pub(super) unsafe fn adopt(
        library: Arc<NcclLibrary>,
        device: Device,
        raw: *mut c_void,
        watch: PeerWatch,
    ) -> Result<(Handle, u32, u32), CommError> {
        let what = "adopting a communicator";
        if raw.is_null() {
            return Err(CommError::Nccl { what: what.into(), detail: "the ncclComm_t is null".into() });
        }
        let raw = Raw(raw.cast());
        let handle = Handle { library, device, raw, owned: false, watch, closed: false };
        let (rank, size) = handle.place()?;
        Ok((handle, rank, size))
    }

    /// Rank in and size of the communicator.
    fn place(&self) -> Result<(u32, u32), CommError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is live; the integers are writable.
        let codes = unsafe {
            let f = &self.library.functions;
            ((f.comm_user_rank)(self.raw.0, &mut rank), (f.comm_count)(self.raw.0, &mut size))
        };
        self.library.check("ncclCommUserRank", codes.0)?;
        self.library.check("ncclCommCount", codes.1)?;
        match (u32::try_from(rank), u32::try_from(size)) {
            (Ok(r), Ok(s)) if r < s => Ok((r, s)),
            _ => {
                Err(CommError::Nccl { what: "reading rank".into(), detail: format!("rank {rank} of {size}") })
            }
        }
    }

    pub(super) fn as_raw(&self) -> *mut c_void {
        self.raw.0.cast()
    }

    pub(super) fn library(&self) -> &NcclLibrary {
        &self.library
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn watch(&self) -> &PeerWatch {
        &self.watch
    }

    /// This rank's child for `members`. All ranks of the parent call it together.
    pub(super) fn split(
        &mut self,
        rank: u32,
        color: i32,
        position: u32,
        members: &[u32],
        limit: Duration,
    ) -> Result<Handle, CommError> {
        let fail = |cause| CommError::Collective {
            rank,
            call: "splitting a communicator".into(),
            group: members.to_vec(),
            cause,
        };
        if self.closed {
            return Err(fail(Cause::Aborted("an earlier split failed".into())));
        }
        let deadline = Instant::now() + limit;
        let (library, device, parent, watch) =
            (self.library.clone(), self.device.clone(), self.raw, self.watch.clone());
        let (send, receive) = mpsc::channel();
        // A helper thread, because a caller's communicator may be a blocking one.
        thread::spawn(move || {
            // The receiver is gone only if the split was given up.
            let _ = send.send(split(library, device, parent, color, position, watch, deadline, limit));
        });
        let child = loop {
            match receive.recv_timeout(POLL.1 * 10) {
                Ok(child) => break child,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    break Err(Cause::Transport("the splitting thread ended".into()));
                }
                // The helper ends by itself at the deadline unless the parent blocks it.
                Err(_) if Instant::now() < deadline + POLL.1 * 100 => {}
                Err(_) => break Err(self.late(limit)),
            }
        };
        let child = child.map_err(|cause| {
            self.abort();
            fail(cause)
        })?;
        let (found, size) = child.place()?;
        if (found, size as usize) != (position, members.len()) {
            let text = format!("NCCL made rank {found} of {size}, wanted {position} of {}", members.len());
            return Err(fail(Cause::Transport(text)));
        }
        Ok(child)
    }

    /// Waits until no call is being set up in the background.
    fn settle(&self, deadline: Instant, limit: Duration) -> Result<(), Cause> {
        let mut pause = POLL.0;
        loop {
            match self.state()? {
                SUCCESS => return Ok(()),
                IN_PROGRESS if Instant::now() < deadline && self.watch.lost().is_none() => {
                    thread::sleep(pause);
                    pause = (pause * 2).min(POLL.1);
                }
                IN_PROGRESS => return Err(self.late(limit)),
                code => return Err(self.broken(code)),
            }
        }
    }

    fn state(&self) -> Result<Code, Cause> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is live; `state` is writable.
        let code = unsafe { (self.library.functions.comm_get_async_error)(self.raw.0, &mut state) };
        if code == SUCCESS { Ok(state) } else { Err(self.broken(code)) }
    }

    /// A lost rank explains a failure better than its symptoms.
    fn broken(&self, code: Code) -> Cause {
        match self.watch.lost() {
            Some(lost) => Cause::Lost(lost),
            None => Cause::Transport(format!("NCCL: {}", self.library.describe(code))),
        }
    }

    fn late(&self, limit: Duration) -> Cause {
        match self.watch.lost() {
            Some(lost) => Cause::Lost(lost),
            None => Cause::Timeout { limit, missing: vec![] },
        }
    }

    /// Aborts an owned communicator. Ends within [`ABORT_LIMIT`]; a caller's communicator is left alone.
    fn abort(&mut self) {
        if std::mem::replace(&mut self.closed, true) || !self.owned {
            return;
        }
        let (library, device, raw) = (self.library.clone(), self.device.clone(), self.raw);
        let (send, receive) = mpsc::channel::<()>();
        thread::spawn(move || {
            let raw = raw;
            if device.bind().is_ok() {
                // SAFETY: the communicator is live, ours, and `closed` keeps everybody else from using it again.
                unsafe { (library.functions.comm_abort)(raw.0) };
            }
            drop(send);
        });
        // Disconnected: done. Timed out: the thread goes on alone; the communicator is not used again either way.
        let _ = receive.recv_timeout(ABORT_LIMIT);
    }

    /// Closes an owned communicator together with the other ranks; aborts it if they do not follow.
    pub(super) fn close(&mut self) {
        if self.closed || !self.owned {
            return;
        }
        // SAFETY: the communicator is live and ours.
        let code = unsafe { (self.library.functions.comm_finalize)(self.raw.0) };
        let deadline = Instant::now() + CLOSE_LIMIT;
        let quiet = matches!(code, SUCCESS | IN_PROGRESS) && self.settle(deadline, CLOSE_LIMIT).is_ok();
        if quiet {
            self.closed = true;
            // SAFETY: finalised, ours, and not used again since `closed` is set. Its result changes nothing any more.
            unsafe { (self.library.functions.comm_destroy)(self.raw.0) };
        } else {
            self.abort();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// Splits `parent` and waits for both communicators.
#[expect(clippy::too_many_arguments, reason = "it runs on a thread of its own and must own all it uses")]
fn split(
    library: Arc<NcclLibrary>,
    device: Device,
    parent: Raw,
    color: i32,
    position: u32,
    watch: PeerWatch,
    deadline: Instant,
    limit: Duration,
) -> Result<Handle, Cause> {
    device.bind().map_err(|e| Cause::Transport(e.to_string()))?;
    let mut config = nonblocking_config();
    let slot: *mut ncclComm_t = Box::into_raw(Box::new(std::ptr::null_mut()));
    // SAFETY: the parent is live; `slot` stays allocated while NCCL may write it.
    let code =
        unsafe { (library.functions.comm_split)(parent.0, color, position as c_int, slot, &mut config) };
    // Not owned and closed: only looked at here.
    let parent = Handle {
        library: library.clone(),
        device: device.clone(),
        raw: parent,
        owned: false,
        watch: watch.clone(),
        closed: true,
    };
    if !matches!(code, SUCCESS | IN_PROGRESS) {
        return Err(parent.broken(code));
    }
    // The child's pointer is set once the parent is through; until then `slot` is leaked.
    parent.settle(deadline, limit)?;
    // SAFETY: made by `Box::into_raw` above; NCCL has written it and is done with it.
    let raw = Raw(*unsafe { Box::from_raw(slot) });
    if raw.0.is_null() {
        return Err(Cause::Transport("NCCL: ncclCommSplit gave no communicator".into()));
    }
    let child = Handle { library, device, raw, owned: true, watch, closed: false };
    child.settle(deadline, limit)?;
    Ok(child)
}

/// One rank's end of a group, over NCCL.
pub struct NcclComm {
    handle: Handle,
    rank: u32,
    position: u32,
    members: Vec<u32>,
    limit: Duration,
    /// The same text on all members, another one for every communicator of a rank.
    key: String,
    calls: u64,
    aborted: Option<String>,
}

impl NcclComm {
    pub(super) fn new(
        handle: Handle,
        rank: u32,
        position: u32,
        members: Vec<u32>,
        limit: Duration,
        key: String,
    ) -> NcclComm {
        NcclComm { handle, rank, position, members, limit, key, calls: 0, aborted: None }
    }

    /// The group's `ncclComm_t`; it lives as long as this value.
    pub fn as_raw(&self) -> *mut c_void {
        self.handle.as_raw()
    }

    fn try_run(&mut self, call: &Call, send: &DeviceBuffer, recv: &mut DeviceBuffer) -> Result<(), Cause> {
        if let Some(why) = &self.aborted {
            return Err(Cause::Aborted(why.clone()));
        }
        check(call, self.members.len(), send.len(), recv.len())?;
        let deadline = Instant::now() + self.limit;
        let call_text: String = call.to_string().chars().take(MAX_CALL_TEXT).collect();
        let at = Arrival { comm: self.key.clone(), seq: self.calls, call: call_text };
        self.calls += 1;
        let h = &self.handle;
        h.watch.arrive(at.clone());
        self.wait_for(call, &at, send, recv, deadline).map_err(|cause| match cause {
            // The heartbeat may know who did not come, or who does something else.
            Cause::Timeout { limit, .. } => match h.watch.mismatch(&at, &self.members) {
                Some((rank, theirs)) => Cause::OrderMismatch { rank, theirs, ours: at.call },
                None => Cause::Timeout { limit, missing: h.watch.missing(&at, &self.members, self.rank) },
            },
            other => other,
        })
    }

    fn wait_for(
        &self,
        call: &Call,
        at: &Arrival,
        send: &DeviceBuffer,
        recv: &mut DeviceBuffer,
        deadline: Instant,
    ) -> Result<(), Cause> {
        let h = &self.handle;
        let cuda = |e: CommError| Cause::Transport(e.to_string());
        h.device.bind().map_err(cuda)?;
        let code = launch(h, call, send, recv);
        if !matches!(code, SUCCESS | IN_PROGRESS) {
            return Err(h.broken(code));
        }
        // Before this, the call may not be on the stream yet.
        h.settle(deadline, self.limit)?;
        let event = h.device.mark().map_err(cuda)?;
        let mut pause = POLL.0;
        loop {
            let done = event.try_is_complete();
            if done.map_err(|e| Cause::Transport(format!("CUDA: {e:?}")))? {
                return Ok(());
            }
            match h.state()? {
                SUCCESS | IN_PROGRESS => {}
                code => return Err(h.broken(code)),
            }
            if Instant::now() >= deadline || h.watch.lost().is_some() {
                return Err(h.late(self.limit));
            }
            // Ranks that make different calls would wait to the limit, or exchange nonsense.
            if let Some((rank, theirs)) = h.watch.mismatch(at, &self.members) {
                return Err(Cause::OrderMismatch { rank, theirs, ours: at.call.clone() });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(POLL.1);
        }
    }
}

impl Communicator for NcclComm {
    type Buffer = DeviceBuffer;

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn position(&self) -> u32 {
        self.position
    }

    fn run(&mut self, call: &Call, send: &DeviceBuffer, recv: &mut DeviceBuffer) -> Result<(), CommError> {
        self.try_run(call, send, recv).map_err(|cause| {
            if self.aborted.is_none() {
                self.abort(&format!("{call}: {cause}"));
            }
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
        self.handle.abort();
    }
}

/// Puts the call on the stream.
fn launch(h: &Handle, call: &Call, send: &DeviceBuffer, recv: &mut DeviceBuffer) -> Code {
    let stream = h.device.stream();
    let (s, _reading) = match &send.0 {
        Some(b) => {
            let (p, sync) = b.device_ptr(stream);
            (p as *const c_void, Some(sync))
        }
        None => (std::ptr::null(), None),
    };
    let (r, _writing) = match &mut recv.0 {
        Some(b) => {
            let (p, sync) = b.device_ptr_mut(stream);
            (p as *mut c_void, Some(sync))
        }
        None => (std::ptr::null_mut(), None),
    };
    let f = &h.library.functions;
    let (n, t, c) = (call.nccl_count(), call.element().nccl(), h.raw.0);
    let st: Stream = stream.cu_stream().cast();
    // SAFETY: the communicator and stream are live and of one GPU; the buffers hold what the call needs (checked by the
    // caller against the same counts) and stay borrowed until the event after the call is complete or it is aborted.
    unsafe {
        match call.kind() {
            Kind::AllReduce(op) => (f.all_reduce)(s, r, n, t, reduce_op(op), c, st),
            Kind::AllGather => (f.all_gather)(s, r, n, t, c, st),
            Kind::ReduceScatter(op) => (f.reduce_scatter)(s, r, n, t, reduce_op(op), c, st),
            Kind::AllToAll => (f.all_to_all)(s, r, n, t, c, st),
            Kind::Broadcast { root } => (f.broadcast)(s, r, n, t, root as c_int, c, st),
            Kind::Reduce { op, root } => (f.reduce)(s, r, n, t, reduce_op(op), root as c_int, c, st),
            Kind::Gather { root } => (f.gather)(s, r, n, t, root as c_int, c, st),
            Kind::Scatter { root } => (f.scatter)(s, r, n, t, root as c_int, c, st),
        }
    }
}

impl std::fmt::Debug for NcclComm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclComm")
            .field("rank", &self.rank)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}
