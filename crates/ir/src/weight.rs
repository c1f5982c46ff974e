//! Weights by reference: where the bytes of a tensor lie. Nothing here opens a file; that is `store`'s job.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::mesh::AxisId;
use crate::types::{DType, TensorType};

/// Index in the graph's weight table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightId(pub u32);

/// A weight of the SPMD program, with one view per coordinate of the axes that it differs over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Weight {
    /// Name, as the frontend's parameter name.
    pub name: String,
    /// Local type, the same on every rank.
    pub ty: TensorType,
    /// Axes over which ranks hold different data; empty if all hold the same.
    pub over: Vec<AxisId>,
    /// Row-major over `over`; exactly one if it is empty.
    pub shards: Vec<WeightView>,
}

/// The data of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightView {
    /// Type known, data not at hand (a graph file without weights).
    Absent,
    /// A strided window on stored data.
    Strided(StridedView),
    /// Several views, concatenated along a dimension.
    Concat {
        /// Dimension.
        dim: u32,
        /// Parts in order.
        parts: Vec<WeightView>,
    },
}

/// A strided window on the elements of one stored blob.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StridedView {
    /// The blob.
    pub blob: Blob,
    /// Element type of the stored data.
    pub dtype: DType,
    /// Shape of the window.
    pub shape: Vec<u64>,
    /// Distance between neighbours in each dimension, in elements.
    pub strides: Vec<u64>,
    /// First element, counted from the start of the blob, in elements.
    pub offset: u64,
}

/// Stored little-endian element data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blob {
    /// The file.
    pub file: PathBuf,
    /// Which bytes of it.
    pub entry: BlobEntry,
}

/// Which bytes of a file make up a blob.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlobEntry {
    /// `len` bytes from `offset`.
    Raw {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// An entry of a zip archive, stored or deflated.
    Zip(String),
    /// A tensor of a safetensors file.
    Safetensors(String),
}

impl StridedView {
    /// A contiguous row-major window on a whole blob.
    pub fn contiguous(blob: Blob, ty: DType, shape: &[u64]) -> StridedView {
        StridedView { blob, dtype: ty, shape: shape.to_vec(), strides: row_major_strides(shape), offset: 0 }
    }

    /// Whether the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1u64;
        for (&n, &s) in self.shape.iter().zip(&self.strides).rev() {
            if n != 1 && s != expected {
                return false;
            }
            expected = expected.saturating_mul(n);
        }
        true
    }

    /// One past the last element touched, counted from the start of the blob; `None` on overflow.
    pub fn end(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(self.offset);
        }
        let mut last = self.offset;
        for (&n, &s) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((n - 1).checked_mul(s)?)?;
        }
        last.checked_add(1)
    }
}

/// Strides of a contiguous row-major tensor, in elements.
pub fn row_major_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1].saturating_mul(shape[i + 1]);
    }
    strides
}
