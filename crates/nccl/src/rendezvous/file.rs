//! The rendezvous in a folder that all ranks see: one file per rank, one heartbeat file, and per exchange one file with
//! the part and one that says that all parts were read.
//!
//! Every file is written under another name and renamed, so a reader sees all of it or nothing. A rank's files carry
//! its nonce, so what an earlier job left is never taken for news.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::proof::{Key, nonce};
use super::{Join, MAX_PAYLOAD, Rendezvous, RendezvousError, this_process};
use crate::transport::PeerWatch;

/// Pause between two looks at the folder.
const POLL: Duration = Duration::from_millis(10);
/// Largest rank file that is read; a larger one is not ours.
const MAX_CARD: u64 = 64 << 10;

/// What a rank's file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Card {
    format: String,
    rank: u32,
    world_size: u32,
    holder: String,
    nonce: String,
    proof: String,
}

const FORMAT: &str = "shardweld-rendezvous-file-1";

/// Ranks that met in a folder.
#[derive(Debug)]
pub struct FileRendezvous {
    join: Join,
    folder: PathBuf,
    cards: Vec<Card>,
    watch: PeerWatch,
    next: u64,
    heart: Option<Heart>,
    /// Files of this rank, removed when it leaves.
    mine: Vec<PathBuf>,
    /// Set once this rank has said goodbye: the others may go from then on.
    leaving: Arc<AtomicBool>,
}

impl FileRendezvous {
    /// Meets in `folder`, which is made if it is not there. Returns when all ranks are there.
    pub fn join(folder: &Path, join: Join) -> Result<FileRendezvous, RendezvousError> {
        join.validate()?;
        fs::create_dir_all(folder).map_err(io_at(folder, "making the folder"))?;
        let key = Key::new(&join.token);
        let nonce = nonce();
        let card = Card {
            format: FORMAT.into(),
            rank: join.rank,
            world_size: join.world_size,
            holder: this_process(),
            proof: key.proof(&["card", &nonce]),
            nonce,
        };
        let beat = beat_file(folder, &card);
        write_whole(&beat, b"0")?;
        let mut met = FileRendezvous {
            folder: folder.to_owned(),
            watch: PeerWatch::tracking(),
            cards: Vec::new(),
            next: 0,
            heart: None,
            mine: vec![beat.clone()],
            leaving: Arc::default(),
            join,
        };
        met.heart = Some(Heart::start(beat, met.watch.clone(), met.join.beat));
        met.claim(&card, &key)?;
        met.cards = met.wait_for_all(&key)?;
        met.heart = met.heart.take().map(|h| h.watching(&met));
        Ok(met)
    }

    /// Takes this rank's place, or says who holds it.
    fn claim(&mut self, card: &Card, key: &Key) -> Result<(), RendezvousError> {
        let path = rank_file(&self.folder, card.rank);
        let text = serde_json::to_vec(card).map_err(|e| io_at(&path, "writing")(io::Error::other(e)))?;
        // Written aside and linked: creation fails if the name is there, and no reader sees half a card.
        let aside = self.folder.join(format!("card-{}", card.nonce));
        write_whole(&aside, &text)?;
        let linked = fs::hard_link(&aside, &path);
        fs::remove_file(&aside).map_err(io_at(&aside, "removing"))?;
        match linked {
            Ok(()) => {
                self.mine.push(path);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let theirs = self.admit(card.rank, &path, key)?;
                Err(match theirs {
                    Some(c) => RendezvousError::DuplicateRank {
                        place: self.folder.display().to_string(),
                        rank: card.rank,
                        holder: c.holder,
                    },
                    None => io_at(&path, "claiming")(io::Error::other("its holder just left; start again")),
                })
            }
            Err(e) => Err(io_at(&path, "claiming")(e)),
        }
    }

    /// Reads another rank's card and checks that it is alive and of this job. `None` if it is not there.
    fn admit(&self, rank: u32, path: &Path, key: &Key) -> Result<Option<Card>, RendezvousError> {
        let place = || self.folder.display().to_string();
        let foreign =
            |found: String| RendezvousError::NotARendezvous { place: path.display().to_string(), found };
        let text = match fs::metadata(path) {
            Ok(m) if m.len() > MAX_CARD => return Err(foreign(format!("a file of {} bytes", m.len()))),
            Ok(_) => match fs::read(path) {
                Ok(t) => t,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(io_at(path, "reading")(e)),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_at(path, "reading")(e)),
        };
        let card: Card = serde_json::from_slice(&text).map_err(|e| foreign(e.to_string()))?;
        if card.format != FORMAT || card.rank != rank || blake3::Hash::from_hex(&card.nonce).is_err() {
            return Err(foreign(format!("format `{}` of rank {}", card.format, card.rank)));
        }
        let wrong = if !key.verify(&card.proof, &["card", &card.nonce]) {
            Some(RendezvousError::WrongToken { place: place() })
        } else if card.world_size != self.join.world_size {
            let (ours, theirs) = (self.join.world_size, card.world_size);
            Some(RendezvousError::WorldSize { place: place(), ours, theirs })
        } else {
            None
        };
        if !self.beats(&card) {
            // A rank that leaves removes its card before its heartbeat, so a card that is still there is a dead one's.
            if fs::read(path).is_ok_and(|now| now == text) {
                let folder = self.folder.clone();
                return Err(RendezvousError::Stale { file: path.to_owned(), folder, holder: card.holder });
            }
            return wrong.map_or(Ok(None), Err);
        }
        if let Some(e) = wrong {
            return Err(e);
        }
        Ok(Some(card))
    }

