//! Convolution (cross-correlation) of any number of spatial dimensions, as a matrix product over gathered windows.

use shardweld_ir::DType;

use crate::element::{Element, with_element};
use crate::error::{KernelError, Result};
use crate::gemm::{Matrix, Product, product};
use crate::matmul::widen;
use crate::tensor::Tensor;

const OP: &str = "conv";

/// Step, padding and tap distance per spatial dimension, and the number of channel groups.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Step.
    pub stride: &'a [u64],
    /// Zeros before and after.
    pub padding: &'a [(u64, u64)],
    /// Distance of taps.
    pub dilation: &'a [u64],
    /// Channel groups.
    pub groups: u64,
}

/// x `[N, C, spatial..]`, weight `[O, C / groups, taps..]`, bias `[O]`. f16, bf16 accumulate in f32 and round once.
pub fn conv(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, window: Window<'_>) -> Result<Tensor> {
    for other in std::iter::once(weight).chain(bias) {
        if other.dtype() != x.dtype() {
            return Err(KernelError::MixedDTypes { op: OP, first: x.dtype(), second: other.dtype() });
        }
    }
    if x.dtype() == DType::Bool {
        return Err(KernelError::DType { op: OP, dtype: DType::Bool });
    }
    let plan = Plan::new(x.shape(), weight.shape(), bias.map(Tensor::shape), window)?;
    with_element!(x.dtype(), T => run::<T>(x, weight, bias, &plan))
}

struct Plan {
    batch: usize,
    groups: usize,
    channels: usize,
    outputs: usize,
    size: Vec<usize>,
    taps: Vec<usize>,
    positions: Vec<usize>,
    stride: Vec<usize>,
    low: Vec<usize>,
    dilation: Vec<usize>,
}

impl Plan {
    fn new(x: &[usize], weight: &[usize], bias: Option<&[usize]>, w: Window<'_>) -> Result<Plan> {
        let fail = || KernelError::shape(OP, format!("x {x:?}, weight {weight:?}, {w:?} do not fit"));
        let ([batch, c, size @ ..], [o, channels, taps @ ..]) = (x, weight) else { return Err(fail()) };
        let groups = usize::try_from(w.groups).ok().filter(|&g| g > 0).ok_or_else(fail)?;
        let n = size.len();
        let lists = [taps.len(), w.stride.len(), w.padding.len(), w.dilation.len()];
        if lists.iter().any(|&l| l != n) || channels.checked_mul(groups) != Some(*c) || o % groups != 0 {
            return Err(fail());
        }
        if bias.is_some_and(|b| b != [*o]) {
            return Err(fail());
        }
        let of = |v: u64| usize::try_from(v).ok();
        let mut plan = Plan {
            batch: *batch,
            groups,
            channels: *channels,
            outputs: o / groups,
            size: size.to_vec(),
            taps: taps.to_vec(),
            positions: Vec::new(),
            stride: Vec::new(),
            low: Vec::new(),
            dilation: Vec::new(),
        };
        for d in 0..n {
            let (stride, dilation) = (of(w.stride[d]), of(w.dilation[d]));
            let (low, high) = (of(w.padding[d].0), of(w.padding[d].1));
            let (Some(stride @ 1..), Some(dilation @ 1..), Some(low), Some(high)) =
                (stride, dilation, low, high)
            else {
                return Err(fail());
            };
            let padded = low.checked_add(high).and_then(|p| p.checked_add(size[d])).ok_or_else(fail)?;
            let reach = taps[d]
                .checked_sub(1)
                .and_then(|t| t.checked_mul(dilation)?.checked_add(1))
                .filter(|&r| r <= padded)
                .ok_or_else(fail)?;
            plan.positions.push((padded - reach) / stride + 1);
            plan.stride.push(stride);
            plan.dilation.push(dilation);
            plan.low.push(low);
        }
        Ok(plan)
    }

    /// Offset in one channel of x that tap `t` meets at output position `p` (both row-major), if it is not padding.
    fn source(&self, mut p: usize, mut t: usize) -> Option<usize> {
        let (mut at, mut step) = (0, 1);
        for d in (0..self.size.len()).rev() {
            let position = p % self.positions[d] * self.stride[d] + t % self.taps[d] * self.dilation[d];
            p /= self.positions[d];
            t /= self.taps[d];
            at += position.checked_sub(self.low[d]).filter(|&i| i < self.size[d])? * step;
            step *= self.size[d];
        }
        Some(at)
    }
}

fn run<T: Element>(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, plan: &Plan) -> Result<Tensor>
where
    T::Math: Product,
{
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let (size, taps, positions) = (count(&plan.size), count(&plan.taps), count(&plan.positions));
    let inner = plan.channels * taps;
    let shape = [&[plan.batch, plan.groups * plan.outputs], plan.positions.as_slice()].concat();
    let (wide, weights, bias) = (widen::<T>(x), widen::<T>(weight), bias.map(|b| widen::<T>(b)));
    let sources: Vec<Option<usize>> =
        (0..taps * positions).map(|i| plan.source(i % positions.max(1), i / positions.max(1))).collect();
    let mut out = vec![T::Math::default(); count(&shape)];
    let mut windows = vec![T::Math::default(); inner * positions];
    for n in 0..plan.batch {
        for g in 0..plan.groups {
            for c in 0..plan.channels {
                let channel = ((n * plan.groups + g) * plan.channels + c) * size;
                let rows = &mut windows[c * taps * positions..(c + 1) * taps * positions];
                for (w, s) in rows.iter_mut().zip(&sources) {
                    *w = s.map_or_else(T::Math::default, |s| wide[channel + s]);
                }
            }
            let part = plan.outputs * positions;
            let at = (n * plan.groups + g) * part;
            let filters = &weights[g * plan.outputs * inner..(g + 1) * plan.outputs * inner];
            product(
                [plan.outputs, inner, positions],
                Matrix::new(filters, inner, false),
                Matrix::new(&windows, positions, false),
                &mut out[at..at + part],
            );
        }
    }
    if let Some(bias) = bias {
        for (row, i) in out.chunks_exact_mut(positions.max(1)).zip((0..bias.len()).cycle()) {
            row.iter_mut().for_each(|v| *v = crate::arith::Arith::plus(*v, bias[i]));
        }
    }
    Tensor::build::<T>(&shape, |o| T::narrow_slice(&out, o))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dimension_with_padding_and_stride() {
        let x = Tensor::new(&[1, 1, 4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let w = Tensor::new(&[1, 1, 3], &[1.0f32, 10.0, 100.0]).unwrap();
        let b = Tensor::new(&[1], &[0.5f32]).unwrap();
        let window = Window { stride: &[2], padding: &[(1, 1)], dilation: &[1], groups: 1 };
        let y = conv(&x, &w, Some(&b), window).unwrap();
        assert_eq!(y.slice::<f32>(), [210.5, 432.5]);
        let wide = Window { dilation: &[3], ..window };
        assert!(conv(&x, &w, None, wide).is_err());
    }
}
