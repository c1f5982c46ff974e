//! Every elementwise function and reduction of the IR, lowered, on values where such functions go wrong: zeros of both signs, tiny and
//! large numbers, infinities, NaN.

use shardweld_interp::{Named, Tensor, cast::cast, distance, run};
use shardweld_ir::{Binary, DType, Graph, Mesh, NormKind, Op, ReduceKind, Scalar, Unary, Value, WeightStore};

use crate::lowered::{close, equal, lowered};

const DTYPES: [DType; 7] =
    [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::I8, DType::Bool];
const NUMBERS: [f32; 20] = [
    0.0,
    -0.0,
    0.3,
    -0.7,
    1.0,
    -1.0,
    2.5,
    -3.5,
    1e-3,
    -1e-4,
    7.75,
    10.0,
    -20.0,
    19.5,
    21.0,
    50.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    6.0,
];

/// What PyTorch's approximation of erf is off by, and then some.
const ABSOLUTE: f64 = 1e-6;

fn values(dtype: DType, from: &[f32], shape: &[usize]) -> Tensor {
    let x = Tensor::new(shape, from).unwrap();
    if dtype.is_float() {
        return cast(&x, dtype).unwrap();
    }
    let whole: Vec<f32> = from.iter().map(|v| if v.is_finite() { v.round() } else { 3.0 }).collect();
    cast(&Tensor::new(shape, &whole).unwrap(), dtype).unwrap()
}

/// One op of operands `a0`, `a1`, ..; `None` if the IR or TensorRT does not have it for these types.
fn both(op: Op, operands: &[Tensor]) -> Option<(Tensor, Tensor)> {
    let mut g = Graph::new("function", Mesh::new([("tp", 1)]).unwrap());
    let mut given = Named::new();
    let mut ids: Vec<Value> = Vec::new();
    for (i, t) in operands.iter().enumerate() {
        ids.push(g.add_input(&format!("a{i}"), t.ty()).unwrap().into());
        given.insert(format!("a{i}"), t.clone());
    }
    let y = g.add("y", op, &ids).ok()?;
    g.add_output("out", y).unwrap();
    let given = [given];
    let found = lowered(&g, &given)?[0].remove("out")?;
    let expected = run(&g, &WeightStore::new(), &given).unwrap()[0].remove("out")?;
    Some((found, expected))
}

#[track_caller]
fn assert_same(what: &str, exact: bool, (found, expected): &(Tensor, Tensor)) {
    // Large neighbours hide small errors, so elements are compared one by one.
    let n = expected.elements();
    let one = |t: &Tensor, i: usize| {
        let size = t.dtype().size();
        Tensor::from_bytes(t.dtype(), &[], &t.bytes()[i * size..(i + 1) * size]).unwrap()
    };
    for i in 0..n {
        let (f, e) = (one(found, i), one(expected, i));
        let ok = equal(&f, &e) || !exact && (close(&f, &e) || distance(&f, &e).unwrap().max_abs <= ABSOLUTE);
        assert!(ok, "{what}, element {i}: {:?}\n{f:?}\n{e:?}\n{:?}", distance(&f, &e), cast(&e, DType::F32));
    }
}

/// Whether PyTorch's formula, which the reference interpreter follows, differs from TensorRT's in the last digits.
fn is_rounded_otherwise(u: Unary) -> bool {
    use Unary as U;
    matches!(
        u,
        U::Silu | U::Gelu | U::GeluTanh | U::Softplus | U::Erf | U::Exp2 | U::Expm1 | U::Log1p | U::Log2
    )
}

#[test]
fn every_unary_function() {
    let mut seen = 0;
    for &u in Unary::ALL {
        for dtype in DTYPES {
            let x = values(dtype, &NUMBERS, &[4, 5]);
            if let Some(pair) = both(Op::Unary(u), &[x]) {
                assert_same(&format!("{} of {dtype}", u.name()), !is_rounded_otherwise(u), &pair);
                seen += 1;
            }
        }
    }
    assert!(seen >= 3 * Unary::ALL.len(), "{seen} functions and types are too few");
}

