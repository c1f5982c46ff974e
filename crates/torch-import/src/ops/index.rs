//! Embeddings and other picks by index.

use shardweld_ir::{Binary, DType, GatherMode, Op, Scalar};

use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
    schema::Argument,
};

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let value = match call.op {
        "embedding" => {
            let (w, i) = (cx.value(call, "weight")?, cx.value(call, "indices")?);
            for training in ["padding_idx", "scale_grad_by_freq", "sparse"] {
                call.get(training);
            }
            cx.add(Op::Gather { mode: GatherMode::Take, dim: 0 }, &[w, i])?
        }
        "index_select" => {
            let (x, i) = (cx.value(call, "self")?, cx.value(call, "index")?);
            let dim = cx.dim(x, call.int("dim")?)?;
            let i = if cx.rank(i) == 0 { cx.reshape(i, &[1])? } else { i };
            cx.add(Op::Gather { mode: GatherMode::Take, dim }, &[x, i])?
        }
        "gather" => {
            let (x, i) = (cx.value(call, "self")?, cx.value(call, "index")?);
            let dim = cx.dim(x, call.int("dim")?)?;
            call.get("sparse_grad");
            cx.add(Op::Gather { mode: GatherMode::Elements, dim }, &[x, i])?
        }
        "index" | "_unsafe_index" => {
            let x = cx.value(call, "self")?;
            let picks: Vec<Option<&str>> = match call.get("indices") {
                Some(Argument::OptionalTensors(v)) => v.iter().map(Option::as_deref).collect(),
                Some(Argument::Tensors(v)) => v.iter().map(|n| Some(n.as_ref())).collect(),
                other => return Err(format!("`indices` is {other:?}, expected tensors")),
            };
            let mut given = picks.iter().enumerate().filter_map(|(d, n)| n.map(|n| (d, n)));
            let (Some((dim, name)), None) = (given.next(), given.next()) else {
                return Err("indexing with several tensors at once is not supported".into());
            };
            let index = cx.bound(name)?;
            let index = cx.read(index)?;
            if matches!(cx.dtype(index), DType::Bool | DType::U8) {
                return Err("indexing with a mask gives a shape that depends on data".into());
            }
            let dim = cx.dim(x, dim as i64)?;
            let n = super::view::size_at(&cx.dims(x), dim)?;
            // Here, and only here, torch counts negative indices from the end.
            let negative = cx.scalar_op(Binary::Lt, index, Scalar::Int(0))?;
            let wrapped = cx.scalar_op(Binary::Add, index, Scalar::Int(n as i64))?;
            let index = cx.select(negative, wrapped, index)?;
            cx.add(Op::Gather { mode: GatherMode::Take, dim }, &[x, index])?
        }
        "one_hot" => {
            let x = cx.value(call, "self")?;
            let classes = call.int_or("num_classes", -1)?;
            let classes =
                u64::try_from(classes).map_err(|_| "one_hot needs the number of classes".to_owned())?;
            let mut dims = cx.dims(x);
            dims.push(1);
            let x = cx.reshape(x, &dims)?;
            let dtype = cx.dtype(x);
            let rank = cx.rank(x);
            let numbers = cx.iota(dtype, rank, rank as u32 - 1, classes)?;
            let hot = cx.binary(Binary::Eq, x, numbers)?;
            cx.cast(hot, DType::I64)?
        }
        _ => return Ok(None),
    };
    Ok(Some(Out::Fresh(vec![value])))
}
