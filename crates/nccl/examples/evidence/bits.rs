//! Float formats, classes of values, pseudo-random inputs.

use half::{bf16, f16};
use shardweld_nccl::ElementType;

/// Splitmix64: the same numbers on every rank and host.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Exponent and mantissa bits of a float type.
pub fn layout(e: ElementType) -> (u32, u32) {
    match e {
        ElementType::F16 => (5, 10),
        ElementType::BF16 => (8, 7),
        ElementType::F32 => (8, 23),
        ElementType::F64 => (11, 52),
        ElementType::F8E4M3 => (4, 3),
        _ => (5, 2),
    }
}

/// Classes of float values, in the order of [`class`].
pub const CLASSES: [&str; 7] = ["+0", "-0", "subnormal", "normal", "infinity", "quiet NaN", "signalling NaN"];

/// Class of a bit pattern, as an index into [`CLASSES`].
pub fn class(e: ElementType, bits: u64) -> usize {
    let (exp, man) = layout(e);
    let (sign, rest) = (bits >> (exp + man) & 1, bits & ((1 << (exp + man)) - 1));
    let (exponent, mantissa) = (rest >> man, rest & ((1 << man) - 1));
    let top = (1 << exp) - 1;
    match (exponent, mantissa) {
        (0, 0) => sign as usize,
        (0, _) => 2,
        // E4M3 has no infinity and one NaN mantissa.
        (x, 7) if e == ElementType::F8E4M3 && x == top => 5,
        _ if e == ElementType::F8E4M3 => 3,
        (x, 0) if x == top => 4,
        (x, m) if x == top => {
            if m >> (man - 1) == 1 {
                5
            } else {
                6
            }
        }
        _ => 3,
    }
}

/// Elements of a buffer as bit patterns.
pub fn read(e: ElementType, bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(e.size()).map(|c| c.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b))).collect()
}

/// Bit patterns as a buffer.
pub fn write(e: ElementType, bits: impl IntoIterator<Item = u64>) -> Vec<u8> {
    bits.into_iter().flat_map(|b| b.to_le_bytes().into_iter().take(e.size())).collect()
}

/// Every pattern of the small types; every exponent, all edges and random patterns of the large ones.
pub fn patterns(e: ElementType) -> Vec<u64> {
    let (exp, man) = layout(e);
    if e.size() <= 2 {
        return (0..1u64 << (8 * e.size())).collect();
    }
    let mut out = Vec::new();
    let edges = [0, 1, 2, (1 << man) - 1, (1 << man) - 2, 1 << (man - 1), (1 << (man - 1)) + 1, 0x12345];
    for sign in 0..2u64 {
        for exponent in 0..1u64 << exp {
            out.extend(edges.iter().map(|m| sign << (exp + man) | exponent << man | m));
        }
    }
    let mut r = Random(7);
    let mask = u64::MAX >> (64 - 8 * e.size());
    while out.len() % (1 << 16) != 0 || out.len() < 1 << 17 {
        out.push(r.next() & mask);
    }
    out
}

/// Numbers of mixed sign and of exponents spread over `2^-spread..2^spread`, so that sums depend on their order.
pub fn numbers(e: ElementType, seed: u64, count: usize, spread: u32) -> Vec<u8> {
    let mut r = Random(seed);
    let (exp, man) = layout(e);
    let bias = (1u64 << (exp - 1)) - 1;
    write(
        e,
        (0..count).map(|_| {
            let x = r.next();
            let exponent = bias - u64::from(spread) + (x >> 8) % u64::from(2 * spread + 1);
            (x & 1) << (exp + man) | exponent << man | (x >> 20) & ((1 << man) - 1)
        }),
    )
}

/// Widens a buffer to f32; exact for the half types.
pub fn widen(e: ElementType, bytes: &[u8]) -> Vec<u8> {
    let f = |c: &[u8]| match e {
        ElementType::F16 => f16::from_le_bytes([c[0], c[1]]).to_f32(),
        _ => bf16::from_le_bytes([c[0], c[1]]).to_f32(),
    };
    bytes.chunks_exact(2).flat_map(|c| f(c).to_le_bytes()).collect()
}

/// Rounds f32 to a half type.
pub fn narrow(e: ElementType, bytes: &[u8]) -> Vec<u8> {
    let f = |v: f32| match e {
        ElementType::F16 => f16::from_f32(v).to_le_bytes(),
        _ => bf16::from_f32(v).to_le_bytes(),
    };
    bytes.chunks_exact(4).flat_map(|c| f(f32::from_le_bytes([c[0], c[1], c[2], c[3]]))).collect()
}

/// Number of elements whose bits differ.
pub fn differing(e: ElementType, a: &[u8], b: &[u8]) -> u64 {
    let pairs = a.chunks_exact(e.size()).zip(b.chunks_exact(e.size()));
    pairs.filter(|(x, y)| x != y).count() as u64 + (a.len().abs_diff(b.len()) / e.size()) as u64
}

pub fn hex(e: ElementType, bits: u64) -> String {
    format!("0x{bits:0w$x}", w = 2 * e.size())
}
