//! Lazy operations on weight views: slicing, transposing, reshaping and concatenating move no data.

use std::path::Path;

use thiserror::Error;

use crate::graph::Graph;
use crate::mesh::Mesh;
use crate::types::DType;
use crate::weight::{StridedView, Weight, WeightView, row_major_strides};

/// Why a lazy operation on a view was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ViewError {
    /// A dimension that the view does not have.
    #[error("dimension {dim} of a view with {rank} dimensions")]
    NoSuchDim {
        /// Dimension found.
        dim: u32,
        /// Dimensions of the view.
        rank: usize,
    },
    /// A range that the dimension does not hold.
    #[error(
        "slice {start}..{limit} step {stride} of a dimension of {size}; expected start <= limit <= {size}, step >= 1"
    )]
    Range {
        /// First index.
        start: u64,
        /// One past the last index considered.
        limit: u64,
        /// Step.
        stride: u64,
        /// Size of the dimension.
        size: u64,
    },
    /// A list that permutes nothing.
    #[error("{perm:?} is no permutation of {rank} dimensions")]
    NotAPermutation {
        /// The list.
        perm: Vec<u32>,
        /// Dimensions of the view.
        rank: usize,
    },
    /// A new shape with another number of elements.
    #[error(
        "a view of shape {found:?} cannot take the shape {expected:?}: the numbers of elements differ or overflow"
    )]
    Elements {
        /// Shape of the view.
        found: Vec<u64>,
        /// Shape asked for.
        expected: Vec<u64>,
    },
    /// Parts that do not concatenate.
    #[error("parts do not concatenate along dimension {dim}: {reason}")]
    Parts {
        /// Dimension.
        dim: u32,
        /// What is wrong.
        reason: String,
    },
    /// Part of a concatenation has no data.
    #[error("a part of a concatenation has no data")]
    AbsentPart,
    /// Arithmetic on sizes or offsets left 64 bits.
    #[error("sizes, strides or offsets of the view overflow")]
    Overflow,
}

type Result<T> = std::result::Result<T, ViewError>;

impl StridedView {
    /// Number of elements; `None` on overflow.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
    }

    fn slice(&self, dim: u32, start: u64, limit: u64, stride: u64) -> Result<StridedView> {
        let d = in_range(dim, self.shape.len())?;
        check_range(start, limit, stride, self.shape[d])?;
        let mut v = self.clone();
        let step = *self.strides.get(d).ok_or(ViewError::Overflow)?;
        v.shape[d] = (limit - start).div_ceil(stride);
        if v.shape[d] > 0 {
            let skipped = start.checked_mul(step).ok_or(ViewError::Overflow)?;
            v.offset = v.offset.checked_add(skipped).ok_or(ViewError::Overflow)?;
        }
        // With at most one element left the stride is never used, so it may not overflow.
        if v.shape[d] > 1 {
            v.strides[d] = step.checked_mul(stride).ok_or(ViewError::Overflow)?;
        }
        Ok(v)
    }

    fn transpose(&self, perm: &[u32]) -> Result<StridedView> {
        check_permutation(perm, self.shape.len())?;
        let pick =
            |xs: &[u64]| -> Option<Vec<u64>> { perm.iter().map(|&p| xs.get(p as usize).copied()).collect() };
        let (Some(shape), Some(strides)) = (pick(&self.shape), pick(&self.strides)) else {
            return Err(ViewError::Overflow);
        };
        Ok(StridedView { shape, strides, ..self.clone() })
    }

    /// The view with another shape if strides can express it.
    fn reshape(&self, shape: &[u64]) -> Result<Option<StridedView>> {
        let n = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        if n.is_none() || self.elements() != n {
            return Err(ViewError::Elements { found: self.shape.clone(), expected: shape.to_vec() });
        }
        if n == Some(0) || n == Some(1) {
            let strides = row_major_strides(shape);
            return Ok(Some(StridedView { shape: shape.to_vec(), strides, ..self.clone() }));
        }
        let old: Vec<(u64, u64)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(n, _)| n != 1).collect();
        let mut strides = vec![1u64; shape.len()];
        let (mut i, mut j) = (0, 0);
        while i < old.len() && j < shape.len() {
            // Grow one group of old and one of new dimensions until they hold equally many elements.
            let (first_old, first_new) = (i, j);
            let (mut a, mut b) = (old[i].0, shape[j]);
            while a != b {
                if a < b {
                    i += 1;
                    let Some(next) = old.get(i) else { return Ok(None) };
                    a = a.saturating_mul(next.0);
                } else {
                    j += 1;
                    let Some(&next) = shape.get(j) else { return Ok(None) };
                    b = b.saturating_mul(next);
                }
            }
            let joined = old[first_old..=i].windows(2).all(|w| w[1].1.checked_mul(w[1].0) == Some(w[0].1));
            if !joined {
                return Ok(None);
            }
            let mut step = old[i].1;
            for k in (first_new..=j).rev() {
                strides[k] = step;
                step = step.saturating_mul(shape[k]);
            }
            i += 1;
            j += 1;
        }
        Ok(Some(StridedView { shape: shape.to_vec(), strides, ..self.clone() }))
    }

    /// The window that covers `self` and then `next` along dimension `d`, if both lie so in one blob.
    fn joined(&self, next: &StridedView, d: usize) -> Option<StridedView> {
        let after = self.offset.checked_add(self.shape.get(d)?.checked_mul(*self.strides.get(d)?)?)?;
        let same = self.blob == next.blob
            && self.dtype == next.dtype
            && self.strides == next.strides
            && after == next.offset
            && self.shape.len() == next.shape.len()
            && self.shape.iter().zip(&next.shape).enumerate().all(|(i, (a, b))| i == d || a == b);
        let mut v = self.clone();
        v.shape[d] = v.shape[d].checked_add(*next.shape.get(d)?)?;
        same.then_some(v)
    }
}

