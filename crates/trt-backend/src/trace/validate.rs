//! Checking traces that came through serde.

use rustc_hash::FxHashSet;

use super::builder::TraceError;
use super::call::Call;
use super::infer::{check_type, elements, infer};
use super::{NetworkTrace, name};

/// Re-derives every type of a trace that came from elsewhere.
pub(super) fn validate(trace: &NetworkTrace) -> Result<(), TraceError> {
    let mut names = FxHashSet::default();
    for (i, l) in trace.layers.iter().enumerate() {
        let error = |what: String| TraceError { layer: l.name.clone(), call: l.call.kind(), what };
        if !names.insert(&l.name) {
            return Err(error("the name is taken".into()));
        }
        if !matches!(l.call, Call::Input) && name::decode(&l.name).is_none() {
            return Err(error("the name is not an encoded name".into()));
        }
        if let Some(t) = l.call.operands().into_iter().find(|t| t.index() >= i) {
            return Err(error(format!("operand #{} is not made before the call", t.0)));
        }
        let (dtype, dims) = match &l.call {
            Call::Input => (l.dtype, l.dims.clone()),
            Call::Weight(w) => {
                let Some(w) = trace.weights.get(*w as usize) else {
                    return Err(error(format!("weight #{w} is not in the table")));
                };
                if elements(&w.dims) != elements(&l.dims) {
                    return Err(error(format!("shape {:?} does not hold the weight's {:?}", l.dims, w.dims)));
                }
                (w.dtype, l.dims.clone())
            }
            call => infer(call, trace).map_err(error)?,
        };
        check_type(dtype, &dims).map_err(error)?;
        if dtype != l.dtype || dims != l.dims {
            return Err(error(format!("says {}{:?}, is {dtype}{dims:?}", l.dtype, l.dims)));
        }
        if let Call::Collective { collective, .. } = &l.call
            && collective.world_size() != trace.world_size
        {
            return Err(error(format!(
                "is made for a communicator of {} ranks, the network for one of {}",
                collective.world_size(),
                trace.world_size
            )));
        }
    }
    for o in &trace.outputs {
        if o.tensor.index() >= trace.layers.len() {
            return Err(TraceError {
                layer: o.name.clone(),
                call: "output",
                what: format!("tensor #{} does not exist", o.tensor.0),
            });
        }
    }
    Ok(())
}
