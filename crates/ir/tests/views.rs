//! Lazy view operations against the same operations on dense data.

use proptest::prelude::*;
use shardweld_ir::testing::Rng;
use shardweld_ir::{Blob, BlobEntry, DType, StridedView, WeightStore, WeightView};

/// A tensor with its elements in row-major order: the model that views are compared with.
#[derive(Clone, Debug)]
struct Dense {
    shape: Vec<u64>,
    data: Vec<u16>,
}

impl Dense {
    /// A tensor of another shape whose element at an index is `self`'s at `source(index)`.
    fn pick(&self, shape: Vec<u64>, source: impl Fn(&[u64]) -> Vec<u64>) -> Dense {
        let mut data = Vec::new();
        for flat in 0..shape.iter().product::<u64>() {
            let mut rest = flat;
            let mut index = vec![0; shape.len()];
            for (i, n) in shape.iter().enumerate().rev() {
                index[i] = rest % n;
                rest /= n;
            }
            let at = source(&index).iter().zip(&self.shape).fold(0, |a, (i, n)| a * n + i);
            data.push(self.data[at as usize]);
        }
        Dense { shape, data }
    }

    fn slice(&self, dim: usize, start: u64, limit: u64, stride: u64) -> Dense {
        let mut shape = self.shape.clone();
        shape[dim] = (limit - start).div_ceil(stride);
        self.pick(shape, |i| {
            let mut s = i.to_vec();
            s[dim] = start + i[dim] * stride;
            s
        })
    }

    fn transpose(&self, perm: &[u32]) -> Dense {
        let shape = perm.iter().map(|&p| self.shape[p as usize]).collect();
        self.pick(shape, |i| {
            let mut s = vec![0; i.len()];
            for (k, &p) in perm.iter().enumerate() {
                s[p as usize] = i[k];
            }
            s
        })
    }

    fn concat(dim: usize, a: &Dense, b: &Dense) -> Dense {
        let outer: u64 = a.shape[..dim].iter().product();
        let block = |d: &Dense| d.shape[dim..].iter().product::<u64>() as usize;
        let (na, nb) = (block(a), block(b));
        let data = (0..outer as usize)
            .flat_map(|o| a.data[o * na..(o + 1) * na].iter().chain(&b.data[o * nb..(o + 1) * nb]).copied())
            .collect();
        let mut shape = a.shape.clone();
        shape[dim] += b.shape[dim];
        Dense { shape, data }
    }
}

fn factored(rng: &mut Rng, mut n: u64) -> Vec<u64> {
    let mut shape = Vec::new();
    while n > 1 {
        let divisors: Vec<u64> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
        let d = *rng.pick(&divisors).unwrap();
        shape.push(d);
        n /= d;
    }
    if shape.is_empty() || rng.one_in(4) {
        shape.push(1);
    }
    rng.shuffle(&mut shape);
    shape
}

/// Runs random operations on a view and on its model; returns how many reshapes were lazy.
fn walk(seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let shape = [2u64, 3, 4, 2];
    let data: Vec<u16> = (0..50).collect();
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let blob = Blob { file: file.path().to_owned(), entry: BlobEntry::Raw { offset: 2, len: 98 } };
    let mut base = StridedView::contiguous(blob, DType::BF16, &shape);
    base.offset = 1;
    let mut view = WeightView::Strided(base);
    let mut dense = Dense { shape: shape.to_vec(), data: data[2..].to_vec() };
    let store = WeightStore::new();
    let mut lazy = 0;
    for _ in 0..12 {
        let rank = dense.shape.len();
        let dim = rng.below(rank);
        match rng.below(4) {
            0 => {
                let n = dense.shape[dim];
                let start = rng.below(n as usize) as u64;
                let limit = start + 1 + rng.below((n - start) as usize) as u64;
                let stride = 1 + rng.below(3) as u64;
                view = view.slice(dim as u32, start, limit, stride).unwrap();
                dense = dense.slice(dim, start, limit, stride);
            }
            1 => {
                let mut perm: Vec<u32> = (0..rank as u32).collect();
                rng.shuffle(&mut perm);
                view = view.transpose(&perm).unwrap();
                dense = dense.transpose(&perm);
            }
            2 => {
                let shape = factored(&mut rng, dense.shape.iter().product());
                let contiguous = matches!(&view, WeightView::Strided(v) if v.is_contiguous());
                match view.reshape(&shape).unwrap() {
                    Some(v) => {
                        lazy += 1;
                        view = v;
                        dense.shape = shape;
                    }
                    None => assert!(!contiguous, "a contiguous view takes any shape"),
                }
            }
            _ if dense.data.len() <= 200 => {
                let n = dense.shape[dim];
                let (from, to) = (rng.below(n as usize) as u64, n);
                let other = view.slice(dim as u32, from, to, 1).unwrap();
                view = WeightView::concat(dim as u32, vec![view, other]).unwrap();
                dense = Dense::concat(dim, &dense, &dense.slice(dim, from, to, 1));
            }
            _ => {}
        }
        assert_eq!(view.ty().unwrap(), Some((DType::BF16, dense.shape.clone())));
        let expected: Vec<u8> = dense.data.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(*store.view_bytes(&view).unwrap(), expected[..], "{view:?}");
    }
    lazy
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn views_agree_with_dense_tensors(seed in any::<u64>()) {
        walk(seed);
    }
}

#[test]
fn reshapes_are_often_lazy() {
    let lazy: usize = (0..200).map(walk).sum();
    assert!(lazy > 200, "only {lazy} of about 600 reshapes needed no copy");
}
