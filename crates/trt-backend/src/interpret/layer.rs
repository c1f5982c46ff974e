//! The layers without communication, each computed from its definition in the operator reference: in f32, rounded once to
//! the layer's type. Operands have passed the contract.

use shardweld_interp::{
    Bool, KernelError, Tensor, cast, conv, layout, matmul, norm, pointwise, reduce, softmax,
};
use shardweld_ir::{Binary, DType, GatherMode, NormKind, ReduceKind, Scalar, Unary};

use super::attention;
use crate::trace::{ActivationType, Call, ElementWiseOperation, ReduceOperation, UnaryOperation};

pub(super) type Result<T, E = KernelError> = std::result::Result<T, E>;

/// What a layer makes of its operands, which come in the order of [`Call::operands`]. Inputs, weights and collectives are
/// not computed here.
pub(super) fn compute(call: &Call, operands: &[&Tensor]) -> Result<Tensor> {
    match (call, operands) {
        (Call::Constant(literal), []) => Tensor::from_literal(literal),
        (Call::Cast { to, .. }, [x]) => cast::cast(x, *to),
        (Call::Unary { op, .. }, [x]) => unary(*op, x),
        (Call::ElementWise { op, .. }, [a, b]) => pointwise::binary(elementwise(*op, a.dtype()), a, b),
        (Call::Activation { op, .. }, [x]) => activation(*op, x),
        (Call::Select { .. }, [c, x, y]) => pointwise::select(c, x, y),
        (Call::MatMul { transpose_a, transpose_b, .. }, [a, b]) => {
            matmul::matmul(a, b, None, *transpose_a, *transpose_b)
        }
        (Call::Reduce { op, axes, keep_dims, .. }, [x]) => reduction(*op, x, axes, *keep_dims),
        (Call::Softmax { axis, .. }, [x]) => softmax::softmax(x, *axis),
        (Call::Normalization { axes, epsilon, .. }, [x, scale, bias]) => {
            normalization(x, scale, bias, axes, *epsilon)
        }
        (Call::Attention { causal, .. }, [q, k, v, mask @ ..]) => {
            attention::attention([q, k, v], mask.first().copied(), *causal)
        }
        (Call::Shuffle { first, reshape, second, .. }, [x]) => {
            let first = permuted(x, first.as_deref())?;
            let reshaped = match reshape {
                Some(dims) => first.reshaped(&sizes(dims)?)?,
                None => first,
            };
            permuted(&reshaped, second.as_deref())
        }
        (Call::Slice { start, size, stride, .. }, [x, fill @ ..]) => {
            slice(x, start, size, stride, fill.first().copied())
        }
        (Call::Concat { axis, .. }, parts) => layout::concat(parts, *axis),
        (Call::Gather { axis, elements, .. }, [data, indices]) => gather(data, indices, *axis, *elements),
        (
            Call::Convolution { stride, pre_padding, post_padding, dilation, groups, .. },
            [x, kernel, bias @ ..],
        ) => {
            let padding: Vec<(u64, u64)> =
                pre_padding.iter().copied().zip(post_padding.iter().copied()).collect();
            let window = conv::Window { stride, padding: &padding, dilation, groups: *groups };
            conv::conv(x, kernel, bias.first().copied(), window)
        }
        (other, operands) => Err(KernelError::Shape {
            op: other.kind(),
            reason: format!("is no layer of {} operands that computes", operands.len()),
        }),
    }
}

/// Sizes as this machine counts them.
pub(super) fn sizes(dims: &[u64]) -> Result<Vec<usize>> {
    dims.iter()
        .map(|&d| usize::try_from(d))
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| KernelError::TooLarge { shape: Vec::new() })
}

/// A function of the operand widened to another type, rounded once to the operand's.
fn widened(x: &Tensor, wide: DType, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    cast::cast(&f(&cast::cast(x, wide)?)?, x.dtype())
}

fn unary(op: UnaryOperation, x: &Tensor) -> Result<Tensor> {
    use UnaryOperation as U;
    let function = match op {
        U::IsInf => return pointwise::unary(Unary::IsInf, x),
        U::IsNan => return pointwise::unary(Unary::IsNan, x),
        U::Not => return pointwise::unary(Unary::Not, x),
        U::Exp => Unary::Exp,
        U::Log => Unary::Log,
        U::Sqrt => Unary::Sqrt,
        U::Recip => Unary::Recip,
        U::Abs => Unary::Abs,
        U::Neg => Unary::Neg,
        U::Sin => Unary::Sin,
        U::Cos => Unary::Cos,
        U::Tan => Unary::Tan,
        U::Sinh => Unary::Sinh,
        U::Cosh => Unary::Cosh,
        U::Asin => Unary::Asin,
        U::Acos => Unary::Acos,
        U::Atan => Unary::Atan,
        U::Ceil => Unary::Ceil,
        U::Floor => Unary::Floor,
        U::Erf => Unary::Erf,
        U::Sign => Unary::Sign,
        // Half to even.
        U::Round => Unary::Round,
    };
    if x.dtype().is_float() {
        widened(x, DType::F32, |x| pointwise::unary(function, x))
    } else {
        pointwise::unary(function, x)
    }
}

