//! Random collectives, groups, and the ops that depend on a rank's place in them.

use super::generate::Generator;
use crate::mesh::{AxisId, Group};
use crate::op::{Collective, Op, ReduceOp};
use crate::types::DType;

impl Generator<'_> {
    pub(super) fn axis(&mut self) -> Option<AxisId> {
        let n = self.graph.mesh().axes().len();
        (n > 0).then(|| AxisId(self.rng.below(n) as u32))
    }

    /// Axes in any order, or a random partition.
    pub(super) fn group(&mut self) -> Group {
        let axes = self.graph.mesh().axes().len();
        if !self.rng.one_in(4) {
            let mut chosen: Vec<AxisId> = (0..axes as u32).map(AxisId).collect();
            self.rng.shuffle(&mut chosen);
            chosen.truncate(if self.rng.one_in(8) { 0 } else { 1 + self.rng.below(axes) });
            return Group::Axes(chosen);
        }
        let world = self.graph.mesh().world_size();
        let mut ranks: Vec<u32> = (0..world).collect();
        self.rng.shuffle(&mut ranks);
        let divisors: Vec<u32> = (1..=world).filter(|d| world.is_multiple_of(*d)).collect();
        let size = *self.rng.pick(&divisors).unwrap_or(&1);
        Group::Ranks(ranks.chunks(size as usize).map(<[u32]>::to_vec).collect())
    }

    pub(super) fn collective(&mut self) -> Option<()> {
        let group = self.group();
        let n = u64::from(group.size(self.graph.mesh()));
        let x = self.value(|t| t.rank() > 0)?;
        let dtype = self.ty(x).dtype;
        let root = self.rng.below(n as usize) as u32;
        let op = match dtype {
            DType::Bool => *self.rng.pick(&[ReduceOp::Max, ReduceOp::Min])?,
            d if d.is_int() => *self.rng.pick(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min])?,
            _ => *self.rng.pick(ReduceOp::ALL)?,
        };
        let wide = *self.rng.pick(&[None, None, Some(DType::F32), Some(dtype)])?;
        let accum = wide.filter(|w| dtype.embeds_in(*w));
        let on = |kind| Op::Collective { kind, group: group.clone() };
        match self.rng.below(12) {
            0 | 1 => self.push(on(Collective::AllReduce { op, accum }), &[x]),
            2 | 3 => {
                let dim = self.dim_of(x, |_| true)?;
                self.push(on(Collective::AllGather { dim }), &[x])
            }
            4 => {
                let dim = self.dim_of(x, |d| d.is_multiple_of(n))?;
                self.push(on(Collective::ReduceScatter { op, dim, accum }), &[x])
            }
            5 => {
                let split_dim = self.dim_of(x, |d| d.is_multiple_of(n))?;
                let concat_dim = self.dim_of(x, |_| true)?;
                self.push(on(Collective::AllToAll { split_dim, concat_dim }), &[x])
            }
            6 => self.push(on(Collective::Broadcast { root }), &[x]),
            7 => {
                let dim = self.dim_of(x, |d| d.is_multiple_of(n))?;
                self.push(on(Collective::Scatter { dim, root }), &[x])
            }
            // Undefined off root, so it goes straight on to a collective that takes the root's value.
            8 => {
                let kind = if self.rng.one_in(2) {
                    Collective::Reduce { op, root, accum }
                } else {
                    Collective::Gather { dim: self.dim_of(x, |_| true)?, root }
                };
                let partial = self.add(on(kind), &[x])?.into();
                self.push(on(Collective::Broadcast { root }), &[partial])
            }
            9 => {
                let dim = self.dim_of(x, |d| d.is_multiple_of(n))?;
                self.push(Op::OwnSlice { dim, group }, &[x])
            }
            10 => {
                let dim = self.dim_of(x, |_| true)?;
                let value = self.scalar(dtype);
                self.push(Op::OwnPad { dim, group, value }, &[x])
            }
            _ => {
                let axis = self.axis()?;
                let ty = self.ty(x);
                let mut operands = vec![x];
                while (operands.len() as u32) < self.graph.mesh().axis_size(axis)? {
                    operands.push(self.value(|t| *t == ty)?);
                }
                self.push(Op::AxisSelect { axis }, &operands)
            }
        }
    }
}
