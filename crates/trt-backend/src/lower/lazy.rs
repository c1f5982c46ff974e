//! Values whose layers are not written yet: shuffles, repetitions and concatenations that the next op may absorb.

use shardweld_ir::Literal;

use crate::trace::{TensorId, TraceWeight};

/// A value during lowering.
#[derive(Clone, Debug)]
pub(super) enum Lazy {
    /// A tensor seen through at most one shuffle layer.
    View(View),
    /// A tensor with dimensions of size 1 that stand for `dims`.
    Expand {
        /// The tensor; equal rank.
        base: TensorId,
        /// Shape of the value.
        dims: Vec<u64>,
    },
    /// Ranges of tensors, concatenated along a dimension.
    Pieces {
        /// Dimension.
        dim: u32,
        /// In order, at least one.
        parts: Vec<Piece>,
    },
    /// A constant that no call holds yet, so that its shape is still free.
    Data {
        /// What.
        data: Data,
        /// Shape of the value.
        dims: Vec<u64>,
    },
}

/// A constant.
#[derive(Clone, Debug)]
pub(super) enum Data {
    /// Small.
    Literal(Literal),
    /// Embedded weight.
    Weight(TraceWeight),
}

/// A range of a tensor along the dimension of its [`Lazy::Pieces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub tensor: TensorId,
    pub start: u64,
    pub len: u64,
}

/// One step of a shuffle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Dimension i of the result is dimension `p[i]` of the operand.
    Transpose(Vec<u32>),
    /// New shape.
    Reshape(Vec<u64>),
}

/// A tensor and the shuffle steps on it, in a form that one `IShuffleLayer` does: transpose, reshape, transpose, each
/// optional.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub base: TensorId,
    /// Shape of the base.
    pub base_dims: Vec<u64>,
    /// Shape after all steps.
    pub dims: Vec<u64>,
    pub steps: Vec<Step>,
    /// Source nodes of the steps.
    pub sources: Vec<String>,
}

impl View {
    pub(super) fn of(base: TensorId, dims: &[u64]) -> View {
        View { base, base_dims: dims.to_vec(), dims: dims.to_vec(), steps: Vec::new(), sources: Vec::new() }
    }

    /// The view with one more step; `None` if one layer cannot do all of them.
    pub(super) fn then(&self, step: Step, sources: &[String]) -> Option<View> {
        let mut v = self.clone();
        v.apply(step);
        for s in sources {
            if !v.sources.contains(s) {
                v.sources.push(s.clone());
            }
        }
        let fits = matches!(
            v.steps.as_slice(),
            [] | [_]
                | [Step::Transpose(_), Step::Reshape(_)]
                | [Step::Reshape(_), Step::Transpose(_)]
                | [Step::Transpose(_), Step::Reshape(_), Step::Transpose(_)]
        );
        fits.then_some(v)
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Transpose(p) => {
                let dims: Vec<u64> =
                    p.iter().map(|&i| self.dims.get(i as usize).copied().unwrap_or(1)).collect();
                // Moving dimensions of size 1 moves no element.
                let moved: Vec<u32> =
                    p.iter().copied().filter(|&i| self.dims.get(i as usize) != Some(&1)).collect();
                if moved.is_sorted() {
                    return self.apply(Step::Reshape(dims));
                }
                self.dims = dims;
                if let Some(Step::Transpose(q)) = self.steps.last_mut() {
                    let both: Vec<u32> = p.iter().map(|&i| q.get(i as usize).copied().unwrap_or(i)).collect();
                    if both.iter().enumerate().all(|(i, &b)| i == b as usize) {
                        self.steps.pop();
                    } else {
                        *q = both;
                    }
                } else {
                    self.steps.push(Step::Transpose(p));
                }
            }
            Step::Reshape(dims) => {
                self.dims.clone_from(&dims);
                if matches!(self.steps.last(), Some(Step::Reshape(_))) {
                    self.steps.pop();
                }
                if self.dims_after_steps() != dims {
                    self.steps.push(Step::Reshape(dims));
                }
            }
        }
    }

    fn dims_after_steps(&self) -> Vec<u64> {
        self.steps.iter().fold(self.base_dims.clone(), |dims, step| match step {
            Step::Reshape(d) => d.clone(),
            Step::Transpose(p) => p.iter().map(|&i| dims.get(i as usize).copied().unwrap_or(1)).collect(),
        })
    }

    /// Whether the steps swap the last two dimensions and do nothing else.
    pub(super) fn swaps_last_two(&self) -> bool {
        let [Step::Transpose(p)] = self.steps.as_slice() else { return false };
        let n = p.len();
        n >= 2
            && p[..n - 2].iter().enumerate().all(|(i, &x)| i == x as usize)
            && p[n - 2] as usize == n - 1
            && p[n - 1] as usize == n - 2
    }
}

