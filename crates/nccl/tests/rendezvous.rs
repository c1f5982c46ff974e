//! Ranks meeting by TCP and by file, and every way in which they may fail to.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shardweld_nccl::{FileRendezvous, Join, Rendezvous, RendezvousError, TcpRendezvous};

const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(20);

fn settings(rank: u32, world: u32, token: &str) -> Join {
    Join {
        limit: LONG,
        beat: Duration::from_millis(20),
        dead_after: Duration::from_secs(1),
        ..Join::new(rank, world, token)
    }
}

fn short(rank: u32, world: u32, token: &str) -> Join {
    Join { limit: SHORT, ..settings(rank, world, token) }
}

/// A port below the range from which the system takes ports of its own, so that no other test's connection gets it.
fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = 20_000 + (std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

/// How a test joins: one rendezvous of either kind.
type Meet<'a> = &'a (dyn Fn(Join) -> Result<Box<dyn Rendezvous>, RendezvousError> + Sync);

fn tcp(address: &str) -> impl Fn(Join) -> Result<Box<dyn Rendezvous>, RendezvousError> + Sync {
    move |j| TcpRendezvous::join(address, j).map(|r| Box::new(r) as Box<dyn Rendezvous>)
}

fn file(folder: &Path) -> impl Fn(Join) -> Result<Box<dyn Rendezvous>, RendezvousError> + Sync {
    move |j| FileRendezvous::join(folder, j).map(|r| Box::new(r) as Box<dyn Rendezvous>)
}

/// Runs `job` on each of `n` ranks of one good job.
fn ranks<T: Send>(meet: Meet, n: u32, job: impl Fn(Box<dyn Rendezvous>) -> T + Sync) -> Vec<T> {
    thread::scope(|s| {
        let threads: Vec<_> = (0..n)
            .map(|r| {
                s.spawn({
                    let job = &job;
                    move || job(meet(settings(r, n, "t")).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn exchanges_by_rank(meet: Meet) {
    let all = ranks(meet, 4, |mut r| {
        let mine = vec![r.rank() as u8; r.rank() as usize];
        let first = r.exchange("a", &mine).unwrap();
        let second = r.exchange("b", &[9]).unwrap();
        assert_eq!(r.watch().lost(), None);
        r.finish().unwrap();
        (first, second)
    });
    for (first, second) in all {
        assert_eq!(first, [vec![], vec![1], vec![2, 2], vec![3, 3, 3]]);
        assert_eq!(second, vec![vec![9]; 4]);
    }
}

fn different_exchanges_name_both(meet: Meet) {
    let errors = ranks(meet, 2, |mut r| {
        let what = if r.rank() == 0 { "id" } else { "groups" };
        r.exchange(what, &[]).unwrap_err()
    });
    for e in errors {
        let text = e.to_string();
        assert!(matches!(e, RendezvousError::OrderMismatch { .. } | RendezvousError::Lost { .. }), "{text}");
        if matches!(e, RendezvousError::OrderMismatch { .. }) {
            assert!(text.contains("`id`") && text.contains("`groups`"), "{text}");
        }
    }
}

/// A rank that drops its rendezvous without a goodbye, as a dying process does.
fn a_lost_rank_is_named(meet: Meet) {
    let errors = ranks(meet, 3, |mut r| {
        r.exchange("hello", &[]).unwrap();
        if r.rank() == 1 {
            return None;
        }
        let began = Instant::now();
        let e = r.exchange("after", &[]).unwrap_err();
        assert!(began.elapsed() < LONG / 2, "noticed by the heartbeat, not by the limit");
        Some((e, r.watch().lost()))
    });
    let lost: Vec<u32> = errors
        .into_iter()
        .flatten()
        .map(|(e, watch)| {
            assert!(watch.is_some());
            match e {
                RendezvousError::Lost { what, lost } if what == "after" => lost.rank,
                other => panic!("{other}"),
            }
        })
        .collect();
    assert_eq!(lost.len(), 2);
    assert!(lost.contains(&1), "{lost:?}");
}

fn a_goodbye_is_no_loss(meet: Meet) {
    ranks(meet, 3, |mut r| {
        r.exchange("hello", &[]).unwrap();
        let watch = r.watch();
        if r.rank() != 1 {
            thread::sleep(SHORT);
        }
        r.finish().unwrap();
        assert_eq!(watch.lost(), None);
    });
}

/// A rank that refuses what it got and leaves must not keep the others from getting it, too.
fn leaving_right_after_an_exchange_takes_nothing_back(meet: Meet) {
    for _ in 0..5 {
        let all = ranks(meet, 3, |mut r| r.exchange("version", &[r.rank() as u8]));
        for parts in all {
            assert_eq!(parts.unwrap(), [[0], [1], [2]]);
        }
    }
}

fn missing_ranks_are_listed(meet: Meet) {
    let errors = thread::scope(|s| {
        let threads: Vec<_> = [0, 2].map(|r| s.spawn(move || meet(short(r, 4, "t")).err().unwrap())).into();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    for e in errors {
        // The rank that gives up first may leave before the other has looked.
        assert!(
            matches!(&e, RendezvousError::Missing { missing, .. } if missing.contains(&1) && missing.contains(&3)),
            "{e}"
        );
    }
}

fn a_wrong_token_is_refused(meet: Meet) {
    thread::scope(|s| {
        let good = s.spawn(move || meet(Join { limit: SHORT * 3, ..settings(0, 2, "right") }));
        thread::sleep(SHORT / 3);
        let e = meet(short(1, 2, "wrong")).err().unwrap();
        assert!(matches!(e, RendezvousError::WrongToken { .. }), "{e}");
        drop(good.join().unwrap());
    });
}

fn a_duplicate_rank_is_refused(meet: Meet) {
    thread::scope(|s| {
        let first = s.spawn(move || meet(settings(0, 3, "t")).unwrap());
        let second = s.spawn(move || meet(settings(1, 3, "t")).unwrap());
        thread::sleep(SHORT / 3);
        let e = meet(short(1, 3, "t")).err().unwrap();
        let pid = format!("pid {}", std::process::id());
        assert!(
            matches!(&e, RendezvousError::DuplicateRank { rank: 1, holder, .. } if holder.contains(&pid)),
            "{e}"
        );
        let third = meet(settings(2, 3, "t")).unwrap();
        let met = (first.join().unwrap(), second.join().unwrap(), third);
        assert_eq!(met.0.world_size(), 3, "the job goes on without the intruder");
    });
}

fn another_world_size_is_refused(meet: Meet) {
    thread::scope(|s| {
        let first = s.spawn(move || meet(short(0, 2, "t")));
        thread::sleep(SHORT / 3);
        let e = meet(short(1, 3, "t")).err().unwrap();
        assert!(matches!(e, RendezvousError::WorldSize { ours: 3, theirs: 2, .. }), "{e}");
        drop(first.join().unwrap());
    });
}

macro_rules! both {
    ($($name:ident)*) => {
        mod over_tcp { $(#[test] fn $name() { super::$name(&super::tcp(&super::free_address())); })* }
        mod over_files {
            $(#[test] fn $name() {
                let dir = tempfile::tempdir().unwrap();
                super::$name(&super::file(&dir.path().join("job")));
            })*
        }
    };
}

both! {
    exchanges_by_rank
    different_exchanges_name_both
    a_lost_rank_is_named
    a_goodbye_is_no_loss
    leaving_right_after_an_exchange_takes_nothing_back
    missing_ranks_are_listed
    a_wrong_token_is_refused
    a_duplicate_rank_is_refused
    another_world_size_is_refused
}

#[test]
fn bad_settings_are_refused_at_once() {
    let meet = |j| TcpRendezvous::join("127.0.0.1:1", j).err();
    assert!(matches!(meet(settings(2, 2, "t")), Some(RendezvousError::RankOutOfRange { .. })));
    assert_eq!(meet(settings(0, 2, "")), Some(RendezvousError::EmptyToken));
    let slow = Join { beat: LONG, ..settings(0, 2, "t") };
    assert!(matches!(meet(slow), Some(RendezvousError::Beat { .. })));
}

#[test]
fn two_jobs_on_one_port_are_told_apart() {
    let address = free_address();
    thread::scope(|s| {
        let first = s.spawn(|| TcpRendezvous::join(&address, short(0, 2, "first")));
        thread::sleep(SHORT / 3);
        let e = TcpRendezvous::join(&address, short(0, 2, "second")).unwrap_err();
        assert!(
            matches!(&e, RendezvousError::PortTaken { by, .. } if by.contains("another shardweld job")),
            "{e}"
        );
        let e = TcpRendezvous::join(&address, short(1, 2, "second")).unwrap_err();
        assert!(matches!(e, RendezvousError::WrongToken { .. }), "{e}");
        let e = first.join().unwrap().unwrap_err().to_string();
        assert!(
            e.contains("[1]") && e.contains("wrong token"),
            "the first job says who was turned away: {e}"
        );
    });
}

#[test]
fn a_foreign_service_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut s: TcpStream = stream;
            let _ = s.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
        }
    });
    let e = TcpRendezvous::join(&address, short(1, 2, "t")).unwrap_err();
    assert!(matches!(e, RendezvousError::NotARendezvous { .. }), "{e}");
    let e = TcpRendezvous::join(&address, short(0, 2, "t")).unwrap_err();
    assert!(matches!(&e, RendezvousError::PortTaken { by, .. } if by.contains("not a shardweld")), "{e}");
}

#[test]
fn a_port_scanner_does_not_stop_a_job() {
    let address = free_address();
    let (a, b) = (address.clone(), address.clone());
    let first = thread::spawn(move || TcpRendezvous::join(&a, settings(0, 2, "t")).unwrap());
    thread::sleep(SHORT / 3);
    TcpStream::connect(&address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let second = TcpRendezvous::join(&b, settings(1, 2, "t")).unwrap();
    assert_eq!((first.join().unwrap().rank(), second.rank()), (0, 1));
}

#[test]
fn nobody_listening_means_rank_0_is_missing() {
    let e = TcpRendezvous::join(&free_address(), short(1, 2, "t")).unwrap_err();
    assert!(matches!(&e, RendezvousError::Missing { missing, .. } if missing == &[0]), "{e}");
}

#[test]
fn stale_files_are_named_and_their_removal_helps() {
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job");
    // What a killed job leaves: its files, with a heartbeat that no longer changes.
    let kept = dir.path().join("kept");
    thread::scope(|s| {
        let one = s.spawn(|| FileRendezvous::join(&job, settings(1, 2, "t")).unwrap());
        let zero = FileRendezvous::join(&job, settings(0, 2, "t")).unwrap();
        std::fs::create_dir(&kept).unwrap();
        for f in std::fs::read_dir(&job).unwrap().flatten() {
            let _ = std::fs::copy(f.path(), kept.join(f.file_name()));
        }
        drop((zero, one.join().unwrap()));
    });
    assert!(!job.exists(), "an orderly or unwound job leaves nothing");
    std::fs::rename(&kept, &job).unwrap();
    for rank in 0..2 {
        let e = FileRendezvous::join(&job, short(rank, 2, "t")).unwrap_err();
        let text = e.to_string();
        assert!(matches!(e, RendezvousError::Stale { .. }), "{text}");
        assert!(text.contains(&job.display().to_string()) && text.contains("remove the folder"), "{text}");
    }
    std::fs::remove_dir_all(&job).unwrap();
    exchanges_by_rank(&file(&job));
}

#[test]
fn a_foreign_file_is_not_taken_for_a_rank() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rank-1"), "hello").unwrap();
    let e = FileRendezvous::join(dir.path(), short(0, 2, "t")).unwrap_err();
    assert!(matches!(e, RendezvousError::NotARendezvous { .. }), "{e}");
}

/// The token stands in no file.
#[test]
fn the_token_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let met = FileRendezvous::join(dir.path(), settings(0, 1, "a-very-secret-token")).unwrap();
    for f in std::fs::read_dir(dir.path()).unwrap().flatten() {
        let text = std::fs::read(f.path()).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&text).contains("a-very-secret-token"));
    }
    drop(met);
}
