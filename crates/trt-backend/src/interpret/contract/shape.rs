//! Shapes: what operands must have, and what a layer makes of them.

use super::Rule;

/// Number of elements; saturates.
pub fn volume(dims: &[u64]) -> u64 {
    // A zero anywhere wins over saturation.
    if dims.contains(&0) { 0 } else { dims.iter().fold(1u64, |n, &d| n.saturating_mul(d)) }
}

pub fn axis(axis: u32, dims: &[u64]) -> Rule<usize> {
    let a = axis as usize;
    if a < dims.len() { Ok(a) } else { Err(format!("axis {axis} of {dims:?} does not exist")) }
}

/// A bit mask of axes: none twice, at least one.
fn axes(axes: &[u32], dims: &[u64]) -> Rule<Vec<bool>> {
    let mut mask = vec![false; dims.len()];
    for &a in axes {
        if std::mem::replace(&mut mask[axis(a, dims)?], true) {
            return Err(format!("axis {a} is given twice"));
        }
    }
    if axes.is_empty() { Err("no axis is given".into()) } else { Ok(mask) }
}

/// Equal rank; along each axis equal sizes, or 1.
pub fn broadcast(shapes: &[&[u64]]) -> Rule<Vec<u64>> {
    let Some((first, rest)) = shapes.split_first() else { return Err("no operand".into()) };
    let mut dims = first.to_vec();
    for s in rest {
        if s.len() != dims.len() {
            return Err(format!("operands {first:?} and {s:?} differ in rank"));
        }
        for (d, &n) in dims.iter_mut().zip(*s) {
            match (*d, n) {
                (a, b) if a == b => {}
                (1, n) => *d = n,
                (_, 1) => {}
                _ => return Err(format!("operands {first:?} and {s:?} do not broadcast")),
            }
        }
    }
    Ok(dims)
}

/// Whether `from` broadcasts to exactly `to`.
fn broadcasts_to(from: &[u64], to: &[u64]) -> bool {
    from.len() == to.len() && from.iter().zip(to).all(|(&a, &b)| a == b || a == 1)
}

pub fn matmul((a, transpose_a): (&[u64], bool), (b, transpose_b): (&[u64], bool)) -> Rule<Vec<u64>> {
    let ([batch_a @ .., r, c], [batch_b @ .., s, d]) = (a, b) else {
        return Err(format!("operands {a:?} and {b:?} need at least two dimensions"));
    };
    let (rows, inner) = if transpose_a { (c, r) } else { (r, c) };
    let (inner_b, columns) = if transpose_b { (d, s) } else { (s, d) };
    if inner != inner_b {
        return Err(format!("the contracted sizes {inner} and {inner_b} of {a:?} and {b:?} differ"));
    }
    let mut dims = broadcast(&[batch_a, batch_b])?;
    dims.extend([rows, columns]);
    Ok(dims)
}

pub fn reduce(dims: &[u64], reduced: &[u32], keep: bool) -> Rule<Vec<u64>> {
    let mask = axes(reduced, dims)?;
    let all = dims.iter().zip(mask);
    Ok(all.filter(|(_, r)| keep || !r).map(|(&n, r)| if r { 1 } else { n }).collect())
}

pub fn normalization(dims: &[u64], scale: &[u64], bias: &[u64], normalised: &[u32]) -> Rule<()> {
    axes(normalised, dims)?;
    if scale != bias {
        return Err(format!("scale {scale:?} and bias {bias:?} differ in shape"));
    }
    if !broadcasts_to(scale, dims) {
        return Err(format!("scale and bias {scale:?} do not broadcast to {dims:?}"));
    }
    Ok(())
}

/// `[batch, heads, tokens, size]`; key and value may have fewer heads.
pub fn attention(q: &[u64], k: &[u64], v: &[u64]) -> Rule<()> {
    let (&[batch, heads, _, size], &[batch_k, heads_k, _, size_k]) = (q, k) else {
        return Err(format!("query {q:?} and key {k:?} must have four dimensions"));
    };
    if k != v {
        return Err(format!("key {k:?} and value {v:?} differ in shape"));
    }
    if batch != batch_k || size != size_k {
        return Err(format!("query {q:?} and key {k:?} differ in batch or head size"));
    }
    if heads_k == 0 || heads % heads_k != 0 {
        return Err(format!("the {heads} heads of the query are no multiple of the key's {heads_k}"));
    }
    Ok(())
}

/// `[batch, heads, queries, keys]`, sizes equal or 1.
pub fn mask(m: &[u64], q: &[u64], k: &[u64]) -> Rule<()> {
    let scores = [q[0], q[1], q[2], k[2]];
    if broadcasts_to(m, &scores) {
        Ok(())
    } else {
        Err(format!("the mask {m:?} does not broadcast to {scores:?}"))
    }
}

fn transpose(dims: &[u64], order: Option<&[u32]>) -> Rule<Vec<u64>> {
    let Some(order) = order else { return Ok(dims.to_vec()) };
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if sorted.len() != dims.len() || sorted.iter().enumerate().any(|(i, &p)| p as usize != i) {
        return Err(format!("{order:?} is no permutation of the dimensions of {dims:?}"));
    }
    Ok(order.iter().map(|&p| dims[p as usize]).collect())
}

