//! Every rank's side of the TCP rendezvous. Rank 0 listens (see `hub`) and is its own first caller.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{self, FromHub, FromRank, GREETING, Refusal};
use super::hub::Hub;
use super::proof::{Key, nonce};
use super::{Join, MAX_PAYLOAD, Rendezvous, RendezvousError, this_process};
use crate::transport::PeerWatch;

/// Pause between two tries to reach rank 0.
const RETRY: Duration = Duration::from_millis(50);
/// Time one try may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Time a service has to greet before it counts as something else.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// Ranks that met at rank 0's port.
pub struct TcpRendezvous {
    join: Join,
    place: String,
    shared: Arc<Shared>,
    out: Arc<Mutex<TcpStream>>,
    next: u64,
    hub: Option<Hub>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    watch: PeerWatch,
}

#[derive(Default)]
struct State {
    ready: bool,
    leaving: bool,
    results: HashMap<u64, Vec<Vec<u8>>>,
    failure: Option<RendezvousError>,
}

impl TcpRendezvous {
    /// Meets at `address` (`host:port`), where rank 0 listens. Returns when all ranks are there.
    pub fn join(address: &str, join: Join) -> Result<TcpRendezvous, RendezvousError> {
        join.validate()?;
        let place = address.to_owned();
        let io = |what| {
            let place = place.clone();
            move |e: io::Error| RendezvousError::Io { place, what, detail: e.to_string() }
        };
        let mut targets: Vec<SocketAddr> =
            address.to_socket_addrs().map_err(io("resolving the address"))?.collect();
        let mut hub = None;
        if join.rank == 0 {
            let listener = match TcpListener::bind(&*targets) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    return Err(RendezvousError::PortTaken { by: who_answers(&targets), place });
                }
                other => other.map_err(io("listening"))?,
            };
            let mut own = listener.local_addr().map_err(io("listening"))?;
            match own.ip() {
                ip if !ip.is_unspecified() => {}
                ip if ip.is_ipv4() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
                _ => own.set_ip(Ipv6Addr::LOCALHOST.into()),
            }
            targets = vec![own];
            hub = Some(Hub::start(listener, place.clone(), join.clone()).map_err(io("listening"))?);
        }
        let stream = connect(&targets, &place, &join)?;
        let reader = stream.try_clone().map_err(io("reading"))?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            watch: PeerWatch::tracking(),
        });
        let met = TcpRendezvous { join, place, shared, out: Arc::new(Mutex::new(stream)), next: 0, hub };
        met.start_reader(reader);
        met.start_beating();
        // The hub's own time to arrive began before this rank was taken in, so it speaks first.
        let wait = met.join.limit + met.join.dead_after;
        met.wait(wait, |s| s.ready.then_some(())).and_then(|r| {
            r.ok_or_else(|| RendezvousError::Timeout { what: "arrival of all ranks".into(), limit: wait })
        })?;
        Ok(met)
    }

    fn start_reader(&self, mut stream: TcpStream) {
        let (shared, place) = (self.shared.clone(), self.place.clone());
        let (limit, dead_after) = (self.join.limit, self.join.dead_after);
        thread::spawn(move || {
            let how = loop {
                let message = match frame::read::<FromHub>(&mut stream) {
                    Ok(m) => m,
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                        break format!("no heartbeat for {dead_after:?}");
                    }
                    Err(_) => break "its connection closed without a goodbye (the process ended)".into(),
                };
                let mut state = shared.lock();
                match message {
                    FromHub::Ready => state.ready = true,
                    FromHub::Missing { missing, refused } => {
                        let place = place.clone();
                        state.failure.get_or_insert(RendezvousError::Missing {
                            place,
                            limit,
                            missing,
                            refused,
                        });
                    }
                    FromHub::All { seq, lengths } => {
                        drop(state);
                        let parts: io::Result<Vec<Vec<u8>>> =
                            lengths.iter().map(|&l| frame::read_payload(&mut stream, l)).collect();
                        match parts {
                            Ok(parts) => shared.lock().results.insert(seq, parts),
                            Err(e) => break format!("its message broke off ({e})"),
                        };
                    }
                    FromHub::Mismatch { a, a_what, b, b_what } => {
                        state.failure.get_or_insert(RendezvousError::OrderMismatch {
                            our_rank: a,
                            ours: a_what,
                            rank: b,
                            theirs: b_what,
                        });
                    }
                    FromHub::Lost { rank, how } => shared.watch.report(rank, how),
                    FromHub::Beat { arrivals } => {
                        for (rank, arrival) in arrivals {
                            shared.watch.learn(rank, arrival);
                        }
                        continue;
                    }
                    FromHub::Challenge { .. } | FromHub::Refused { .. } | FromHub::Welcome { .. } => {
                        break "it broke the protocol".into();
                    }
                }
                shared.changed.notify_all();
            };
            if !shared.lock().leaving {
                shared.watch.report(0, how);
            }
            shared.changed.notify_all();
        });
    }

    /// Beats until the rendezvous is dropped or the connection breaks (which the reader notices).
    fn start_beating(&self) {
        let (out, watch, beat) = (Arc::downgrade(&self.out), self.watch(), self.join.beat);
        thread::spawn(move || {
            while let Some(out) = out.upgrade() {
                let mut stream = out.lock().unwrap_or_else(PoisonError::into_inner);
                if frame::write(&mut *stream, &FromRank::Beat { arrival: watch.mine() }, &[]).is_err() {
                    return;
                }
                drop(stream);
                drop(out);
                thread::sleep(beat);
            }
        });
    }

    fn send(&self, message: &FromRank, payload: &[u8]) -> Result<(), RendezvousError> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *out, message, &[payload]).map_err(|e| RendezvousError::Io {
            place: self.place.clone(),
            what: "sending",
            detail: e.to_string(),
        })
    }

    /// Waits until `pick` gives something; `None` after `limit`.
    fn wait<T>(
        &self,
        limit: Duration,
        mut pick: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, RendezvousError> {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = pick(&mut state) {
                return Ok(Some(found));
            }
            if let Some(e) = &state.failure {
                return Err(e.clone());
            }
            if let Some(lost) = self.shared.watch.lost() {
                return Err(RendezvousError::Lost { what: "rendezvous".into(), lost });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rendezvous for TcpRendezvous {
    fn rank(&self) -> u32 {
        self.join.rank
    }

    fn world_size(&self) -> u32 {
        self.join.world_size
    }

    fn exchange(&mut self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let named = || what.to_owned();
        if mine.len() > MAX_PAYLOAD {
            return Err(RendezvousError::TooLarge { what: named(), found: mine.len() });
        }
        let seq = self.next;
        self.next += 1;
        let put = FromRank::Put { seq, what: named(), length: mine.len() };
        if let Err(e) = self.send(&put, mine) {
            // A lost rank 0 is the better explanation of a broken connection; its reader is about to know.
            return match self.wait(self.join.beat, |_| None::<()>) {
                Ok(_) => Err(e),
                Err(better) => Err(better),
            };
        }
        match self.wait(self.join.limit, |s| s.results.remove(&seq)) {
            Ok(Some(parts)) => Ok(parts),
            Ok(None) => Err(RendezvousError::Timeout { what: named(), limit: self.join.limit }),
            Err(RendezvousError::Lost { lost, .. }) => Err(RendezvousError::Lost { what: named(), lost }),
            Err(e) => Err(e),
        }
    }

    fn watch(&self) -> PeerWatch {
        self.shared.watch.clone()
    }

    fn finish(self: Box<Self>) -> Result<(), RendezvousError> {
        self.shared.lock().leaving = true;
        self.send(&FromRank::Bye, &[])?;
        self.hub.as_ref().map_or(Ok(()), Hub::wait_all_left)
    }
}

impl Drop for TcpRendezvous {
    fn drop(&mut self) {
        self.shared.lock().leaving = true;
        let out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails only if the connection is closed already.
        let _ = out.shutdown(Shutdown::Both);
    }
}

impl std::fmt::Debug for TcpRendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpRendezvous").field("place", &self.place).field("rank", &self.join.rank).finish()
    }
}

/// Reaches rank 0 and shows the token; tries again while nobody listens yet.
fn connect(targets: &[SocketAddr], place: &str, join: &Join) -> Result<TcpStream, RendezvousError> {
    let deadline = Instant::now() + join.limit;
    let mut stream = loop {
        match targets.iter().find_map(|t| TcpStream::connect_timeout(t, CONNECT_LIMIT).ok()) {
            Some(s) => break s,
            None if Instant::now() >= deadline => {
                return Err(RendezvousError::Missing {
                    place: place.to_owned(),
                    limit: join.limit,
                    missing: vec![0],
                    refused: vec![],
                });
            }
            None => thread::sleep(RETRY),
        }
    };
    let foreign =
        |e: io::Error| RendezvousError::NotARendezvous { place: place.to_owned(), found: e.to_string() };
    stream.set_nodelay(true).map_err(foreign)?;
    stream.set_write_timeout(Some(join.dead_after)).map_err(foreign)?;
    let theirs = greeted(&mut stream).map_err(foreign)?;
    let (key, mine) = (Key::new(&join.token), nonce());
    let (r, n) = (join.rank.to_string(), join.world_size.to_string());
    let hello = FromRank::Hello {
        rank: join.rank,
        world_size: join.world_size,
        holder: this_process(),
        proof: key.proof(&["rank", &theirs, &mine, &r, &n]),
        nonce: mine.clone(),
    };
    frame::write(&mut stream, &hello, &[]).map_err(foreign)?;
    let place = place.to_owned();
    match frame::read(&mut stream).map_err(foreign)? {
        FromHub::Welcome { proof } if key.verify(&proof, &["hub", &theirs, &mine]) => {
            stream.set_read_timeout(Some(join.dead_after)).map_err(foreign)?;
            Ok(stream)
        }
        FromHub::Welcome { .. } | FromHub::Refused { why: Refusal::WrongToken } => {
            Err(RendezvousError::WrongToken { place })
        }
        FromHub::Refused { why: Refusal::WorldSize { theirs } } => {
            Err(RendezvousError::WorldSize { place, ours: join.world_size, theirs })
        }
        FromHub::Refused { why: Refusal::DuplicateRank { holder } } => {
            Err(RendezvousError::DuplicateRank { place, rank: join.rank, holder })
        }
        other => Err(RendezvousError::NotARendezvous { place, found: format!("{other:?}") }),
    }
}

/// Reads the greeting and returns the nonce in it.
fn greeted(stream: &mut TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(GREETING_LIMIT))?;
    match frame::read(stream)? {
        FromHub::Challenge { greeting, nonce } if greeting == GREETING => Ok(nonce),
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{other:?}"))),
    }
}

/// For the message when rank 0 finds its port taken.
fn who_answers(targets: &[SocketAddr]) -> String {
    let greeting = targets
        .iter()
        .filter_map(|t| TcpStream::connect_timeout(t, CONNECT_LIMIT).ok())
        .find_map(|mut s| greeted(&mut s).ok());
    match greeting {
        Some(_) => "another shardweld job meets there".to_owned(),
        None => "a service that is not a shardweld rendezvous holds the port".to_owned(),
    }
}