    /// Whether a card's heartbeat changes within the time that means lost.
    fn beats(&self, card: &Card) -> bool {
        let path = beat_file(&self.folder, card);
        let before = fs::read(&path).ok();
        let deadline = Instant::now() + self.join.dead_after;
        while Instant::now() < deadline {
            match fs::read(&path) {
                Err(_) => return false,
                now if now.as_ref().ok() != before.as_ref() => return true,
                _ => thread::sleep(POLL),
            }
        }
        false
    }

    fn wait_for_all(&self, key: &Key) -> Result<Vec<Card>, RendezvousError> {
        let deadline = Instant::now() + self.join.limit;
        let mut found: BTreeMap<u32, Card> = BTreeMap::new();
        loop {
            for rank in 0..self.join.world_size {
                if !found.contains_key(&rank)
                    && let Some(card) = self.admit(rank, &rank_file(&self.folder, rank), key)?
                {
                    found.insert(rank, card);
                }
            }
            if found.len() == self.join.world_size as usize {
                return Ok(found.into_values().collect());
            }
            if Instant::now() >= deadline {
                return Err(RendezvousError::Missing {
                    place: self.folder.display().to_string(),
                    limit: self.join.limit,
                    missing: (0..self.join.world_size).filter(|r| !found.contains_key(r)).collect(),
                    refused: vec![],
                });
            }
            thread::sleep(POLL);
        }
    }

    /// Lets the others read this rank's part before it may leave and remove it.
    fn wait_until_read(&mut self, seq: u64, deadline: Instant) -> Result<(), RendezvousError> {
        if let Some(own) = self.cards.get(self.join.rank as usize) {
            let path = read_file(&self.folder, own, seq);
            write_whole(&path, b"")?;
            self.mine.push(path);
        }
        for card in &self.cards {
            // A rank that has left or is lost reads no more, and this rank has all parts: neither is an error here.
            while !read_file(&self.folder, card, seq).exists()
                && rank_file(&self.folder, card.rank).exists()
                && self.watch.lost().is_none()
                && Instant::now() < deadline
            {
                thread::sleep(POLL);
            }
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.heart = None;
        // Last made, first removed: the card goes before the heartbeat that shows it to be alive.
        for f in self.mine.drain(..).rev() {
            // A file that cannot be removed is found stale by the next job, which says so.
            let _ = fs::remove_file(f);
        }
        // Succeeds for the last rank that leaves.
        let _ = fs::remove_dir(&self.folder);
    }
}

impl Rendezvous for FileRendezvous {
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
        let deadline = Instant::now() + self.join.limit;
        // First line: what is exchanged; the rest: the bytes.
        let mut text = serde_json::to_vec(what).map_err(|e| io_at(&self.folder, "writing")(e.into()))?;
        text.push(b'\n');
        text.extend_from_slice(mine);
        if let Some(own) = self.cards.get(self.join.rank as usize) {
            let path = put_file(&self.folder, own, seq);
            write_whole(&path, &text)?;
            self.mine.push(path);
        }
        let mut parts = Vec::new();
        for card in &self.cards {
            let path = put_file(&self.folder, card, seq);
            let bytes = loop {
                match fs::read(&path) {
                    Ok(b) => break b,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(io_at(&path, "reading")(e)),
                }
                if let Some(lost) = self.watch.lost() {
                    return Err(RendezvousError::Lost { what: named(), lost });
                }
                if Instant::now() >= deadline {
                    return Err(RendezvousError::Timeout { what: named(), limit: self.join.limit });
                }
                thread::sleep(POLL);
            };
            let mut lines = bytes.splitn(2, |&b| b == b'\n');
            let theirs = lines.next().and_then(|l| serde_json::from_slice::<String>(l).ok());
            let (Some(theirs), Some(payload)) = (theirs, lines.next()) else {
                let place = path.display().to_string();
                return Err(RendezvousError::NotARendezvous { place, found: "no heading".into() });
            };
            if theirs != what {
                let (our_rank, rank) = (self.join.rank, card.rank);
                return Err(RendezvousError::OrderMismatch { our_rank, ours: named(), rank, theirs });
            }
            parts.push(payload.to_vec());
        }
        self.wait_until_read(seq, deadline)?;
        Ok(parts)
    }

    fn watch(&self) -> PeerWatch {
        self.watch.clone()
    }

