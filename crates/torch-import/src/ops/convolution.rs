//! Convolutions over one, two and three spatial dimensions.

use shardweld_ir::Op;

use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
};

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    if !matches!(call.op, "conv1d" | "conv2d" | "conv3d" | "convolution" | "_convolution") {
        return Ok(None);
    }
    let (x, w) = (cx.value(call, "input")?, cx.value(call, "weight")?);
    let bias = cx.opt_value(call, "bias")?;
    if call.bool_or("transposed", false)? {
        return Err("transposed convolution is not supported".into());
    }
    for ignored in ["output_padding", "benchmark", "deterministic", "cudnn_enabled", "allow_tf32"] {
        call.get(ignored);
    }
    let spatial =
        cx.rank(w).checked_sub(2).filter(|s| *s > 0).ok_or("the weight has no spatial dimension")?;
    let per_dim = |name: &str, default: i64| -> Refused<Vec<u64>> {
        let v = call.opt_ints(name)?.unwrap_or_else(|| vec![default]);
        let v = if v.len() == 1 { vec![v[0]; spatial] } else { v };
        if v.len() != spatial {
            return Err(format!("`{name}` is {v:?} for {spatial} spatial dimensions"));
        }
        v.into_iter().map(|i| u64::try_from(i).map_err(|_| format!("`{name}` is {i}"))).collect()
    };
    let (stride, dilation) = (per_dim("stride", 1)?, per_dim("dilation", 1)?);
    let padding = if call.overload == "padding" {
        let taps = cx.dims(w)[2..].to_vec();
        match call.opt_str("padding")?.unwrap_or("valid") {
            "valid" => vec![(0, 0); spatial],
            // torch puts the odd one after.
            "same" => taps
                .iter()
                .zip(&dilation)
                .map(|(k, d)| {
                    let total = k.saturating_sub(1).saturating_mul(*d);
                    (total / 2, total - total / 2)
                })
                .collect(),
            other => return Err(format!("padding `{other}`; expected valid or same")),
        }
    } else {
        per_dim("padding", 0)?.into_iter().map(|p| (p, p)).collect()
    };
    let groups = call.int_or("groups", 1)?;
    let groups =
        u64::try_from(groups).ok().filter(|g| *g > 0).ok_or_else(|| format!("{groups} channel groups"))?;
    let unbatched = cx.rank(x) == spatial + 1;
    let x = if unbatched { cx.align(x, spatial + 2)? } else { x };
    let operands: Vec<_> = [x, w].into_iter().chain(bias).collect();
    let y = cx.add(Op::Conv { stride, padding, dilation, groups, bias: bias.is_some() }, &operands)?;
    let y = if unbatched {
        let dims = cx.dims(y);
        cx.reshape(y, &dims[1..])?
    } else {
        y
    };
    Ok(Some(Out::Fresh(vec![y])))
}