impl WeightView {
    /// Element type and shape; `None` if there is no data.
    ///
    /// # Errors
    /// If the parts of a concatenation do not fit each other.
    pub fn ty(&self) -> Result<Option<(DType, Vec<u64>)>> {
        match self {
            WeightView::Absent => Ok(None),
            WeightView::Strided(v) => Ok(Some((v.dtype, v.shape.clone()))),
            WeightView::Concat { dim, parts } => {
                let bad = |reason: String| ViewError::Parts { dim: *dim, reason };
                let mut total: Option<(DType, Vec<u64>)> = None;
                for p in parts {
                    let (dtype, shape) = p.ty()?.ok_or(ViewError::AbsentPart)?;
                    let d = in_range(*dim, shape.len())?;
                    let Some((t, s)) = &mut total else {
                        total = Some((dtype, shape));
                        continue;
                    };
                    let fits = s.len() == shape.len()
                        && s.iter().zip(&shape).enumerate().all(|(i, (a, b))| i == d || a == b);
                    if *t != dtype || !fits {
                        return Err(bad(format!("{dtype}{shape:?} after {t}{s:?}")));
                    }
                    s[d] = s[d].checked_add(shape[d]).ok_or(ViewError::Overflow)?;
                }
                total.map(Some).ok_or_else(|| bad("there are none".into()))
            }
        }
    }

    /// Elements `start, start + stride, ..` below `limit` of one dimension. An absent view stays absent.
    ///
    /// # Errors
    /// If the dimension or the range does not exist.
    pub fn slice(&self, dim: u32, start: u64, limit: u64, stride: u64) -> Result<WeightView> {
        match self {
            WeightView::Absent => Ok(WeightView::Absent),
            WeightView::Strided(v) => v.slice(dim, start, limit, stride).map(WeightView::Strided),
            WeightView::Concat { dim: along, parts } if *along != dim => {
                let parts =
                    parts.iter().map(|p| p.slice(dim, start, limit, stride)).collect::<Result<_>>()?;
                Ok(WeightView::Concat { dim: *along, parts })
            }
            WeightView::Concat { parts, .. } => {
                let size = size_of(self, dim)?;
                check_range(start, limit, stride, size)?;
                let mut taken = Vec::new();
                let (mut base, mut next) = (0u64, start);
                for p in parts {
                    let end = base + size_of(p, dim)?;
                    let stop = limit.min(end);
                    if next < stop {
                        taken.push(p.slice(dim, next - base, stop - base, stride)?);
                        let count = (stop - next).div_ceil(stride);
                        let step = count.checked_mul(stride).and_then(|s| next.checked_add(s));
                        next = step.unwrap_or(u64::MAX);
                    }
                    base = end;
                }
                match taken.is_empty() {
                    // An empty range still has a type; any part gives it.
                    true => parts.first().ok_or(ViewError::AbsentPart)?.slice(dim, 0, 0, 1),
                    false => WeightView::concat(dim, taken),
                }
            }
        }
    }

    /// Dimension i of the result is dimension `perm[i]` of the view. An absent view stays absent.
    ///
    /// # Errors
    /// If `perm` is no permutation of the dimensions.
    pub fn transpose(&self, perm: &[u32]) -> Result<WeightView> {
        match self {
            WeightView::Absent => Ok(WeightView::Absent),
            WeightView::Strided(v) => v.transpose(perm).map(WeightView::Strided),
            WeightView::Concat { dim, parts } => {
                let rank = perm.len();
                let to = perm
                    .iter()
                    .position(|p| p == dim)
                    .ok_or(ViewError::NotAPermutation { perm: perm.to_vec(), rank })?;
                let parts = parts.iter().map(|p| p.transpose(perm)).collect::<Result<_>>()?;
                Ok(WeightView::Concat { dim: to as u32, parts })
            }
        }
    }

