//! Rank 0's side of the TCP rendezvous: takes ranks in, relays exchanges, tells everybody which rank is lost.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::frame::{self, FromHub, FromRank, GREETING, Refusal};
use super::proof::{Key, nonce};
use super::{Join, RendezvousError};
use crate::transport::{Arrival, LostRank};

/// How often the listener looks whether it should stop.
const ACCEPT_POLL: Duration = Duration::from_millis(5);
/// A caller that says nothing for this long is turned away.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Callers turned away that are remembered for the error message.
const MAX_REFUSED: usize = 8;
/// Arrivals in one beat, so that a message head stays small.
const ARRIVALS_A_BEAT: usize = 32;

#[derive(Clone, Debug, PartialEq)]
enum Presence {
    Here,
    Left,
    Lost(String),
}

struct Seat {
    holder: String,
    stream: TcpStream,
    presence: Presence,
    /// Where it is, and whether the others were told.
    arrival: Option<(Arrival, bool)>,
}

#[derive(Default)]
struct State {
    seats: Vec<Option<Seat>>,
    refused: Vec<String>,
    ready: bool,
    puts: BTreeMap<u64, BTreeMap<u32, (String, Vec<u8>)>>,
}

struct Shared {
    join: Join,
    place: String,
    key: Key,
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
}

/// The running hub. Dropping it closes every connection.
pub(super) struct Hub {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Hub {
    pub(super) fn start(listener: TcpListener, place: String, join: Join) -> io::Result<Hub> {
        listener.set_nonblocking(true)?;
        let seats = (0..join.world_size).map(|_| None).collect();
        let shared = Arc::new(Shared {
            key: Key::new(&join.token),
            join,
            place,
            state: Mutex::new(State { seats, ..State::default() }),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let (a, b) = (shared.clone(), shared.clone());
        let threads = vec![thread::spawn(move || a.accept(&listener)), thread::spawn(move || b.tick())];
        Ok(Hub { shared, threads })
    }

    /// Waits until all ranks have left.
    pub(super) fn wait_all_left(&self) -> Result<(), RendezvousError> {
        let deadline = Instant::now() + self.shared.join.limit;
        let mut state = self.shared.lock();
        loop {
            let present = |s: &Option<Seat>| s.as_ref().is_some_and(|s| s.presence == Presence::Here);
            if !state.seats.iter().any(present) {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let what = "leaving".to_owned();
                return Err(RendezvousError::Timeout { what, limit: self.shared.join.limit });
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        for (rank, seat) in state.seats.iter().enumerate() {
            if let Some(Seat { presence: Presence::Lost(how), .. }) = seat {
                let lost = LostRank { rank: rank as u32, how: how.clone() };
                return Err(RendezvousError::Lost { what: "leaving".into(), lost });
            }
        }
        Ok(())
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
        for t in self.threads.drain(..) {
            // A panic there was printed already; nothing waits for its result.
            let _ = t.join();
        }
        for seat in self.shared.lock().seats.iter().flatten() {
            // Fails only if the connection is closed already.
            let _ = seat.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.stop.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((stream, from)) => {
                    let me = self.clone();
                    thread::spawn(move || me.serve(stream, from));
                }
                // Nobody waits, or one caller went away before it was accepted.
                Err(_) => thread::sleep(ACCEPT_POLL),
            }
        }
    }

    /// Beats, and ends the time to arrive.
    fn tick(&self) {
        let deadline = Instant::now() + self.join.limit;
        let mut state = self.lock();
        while !self.stop.load(Ordering::SeqCst) {
            state =
                self.changed.wait_timeout(state, self.join.beat).unwrap_or_else(PoisonError::into_inner).0;
            if !state.ready && Instant::now() >= deadline {
                let missing = state.missing();
                let refused = state.refused.clone();
                state.broadcast(&FromHub::Missing { missing, refused }, &[]);
                return;
            }
            state.beat();
        }
    }

    /// Talks to one caller from its greeting until it leaves or is lost.
    fn serve(&self, mut stream: TcpStream, from: SocketAddr) {
        let rank = match self.take_in(&mut stream, from) {
            Ok(Some(rank)) => rank,
            Ok(None) => return,
            Err(e) => {
                self.lock().refuse(format!("{from} did not speak the protocol ({e})"));
                return;
            }
        };
        let how = loop {
            match frame::read::<FromRank>(&mut stream) {
                Ok(FromRank::Beat { arrival }) => self.lock().note(rank, arrival),
                Ok(FromRank::Put { seq, what, length }) => match frame::read_payload(&mut stream, length) {
                    Ok(payload) => self.put(rank, seq, what, payload),
                    Err(e) => break format!("its message broke off ({e})"),
                },
                Ok(FromRank::Bye) => {
                    let mut state = self.lock();
                    state.mark(rank, Presence::Left);
                    state.settle();
                    self.changed.notify_all();
                    return;
                }
                Ok(FromRank::Hello { .. }) => break "it broke the protocol".to_owned(),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    break format!("no heartbeat for {:?}", self.join.dead_after);
                }
                Err(_) => break "its connection closed without a goodbye (the process ended)".to_owned(),
            }
        };
        let mut state = self.lock();
        if state.ready {
            state.mark(rank, Presence::Lost(how.clone()));
            state.broadcast(&FromHub::Lost { rank, how }, &[]);
        } else if let Some(seat) = state.seats.get_mut(rank as usize) {
            // It can come again until all are there.
            *seat = None;
        }
        self.changed.notify_all();
    }

    /// The handshake. `None`: turned away.
    fn take_in(&self, stream: &mut TcpStream, from: SocketAddr) -> io::Result<Option<u32>> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HELLO_LIMIT))?;
        stream.set_write_timeout(Some(self.join.dead_after))?;
        let mine = nonce();
        frame::write(stream, &FromHub::Challenge { greeting: GREETING.into(), nonce: mine.clone() }, &[])?;
        let FromRank::Hello { rank, world_size, holder, nonce, proof } = frame::read(stream)? else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no hello"));
        };
        let (r, n) = (rank.to_string(), world_size.to_string());
        let mut state = self.lock();
        let why = if !self.key.verify(&proof, &["rank", &mine, &nonce, &r, &n]) {
            Some((Refusal::WrongToken, "with a wrong token"))
        } else if world_size != self.join.world_size || rank >= world_size {
            Some((Refusal::WorldSize { theirs: self.join.world_size }, "with another world size"))
        } else {
            let seat = state.seats.get(rank as usize).and_then(Option::as_ref);
            seat.map(|s| (Refusal::DuplicateRank { holder: s.holder.clone() }, "as a rank that is there"))
        };
        if let Some((why, text)) = why {
            state.refuse(format!("{holder} at {from} as rank {rank} {text}"));
            frame::write(stream, &FromHub::Refused { why }, &[])?;
            return Ok(None);
        }
        stream.set_read_timeout(Some(self.join.dead_after))?;
        let proof = self.key.proof(&["hub", &mine, &nonce]);
        frame::write(stream, &FromHub::Welcome { proof }, &[])?;
        let seat = Seat { holder, stream: stream.try_clone()?, presence: Presence::Here, arrival: None };
        if let Some(free) = state.seats.get_mut(rank as usize) {
            *free = Some(seat);
        }
        if state.missing().is_empty() {
            state.ready = true;
            state.broadcast(&FromHub::Ready, &[]);
        }
        Ok(Some(rank))
    }

    fn put(&self, rank: u32, seq: u64, what: String, payload: Vec<u8>) {
        let mut state = self.lock();
        let parts = state.puts.entry(seq).or_default();
        let other = parts.iter().find(|(_, (w, _))| *w != what).map(|(r, (w, _))| (*r, w.clone()));
        parts.insert(rank, (what.clone(), payload));
        if let Some((a, a_what)) = other {
            // Or it would still be completed and handed out.
            state.puts.remove(&seq);
            state.broadcast(&FromHub::Mismatch { a, a_what, b: rank, b_what: what }, &[]);
        }
        state.settle();
        self.changed.notify_all();
    }
}