    /// Says goodbye and waits until the others have said it too, since they may still read this rank's files.
    fn finish(mut self: Box<Self>) -> Result<(), RendezvousError> {
        self.leaving.store(true, Ordering::SeqCst);
        let what = || "leaving".to_owned();
        let deadline = Instant::now() + self.join.limit;
        if let Some(own) = self.cards.get(self.join.rank as usize) {
            let path = bye_file(&self.folder, own);
            write_whole(&path, b"")?;
            self.mine.push(path);
        }
        for card in self.cards.clone() {
            // A rank that has removed its card has left, too.
            while !bye_file(&self.folder, &card).exists() && rank_file(&self.folder, card.rank).exists() {
                if let Some(lost) = self.watch.lost() {
                    return Err(RendezvousError::Lost { what: what(), lost });
                }
                if Instant::now() >= deadline {
                    return Err(RendezvousError::Timeout { what: what(), limit: self.join.limit });
                }
                thread::sleep(POLL);
            }
        }
        Ok(())
    }
}

impl Drop for FileRendezvous {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The thread that beats for this rank and watches the others.
#[derive(Debug)]
struct Heart {
    stop: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

impl Heart {
    /// A heartbeat is a count and, on the next line, the collective this rank has come to.
    fn start(beat: PathBuf, watch: PeerWatch, every: Duration) -> Heart {
        let mut heart = Heart { stop: Arc::default(), threads: Vec::new() };
        let mut count = 0u64;
        heart.run(every, move || {
            count += 1;
            // An arrival is strings and a number, so it always has a JSON form.
            let at = watch.mine().and_then(|a| serde_json::to_string(&a).ok()).unwrap_or_default();
            // A full disk or a removed folder: the others will see the heartbeat stop, which is the truth.
            let _ = write_whole(&beat, format!("{count}\n{at}").as_bytes());
            true
        });
        heart
    }

    /// Also watches the other ranks from now on.
    fn watching(mut self, met: &FileRendezvous) -> Heart {
        let (folder, watch, join) = (met.folder.clone(), met.watch.clone(), &met.join);
        let (leaving, dead_after) = (met.leaving.clone(), join.dead_after);
        let mut peers: Vec<(Card, Option<Vec<u8>>, Instant)> = met
            .cards
            .iter()
            .filter(|c| c.rank != join.rank)
            .map(|c| (c.clone(), None, Instant::now()))
            .collect();
        self.run(join.beat.min(join.dead_after / 4), move || {
            for (card, last, since) in &mut peers {
                if bye_file(&folder, card).exists() {
                    *since = Instant::now();
                    continue;
                }
                match fs::read(beat_file(&folder, card)) {
                    Ok(now) if last.as_ref() != Some(&now) => {
                        let at = now.splitn(2, |&b| b == b'\n').nth(1).map(serde_json::from_slice);
                        if let Some(Ok(arrival)) = at {
                            watch.learn(card.rank, arrival);
                        }
                        (*last, *since) = (Some(now), Instant::now());
                    }
                    Ok(_) if since.elapsed() >= dead_after => {
                        let how = format!("no heartbeat for {dead_after:?} ({})", card.holder);
                        watch.report(card.rank, how);
                        return false;
                    }
                    Ok(_) => {}
                    Err(_) if leaving.load(Ordering::SeqCst) => {}
                    Err(_) => {
                        let how = format!("it removed its heartbeat without a goodbye ({})", card.holder);
                        watch.report(card.rank, how);
                        return false;
                    }
                }
            }
            true
        });
        self
    }

    fn run(&mut self, every: Duration, mut step: impl FnMut() -> bool + Send + 'static) {
        let stop = self.stop.clone();
        self.threads.push(thread::spawn(move || {
            let (flag, changed) = &*stop;
            let mut stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stopped {
                drop(stopped);
                if !step() {
                    return;
                }
                stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
                if !*stopped {
                    stopped = changed.wait_timeout(stopped, every).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }));
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        for t in self.threads.drain(..) {
            // A panic there was printed already.
            let _ = t.join();
        }
    }
}

fn rank_file(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

fn beat_file(folder: &Path, card: &Card) -> PathBuf {
    folder.join(format!("beat-{}", card.nonce))
}

fn bye_file(folder: &Path, card: &Card) -> PathBuf {
    folder.join(format!("bye-{}", card.nonce))
}

fn put_file(folder: &Path, card: &Card, seq: u64) -> PathBuf {
    folder.join(format!("put-{}-{seq}", card.nonce))
}

fn read_file(folder: &Path, card: &Card, seq: u64) -> PathBuf {
    folder.join(format!("read-{}-{seq}", card.nonce))
}

/// Writes a file so that readers see all of it or nothing.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), RendezvousError> {
    let aside = path.with_extension("part");
    let write = || {
        let mut f = OpenOptions::new().write(true).create(true).truncate(true).open(&aside)?;
        f.write_all(bytes)?;
        fs::rename(&aside, path)
    };
    write().map_err(io_at(path, "writing"))
}

fn io_at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> RendezvousError + use<> {
    let place = path.display().to_string();
    move |e| RendezvousError::Io { place, what, detail: e.to_string() }
}
