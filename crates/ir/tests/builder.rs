//! The builder: what it adds by itself, and what it refuses.

use shardweld_ir::DType::{BF16, F32};
use shardweld_ir::{BuildError, Builder, GraphError, Mesh, NormKind, Op, ReduceKind, ReduceOp};

fn builder() -> Builder {
    Builder::new("b", Mesh::new([("cp", 2), ("tp", 2)]).unwrap())
}

#[test]
fn ranks_of_elementwise_operands_are_aligned() -> Result<(), BuildError> {
    let mut b = builder();
    let x = b.input("x", F32, &[2, 3, 4])?;
    let v = b.input("v", F32, &[4])?;
    let s = b.input("s", F32, &[])?;
    let sum = b.named("sum").add(v, x)?;
    assert_eq!(b.ty(sum)?.to_string(), "f32[2,3,4]");
    let positive = b.gt(x, 0.0)?;
    let picked = b.select(positive, sum, s)?;
    assert_eq!(b.ty(picked)?.to_string(), "f32[2,3,4]");
    b.output("y", picked)?;
    let g = b.finish()?;
    assert!(g.find("sum").is_some_and(|id| matches!(g.node(id).op, Op::Binary(_))), "the name is the op's");
    let reshapes = g.nodes().filter(|(_, n)| matches!(n.op, Op::Reshape { .. })).count();
    assert_eq!(reshapes, 2);
    Ok(())
}

#[test]
fn a_sharded_block_is_a_few_lines() -> Result<(), BuildError> {
    let mut b = builder();
    let x = b.input("x", BF16, &[1, 6, 8])?;
    let scale = b.weight("norm.weight", BF16, &[8])?;
    let n = b.normalize(x, NormKind::Rms, 1, 1e-6, Some(scale), None)?;
    let w = b.weight("qkv.weight", BF16, &[12, 8])?;
    let qkv = b.linear(n, w, None)?;
    let parts = b.split(qkv, 2, &[4, 4, 4])?;
    let mut heads = Vec::new();
    for p in parts {
        let h = b.reshape(p, &[1, 6, 2, 2])?;
        let h = b.all_to_all(h, 2, 1, &["cp"])?;
        heads.push(b.transpose(h, &[0, 2, 1, 3])?);
    }
    let [q, k, v] = [heads[0], heads[1], heads[2]];
    let a = b.attention([q, k, v], None, 0.5, false)?;
    assert_eq!(b.ty(a)?.to_string(), "bf16[1,1,12,2]");
    let a = b.all_reduce(a, ReduceOp::Sum, &["tp"])?;
    let m = b.reduce(a, ReduceKind::Mean, &[3, 2], false)?;
    let m = b.cast(m, F32)?;
    assert_eq!(b.cast(m, F32)?, m, "a cast to the same type is no node");
    let wide = b.broadcast(m, &[5, 1, 1])?;
    b.output("y", wide)?;
    let g = b.finish()?;
    assert_eq!(g.ty(g.outputs()[0].value).to_string(), "f32[5,1,1]");
    Ok(())
}

#[test]
fn refusals_name_what_is_wrong() -> Result<(), BuildError> {
    let mut b = builder();
    let x = b.input("x", F32, &[3, 4])?;
    let message = |e: BuildError| e.to_string();
    assert_eq!(message(b.all_gather(x, 0, &["dp"]).unwrap_err()), "the mesh [cp=2, tp=2] has no axis `dp`");
    assert!(message(b.matmul(x, x).unwrap_err()).contains("node `matmul` (matmul): contracted sizes"));
    assert!(message(b.broadcast(x, &[4]).unwrap_err()).contains("more dimensions"));
    assert!(message(b.constant(F32, &[2], &[0; 7]).unwrap_err()).contains("7 bytes"));
    assert!(message(b.own_slice(x, 0, &["cp"]).unwrap_err()).contains("does not divide"));
    assert!(matches!(
        b.input("x", F32, &[1]),
        Err(BuildError::Graph(GraphError::DuplicateName { kind: "input", .. }))
    ));
    // A value of another builder.
    let mut other = builder();
    for _ in 0..3 {
        other.full(F32, &[1], 1.0)?;
    }
    let foreign = other.full(F32, &[1], 1.0)?;
    assert!(matches!(b.exp(foreign), Err(BuildError::Graph(GraphError::Dangling { .. }))));
    assert!(b.ty(foreign).is_err());
    // What only the verifier sees.
    let partial = b.collective(
        shardweld_ir::Collective::Reduce { op: ReduceOp::Sum, root: 0, accum: None },
        x,
        &["tp"],
    )?;
    b.output("y", partial)?;
    assert!(matches!(b.finish(), Err(BuildError::Verify(_))));
    Ok(())
}

#[test]
fn dot_draws_nodes_edges_and_collectives() -> Result<(), BuildError> {
    let mut b = builder();
    let x = b.input("x \"quoted\"", F32, &[4])?;
    let e = b.exp(x)?;
    let g = b.all_gather(e, 0, &["cp"])?;
    let n = b.neg(g)?;
    b.output("y", n)?;
    let graph = b.finish()?;
    let full = graph.to_dot(Default::default());
    assert_eq!(full.matches(" -> ").count(), 4, "{full}");
    assert!(full.contains("x \\\"quoted\\\"\\ninput"), "{full}");
    let few = graph.to_dot(shardweld_ir::dot::DotOptions { collectives_only: true });
    assert_eq!(few.matches(" -> ").count(), 2, "{few}");
    assert!(!few.contains("exp") && few.contains("all_gather"), "{few}");
    Ok(())
}
