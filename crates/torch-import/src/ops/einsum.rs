//! Einstein sums of one or two tensors: a transpose, a sum, a product or one matrix product.

use shardweld_ir::{Binary, Op, ReduceKind};

use super::view::product;
use crate::{
    call::{Call, Refused},
    context::{Cx, Out},
    ssa::Val,
};

/// A dimension's name: a letter, or the position of a dimension under `...`, counted from the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Rest(usize),
    Letter(char),
}

pub(super) fn convert<'p>(cx: &mut Cx<'p>, call: &Call<'p>) -> Refused<Option<Out>> {
    if call.op != "einsum" {
        return Ok(None);
    }
    let operands = cx.values(call, "tensors")?;
    call.get("path");
    let ranks: Vec<usize> = operands.iter().map(|v| cx.rank(*v)).collect();
    let (inputs, output) = parse(call.str("equation")?, &ranks)?;
    let value = match (operands.as_slice(), inputs.as_slice()) {
        ([x], [labels]) => {
            let (x, labels) = cx.summed(*x, labels, |l| output.contains(&l))?;
            cx.reordered(x, &labels, &output)?
        }
        ([a, b], [la, lb]) => cx.contracted((*a, la), (*b, lb), &output)?,
        _ => return Err(format!("einsum of {} tensors; one or two are supported", operands.len())),
    };
    Ok(Some(Out::Fresh(vec![value])))
}

/// Labels of the operands' dimensions and of the result's.
fn parse(equation: &str, ranks: &[usize]) -> Refused<(Vec<Vec<Label>>, Vec<Label>)> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(format!("einsum `{equation}` of {} tensors", ranks.len()));
    }
    let labels = |term: &str, rest: Option<usize>| -> Refused<Vec<Label>> {
        let (before, after) = term.split_once("...").unwrap_or((term, ""));
        let dots = if term.contains("...") { rest.unwrap_or(0) } else { 0 };
        let all: Vec<Label> = before
            .chars()
            .map(Label::Letter)
            .chain((0..dots).rev().map(Label::Rest))
            .chain(after.chars().map(Label::Letter))
            .collect();
        let good = |l: &Label| {
            matches!(l, Label::Rest(_)) || matches!(l, Label::Letter(c) if c.is_ascii_alphabetic())
        };
        let repeated = (1..all.len()).any(|i| all[..i].contains(&all[i]));
        if !all.iter().all(good) || repeated {
            return Err(format!("einsum `{equation}`: `{term}` repeats a letter or is malformed"));
        }
        Ok(all)
    };
    let mut most = 0;
    let mut inputs = Vec::with_capacity(terms.len());
    for (term, rank) in terms.iter().zip(ranks) {
        let letters = term.chars().filter(char::is_ascii_alphabetic).count();
        let rest = rank
            .checked_sub(letters)
            .ok_or_else(|| format!("einsum `{equation}`: `{term}` of {rank} dimensions"))?;
        let l = labels(term, Some(rest))?;
        if l.len() != *rank {
            return Err(format!("einsum `{equation}`: `{term}` of {rank} dimensions"));
        }
        most = most.max(l.iter().filter(|l| matches!(l, Label::Rest(_))).count());
        inputs.push(l);
    }
    let output = match right {
        Some(r) => labels(r, Some(most))?,
        None => {
            let once = |l: &Label| inputs.iter().flatten().filter(|x| *x == l).count() == 1;
            let mut letters: Vec<Label> = inputs
                .iter()
                .flatten()
                .filter(|l| matches!(l, Label::Letter(_)) && once(l))
                .copied()
                .collect();
            letters.sort_unstable();
            (0..most).rev().map(Label::Rest).chain(letters).collect()
        }
    };
    if let Some(l) = output.iter().find(|l| !inputs.iter().flatten().any(|x| x == *l)) {
        return Err(format!("einsum `{equation}`: {l:?} of the result is in no operand"));
    }
    Ok((inputs, output))
}

