//! Element types as NCCL knows them, and how the IR's types travel.

use std::fmt;

use cudarc::nccl::sys::ncclDataType_t;
use shardweld_ir::DType;

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $size:literal, $nccl:ident;)*) => {
        /// Element type of a buffer that a collective moves or combines.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ElementType { $($(#[$doc])* $name,)* }

        impl ElementType {
            /// Every element type, in declaration order.
            pub const ALL: &'static [ElementType] = &[$(ElementType::$name,)*];
            /// Name in messages and reports.
            pub const fn name(self) -> &'static str { match self { $(ElementType::$name => $text,)* } }
            /// Size of one element in bytes.
            pub const fn size(self) -> usize { match self { $(ElementType::$name => $size,)* } }
            /// NCCL's own number for the type.
            pub(crate) const fn nccl(self) -> i32 {
                match self { $(ElementType::$name => ncclDataType_t::$nccl as i32,)* }
            }
        }
    };
}

elements! {
    /// Signed 8-bit integer.
    I8, "i8", 1, ncclInt8;
    /// Unsigned 8-bit integer.
    U8, "u8", 1, ncclUint8;
    /// Signed 32-bit integer.
    I32, "i32", 4, ncclInt32;
    /// Unsigned 32-bit integer.
    U32, "u32", 4, ncclUint32;
    /// Signed 64-bit integer.
    I64, "i64", 8, ncclInt64;
    /// Unsigned 64-bit integer.
    U64, "u64", 8, ncclUint64;
    /// IEEE-754 binary16.
    F16, "f16", 2, ncclFloat16;
    /// bfloat16.
    BF16, "bf16", 2, ncclBfloat16;
    /// IEEE-754 binary32.
    F32, "f32", 4, ncclFloat32;
    /// IEEE-754 binary64.
    F64, "f64", 8, ncclFloat64;
    /// OCP FP8 E4M3 without infinities.
    F8E4M3, "f8e4m3", 1, ncclFloat8e4m3;
    /// OCP FP8 E5M2.
    F8E5M2, "f8e5m2", 1, ncclFloat8e5m2;
}

impl ElementType {
    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        use ElementType::*;
        matches!(self, F16 | BF16 | F32 | F64 | F8E4M3 | F8E5M2)
    }
}

impl From<DType> for ElementType {
    /// The type an IR tensor travels as. NCCL has no bool; it travels as `u8` holding 0 or 1.
    fn from(dtype: DType) -> ElementType {
        match dtype {
            DType::F32 => ElementType::F32,
            DType::F16 => ElementType::F16,
            DType::BF16 => ElementType::BF16,
            DType::F64 => ElementType::F64,
            DType::F8E4M3 => ElementType::F8E4M3,
            DType::I64 => ElementType::I64,
            DType::I32 => ElementType::I32,
            DType::I8 => ElementType::I8,
            DType::U8 | DType::Bool => ElementType::U8,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ir_type_travels_at_its_own_width() {
        for d in DType::ALL {
            assert_eq!(ElementType::from(d).size(), d.size(), "{d}");
            assert_eq!(ElementType::from(d).is_float(), d.is_float(), "{d}");
        }
    }

    /// The numbers are NCCL's ABI; a reordered table would silently send the wrong type.
    #[test]
    fn nccl_numbers_are_those_of_nccl_h() {
        let numbers: Vec<i32> = ElementType::ALL.iter().map(|e| e.nccl()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 9, 7, 8, 10, 11]);
    }
}
