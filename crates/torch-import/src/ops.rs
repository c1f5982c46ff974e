//! Which handler takes which op. A handler returns `None` for an op that is not of its family.

mod activation;
mod attention;
mod collective;
mod convolution;
mod create;
mod einsum;
mod index;
mod layout;
mod matmul;
mod normalise;
mod pointwise;
mod reduce;
mod resample;
mod view;

use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
};

type Family = for<'p> fn(&mut Cx<'p>, &Call<'p>) -> Refused<Option<Out>>;

/// The families of aten ops, the frequent ones first.
const ATEN: &[Family] = &[
    view::convert,
    pointwise::convert,
    matmul::convert,
    layout::convert,
    normalise::convert,
    attention::convert,
    activation::convert,
    reduce::convert,
    create::convert,
    index::convert,
    convolution::convert,
    einsum::convert,
    resample::convert,
];

/// Converts one call. `Err` says why not.
pub(crate) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Out> {
    let found = match call.namespace {
        "aten" => {
            let mut found = None;
            for family in ATEN {
                found = family(cx, call)?;
                if found.is_some() {
                    break;
                }
            }
            found
        }
        "_c10d_functional" | "_c10d_functional_autograd" => collective::convert(cx, call)?,
        _ => None,
    };
    let out = found.ok_or_else(|| "this op is not supported".to_owned())?;
    match call.unread() {
        Some(arg) if !matches!(out, Out::None) => {
            Err(format!("argument `{arg}` of this op is not supported"))
        }
        _ => Ok(out),
    }
}
