//! Time per collective. Ranks that share a GPU share its memory bus and take turns: ratios mean more than times.

use std::time::Instant;

use shardweld_ir::ReduceOp;
use shardweld_nccl::{Call, Communicator, ElementType, Kind, Transport};

use crate::Outcome;
use crate::bench::Bench;

/// Elements of the operand (f32): about a million, divisible by every number of ranks up to 8.
const COUNT: u64 = 16 * 65_520;
const REPEATS: usize = 5;

pub fn table(b: &mut Bench) -> Outcome<()> {
    b.heading(
        &format!("Time of one call (median of {REPEATS} after one to warm up, host clock, f32)"),
        &["collective", "operand elements", "wire bytes a rank", "ms"],
    );
    let n = u64::from(b.n);
    // Wire bytes: (n-1)/n of the full buffer, twice for all-reduce; a rooted one is counted by what the root moves.
    let rows = [
        ("all_reduce", Kind::AllReduce(ReduceOp::Sum), COUNT, 2 * (n - 1) * COUNT * 4 / n),
        ("all_gather", Kind::AllGather, COUNT, (n - 1) * COUNT * 4),
        (
            "all_gather as padded all_reduce",
            Kind::AllReduce(ReduceOp::Sum),
            COUNT * n,
            2 * (n - 1) * COUNT * 4,
        ),
        ("reduce_scatter", Kind::ReduceScatter(ReduceOp::Sum), COUNT, (n - 1) * COUNT * 4 / n),
        ("all_to_all", Kind::AllToAll, COUNT, (n - 1) * COUNT * 4 / n),
        ("broadcast", Kind::Broadcast { root: 0 }, COUNT, COUNT * 4),
        ("reduce", Kind::Reduce { op: ReduceOp::Sum, root: 0 }, COUNT, COUNT * 4),
        ("gather", Kind::Gather { root: 0 }, COUNT, (n - 1) * COUNT * 4),
        ("scatter", Kind::Scatter { root: 0 }, COUNT, (n - 1) * COUNT * 4 / n),
    ];
    for (name, kind, count, wire) in rows {
        let call = Call::new(name, kind, ElementType::F32, &[count], b.n)?;
        let send = b.transport.upload(&1.5f32.to_le_bytes().repeat(count as usize))?;
        let mut recv = b.transport.upload(&vec![0; call.recv_bytes()])?;
        let mut times = Vec::new();
        for _ in 0..=REPEATS {
            let comm = b.comm()?;
            let began = Instant::now();
            comm.run(&call, &send, &mut recv)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        times.remove(0);
        times.sort_by(f64::total_cmp);
        b.row(&[name.into(), count.to_string(), wire.to_string(), format!("{:.2}", times[REPEATS / 2])]);
    }
    Ok(())
}
