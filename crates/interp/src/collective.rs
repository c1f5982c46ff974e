//! The eight collectives on the operands of one group, listed in group order. What a rank does not get is `None`.
//!
//! Combining without an accumulation type rounds to the element type after every step, in group order, as a ring that sends
//! partial results does; with one, operands are widened, combined in group order, and rounded once. AVG divides the sum
//! by the number of ranks in the type it was summed in. MIN and MAX are NaN where any operand is.

use shardweld_ir::{Binary, Collective, DType, ReduceOp, Scalar};

use crate::cast::cast;
use crate::error::{KernelError, Result};
use crate::layout::{concat, split};
use crate::pointwise::{binary, binary_scalar};
use crate::tensor::Tensor;

/// Results of a collective, one per rank of the group.
pub fn run(kind: Collective, operands: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let n = operands.len();
    let op = kind.name();
    let at_root = |root: u32, t: Tensor| -> Vec<Option<Tensor>> {
        (0..n).map(|i| (i == root as usize).then(|| t.clone())).collect()
    };
    let of_root = |root: u32| {
        operands
            .get(root as usize)
            .ok_or_else(|| KernelError::shape(op, format!("root {root} is no position in a group of {n}")))
    };
    let all = |t: Tensor| vec![Some(t); n];
    let each = |t: Vec<Tensor>| t.into_iter().map(Some).collect();
    let parts: Vec<&Tensor> = operands.iter().collect();
    Ok(match kind {
        Collective::AllReduce { op, accum } => all(combine(op, accum, operands)?),
        Collective::AllGather { dim } => all(concat(&parts, dim)?),
        Collective::ReduceScatter { op, dim, accum } => each(blocks(&combine(op, accum, operands)?, dim, n)?),
        Collective::AllToAll { split_dim, concat_dim } => {
            let sent = operands.iter().map(|t| blocks(t, split_dim, n)).collect::<Result<Vec<_>>>()?;
            let received =
                (0..n).map(|i| concat(&sent.iter().map(|s| &s[i]).collect::<Vec<_>>(), concat_dim));
            each(received.collect::<Result<_>>()?)
        }
        Collective::Broadcast { root } => all(of_root(root)?.clone()),
        Collective::Reduce { op, root, accum } => {
            of_root(root)?;
            at_root(root, combine(op, accum, operands)?)
        }
        Collective::Gather { dim, root } => {
            of_root(root)?;
            at_root(root, concat(&parts, dim)?)
        }
        Collective::Scatter { dim, root } => each(blocks(of_root(root)?, dim, n)?),
    })
}

/// Equal blocks along a dimension.
pub(crate) fn blocks(x: &Tensor, dim: u32, n: usize) -> Result<Vec<Tensor>> {
    let d = crate::layout::dim_of("split", dim, x.shape())?;
    let size = x.shape()[d];
    if n == 0 || !size.is_multiple_of(n) {
        return Err(KernelError::shape(
            "split",
            format!("{n} ranks do not divide dimension {dim} of {:?}", x.shape()),
        ));
    }
    split(x, dim, &vec![size / n; n])
}

fn combine(op: ReduceOp, accum: Option<DType>, operands: &[Tensor]) -> Result<Tensor> {
    let Some((first, rest)) = operands.split_first() else {
        return Err(KernelError::shape(op.name(), "a group without ranks"));
    };
    let wide = accum.unwrap_or(first.dtype());
    let step = match op {
        ReduceOp::Sum | ReduceOp::Avg => Binary::Add,
        ReduceOp::Prod => Binary::Mul,
        ReduceOp::Max => Binary::Max,
        ReduceOp::Min => Binary::Min,
    };
    let mut total = cast(first, wide)?;
    for t in rest {
        total = binary(step, &total, &cast(t, wide)?)?;
    }
    if op == ReduceOp::Avg {
        total = binary_scalar(Binary::Div, &total, Scalar::Float(operands.len() as f64), false)?;
    }
    cast(&total, first.dtype())
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn two(a: &[f32], b: &[f32]) -> Vec<Tensor> {
        [a, b].iter().map(|v| Tensor::new(&[v.len()], v).unwrap()).collect()
    }

    #[test]
    fn accumulation_type_decides_rounding() {
        let t = |x: f32| Tensor::new(&[1], &[bf16::from_f32(x)]).unwrap();
        let operands = [t(256.0), t(1.0), t(1.0)];
        let of = |accum| {
            let kind = Collective::AllReduce { op: ReduceOp::Sum, accum };
            run(kind, &operands).unwrap()[0].as_ref().unwrap().slice::<bf16>()[0].to_f32()
        };
        assert_eq!(of(None), 256.0);
        assert_eq!(of(Some(DType::F32)), 258.0);
    }

    #[test]
    fn all_to_all_exchanges_blocks() {
        let kind = Collective::AllToAll { split_dim: 0, concat_dim: 0 };
        let out = run(kind, &two(&[0.0, 1.0, 2.0, 3.0], &[4.0, 5.0, 6.0, 7.0])).unwrap();
        assert_eq!(out[0].as_ref().unwrap().slice::<f32>(), [0.0, 1.0, 4.0, 5.0]);
        assert_eq!(out[1].as_ref().unwrap().slice::<f32>(), [2.0, 3.0, 6.0, 7.0]);
        assert!(run(kind, &two(&[0.0], &[1.0])).is_err());
    }

    #[test]
    fn rooted_results_exist_at_the_root_only() {
        let kind = Collective::Reduce { op: ReduceOp::Avg, root: 1, accum: None };
        let out = run(kind, &two(&[1.0], &[2.0])).unwrap();
        assert!(out[0].is_none());
        assert_eq!(out[1].as_ref().unwrap().slice::<f32>(), [1.5]);
        assert!(run(Collective::Broadcast { root: 2 }, &two(&[1.0], &[2.0])).is_err());
    }
}
