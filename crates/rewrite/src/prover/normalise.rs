//! The theory: what is known about arithmetic, per exactness class, as a normal form of symbolic elements.
//!
//! Two elements are equal in a class if their normal forms in it are equal. Every lemma used here stands with its reason.
//! What is not known stays an uninterpreted function of its arguments.

use rustc_hash::FxHashMap;
use shardweld_interp::symbolic::{Place, Term, TermId, Terms};
use shardweld_ir::{DType, ReduceOp};

use super::polynomial::{Coefficient, Polynomial, ring};
use crate::class::Class;

/// A normal form of a [`Theory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NormalId(u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Normal {
    Symbol(TermId),
    Const {
        dtype: DType,
        bits: u64,
    },
    Cast {
        to: DType,
        from: DType,
        x: NormalId,
    },
    Apply {
        function: String,
        dtype: DType,
        args: Vec<NormalId>,
    },
    /// Operands with their slot in the group; no place if the order cannot matter.
    Combine {
        op: ReduceOp,
        dtype: DType,
        accum: Option<DType>,
        place: Option<Place>,
        operands: Vec<(u32, NormalId)>,
    },
    /// Largest (or smallest) of a set.
    Extreme {
        largest: bool,
        drops_nan: bool,
        dtype: DType,
        members: Vec<NormalId>,
    },
    Sum {
        dtype: DType,
        polynomial: Polynomial<NormalId>,
    },
}

/// Normal forms of the elements of one table.
#[derive(Debug)]
pub struct Theory<'t> {
    terms: &'t Terms,
    /// Whether float reductions combine in an order that does not depend on position and buffer size.
    fixed_order: bool,
    forms: Vec<Normal>,
    ids: FxHashMap<Normal, NormalId>,
    memo: FxHashMap<(TermId, Class), NormalId>,
}

