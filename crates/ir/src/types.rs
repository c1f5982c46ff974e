//! Element types, dimensions and tensor types: what a value *is*, before any op.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE-754 binary32.
    F32,
    /// IEEE-754 binary16.
    F16,
    /// bfloat16: 8 exponent bits, 7 stored mantissa bits.
    BF16,
    /// IEEE-754 binary64. Never reaches TensorRT; folded or refused before lowering.
    F64,
    /// OCP FP8 E4M3 without infinities (`float8_e4m3fn`).
    F8E4M3,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// One byte per element, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 10] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::F8E4M3,
        DType::I64,
        DType::I32,
        DType::I8,
        DType::U8,
        DType::Bool,
    ];

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::F8E4M3 | DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// Name used by the text form and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::F8E4M3 => "f8e4m3",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }

    /// The element type called `name` in the text form.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::F8E4M3)
    }

    /// Whether this is an integer type (`bool` is not).
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::I8 | DType::U8)
    }

    /// The type in which one op on this type is computed before it rounds: f32 for f16, bf16 and fp8, itself otherwise.
    pub const fn op_math(self) -> DType {
        match self {
            DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
            other => other,
        }
    }

    /// Whether every value of `self` is a value of `wide`, so that a cast there and back gives it again.
    pub const fn embeds_in(self, wide: DType) -> bool {
        use DType::*;
        matches!(
            (self, wide),
            (F32, F32 | F64)
                | (F64, F64)
                | (F16, F16 | F32 | F64)
                | (BF16, BF16 | F32 | F64)
                | (F8E4M3, F8E4M3 | F16 | BF16 | F32 | F64)
                | (I64, I64)
                | (I32, I32 | I64 | F64)
                | (I8, I8 | I32 | I64 | F16 | BF16 | F32 | F64)
                | (U8, U8 | I32 | I64 | F16 | BF16 | F32 | F64)
                | (Bool, _)
        )
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dimension known only at run time, with the range an engine is built for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SymbolicDim {
    /// Name; equal names mean equal sizes.
    pub name: String,
    /// Smallest size.
    pub min: u64,
    /// Size to optimise for.
    pub opt: u64,
    /// Largest size.
    pub max: u64,
    /// The size is a multiple of this.
    pub multiple_of: u64,
}

/// The size of one dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// A number.
    Static(u64),
    /// A symbol with its range.
    Symbol(SymbolicDim),
}

impl Dim {
    /// The size if it is a number.
    pub const fn as_static(&self) -> Option<u64> {
        match self {
            Dim::Static(n) => Some(*n),
            Dim::Symbol(_) => None,
        }
    }
}

impl From<u64> for Dim {
    fn from(n: u64) -> Self {
        Dim::Static(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Static(n) => write!(f, "{n}"),
            Dim::Symbol(s) => write!(f, "{}:{}:{}:{}:{}", s.name, s.min, s.opt, s.max, s.multiple_of),
        }
    }
}

/// Dimensions, outermost first. Empty for a scalar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// A shape of numbers.
    pub fn of(dims: &[u64]) -> Shape {
        Shape(dims.iter().map(|&d| Dim::Static(d)).collect())
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The sizes if all are numbers.
    pub fn as_static(&self) -> Option<Vec<u64>> {
        self.0.iter().map(Dim::as_static).collect()
    }

    /// Number of elements if all sizes are numbers and the product fits 64 bits.
    pub fn elements(&self) -> Option<u64> {
        self.0.iter().try_fold(1u64, |n, d| n.checked_mul(d.as_static()?))
    }
}

impl FromIterator<u64> for Shape {
    fn from_iter<I: IntoIterator<Item = u64>>(dims: I) -> Self {
        Shape(dims.into_iter().map(Dim::Static).collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

/// Element type and shape of a value, per rank (the *local* shape).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Local shape.
    pub shape: Shape,
}

impl TensorType {
    /// A type with static dimensions.
    pub fn new(dtype: DType, dims: &[u64]) -> TensorType {
        TensorType { dtype, shape: Shape::of(dims) }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Size in bytes if the shape is static and the product fits 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.shape.elements()?.checked_mul(self.dtype.size() as u64)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
