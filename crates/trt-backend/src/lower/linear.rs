//! Matrix products and convolutions.

use shardweld_ir::Value;

use super::lazy::{Lazy, Step, View};
use super::{At, Lowerer, Made, refuse};
use crate::trace::{Call, ElementWiseOperation, TensorId};

impl Lowerer<'_> {
    /// A bias is a layer of its own; the compiler fuses it into the product. On f16 and bf16 the trace thereby allows a
    /// rounding before the bias that the IR does not have.
    pub(super) fn matmul(&mut self, at: &At, x: &[Value], transpose_a: bool, transpose_b: bool) -> Made {
        let rank = self.dims(x[0])?.len().max(self.dims(x[1])?.len());
        let (a, transpose_a) = self.matmul_operand(at, x[0], rank, transpose_a)?;
        let (b, transpose_b) = self.matmul_operand(at, x[1], rank, transpose_b)?;
        let product = self.emit(at, Call::MatMul { a, transpose_a, b, transpose_b })?;
        let Some(&bias) = x.get(2) else { return Ok(product) };
        let bias = match self.padded(at, bias, rank)? {
            Lazy::Expand { base, .. } => base,
            lazy => self.materialise(at, lazy)?,
        };
        self.ew(at, ElementWiseOperation::Sum, product, bias)
    }

    /// An operand of the given rank, and whether its last two dimensions are swapped. A transpose before it costs no layer.
    fn matmul_operand(&mut self, at: &At, x: Value, rank: usize, transpose: bool) -> Made<(TensorId, bool)> {
        match self.padded(at, x, rank)? {
            Lazy::View(v) if v.swaps_last_two() => Ok((v.base, !transpose)),
            // Repeated batch dimensions broadcast; the last two do not.
            Lazy::Expand { base, mut dims } => {
                let own = self.b.ty(base).1;
                let batch = dims.len().saturating_sub(2);
                dims[..batch].copy_from_slice(&own[..batch]);
                Ok((self.materialise(at, Lazy::Expand { base, dims })?, transpose))
            }
            lazy => Ok((self.materialise(at, lazy)?, transpose)),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the attributes of one op")]
    pub(super) fn conv(
        &mut self,
        at: &At,
        x: &[Value],
        stride: &[u64],
        padding: &[(u64, u64)],
        dilation: &[u64],
        groups: u64,
        bias: bool,
    ) -> Made<Lazy> {
        let one_d = stride.len() == 1;
        if stride.len() > 3 {
            return refuse(format!("{} spatial dimensions; TensorRT has 2 and 3", stride.len()));
        }
        // TensorRT starts at two spatial dimensions: the second one is of size 1.
        let widen = |l: &mut Self, v: Value| -> Made {
            let lazy = if one_d {
                let mut dims = l.dims(v)?;
                dims.push(1);
                l.shuffle(at, v, Step::Reshape(dims))?
            } else {
                l.lazy(v)?
            };
            l.materialise(at, lazy)
        };
        let (input, kernel) = (widen(self, x[0])?, widen(self, x[1])?);
        let bias = if bias { Some(self.tensor(at, x[2])?) } else { None };
        let extended = |list: Vec<u64>, unit: u64| {
            let mut list = list;
            list.extend(one_d.then_some(unit));
            list
        };
        let t = self.emit(
            at,
            Call::Convolution {
                input,
                kernel,
                bias,
                stride: extended(stride.to_vec(), 1),
                pre_padding: extended(padding.iter().map(|p| p.0).collect(), 0),
                post_padding: extended(padding.iter().map(|p| p.1).collect(), 0),
                dilation: extended(dilation.to_vec(), 1),
                groups,
            },
        )?;
        let dims = self.b.ty(t).1.to_vec();
        let view = Lazy::View(View::of(t, &dims));
        if one_d { self.shuffle_lazy(at, view, Step::Reshape(dims[..3].to_vec())) } else { Ok(view) }
    }
}
