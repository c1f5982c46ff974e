//! A rank that dies, does not come, or calls something else: what the others say, and how soon.

use std::thread;
use std::time::{Duration, Instant};

use shardweld_ir::ReduceOp;
use shardweld_nccl::{Call, CommError, Communicator, ElementType, Kind, Transport};

use crate::Outcome;
use crate::bench::Bench;

/// The rank that fails.
pub const VICTIM: u32 = 1;
/// Seconds that one collective may take here.
pub const LIMIT: u64 = 5;
/// Elements of the call during which the rank fails.
const COUNT: usize = 1 << 16;

/// One rank of a faulty job. Survivors print their error and succeed if it names the collective within the limit.
pub fn rank(mut b: Bench, job: &str) -> Outcome<()> {
    let send = vec![0; COUNT * 4];
    b.all_reduce(ReduceOp::Sum, ElementType::F32, &send)?;
    let mut kind = Kind::AllReduce(ReduceOp::Sum);
    match job {
        "killed" if b.rank == VICTIM => std::process::abort(),
        "absent" if b.rank == VICTIM => {
            thread::sleep(Duration::from_secs(2 * LIMIT));
            // Leaves as a process does that never made the call.
            return Ok(());
        }
        "swapped" if b.rank == VICTIM => kind = Kind::AllGather,
        _ => {}
    }
    let call = Call::new("layer7.attention", kind, ElementType::F32, &[COUNT as u64], b.n)?;
    let send = b.transport.upload(&send)?;
    let mut recv = b.transport.upload(&vec![0; call.recv_bytes()])?;
    let began = Instant::now();
    let result = b.comm()?.run(&call, &send, &mut recv);
    let took = began.elapsed();
    match result {
        // NCCL itself does not compare calls: ranks that happen to move matching data are not stopped.
        Ok(()) if job == "swapped" => {
            println!("* after {:.2} s: rank {} saw no error", took.as_secs_f64(), b.rank);
            Ok(())
        }
        Ok(()) => Err("the call succeeded without all ranks".into()),
        Err(e) => {
            println!("* after {:.2} s: {e}", took.as_secs_f64());
            let named =
                e.to_string().contains("layer7.attention") && matches!(e, CommError::Collective { .. });
            let soon = took < Duration::from_secs(LIMIT + 15);
            if named && soon { Ok(()) } else { Err("not named or not within the limit".into()) }
        }
    }
}
