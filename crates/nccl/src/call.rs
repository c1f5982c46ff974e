//! One collective call on dim 0: kind, element type, shape rules, byte counts.

use std::fmt;

use shardweld_ir::{Collective, DType, ReduceOp, TensorType};
use thiserror::Error;

use crate::element::ElementType;

/// What a collective does. Blocks are along dim 0, in group order; roots are positions in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank gets the combination: `[d0, ..] -> [d0, ..]`.
    AllReduce(ReduceOp),
    /// Every rank gets all operands: `[d0, ..] -> [d0 * n, ..]`.
    AllGather,
    /// Every rank gets its block of the combination: `[d0, ..] -> [d0 / n, ..]`.
    ReduceScatter(ReduceOp),
    /// Block j goes to rank j: `[d0, ..] -> [d0, ..]`, n divides d0.
    AllToAll,
    /// Every rank gets the root's operand: `[d0, ..] -> [d0, ..]`.
    Broadcast {
        /// Position of the root.
        root: u32,
    },
    /// The root gets the combination; undefined elsewhere: `[d0, ..] -> [d0, ..]`.
    Reduce {
        /// Combination.
        op: ReduceOp,
        /// Position of the root.
        root: u32,
    },
    /// The root gets all operands; undefined elsewhere: `[d0, ..] -> [d0 * n, ..]`.
    Gather {
        /// Position of the root.
        root: u32,
    },
    /// Every rank gets its block of the root's operand: `[d0, ..] -> [d0 / n, ..]`.
    Scatter {
        /// Position of the root.
        root: u32,
    },
}