impl State {
    fn missing(&self) -> Vec<u32> {
        (0..self.seats.len() as u32).filter(|&r| self.seats[r as usize].is_none()).collect()
    }

    fn refuse(&mut self, who: String) {
        if self.refused.len() < MAX_REFUSED {
            self.refused.push(who);
        }
    }

    /// Takes down where a rank is.
    fn note(&mut self, rank: u32, arrival: Option<Arrival>) {
        if let (Some(Some(seat)), Some(a)) = (self.seats.get_mut(rank as usize), arrival)
            && seat.arrival.as_ref().is_none_or(|(known, _)| *known != a)
        {
            seat.arrival = Some((a, false));
        }
    }

    /// Beats, and tells everybody what is new.
    fn beat(&mut self) {
        let mut news = Vec::new();
        for (rank, seat) in self.seats.iter_mut().enumerate() {
            if let Some(Seat { arrival: Some((a, told)), .. }) = seat
                && !std::mem::replace(told, true)
            {
                news.push((rank as u32, a.clone()));
            }
        }
        self.broadcast(
            &FromHub::Beat { arrivals: news.split_off(news.len() / ARRIVALS_A_BEAT * ARRIVALS_A_BEAT) },
            &[],
        );
        for chunk in news.chunks(ARRIVALS_A_BEAT) {
            self.broadcast(&FromHub::Beat { arrivals: chunk.to_vec() }, &[]);
        }
    }

    fn mark(&mut self, rank: u32, presence: Presence) {
        if let Some(Some(seat)) = self.seats.get_mut(rank as usize) {
            seat.presence = presence;
        }
    }

    /// Sends out exchanges that are complete; reports those that a rank left or was lost before.
    fn settle(&mut self) {
        let n = self.seats.len();
        let done: Vec<u64> = self.puts.iter().filter(|(_, p)| p.len() == n).map(|(s, _)| *s).collect();
        for seq in done {
            let Some(parts) = self.puts.remove(&seq) else { continue };
            let payloads: Vec<&[u8]> = parts.values().map(|(_, p)| p.as_slice()).collect();
            let lengths = payloads.iter().map(|p| p.len()).collect();
            self.broadcast(&FromHub::All { seq, lengths }, &payloads);
        }
        let gone = self.puts.values().find_map(|parts| {
            let (what, _) = parts.values().next()?;
            self.seats.iter().enumerate().find_map(|(r, s)| {
                let absent = !parts.contains_key(&(r as u32));
                let left = s.as_ref().is_some_and(|s| s.presence == Presence::Left);
                (absent && left).then(|| (r as u32, format!("it left in order before exchange `{what}`")))
            })
        });
        if let Some((rank, how)) = gone {
            self.broadcast(&FromHub::Lost { rank, how }, &[]);
        }
    }

    fn broadcast(&mut self, message: &FromHub, payloads: &[&[u8]]) {
        for seat in self.seats.iter_mut().flatten() {
            if seat.presence == Presence::Here && frame::write(&mut seat.stream, message, payloads).is_err() {
                // Its own reader sees the broken connection and reports the rank.
                let _ = seat.stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("place", &self.shared.place).finish_non_exhaustive()
    }
}