impl<'t> Theory<'t> {
    /// The theory over a table of terms.
    pub fn new(terms: &'t Terms, fixed_order: bool) -> Theory<'t> {
        Theory {
            terms,
            fixed_order,
            forms: Vec::new(),
            ids: FxHashMap::default(),
            memo: FxHashMap::default(),
        }
    }

    /// Whether two elements are equal in a class.
    pub fn equal(&mut self, a: TermId, b: TermId, class: Class) -> bool {
        a == b || self.normal(a, class) == self.normal(b, class)
    }

    fn intern(&mut self, form: Normal) -> NormalId {
        if let Some(&id) = self.ids.get(&form) {
            return id;
        }
        let id = NormalId(self.forms.len() as u32);
        self.forms.push(form.clone());
        self.ids.insert(form, id);
        id
    }

    fn form(&self, id: NormalId) -> &Normal {
        &self.forms[id.0 as usize]
    }

    fn normal(&mut self, t: TermId, class: Class) -> NormalId {
        if let Some(&n) = self.memo.get(&(t, class)) {
            return n;
        }
        let n = match self.terms.get(t).clone() {
            Term::Symbol { .. } => self.intern(Normal::Symbol(t)),
            Term::Const { dtype, bits } => self.constant(dtype, bits, class),
            Term::Cast { to, x } => {
                // A cast maps equal values, zeros up to sign included, to such; over the reals it is just some function.
                let from = self.terms.dtype(x);
                let x = self.normal(x, class.min(Class::Zero));
                self.cast(to, from, x, class)
            }
            Term::Apply { function, dtype, args } => self.apply(&function, dtype, &args, class),
            Term::Combine { op, dtype, accum, place, operands } => {
                self.combine(op, dtype, accum, place, &operands, class)
            }
        };
        self.memo.insert((t, class), n);
        n
    }

    fn constant(&mut self, dtype: DType, bits: u64, class: Class) -> NormalId {
        // From class `zero` on, both zeros are one.
        let bits = if class >= Class::Zero && zero_sign(dtype, bits).is_some() { 0 } else { bits };
        self.intern(Normal::Const { dtype, bits })
    }

    fn cast(&mut self, to: DType, from: DType, x: NormalId, class: Class) -> NormalId {
        // A cast to the same type copies.
        if from == to {
            return x;
        }
        match *self.form(x) {
            // Casts of zero: exact in every type; the sign survives between floats, integers have one zero.
            Normal::Const { dtype, bits } if zero_sign(dtype, bits).is_some() => {
                let negative = zero_sign(dtype, bits) == Some(true) && to.is_float();
                let bits = if negative { 1 << (8 * to.size() - 1) } else { 0 };
                self.constant(to, bits, class)
            }
            // Through a type that holds every value of the source, a cast is a cast from the source: the first cast is exact.
            // It quiets signalling NaNs, so floats need class `nan`. Integers through floats are left out: float to integer
            // saturates, integer to integer wraps.
            Normal::Cast { to: middle, from: source, x: inner } if middle == from => {
                let kinds = if source == to {
                    true
                } else if source.is_float() {
                    middle.is_float() && to.is_float()
                } else {
                    source.is_int() && middle.is_int() && to.is_int()
                };
                let quieting = source.is_float() && class < Class::Nan;
                if source.embeds_in(middle) && kinds && !quieting {
                    self.cast(to, source, inner, class)
                } else {
                    self.intern(Normal::Cast { to, from, x })
                }
            }
            _ => self.intern(Normal::Cast { to, from, x }),
        }
    }

    fn apply(&mut self, function: &str, dtype: DType, args: &[TermId], class: Class) -> NormalId {
        if (ring(dtype) || (dtype.is_float() && class == Class::Real))
            && let Some(p) = self.arithmetic(function, dtype, args, class)
        {
            return self.sum(dtype, p);
        }
        if ring(dtype) || dtype == DType::Bool || class >= Class::Zero {
            match function {
                "max" | "reduce max" => return self.extreme(true, false, dtype, args, class),
                "min" | "reduce min" => return self.extreme(false, false, dtype, args, class),
                _ => {}
            }
        }
        // An unknown function gives equal results for equal bits, and NaN for NaN; it may tell zeros apart.
        let args = args.iter().map(|&a| self.normal(a, class.min(Class::Nan))).collect();
        self.intern(Normal::Apply { function: function.to_owned(), dtype, args })
    }

    /// Sums and products as a polynomial; `None` for other functions, or when coefficients leave the range.
    fn arithmetic(
        &mut self,
        function: &str,
        dtype: DType,
        args: &[TermId],
        class: Class,
    ) -> Option<Polynomial<NormalId>> {
        let mut p: Vec<Polynomial<NormalId>> = Vec::with_capacity(args.len());
        if !matches!(
            function,
            "add"
                | "sub"
                | "mul"
                | "neg"
                | "dot"
                | "dot with bias"
                | "reduce sum"
                | "reduce mean"
                | "reduce prod"
        ) {
            return None;
        }
        for &a in args {
            let n = self.normal(a, class);
            p.push(self.polynomial(n, dtype)?);
        }
        let one = Coefficient::ONE;
        let total = |list: &[Polynomial<NormalId>]| {
            list.iter().try_fold(Polynomial::zero(), |s, x| s.plus(x, one, dtype))
        };
        match (function, p.as_slice()) {
            ("add", [a, b]) => a.plus(b, one, dtype),
            ("sub", [a, b]) => a.plus(b, Coefficient::MINUS_ONE, dtype),
            ("neg", [a]) => Polynomial::zero().plus(a, Coefficient::MINUS_ONE, dtype),
            ("mul", [a, b]) => a.times(b, dtype),
            ("dot", pairs) => dot(pairs, dtype),
            ("dot with bias", [pairs @ .., bias]) => dot(pairs, dtype)?.plus(bias, one, dtype),
            ("reduce sum", list) => total(list),
            ("reduce mean", list) => {
                let share = Coefficient::ratio(1, list.len() as i128)?;
                Polynomial::zero().plus(&total(list)?, share, dtype)
            }
            ("reduce prod", list) => {
                list.iter().try_fold(Polynomial::constant(one), |s, x| s.times(x, dtype))
            }
            _ => None,
        }
    }

    /// A normal form as a polynomial over normal forms.
    fn polynomial(&self, n: NormalId, dtype: DType) -> Option<Polynomial<NormalId>> {
        match self.form(n) {
            Normal::Sum { polynomial, dtype: d } if *d == dtype => Some(polynomial.clone()),
            Normal::Const { dtype: d, bits } => match Coefficient::of_bits(*d, *bits) {
                Some(c) => Some(Polynomial::constant(c)),
                None => Some(Polynomial::atom(n)),
            },
            _ => Some(Polynomial::atom(n)),
        }
    }

    fn sum(&mut self, dtype: DType, polynomial: Polynomial<NormalId>) -> NormalId {
        if polynomial.is_zero() {
            return self.intern(Normal::Const { dtype, bits: 0 });
        }
        match polynomial.as_atom() {
            Some(n) => n,
            None => self.intern(Normal::Sum { dtype, polynomial }),
        }
    }

    /// Largest or smallest: a set, because order and repetition do not matter (up to the sign of zero and NaN payloads for
    /// floats). On bool the neutral element drops out.
    /// `drops_nan`: an extreme of floats taken by a transport, where a number may win over NaN; a local one is NaN then.
    fn extreme(
        &mut self,
        largest: bool,
        drops_nan: bool,
        dtype: DType,
        args: &[TermId],
        class: Class,
    ) -> NormalId {
        let mut members = std::collections::BTreeSet::new();
        for &a in args {
            let n = self.normal(a, class);
            match self.form(n) {
                Normal::Extreme { largest: l, drops_nan: d, members: inner, .. }
                    if (*l, *d) == (largest, drops_nan) =>
                {
                    members.extend(inner.clone())
                }
                _ => {
                    members.insert(n);
                }
            }
        }
        if dtype == DType::Bool && members.len() > 1 {
            let neutral = self.intern(Normal::Const { dtype, bits: u64::from(!largest) });
            members.remove(&neutral);
        }
        let members: Vec<NormalId> = members.into_iter().collect();
        match members.as_slice() {
            [only] => *only,
            _ => self.intern(Normal::Extreme { largest, drops_nan, dtype, members }),
        }
    }

    fn combine(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        accum: Option<DType>,
        place: Place,
        operands: &[TermId],
        class: Class,
    ) -> NormalId {
        match op {
            ReduceOp::Max | ReduceOp::Min if !dtype.is_float() || class >= Class::Zero => {
                return self.extreme(op == ReduceOp::Max, dtype.is_float(), dtype, operands, class);
            }
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Prod if ring(dtype) || class == Class::Real => {
                if let Some(p) = self.reduction(op, dtype, operands, class) {
                    return self.sum(dtype, p);
                }
            }
            _ => {}
        }
        let inner = class.min(Class::Zero);
        let mut list: Vec<(u32, NormalId)> = Vec::with_capacity(operands.len());
        for (slot, &o) in (0u32..).zip(operands) {
            list.push((slot, self.normal(o, inner)));
        }
        let place = if self.fixed_order { Place { position: 0, size: 0, ..place } } else { place };
        if class == Class::Bit {
            return self.intern(Normal::Combine { op, dtype, accum, place: Some(place), operands: list });
        }
        match op {
            // x + -0.0 is x in round to nearest, whatever the order and the accumulation type, which holds x exactly; NaNs are
            // quieted. x + 0.0 is x but for x = -0.0.
            ReduceOp::Sum => {
                let before = list.first().map(|o| o.1);
                list.retain(|&(_, n)| !self.neutral(n, class));
                if list.is_empty() {
                    return before.unwrap_or_else(|| self.intern(Normal::Const { dtype, bits: 0 }));
                }
            }
            // The largest of equal values is that value.
            ReduceOp::Max | ReduceOp::Min => list.dedup_by_key(|o| o.1),
            ReduceOp::Prod | ReduceOp::Avg => {}
        }
        match list.as_slice() {
            [(_, only)] if op != ReduceOp::Avg => *only,
            // Float addition and multiplication of two commute but for NaN payloads, and there is no order left to choose.
            [a, b] if !matches!(op, ReduceOp::Max | ReduceOp::Min) => {
                let (a, b) = (a.1.min(b.1), a.1.max(b.1));
                self.intern(Normal::Combine { op, dtype, accum, place: None, operands: vec![(0, a), (1, b)] })
            }
            _ => self.intern(Normal::Combine { op, dtype, accum, place: Some(place), operands: list }),
        }
    }

    fn reduction(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        operands: &[TermId],
        class: Class,
    ) -> Option<Polynomial<NormalId>> {
        let mut p = Vec::with_capacity(operands.len());
        for &o in operands {
            let n = self.normal(o, class);
            p.push(self.polynomial(n, dtype)?);
        }
        let one = Coefficient::ONE;
        if op == ReduceOp::Prod {
            return p.iter().try_fold(Polynomial::constant(one), |s, x| s.times(x, dtype));
        }
        let total = p.iter().try_fold(Polynomial::zero(), |s, x| s.plus(x, one, dtype))?;
        match op {
            ReduceOp::Avg => {
                Polynomial::zero().plus(&total, Coefficient::ratio(1, operands.len() as i128)?, dtype)
            }
            _ => Some(total),
        }
    }

    /// Whether a term drops out of a float sum.
    fn neutral(&self, n: NormalId, class: Class) -> bool {
        match *self.form(n) {
            Normal::Const { dtype, bits } => match zero_sign(dtype, bits) {
                Some(negative) => negative || class >= Class::Zero,
                None => false,
            },
            _ => false,
        }
    }
}

fn dot(pairs: &[Polynomial<NormalId>], dtype: DType) -> Option<Polynomial<NormalId>> {
    pairs
        .chunks_exact(2)
        .try_fold(Polynomial::zero(), |s, ab| s.plus(&ab[0].times(&ab[1], dtype)?, Coefficient::ONE, dtype))
}

/// For a zero: whether it is negative.
fn zero_sign(dtype: DType, bits: u64) -> Option<bool> {
    let sign = 1u64 << (8 * dtype.size() - 1);
    match bits {
        0 => Some(false),
        b if b == sign && dtype.is_float() => Some(true),
        _ => None,
    }
}