    /// The same elements in row-major order under another shape; `None` if only a copy could do it. An absent view stays
    /// absent.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshape(&self, shape: &[u64]) -> Result<Option<WeightView>> {
        let (dim, parts) = match self {
            WeightView::Absent => return Ok(Some(WeightView::Absent)),
            WeightView::Strided(v) => return Ok(v.reshape(shape)?.map(WeightView::Strided)),
            WeightView::Concat { dim, parts } => (*dim as usize, parts),
        };
        let Some((_, found)) = self.ty()? else { return Err(ViewError::AbsentPart) };
        let product = |s: &[u64]| s.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        if product(shape).is_none() || product(&found) != product(shape) {
            return Err(ViewError::Elements { found, expected: shape.to_vec() });
        }
        // The parts stay whole if some new dimension has as many elements before it and cuts each part evenly.
        let before = product(&found[..dim]);
        let part_shapes = parts
            .iter()
            .map(|p| p.ty()?.map(|t| t.1).ok_or(ViewError::AbsentPart))
            .collect::<Result<Vec<_>>>()?;
        for j in 0..shape.len() {
            let inner = product(&shape[j + 1..]).unwrap_or(0);
            if product(&shape[..j]) != before || inner == 0 {
                continue;
            }
            let tails: Option<Vec<u64>> = part_shapes.iter().map(|s| product(&s[dim..])).collect();
            let Some(tails) = tails.filter(|t| t.iter().all(|n| n % inner == 0)) else { continue };
            let mut out = Vec::with_capacity(parts.len());
            for (p, tail) in parts.iter().zip(tails) {
                let mut s = shape.to_vec();
                s[j] = tail / inner;
                match p.reshape(&s)? {
                    Some(v) => out.push(v),
                    None => return Ok(None),
                }
            }
            return WeightView::concat(j as u32, out).map(Some);
        }
        Ok(None)
    }

    /// Several views, concatenated. Neighbours that are neighbours in their blob become one window again.
    ///
    /// # Errors
    /// If there is no part, or parts differ outside the dimension.
    pub fn concat(dim: u32, parts: Vec<WeightView>) -> Result<WeightView> {
        if !parts.is_empty() && parts.iter().all(|p| *p == WeightView::Absent) {
            return Ok(WeightView::Absent);
        }
        let mut flat: Vec<WeightView> = Vec::with_capacity(parts.len());
        for p in parts {
            match p {
                WeightView::Concat { dim: d, parts } if d == dim => flat.extend(parts),
                other => flat.push(other),
            }
        }
        WeightView::Concat { dim, parts: flat.clone() }.ty()?;
        let mut merged: Vec<WeightView> = Vec::with_capacity(flat.len());
        for p in flat {
            if let (Some(WeightView::Strided(last)), WeightView::Strided(v)) = (merged.last_mut(), &p)
                && let Some(joined) = last.joined(v, dim as usize)
            {
                *last = joined;
                continue;
            }
            merged.push(p);
        }
        match <[WeightView; 1]>::try_from(merged) {
            Ok([only]) => Ok(only),
            Err(parts) => Ok(WeightView::Concat { dim, parts }),
        }
    }
}

impl Graph {
    /// Makes relative names of weight files relative to `folder`, which is where the graph's own file lies.
    pub fn resolve_weight_files(&mut self, folder: &Path) {
        fn resolve(view: &mut WeightView, folder: &Path) {
            match view {
                WeightView::Absent => {}
                // Joining keeps absolute names.
                WeightView::Strided(v) => v.blob.file = folder.join(&v.blob.file),
                WeightView::Concat { parts, .. } => parts.iter_mut().for_each(|p| resolve(p, folder)),
            }
        }
        self.weights_mut().iter_mut().flat_map(|w| &mut w.shards).for_each(|v| resolve(v, folder));
    }
}

impl Weight {
    /// The data of one rank; `None` if the table of shards is too short.
    pub fn shard_for(&self, mesh: &Mesh, rank: u32) -> Option<&WeightView> {
        self.shards.get(mesh.index_over(rank, &self.over))
    }
}

fn size_of(view: &WeightView, dim: u32) -> Result<u64> {
    let (_, shape) = view.ty()?.ok_or(ViewError::AbsentPart)?;
    Ok(shape[in_range(dim, shape.len())?])
}

fn in_range(dim: u32, rank: usize) -> Result<usize> {
    if (dim as usize) < rank { Ok(dim as usize) } else { Err(ViewError::NoSuchDim { dim, rank }) }
}

fn check_range(start: u64, limit: u64, stride: u64, size: u64) -> Result<()> {
    if stride == 0 || start > limit || limit > size {
        return Err(ViewError::Range { start, limit, stride, size });
    }
    Ok(())
}

fn check_permutation(perm: &[u32], rank: usize) -> Result<()> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if sorted.len() == rank && sorted.iter().enumerate().all(|(i, &p)| p as usize == i) {
        return Ok(());
    }
    Err(ViewError::NotAPermutation { perm: perm.to_vec(), rank })
}
