//! Reductions and normalisations.

use shardweld_ir::{DType, NormKind, ReduceKind, Scalar, Value};

use super::{At, Lowerer, Made};
use crate::trace::{Call, ElementWiseOperation as E, ReduceOperation, TensorId, UnaryOperation};

impl Lowerer<'_> {
    pub(super) fn reduce(
        &mut self,
        at: &At,
        x: Value,
        kind: ReduceKind,
        dims: &[u32],
        keep_dims: bool,
    ) -> Made {
        let input = self.tensor(at, x)?;
        if dims.is_empty() {
            return Ok(input);
        }
        let op = match kind {
            ReduceKind::Sum => ReduceOperation::Sum,
            ReduceKind::Mean => ReduceOperation::Avg,
            ReduceKind::Prod => ReduceOperation::Prod,
            ReduceKind::Max => ReduceOperation::Max,
            ReduceKind::Min => ReduceOperation::Min,
        };
        // Logical or and and, as largest and smallest of 0 and 1.
        let own = self.b.ty(input).0;
        let input = if own == DType::Bool { self.cast(at, input, DType::I32)? } else { input };
        let t = self.emit(at, Call::Reduce { input, op, axes: dims.to_vec(), keep_dims })?;
        self.cast(at, t, own)
    }

    pub(super) fn normalize(
        &mut self,
        at: &At,
        x: &[Value],
        kind: NormKind,
        trailing: u32,
        epsilon: Scalar,
        (scale, bias): (bool, bool),
    ) -> Made {
        let dims = self.dims(x[0])?;
        let rank = dims.len();
        let first = rank - trailing as usize;
        let axes: Vec<u32> = (first as u32..rank as u32).collect();
        let normalised: Vec<u64> =
            dims.iter().enumerate().map(|(i, &d)| if i < first { 1 } else { d }).collect();
        let input = self.tensor(at, x[0])?;
        let mut rest = x[1..].iter();
        let mut next = |present: bool, l: &mut Self| -> Made<Option<TensorId>> {
            match rest.next().filter(|_| present) {
                Some(&v) => {
                    let lazy = l.padded(at, v, rank)?;
                    l.materialise(at, lazy).map(Some)
                }
                None => Ok(None),
            }
        };
        let scale = if scale { next(true, self)? } else { None };
        let bias = if bias { next(true, self)? } else { None };
        match kind {
            NormKind::Layer => {
                let scale = match scale {
                    Some(s) => s,
                    None => self.full(at, input, &normalised, 1.0)?,
                };
                let bias = match bias {
                    Some(b) => b,
                    None => self.full(at, input, &normalised, 0.0)?,
                };
                // The layer takes its epsilon as f32.
                let epsilon = Scalar::Float(f64::from(epsilon.as_f64() as f32));
                self.emit(at, Call::Normalization { input, scale, bias, axes, epsilon })
            }
            // TensorRT's layer always removes the mean.
            NormKind::Rms => self.in_math(at, input, |l, x| {
                let square = l.ew(at, E::Prod, x, x)?;
                let call = Call::Reduce { input: square, op: ReduceOperation::Avg, axes, keep_dims: true };
                let mean = l.emit(at, call)?;
                let eps = l.number(at, mean, epsilon.as_f64())?;
                let shifted = l.ew(at, E::Sum, mean, eps)?;
                let root = l.emit(at, Call::Unary { input: shifted, op: UnaryOperation::Sqrt })?;
                let mut y = l.ew(at, E::Div, x, root)?;
                for (op, operand) in [(E::Prod, scale), (E::Sum, bias)] {
                    if let Some(t) = operand {
                        let wide = l.b.ty(y).0;
                        let t = l.cast(at, t, wide)?;
                        y = l.ew(at, op, y, t)?;
                    }
                }
                Ok(y)
            }),
        }
    }
}
