//! Matrix products and the linear layer.

use shardweld_ir::{Binary, Op, Scalar};

use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
    ssa::Val,
};

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    let value = match call.op {
        "linear" => {
            let (x, w) = (cx.value(call, "input")?, cx.value(call, "weight")?);
            let bias = cx.opt_value(call, "bias")?;
            if cx.rank(w) == 1 {
                let w = cx.align(w, 2)?;
                let y = cx.linear(x, w, bias)?;
                let mut dims = cx.dims(y);
                dims.pop();
                cx.reshape(y, &dims)?
            } else {
                cx.linear(x, w, bias)?
            }
        }
        "mm" | "bmm" => {
            let (a, b) = (cx.value(call, "self")?, cx.value(call, "mat2")?);
            cx.product(a, b)?
        }
        "matmul" => {
            let (a, b) = (cx.value(call, "self")?, cx.value(call, "other")?);
            cx.product(a, b)?
        }
        "mv" => {
            let (a, b) = (cx.value(call, "self")?, cx.value(call, "vec")?);
            cx.product(a, b)?
        }
        "dot" | "vdot" => {
            let (a, b) =
                (cx.value(call, "self")?, cx.value(call, if call.op == "dot" { "tensor" } else { "other" })?);
            cx.product(a, b)?
        }
        "outer" | "ger" => {
            let (a, b) = (cx.value(call, "self")?, cx.value(call, "vec2")?);
            let (n, m) = (cx.dims(a), cx.dims(b));
            let ([n], [m]) = (n.as_slice(), m.as_slice()) else {
                return Err("outer product of no vectors".into());
            };
            let (a, b) = (cx.reshape(a, &[*n, 1])?, cx.reshape(b, &[1, *m])?);
            let dtype = cx.common(&[crate::context::Arg::Tensor(a), crate::context::Arg::Tensor(b)])?;
            let (a, b) = (cx.cast(a, dtype)?, cx.cast(b, dtype)?);
            cx.binary(Binary::Mul, a, b)?
        }
        "addmm" | "baddbmm" | "addmv" => {
            let bias = cx.value(call, "self")?;
            let names = match call.op {
                "addmm" => ["mat1", "mat2"],
                "baddbmm" => ["batch1", "batch2"],
                _ => ["mat", "vec"],
            };
            let (a, b) = (cx.value(call, names[0])?, cx.value(call, names[1])?);
            let (beta, alpha) = (call.float_or("beta", 1.0)?, call.float_or("alpha", 1.0)?);
            if beta == 1.0 && alpha == 1.0 && call.op != "addmv" {
                cx.add(Op::MatMul { transpose_a: false, transpose_b: false }, &[a, b, bias])?
            } else {
                // torch scales in the accumulator, so everything up to the one rounding is in the wide type.
                let dtype = cx.dtype(a);
                let wide = dtype.op_math();
                let (a, b, bias) = (cx.cast(a, wide)?, cx.cast(b, wide)?, cx.cast(bias, wide)?);
                let product = cx.product(a, b)?;
                let product = cx.times(product, alpha)?;
                // With beta 0 torch ignores the bias, NaN and infinities included.
                let sum = if beta == 0.0 {
                    product
                } else {
                    let bias = if beta == 1.0 {
                        bias
                    } else {
                        cx.scalar_op(Binary::Mul, bias, Scalar::Float(beta))?
                    };
                    cx.binary(Binary::Add, product, bias)?
                };
                cx.cast(sum, dtype)?
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(Out::Fresh(vec![value])))
}

impl Cx<'_> {
    /// x w^T + bias, where x may be a vector.
    fn linear(&mut self, x: Val, w: Val, bias: Option<Val>) -> Refused<Val> {
        let vector = self.rank(x) == 1;
        let x = self.align(x, 2)?;
        let operands: Vec<Val> = [x, w].into_iter().chain(bias).collect();
        let y = self.add(Op::MatMul { transpose_a: false, transpose_b: true }, &operands)?;
        if vector {
            let dims = self.dims(y);
            self.reshape(y, &dims[1..])
        } else {
            Ok(y)
        }
    }

    /// torch.matmul: vectors become matrices and the added dimension goes again.
    fn product(&mut self, a: Val, b: Val) -> Refused<Val> {
        let (vector_a, vector_b) = (self.rank(a) == 1, self.rank(b) == 1);
        if self.rank(a) == 0 || self.rank(b) == 0 {
            return Err("matrix product of a scalar".into());
        }
        let a = self.align(a, 2)?;
        let b = if vector_b {
            let mut dims = self.dims(b);
            dims.push(1);
            self.reshape(b, &dims)?
        } else {
            b
        };
        let y = self.add(Op::MatMul { transpose_a: false, transpose_b: false }, &[a, b])?;
        let mut dims = self.dims(y);
        if vector_b {
            dims.pop();
        }
        if vector_a {
            dims.remove(dims.len() - if vector_b { 1 } else { 2 });
        }
        self.reshape(y, &dims)
    }
}
