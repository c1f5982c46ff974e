//! Every collective and type against the expected bytes; sub-groups; an adopted communicator.

use shardweld_ir::{AxisId, Group, Mesh, ReduceOp};
use shardweld_nccl::local::perform;
use shardweld_nccl::{
    Call, Communicator, ElementType, Groups, Kind, NcclLibrary, NcclTransport, Search, Transport,
};

use crate::Outcome;
use crate::bench::{Bench, POISON};
use crate::bits;

/// Elements per rank and block: not a power of two, so that tails are met.
const BLOCK: usize = 1003;

/// Small whole numbers, for which every order of combination is exact.
fn whole(e: ElementType, op: Option<ReduceOp>, rank: u32, count: usize) -> Vec<u8> {
    let small = matches!(e, ElementType::F8E4M3 | ElementType::F8E5M2);
    let value = |i: usize| -> i64 {
        let x = (i * 7 + rank as usize * 3) % 8;
        match op {
            Some(ReduceOp::Prod) => [1, -1, 2, 1, 1, -1, 2, 1][x],
            _ if small => [0, 1, 0, -1, 1, 0, -1, 1][x],
            _ => x as i64 - 3,
        }
    };
    (0..count).flat_map(|i| encode(e, value(i))).collect()
}

fn encode(e: ElementType, v: i64) -> Vec<u8> {
    use ElementType::*;
    let power = |zero: u8, one: u8, two: u8| {
        let magnitude = [zero, one, two][v.unsigned_abs().min(2) as usize];
        vec![magnitude | if v < 0 { 0x80 } else { 0 }]
    };
    match e {
        F16 => half::f16::from_f64(v as f64).to_le_bytes().to_vec(),
        BF16 => half::bf16::from_f64(v as f64).to_le_bytes().to_vec(),
        F32 => (v as f32).to_le_bytes().to_vec(),
        F64 => (v as f64).to_le_bytes().to_vec(),
        F8E4M3 => power(0, 0x38, 0x40),
        F8E5M2 => power(0, 0x3c, 0x40),
        _ => v.to_le_bytes()[..e.size()].to_vec(),
    }
}

/// Every collective x type x combination x root.
pub fn all(b: &mut Bench) -> Outcome<()> {
    let n = b.n;
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
    let roots = [0, n - 1];
    let mut kinds: Vec<Kind> = vec![Kind::AllGather, Kind::AllToAll];
    kinds.extend(ops.map(Kind::AllReduce));
    kinds.extend(ops.map(Kind::ReduceScatter));
    kinds.extend(ops.map(|op| Kind::Reduce { op, root: n - 1 }));
    kinds.extend(roots.map(|root| Kind::Broadcast { root }));
    kinds.extend(roots.map(|root| Kind::Gather { root }));
    kinds.extend(roots.map(|root| Kind::Scatter { root }));
    b.heading(
        &format!("Collectives against expected bytes ({BLOCK} elements a block; AVG of floats only)"),
        &["type", "calls", "elements compared", "wrong", "refused by NCCL"],
    );
    for &e in ElementType::ALL {
        let (mut calls, mut compared, mut wrong, mut refused) = (0, 0, 0, Vec::new());
        for &kind in &kinds {
            if kind.reduce_op() == Some(ReduceOp::Avg) && (!e.is_float() || !n.is_power_of_two()) {
                continue;
            }
            let call = Call::new("evidence", kind, e, &[(BLOCK * n as usize) as u64], n)?;
            let operands: Vec<Vec<u8>> =
                (0..n).map(|r| whole(e, kind.reduce_op(), r, BLOCK * n as usize)).collect();
            let views: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
            let want = perform(&call, &views).swap_remove(b.rank as usize);
            match b.run(&call, &operands[b.rank as usize]) {
                Ok(got) => {
                    calls += 1;
                    let want = if kind.defined_at(b.rank) { want } else { vec![POISON; got.len()] };
                    compared += (got.len() / e.size()) as u64;
                    let bad = bits::differing(e, &got, &want);
                    if bad > 0 {
                        wrong += bad;
                        b.fail(&format!("{call}: {bad} elements differ"));
                    }
                }
                Err(error) => refused.push(format!("{call}: {error}")),
            }
        }
        for r in &refused {
            b.fail(r);
        }
        let (compared, wrong) = (b.total(compared)?, b.total(wrong)?);
        b.row(&[
            e.to_string(),
            calls.to_string(),
            compared.to_string(),
            wrong.to_string(),
            if refused.is_empty() { "none".into() } else { refused.join("; ") },
        ]);
    }
    Ok(())
}