/// Both operands have type `d`. The quotient of integers drops the remainder; `FLOOR_DIV` rounds down.
fn elementwise(op: ElementWiseOperation, d: DType) -> Binary {
    use ElementWiseOperation as E;
    match op {
        E::Sum => Binary::Add,
        E::Prod => Binary::Mul,
        E::Max => Binary::Max,
        E::Min => Binary::Min,
        E::Sub => Binary::Sub,
        E::Div if d.is_float() => Binary::Div,
        E::Div => Binary::TruncDiv,
        E::Pow => Binary::Pow,
        E::FloorDiv => Binary::FloorDiv,
        E::And => Binary::And,
        E::Or => Binary::Or,
        E::Xor => Binary::Xor,
        E::Equal => Binary::Eq,
        E::Greater => Binary::Gt,
        E::Less => Binary::Lt,
    }
}

fn activation(op: ActivationType, x: &Tensor) -> Result<Tensor> {
    let times = |x: &Tensor, by: f64| pointwise::binary_scalar(Binary::Mul, x, Scalar::Float(by), false);
    let one_plus = |x: &Tensor| pointwise::binary_scalar(Binary::Add, x, Scalar::Float(1.0), false);
    let product = |a: &Tensor, b: &Tensor| pointwise::binary(Binary::Mul, a, b);
    match op {
        ActivationType::Relu => pointwise::unary(Unary::Relu, x),
        ActivationType::Sigmoid => widened(x, DType::F32, |x| pointwise::unary(Unary::Sigmoid, x)),
        ActivationType::Tanh => widened(x, DType::F32, |x| pointwise::unary(Unary::Tanh, x)),
        // The formulas cancel for negative operands, so they are taken in f64.
        ActivationType::GeluErf => widened(x, DType::F64, |x| {
            let erf = pointwise::unary(Unary::Erf, &times(x, 0.5f64.sqrt())?)?;
            product(&times(x, 0.5)?, &one_plus(&erf)?)
        }),
        ActivationType::GeluTanh => widened(x, DType::F64, |x| {
            let cube = product(&product(x, x)?, x)?;
            let sum = pointwise::binary(Binary::Add, &times(&cube, 0.044715)?, x)?;
            let tanh = pointwise::unary(Unary::Tanh, &times(&sum, (2.0 / std::f64::consts::PI).sqrt())?)?;
            product(&times(x, 0.5)?, &one_plus(&tanh)?)
        }),
    }
}

fn reduction(op: ReduceOperation, x: &Tensor, axes: &[u32], keep_dims: bool) -> Result<Tensor> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    let kind = match op {
        ReduceOperation::Sum => ReduceKind::Sum,
        ReduceOperation::Prod => ReduceKind::Prod,
        ReduceOperation::Max => ReduceKind::Max,
        ReduceOperation::Min => ReduceKind::Min,
        ReduceOperation::Avg => ReduceKind::Mean,
    };
    let empty = axes.iter().any(|&a| x.shape().get(a as usize) == Some(&0));
    if !empty || !matches!(op, ReduceOperation::Max | ReduceOperation::Min) {
        return reduce::reduce(x, kind, &axes, keep_dims);
    }
    // The shape is that of any other reduction; the value is the identity.
    let sum = reduce::reduce(x, ReduceKind::Sum, &axes, keep_dims)?;
    layout::full(x.dtype(), sum.shape(), extreme(x.dtype(), op == ReduceOperation::Min))
}

/// The largest or smallest value of a type.
fn extreme(d: DType, largest: bool) -> Scalar {
    let (low, high) = match d {
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::I64 => (i64::MIN, i64::MAX),
        _ => return Scalar::Float(if largest { f64::INFINITY } else { f64::NEG_INFINITY }),
    };
    Scalar::Int(if largest { high } else { low })
}

/// (x - mean) / sqrt(variance + epsilon) * scale + bias, moments over the given axes.
fn normalization(x: &Tensor, scale: &Tensor, bias: &Tensor, axes: &[u32], epsilon: Scalar) -> Result<Tensor> {
    let rank = x.shape().len();
    let normalised = |i: &usize| axes.iter().any(|&a| a as usize == *i);
    let (inner, outer): (Vec<usize>, Vec<usize>) = (0..rank).partition(normalised);
    let order = [outer, inner].concat();
    let mut back = vec![0; rank];
    for (i, &o) in order.iter().enumerate() {
        back[o] = i;
    }
    let (scale, bias) = (cast::cast(scale, DType::F32)?, cast::cast(bias, DType::F32)?);
    // The layer takes a float.
    let epsilon = Scalar::Float(f64::from(epsilon.as_f64() as f32));
    widened(x, DType::F32, |x| {
        let moved = layout::transpose(x, &order)?;
        let plain = norm::normalize(&moved, None, None, NormKind::Layer, axes.len() as u32, epsilon)?;
        let plain = layout::transpose(&plain, &back)?;
        pointwise::binary(Binary::Add, &pointwise::binary(Binary::Mul, &plain, &scale)?, &bias)
    })
}

