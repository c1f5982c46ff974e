//! The in-process transport: results of the eight collectives, groups, order mismatches, deadlocks, lost ranks.

use std::thread;
use std::time::{Duration, Instant};

use shardweld_ir::{AxisId, Collective, Graph, Group, Mesh, Op, ReduceOp, TensorType};
use shardweld_nccl::{
    Call, Cause, CommError, Communicator, ElementType, Groups, Kind, LocalTransport, Transport, groups_of,
    local_world,
};

const LIMIT: Duration = Duration::from_secs(20);

/// Runs `job` on each rank of an in-process world.
fn world<T: Send>(n: u32, limit: Duration, job: impl Fn(LocalTransport) -> T + Sync) -> Vec<T> {
    thread::scope(|s| {
        let threads: Vec<_> = local_world(n, limit)
            .into_iter()
            .map(|t| {
                let job = &job;
                s.spawn(move || job(t))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn everybody(n: u32) -> Vec<Vec<u32>> {
    vec![(0..n).collect()]
}

/// Makes an i32 call and returns its result.
fn run<C: Communicator<Buffer = Vec<u8>>>(
    c: &mut C,
    name: &str,
    kind: Kind,
    send: &[i32],
) -> Result<Vec<i32>, CommError> {
    let call = Call::new(name, kind, ElementType::I32, &[send.len() as u64], c.members().len() as u32)?;
    let send: Vec<u8> = send.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut recv = vec![0xab; call.recv_bytes()];
    c.run(&call, &send, &mut recv)?;
    Ok(recv.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect())
}

fn cause(e: CommError) -> Cause {
    match e {
        CommError::Collective { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

#[test]
fn the_eight_collectives_move_blocks_of_dim_0_in_group_order() {
    const UNTOUCHED: i32 = i32::from_le_bytes([0xab; 4]);
    let table: &[(Kind, [[i32; 4]; 2])] = &[
        (Kind::AllReduce(ReduceOp::Sum), [[11, 22, 0, 0], [11, 22, 0, 0]]),
        (Kind::AllReduce(ReduceOp::Max), [[10, 20, 0, 0], [10, 20, 0, 0]]),
        (Kind::AllReduce(ReduceOp::Min), [[1, 2, 0, 0], [1, 2, 0, 0]]),
        (Kind::AllReduce(ReduceOp::Prod), [[10, 40, 0, 0], [10, 40, 0, 0]]),
        (Kind::AllGather, [[1, 2, 10, 20], [1, 2, 10, 20]]),
        (Kind::ReduceScatter(ReduceOp::Sum), [[11, 0, 0, 0], [22, 0, 0, 0]]),
        (Kind::AllToAll, [[1, 10, 0, 0], [2, 20, 0, 0]]),
        (Kind::Broadcast { root: 1 }, [[10, 20, 0, 0], [10, 20, 0, 0]]),
        (Kind::Reduce { op: ReduceOp::Sum, root: 1 }, [[UNTOUCHED, UNTOUCHED, 0, 0], [11, 22, 0, 0]]),
        (Kind::Gather { root: 0 }, [[1, 2, 10, 20], [UNTOUCHED; 4]]),
        (Kind::Scatter { root: 1 }, [[10, 0, 0, 0], [20, 0, 0, 0]]),
    ];
    let results = world(2, LIMIT, |mut t| {
        let mut c = t.split(&everybody(2)).unwrap();
        let mine = [[1, 2], [10, 20]][t.rank() as usize];
        table.iter().map(|(k, _)| run(&mut c, "x", *k, &mine).unwrap()).collect::<Vec<_>>()
    });
    for (i, (kind, want)) in table.iter().enumerate() {
        for rank in 0..2 {
            let got = &results[rank][i];
            assert_eq!(got[..], want[rank][..got.len()], "{kind:?} on rank {rank}");
        }
    }
}

#[test]
fn groups_of_a_mesh_get_their_own_communicators() {
    let mesh = Mesh::new([("cp", 4), ("tp", 2)]).unwrap();
    let groups = [Group::axis(AxisId(0)), Group::axis(AxisId(1)), mesh.world_group(), Group::axis(AxisId(0))];
    let results = world(8, LIMIT, |mut t| {
        let mut comms = Groups::create(&mut t, &mesh, &groups).unwrap();
        let me = t.rank() as i32;
        groups.each_ref().map(|g| run(comms.get_mut(g).unwrap(), "x", Kind::AllGather, &[me]).unwrap())
    });
    for (rank, [cp, tp, all, again]) in results.into_iter().enumerate() {
        let r = rank as i32;
        assert_eq!(cp, [r % 2, 2 + r % 2, 4 + r % 2, 6 + r % 2]);
        assert_eq!(tp, [r / 2 * 2, r / 2 * 2 + 1]);
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(again, cp);
    }
}

/// Reversed order of an explicit group reverses the blocks.
#[test]
fn group_order_is_block_order() {
    let results = world(2, LIMIT, |mut t| {
        let mut c = t.split(&[vec![1, 0]]).unwrap();
        run(&mut c, "x", Kind::AllGather, &[t.rank() as i32]).unwrap()
    });
    assert_eq!(results, [[1, 0], [1, 0]]);
}

#[test]
fn different_programs_are_refused_before_any_communicator_is_made() {
    let mesh = Mesh::new([("cp", 2), ("tp", 2)]).unwrap();
    let (cp, tp) = (Group::axis(AxisId(0)), Group::axis(AxisId(1)));
    let errors = world(4, LIMIT, |mut t| {
        let order = if t.rank() == 2 { [tp.clone(), cp.clone()] } else { [cp.clone(), tp.clone()] };
        Groups::create(&mut t, &mesh, &order).unwrap_err()
    });
    for e in errors {
        assert!(matches!(e, CommError::Disagree { rank: 2, .. }), "{e}");
    }
}

#[test]
fn a_swapped_order_names_both_collectives() {
    let errors = world(2, LIMIT, |mut t| {
        let mut c = t.split(&everybody(2)).unwrap();
        let names = if t.rank() == 0 { ["q", "k"] } else { ["k", "q"] };
        let first = run(&mut c, names[0], Kind::AllGather, &[1]).unwrap_err();
        let later = cause(run(&mut c, names[1], Kind::AllGather, &[1]).unwrap_err());
        assert!(matches!(later, Cause::Aborted(_)), "{later}");
        first.to_string()
    });
    for e in errors {
        assert!(e.contains("all_gather `q`") && e.contains("all_gather `k`"), "{e}");
    }
}

#[test]
fn a_different_shape_is_a_mismatch_and_an_equal_one_is_not() {
    for (len, fails) in [(2, true), (1, false)] {
        let results = world(2, LIMIT, |mut t| {
            let mut c = t.split(&everybody(2)).unwrap();
            let mine = vec![7; if t.rank() == 0 { 1 } else { len }];
            run(&mut c, "x", Kind::AllReduce(ReduceOp::Sum), &mine)
        });
        for r in results {
            assert_eq!(r.is_err(), fails);
        }
    }
}

#[test]
fn waiting_in_a_circle_is_a_deadlock_found_at_once() {
    // Rank 0 waits in group A for 1, rank 1 in B for 2, rank 2 in C for 0.
    let began = Instant::now();
    let errors = world(3, LIMIT, |mut t| {
        let mut a = t.split(&[vec![0, 1], vec![2]]).unwrap();
        let mut b = t.split(&[vec![1, 2], vec![0]]).unwrap();
        let mut c = t.split(&[vec![2, 0], vec![1]]).unwrap();
        let own = [(&mut a, "in A"), (&mut b, "in B"), (&mut c, "in C")];
        let (comm, name) = own.into_iter().nth(t.rank() as usize).unwrap();
        run(comm, name, Kind::AllGather, &[1]).unwrap_err()
    });
    assert!(began.elapsed() < LIMIT / 2);
    for e in errors {
        let text = e.to_string();
        assert!(matches!(cause(e), Cause::Deadlock { .. }), "{text}");
        for name in ["`in A`", "`in B`", "`in C`"] {
            assert!(text.contains(name), "{text}");
        }
    }
}

#[test]
fn a_rank_that_ends_early_fails_the_others_at_once_by_name() {
    let began = Instant::now();
    let results = world(3, LIMIT, |mut t| {
        let mut c = t.split(&everybody(3)).unwrap();
        run(&mut c, "one", Kind::AllGather, &[1]).unwrap();
        (t.rank() != 1).then(|| run(&mut c, "two", Kind::AllGather, &[1]).unwrap_err())
    });
    assert!(began.elapsed() < LIMIT / 2);
    for e in results.into_iter().flatten() {
        assert!(e.to_string().contains("`two`"), "{e}");
        assert!(matches!(cause(e), Cause::Lost(l) if l.rank == 1));
    }
}

#[test]
fn a_rank_that_is_late_is_a_timeout_naming_it() {
    let limit = Duration::from_millis(300);
    let results = world(2, limit, |mut t| {
        let mut c = t.split(&everybody(2)).unwrap();
        if t.rank() == 1 {
            thread::sleep(limit * 3);
        }
        run(&mut c, "x", Kind::AllGather, &[1]).unwrap_err()
    });
    for e in results {
        assert!(
            matches!(cause(e), Cause::Timeout { missing, .. } if missing.len() == 1 && missing[0].rank == 1)
        );
    }
}

#[test]
fn an_abort_reaches_the_others() {
    let results = world(2, LIMIT, |mut t| {
        let mut c = t.split(&everybody(2)).unwrap();
        if t.rank() == 1 {
            c.abort("the user said so");
        }
        cause(run(&mut c, "x", Kind::AllGather, &[1]).unwrap_err())
    });
    assert!(matches!(&results[0], Cause::Lost(l) if l.rank == 1 && l.how.contains("the user said so")));
    assert!(matches!(&results[1], Cause::Aborted(why) if why == "the user said so"));
}

#[test]
fn buffers_and_group_sizes_are_checked() {
    world(1, LIMIT, |mut t| {
        let mut c = t.split(&everybody(1)).unwrap();
        let call = |n| Call::new("x", Kind::AllGather, ElementType::I32, &[1], n).unwrap();
        let e = cause(c.run(&call(1), &vec![0; 3], &mut vec![0; 4]).unwrap_err());
        assert_eq!(e, Cause::Buffer { which: "send", found: 3, expected: 4 });
        let mut c = t.split(&everybody(1)).unwrap();
        let e = cause(c.run(&call(2), &vec![0; 4], &mut vec![0; 8]).unwrap_err());
        assert_eq!(e, Cause::GroupSize { found: 1, expected: 2 });
    });
}

/// Two collectives of a program over different groups, each rank walking the graph.
#[test]
fn the_collectives_of_a_graph_run_over_its_groups() {
    let mesh = Mesh::new([("cp", 2), ("tp", 2)]).unwrap();
    let (cp, tp) = (Group::axis(AxisId(0)), Group::axis(AxisId(1)));
    let mut g = Graph::new("two", mesh.clone());
    let x = g.add_input("x", TensorType::new(shardweld_ir::DType::I32, &[1])).unwrap();
    let collective = |kind, group: &Group| Op::Collective { kind, group: group.clone() };
    let gather = collective(Collective::AllGather { dim: 0 }, &tp);
    let y = g.add("y", gather, &[x.into()]).unwrap();
    let reduce = collective(Collective::AllReduce { op: ReduceOp::Sum, accum: None }, &cp);
    let z = g.add("z", reduce, &[y.into()]).unwrap();
    g.add_output("z", z).unwrap();
    let groups = groups_of(&g).unwrap();
    assert_eq!(groups, [tp, cp]);
    let results = world(4, LIMIT, |mut t| {
        let mut comms = Groups::create(&mut t, g.mesh(), &groups).unwrap();
        let mut value = (10 + t.rank() as i32).to_le_bytes().to_vec();
        for id in g.order().unwrap() {
            let node = g.node(id);
            let Some((c, group)) = node.op.collective() else { continue };
            let ranks = group.size(g.mesh());
            let ty = g.ty(node.operands[0]);
            let call = Call::from_ir(&node.name, c, ty, ranks).unwrap();
            let mut recv = vec![0; call.recv_bytes()];
            comms.get_mut(group).unwrap().run(&call, &value, &mut recv).unwrap();
            value = recv;
        }
        value.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    });
    assert_eq!(results, vec![vec![10 + 12, 11 + 13]; 4]);
}