/// Transpose, reshape, transpose. A 0 in the reshape is an empty dimension, not a placeholder.
pub fn shuffle(
    dims: Vec<u64>,
    first: Option<&[u32]>,
    reshape: Option<&[u64]>,
    second: Option<&[u32]>,
) -> Rule<Vec<u64>> {
    let moved = transpose(&dims, first)?;
    let reshaped = match reshape {
        Some(r) if volume(r) != volume(&moved) => {
            return Err(format!("the reshape of {moved:?} to {r:?} changes the number of elements"));
        }
        Some(r) => r.to_vec(),
        None => moved,
    };
    transpose(&reshaped, second)
}

pub fn slice_ranks(dims: &[u64], start: &[i64], size: &[u64], stride: &[u64]) -> Rule<()> {
    if [start.len(), size.len(), stride.len()] == [dims.len(); 3] {
        Ok(())
    } else {
        Err(format!("start {start:?}, size {size:?} and stride {stride:?} must have the rank of {dims:?}"))
    }
}

/// A slice without a fill value reads nothing outside of its operand.
pub fn strict_slice(dims: &[u64], start: &[i64], size: &[u64], stride: &[u64]) -> Rule<()> {
    slice_ranks(dims, start, size, stride)?;
    for (i, &n) in dims.iter().enumerate() {
        if size[i] == 0 {
            continue;
        }
        let first = i128::from(start[i]);
        let last = first + i128::from(size[i] - 1) * i128::from(stride[i]);
        if first < 0 || last >= i128::from(n) {
            return Err(format!("reads {first} to {last} of dimension {i}, which has {n}"));
        }
    }
    Ok(())
}

pub fn concat(shapes: &[&[u64]], along: u32) -> Rule<Vec<u64>> {
    let Some((first, rest)) = shapes.split_first() else { return Err("no operand".into()) };
    let a = axis(along, first)?;
    let mut dims = first.to_vec();
    for s in rest {
        let fits =
            s.len() == dims.len() && s.iter().zip(&dims).enumerate().all(|(i, (x, y))| i == a || x == y);
        if !fits {
            return Err(format!("operands {first:?} and {s:?} differ off axis {along}"));
        }
        dims[a] = dims[a].saturating_add(s[a]);
    }
    Ok(dims)
}

pub fn gather(data: &[u64], indices: &[u64], along: u32, elements: bool) -> Rule<Vec<u64>> {
    let a = axis(along, data)?;
    if !elements {
        return Ok([&data[..a], indices, &data[a + 1..]].concat());
    }
    let fits = indices.len() == data.len()
        && indices.iter().zip(data).enumerate().all(|(i, (n, d))| i == a || n <= d);
    if fits {
        Ok(indices.to_vec())
    } else {
        Err(format!("indices {indices:?} reach beyond data {data:?} off axis {along}"))
    }
}

/// Attributes of a convolution.
pub struct Window<'a> {
    pub stride: &'a [u64],
    pub pre_padding: &'a [u64],
    pub post_padding: &'a [u64],
    pub dilation: &'a [u64],
    pub groups: u64,
}

/// x `[n, c, spatial..]`, kernel `[o, c / groups, spatial..]`, two or three spatial dimensions.
pub fn convolution(x: &[u64], kernel: &[u64], w: &Window<'_>) -> Rule<Vec<u64>> {
    let ([n, c, size @ ..], [o, per_group, taps @ ..]) = (x, kernel) else {
        return Err(format!("operand {x:?} and kernel {kernel:?} have too few dimensions"));
    };
    let spatial = size.len();
    if !(2..=3).contains(&spatial) || taps.len() != spatial {
        return Err(format!("operand {x:?} and kernel {kernel:?} must have two or three spatial dimensions"));
    }
    if [w.stride.len(), w.pre_padding.len(), w.post_padding.len(), w.dilation.len()] != [spatial; 4] {
        return Err(format!("stride, padding and dilation must have {spatial} entries"));
    }
    if w.groups == 0 || c % w.groups != 0 || o % w.groups != 0 || *per_group != c / w.groups {
        return Err(format!("{} groups do not divide the channels of {x:?} and {kernel:?}", w.groups));
    }
    let mut dims = vec![*n, *o];
    for i in 0..spatial {
        if w.stride[i] == 0 || w.dilation[i] == 0 || taps[i] == 0 {
            return Err("stride, dilation and kernel sizes must be at least 1".into());
        }
        let padded = size[i].saturating_add(w.pre_padding[i]).saturating_add(w.post_padding[i]);
        let reach = (taps[i] - 1).saturating_mul(w.dilation[i]).saturating_add(1);
        let Some(room) = padded.checked_sub(reach) else {
            return Err(format!("the kernel {kernel:?} is larger than the padded operand {x:?}"));
        };
        dims.push(room / w.stride[i] + 1);
    }
    Ok(dims)
}
