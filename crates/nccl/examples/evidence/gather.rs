//! All-gather against all-reduce(SUM) over a padded buffer, bit by bit.

use shardweld_ir::ReduceOp;
use shardweld_nccl::{ElementType, Kind};

use crate::Outcome;
use crate::bench::{Bench, share};
use crate::bits::{self, CLASSES};

pub fn padded(b: &mut Bench) -> Outcome<()> {
    use ElementType::*;
    b.heading(
        "All-gather against all-reduce(SUM) of a padded buffer: elements whose bits differ",
        &["type", "pad", "class of the value", "differ", "all-gather gave -> all-reduce gave (first)"],
    );
    for e in [BF16, F16, F32, F64, F8E4M3, F8E5M2] {
        let patterns = bits::patterns(e);
        // Each rank starts elsewhere, so that a position holds another pattern on each rank.
        let start = patterns.len() / b.n as usize * b.rank as usize;
        let mine: Vec<u64> = patterns[start..].iter().chain(&patterns[..start]).copied().collect();
        let shard = bits::write(e, mine.iter().copied());
        let gathered = b.call(Kind::AllGather, e, &shard)?;
        let expected: Vec<u8> = (0..b.n as usize)
            .flat_map(|r| {
                let at = patterns.len() / b.n as usize * r;
                bits::write(e, patterns[at..].iter().chain(&patterns[..at]).copied())
            })
            .collect();
        if gathered != expected {
            b.fail(&format!("all-gather of {e} changed bits"));
        }
        for (pad, sign) in [("-0.0", 1u64), ("+0.0", 0)] {
            let (exp, man) = bits::layout(e);
            let zero = sign << (exp + man);
            let block = shard.len();
            let mut buffer = bits::write(e, std::iter::repeat_n(zero, patterns.len() * b.n as usize));
            buffer[block * b.rank as usize..][..block].copy_from_slice(&shard);
            let reduced = b.all_reduce(ReduceOp::Sum, e, &buffer)?;
            if !b.same_everywhere(&reduced)? {
                b.fail(&format!("all-reduce of {e} gives different bits on different ranks"));
            }
            let mut counts = [(0u64, 0u64, None); CLASSES.len()];
            for (g, r) in bits::read(e, &gathered).into_iter().zip(bits::read(e, &reduced)) {
                let (differ, all, first) = &mut counts[bits::class(e, g)];
                *all += 1;
                if g != r {
                    *differ += 1;
                    first.get_or_insert((g, r));
                }
            }
            for (class, (differ, all, first)) in CLASSES.iter().zip(counts) {
                if all > 0 {
                    let first = first.map_or("-".into(), |(g, r)| {
                        format!("{} -> {} ({})", bits::hex(e, g), bits::hex(e, r), CLASSES[bits::class(e, r)])
                    });
                    b.row(&[e.to_string(), pad.into(), (*class).into(), share(differ, all), first]);
                }
            }
        }
    }
    Ok(())
}
