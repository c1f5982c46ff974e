//! Copies strided windows into row-major buffers.

/// A destination window: the buffer, the distance of neighbours per dimension and the first element, in elements.
pub(super) struct Target<'a> {
    pub data: &'a mut [u8],
    pub strides: &'a [u64],
    pub offset: u64,
}

/// Copies `shape` elements of `size` bytes. The caller has checked that both windows lie inside their buffers.
pub(super) fn copy_strided(
    target: &mut Target<'_>,
    source: &[u8],
    source_strides: &[u64],
    source_offset: u64,
    shape: &[u64],
    size: usize,
) {
    if shape.contains(&0) {
        return;
    }
    match size {
        1 => walk::<1>(target, source, source_strides, source_offset, shape),
        2 => walk::<2>(target, source, source_strides, source_offset, shape),
        4 => walk::<4>(target, source, source_strides, source_offset, shape),
        8 => walk::<8>(target, source, source_strides, source_offset, shape),
        other => unreachable!("no element type has {other} bytes"),
    }
}

fn walk<const N: usize>(to: &mut Target<'_>, from: &[u8], from_strides: &[u64], at: u64, shape: &[u64]) {
    let Some((&inner, outer)) = shape.split_last() else {
        let (d, s) = (to.offset as usize * N, at as usize * N);
        to.data[d..d + N].copy_from_slice(&from[s..s + N]);
        return;
    };
    let (to_step, from_step) = (
        (to.strides[outer.len()] as usize).wrapping_mul(N),
        (from_strides[outer.len()] as usize).wrapping_mul(N),
    );
    let mut index = vec![0u64; outer.len()];
    let (mut d, mut s) = (to.offset, at);
    loop {
        let (mut di, mut si) = (d as usize * N, s as usize * N);
        if to_step == N && from_step == N {
            let bytes = inner as usize * N;
            to.data[di..di + bytes].copy_from_slice(&from[si..si + bytes]);
        } else {
            for _ in 0..inner {
                to.data[di..di + N].copy_from_slice(&from[si..si + N]);
                di = di.wrapping_add(to_step);
                si = si.wrapping_add(from_step);
            }
        }
        // Odometer over the outer dimensions.
        let mut k = outer.len();
        loop {
            if k == 0 {
                return;
            }
            k -= 1;
            index[k] += 1;
            // Strides of dimensions of size 1 may be anything; what they add is taken back before it is used.
            d = d.wrapping_add(to.strides[k]);
            s = s.wrapping_add(from_strides[k]);
            if index[k] < outer[k] {
                break;
            }
            d = d.wrapping_sub(to.strides[k].wrapping_mul(index[k]));
            s = s.wrapping_sub(from_strides[k].wrapping_mul(index[k]));
            index[k] = 0;
        }
    }
}
