//! Scaled dot-product attention: the whole op and the backends' forms of it.

use shardweld_ir::{Op, Scalar};

use super::view::product;
use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
    ssa::Val,
};

const FURTHER: &str = "a further result of an attention op, which is for training";

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let mask_name = match call.op {
        "scaled_dot_product_attention"
        | "_scaled_dot_product_flash_attention_for_cpu"
        | "_scaled_dot_product_attention_math"
        | "_scaled_dot_product_flash_attention"
        | "_scaled_dot_product_attention_math_for_mps" => "attn_mask",
        "_scaled_dot_product_efficient_attention"
        | "_scaled_dot_product_cudnn_attention"
        | "_scaled_dot_product_fused_attention_overrideable" => "attn_bias",
        _ => return Ok(None),
    };
    let (q, k, v) = (cx.value(call, "query")?, cx.value(call, "key")?, cx.value(call, "value")?);
    let mask = cx.opt_value(call, mask_name)?;
    if call.float_or("dropout_p", 0.0)? != 0.0 {
        return Err("attention with dropout; export the model in eval mode".into());
    }
    if call.bool_or("return_debug_mask", false)? {
        return Err("attention that returns its mask".into());
    }
    if call.has("dropout_mask") {
        return Err("attention with a dropout mask".into());
    }
    call.get("compute_log_sumexp");
    let causal = call.bool_or("is_causal", false)?;
    let rank = cx.rank(q);
    let size =
        cx.dims(q).last().copied().filter(|_| rank >= 2).ok_or("attention needs two dimensions or more")?;
    let scale = call.opt_float("scale")?.unwrap_or(1.0 / (size as f64).sqrt());
    let grouped = call.bool_or("enable_gqa", false)?;
    let (k, v) = (cx.matching(k, q, grouped)?, cx.matching(v, q, grouped)?);
    let mut operands = vec![q, k, v];
    if let Some(m) = mask {
        operands.push(cx.align(m, rank)?);
    }
    let y = cx.add(Op::Attention { scale: Scalar::Float(scale), causal, mask: mask.is_some() }, &operands)?;
    Ok(Some(if call.op == "scaled_dot_product_attention" {
        Out::Fresh(vec![y])
    } else {
        Out::FirstOnly(y, FURTHER)
    }))
}

impl Cx<'_> {
    /// Keys or values with the batch dimensions of the queries: broadcast, and each head repeated for its group of query heads.
    fn matching(&mut self, kv: Val, q: Val, grouped: bool) -> Refused<Val> {
        let (mut dims, q_dims) = (self.dims(kv), self.dims(q));
        let rank = dims.len();
        if rank != q_dims.len() {
            return Err(format!("queries have {} dimensions, keys or values {rank}", q_dims.len()));
        }
        let mut kv = kv;
        if grouped && rank >= 3 {
            let (heads, q_heads) = (dims[rank - 3], q_dims[rank - 3]);
            if heads == 0 || q_heads % heads != 0 {
                return Err(format!("{q_heads} query heads are no multiple of {heads} key heads"));
            }
            let times = q_heads / heads;
            if times > 1 {
                let batch = product(&dims[..rank - 3]);
                let rest = product(&dims[rank - 2..]);
                let flat = self.reshape(kv, &[batch, heads, 1, rest])?;
                let repeated = self.broadcast_to(flat, &[batch, heads, times, rest])?;
                dims[rank - 3] = q_heads;
                kv = self.reshape(repeated, &dims)?;
            }
        }
        let mut wanted = q_dims[..rank - 2].to_vec();
        wanted.extend(&dims[rank - 2..]);
        self.broadcast_to(kv, &wanted)
    }
}
