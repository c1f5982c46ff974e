//! Numbers inside the program: scalar attributes and small constant tensors.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::types::{DType, TensorType};

/// A number written in the program, kept exact. Floats compare and hash by their bits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// A float; f32, f16 and bf16 values are exact in it.
    Float(#[serde(with = "float_text")] f64),
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// The value as f64 (integers above 2^53 round).
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(x) => x,
            Scalar::Int(i) => i as f64,
            Scalar::Bool(b) => f64::from(u8::from(b)),
        }
    }

    /// The value as i64; floats truncate toward zero and saturate.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Float(x) => x as i64,
            Scalar::Int(i) => i,
            Scalar::Bool(b) => i64::from(b),
        }
    }

    fn key(self) -> (u8, u64) {
        match self {
            Scalar::Float(x) => (0, x.to_bits()),
            Scalar::Int(i) => (1, i as u64),
            Scalar::Bool(b) => (2, u64::from(b)),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Scalar {}
impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
impl From<f64> for Scalar {
    fn from(x: f64) -> Self {
        Scalar::Float(x)
    }
}
impl From<i64> for Scalar {
    fn from(x: i64) -> Self {
        Scalar::Int(x)
    }
}
impl From<bool> for Scalar {
    fn from(x: bool) -> Self {
        Scalar::Bool(x)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Float(x) => f.write_str(&float_to_text(*x)),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Bool(b) => write!(f, "{b}"),
        }
    }
}

/// Text of a float that reads back to the same bits: shortest decimal with a `.`, `inf`, `-inf`, or `nan:0x<bits>`.
pub(crate) fn float_to_text(x: f64) -> String {
    if x.is_nan() { format!("nan:{:#018x}", x.to_bits()) } else { format!("{x:?}") }
}

/// Reads what [`float_to_text`] writes; also plain decimals.
pub(crate) fn float_from_text(text: &str) -> Option<f64> {
    match text.strip_prefix("nan:0x") {
        Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits).filter(|x| x.is_nan()),
        None => text.parse().ok(),
    }
}

/// serde form of a float: text, because JSON has no infinities and no NaN.
mod float_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&super::float_to_text(*x))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        let text = String::deserialize(d)?;
        super::float_from_text(&text).ok_or_else(|| D::Error::custom(format!("`{text}` is not a float")))
    }
}

/// Most bytes a literal may hold; larger data belongs in a weight.
pub const MAX_LITERAL_BYTES: u64 = 16 << 20;

/// A small constant tensor.
///
/// The data are little-endian element bytes in row-major order; a *splat* keeps one element for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Literal {
    /// Element type and (static) shape.
    pub ty: TensorType,
    /// Either all elements, or one element that stands for all.
    #[serde(with = "hex")]
    data: Arc<[u8]>,
    splat: bool,
}

impl Literal {
    /// A tensor of the given little-endian bytes. `None` if the length does not fit the type, the shape is symbolic, or
    /// the data exceed [`MAX_LITERAL_BYTES`].
    pub fn dense(ty: TensorType, data: impl Into<Arc<[u8]>>) -> Option<Literal> {
        let data = data.into();
        (ty.bytes()? == data.len() as u64 && data.len() as u64 <= MAX_LITERAL_BYTES).then_some(Literal {
            ty,
            data,
            splat: false,
        })
    }

    /// A tensor whose elements all have the given little-endian bytes. `None` if the length is not one element.
    pub fn splat(ty: TensorType, element: impl Into<Arc<[u8]>>) -> Option<Literal> {
        let data = element.into();
        (data.len() == ty.dtype.size() && ty.bytes().is_some()).then_some(Literal { ty, data, splat: true })
    }

    /// A tensor whose elements all are `value`, rounded to nearest even into the element type.
    pub fn full(ty: TensorType, value: Scalar) -> Option<Literal> {
        let element = encode(ty.dtype, value)?;
        Literal::splat(ty, element)
    }

    /// Whether this passes the checks of the constructors; for literals that came through serde.
    pub fn is_valid(&self) -> bool {
        let n = self.data.len() as u64;
        if self.splat {
            n == self.ty.dtype.size() as u64 && self.ty.bytes().is_some()
        } else {
            self.ty.bytes() == Some(n) && n <= MAX_LITERAL_BYTES
        }
    }

    /// The stored bytes: one element for a splat.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Whether one stored element stands for all.
    pub fn is_splat(&self) -> bool {
        self.splat
    }

    /// All elements as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.splat {
            self.data.repeat(self.ty.shape.elements().unwrap_or(0) as usize)
        } else {
            self.data.to_vec()
        }
    }
}

/// Little-endian bytes of one element of `dtype` nearest to `value`; `None` for an integer out of range and for fp8.
pub fn encode(dtype: DType, value: Scalar) -> Option<Vec<u8>> {
    let x = value.as_f64();
    Some(match dtype {
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::F64 => x.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
        DType::I64 => value.as_i64().to_le_bytes().to_vec(),
        DType::I32 => i32::try_from(value.as_i64()).ok()?.to_le_bytes().to_vec(),
        DType::I8 => i8::try_from(value.as_i64()).ok()?.to_le_bytes().to_vec(),
        DType::U8 => u8::try_from(value.as_i64()).ok()?.to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(x != 0.0)],
        DType::F8E4M3 => return None,
    })
}

/// The number that the little-endian bytes of one element stand for; `None` for fp8, a bool that is not 0 or 1, or a wrong
/// length.
pub fn decode(dtype: DType, element: &[u8]) -> Option<Scalar> {
    Some(match dtype {
        DType::F32 => Scalar::Float(f32::from_le_bytes(element.try_into().ok()?).into()),
        DType::F64 => Scalar::Float(f64::from_le_bytes(element.try_into().ok()?)),
        DType::F16 => Scalar::Float(half::f16::from_le_bytes(element.try_into().ok()?).into()),
        DType::BF16 => Scalar::Float(half::bf16::from_le_bytes(element.try_into().ok()?).into()),
        DType::I64 => Scalar::Int(i64::from_le_bytes(element.try_into().ok()?)),
        DType::I32 => Scalar::Int(i32::from_le_bytes(element.try_into().ok()?).into()),
        DType::I8 => Scalar::Int(i8::from_le_bytes(element.try_into().ok()?).into()),
        DType::U8 => Scalar::Int(u8::from_le_bytes(element.try_into().ok()?).into()),
        DType::Bool => match element {
            [0] => Scalar::Bool(false),
            [1] => Scalar::Bool(true),
            _ => return None,
        },
        DType::F8E4M3 => return None,
    })
}

/// serde form of literal bytes: lower-case hexadecimal.
mod hex {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(data: &Arc<[u8]>, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&super::to_hex(data))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<[u8]>, D::Error> {
        let text = String::deserialize(d)?;
        super::from_hex(&text)
            .map(Arc::from)
            .ok_or_else(|| D::Error::custom("literal data are not hexadecimal"))
    }
}

pub(crate) fn to_hex(data: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    data.iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)] as char, DIGITS[usize::from(b & 15)] as char])
        .collect()
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let b = text.as_bytes();
    if !b.len().is_multiple_of(2) {
        return None;
    }
    b.chunks_exact(2)
        .map(|p| {
            let hi = (p[0] as char).to_digit(16)?;
            let lo = (p[1] as char).to_digit(16)?;
            Some((hi * 16 + lo) as u8)
        })
        .collect()
}