/// The groups of a two-axis mesh, made by splitting.
pub fn groups(b: &mut Bench) -> Outcome<()> {
    if b.n < 4 || !b.n.is_multiple_of(2) {
        return Ok(());
    }
    let mesh = Mesh::new([("cp", b.n / 2), ("tp", 2)])?;
    let groups = [Group::axis(AxisId(0)), Group::axis(AxisId(1)), Group::Axes(vec![AxisId(1), AxisId(0)])];
    let mut comms = Groups::create(&mut b.transport, &mesh, &groups)?;
    b.heading(
        &format!("Sub-groups of mesh {mesh} (ncclCommSplit)"),
        &["group", "ranks of rank 0's group", "calls", "elements compared", "wrong"],
    );
    for (g, name) in groups.iter().zip(["cp", "tp", "tp major, cp minor"]) {
        let comm = comms.get_mut(g)?;
        let members = comm.members().to_vec();
        let n = members.len() as u32;
        let (mut compared, mut wrong, mut calls) = (0, 0, 0);
        for e in [ElementType::F32, ElementType::BF16] {
            for kind in [
                Kind::AllReduce(ReduceOp::Sum),
                Kind::AllGather,
                Kind::ReduceScatter(ReduceOp::Max),
                Kind::AllToAll,
                Kind::Broadcast { root: n - 1 },
                Kind::Gather { root: 0 },
            ] {
                let call = Call::new("evidence", kind, e, &[(BLOCK * n as usize) as u64], n)?;
                let operands: Vec<Vec<u8>> =
                    members.iter().map(|&r| whole(e, kind.reduce_op(), r, BLOCK * n as usize)).collect();
                let views: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
                let position = comm.position();
                let want = perform(&call, &views).swap_remove(position as usize);
                let send = b.transport.upload(&operands[position as usize])?;
                let mut recv = b.transport.upload(&vec![POISON; call.recv_bytes()])?;
                comm.run(&call, &send, &mut recv)?;
                let got = b.transport.download(&recv)?;
                let want = if kind.defined_at(position) { want } else { vec![POISON; got.len()] };
                calls += 1;
                compared += (got.len() / e.size()) as u64;
                wrong += bits::differing(e, &got, &want);
            }
        }
        if wrong > 0 {
            b.fail(&format!("group {name}: {wrong} elements differ"));
        }
        let (compared, wrong) = (b.total(compared)?, b.total(wrong)?);
        b.row(&[
            name.into(),
            format!("{members:?}"),
            calls.to_string(),
            compared.to_string(),
            wrong.to_string(),
        ]);
    }
    Ok(())
}

/// A communicator that somebody else made, with and without a rendezvous, works through children of it.
pub fn adopted(b: &mut Bench) -> Outcome<()> {
    let library = NcclLibrary::open(&Search {
        chosen: Some(b.transport.library().path().to_owned()),
        ..Search::default()
    })?;
    let device = b.transport.device().clone();
    // SAFETY: the communicator is live and of this library (the loader gives one instance per file), on this GPU; it
    // outlives `adopted`, which is dropped below, and nothing else uses it meanwhile.
    let mut adopted = unsafe { NcclTransport::adopt(library, device, b.transport.as_raw(), None, b.limit)? };
    let mut comm = adopted.split(&[(0..b.n).rev().collect()])?;
    let call = Call::new("evidence", Kind::AllGather, ElementType::I32, &[1], b.n)?;
    let send = adopted.upload(&(b.rank as i32).to_le_bytes())?;
    let mut recv = adopted.upload(&vec![POISON; call.recv_bytes()])?;
    comm.run(&call, &send, &mut recv)?;
    let got = bits::read(ElementType::I32, &adopted.download(&recv)?);
    let want: Vec<u64> = (0..u64::from(b.n)).rev().collect();
    if got != want {
        b.fail(&format!("adopted communicator: {got:?}, wanted {want:?}"));
    }
    drop(comm);
    drop(adopted);
    // The caller's communicator still works.
    let after = b.all_reduce(ReduceOp::Sum, ElementType::I32, &1i32.to_le_bytes())?;
    let good = after == (b.n as i32).to_le_bytes();
    if !good {
        b.fail("the caller's communicator no longer works");
    }
    b.print(format!(
        "\nAdopted `ncclComm_t`, split in reversed rank order: all-gather of ranks gives {got:?}; the caller's communicator works afterwards: {good}."
    ));
    Ok(())
}
