//! A rank that dies, and a rank that does not come: what the others say, and how soon.

use std::thread;
use std::time::{Duration, Instant};

use shardweld_ir::ReduceOp;
use shardweld_nccl::{Call, CommError, Communicator, ElementType, Kind, Transport};

use crate::Outcome;
use crate::bench::Bench;

/// The rank that fails.
pub const VICTIM: u32 = 1;
/// Seconds a collective may take here.
pub const LIMIT: u64 = 5;
/// Elements of the call during which the rank fails.
const COUNT: usize = 1 << 16;

/// One rank of a faulty job. Survivors print their error and succeed if it names the collective within the limit.
pub fn rank(mut b: Bench, job: &str) -> Outcome<()> {
    let send = vec![0; COUNT * 4];
    b.all_reduce(ReduceOp::Sum, ElementType::F32, &send)?;
    if b.rank == VICTIM {
        match job {
            "killed" => std::process::abort(),
            _ => thread::sleep(Duration::from_secs(3 * LIMIT)),
        }
        // Not killed: leaves as a process does that never made the call.
        return Ok(());
    }
    let call = Call::new("layer7.attention", Kind::AllReduce(ReduceOp::Sum), ElementType::F32, &[COUNT as u64], b.n)?;
    let send = b.transport.upload(&send)?;
    let mut recv = b.transport.upload(&vec![0; call.recv_bytes()])?;
    let began = Instant::now();
    let result = b.comm()?.run(&call, &send, &mut recv);
    let took = began.elapsed();
    match result {
        Ok(()) => Err("the call succeeded without all ranks".into()),
        Err(e) => {
            println!("* after {:.2} s: {e}", took.as_secs_f64());
            let named = e.to_string().contains("layer7.attention") && matches!(e, CommError::Collective { .. });
            let soon = took < Duration::from_secs(LIMIT + 15);
            if named && soon { Ok(()) } else { Err("not named or not within the limit".into()) }
        }
    }
}
