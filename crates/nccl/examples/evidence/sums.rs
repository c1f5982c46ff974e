//! In which order float sums are taken, and what depends on it.

use shardweld_ir::ReduceOp;
use shardweld_nccl::local::combine;
use shardweld_nccl::{ElementType, Kind};

use crate::Outcome;
use crate::bench::{Bench, share};
use crate::bits::{self, differing};

const SIZES: [usize; 4] = [64, 4096, 65_536, 1 << 20];
const TYPES: [ElementType; 4] = [ElementType::F32, ElementType::BF16, ElementType::F16, ElementType::F64];
/// Exponents from 2^-4 to 2^4: orders matter, nothing overflows.
const SPREAD: u32 = 4;
/// Elements on which orders are compared on the host.
const SAMPLE: usize = 16_384;

pub fn order(b: &mut Bench) -> Outcome<()> {
    which_order(b)?;
    dependence(b)?;
    laws(b)
}

fn operands(b: &Bench, e: ElementType, count: usize) -> Vec<Vec<u8>> {
    (0..b.n).map(|r| bits::numbers(e, 1000 + u64::from(r), count, SPREAD)).collect()
}

/// Windows spread over the buffer, about [`SAMPLE`] elements.
fn sample(e: ElementType, bytes: &[u8]) -> Vec<u8> {
    let count = bytes.len() / e.size();
    if count <= SAMPLE {
        return bytes.to_vec();
    }
    let (windows, size) = (64, SAMPLE / 64);
    (0..windows)
        .flat_map(|w| {
            let at = (count - size) / (windows - 1) * w;
            bytes[at * e.size()..(at + size) * e.size()].iter().copied()
        })
        .collect()
}

/// How many elements match a left fold in some order of ranks, a pairwise tree, and an f32 accumulation.
fn which_order(b: &mut Bench) -> Outcome<()> {
    b.heading(
        "Order of an all-reduce(SUM): elements (of a sample) that equal each model",
        &[
            "type",
            "elements",
            "fold from rank 0",
            "fold in ring order from some rank",
            "fold in ring order, reversed, from some rank",
            "pairwise tree",
            "f32 accumulated in ring order from some rank, rounded once",
            "none of these",
        ],
    );
    for e in TYPES {
        for count in SIZES {
            let operands = operands(b, e, count);
            let got = b.all_reduce(ReduceOp::Sum, e, &operands[b.rank as usize])?;
            if !b.same_everywhere(&got)? {
                b.fail(&format!("all-reduce of {count} {e} gives different bits on different ranks"));
            }
            let got = sample(e, &got);
            let operands: Vec<Vec<u8>> = operands.iter().map(|o| sample(e, o)).collect();
            let n = operands.len();
            let sum = |order: &[usize]| {
                let o: Vec<&[u8]> = order.iter().map(|&i| operands[i].as_slice()).collect();
                combine(e, ReduceOp::Sum, &o)
            };
            let ring = |start: usize| -> Vec<usize> { (0..n).map(|i| (start + i) % n).collect() };
            let back = |start: usize| -> Vec<usize> { (0..n).map(|i| (start + n - i) % n).collect() };
            let forward: Vec<Vec<u8>> = (0..n).map(|s| sum(&ring(s))).collect();
            let reversed: Vec<Vec<u8>> = (0..n).map(|s| sum(&back(s))).collect();
            let mut level = operands.clone();
            while level.len() > 1 {
                level = level
                    .chunks(2)
                    .map(|c| combine(e, ReduceOp::Sum, &c.iter().map(Vec::as_slice).collect::<Vec<_>>()))
                    .collect();
            }
            let wide: Vec<Vec<u8>> = if e.size() == 2 {
                let w: Vec<Vec<u8>> = operands.iter().map(|o| bits::widen(e, o)).collect();
                (0..n)
                    .map(|s| {
                        let o: Vec<&[u8]> = ring(s).iter().map(|&i| w[i].as_slice()).collect();
                        bits::narrow(e, &combine(ElementType::F32, ReduceOp::Sum, &o))
                    })
                    .collect()
            } else {
                vec![]
            };
            let size = e.size();
            let mut hits = [0u64; 6];
            let total = got.len() / size;
            for i in 0..total {
                let at = |v: &Vec<u8>| v[i * size..(i + 1) * size] == got[i * size..(i + 1) * size];
                let found = [
                    at(&forward[0]),
                    forward.iter().any(at),
                    reversed.iter().any(at),
                    level.first().is_some_and(at),
                    wide.iter().any(at),
                ];
                for (h, f) in hits.iter_mut().zip(found) {
                    *h += u64::from(f);
                }
                hits[5] += u64::from(!found.contains(&true));
            }
            let mut row = vec![e.to_string(), count.to_string()];
            row.extend(hits.map(|h| share(h, total as u64)));
            if size != 2 {
                row[6] = "-".into();
            }
            b.row(&row);
        }
    }
    Ok(())
}

