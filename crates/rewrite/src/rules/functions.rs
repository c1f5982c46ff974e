//! The functions that rules may use: computed attributes (`?e = element(?p, ?d)`) and guards (`replicated(?x, ?g)`).
//!
//! They see types, attributes and facts only, so the prover and the e-graph run the same code. Every change here makes the
//! proof records stale, because this file's text is part of what they are bound to.

use shardweld_ir::{DType, Group, Mesh, Scalar};

use crate::facts::Facts;
use crate::language::Attr;
use crate::replication::covers;

/// What a rule variable stands for.
#[derive(Clone, Debug)]
pub enum Bound {
    /// A tensor, by what is known about it.
    Tensor(Facts),
    /// An attribute.
    Attr(Attr),
}

/// Arguments of a function, with the mesh they live on.
#[derive(Debug)]
pub struct Args<'a> {
    /// The mesh.
    pub mesh: &'a Mesh,
    /// Arguments in order.
    pub list: &'a [&'a Bound],
}

impl<'a> Args<'a> {
    fn tensor(&self, i: usize) -> Option<&'a Facts> {
        match self.list.get(i)? {
            Bound::Tensor(f) => Some(f),
            Bound::Attr(_) => None,
        }
    }
    fn attr(&self, i: usize) -> Option<&'a Attr> {
        match self.list.get(i)? {
            Bound::Attr(a) => Some(a),
            Bound::Tensor(_) => None,
        }
    }
    fn shape(&self, i: usize) -> Option<Vec<u64>> {
        self.tensor(i)?.ty.shape.as_static()
    }
    fn dims(&self, i: usize) -> Option<&'a [u64]> {
        match self.attr(i)? {
            Attr::Dims(d) => Some(d),
            _ => None,
        }
    }
    fn int(&self, i: usize) -> Option<usize> {
        match self.attr(i)? {
            Attr::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }
    fn group(&self, i: usize) -> Option<&'a Group> {
        match self.attr(i)? {
            Attr::Group(g) => Some(g),
            _ => None,
        }
    }
    fn size(&self, i: usize) -> Option<u64> {
        Some(u64::from(self.group(i)?.size(self.mesh)))
    }
    fn dtype(&self, i: usize) -> Option<DType> {
        match self.attr(i)? {
            Attr::DType(d) => Some(*d),
            _ => None,
        }
    }
}

type Compute = fn(&Args) -> Option<Attr>;
type Test = fn(&Args) -> Option<bool>;

