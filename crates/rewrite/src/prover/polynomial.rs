//! Polynomials with exact coefficients: the normal form of sums and products, over the reals for floats, wrapping for
//! integers.

use std::collections::BTreeMap;

use shardweld_ir::DType;

/// Most terms of a polynomial; larger ones are not normalised.
const MAX_TERMS: usize = 4096;

/// Whether arithmetic of this type is a ring (wrapping integers).
pub(super) fn ring(dtype: DType) -> bool {
    dtype.is_int()
}

/// A rational number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coefficient {
    numerator: i128,
    denominator: i128,
}

impl Coefficient {
    /// 1.
    pub const ONE: Coefficient = Coefficient { numerator: 1, denominator: 1 };
    /// -1.
    pub const MINUS_ONE: Coefficient = Coefficient { numerator: -1, denominator: 1 };

    /// A fraction in lowest terms; `None` if the denominator is not positive.
    pub fn ratio(numerator: i128, denominator: i128) -> Option<Coefficient> {
        if denominator <= 0 {
            return None;
        }
        let g = gcd(numerator.unsigned_abs(), denominator.unsigned_abs()) as i128;
        Some(Coefficient { numerator: numerator / g, denominator: denominator / g })
    }

    /// The value of a constant, if it is a small enough dyadic number.
    pub fn of_bits(dtype: DType, bits: u64) -> Option<Coefficient> {
        let whole = |n: i64| Coefficient::ratio(i128::from(n), 1);
        let x = match dtype {
            DType::I64 => return whole(bits as i64),
            DType::I32 => return whole(i64::from(bits as u32 as i32)),
            DType::I8 => return whole(i64::from(bits as u8 as i8)),
            DType::U8 => return whole(i64::from(bits as u8)),
            DType::F32 => f64::from(f32::from_bits(bits as u32)),
            DType::BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
            DType::F64 => f64::from_bits(bits),
            DType::F16 | DType::F8E4M3 | DType::Bool => return None,
        };
        const SCALE: f64 = 1_048_576.0;
        let scaled = x * SCALE;
        (scaled.is_finite() && scaled.fract() == 0.0 && scaled.abs() < 1e15)
            .then(|| Coefficient::ratio(scaled as i128, SCALE as i128))
            .flatten()
    }

    fn plus(self, other: Coefficient) -> Option<Coefficient> {
        let a = self.numerator.checked_mul(other.denominator)?;
        let b = other.numerator.checked_mul(self.denominator)?;
        Coefficient::ratio(a.checked_add(b)?, self.denominator.checked_mul(other.denominator)?)
    }

    fn times(self, other: Coefficient) -> Option<Coefficient> {
        Coefficient::ratio(
            self.numerator.checked_mul(other.numerator)?,
            self.denominator.checked_mul(other.denominator)?,
        )
    }

    /// The representative in the ring of an integer type.
    fn wrapped(self, dtype: DType) -> Coefficient {
        if !ring(dtype) {
            return self;
        }
        let modulus = 1i128 << (8 * dtype.size());
        Coefficient { numerator: self.numerator.rem_euclid(modulus), denominator: 1 }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// A polynomial over atoms: products of atoms (sorted) with coefficients other than 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Polynomial<A: Ord> {
    terms: BTreeMap<Vec<A>, Coefficient>,
}

impl<A: Ord + Copy> Polynomial<A> {
    /// 0.
    pub fn zero() -> Self {
        Polynomial { terms: BTreeMap::new() }
    }

    /// A number.
    pub fn constant(c: Coefficient) -> Self {
        let terms = if c.numerator == 0 { BTreeMap::new() } else { BTreeMap::from([(Vec::new(), c)]) };
        Polynomial { terms }
    }

    /// An atom.
    pub fn atom(a: A) -> Self {
        Polynomial { terms: BTreeMap::from([(vec![a], Coefficient::ONE)]) }
    }

    /// Whether this is 0.
    pub fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    /// The atom, if this is one.
    pub fn as_atom(&self) -> Option<A> {
        let mut terms = self.terms.iter();
        match (terms.next(), terms.next()) {
            (Some((atoms, &Coefficient::ONE)), None) if atoms.len() == 1 => atoms.first().copied(),
            _ => None,
        }
    }

    fn add(&mut self, atoms: Vec<A>, c: Coefficient, dtype: DType) -> Option<()> {
        use std::collections::btree_map::Entry;
        match self.terms.entry(atoms) {
            Entry::Vacant(slot) => {
                let c = c.wrapped(dtype);
                if c.numerator != 0 {
                    slot.insert(c);
                }
            }
            Entry::Occupied(mut slot) => {
                let c = slot.get().plus(c)?.wrapped(dtype);
                if c.numerator == 0 {
                    slot.remove();
                } else {
                    slot.insert(c);
                }
            }
        }
        (self.terms.len() <= MAX_TERMS).then_some(())
    }

    /// This plus `factor` times the other; `None` if numbers or terms leave the range.
    pub fn plus(&self, other: &Self, factor: Coefficient, dtype: DType) -> Option<Self> {
        let mut out = self.clone();
        for (atoms, c) in &other.terms {
            out.add(atoms.clone(), c.times(factor)?, dtype)?;
        }
        Some(out)
    }

    /// The product; `None` if numbers or terms leave the range.
    pub fn times(&self, other: &Self, dtype: DType) -> Option<Self> {
        let mut out = Polynomial::zero();
        for (a, x) in &self.terms {
            for (b, y) in &other.terms {
                let mut atoms: Vec<A> = a.iter().chain(b).copied().collect();
                atoms.sort_unstable();
                out.add(atoms, x.times(*y)?, dtype)?;
            }
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_expand_and_cancel() {
        let (a, b) = (Polynomial::atom(1), Polynomial::atom(2));
        let one = Coefficient::ONE;
        let sum = a.plus(&b, one, DType::F32).unwrap();
        let difference = a.plus(&b, Coefficient::MINUS_ONE, DType::F32).unwrap();
        let left = sum.times(&difference, DType::F32).unwrap();
        let squares = a.times(&a, DType::F32).unwrap();
        let right =
            squares.plus(&b.times(&b, DType::F32).unwrap(), Coefficient::MINUS_ONE, DType::F32).unwrap();
        assert_eq!(left, right);
        assert_ne!(left, sum);
    }

    #[test]
    fn integers_wrap() {
        let a = Polynomial::atom(1);
        let many = Coefficient::ratio(256, 1).unwrap();
        assert!(Polynomial::zero().plus(&a, many, DType::U8).unwrap().is_zero());
        assert!(!Polynomial::zero().plus(&a, many, DType::I32).unwrap().is_zero());
    }
}
