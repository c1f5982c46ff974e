//! A dense row-major tensor of one rank, its bytes shared between copies.

use std::sync::Arc;

use bytemuck::Pod;
use shardweld_ir::{DType, Literal, TensorType};

use crate::element::Element;
use crate::error::{KernelError, Result};

/// Element bytes, aligned for every element type.
#[derive(Debug)]
struct Buffer {
    words: Vec<u64>,
    bytes: usize,
}

/// A dense tensor. Cloning shares the data; bytes are moved as integers, so NaN payloads survive every data movement.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Arc<Buffer>,
}

impl Tensor {
    /// A tensor whose zeroed elements `fill` overwrites.
    pub fn build<T: Element>(shape: &[usize], fill: impl FnOnce(&mut [T])) -> Result<Tensor> {
        Tensor::try_build(shape, |s| {
            fill(s);
            Ok(())
        })
    }

    /// As [`Tensor::build`], with a `fill` that can fail.
    pub fn try_build<T: Element>(
        shape: &[usize],
        fill: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<Tensor> {
        let bytes = byte_len(T::DTYPE, shape)?;
        let mut words = vec![0u64; bytes.div_ceil(8)];
        fill(bytemuck::cast_slice_mut(&mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes]))?;
        Ok(Tensor { dtype: T::DTYPE, shape: shape.to_vec(), data: Arc::new(Buffer { words, bytes }) })
    }

    /// As [`Tensor::build`], for elements moved as unsigned integers of their size.
    pub(crate) fn build_bits<U: Pod>(
        dtype: DType,
        shape: &[usize],
        fill: impl FnOnce(&mut [U]),
    ) -> Result<Tensor> {
        let bytes = byte_len(dtype, shape)?;
        let mut words = vec![0u64; bytes.div_ceil(8)];
        fill(bytemuck::cast_slice_mut(&mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes]));
        Ok(Tensor { dtype, shape: shape.to_vec(), data: Arc::new(Buffer { words, bytes }) })
    }

    /// The elements as unsigned integers of their size.
    pub(crate) fn bits<U: Pod>(&self) -> &[U] {
        bytemuck::cast_slice(self.bytes())
    }

    /// A tensor of the given elements; an error if their number does not fit the shape.
    pub fn new<T: Element>(shape: &[usize], elements: &[T]) -> Result<Tensor> {
        Tensor::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(elements))
    }

    /// A tensor of the given little-endian element bytes; an error if their number does not fit the shape.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
        let expected = byte_len(dtype, shape)?;
        if bytes.len() != expected {
            return Err(KernelError::shape(
                "tensor",
                format!("{dtype}{shape:?} takes {expected} bytes, found {}", bytes.len()),
            ));
        }
        let mut words = vec![0u64; expected.div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..expected].copy_from_slice(bytes);
        Ok(Tensor { dtype, shape: shape.to_vec(), data: Arc::new(Buffer { words, bytes: expected }) })
    }

    /// The tensor that a literal of the IR stands for.
    pub fn from_literal(literal: &Literal) -> Result<Tensor> {
        let shape = static_shape(&literal.ty)?;
        Tensor::from_bytes(literal.ty.dtype, &shape, &literal.to_bytes())
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.data.bytes / self.dtype.size()
    }

    /// The type of the IR that this tensor has.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, &self.shape.iter().map(|&d| d as u64).collect::<Vec<_>>())
    }

    /// Little-endian element bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice::<u64, u8>(&self.data.words)[..self.data.bytes]
    }

    /// The elements.
    ///
    /// # Panics
    /// If `T` is not the storage type of [`Tensor::dtype`]; callers dispatch on it first.
    pub fn slice<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype, "a kernel asked for another element type than the tensor holds");
        bytemuck::cast_slice(self.bytes())
    }

    /// The same elements with another shape; an error if their number differs.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Tensor> {
        if byte_len(self.dtype, shape)? != self.data.bytes {
            return Err(KernelError::shape("reshape", format!("{:?} cannot become {shape:?}", self.shape)));
        }
        Ok(Tensor { dtype: self.dtype, shape: shape.to_vec(), data: Arc::clone(&self.data) })
    }

    /// Whether both are views of the same data with the same type: equal without looking.
    pub fn same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.data, &other.data) && self.dtype == other.dtype && self.shape == other.shape
    }
}

/// Bytes of a tensor, or an error when they cannot be addressed.
fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize> {
    shape
        .iter()
        .try_fold(dtype.size(), |n, &d| n.checked_mul(d))
        .filter(|&n| isize::try_from(n).is_ok())
        .ok_or_else(|| KernelError::TooLarge { shape: shape.to_vec() })
}

/// The sizes of a type with static dimensions.
pub(crate) fn static_shape(ty: &TensorType) -> Result<Vec<usize>> {
    ty.shape
        .as_static()
        .and_then(|dims| dims.into_iter().map(|d| usize::try_from(d).ok()).collect())
        .ok_or_else(|| KernelError::shape("tensor", format!("the shape {} is not static", ty.shape)))
}