/// Replaces the range `start..start + update.len` of a list of pieces.
pub(super) fn overwrite(parts: &[Piece], start: u64, update: Piece) -> Vec<Piece> {
    let end = start + update.len;
    let mut out = Vec::new();
    out.extend(range(parts, 0, start));
    out.push(update);
    let total: u64 = parts.iter().map(|p| p.len).sum();
    out.extend(range(parts, end, total));
    out
}

/// The range `start..end` of a list of pieces.
pub(super) fn range(parts: &[Piece], start: u64, end: u64) -> Vec<Piece> {
    let mut at = 0;
    let mut out: Vec<Piece> = Vec::new();
    for p in parts {
        let (from, to) = (start.max(at), end.min(at + p.len));
        if from < to {
            let piece = Piece { tensor: p.tensor, start: p.start + (from - at), len: to - from };
            match out.last_mut() {
                Some(last) if last.tensor == piece.tensor && last.start + last.len == piece.start => {
                    last.len += piece.len;
                }
                _ => out.push(piece),
            }
        }
        at += p.len;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(t: u32, start: u64, len: u64) -> Piece {
        Piece { tensor: TensorId(t), start, len }
    }

    #[test]
    fn head_split_and_merge_are_one_shuffle_each() {
        let v = View::of(TensorId(0), &[2, 6, 12]);
        let split = v
            .then(Step::Reshape(vec![2, 6, 3, 4]), &[])
            .and_then(|v| v.then(Step::Transpose(vec![0, 2, 1, 3]), &[]))
            .unwrap();
        assert_eq!(split.dims, [2, 3, 6, 4]);
        assert_eq!(split.steps.len(), 2);
        // A reshape after that cannot be absorbed.
        assert!(split.then(Step::Reshape(vec![6, 24]), &[]).is_none());
    }

    #[test]
    fn inverse_steps_cancel() {
        let v = View::of(TensorId(0), &[2, 3, 4]);
        let v = v.then(Step::Transpose(vec![2, 0, 1]), &[]).unwrap();
        let v = v.then(Step::Transpose(vec![1, 2, 0]), &[]).unwrap();
        assert!(v.steps.is_empty());
        let v = v.then(Step::Reshape(vec![24]), &[]).unwrap();
        let v = v.then(Step::Reshape(vec![2, 3, 4]), &[]).unwrap();
        assert!(v.steps.is_empty());
    }

    #[test]
    fn transposes_of_unit_dimensions_are_reshapes() {
        let v = View::of(TensorId(0), &[1, 3, 4]);
        let moved = v.then(Step::Transpose(vec![1, 0, 2]), &[]).unwrap();
        assert_eq!(moved.steps, [Step::Reshape(vec![3, 1, 4])]);
        let real = v.then(Step::Transpose(vec![0, 2, 1]), &[]).unwrap();
        assert_eq!(real.steps, [Step::Transpose(vec![0, 2, 1])]);
        assert!(real.swaps_last_two());
        assert!(!moved.swaps_last_two());
    }

    #[test]
    fn writing_both_halves_leaves_nothing_of_the_base() {
        let base = [piece(0, 0, 8)];
        let one = overwrite(&base, 0, piece(1, 0, 4));
        assert_eq!(one, [piece(1, 0, 4), piece(0, 4, 4)]);
        assert_eq!(overwrite(&one, 4, piece(2, 0, 4)), [piece(1, 0, 4), piece(2, 0, 4)]);
        assert_eq!(range(&one, 2, 6), [piece(1, 2, 2), piece(0, 4, 2)]);
        // Neighbouring ranges of one tensor join.
        assert_eq!(range(&[piece(0, 0, 4), piece(0, 4, 4)], 1, 7), [piece(0, 1, 6)]);
    }
}
