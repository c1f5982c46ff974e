//! What is known about a value: type, replication, and into which narrower types it fits exactly.

use shardweld_ir::{Collective, DType, InferError, Mesh, Op, ReduceOp, Scalar, TensorType, Weight, infer};

use crate::replication::{AxisSet, transfer};

/// A set of element types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DTypeSet(pub u16);

impl DTypeSet {
    /// The set with one more.
    pub fn with(self, dtype: DType) -> DTypeSet {
        DTypeSet(self.0 | 1 << dtype as u16)
    }

    /// Whether the type is in here.
    pub fn has(self, dtype: DType) -> bool {
        self.0 >> (dtype as u16) & 1 == 1
    }

    /// Common ones.
    pub fn intersection(self, other: DTypeSet) -> DTypeSet {
        DTypeSet(self.0 & other.0)
    }

    /// Both.
    pub fn union(self, other: DTypeSet) -> DTypeSet {
        DTypeSet(self.0 | other.0)
    }
}

/// Facts about one tensor value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Type.
    pub ty: TensorType,
    /// Axes over which it is equal on all ranks.
    pub replicated: AxisSet,
    /// Types that hold every element exactly, besides those that its own type embeds in.
    pub fits: DTypeSet,
    /// Whether it is defined on every rank. What a rooted collective leaves undefined off root may still be broadcast.
    pub defined: bool,
}

impl Facts {
    /// A value of which only the type is known, and that it is defined.
    pub fn of(ty: TensorType) -> Facts {
        Facts { ty, replicated: AxisSet::NONE, fits: DTypeSet::default(), defined: true }
    }

    /// Whether every element is exactly a value of `dtype`.
    pub fn representable(&self, dtype: DType) -> bool {
        self.ty.dtype.embeds_in(dtype) || self.fits.has(dtype)
    }
}

/// Facts about the only result of `op`.
///
/// # Errors
/// If the shape rules refuse the operands.
pub fn derive(op: &Op, operands: &[&Facts], mesh: &Mesh, weights: &[Weight]) -> Result<Facts, InferError> {
    let types: Vec<&TensorType> = operands.iter().map(|f| &f.ty).collect();
    let mut results = infer(op, &types, mesh, weights)?;
    let ty = match results.len() {
        1 => results.swap_remove(0),
        n => return Err(InferError::Shape(format!("{} has {n} results; expected one", op.name()))),
    };
    let axes: Vec<AxisSet> = operands.iter().map(|f| f.replicated).collect();
    let replicated = transfer(op, &axes, mesh, weights, AxisSet::NONE);
    let fits = fits(op, operands.first().copied());
    let defined = defined(op, operands.iter().all(|f| f.defined), mesh);
    Ok(Facts { ty, replicated, fits, defined })
}

/// Whether the results are defined on every rank, given whether all operands are.
pub fn defined(op: &Op, operands: bool, mesh: &Mesh) -> bool {
    match op {
        Op::Collective { kind, group } => !kind.undefined_off_root() || group.size(mesh) == 1,
        _ => operands,
    }
}

/// Types that the result fits, given the first operand.
pub fn fits(op: &Op, x: Option<&Facts>) -> DTypeSet {
    let Some(x) = x else { return DTypeSet::default() };
    let through = x.fits;
    match op {
        Op::Cast { to } if x.ty.dtype.embeds_in(*to) => through.with(x.ty.dtype),
        Op::Cast { to } if through.has(*to) => through,
        Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } | Op::Broadcast { .. } => through,
        Op::OwnSlice { .. } => through,
        // A zero fits everywhere, -0.0 in every float type.
        Op::OwnPad { value, .. } if *value == Scalar::Int(0) || *value == Scalar::Float(0.0) => through,
        Op::OwnPad { value: Scalar::Float(v), .. } if *v == 0.0 => DType::ALL
            .into_iter()
            .filter(|d| d.is_float() && through.has(*d))
            .fold(DTypeSet::default(), DTypeSet::with),
        Op::Collective { kind, .. } => match kind.reduce_op() {
            None if !kind.undefined_off_root() => through,
            // The largest or smallest operand is one of the operands.
            Some(ReduceOp::Max | ReduceOp::Min) if !matches!(kind, Collective::Reduce { .. }) => through,
            _ => DTypeSet::default(),
        },
        _ => DTypeSet::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardweld_ir::{AxisId, Group};

    fn wide() -> Facts {
        let ty = TensorType::new(DType::BF16, &[4]);
        let narrow = Facts::of(ty);
        derive(&Op::Cast { to: DType::F32 }, &[&narrow], &mesh(), &[]).unwrap()
    }

    fn mesh() -> Mesh {
        Mesh::new([("a", 2)]).unwrap()
    }

    #[test]
    fn data_movement_keeps_what_a_widening_cast_knows() {
        let kind = Collective::AllGather { dim: 0 };
        let gather = Op::Collective { kind, group: Group::axis(AxisId(0)) };
        let y = derive(&gather, &[&wide()], &mesh(), &[]).unwrap();
        assert!(y.representable(DType::BF16));
        assert!(!y.representable(DType::F16));
    }

    #[test]
    fn sums_lose_it() {
        let kind = Collective::AllReduce { op: ReduceOp::Sum, accum: None };
        let reduce = Op::Collective { kind, group: Group::axis(AxisId(0)) };
        assert!(!derive(&reduce, &[&wide()], &mesh(), &[]).unwrap().representable(DType::BF16));
    }
}