impl Kind {
    /// Name in messages: that of TensorRT and NCCL in snake case.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce(_) => "all_reduce",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter(_) => "reduce_scatter",
            Kind::AllToAll => "all_to_all",
            Kind::Broadcast { .. } => "broadcast",
            Kind::Reduce { .. } => "reduce",
            Kind::Gather { .. } => "gather",
            Kind::Scatter { .. } => "scatter",
        }
    }

    /// How operands are combined, for those that combine.
    pub const fn reduce_op(self) -> Option<ReduceOp> {
        match self {
            Kind::AllReduce(op) | Kind::ReduceScatter(op) | Kind::Reduce { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Position of the root, for rooted ones.
    pub const fn root(self) -> Option<u32> {
        match self {
            Kind::Broadcast { root }
            | Kind::Reduce { root, .. }
            | Kind::Gather { root }
            | Kind::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Whether the result of the rank at `position` is defined.
    pub const fn defined_at(self, position: u32) -> bool {
        match self {
            Kind::Reduce { root, .. } | Kind::Gather { root } => root == position,
            _ => true,
        }
    }

    /// Whether n has to divide dim 0.
    const fn splits(self) -> bool {
        matches!(self, Kind::ReduceScatter(_) | Kind::AllToAll | Kind::Scatter { .. })
    }
}

/// Why a call cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// A group of no ranks.
    #[error("{call}: the group has no ranks; at least one is needed")]
    NoRanks {
        /// The call as text.
        call: String,
    },
    /// A scalar.
    #[error("{call}: the operand is a scalar; a collective needs at least one dimension")]
    Scalar {
        /// The call as text.
        call: String,
    },
    /// A dim 0 that does not split.
    #[error("{call}: dim 0 is {dim}, which {ranks} ranks do not divide")]
    NotDivisible {
        /// The call as text.
        call: String,
        /// Size of dim 0.
        dim: u64,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A root outside the group.
    #[error("{call}: the root is at position {root}; the group has positions 0 to {last}")]
    Root {
        /// The call as text.
        call: String,
        /// Position found.
        root: u32,
        /// Last position.
        last: u32,
    },
    /// A size that no address space holds.
    #[error("{call}: the operand or result has more bytes than can be addressed")]
    TooLarge {
        /// The call as text.
        call: String,
    },
    /// A call of the IR that NCCL cannot carry as it is.
    #[error("{call}: {found}; NCCL needs {expected}")]
    NotCarried {
        /// The call as text.
        call: String,
        /// What the IR asks for.
        found: String,
        /// What can be carried.
        expected: &'static str,
    },
}

/// A checked collective call: who wants it, what it does, on what shape, over how many ranks.
///
/// All ranks of a group make equal calls in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    name: String,
    kind: Kind,
    element: ElementType,
    dims: Vec<u64>,
    ranks: u32,
    send: usize,
    recv: usize,
}

impl Call {
    /// A call named after its node, with the operand's local `dims`, over `ranks` ranks.
    pub fn new(
        name: impl Into<String>,
        kind: Kind,
        element: ElementType,
        dims: &[u64],
        ranks: u32,
    ) -> Result<Call, CallError> {
        let mut call =
            Call { name: name.into(), kind, element, dims: dims.to_vec(), ranks, send: 0, recv: 0 };
        let text = || call.to_string();
        if ranks == 0 {
            return Err(CallError::NoRanks { call: text() });
        }
        let Some(&d0) = dims.first() else { return Err(CallError::Scalar { call: text() }) };
        if let Some(root) = kind.root().filter(|&r| r >= ranks) {
            return Err(CallError::Root { call: text(), root, last: ranks - 1 });
        }
        if kind.splits() && d0 % u64::from(ranks) != 0 {
            return Err(CallError::NotDivisible { call: text(), dim: d0, ranks });
        }
        let too_large = || CallError::TooLarge { call: text() };
        let send = bytes(dims, element).ok_or_else(too_large)?;
        let recv = bytes(&call.result_dims().ok_or_else(too_large)?, element).ok_or_else(too_large)?;
        (call.send, call.recv) = (send, recv);
        Ok(call)
    }

    /// The call that an IR collective makes on an operand of type `operand`, over `ranks` ranks.
    ///
    /// Refuses what NCCL cannot carry: dims other than 0, symbolic shapes, an accumulation type other than the
    /// element type, arithmetic on bool, and AVG on integers (NCCL divides the sum after it has wrapped).
    pub fn from_ir(
        name: &str,
        collective: &Collective,
        operand: &TensorType,
        ranks: u32,
    ) -> Result<Call, CallError> {
        let refuse = |found: String, expected| CallError::NotCarried {
            call: format!("{} `{name}`", collective.name()),
            found,
            expected,
        };
        let (kind, dim, accum) = match *collective {
            Collective::AllReduce { op, accum } => (Kind::AllReduce(op), 0, accum),
            Collective::AllGather { dim } => (Kind::AllGather, dim, None),
            Collective::ReduceScatter { op, dim, accum } => (Kind::ReduceScatter(op), dim, accum),
            Collective::AllToAll { split_dim, concat_dim } => {
                (Kind::AllToAll, split_dim.max(concat_dim), None)
            }
            Collective::Broadcast { root } => (Kind::Broadcast { root }, 0, None),
            Collective::Reduce { op, root, accum } => (Kind::Reduce { op, root }, 0, accum),
            Collective::Gather { dim, root } => (Kind::Gather { root }, dim, None),
            Collective::Scatter { dim, root } => (Kind::Scatter { root }, dim, None),
        };
        if dim != 0 {
            return Err(refuse(format!("it works on dim {dim}"), "dim 0, with transposes around it"));
        }
        if let Some(accum) = accum.filter(|&a| a != operand.dtype) {
            return Err(refuse(
                format!("it accumulates {} in {accum}", operand.dtype),
                "a cast to the accumulation type around the collective",
            ));
        }
        if let Some(op) = kind.reduce_op() {
            let arithmetic = !matches!(op, ReduceOp::Max | ReduceOp::Min);
            if operand.dtype == DType::Bool && arithmetic {
                return Err(refuse(format!("{} of bool", op.name()), "max (or) or min (and) for bool"));
            }
            if op == ReduceOp::Avg && !operand.dtype.is_float() {
                return Err(refuse(format!("avg of {}", operand.dtype), "a float type for avg"));
            }
        }
        let Some(dims) = operand.shape.as_static() else {
            return Err(refuse(format!("the operand is {operand}"), "numbers for all dimensions"));
        };
        Call::new(name, kind, operand.dtype.into(), &dims, ranks)
    }

    /// Name of the node that makes the call.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Bytes of the operand.
    pub fn send_bytes(&self) -> usize {
        self.send
    }

    /// Bytes of the result.
    pub fn recv_bytes(&self) -> usize {
        self.recv
    }

    /// Dimensions of the result, as TensorRT defines them; `None` if one overflows.
    pub fn result_dims(&self) -> Option<Vec<u64>> {
        let n = u64::from(self.ranks);
        let mut dims = self.dims.clone();
        let d0 = dims.first_mut()?;
        match self.kind {
            Kind::AllGather | Kind::Gather { .. } => *d0 = d0.checked_mul(n)?,
            Kind::ReduceScatter(_) | Kind::Scatter { .. } => *d0 /= n,
            _ => {}
        }
        Some(dims)
    }

    /// The count that NCCL's function takes: elements of the operand, or of one block for those that split.
    pub(crate) fn nccl_count(&self) -> usize {
        let elements = self.send / self.element.size();
        if self.kind.splits() { elements / self.ranks as usize } else { elements }
    }
}

fn bytes(dims: &[u64], element: ElementType) -> Option<usize> {
    let n = dims.iter().try_fold(element.size() as u64, |n, &d| n.checked_mul(d))?;
    usize::try_from(n).ok().filter(|&n| n <= isize::MAX as usize)
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.name())?;
        if let Some(op) = self.kind.reduce_op() {
            write!(f, "({})", op.name())?;
        }
        write!(f, " `{}` {}{:?} over {} ranks", self.name, self.element, self.dims, self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: Kind, dims: &[u64], ranks: u32) -> Result<Call, CallError> {
        Call::new("x", kind, ElementType::BF16, dims, ranks)
    }

    #[test]
    fn result_shapes_are_those_of_tensorrt() {
        for (kind, want, count) in [
            (Kind::AllReduce(ReduceOp::Sum), [8, 3], 24),
            (Kind::AllGather, [32, 3], 24),
            (Kind::ReduceScatter(ReduceOp::Max), [2, 3], 6),
            (Kind::AllToAll, [8, 3], 6),
            (Kind::Broadcast { root: 3 }, [8, 3], 24),
            (Kind::Reduce { op: ReduceOp::Sum, root: 0 }, [8, 3], 24),
            (Kind::Gather { root: 1 }, [32, 3], 24),
            (Kind::Scatter { root: 2 }, [2, 3], 6),
        ] {
            let c = call(kind, &[8, 3], 4).unwrap();
            assert_eq!(c.result_dims().unwrap(), want, "{c}");
            assert_eq!(c.nccl_count(), count, "{c}");
            assert_eq!(c.send_bytes(), 48);
            assert_eq!(c.recv_bytes() as u64, want[0] * want[1] * 2);
        }
    }

    #[test]
    fn what_does_not_divide_is_refused_only_where_it_must() {
        for kind in [Kind::ReduceScatter(ReduceOp::Sum), Kind::AllToAll, Kind::Scatter { root: 0 }] {
            let e = call(kind, &[6, 4], 4).unwrap_err();
            assert!(matches!(e, CallError::NotDivisible { dim: 6, ranks: 4, .. }), "{e}");
        }
        assert!(call(Kind::AllGather, &[6, 4], 4).is_ok());
        assert!(call(Kind::AllReduce(ReduceOp::Sum), &[6, 4], 4).is_ok());
    }

    #[test]
    fn roots_scalars_empty_groups_and_overflow_are_refused() {
        assert!(matches!(call(Kind::Gather { root: 4 }, &[8], 4), Err(CallError::Root { last: 3, .. })));
        assert!(call(Kind::Gather { root: 3 }, &[8], 4).is_ok());
        assert!(matches!(call(Kind::AllGather, &[], 4), Err(CallError::Scalar { .. })));
        assert!(matches!(call(Kind::AllGather, &[1], 0), Err(CallError::NoRanks { .. })));
        assert!(matches!(call(Kind::AllGather, &[1 << 62, 2], 2), Err(CallError::TooLarge { .. })));
        assert!(call(Kind::AllGather, &[0, 2], 2).is_ok());
    }

    #[test]
    fn only_what_nccl_carries_comes_from_the_ir() {
        let t = TensorType::new(DType::F16, &[8, 4]);
        let sum = |accum| Collective::AllReduce { op: ReduceOp::Sum, accum };
        assert!(Call::from_ir("n", &sum(None), &t, 4).is_ok());
        assert!(Call::from_ir("n", &sum(Some(DType::F16)), &t, 4).is_ok());
        let e = Call::from_ir("n", &sum(Some(DType::F32)), &t, 4).unwrap_err().to_string();
        assert!(e.contains("`n`") && e.contains("f16 in f32") && e.contains("cast"), "{e}");
        assert!(Call::from_ir("n", &Collective::AllGather { dim: 0 }, &t, 4).is_ok());
        assert!(Call::from_ir("n", &Collective::AllGather { dim: 1 }, &t, 4).is_err());
        let a2a = |split_dim, concat_dim| Collective::AllToAll { split_dim, concat_dim };
        assert!(Call::from_ir("n", &a2a(0, 0), &t, 4).is_ok());
        assert!(Call::from_ir("n", &a2a(0, 1), &t, 4).is_err());
        let bool_t = TensorType::new(DType::Bool, &[4]);
        let op = |op| Collective::AllReduce { op, accum: None };
        assert!(Call::from_ir("n", &op(ReduceOp::Max), &bool_t, 2).is_ok());
        assert!(Call::from_ir("n", &op(ReduceOp::Sum), &bool_t, 2).is_err());
        let ints = TensorType::new(DType::I32, &[4]);
        assert!(Call::from_ir("n", &op(ReduceOp::Sum), &ints, 2).is_ok());
        assert!(Call::from_ir("n", &op(ReduceOp::Avg), &ints, 2).is_err());
    }
}
