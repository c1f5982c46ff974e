//! Collectives: TensorRT's work on dimension 0, the IR's on any; shuffles around them make up for it.

use shardweld_ir::{Collective, DType, Group, Value};

use super::lazy::{Lazy, Step, View};
use super::{At, Lowerer, MAX_DIMS, Made, Refusal, refuse};
use crate::trace::{Call, CollectiveKind, DistCollective, TensorId};

impl Lowerer<'_> {
    pub(super) fn collective(&mut self, at: &At, x: Value, kind: &Collective, group: &Group) -> Made<Lazy> {
        let mesh = self.graph.mesh();
        let ranks = group.members(mesh, self.rank);
        if ranks.len() == 1 && ranks[0] == self.rank {
            return self.lazy(x);
        }
        if self.dims(x)?.contains(&0) {
            return refuse(format!(
                "the operand has no elements ({}): TensorRT leaves such a collective out of the engine; take it out of the \
                 program",
                self.graph.ty(x)
            ));
        }
        let root = match kind.root() {
            Some(position) => match ranks.get(position as usize) {
                Some(&rank) => Some(rank),
                None => return refuse(format!("root {position} is outside the group {ranks:?}")),
            },
            None => None,
        };
        let n = ranks.len() as u64;
        let op = match kind {
            Collective::AllReduce { .. } => CollectiveKind::AllReduce,
            Collective::AllGather { .. } => CollectiveKind::AllGather,
            Collective::ReduceScatter { .. } => CollectiveKind::ReduceScatter,
            Collective::AllToAll { .. } => CollectiveKind::AllToAll,
            Collective::Broadcast { .. } => CollectiveKind::Broadcast,
            Collective::Reduce { .. } => CollectiveKind::Reduce,
            Collective::Gather { .. } => CollectiveKind::Gather,
            Collective::Scatter { .. } => CollectiveKind::Scatter,
        };
        let call = match DistCollective::new(op, kind.reduce_op(), root, ranks, mesh.world_size()) {
            Ok(c) if c.belongs_to(mesh, self.rank) => c,
            Ok(c) => return refuse(format!("rank {} is not in its group {:?}", self.rank, c.ranks())),
            Err(e) => return refuse(e.to_string()),
        };
        match *kind {
            Collective::AllReduce { accum, .. } | Collective::Reduce { accum, .. } => {
                let lazy = self.lazy(x)?;
                // A scalar has no dimension 0.
                let dims = self.dims(x)?;
                let lazy =
                    if dims.is_empty() { self.shuffle_lazy(at, lazy, Step::Reshape(vec![1]))? } else { lazy };
                let t = self.materialise(at, lazy)?;
                self.issue(at, t, call, accum, |l, t| l.reshaped(at, t, dims))
            }
            Collective::Broadcast { .. } => {
                let dims = self.dims(x)?;
                let lazy = if dims.is_empty() {
                    self.shuffle(at, x, Step::Reshape(vec![1]))?
                } else {
                    self.lazy(x)?
                };
                let t = self.materialise(at, lazy)?;
                self.issue(at, t, call, None, |l, t| l.reshaped(at, t, dims))
            }
            Collective::ReduceScatter { dim, accum, .. } => self.along(at, x, dim, call, accum),
            Collective::AllGather { dim }
            | Collective::Gather { dim, .. }
            | Collective::Scatter { dim, .. } => self.along(at, x, dim, call, None),
            Collective::AllToAll { split_dim, concat_dim } if split_dim == concat_dim => {
                self.along(at, x, split_dim, call, None)
            }
            Collective::AllToAll { split_dim, concat_dim } => {
                self.all_to_all(at, x, (split_dim, concat_dim), n, call)
            }
        }
    }

    /// Refuses what the target cannot build beside the network's largest group.
    pub(super) fn refuse_group_sizes(&mut self) {
        let Some(target) = self.options.target else { return };
        // Rooted ones run on their own and share no group size. The first of the largest; `max_by_key` gives the last.
        let Some((beside, largest)) = self
            .issued
            .iter()
            .filter(|(_, c)| !c.kind().is_rooted())
            .rev()
            .max_by_key(|(_, c)| c.ranks().len())
        else {
            return;
        };
        for (node, c) in &self.issued {
            if let Some(what) = target.refuses_beside(c, beside, largest) {
                self.refusals.push(Refusal { node: node.clone(), op: c.kind().name(), what });
            }
        }
    }

    fn reshaped(&mut self, at: &At, t: TensorId, dims: Vec<u64>) -> Made<Lazy> {
        let view = Lazy::View(View::of(t, self.b.ty(t).1));
        self.shuffle_lazy(at, view, Step::Reshape(dims))
    }

    /// The collective layer itself, in the accumulation type if the program names one.
    fn issue(
        &mut self,
        at: &At,
        t: TensorId,
        collective: DistCollective,
        accum: Option<DType>,
        after: impl FnOnce(&mut Self, TensorId) -> Made<Lazy>,
    ) -> Made<Lazy> {
        let own = self.b.ty(t).0;
        let input = self.cast(at, t, accum.unwrap_or(own))?;
        let dtype = self.b.ty(input).0;
        if let Some(why) = self.options.target.and_then(|target| target.refuses(&collective, dtype)) {
            return refuse(why);
        }
        self.issued.push((at.name.clone(), collective.clone()));
        let out = self.emit(at, Call::Collective { input, collective })?;
        let out = self.cast(at, out, own)?;
        after(self, out)
    }

    /// A collective along one dimension: that dimension goes first and comes back.
    fn along(
        &mut self,
        at: &At,
        x: Value,
        dim: u32,
        call: DistCollective,
        accum: Option<DType>,
    ) -> Made<Lazy> {
        let rank = self.dims(x)?.len() as u32;
        let to_front: Vec<u32> = std::iter::once(dim).chain((0..rank).filter(|&d| d != dim)).collect();
        let back: Vec<u32> = (0..rank)
            .map(|d| match d.cmp(&dim) {
                std::cmp::Ordering::Less => d + 1,
                std::cmp::Ordering::Equal => 0,
                std::cmp::Ordering::Greater => d,
            })
            .collect();
        let front = self.shuffle(at, x, Step::Transpose(to_front))?;
        let front = self.materialise(at, front)?;
        self.issue(at, front, call, accum, |l, t| {
            let view = Lazy::View(View::of(t, l.b.ty(t).1));
            l.shuffle_lazy(at, view, Step::Transpose(back))
        })
    }

    /// Blocks of one dimension change places and line up along another: a new first dimension counts the blocks.
    fn all_to_all(
        &mut self,
        at: &At,
        x: Value,
        (split, concat): (u32, u32),
        n: u64,
        call: DistCollective,
    ) -> Made<Lazy> {
        let dims = self.dims(x)?;
        let (rank, s, c) = (dims.len(), split as usize, concat as usize);
        if rank + 1 > MAX_DIMS {
            return refuse(format!("needs {} dimensions; at most {MAX_DIMS} exist", rank + 1));
        }
        let mut blocks = dims.clone();
        blocks[s] /= n;
        let mut counted = blocks.clone();
        counted.insert(s, n);
        let count_first: Vec<u32> =
            std::iter::once(split).chain((0..=rank as u32).filter(|&d| d != split)).collect();
        let view = self.shuffle(at, x, Step::Reshape(counted))?;
        let view = self.shuffle_lazy(at, view, Step::Transpose(count_first))?;
        let front = self.materialise(at, view)?;
        // Then the count stands right before the dimension that it grows.
        let before_concat: Vec<u32> =
            (1..=concat).chain(std::iter::once(0)).chain(concat + 1..=rank as u32).collect();
        let mut result = blocks;
        result[c] *= n;
        self.issue(at, front, call, None, |l, t| {
            let view = Lazy::View(View::of(t, l.b.ty(t).1));
            let view = l.shuffle_lazy(at, view, Step::Transpose(before_concat))?;
            l.shuffle_lazy(at, view, Step::Reshape(result))
        })
    }
}
