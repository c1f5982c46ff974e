//! Starts one process per rank, bounds their time, collects what they print.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::faults::{LIMIT, VICTIM};
use crate::{Outcome, Run};

pub fn run(run: &Run) -> Outcome<()> {
    println!("# NCCL evidence\n\nCommand: `{}`", std::env::args().collect::<Vec<_>>().join(" "));
    for name in ["NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_PROTO"] {
        if let Ok(value) = std::env::var(name) {
            println!("\n`{name}={value}`");
        }
    }
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
    let driver = driver.split_whitespace().find(number).unwrap_or("unknown");
    println!("\nshardweld-nccl {}; {} GPU(s). Driver: {driver}", env!("CARGO_PKG_VERSION"), run.gpus);
    let mut bad: Vec<String> = Vec::new();
    for (i, &n) in run.ranks.iter().enumerate() {
        // Both kinds of rendezvous are used.
        let began = Instant::now();
        let statuses = job(run, n, "report", run.limit, i % 2 == 1)?;
        println!("\n({n} ranks took {:.0} s)", began.elapsed().as_secs_f64());
        bad.extend(
            statuses.iter().filter(|(_, s)| !s.success()).map(|(r, s)| format!("{n} ranks, rank {r}: {s}")),
        );
    }
    if "faults".contains(&run.only) {
        let n = run.ranks.iter().copied().max().unwrap_or(2).min(4);
        for (kind, tcp, title) in [
            ("killed", true, format!("Rank {VICTIM} of {n} dies before the call (TCP rendezvous)")),
            ("killed", false, format!("Rank {VICTIM} of {n} dies before the call (file rendezvous)")),
            ("absent", true, format!("Rank {VICTIM} of {n} never makes the call (limit {LIMIT} s)")),
            (
                "swapped",
                true,
                format!("Rank {VICTIM} of {n} calls all_gather where the others call all_reduce"),
            ),
        ] {
            println!("\n## {title}\n");
            let began = Instant::now();
            let statuses = job(run, n, kind, LIMIT, tcp)?;
            println!("\nAll processes gone after {:.1} s.", began.elapsed().as_secs_f64());
            let survivors = statuses.iter().filter(|(r, _)| *r != VICTIM || kind == "swapped");
            bad.extend(
                survivors.filter(|(_, s)| !s.success()).map(|(r, s)| format!("{kind}, rank {r}: {s}")),
            );
        }
        let left = std::fs::read_dir("/dev/shm").map_or(0, |d| {
            d.flatten().filter(|f| f.file_name().to_string_lossy().starts_with("nccl-")).count()
        });
        println!("\nNCCL's files left in /dev/shm: {left}.");
    }
    println!("\nUnexpected: {}", if bad.is_empty() { "nothing".into() } else { bad.join("; ") });
    if bad.is_empty() { Ok(()) } else { Err(bad.join("; ").into()) }
}

/// Runs one job to its end; kills what is left at the deadline.
fn job(run: &Run, n: u32, job: &str, limit: u64, tcp: bool) -> Outcome<Vec<(u32, ExitStatus)>> {
    let kind = if tcp { "tcp" } else { "file" };
    let token = format!("evidence-{}-{n}-{job}-{kind}", std::process::id());
    let meet = if tcp {
        // Free now; if somebody takes it meanwhile, the ranks say so.
        format!("tcp:{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?)
    } else {
        format!("file:{}", std::env::temp_dir().join(&token).display())
    };
    let mut children: Vec<(u32, Child)> = Vec::new();
    for rank in 0..n {
        let mut c = Command::new(std::env::current_exe()?);
        c.arg("rank").args(["--rank", &rank.to_string(), "--world", &n.to_string()]);
        c.args(["--meet", &meet, "--token", &token, "--job", job]);
        c.args(["--gpus", &run.gpus.to_string(), "--limit", &limit.to_string(), "--only", &run.only]);
        if let Some(nccl) = &run.nccl {
            c.arg("--nccl").arg(nccl);
        }
        children.push((rank, c.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?));
    }
    let readers: Vec<_> = children
        .iter_mut()
        .map(|(_, c)| {
            let out = c.stdout.take();
            thread::spawn(move || {
                let mut text = String::new();
                // What a dying process leaves unread is not evidence.
                let _ = out.map(|mut o| o.read_to_string(&mut text));
                text
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(run.deadline);
    let mut statuses = Vec::new();
    while !children.is_empty() {
        let mut waiting = Vec::new();
        for (rank, mut child) in children {
            match child.try_wait()? {
                Some(status) => statuses.push((rank, status)),
                None => {
                    if Instant::now() >= deadline {
                        eprintln!("rank {rank} is still running at the deadline and is killed");
                        child.kill()?;
                    }
                    waiting.push((rank, child));
                }
            }
        }
        children = waiting;
        thread::sleep(Duration::from_millis(20));
    }
    for r in readers {
        print!("{}", r.join().map_err(|_| "a reader of a rank's output ended early")?);
    }
    Ok(statuses)
}
