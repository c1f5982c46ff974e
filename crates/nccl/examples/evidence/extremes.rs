//! MAX and MIN of NaN and signed zeros; AVG of integers.

use shardweld_ir::ReduceOp;
use shardweld_nccl::ElementType;

use crate::Outcome;
use crate::bench::{Bench, share};
use crate::bits::{self, Random};

/// One rank holds the first value, the others the second; every rank in turn.
pub fn max_min(b: &mut Bench) -> Outcome<()> {
    use ElementType::*;
    b.heading(
        "MAX and MIN: one rank holds the first value, all others the second (over every position of the one)",
        &["type", "op", "one, others", "results"],
    );
    for e in [F32, F64, F16, BF16, F8E4M3, F8E5M2] {
        let (exp, man) = bits::layout(e);
        let sign = 1u64 << (exp + man);
        let one = ((1u64 << (exp - 1)) - 1) << man;
        let top = ((1u64 << exp) - 1) << man;
        let nan = if e == F8E4M3 { top | 7 } else { top | 1 << (man - 1) };
        let odd_nan = if e == F8E4M3 { sign | nan } else { sign | nan | 1 };
        let cases = [
            ("NaN, 1", nan, one),
            ("1, NaN", one, nan),
            ("negative NaN with payload, 1", odd_nan, one),
            ("NaN, -1", nan, sign | one),
            ("NaN, other NaN", nan, odd_nan),
            ("-0, +0", sign, 0),
            ("+0, -0", 0, sign),
        ];
        for op in [ReduceOp::Max, ReduceOp::Min] {
            // Element c * n + k: case c with rank k as the one.
            let n = b.n as usize;
            let me = b.rank as usize;
            let send = bits::write(
                e,
                cases.iter().flat_map(|&(_, x, y)| (0..n).map(move |k| if k == me { x } else { y })),
            );
            let got = bits::read(e, &b.all_reduce(op, e, &send)?);
            for (c, (name, ..)) in cases.iter().enumerate() {
                let mut results: Vec<(u64, usize)> = Vec::new();
                for &r in &got[c * n..(c + 1) * n] {
                    match results.iter_mut().find(|(v, _)| *v == r) {
                        Some((_, count)) => *count += 1,
                        None => results.push((r, 1)),
                    }
                }
                let text: Vec<String> = results
                    .iter()
                    .map(|&(v, count)| {
                        format!("{} {} ({count} of {n})", bits::CLASSES[bits::class(e, v)], bits::hex(e, v))
                    })
                    .collect();
                b.row(&[e.to_string(), op.name().into(), (*name).into(), text.join(", ")]);
            }
        }
    }
    Ok(())
}

/// SUM and AVG at the edges of the formats: all ranks hold the value, or one does and the others the second.
pub fn sum_edges(b: &mut Bench) -> Outcome<()> {
    use ElementType::*;
    b.heading(
        "SUM and AVG at the edges: rank 0 holds the first value, all others the second",
        &["type", "op", "first, others", "result"],
    );
    for e in [F32, F64, F16, BF16, F8E4M3, F8E5M2] {
        let (exp, man) = bits::layout(e);
        let sign = 1u64 << (exp + man);
        let top = ((1u64 << exp) - 1) << man;
        let max = if e == F8E4M3 { top | 6 } else { top - 1 };
        let mut cases = vec![
            ("max, max", max, max),
            ("max, -max", max, sign | max),
            ("-0, -0", sign, sign),
            ("smallest, smallest", 1, 1),
        ];
        if e != F8E4M3 {
            cases.extend([("inf, 0", top, 0), ("inf, inf", top, top), ("inf, -inf", top, sign | top)]);
        }
        let first = b.rank == 0;
        let send = bits::write(e, cases.iter().map(|&(_, x, y)| if first { x } else { y }));
        for op in [ReduceOp::Sum, ReduceOp::Avg] {
            let got = bits::read(e, &b.all_reduce(op, e, &send)?);
            for (&(name, x, _), r) in cases.iter().zip(got) {
                let text = format!("{} {}", bits::CLASSES[bits::class(e, r)], bits::hex(e, r));
                let case = format!("{name} (first {})", bits::hex(e, x));
                b.row(&[e.to_string(), op.name().into(), case, text]);
            }
        }
    }
    Ok(())
}

/// Which formula an integer AVG follows.
pub fn integer_avg(b: &mut Bench) -> Outcome<()> {
    use ElementType::*;
    const COUNT: usize = 4096;
    b.heading(
        "AVG of integers: elements that differ from each formula",
        &[
            "type",
            "values",
            "all ranks 3",
            "wrapped sum / n, towards 0",
            "exact sum / n, towards 0",
            "exact sum / n, floor",
            "sum of (x / n)",
        ],
    );
    for e in [I8, U8, I32, U32, I64, U64] {
        let width = 8 * e.size() as u32;
        let signed = matches!(e, I8 | I32 | I64);
        let value = |bits: u64| -> i128 {
            if signed { i128::from((bits << (64 - width)) as i64 >> (64 - width)) } else { i128::from(bits) }
        };
        let mask = u64::MAX >> (64 - width);
        for (name, small) in [("-10..10 (0..20 unsigned)", true), ("full range", false)] {
            let n = b.n as usize;
            let operand = |rank: usize| -> Vec<u64> {
                let mut r = Random(rank as u64 * 77 + 1);
                (0..COUNT)
                    .map(|_| match (small, signed) {
                        (true, true) => ((r.next() % 21) as i64 - 10) as u64 & mask,
                        (true, false) => r.next() % 21,
                        (false, _) => r.next() & mask,
                    })
                    .collect()
            };
            let operands: Vec<Vec<u64>> = (0..n).map(operand).collect();
            let threes = bits::read(e, &b.all_reduce(ReduceOp::Avg, e, &bits::write(e, [3]))?);
            let send = bits::write(e, operands[b.rank as usize].iter().copied());
            let got = bits::read(e, &b.all_reduce(ReduceOp::Avg, e, &send)?);
            let mut differ = [0u64; 4];
            for (i, &g) in got.iter().enumerate() {
                let sum: i128 = operands.iter().map(|o| value(o[i])).sum();
                let n = n as i128;
                let wrapped = value(sum as u64 & mask);
                let parts: i128 = operands.iter().map(|o| value(o[i]) / n).sum();
                for (d, want) in differ.iter_mut().zip([wrapped / n, sum / n, sum.div_euclid(n), parts]) {
                    *d += u64::from(want as u64 & mask != g);
                }
            }
            let mut row = vec![
                e.to_string(),
                name.into(),
                threes.first().map_or("-".into(), |&t| value(t).to_string()),
            ];
            row.extend(differ.map(|d| share(d, COUNT as u64)));
            b.row(&row);
        }
    }
    Ok(())
}
