//! Layer, RMS, group and batch normalisation.

use shardweld_ir::{Binary, DType, NormKind, Op, Scalar, Unary};

use super::view::product;
use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
    ssa::Val,
};

/// torch's default for layer, group and batch normalisation.
const DEFAULT_EPSILON: f64 = 1e-5;
const STATISTICS: &str = "the saved statistics of a normalisation, which are for training";

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let native = call.op.starts_with("native_") || call.op.starts_with('_');
    let value = match call.op {
        "layer_norm" | "native_layer_norm" | "rms_norm" | "_fused_rms_norm" => {
            let x = cx.value(call, "input")?;
            let trailing = call.ints("normalized_shape")?.len();
            let (weight, bias) = (cx.opt_value(call, "weight")?, cx.opt_value(call, "bias")?);
            call.get("cudnn_enable");
            let rms = call.op.contains("rms");
            let epsilon = match call.opt_float("eps")? {
                Some(e) => e,
                None if rms => machine_epsilon(cx.dtype(x)),
                None => DEFAULT_EPSILON,
            };
            cx.normalise(
                if rms { NormKind::Rms } else { NormKind::Layer },
                x,
                trailing,
                epsilon,
                weight,
                bias,
            )?
        }
        "group_norm" | "native_group_norm" => {
            let x = cx.value(call, "input")?;
            let (weight, bias) = (cx.opt_value(call, "weight")?, cx.opt_value(call, "bias")?);
            let groups = call.int(if native { "group" } else { "num_groups" })?;
            let epsilon = call.float_or("eps", DEFAULT_EPSILON)?;
            for derived in ["N", "C", "HxW", "cudnn_enabled"] {
                call.get(derived);
            }
            let dims = cx.dims(x);
            let groups = u64::try_from(groups).ok().filter(|g| *g > 0).ok_or("no groups")?;
            let [n, channels, ..] = dims.as_slice() else {
                return Err("group_norm needs two dimensions".into());
            };
            if channels % groups != 0 {
                return Err(format!("{groups} groups do not divide {channels} channels"));
            }
            let per_group = product(&dims[2..]).saturating_mul(channels / groups);
            let dtype = cx.dtype(x);
            let wide = cx.cast(x, dtype.op_math())?;
            let grouped = cx.reshape(wide, &[*n, groups, per_group])?;
            let y = cx.normalise(NormKind::Layer, grouped, 1, epsilon, None, None)?;
            let y = cx.reshape(y, &dims)?;
            let y = cx.per_channel(Binary::Mul, y, weight)?;
            let y = cx.per_channel(Binary::Add, y, bias)?;
            cx.cast(y, dtype)?
        }
        "batch_norm" | "_native_batch_norm_legit_no_training" => {
            let x = cx.value(call, "input")?;
            if call.bool_or("training", false)? {
                return Err("batch normalisation in training mode; export the model in eval mode".into());
            }
            call.get("momentum");
            call.get("cudnn_enabled");
            let (weight, bias) = (cx.opt_value(call, "weight")?, cx.opt_value(call, "bias")?);
            let (mean, var) = (cx.value(call, "running_mean")?, cx.value(call, "running_var")?);
            let epsilon = call.float_or("eps", DEFAULT_EPSILON)?;
            let dtype = cx.dtype(x);
            let wide = dtype.op_math();
            let (x, mean, var) = (cx.cast(x, wide)?, cx.cast(mean, wide)?, cx.cast(var, wide)?);
            let shifted = cx.scalar_op(Binary::Add, var, Scalar::Float(epsilon))?;
            let deviation = cx.unary(Unary::Sqrt, shifted)?;
            let mut scale = cx.scalar_first(Binary::Div, Scalar::Float(1.0), deviation)?;
            if let Some(w) = weight {
                let w = cx.cast(w, wide)?;
                scale = cx.binary(Binary::Mul, scale, w)?;
            }
            let offset = cx.binary(Binary::Mul, mean, scale)?;
            let offset = match bias {
                Some(b) => {
                    let b = cx.cast(b, wide)?;
                    cx.binary(Binary::Sub, b, offset)?
                }
                None => cx.unary(Unary::Neg, offset)?,
            };
            let y = cx.per_channel(Binary::Mul, x, Some(scale))?;
            let y = cx.per_channel(Binary::Add, y, Some(offset))?;
            cx.cast(y, dtype)?
        }
        _ => return Ok(None),
    };
    Ok(Some(if native { Out::FirstOnly(value, STATISTICS) } else { Out::Fresh(vec![value]) }))
}

/// The distance of 1 to the next number, which torch takes where rms_norm gives no epsilon.
fn machine_epsilon(dtype: DType) -> f64 {
    match dtype.op_math() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

impl Cx<'_> {
    fn normalise(
        &mut self,
        kind: NormKind,
        x: Val,
        trailing: usize,
        epsilon: f64,
        weight: Option<Val>,
        bias: Option<Val>,
    ) -> Refused<Val> {
        let dtype = self.dtype(x);
        // torch allows weights of a wider type than x: then everything is computed in it and rounded once.
        let wide = [weight, bias].into_iter().flatten().any(|w| self.dtype(w) != dtype);
        let inner = if wide { dtype.op_math() } else { dtype };
        let mut operands = vec![self.cast(x, inner)?];
        for w in [weight, bias].into_iter().flatten() {
            operands.push(self.cast(w, inner)?);
        }
        let op = Op::Normalize {
            kind,
            trailing: trailing as u32,
            epsilon: Scalar::Float(epsilon),
            scale: weight.is_some(),
            bias: bias.is_some(),
        };
        let y = self.add(op, &operands)?;
        self.cast(y, dtype)
    }

    /// Applies a vector of one value per channel (dimension 1).
    fn per_channel(&mut self, f: Binary, x: Val, vector: Option<Val>) -> Refused<Val> {
        let Some(vector) = vector else { return Ok(x) };
        let dtype = self.dtype(x);
        let vector = self.cast(vector, dtype)?;
        let mut shape = vec![1; self.rank(x)];
        if let Some(c) = shape.get_mut(1) {
            *c = product(&self.dims(vector));
        }
        let vector = self.reshape(vector, &shape)?;
        self.binary(f, x, vector)
    }
}
