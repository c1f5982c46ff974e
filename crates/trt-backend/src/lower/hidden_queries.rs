//! Queries from which a mask hides every key: the IR gives zeros there, TensorRT's softmax divides 0 by 0.

use shardweld_ir::{DType, Literal, literal};

use super::{At, Lowerer, Made};
use crate::trace::{Call, ElementWiseOperation as E, ReduceOperation, TensorId, UnaryOperation};

/// Dimension of a mask that counts keys.
const KEYS: u32 = 3;

impl Lowerer<'_> {
    /// Whether a mask is known to leave every query a key, under the causal triangle too if `causal`.
    pub(super) fn always_leaves_a_key(&self, mask: TensorId, causal: bool) -> bool {
        self.constant_behind(mask)
            .is_some_and(|literal| leaves_every_query_a_key(literal, self.b.ty(mask).1, causal))
    }

    fn constant_behind(&self, t: TensorId) -> Option<&Literal> {
        match self.b.call(t) {
            Call::Constant(literal) => Some(literal),
            // Elements keep their order.
            Call::Shuffle { input, first: None, second: None, .. } => self.constant_behind(*input),
            _ => None,
        }
    }

    /// The result of attention, with zeros for queries to which the mask leaves no key. Chosen, not multiplied: what is
    /// replaced is NaN.
    pub(super) fn zeros_where_no_key(&mut self, at: &At, out: TensorId, mask: TensorId) -> Made {
        let keep = if self.b.ty(mask).0 == DType::Bool {
            mask
        } else {
            // Not "greater": a NaN hides nothing.
            let never = self.number(at, mask, f64::NEG_INFINITY)?;
            let hidden = self.ew(at, E::Equal, mask, never)?;
            self.emit(at, Call::Unary { input: hidden, op: UnaryOperation::Not })?
        };
        let input = self.cast(at, keep, DType::I32)?;
        let call = Call::Reduce { input, op: ReduceOperation::Max, axes: vec![KEYS], keep_dims: true };
        let any = self.emit(at, call)?;
        let condition = self.cast(at, any, DType::Bool)?;
        let else_input = self.number(at, out, 0.0)?;
        self.emit(at, Call::Select { condition, then_input: out, else_input })
    }
}

/// `dims` are the mask's four, of size 1 where it repeats.
fn leaves_every_query_a_key(mask: &Literal, dims: &[u64], causal: bool) -> bool {
    let &[.., queries, keys] = dims else { return false };
    let dtype = mask.ty.dtype;
    let (Ok(queries @ 1..), Ok(keys @ 1..)) = (usize::try_from(queries), usize::try_from(keys)) else {
        return false;
    };
    let shows = |e: &[u8]| match literal::decode(dtype, e) {
        Some(x) if dtype == DType::Bool => x.as_f64() != 0.0,
        Some(x) => x.as_f64() != f64::NEG_INFINITY,
        None => false,
    };
    let element = dtype.size();
    mask.to_bytes().chunks_exact(element * keys).enumerate().all(|(n, row)| {
        // A row that serves all queries serves the first, which sees the fewest keys.
        let seen = if causal { n % queries + 1 } else { keys };
        row.chunks_exact(element).take(seen).any(shows)
    })
}
