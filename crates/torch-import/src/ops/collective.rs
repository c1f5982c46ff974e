//! Functional collectives. torch's work on dimension 0; `wait_tensor` is the identity, wherever and however often it stands.

use shardweld_ir::{Collective, Group, Op, ReduceOp};

use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
    schema::Argument,
    ssa::Val,
};

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    if call.op == "wait_tensor" {
        return Ok(Some(Out::Alias(vec![cx.tensor(call, "tensor")?])));
    }
    let (op, coalesced) = match call.op.strip_suffix("_coalesced") {
        Some(op) => (op, true),
        None => (call.op, false),
    };
    let op = op.strip_suffix("_out").unwrap_or(op);
    if !matches!(
        op,
        "all_reduce" | "all_gather_into_tensor" | "reduce_scatter_tensor" | "all_to_all_single" | "broadcast"
    ) {
        return Ok(None);
    }
    let group = cx.group(call)?;
    let size = u64::from(group.size(&cx.mesh));
    if let Some(n) = call.opt_int("group_size")?.filter(|n| u64::try_from(*n) != Ok(size)) {
        return Err(format!("`group_size` is {n}, but group `{}` has {size} ranks", call.str("group_name")?));
    }
    let kind = match op {
        "all_reduce" => Collective::AllReduce { op: reduce_op(call)?, accum: None },
        "all_gather_into_tensor" => Collective::AllGather { dim: 0 },
        "reduce_scatter_tensor" => Collective::ReduceScatter { op: reduce_op(call)?, dim: 0, accum: None },
        "broadcast" => {
            let src = call.int("src")?;
            let root = u32::try_from(src).map_err(|_| format!("`src` is {src}"))?;
            Collective::Broadcast { root }
        }
        _ => Collective::AllToAll { split_dim: 0, concat_dim: 0 },
    };
    let operands: Vec<Val> =
        if coalesced { cx.values(call, "inputs")? } else { vec![cx.value(call, "input")?] };
    if op == "all_to_all_single" {
        for v in &operands {
            equal_splits(call, cx.dims(*v).first().copied(), size)?;
        }
    }
    let values = operands
        .iter()
        .map(|v| cx.add(Op::Collective { kind, group: group.clone() }, &[*v]))
        .collect::<Refused<Vec<_>>>()?;
    // The `_out` form writes its result to a tensor that is given.
    if call.op.ends_with("_out") {
        let (out, [value]) = (cx.tensor(call, "out")?, values.as_slice()) else {
            return Err("several results written to one tensor".into());
        };
        cx.write(out, *value)?;
        return Ok(Some(Out::Alias(vec![out])));
    }
    Ok(Some(Out::Fresh(values)))
}

fn reduce_op(call: &Call) -> Refused<ReduceOp> {
    Ok(match call.str("reduce_op")?.to_ascii_lowercase().as_str() {
        "sum" => ReduceOp::Sum,
        "avg" => ReduceOp::Avg,
        "product" | "prod" => ReduceOp::Prod,
        "min" => ReduceOp::Min,
        "max" => ReduceOp::Max,
        other => return Err(format!("reduction `{other}`; expected sum, avg, product, min or max")),
    })
}

/// Split sizes are in units of dimension 0. Uneven ones have no counterpart in TensorRT's ALL_TO_ALL.
fn equal_splits(call: &Call, size: Option<u64>, ranks: u64) -> Refused<()> {
    let size = size.ok_or("all_to_all of a scalar")?;
    for name in ["output_split_sizes", "input_split_sizes"] {
        let Some(splits) = call.opt_ints(name)? else { continue };
        if splits.is_empty() {
            continue;
        }
        if splits.windows(2).any(|w| w[0] != w[1]) {
            return Err(format!("uneven `{name}` {splits:?}: only equal splits are supported"));
        }
        let total = splits.iter().try_fold(0i64, |a, b| a.checked_add(*b));
        if splits.len() as u64 != ranks || total.map(u64::try_from) != Some(Ok(size)) {
            return Err(format!(
                "`{name}` {splits:?} do not cut dimension 0 of size {size} for {ranks} ranks"
            ));
        }
    }
    if size % ranks != 0 {
        return Err(format!("{ranks} ranks do not divide dimension 0 of size {size}"));
    }
    Ok(())
}

impl<'p> Cx<'p> {
    /// The group that the call names, through the side file.
    fn group(&mut self, call: &Call<'p>) -> Refused<Group> {
        let name = match call.get("group_name") {
            Some(Argument::Str(s)) => s.as_ref(),
            other => return Err(format!("`group_name` is {other:?}, expected text")),
        };
        if let Some(g) = self.resolved.get(name) {
            return Ok(g.clone());
        }
        let groups = self.groups.ok_or_else(|| {
            format!("group `{name}` is not defined: no side file says which ranks it means (--groups)")
        })?;
        let group = groups.resolve(name, self.exporters).map_err(|e| e.to_string())?;
        self.resolved.insert(name, group.clone());
        Ok(group)
    }
}
