//! Matrix products on slices: the one place that calls the GEMM library, and the integer product it lacks.

use rayon::prelude::*;

use crate::arith::Arith;

/// Rows of the result that are one task. Fixed, so that results do not depend on the number of threads.
const ROWS_PER_TASK: usize = 128;
/// Below this many multiplications a product runs on the calling thread.
const PARALLEL_PRODUCTS: usize = 1 << 22;

/// A matrix on a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, M> {
    /// Elements from the first one on.
    pub data: &'a [M],
    /// Distance of neighbours in a column.
    pub row_stride: usize,
    /// Distance of neighbours in a row.
    pub column_stride: usize,
}

impl<'a, M: Copy> Matrix<'a, M> {
    /// A row-major matrix, or the transpose of one: `rows` and `columns` are of what is stored.
    pub fn new(data: &'a [M], columns: usize, transposed: bool) -> Matrix<'a, M> {
        let (row_stride, column_stride) = if transposed { (1, columns) } else { (columns, 1) };
        Matrix { data, row_stride, column_stride }
    }

    fn at(&self, row: usize, column: usize) -> M {
        self.data[row * self.row_stride + column * self.column_stride]
    }

    /// Elements that a matrix of the given size touches, from the first.
    fn extent(&self, rows: usize, columns: usize) -> usize {
        if rows == 0 || columns == 0 {
            0
        } else {
            (rows - 1) * self.row_stride + (columns - 1) * self.column_stride + 1
        }
    }
}

/// A type that matrix products are computed in.
pub(crate) trait Product: Arith {
    /// `out = a b` for a `[rows, inner]`, b `[inner, columns]`, row-major out. Every slice has been checked to be long enough.
    fn block(
        rows: usize,
        inner: usize,
        columns: usize,
        a: Matrix<'_, Self>,
        b: Matrix<'_, Self>,
        out: &mut [Self],
    );
}

/// `out = a b` for a `[rows, inner]`, b `[inner, columns]`, row-major out.
pub(crate) fn product<M: Product>(
    [rows, inner, columns]: [usize; 3],
    a: Matrix<'_, M>,
    b: Matrix<'_, M>,
    out: &mut [M],
) {
    assert!(a.extent(rows, inner) <= a.data.len(), "the first matrix is shorter than its shape");
    assert!(b.extent(inner, columns) <= b.data.len(), "the second matrix is shorter than its shape");
    assert_eq!(out.len(), rows * columns, "the result has another size than its shape");
    if out.is_empty() {
        return;
    }
    let block = |(i, out): (usize, &mut [M])| {
        let from = i * ROWS_PER_TASK;
        let part = Matrix { data: a.data.get(from * a.row_stride..).unwrap_or_default(), ..a };
        M::block(out.len() / columns, inner, columns, part, b, out);
    };
    if rows.saturating_mul(inner).saturating_mul(columns) < PARALLEL_PRODUCTS {
        out.chunks_mut(ROWS_PER_TASK * columns).enumerate().for_each(block);
    } else {
        out.par_chunks_mut(ROWS_PER_TASK * columns).enumerate().for_each(block);
    }
}

macro_rules! float_product {
    ($t:ty) => {
        impl Product for $t {
            fn block(
                rows: usize,
                inner: usize,
                columns: usize,
                a: Matrix<'_, $t>,
                b: Matrix<'_, $t>,
                out: &mut [$t],
            ) {
                assert!(
                    a.extent(rows, inner) <= a.data.len()
                        && b.extent(inner, columns) <= b.data.len()
                        && out.len() >= rows * columns,
                    "a matrix is shorter than its shape"
                );
                // SAFETY: every element that a matrix of these sizes and strides touches lies within its slice, as just
                // asserted; `out` is borrowed mutably, so it overlaps neither operand. Strides fit isize because they
                // are below the length of a slice or belong to a dimension of at most one element.
                unsafe {
                    gemm::gemm(
                        rows,
                        columns,
                        inner,
                        out.as_mut_ptr(),
                        1,
                        columns as isize,
                        false,
                        a.data.as_ptr(),
                        a.column_stride as isize,
                        a.row_stride as isize,
                        b.data.as_ptr(),
                        b.column_stride as isize,
                        b.row_stride as isize,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        gemm::Parallelism::None,
                    );
                }
            }
        }
    };
}
float_product!(f32);
float_product!(f64);

impl Product for i64 {
    fn block(
        rows: usize,
        inner: usize,
        columns: usize,
        a: Matrix<'_, i64>,
        b: Matrix<'_, i64>,
        out: &mut [i64],
    ) {
        for (r, out) in out.chunks_exact_mut(columns).take(rows).enumerate() {
            for (c, o) in out.iter_mut().enumerate() {
                *o = (0..inner).fold(0i64, |s, k| s.wrapping_add(a.at(r, k).wrapping_mul(b.at(k, c))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_transpose() {
        let a = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut out = [0.0; 4];
        // [2, 3] times its own transpose.
        product([2, 3, 2], Matrix::new(&a, 3, false), Matrix::new(&a, 3, true), &mut out);
        assert_eq!(out, [14.0, 32.0, 32.0, 77.0]);
        let wide: Vec<i64> = a.iter().map(|&v| v as i64).collect();
        let mut out = [0i64; 4];
        product([2, 3, 2], Matrix::new(&wide, 3, false), Matrix::new(&wide, 3, true), &mut out);
        assert_eq!(out, [14, 32, 32, 77]);
    }

    #[test]
    fn an_empty_contraction_is_zero() {
        let mut out = [7.0f32; 2];
        product([1, 0, 2], Matrix::new(&[], 0, false), Matrix::new(&[], 2, false), &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "shorter than its shape")]
    fn a_short_matrix_is_refused() {
        let mut out = [0.0f32; 4];
        product([2, 3, 2], Matrix::new(&[0.0; 5], 3, false), Matrix::new(&[0.0; 6], 2, false), &mut out);
    }
}