/// The same operands at every position and in every buffer size: how many different sums come out?
fn dependence(b: &mut Bench) -> Outcome<()> {
    const TUPLES: usize = 64;
    b.heading(
        &format!("Dependence of a sum's order on position and buffer size ({TUPLES} operand tuples, repeated through the buffer)"),
        &["type", "elements", "tuples with more than one result inside the buffer", "first position that differs from its tuple's first", "tuples whose first result differs from that in the smallest buffer"],
    );
    for e in TYPES {
        let tuple = bits::numbers(e, 5000 + u64::from(b.rank), TUPLES, SPREAD);
        let mut smallest: Option<Vec<u8>> = None;
        for count in SIZES {
            let got = b.all_reduce(ReduceOp::Sum, e, &tuple.repeat(count / TUPLES))?;
            let first = got[..tuple.len()].to_vec();
            let mut varied = [false; TUPLES];
            let mut position = None;
            for (i, v) in got.chunks_exact(e.size()).enumerate() {
                let t = i % TUPLES;
                if v != &first[t * e.size()..(t + 1) * e.size()] {
                    varied[t] = true;
                    position.get_or_insert(i);
                }
            }
            let varied = varied.iter().filter(|v| **v).count();
            let moved = differing(e, &first, smallest.get_or_insert_with(|| first.clone()));
            b.row(&[
                e.to_string(),
                count.to_string(),
                varied.to_string(),
                position.map_or("-".into(), |p| p.to_string()),
                moved.to_string(),
            ]);
        }
    }
    Ok(())
}

