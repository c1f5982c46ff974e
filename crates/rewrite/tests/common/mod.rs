//! Runs programs on the reference interpreter and compares them within a class.

use shardweld_interp::{Named, Tensor, run};
use shardweld_ir::testing::Rng;
use shardweld_ir::{DType, Graph, Op, WeightStore};
use shardweld_rewrite::Class;

/// Inputs for every rank: small values, with zeros of both signs, infinities, NaNs and subnormals among them.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<Named<Tensor>> {
    let mut rng = Rng::new(seed);
    (0..graph.mesh().world_size())
        .map(|_| {
            graph
                .inputs()
                .iter()
                .map(|&id| {
                    let Op::Input { name } = &graph.node(id).op else { unreachable!() };
                    let ty = graph.ty(id);
                    let dims: Vec<usize> =
                        ty.shape.as_static().unwrap().into_iter().map(|n| n as usize).collect();
                    let n: usize = dims.iter().product();
                    let bytes: Vec<u8> = (0..n).flat_map(|_| element(ty.dtype, &mut rng)).collect();
                    (name.clone(), Tensor::from_bytes(ty.dtype, &dims, &bytes).unwrap())
                })
                .collect()
        })
        .collect()
}

fn element(dtype: DType, rng: &mut Rng) -> Vec<u8> {
    if dtype.is_float() {
        let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, -3e-42];
        let x = if rng.one_in(6) { special[rng.below(special.len())] } else { rng.small_float() };
        return match dtype {
            DType::F8E4M3 => vec![(rng.bits() & 0x7e) as u8],
            _ => shardweld_ir::literal::encode(dtype, shardweld_ir::Scalar::Float(x)).unwrap(),
        };
    }
    let n = rng.below(7) as i64 - if dtype == DType::U8 || dtype == DType::Bool { 0 } else { 3 };
    let value = if dtype == DType::Bool { i64::from(n > 3) } else { n };
    shardweld_ir::literal::encode(dtype, shardweld_ir::Scalar::Int(value)).unwrap()
}

/// Outputs of all ranks; `None` where the interpreter refuses (overflowing indices and the like).
pub fn outputs(graph: &Graph, inputs: &[Named<Tensor>]) -> Option<Vec<Named<Tensor>>> {
    run(graph, &WeightStore::default(), inputs).ok()
}

/// The first difference beyond the class: output, rank, element.
pub fn difference(a: &[Named<Tensor>], b: &[Named<Tensor>], class: Class) -> Option<String> {
    for (rank, (x, y)) in a.iter().zip(b).enumerate() {
        if x.keys().ne(y.keys()) {
            return Some(format!("rank {rank}: outputs {:?} and {:?}", x.keys(), y.keys()));
        }
        for (name, s) in x {
            let t = &y[name];
            if s.ty() != t.ty() {
                return Some(format!("rank {rank} {name}: {} and {}", s.ty(), t.ty()));
            }
            let size = s.dtype().size();
            for (i, (p, q)) in s.bytes().chunks(size).zip(t.bytes().chunks(size)).enumerate() {
                if p != q && !close(s.dtype(), p, q, class) {
                    return Some(format!("rank {rank} {name}[{i}]: {p:x?} and {q:x?}"));
                }
            }
        }
    }
    None
}

fn close(dtype: DType, p: &[u8], q: &[u8], class: Class) -> bool {
    let (Some(x), Some(y)) = (float(dtype, p), float(dtype, q)) else { return false };
    if class >= Class::Nan && x.is_nan() && y.is_nan() {
        return true;
    }
    class >= Class::Zero && x == y
}

fn float(dtype: DType, b: &[u8]) -> Option<f64> {
    Some(match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(b.try_into().ok()?)),
        DType::F64 => f64::from_le_bytes(b.try_into().ok()?),
        DType::BF16 => f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b.try_into().ok()?)) << 16)),
        DType::F16 => {
            let h = u16::from_le_bytes(b.try_into().ok()?);
            if h & 0x7c00 == 0x7c00 && h & 0x3ff != 0 {
                f64::NAN
            } else if h & 0x7fff == 0 {
                if h == 0 { 0.0 } else { -0.0 }
            } else {
                f64::from(h)
            }
        }
        _ => return None,
    })
}
