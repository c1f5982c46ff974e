//! torch's type promotion: the element type in which an op on mixed operands is computed.

use shardweld_ir::{DType, Scalar};

/// An operand as promotion sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    /// A tensor with at least one dimension.
    Dimensioned(DType),
    /// A tensor without dimensions.
    ZeroDim(DType),
    /// A number in the program text.
    Number(Scalar),
}

/// The type of a float that nobody gave a type.
pub(crate) const DEFAULT_FLOAT: DType = DType::F32;

/// Result type of an op on the operands; `None` where torch has none that the IR knows (fp8, and u8 with i8 gives i16).
pub(crate) fn result_type(operands: &[Operand]) -> Option<DType> {
    let mut dimensioned = None;
    let mut zero_dim = None;
    let mut number = None;
    for o in operands {
        let (slot, dtype) = match o {
            Operand::Dimensioned(d) => (&mut dimensioned, *d),
            Operand::ZeroDim(d) => (&mut zero_dim, *d),
            Operand::Number(Scalar::Float(_)) => (&mut number, DEFAULT_FLOAT),
            Operand::Number(Scalar::Int(_)) => (&mut number, DType::I64),
            Operand::Number(Scalar::Bool(_)) => (&mut number, DType::Bool),
        };
        *slot = Some(match *slot {
            None => dtype,
            Some(old) => promote(old, dtype)?,
        });
    }
    combine(dimensioned, combine(zero_dim, number)?)?
}

/// A weaker category only matters if it is of a higher kind (bool, integer, float).
fn combine(strong: Option<DType>, weak: Option<DType>) -> Option<Option<DType>> {
    Some(match (strong, weak) {
        (Some(s), Some(w)) => {
            Some(if s.is_float() || (!w.is_float() && s != DType::Bool) { s } else { promote(s, w)? })
        }
        (s, w) => s.or(w),
    })
}

/// torch's table for two tensors of equal standing.
pub(crate) fn promote(a: DType, b: DType) -> Option<DType> {
    use DType::*;
    if a == b {
        return Some(a);
    }
    Some(match (a, b) {
        (F8E4M3, _) | (_, F8E4M3) => return None,
        (Bool, x) | (x, Bool) => x,
        (F64, _) | (_, F64) => F64,
        (F32, _) | (_, F32) => F32,
        (F16, BF16) | (BF16, F16) => F32,
        (F16, _) | (_, F16) => F16,
        (BF16, _) | (_, BF16) => BF16,
        (I64, _) | (_, I64) => I64,
        (I32, _) | (_, I32) => I32,
        (I8, _) | (U8, _) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    use Operand::*;

    #[test]
    fn categories_follow_torch() {
        let f = Number(Scalar::Float(0.5));
        let i = Number(Scalar::Int(2));
        assert_eq!(result_type(&[Dimensioned(BF16), f]), Some(BF16));
        assert_eq!(result_type(&[Dimensioned(I64), f]), Some(F32));
        assert_eq!(result_type(&[Dimensioned(Bool), i]), Some(I64));
        assert_eq!(result_type(&[Dimensioned(I32), i]), Some(I32));
        assert_eq!(result_type(&[Dimensioned(BF16), ZeroDim(F32)]), Some(BF16));
        assert_eq!(result_type(&[Dimensioned(I64), ZeroDim(BF16)]), Some(BF16));
        assert_eq!(result_type(&[ZeroDim(I64), f]), Some(F32));
        assert_eq!(result_type(&[Dimensioned(F16), Dimensioned(BF16)]), Some(F32));
        assert_eq!(result_type(&[Dimensioned(U8), Dimensioned(I8)]), None);
        assert_eq!(result_type(&[Dimensioned(Bool), Dimensioned(Bool)]), Some(Bool));
        assert_eq!(result_type(&[i, f]), Some(F32));
    }
}