/// Laws of the rule catalogue whose exactness depends on the transport.
fn laws(b: &mut Bench) -> Outcome<()> {
    b.heading("Laws of sums: elements whose bits differ", &["law", "type", "elements", "differ"]);
    // Divisible by every number of ranks up to 8.
    const COUNT: usize = 65_520;
    let n = b.n as usize;
    let me = b.rank as usize;
    for e in TYPES {
        let ops = operands(b, e, COUNT);
        let sum = b.all_reduce(ReduceOp::Sum, e, &ops[me])?;
        let row = |b: &Bench, law: &str, differ: u64, of: usize| {
            b.row(&[law.into(), e.to_string(), of.to_string(), share(differ, of as u64)]);
        };
        let mut repeats = 0;
        for _ in 0..5 {
            repeats += differing(e, &sum, &b.all_reduce(ReduceOp::Sum, e, &ops[me])?);
        }
        row(b, "the same call again (5 times)", repeats, 5 * COUNT);
        let swapped = b.all_reduce(ReduceOp::Sum, e, &ops[n - 1 - me])?;
        let law = if n == 2 { "x + y = y + x (operands swapped)" } else { "operands in reversed rank order" };
        row(b, law, differing(e, &sum, &swapped), COUNT);
        let scattered = b.call(Kind::ReduceScatter(ReduceOp::Sum), e, &ops[me])?;
        let joined = b.call(Kind::AllGather, e, &scattered)?;
        row(b, "all_reduce = all_gather(reduce_scatter)", differing(e, &sum, &joined), COUNT);
        let rooted = b.call(Kind::Reduce { op: ReduceOp::Sum, root: 0 }, e, &ops[me])?;
        let rooted = b.call(Kind::Broadcast { root: 0 }, e, &rooted)?;
        row(b, "all_reduce = broadcast(reduce)", differing(e, &sum, &rooted), COUNT);
        for cut in [64, 1000, COUNT / 2] {
            let (x, y) = ops[me].split_at(cut * e.size());
            let mut parts = b.all_reduce(ReduceOp::Sum, e, x)?;
            parts.extend(b.all_reduce(ReduceOp::Sum, e, y)?);
            row(b, &format!("bucketed = single, cut at {cut}"), differing(e, &sum, &parts), COUNT);
        }
        if e.size() == 2 {
            let wide = b.all_reduce(ReduceOp::Sum, ElementType::F32, &bits::widen(e, &ops[me]))?;
            row(
                b,
                "all_reduce = cast(all_reduce in f32)",
                differing(e, &sum, &bits::narrow(e, &wide)),
                COUNT,
            );
        }
        // Replicated operand: the product and the mean in the type itself.
        let one = &ops[0];
        let total = b.all_reduce(ReduceOp::Sum, e, one)?;
        let mean = b.all_reduce(ReduceOp::Avg, e, one)?;
        let times = combine(e, ReduceOp::Prod, &[one, &constant(e, n as f64, COUNT)]);
        row(b, "replicated x: all_reduce(SUM) = n * x", differing(e, &total, &times), COUNT);
        row(b, "replicated x: all_reduce(AVG) = x", differing(e, &mean, one), COUNT);
        let avg = b.all_reduce(ReduceOp::Avg, e, &ops[me])?;
        let part = constant(e, 1.0 / n as f64, COUNT);
        let rounded: Vec<Vec<u8>> = ops.iter().map(|o| combine(e, ReduceOp::Prod, &[o, &part])).collect();
        for (law, op, operands) in [
            ("AVG = ring fold, from some rank, of x * (1 / n), rounded, then added", ReduceOp::Sum, &rounded),
            ("AVG = ring fold, from some rank, of fused multiply-adds of x and 1 / n", ReduceOp::Avg, &ops),
        ] {
            let models: Vec<Vec<u8>> = (0..n)
                .map(|start| {
                    let ring: Vec<&[u8]> = (0..n).map(|i| operands[(start + i) % n].as_slice()).collect();
                    combine(e, op, &ring)
                })
                .collect();
            let size = e.size();
            let at = |v: &[u8], i: usize| v[i * size..(i + 1) * size].to_vec();
            let unlike = |i: &usize| !models.iter().any(|m| at(m, *i) == at(&avg, *i));
            row(b, law, (0..COUNT).filter(unlike).count() as u64, COUNT);
        }
        let post = combine(e, ReduceOp::Prod, &[&sum, &constant(e, 1.0 / n as f64, COUNT)]);
        row(b, "AVG = SUM * (1 / n)", differing(e, &avg, &post), COUNT);
        for c in [4.0, 3.0] {
            let scaled = combine(e, ReduceOp::Prod, &[&ops[me], &constant(e, c, COUNT)]);
            let before = b.all_reduce(ReduceOp::Sum, e, &scaled)?;
            let after = combine(e, ReduceOp::Prod, &[&sum, &constant(e, c, COUNT)]);
            row(
                b,
                &format!("{c} * all_reduce(x) = all_reduce({c} * x)"),
                differing(e, &before, &after),
                COUNT,
            );
        }
    }
    Ok(())
}

/// A buffer of one value.
fn constant(e: ElementType, v: f64, count: usize) -> Vec<u8> {
    let one = match e {
        ElementType::F32 => (v as f32).to_le_bytes().to_vec(),
        ElementType::F64 => v.to_le_bytes().to_vec(),
        ElementType::F16 => half::f16::from_f64(v).to_le_bytes().to_vec(),
        _ => half::bf16::from_f64(v).to_le_bytes().to_vec(),
    };
    one.repeat(count)
}
