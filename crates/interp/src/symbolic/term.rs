//! Symbolic elements: hash-consed terms that say how an element was computed, without simplifying anything.

use rustc_hash::FxHashMap;
use shardweld_ir::{DType, ReduceOp};

/// A term of a [`Terms`] table; equal numbers mean equal terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TermId(u32);

/// Where a collective combines an element: what a transport's order of summation may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Name of the collective.
    pub kind: &'static str,
    /// Row-major index of the element in the operand buffer.
    pub position: u64,
    /// Elements of that buffer.
    pub size: u64,
}

/// How an element was computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Term {
    /// An unknown element.
    Symbol {
        /// Which tensor.
        tensor: u32,
        /// Which of the values that differ between ranks.
        rank: u32,
        /// Row-major index.
        index: u32,
        /// Element type.
        dtype: DType,
    },
    /// A known element, by its little-endian bytes.
    Const {
        /// Element type.
        dtype: DType,
        /// The bytes, zero-extended.
        bits: u64,
    },
    /// A conversion.
    Cast {
        /// Target type.
        to: DType,
        /// Operand.
        x: TermId,
    },
    /// A function known by name only: equal arguments give equal results, nothing else is known.
    Apply {
        /// Name with all attributes.
        function: String,
        /// Type of the result.
        dtype: DType,
        /// Arguments.
        args: Vec<TermId>,
    },
    /// What a reducing collective over two or more ranks makes of the operands of one element, in group order.
    Combine {
        /// Combination.
        op: ReduceOp,
        /// Element type.
        dtype: DType,
        /// Accumulation type.
        accum: Option<DType>,
        /// Where.
        place: Place,
        /// One operand per rank of the group.
        operands: Vec<TermId>,
    },
}

/// A table of terms.
#[derive(Debug, Default)]
pub struct Terms {
    terms: Vec<Term>,
    ids: FxHashMap<Term, TermId>,
}

impl Terms {
    /// The number of a term.
    pub fn intern(&mut self, term: Term) -> TermId {
        if let Some(&id) = self.ids.get(&term) {
            return id;
        }
        let id = TermId(self.terms.len() as u32);
        self.terms.push(term.clone());
        self.ids.insert(term, id);
        id
    }

    /// The term of a number that this table gave.
    ///
    /// # Panics
    /// If the number is from another table.
    pub fn get(&self, id: TermId) -> &Term {
        &self.terms[id.0 as usize]
    }

    /// Element type of a term.
    pub fn dtype(&self, id: TermId) -> DType {
        match self.get(id) {
            Term::Symbol { dtype, .. }
            | Term::Const { dtype, .. }
            | Term::Apply { dtype, .. }
            | Term::Combine { dtype, .. } => *dtype,
            Term::Cast { to, .. } => *to,
        }
    }

    /// The term in words: `x0.r1[3]`, `bf16(..)`, `sum(.., ..)`.
    pub fn show(&self, id: TermId) -> String {
        let list = |ids: &[TermId]| ids.iter().map(|&i| self.show(i)).collect::<Vec<_>>().join(", ");
        match self.get(id) {
            Term::Symbol { tensor, rank, index, .. } => format!("x{tensor}.r{rank}[{index}]"),
            Term::Const { dtype, bits } => format!("{}:{bits:#x}", dtype.name()),
            Term::Cast { to, x } => format!("{}({})", to.name(), self.show(*x)),
            Term::Apply { function, args, .. } => format!("{function}({})", list(args)),
            Term::Combine { op, operands, .. } => format!("{}({})", op.name(), list(operands)),
        }
    }
}