/// Computed attributes: name, arguments and meaning, code, whether the element type matters. `None` means that the rule does
/// not apply.
pub const COMPUTED: &[(&str, &str, Compute, bool)] = &[
    ("element", "(perm, d): perm[d]", |a| Some(Attr::Int(*a.dims(0)?.get(a.int(1)?)?)), false),
    (
        "index_in",
        "(perm, d): i with perm[i] = d",
        |a| {
            let d = a.int(1)? as u64;
            Some(Attr::Int(a.dims(0)?.iter().position(|&p| p == d)? as u64))
        },
        false,
    ),
    (
        "compose",
        "(p, q): the permutation that is p, then q",
        |a| {
            let (p, q) = (a.dims(0)?, a.dims(1)?);
            q.iter().map(|&i| p.get(usize::try_from(i).ok()?).copied()).collect::<Option<_>>().map(Attr::Dims)
        },
        false,
    ),
    (
        "permuted",
        "(x, p): shape of x permuted",
        |a| {
            let x = a.shape(0)?;
            let p = a.dims(1)?;
            p.iter().map(|&i| x.get(usize::try_from(i).ok()?).copied()).collect::<Option<_>>().map(Attr::Dims)
        },
        false,
    ),
    ("shape_of", "(x): its shape", |a| a.shape(0).map(Attr::Dims), false),
    ("dtype_of", "(x): its element type", |a| Some(Attr::DType(a.tensor(0)?.ty.dtype)), true),
    (
        "aligned",
        "(x, d, s): dimension e of s with as many elements before it as before d of x, the last such",
        |a| {
            let (x, d, s) = (a.shape(0)?, a.int(1)?, a.dims(2)?);
            aligned(&x, d, s).map(|e| Attr::Int(e as u64))
        },
        false,
    ),
    (
        "aligned_in",
        "(x, s, e): dimension d of x with as many elements before it as before e of s, the last such",
        |a| {
            let (x, s, e) = (a.shape(0)?, a.dims(1)?, a.int(2)?);
            aligned(s, e, &x).map(|d| Attr::Int(d as u64))
        },
        false,
    ),
    (
        "divided",
        "(s, d, g): shape s with dimension d divided by the size of g",
        |a| {
            let (mut s, n) = (a.dims(0)?.to_vec(), a.size(2)?);
            let slot = s.get_mut(a.int(1)?)?;
            (slot.checked_rem(n)? == 0).then(|| *slot /= n)?;
            Some(Attr::Dims(s))
        },
        false,
    ),
    (
        "multiplied",
        "(s, d, g): shape s with dimension d times the size of g",
        |a| {
            let (mut s, n) = (a.dims(0)?.to_vec(), a.size(2)?);
            let slot = s.get_mut(a.int(1)?)?;
            *slot = slot.checked_mul(n)?;
            Some(Attr::Dims(s))
        },
        false,
    ),
    (
        "exchanged",
        "(s, d, e, g): shape s with dimension d divided by, then e times the size of g",
        |a| {
            let (mut s, n) = (a.dims(0)?.to_vec(), a.size(3)?);
            let slot = s.get_mut(a.int(1)?)?;
            (slot.checked_rem(n)? == 0).then(|| *slot /= n)?;
            let slot = s.get_mut(a.int(2)?)?;
            *slot = slot.checked_mul(n)?;
            Some(Attr::Dims(s))
        },
        false,
    ),
    (
        "product_group",
        "(a, b): the group over the axes of a, then those of b; axes must be disjoint",
        |a| match (a.group(0)?, a.group(1)?) {
            (Group::Axes(x), Group::Axes(y)) if x.iter().all(|i| !y.contains(i)) => {
                Some(Attr::Group(Group::Axes(x.iter().chain(y).copied().collect())))
            }
            _ => None,
        },
        false,
    ),
    (
        "wider",
        "(x): f32 for f16, bf16 and fp8, i32 for i8, u8 and bool; no other",
        |a| {
            Some(Attr::DType(match a.tensor(0)?.ty.dtype {
                DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
                DType::I8 | DType::U8 | DType::Bool => DType::I32,
                _ => return None,
            }))
        },
        true,
    ),
    (
        "negative_zero",
        "(x): -0.0 if x is a float",
        |a| a.tensor(0)?.ty.dtype.is_float().then_some(Attr::Scalar(Scalar::Float(-0.0))),
        true,
    ),
    (
        "positive_zero",
        "(x): +0.0 if x is a float",
        |a| a.tensor(0)?.ty.dtype.is_float().then_some(Attr::Scalar(Scalar::Float(0.0))),
        true,
    ),
    (
        "integer_zero",
        "(x): 0 if x is an integer",
        |a| a.tensor(0)?.ty.dtype.is_int().then_some(Attr::Scalar(Scalar::Int(0))),
        true,
    ),
    (
        "false_if_bool",
        "(x): false if x is bool",
        |a| (a.tensor(0)?.ty.dtype == DType::Bool).then_some(Attr::Scalar(Scalar::Bool(false))),
        true,
    ),
    (
        "stacked",
        "(x): shape of x behind a new first dimension of 1",
        |a| Some(Attr::Dims(std::iter::once(1).chain(a.shape(0)?).collect())),
        false,
    ),
    (
        "one_before",
        "(x, d): shape of x with a 1 before dimension d",
        |a| {
            let (mut s, d) = (a.shape(0)?, a.int(1)?);
            (d < s.len()).then(|| s.insert(d, 1))?;
            Some(Attr::Dims(s))
        },
        false,
    ),
    (
        "group_before",
        "(x, d, g): shape of x with the size of g before dimension d",
        |a| {
            let (mut s, d, n) = (a.shape(0)?, a.int(1)?, a.size(2)?);
            (d < s.len()).then(|| s.insert(d, n))?;
            Some(Attr::Dims(s))
        },
        false,
    ),
    ("extent", "(x, d): size of dimension d", |a| Some(Attr::Int(*a.shape(0)?.get(a.int(1)?)?)), false),
    (
        "block",
        "(x, d, g): size of dimension d divided by the size of g",
        |a| {
            let (extent, n) = (*a.shape(0)?.get(a.int(1)?)?, a.size(2)?);
            (extent.checked_rem(n)? == 0).then(|| Attr::Int(extent / n))
        },
        false,
    ),
    ("zero", "(): dimension 0", |_| Some(Attr::Int(0)), false),
    ("one", "(): stride 1", |_| Some(Attr::Int(1)), false),
    ("next", "(k): k + 1", |a| Some(Attr::Int(a.int(0)? as u64 + 1)), false),
];

