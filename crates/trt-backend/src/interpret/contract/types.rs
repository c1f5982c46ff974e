//! Which element types a layer takes. u8 and fp8 are taken by casts and quantisation only, f64 by nothing.

use shardweld_ir::DType;

use super::Rule;
use crate::trace::{ActivationType, Call, ElementWiseOperation, UnaryOperation};

pub fn is_float(d: DType) -> bool {
    matches!(d, DType::F32 | DType::F16 | DType::BF16)
}

fn is_number(d: DType) -> bool {
    is_float(d) || matches!(d, DType::I8 | DType::I32 | DType::I64)
}

fn require(ok: bool, d: DType, expected: &str) -> Rule<()> {
    if ok { Ok(()) } else { Err(format!("the operand is {d}, must be {expected}")) }
}

pub fn float(d: DType) -> Rule<()> {
    require(is_float(d), d, "f32, f16 or bf16")
}

pub fn number(d: DType) -> Rule<()> {
    require(is_number(d), d, "f32, f16, bf16, i8, i32 or i64")
}

/// For layers that only move data.
pub fn moved(d: DType) -> Rule<()> {
    require(is_number(d) || d == DType::Bool, d, "f32, f16, bf16, i8, i32, i64 or bool")
}

/// Strong typing: nothing is converted on the way into a layer.
pub fn same(types: &[DType]) -> Rule<()> {
    match types.windows(2).find(|w| w[0] != w[1]) {
        None => Ok(()),
        Some(w) => Err(format!("operand types {} and {} differ", w[0], w[1])),
    }
}

/// Whether tensors of a type exist in a network without quantisation at all.
pub fn exists(call: &Call, d: DType) -> Rule<()> {
    match d {
        DType::F64 => Err("TensorRT has no f64".into()),
        DType::F8E4M3 => Err("fp8 exists between quantisation layers only".into()),
        DType::U8 if !matches!(call, Call::Input | Call::Cast { .. }) => {
            Err("u8 exists in network inputs and outputs only".into())
        }
        _ => Ok(()),
    }
}

/// Constants: 8-bit ones count as quantised, which only a dequantisation may read.
pub fn constant(d: DType) -> Rule<()> {
    let ok = is_float(d) || matches!(d, DType::I32 | DType::I64 | DType::Bool);
    if ok { Ok(()) } else { Err(format!("a constant of {d}, must be f32, f16, bf16, i32, i64 or bool")) }
}

pub fn cast(from: DType, to: DType) -> Rule<()> {
    let wide = |d| matches!(d, DType::F32 | DType::F16);
    let ok = match (from, to) {
        (DType::F64 | DType::F8E4M3, _) | (_, DType::F64 | DType::F8E4M3) => false,
        (DType::U8, other) | (other, DType::U8) => wide(other),
        _ => true,
    };
    if ok { Ok(()) } else { Err(format!("no conversion from {from} to {to}")) }
}

/// Type of the result.
pub fn unary(op: UnaryOperation, d: DType) -> Rule<DType> {
    use UnaryOperation as U;
    match op {
        U::Not => require(d == DType::Bool, d, "bool")?,
        U::Abs | U::Neg | U::Sign => number(d)?,
        _ => float(d)?,
    }
    Ok(if matches!(op, U::IsInf | U::IsNan) { DType::Bool } else { d })
}

/// Type of the result.
pub fn elementwise(op: ElementWiseOperation, d: DType) -> Rule<DType> {
    use ElementWiseOperation as E;
    match op {
        E::And | E::Or | E::Xor => require(d == DType::Bool, d, "bool")?,
        E::Equal if d == DType::Bool => {}
        E::Pow => require(is_number(d) && d != DType::I8, d, "f32, f16, bf16, i32 or i64")?,
        _ => number(d)?,
    }
    Ok(if matches!(op, E::Equal | E::Greater | E::Less) { DType::Bool } else { d })
}

pub fn activation(op: ActivationType, d: DType) -> Rule<()> {
    if op == ActivationType::Relu { number(d) } else { float(d) }
}
