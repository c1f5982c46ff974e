//! Attention: TensorRT's attention where shapes allow it, products and softmax otherwise.

use shardweld_ir::{DType, Literal, Scalar, TensorType, Value};

use super::lazy::{Lazy, Step, View};
use super::{At, Lowerer, Made, refuse, too_large};
use crate::trace::{Call, CausalMaskKind, ElementWiseOperation as E, TensorId};

/// Rank of the operands of TensorRT's attention: batch, heads, tokens, size.
const ATTENTION_RANK: usize = 4;

impl Lowerer<'_> {
    /// The layer does not scale scores, so the query is scaled. On f16 and bf16 that rounds the query once more unless the
    /// factor is a power of two.
    pub(super) fn attention(
        &mut self,
        at: &At,
        x: &[Value],
        scale: Scalar,
        causal: bool,
        mask: bool,
    ) -> Made {
        let (q_dims, v_dims) = (self.dims(x[0])?, self.dims(x[2])?);
        let rank = q_dims.len();
        let whole = self.four(at, x[0])?;
        let whole = self.materialise(at, whole)?;
        let query = self.scaled(at, whole, scale)?;
        let (key, value) = (self.four(at, x[1])?, self.four(at, x[2])?);
        let (key, value) = (self.materialise(at, key)?, self.materialise(at, value)?);
        let (tokens, keys) = (self.b.ty(query).1[2], self.b.ty(key).1[2]);
        let narrow = match x.get(3).filter(|_| mask) {
            Some(&m) => Some(self.mask(at, m)?),
            None => None,
        };
        let mut mask = match narrow {
            Some(m) => Some(self.whole_mask(at, m, tokens, keys)?),
            None => None,
        };
        let mut judged = narrow.filter(|&m| !self.always_leaves_a_key(m, causal));
        let whole_layer = q_dims.last() == v_dims.last() && !self.is_scaled_by_number(query);
        let mut kind = CausalMaskKind::None;
        if causal {
            // Pieces know no causal kind.
            if mask.is_none() && whole_layer {
                kind = CausalMaskKind::UpperLeft;
            } else {
                let both = self.with_causal(at, query, mask, tokens, keys)?;
                mask = Some(both);
                judged = judged.map(|_| both);
            }
        }
        let out = if whole_layer {
            self.emit(at, Call::Attention { query, key, value, mask, causal: kind })?
        } else {
            self.spelled_out(at, query, key, value, mask)?
        };
        let out = match judged {
            Some(m) => self.zeros_where_no_key(at, out, m)?,
            None => out,
        };
        if rank == ATTENTION_RANK {
            return Ok(out);
        }
        let mut dims = q_dims;
        if let (Some(last), Some(&size)) = (dims.last_mut(), v_dims.last()) {
            *last = size;
        }
        let view = Lazy::View(View::of(out, self.b.ty(out).1));
        let lazy = self.shuffle_lazy(at, view, Step::Reshape(dims))?;
        self.materialise(at, lazy)
    }

    /// Whether a tensor is a product with a single number. The builder of TensorRT-RTX 1.7.1 takes that into its attention
    /// kernel, and crashes if the product has another user.
    fn is_scaled_by_number(&self, t: TensorId) -> bool {
        let number =
            |t: &TensorId| matches!(self.b.call(*t), Call::Constant(c) if c.ty.shape.elements() == Some(1));
        matches!(self.b.call(t), Call::ElementWise { a, b, op: E::Prod | E::Div } if number(a) || number(b))
    }

    /// The query times a number, in its own type. The number stands in a vector, because of [`Self::is_scaled_by_number`].
    fn scaled(&mut self, at: &At, query: TensorId, factor: Scalar) -> Made {
        if factor.as_f64() == 1.0 {
            return Ok(query);
        }
        let (dtype, rank) = (self.b.ty(query).0, self.b.ty(query).1.len());
        let (a, dtype) = if super::pointwise::is_exact(dtype, factor) {
            (query, dtype)
        } else {
            (self.cast(at, query, dtype.op_math())?, dtype.op_math())
        };
        let mut dims = vec![1; rank];
        dims[rank - 1] = *self.b.ty(query).1.last().unwrap_or(&1);
        let b = shardweld_ir::Literal::full(TensorType::new(dtype, &dims), factor).ok_or_else(too_large)?;
        let b = self.emit(at, Call::Constant(b))?;
        let call = Call::ElementWise { a, b, op: E::Prod };
        let product = self.emit(at, call)?;
        self.cast(at, product, self.b.ty(query).0)
    }

    /// A value as `[batch, heads, tokens, size]`: missing dimensions are 1, spare batch dimensions merge.
    fn four(&mut self, at: &At, x: Value) -> Made<Lazy> {
        let dims = self.dims(x)?;
        let n = dims.len();
        if n == ATTENTION_RANK {
            return self.lazy(x);
        }
        let batch: u64 = dims[..n.saturating_sub(3)].iter().product();
        let heads = if n >= 3 { dims[n - 3] } else { 1 };
        self.shuffle(at, x, Step::Reshape(vec![batch, heads, dims[n - 2], dims[n - 1]]))
    }

    /// The mask in four dimensions, of size 1 where it repeats.
    fn mask(&mut self, at: &At, m: Value) -> Made {
        let dims = self.dims(m)?;
        let n = dims.len();
        if n > ATTENTION_RANK && dims[..n - 3].iter().any(|&d| d != 1) {
            return refuse("a mask that differs over more than two batch dimensions");
        }
        let lazy = match self.lazy(m)? {
            Lazy::Expand { base, .. } => Lazy::View(View::of(base, self.b.ty(base).1)),
            lazy => lazy,
        };
        let base = self.materialise(at, lazy)?;
        let own = self.b.ty(base).1.to_vec();
        let mut four: Vec<u64> = own[n.saturating_sub(ATTENTION_RANK)..].to_vec();
        while four.len() < ATTENTION_RANK {
            four.insert(0, 1);
        }
        let lazy = self.shuffle_lazy(at, Lazy::View(View::of(base, &own)), Step::Reshape(four))?;
        self.materialise(at, lazy)
    }

    /// The mask whole in the last two dimensions.
    fn whole_mask(&mut self, at: &At, narrow: TensorId, tokens: u64, keys: u64) -> Made {
        let mut dims = self.b.ty(narrow).1.to_vec();
        dims[2] = tokens;
        dims[3] = keys;
        self.materialise(at, Lazy::Expand { base: narrow, dims })
    }

    /// The causal triangle as a mask, joined with the mask that is there.
    fn with_causal(
        &mut self,
        at: &At,
        query: TensorId,
        mask: Option<TensorId>,
        tokens: u64,
        keys: u64,
    ) -> Made {
        let bytes: Option<u64> =
            tokens.checked_mul(keys).filter(|&n| n <= shardweld_ir::literal::MAX_LITERAL_BYTES);
        if bytes.is_none() {
            return Err(too_large());
        }
        let triangle: Vec<u8> = (0..tokens).flat_map(|i| (0..keys).map(move |j| u8::from(j <= i))).collect();
        let ty = TensorType::new(DType::Bool, &[1, 1, tokens, keys]);
        let literal = Literal::dense(ty, triangle).ok_or_else(too_large)?;
        let keep = self.emit(at, Call::Constant(literal))?;
        let Some(mask) = mask else { return Ok(keep) };
        if self.b.ty(mask).0 == DType::Bool {
            return self.ew(at, E::And, keep, mask);
        }
        let never = self.number(at, query, f64::NEG_INFINITY)?;
        self.emit(at, Call::Select { condition: keep, then_input: mask, else_input: never })
    }

    fn spelled_out(
        &mut self,
        at: &At,
        query: TensorId,
        key: TensorId,
        value: TensorId,
        mask: Option<TensorId>,
    ) -> Made {
        let mut scores =
            self.emit(at, Call::MatMul { a: query, transpose_a: false, b: key, transpose_b: true })?;
        if let Some(m) = mask {
            scores = if self.b.ty(m).0 == DType::Bool {
                let never = self.number(at, scores, f64::NEG_INFINITY)?;
                self.emit(at, Call::Select { condition: m, then_input: scores, else_input: never })?
            } else {
                self.ew(at, E::Sum, scores, m)?
            };
        }
        let weights = self.emit(at, Call::Softmax { input: scores, axis: 3 })?;
        self.emit(at, Call::MatMul { a: weights, transpose_a: false, b: value, transpose_b: false })
    }
}
