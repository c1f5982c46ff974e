//! A real process that is killed: the others notice by the heartbeat and name it; nothing is left behind.
//!
//! The child is this test binary again, told by the environment to play rank 1.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use shardweld_nccl::{Arrival, FileRendezvous, Join, Rendezvous, RendezvousError, TcpRendezvous};

const CHILD: &str = "SHARDWELD_TEST_CHILD_MEETS_AT";
const LIMIT: Duration = Duration::from_secs(30);

fn join(meet: &str, rank: u32) -> Result<Box<dyn Rendezvous>, RendezvousError> {
    let j = Join {
        limit: LIMIT,
        beat: Duration::from_millis(50),
        dead_after: Duration::from_secs(1),
        ..Join::new(rank, 2, "t")
    };
    match meet.split_once(':').unwrap() {
        ("tcp", address) => TcpRendezvous::join(address, j).map(|r| Box::new(r) as Box<dyn Rendezvous>),
        (_, folder) => FileRendezvous::join(folder.as_ref(), j).map(|r| Box::new(r) as Box<dyn Rendezvous>),
    }
}

/// Rank 1: arrives, says where it is, and waits to be killed. Does nothing when run as a test.
#[test]
fn child() {
    let Ok(meet) = std::env::var(CHILD) else { return };
    let mut met = join(&meet, 1).unwrap();
    met.watch().arrive(Arrival { comm: "world".into(), seq: 4, call: "all_gather `k`".into() });
    met.exchange("hello", &[]).unwrap();
    thread::sleep(LIMIT);
}

fn is_noticed(meet: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child"])
        .env(CHILD, meet)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut met = join(meet, 0).unwrap();
    met.exchange("hello", &[]).unwrap();
    // Where rank 1 is comes with its heartbeat.
    let here = Arrival { comm: "world".into(), seq: 4, call: "all_reduce `q`".into() };
    let began = Instant::now();
    let theirs = loop {
        match met.watch().mismatch(&here, &[0, 1]) {
            Some(found) => break found,
            None => assert!(began.elapsed() < LIMIT / 2, "its arrival is not known"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(theirs, (1, "all_gather `k`".to_owned()));
    child.kill().unwrap();
    child.wait().unwrap();
    let began = Instant::now();
    let e = met.exchange("after", &[]).unwrap_err();
    assert!(began.elapsed() < LIMIT / 3, "noticed by the heartbeat");
    assert!(matches!(&e, RendezvousError::Lost { lost, .. } if lost.rank == 1), "{e}");
}

#[test]
fn over_tcp() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    is_noticed(&format!("tcp:{free}"));
}

/// Over files a killed rank cannot clean up after itself; the next job is told so.
#[test]
fn over_files() {
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("job");
    let meet = format!("file:{}", job.display());
    is_noticed(&meet);
    let e = join(&meet, 1).err().unwrap();
    assert!(matches!(e, RendezvousError::Stale { .. }), "{e}");
}