#[test]
fn every_binary_function() {
    let mut seen = 0;
    for &op in Binary::ALL {
        for dtype in DTYPES {
            let what = format!("{} of {dtype}", op.name());
            let divides = matches!(op, Binary::FloorDiv | Binary::TruncDiv | Binary::Rem | Binary::Fmod);
            // Integers have no quotient by zero. A remainder in pieces is exact where the quotient is: not of 4 by 0.1.
            let remains = matches!(op, Binary::Rem | Binary::Fmod);
            let fits = |v: f32| {
                !divides || v.is_finite() && v.round() != 0.0 && (!remains || v * 4.0 == (v * 4.0).round())
            };
            let plain: Vec<f32> = NUMBERS.iter().map(|&v| if fits(v) { v } else { 4.0 }).collect();
            let (a, b) = (values(dtype, &plain, &[20, 1]), values(dtype, &plain, &[1, 20]));
            let exact = !matches!(op, Binary::Pow | Binary::Rem | Binary::Fmod);
            if let Some(pair) = both(Op::Binary(op), &[a.clone(), b]) {
                assert_same(&what, exact, &pair);
                seen += 1;
            }
            for number in [2.0, 0.5, -1.0, 3.0, -2.0, -0.5, 0.1] {
                let scalar =
                    if dtype.is_float() { Scalar::Float(number) } else { Scalar::Int(number as i64) };
                if !dtype.is_float() && scalar.as_i64() == 0 || remains && number == 0.1 {
                    continue;
                }
                for scalar_first in [false, true] {
                    let op = Op::BinaryScalar { op, scalar, scalar_first };
                    if let Some(pair) = both(op, std::slice::from_ref(&a)) {
                        assert_same(&format!("{what} with {number}, first {scalar_first}"), exact, &pair);
                    }
                }
            }
        }
    }
    assert!(seen >= 60, "{seen} functions and types are too few");
}

#[test]
fn every_cast() {
    for from in DTYPES {
        for to in DTYPES {
            // Floats outside of an integer's range have no defined value in it.
            let numbers: Vec<f32> =
                NUMBERS.iter().map(|v| if to.is_float() || v.abs() < 100.0 { *v } else { 5.0 }).collect();
            let pair = both(Op::Cast { to }, &[values(from, &numbers, &[20])]).expect("these types convert");
            assert_same(&format!("{from} to {to}"), true, &pair);
        }
    }
}

#[test]
fn every_reduction() {
    let x: Vec<f32> = (0..24).map(|i| ((i * 7 % 11) as f32 - 5.0) / 4.0).collect();
    for &kind in ReduceKind::ALL {
        for dtype in DTYPES {
            for dims in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
                for keep_dims in [false, true] {
                    let op = Op::Reduce { kind, dims: dims.clone(), keep_dims };
                    if let Some(pair) = both(op, &[values(dtype, &x, &[2, 3, 4])]) {
                        assert_same(&format!("{} of {dtype} over {dims:?}", kind.name()), false, &pair);
                    }
                }
            }
        }
    }
}

#[test]
fn normalisations_over_one_and_two_dimensions() {
    let x: Vec<f32> = (0..24).map(|i| ((i * 5 % 13) as f32 - 6.0) / 2.0).collect();
    let mut seen = 0;
    for kind in [NormKind::Layer, NormKind::Rms] {
        for (trailing, shape) in [(1u32, vec![4]), (2, vec![3, 4])] {
            for (scale, bias) in [(false, false), (true, false), (false, true), (true, true)] {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    let n = shape.iter().product::<usize>();
                    let mut operands = vec![values(dtype, &x, &[2, 3, 4])];
                    operands.extend(scale.then(|| values(dtype, &x[..n], &shape)));
                    operands.extend(bias.then(|| values(dtype, &x[5..5 + n], &shape)));
                    let epsilon = Scalar::Float(1e-5);
                    let (found, expected) =
                        both(Op::Normalize { kind, trailing, epsilon, scale, bias }, &operands).unwrap();
                    assert!(
                        close(&found, &expected),
                        "{} {dtype}: {:?}",
                        kind.name(),
                        distance(&found, &expected)
                    );
                    seen += 1;
                }
            }
        }
    }
    assert_eq!(seen, 48);
}

#[test]
fn convolutions_in_one_to_three_dimensions() {
    let numbers = |n: usize| -> Vec<f32> { (0..n).map(|i| ((i * 3 % 7) as f32 - 3.0) / 2.0).collect() };
    for spatial in 1..=3usize {
        for bias in [false, true] {
            for groups in [1u64, 2] {
                let x: Vec<usize> = [1, 4].into_iter().chain([5, 4, 3].into_iter().take(spatial)).collect();
                let k: Vec<usize> =
                    [2, 4 / groups as usize].into_iter().chain([2; 3].into_iter().take(spatial)).collect();
                let size = |s: &[usize]| s.iter().product::<usize>();
                let mut operands = vec![
                    values(DType::F32, &numbers(size(&x)), &x),
                    values(DType::F32, &numbers(size(&k)), &k),
                ];
                operands.extend(bias.then(|| values(DType::F32, &[0.5, -2.0], &[2])));
                let op = Op::Conv {
                    stride: [2, 1, 1][..spatial].to_vec(),
                    padding: [(1, 0), (0, 2), (1, 1)][..spatial].to_vec(),
                    dilation: [1, 2, 1][..spatial].to_vec(),
                    groups,
                    bias,
                };
                let (found, expected) = both(op, &operands).unwrap();
                assert!(close(&found, &expected), "{spatial} dimensions: {:?}", distance(&found, &expected));
            }
        }
    }
}