fn permuted(x: &Tensor, order: Option<&[u32]>) -> Result<Tensor> {
    match order {
        Some(order) => layout::transpose(x, &order.iter().map(|&p| p as usize).collect::<Vec<_>>()),
        None => Ok(x.clone()),
    }
}

/// Element i of the result is element `start + i * stride` of x, per dimension; the fill value where there is none.
fn slice(x: &Tensor, start: &[i64], size: &[u64], stride: &[u64], fill: Option<&Tensor>) -> Result<Tensor> {
    let mut out = x.clone();
    for (dim, ((&start, &size), &stride)) in (0u32..).zip(start.iter().zip(size).zip(stride)) {
        let line = Line::new(start, sizes(&[size])?[0], stride, out.shape()[dim as usize])?;
        out = line.of(&out, dim, fill)?;
    }
    Ok(out)
}

/// A slice along one dimension: `before` positions left of the data, `inside` ones that read, and the rest right of it.
struct Line {
    size: usize,
    before: usize,
    inside: usize,
    first: usize,
    stride: usize,
}

impl Line {
    fn new(start: i64, size: usize, stride: u64, length: usize) -> Result<Line> {
        let fail = |_| KernelError::TooLarge { shape: vec![size] };
        let (start, step, length) = (i128::from(start), i128::from(stride), length as i128);
        let inside = |i: usize| (0..length).contains(&(start + i as i128 * step));
        // Positions grow with i, so those inside are one run; it is found from its ends without walking the others.
        let before = match (start < 0, step) {
            (false, _) => 0,
            (true, 0) => size,
            (true, step) => usize::try_from((-start + step - 1) / step).map_err(fail)?.min(size),
        };
        let past = match step {
            0 if inside(before) => size,
            0 => before,
            step => {
                let first_beyond = (length - start + step - 1).div_euclid(step).max(0);
                usize::try_from(first_beyond).map_err(fail)?.clamp(before, size)
            }
        };
        let first = usize::try_from((start + before as i128 * step).clamp(0, length)).map_err(fail)?;
        let stride = usize::try_from(stride).map_err(fail)?;
        Ok(Line { size, before, inside: past - before, first, stride })
    }

    fn of(&self, x: &Tensor, dim: u32, fill: Option<&Tensor>) -> Result<Tensor> {
        let mut shape = x.shape().to_vec();
        shape[dim as usize] = self.inside;
        let read = match (self.inside, self.stride) {
            (0, _) => layout::slice(x, dim, 0, 0, 1)?,
            (_, 0) => layout::broadcast_to(&layout::slice(x, dim, self.first, self.first + 1, 1)?, &shape)?,
            (n, step) => layout::slice(x, dim, self.first, self.first + (n - 1) * step + 1, step)?,
        };
        if self.inside == self.size {
            return Ok(read);
        }
        let Some(fill) = fill else {
            return Err(KernelError::Shape {
                op: "slice",
                reason: format!("reads outside of dimension {dim} of {:?} without a fill value", x.shape()),
            });
        };
        shape[dim as usize] = self.size;
        let base = layout::broadcast_to(fill, &shape)?;
        layout::update_slice(&base, &read, dim, self.before, 1)
    }
}

/// Negative indices count from the end; those outside of the data read zero.
fn gather(data: &Tensor, indices: &Tensor, axis: u32, elements: bool) -> Result<Tensor> {
    let a = axis as usize;
    let size = data.shape()[a];
    let wide = cast::cast(indices, DType::I64)?;
    let resolved = |i: i64| {
        let i = if i < 0 { i128::from(i) + size as i128 } else { i128::from(i) };
        usize::try_from(i).ok().filter(|&i| i < size)
    };
    let mode = if elements { GatherMode::Elements } else { GatherMode::Take };
    let mut outside = false;
    let valid = Tensor::build::<i64>(wide.shape(), |out| {
        for (o, &i) in out.iter_mut().zip(wide.slice::<i64>()) {
            outside |= resolved(i).is_none();
            *o = resolved(i).unwrap_or(0) as i64;
        }
    })?;
    if !outside {
        return layout::gather(data, &valid, mode, axis);
    }
    let keep = Tensor::build::<Bool>(wide.shape(), |out| {
        for (o, &i) in out.iter_mut().zip(wide.slice::<i64>()) {
            *o = Bool(u8::from(resolved(i).is_some()));
        }
    })?;
    let shape = if elements {
        wide.shape().to_vec()
    } else {
        [&data.shape()[..a], wide.shape(), &data.shape()[a + 1..]].concat()
    };
    let zeros = layout::full(data.dtype(), &shape, Scalar::Int(0))?;
    if size == 0 {
        return Ok(zeros);
    }
    let found = layout::gather(data, &valid, mode, axis)?;
    if elements {
        return pointwise::select(&keep, &found, &zeros);
    }
    let aligned = [&vec![1; a][..], wide.shape(), &vec![1; data.shape().len() - a - 1][..]].concat();
    pointwise::select(&keep.reshaped(&aligned)?, &found, &zeros)
}