impl Cx<'_> {
    /// Sums over the dimensions that are not kept.
    fn summed(
        &mut self,
        x: Val,
        labels: &[Label],
        keep: impl Fn(Label) -> bool,
    ) -> Refused<(Val, Vec<Label>)> {
        let gone: Vec<u32> = (0..labels.len() as u32).filter(|i| !keep(labels[*i as usize])).collect();
        let kept = labels.iter().copied().filter(|l| keep(*l)).collect();
        Ok((self.reduce(ReduceKind::Sum, x, &gone, false)?, kept))
    }

    fn reordered(&mut self, x: Val, from: &[Label], to: &[Label]) -> Refused<Val> {
        let perm = to
            .iter()
            .map(|l| from.iter().position(|f| f == l).map(|i| i as u32))
            .collect::<Option<Vec<u32>>>()
            .filter(|p| p.len() == from.len())
            .ok_or("einsum: the result lacks a dimension")?;
        if perm.iter().enumerate().all(|(i, p)| i as u32 == *p) {
            return Ok(x);
        }
        self.add(Op::Transpose { perm }, &[x])
    }

    fn contracted(&mut self, a: (Val, &[Label]), b: (Val, &[Label]), output: &[Label]) -> Refused<Val> {
        // What only one operand has and the result does not is summed first, as torch does.
        let (x, la) = self.summed(a.0, a.1, |l| output.contains(&l) || b.1.contains(&l))?;
        let (y, lb) = self.summed(b.0, b.1, |l| output.contains(&l) || a.1.contains(&l))?;
        let both = |kept: bool| -> Vec<Label> {
            la.iter().copied().filter(|l| lb.contains(l) && output.contains(l) == kept).collect()
        };
        let (batch, inner) = (both(true), both(false));
        let only = |l: &[Label], other: &[Label]| -> Vec<Label> {
            l.iter().copied().filter(|l| !other.contains(l)).collect()
        };
        let (rows, columns) = (only(&la, &lb), only(&lb, &la));
        let order_a = [batch.as_slice(), &rows, &inner].concat();
        let order_b = [batch.as_slice(), &inner, &columns].concat();
        let (mut x, mut y) = (self.reordered(x, &la, &order_a)?, self.reordered(y, &lb, &order_b)?);
        // Sizes of shared dimensions agree, or one of them is 1.
        let (mut dx, mut dy) = (self.dims(x), self.dims(y));
        for l in batch.iter().chain(&inner) {
            let at = |order: &[Label]| order.iter().position(|o| o == l).unwrap_or(0);
            let (i, j) = (at(&order_a), at(&order_b));
            let n = dx[i].max(dy[j]);
            (dx[i], dy[j]) = (if dx[i] == 1 { n } else { dx[i] }, if dy[j] == 1 { n } else { dy[j] });
            if dx[i] != dy[j] {
                return Err(format!("einsum: sizes {} and {} of one letter", dx[i], dy[j]));
            }
        }
        x = self.broadcast_to(x, &dx)?;
        y = self.broadcast_to(y, &dy)?;
        let (nb, nr) = (batch.len(), rows.len());
        let (b, m, k, n) = (&dx[..nb], &dx[nb..nb + nr], &dx[nb + nr..], &dy[nb + inner.len()..]);
        let result = [b, m, n].concat();
        let value = if inner.is_empty() {
            let x = self.reshape(x, &[b, m, &vec![1; n.len()]].concat())?;
            let y = self.reshape(y, &[b, &vec![1; m.len()], n].concat())?;
            self.binary(Binary::Mul, x, y)?
        } else {
            let (b, m, k, n) = (product(b), product(m), product(k), product(n));
            let (x, y) = (self.reshape(x, &[b, m, k])?, self.reshape(y, &[b, k, n])?);
            let z = self.add(Op::MatMul { transpose_a: false, transpose_b: false }, &[x, y])?;
            self.reshape(z, &result)?
        };
        self.reordered(value, &[batch, rows, columns].concat(), output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_read_as_numpy_does() {
        let l = Label::Letter;
        let (inputs, output) = parse("... n, d -> ...nd", &[3, 1]).unwrap();
        assert_eq!(inputs[0], [Label::Rest(1), Label::Rest(0), l('n')]);
        assert_eq!(output, [Label::Rest(1), Label::Rest(0), l('n'), l('d')]);
        assert_eq!(parse("bj,ja", &[2, 2]).unwrap().1, [l('a'), l('b')]);
        for (bad, ranks) in
            [("ii->i", &[2][..]), ("ij->k", &[2]), ("ij,jk", &[2]), ("ij->ij", &[3]), ("i1->i", &[2])]
        {
            assert!(parse(bad, ranks).is_err(), "{bad}");
        }
    }
}