/// Guards: name, arguments and meaning, code. `None` counts as no.
pub const GUARDS: &[(&str, &str, Test)] = &[
    ("replicated", "(x, g): x is equal on all ranks of each group", |a| {
        Some(covers(a.tensor(0)?.replicated, a.group(1)?, a.mesh))
    }),
    ("defined", "(x): x is defined on every rank", |a| Some(a.tensor(0)?.defined)),
    ("trivial", "(g): groups of one rank", |a| Some(a.size(0)? == 1)),
    ("pair", "(g): groups of two ranks", |a| Some(a.size(0)? == 2)),
    ("different", "(a, b): the attributes differ", |a| Some(a.attr(0)? != a.attr(1)?)),
    ("identity", "(p): a permutation that moves nothing", |a| {
        Some(a.dims(0)?.iter().enumerate().all(|(i, &p)| p == i as u64))
    }),
    ("moves_ones", "(x, p): the order of dimensions larger than 1 stays", |a| {
        let x = a.shape(0)?;
        let big: Vec<u64> =
            a.dims(1)?.iter().copied().filter(|&p| x.get(p as usize).is_some_and(|&n| n != 1)).collect();
        Some(big.is_sorted())
    }),
    ("has_shape", "(x, s): x has shape s", |a| Some(a.shape(0)? == a.dims(1)?)),
    ("has_dtype", "(x, t): x has element type t", |a| Some(a.tensor(0)?.ty.dtype == a.dtype(1)?)),
    ("embeds", "(x, t): every value of x's type is one of t", |a| {
        Some(a.tensor(0)?.ty.dtype.embeds_in(a.dtype(1)?))
    }),
    ("representable", "(x, t): every element of x is a value of t", |a| {
        Some(a.tensor(0)?.representable(a.dtype(1)?))
    }),
    ("one_kind", "(x, t): both float or both integer", |a| {
        let (x, t) = (a.tensor(0)?.ty.dtype, a.dtype(1)?);
        Some((x.is_float() && t.is_float()) || (x.is_int() && t.is_int()))
    }),
    ("disjoint", "(a, b): groups over mesh axes that share none", |a| match (a.group(0)?, a.group(1)?) {
        (Group::Axes(x), Group::Axes(y)) => Some(x.iter().all(|i| !y.contains(i))),
        _ => Some(false),
    }),
];

/// The dimension of `to` that starts where dimension `d` of `from` starts, in row-major order; of several the last, so that
/// sizes of 1 are passed over.
fn aligned(from: &[u64], d: usize, to: &[u64]) -> Option<usize> {
    if d >= from.len() {
        return None;
    }
    let wanted: u64 = from.get(..d)?.iter().try_fold(1u64, |p, &n| p.checked_mul(n))?;
    let mut before = 1u64;
    let mut found = None;
    for (e, &n) in to.iter().enumerate() {
        if before == wanted {
            found = Some(e);
        }
        before = before.checked_mul(n)?;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_skips_ones_and_refuses_left_merges() {
        assert_eq!(aligned(&[4, 1, 6], 0, &[1, 24]), Some(1));
        assert_eq!(aligned(&[2, 6], 1, &[2, 1, 3, 2]), Some(2));
        assert_eq!(aligned(&[2, 6], 1, &[12]), None);
        assert_eq!(aligned(&[2], 3, &[2]), None);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = COMPUTED.iter().map(|f| f.0).chain(GUARDS.iter().map(|f| f.0)).collect();
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
