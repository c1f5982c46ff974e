//! Images in another resolution: nearest-neighbour enlargement by whole factors, and channels to pixels and back.

use shardweld_ir::Op;

use super::view::product;
use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
};

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    if let Some((spatial, exact)) = nearest(call.op) {
        let x = cx.value(call, if call.overload == "vec" { "input" } else { "self" })?;
        if cx.rank(x) != spatial + 2 {
            return Err(format!("{} dimensions for {spatial} spatial ones", cx.rank(x)));
        }
        let sizes = call.opt_ints("output_size")?;
        let scales: Vec<Option<f64>> = match call.overload {
            "vec" => match call.opt_floats("scale_factors")? {
                Some(v) => v.into_iter().map(Some).collect(),
                None => vec![None; spatial],
            },
            _ => {
                let named: &[&str] = match spatial {
                    1 => &["scales"],
                    2 => &["scales_h", "scales_w"],
                    _ => &["scales_d", "scales_h", "scales_w"],
                };
                named.iter().map(|n| call.opt_float(n)).collect::<Refused<_>>()?
            }
        };
        if scales.len() != spatial || sizes.as_ref().is_some_and(|s| s.len() != spatial) {
            return Err(format!("sizes {sizes:?} and scales {scales:?} for {spatial} spatial dimensions"));
        }
        let mut y = x;
        for (i, scale) in scales.into_iter().enumerate() {
            let dim = i + 2;
            let from = cx.dims(x)[dim];
            let to = match (&sizes, scale) {
                (Some(sizes), _) => u64::try_from(sizes[i]).map_err(|_| format!("size {}", sizes[i]))?,
                (None, Some(scale)) => (from as f64 * scale).floor() as u64,
                (None, None) => return Err("neither sizes nor scales are given".into()),
            };
            let factor = whole_factor(from, to, scale, exact)?;
            y = cx.repeated(y, dim as u32, factor, true)?;
        }
        return Ok(Some(Out::Fresh(vec![y])));
    }
    let (factor, out) = match call.op {
        "pixel_shuffle" => (call.int("upscale_factor")?, true),
        "pixel_unshuffle" => (call.int("downscale_factor")?, false),
        _ => return Ok(None),
    };
    let x = cx.value(call, "self")?;
    let dims = cx.dims(x);
    let r = u64::try_from(factor).ok().filter(|r| *r > 0).ok_or_else(|| format!("factor {factor}"))?;
    let [batch @ .., c, h, w] = dims.as_slice() else {
        return Err(format!("{} dimensions, expected at least 3", dims.len()));
    };
    let area = r.checked_mul(r).ok_or_else(|| format!("factor {factor}"))?;
    let fits = if out { c % area == 0 } else { h % r == 0 && w % r == 0 };
    if !fits {
        return Err(format!("factor {factor} does not divide {dims:?}"));
    }
    // The batch is one dimension, so that the permutation is always the same.
    let n = product(batch);
    let (inner, perm, last) = if out {
        (
            [n, c / area, r, r, *h, *w],
            [0, 1, 4, 2, 5, 3],
            [c / area, h.saturating_mul(r), w.saturating_mul(r)],
        )
    } else {
        ([n, *c, h / r, r, w / r, r], [0, 1, 3, 5, 2, 4], [c.saturating_mul(area), h / r, w / r])
    };
    let y = cx.reshape(x, &inner)?;
    let y = cx.add(Op::Transpose { perm: perm.to_vec() }, &[y])?;
    let y = cx.reshape(y, &[batch, last.as_slice()].concat())?;
    Ok(Some(Out::Fresh(vec![y])))
}

/// Spatial dimensions, and whether pixels are sampled at their centres.
fn nearest(op: &str) -> Option<(usize, bool)> {
    let (dims, exact) = match op.strip_prefix("_upsample_nearest_exact") {
        Some(dims) => (dims, true),
        None => (op.strip_prefix("upsample_nearest")?, false),
    };
    Some((["1d", "2d", "3d"].iter().position(|d| *d == dims)? + 1, exact))
}

/// Most pixels along a dimension that is enlarged; each is looked at.
const MAX_SIZE: u64 = 1 << 20;

/// The whole factor between two sizes, where each pixel is what torch's f32 arithmetic picks.
fn whole_factor(from: u64, to: u64, scale: Option<f64>, exact: bool) -> Refused<i64> {
    let refused = || {
        let scale = scale.map_or(String::new(), |s| format!(" by {s}"));
        format!("enlarges {from} pixels to {to}{scale}; only whole factors are supported")
    };
    let factor = to.checked_div(from).filter(|f| *f > 0 && f * from == to).ok_or_else(refused)?;
    if to > MAX_SIZE {
        return Err(format!("enlarges to {to} pixels; at most {MAX_SIZE}"));
    }
    let step = scale.filter(|s| *s > 0.0).map_or(from as f32 / to as f32, |s| (1.0 / s) as f32);
    let offset = if exact { 0.5 } else { 0.0 };
    let source = |i: u64| (((i as f32 + offset) * step).floor() as u64).min(from - 1);
    if factor > 1 && (0..to).any(|i| source(i) != i / factor) {
        return Err(format!("in f32, {from} pixels to {to} is not each pixel {factor} times; not supported"));
    }
    i64::try_from(factor).map_err(|_| refused())
}