#[test]
fn attention_with_masks_and_values_of_another_size() {
    let numbers =
        |n: usize, by: usize| -> Vec<f32> { (0..n).map(|i| ((i * by % 17) as f32 - 8.0) / 8.0).collect() };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for lead in [vec![], vec![2], vec![1, 2], vec![2, 1, 3]] {
            for value_size in [4usize, 3] {
                for mask in [None, Some(DType::Bool), Some(dtype)] {
                    for causal in [false, true] {
                        let n: usize = lead.iter().product();
                        let shape = |l: usize, e: usize| [lead.as_slice(), &[l, e]].concat();
                        let mut operands = vec![
                            values(dtype, &numbers(n * 12, 5), &shape(3, 4)),
                            values(dtype, &numbers(n * 20, 7), &shape(5, 4)),
                            values(dtype, &numbers(n * 5 * value_size, 3), &shape(5, value_size)),
                        ];
                        let m = vec![1; lead.len()];
                        // Every query sees the first key.
                        operands.extend(mask.map(|d| {
                            let bits: Vec<f32> = (0..5).map(|j| if j % 2 == 0 { 1.0 } else { 0.0 }).collect();
                            values(d, &bits, &[m.as_slice(), &[1, 5]].concat())
                        }));
                        let op = Op::Attention { scale: Scalar::Float(0.3), causal, mask: mask.is_some() };
                        let (found, expected) = both(op, &operands).unwrap();
                        assert!(
                            close(&found, &expected),
                            "{dtype}, batch {lead:?}, value size {value_size}, mask {mask:?}, causal {causal}: {:?}",
                            distance(&found, &expected)
                        );
                    }
                }
            }
        }
    }
}

/// What the tests above rest on: another number is seen.
#[test]
fn another_number_is_seen() {
    let x = values(DType::F32, &NUMBERS[..4], &[4]);
    let op =
        |number| Op::BinaryScalar { op: Binary::Add, scalar: Scalar::Float(number), scalar_first: false };
    let (found, _) = both(op(1.0), std::slice::from_ref(&x)).unwrap();
    let (_, expected) = both(op(1.0 + 1e-4), &[x]).unwrap();
    assert!(!close(&found, &expected));
}

#[test]
fn constants_of_i8_were_quantised_constants_to_the_builder() {
    let x = values(DType::I8, &[1.0, -3.0, 7.0], &[3]);
    let op = Op::BinaryScalar { op: Binary::Add, scalar: Scalar::Int(-2), scalar_first: false };
    let (found, expected) = both(op, std::slice::from_ref(&x)).expect("additions of i8 can be lowered");
    assert!(equal(&found, &expected));
    let (found, expected) = both(Op::Pad { dim: 0, low: 1, high: 2, value: Scalar::Int(5) }, &[x]).unwrap();
    assert!(equal(&found, &expected));
}

#[test]
fn truncated_quotients_of_half_precision_were_not_rounded_first() {
    for dtype in [DType::F16, DType::BF16] {
        // 3.5 / 0.7 rounds to 5 from below.
        let (a, b) = (values(dtype, &[-3.5], &[1]), values(dtype, &[-0.7], &[1]));
        let (found, expected) = both(Op::Binary(Binary::TruncDiv), &[a, b]).unwrap();
        assert!(equal(&found, &expected), "{dtype}: {found:?} {expected:?}");
    }
}

#[test]
fn square_roots_as_powers_of_f16_were_roots() {
    let x = values(DType::F16, &[-0.0, f32::NEG_INFINITY, 9.0], &[3]);
    for exponent in [0.5, -0.5] {
        let op = Op::BinaryScalar { op: Binary::Pow, scalar: Scalar::Float(exponent), scalar_first: false };
        let (found, expected) = both(op, std::slice::from_ref(&x)).unwrap();
        assert!(equal(&found, &expected), "{exponent}: {found:?} {expected:?}");
    }
}
