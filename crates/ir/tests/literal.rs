//! Numbers as bytes and as text.

use proptest::prelude::*;
use shardweld_ir::literal::{MAX_LITERAL_BYTES, decode, encode};
use shardweld_ir::mesh::MAX_AXES;
use shardweld_ir::{DType, Literal, Mesh, MeshError, Scalar, TensorType};

#[test]
fn elements_round_to_nearest_even_and_out_of_range_is_refused() {
    assert_eq!(encode(DType::F32, Scalar::Float(0.1)), Some(0.1f32.to_le_bytes().to_vec()));
    // 1 + 2^-8 lies half-way between two bf16 values; the even one is 1.
    assert_eq!(encode(DType::BF16, Scalar::Float(1.00390625)), encode(DType::BF16, Scalar::Float(1.0)));
    assert_eq!(encode(DType::BF16, Scalar::Float(1.01171875)), encode(DType::BF16, Scalar::Float(1.015625)));
    assert_eq!(encode(DType::U8, Scalar::Int(255)), Some(vec![255]));
    assert_eq!(encode(DType::U8, Scalar::Int(256)), None);
    assert_eq!(encode(DType::U8, Scalar::Int(-1)), None);
    assert_eq!(encode(DType::I32, Scalar::Int(1 << 31)), None);
    assert_eq!(encode(DType::F8E4M3, Scalar::Float(1.0)), None);
    assert_eq!(decode(DType::Bool, &[1]), Some(Scalar::Bool(true)));
    assert_eq!(decode(DType::Bool, &[2]), None);
    assert_eq!(decode(DType::F32, &[0; 3]), None);
}

#[test]
fn literals_fill_their_types() {
    let ty = TensorType::new(DType::I32, &[2]);
    assert_eq!(Literal::full(ty.clone(), Scalar::Int(-1)).map(|l| l.to_bytes()), Some(vec![255; 8]));
    assert!(Literal::dense(ty.clone(), vec![0; 8]).is_some());
    assert!(Literal::dense(ty.clone(), vec![0; 7]).is_none());
    assert!(Literal::splat(ty.clone(), vec![0; 8]).is_none());
    assert!(Literal::full(ty, Scalar::Int(i64::MAX)).is_none());
    let large = TensorType::new(DType::U8, &[MAX_LITERAL_BYTES + 1]);
    assert!(Literal::dense(large.clone(), vec![0; MAX_LITERAL_BYTES as usize + 1]).is_none());
    assert!(Literal::splat(large, vec![0]).is_some());
    assert!(Literal::splat(TensorType::new(DType::U8, &[u64::MAX, 2]), vec![0]).is_none());
}

#[test]
fn meshes_are_bounded() {
    let axes = |n: usize| (0..n).map(|i| (format!("a{i}"), 1)).collect::<Vec<_>>();
    assert!(Mesh::new(axes(MAX_AXES)).is_ok());
    assert_eq!(Mesh::new(axes(MAX_AXES + 1)), Err(MeshError::TooManyAxes(MAX_AXES + 1)));
    assert_eq!(Mesh::new([("a", 65_536), ("b", 2)]), Err(MeshError::TooManyRanks(131_072)));
    assert!(Mesh::new([("a", u32::MAX), ("b", u32::MAX), ("c", u32::MAX)]).is_err());
    assert!(matches!(Mesh::new([("a b", 2)]), Err(MeshError::BadName(_))));
    assert!(matches!(Mesh::new([("", 2)]), Err(MeshError::BadName(_))));
}

proptest! {
    #[test]
    fn what_decodes_encodes_to_the_same_bytes(bits in any::<u64>()) {
        for dtype in DType::ALL {
            let element = &bits.to_le_bytes()[..dtype.size()];
            let Some(value) = decode(dtype, element) else { continue };
            if value.as_f64().is_nan() {
                continue; // NaNs may be quieted on the way through f64
            }
            let again = encode(dtype, value);
            prop_assert_eq!(again.as_deref(), Some(element), "{}", dtype);
        }
    }

    #[test]
    fn scalars_keep_their_bits_in_json(bits in any::<u64>()) {
        let scalar = Scalar::Float(f64::from_bits(bits));
        let json = serde_json::to_string(&scalar).unwrap();
        prop_assert_eq!(serde_json::from_str::<Scalar>(&json).unwrap(), scalar);
    }
}
