//! Which tensors share memory, and what a write to one means for the others.
//!
//! torch's graphs as exported may write in place to a view. Here every tensor is a chain of views on a *storage*; a storage has one current
//! value. A write computes the new value of the view, carries it up the chain to the storage (a slice becomes an update of that slice, a
//! reshape a reshape back), and makes every other view of the storage stale, so that its next read takes it from the new value.

use shardweld_ir::{Mesh, Op, Shape};

use crate::{
    call::Refused,
    ssa::{Ssa, Val},
};

/// A tensor of the exported graph. Aliases of the very same elements are one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorId(u32);

/// Memory that tensors are views of.
#[derive(Debug)]
struct Storage {
    version: u32,
    /// Why it must not be written, if so.
    read_only: Option<String>,
}

#[derive(Debug)]
struct View {
    storage: u32,
    /// The tensor that this is a view of, and the op that takes it from there; `None` for the whole storage.
    parent: Option<(TensorId, Op)>,
    /// Value as of `version` of the storage.
    value: Val,
    version: u32,
}

/// All tensors and their storages.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    storages: Vec<Storage>,
    views: Vec<View>,
}

impl Aliases {
    /// A tensor with memory of its own.
    pub fn fresh(&mut self, value: Val, read_only: Option<String>) -> TensorId {
        self.storages.push(Storage { version: 0, read_only });
        self.push(View { storage: self.storages.len() as u32 - 1, parent: None, value, version: 0 })
    }

    fn push(&mut self, view: View) -> TensorId {
        self.views.push(view);
        TensorId(self.views.len() as u32 - 1)
    }

    /// A view of `parent` through a reshape, transpose, slice or broadcast.
    pub fn view(&mut self, ssa: &mut Ssa, mesh: &Mesh, parent: TensorId, op: Op) -> Refused<TensorId> {
        let base = self.read(ssa, mesh, parent)?;
        let value = ssa.add(mesh, op.clone(), &[base])?;
        let storage = self.views[parent.0 as usize].storage;
        let version = self.storages[storage as usize].version;
        Ok(self.push(View { storage, parent: Some((parent, op)), value, version }))
    }

    /// The current value of a tensor.
    pub fn read(&mut self, ssa: &mut Ssa, mesh: &Mesh, tensor: TensorId) -> Refused<Val> {
        // Chains of views are as long as the program wrote them, so this walks instead of recursing.
        let mut stale = Vec::new();
        let mut at = tensor;
        loop {
            let v = &self.views[at.0 as usize];
            let version = self.storages[v.storage as usize].version;
            match &v.parent {
                Some((parent, _)) if v.version != version => {
                    stale.push(at);
                    at = *parent;
                }
                _ => break,
            }
        }
        let mut value = self.views[at.0 as usize].value;
        for t in stale.into_iter().rev() {
            let i = t.0 as usize;
            let op = self.views[i].parent.as_ref().map(|(_, op)| op.clone()).expect("only views are stale");
            value = ssa.add(mesh, op, &[value])?;
            self.views[i].value = value;
            self.views[i].version = self.storages[self.views[i].storage as usize].version;
        }
        Ok(value)
    }

    /// Writes a value of the tensor's type to the tensor.
    pub fn write(&mut self, ssa: &mut Ssa, mesh: &Mesh, tensor: TensorId, value: Val) -> Refused<()> {
        let storage = self.views[tensor.0 as usize].storage as usize;
        if let Some(why) = &self.storages[storage].read_only {
            return Err(format!("writes to {why}; a program may not change what it is given"));
        }
        let mut values = vec![(tensor, value)];
        let mut at = tensor;
        let mut new = value;
        while let Some((parent, op)) = self.views[at.0 as usize].parent.clone() {
            let old = self.read(ssa, mesh, parent)?;
            new = write_back(ssa, mesh, &op, old, new)?;
            values.push((parent, new));
            at = parent;
        }
        self.storages[storage].version += 1;
        let version = self.storages[storage].version;
        for (t, v) in values {
            self.views[t.0 as usize].value = v;
            self.views[t.0 as usize].version = version;
        }
        Ok(())
    }
}

/// The value of the parent after the view that `op` takes from it got the value `new`.
fn write_back(ssa: &mut Ssa, mesh: &Mesh, op: &Op, old: Val, new: Val) -> Refused<Val> {
    match op {
        Op::Reshape { .. } => {
            let shape: Shape = ssa.ty(old).shape.clone();
            ssa.add(mesh, Op::Reshape { shape }, &[new])
        }
        Op::Transpose { perm } => {
            let mut inverse = vec![0u32; perm.len()];
            for (i, &p) in perm.iter().enumerate() {
                inverse[p as usize] = i as u32;
            }
            ssa.add(mesh, Op::Transpose { perm: inverse }, &[new])
        }
        Op::Slice { dim, start, stride, .. } => {
            ssa.add(mesh, Op::UpdateSlice { dim: *dim, start: *start, stride: *stride }, &[old, new])
        }
        other => {
            Err(format!("writes in place through a view by `{}`, which several elements share", other.name()))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardweld_interp::{Tensor, concrete::local};
    use shardweld_ir::{DType, Literal, TensorType};

    use super::*;

    /// A view as memory sees it: which elements of the storage, in row-major order of its shape.
    struct Window {
        tensor: TensorId,
        shape: Vec<u64>,
        elements: Vec<usize>,
    }

    fn constant(ssa: &mut Ssa, mesh: &Mesh, shape: &[u64], values: &[i64]) -> Val {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let literal = Literal::dense(TensorType::new(DType::I64, shape), bytes).unwrap();
        ssa.add(mesh, Op::Constant(literal), &[]).unwrap()
    }

    fn evaluate(ssa: &Ssa, done: &mut Vec<Tensor>, v: Val) -> Vec<i64> {
        for n in &ssa.nodes[done.len()..] {
            let operands: Vec<&Tensor> = n.operands.iter().map(|o| &done[*o as usize]).collect();
            let result = local(&n.op, &operands, std::slice::from_ref(&n.ty)).unwrap().remove(0);
            done.push(result);
        }
        done[v as usize].slice::<i64>().to_vec()
    }

    fn row_major(shape: &[u64]) -> Vec<Vec<u64>> {
        shape.iter().fold(vec![vec![]], |all, &n| {
            all.into_iter()
                .flat_map(|p: Vec<u64>| (0..n).map(move |i| [p.clone(), vec![i]].concat()))
                .collect()
        })
    }

    fn position(shape: &[u64], index: &[u64]) -> usize {
        shape.iter().zip(index).fold(0, |p, (n, i)| p * *n as usize + *i as usize)
    }

    /// A view of a window: the op, and the elements that it takes.
    fn child(w: &Window, kind: u8, a: u64, b: u64) -> (Op, Vec<u64>, Vec<usize>) {
        let rank = w.shape.len() as u64;
        match kind % 3 {
            0 => {
                let mut perm: Vec<u32> = (0..rank as u32).collect();
                perm.swap((a % rank) as usize, (b % rank) as usize);
                let shape: Vec<u64> = perm.iter().map(|p| w.shape[*p as usize]).collect();
                let elements = row_major(&shape)
                    .iter()
                    .map(|i| {
                        let mut from = vec![0; i.len()];
                        perm.iter().zip(i).for_each(|(p, i)| from[*p as usize] = *i);
                        w.elements[position(&w.shape, &from)]
                    })
                    .collect();
                (Op::Transpose { perm }, shape, elements)
            }
            1 => {
                let dim = (a % rank) as usize;
                let n = w.shape[dim];
                let (start, stride) = (b % n, 1 + (a / 7) % 3);
                let limit = start + 1 + (b / 5) % (n - start);
                let mut shape = w.shape.clone();
                shape[dim] = (limit - start).div_ceil(stride);
                let elements = row_major(&shape)
                    .into_iter()
                    .map(|mut i| {
                        i[dim] = start + i[dim] * stride;
                        w.elements[position(&w.shape, &i)]
                    })
                    .collect();
                (Op::Slice { dim: dim as u32, start, limit, stride }, shape, elements)
            }
            _ => {
                let flat = w.elements.len() as u64;
                let shape = if flat.is_multiple_of(2) && a.is_multiple_of(2) {
                    vec![2, flat / 2]
                } else {
                    vec![flat, 1]
                };
                (Op::Reshape { shape: Shape::of(&shape) }, shape, w.elements.clone())
            }
        }
    }

    proptest! {
        /// Whatever views are made and written in whatever order, every view reads what memory holds.
        #[test]
        fn views_and_writes_agree_with_memory(steps in proptest::collection::vec((any::<u8>(), any::<u16>(), any::<u16>(), any::<u8>()), 1..24)) {
            let mesh = Mesh::new(Vec::<(String, u32)>::new()).unwrap();
            let (mut ssa, mut aliases) = (Ssa::default(), Aliases::default());
            let mut memory: Vec<i64> = (0..24).collect();
            let whole = constant(&mut ssa, &mesh, &[2, 3, 4], &memory);
            let tensor = aliases.fresh(whole, None);
            let mut windows = vec![Window { tensor, shape: vec![2, 3, 4], elements: (0..24).collect() }];
            let mut done = Vec::new();
            let mut fresh = 100;
            for (what, a, b, which) in steps {
                let at = which as usize % windows.len();
                if what % 2 == 0 {
                    let (op, shape, elements) = child(&windows[at], what / 2, a.into(), b.into());
                    let tensor = aliases.view(&mut ssa, &mesh, windows[at].tensor, op).unwrap();
                    windows.push(Window { tensor, shape, elements });
                } else {
                    let w = &windows[at];
                    let values: Vec<i64> = (fresh..).take(w.elements.len()).collect();
                    fresh += 100;
                    w.elements.iter().zip(&values).for_each(|(e, v)| memory[*e] = *v);
                    let value = constant(&mut ssa, &mesh, &w.shape, &values);
                    aliases.write(&mut ssa, &mesh, w.tensor, value).unwrap();
                }
                for w in &windows {
                    let v = aliases.read(&mut ssa, &mesh, w.tensor).unwrap();
                    let expected: Vec<i64> = w.elements.iter().map(|e| memory[*e]).collect();
                    prop_assert_eq!(evaluate(&ssa, &mut done, v), expected);
                }
            }
        }
    }

    #[test]
    fn what_is_given_is_not_written() {
        let mesh = Mesh::new(Vec::<(String, u32)>::new()).unwrap();
        let (mut ssa, mut aliases) = (Ssa::default(), Aliases::default());
        let v = constant(&mut ssa, &mesh, &[2], &[1, 2]);
        let given = aliases.fresh(v, Some("the program input `x`".into()));
        assert!(aliases.write(&mut ssa, &mesh, given, v).unwrap_err().contains("`x`"));
        let shape = Shape::of(&[3, 2]);
        let row = aliases.view(&mut ssa, &mesh, given, Op::Reshape { shape: Shape::of(&[1, 2]) }).unwrap();
        let own =
            aliases.fresh(ssa.add(&mesh, Op::Reshape { shape: Shape::of(&[1, 2]) }, &[v]).unwrap(), None);
        let shared = aliases.view(&mut ssa, &mesh, own, Op::Broadcast { shape }).unwrap();
        let new = constant(&mut ssa, &mesh, &[3, 2], &[0; 6]);
        assert!(aliases.write(&mut ssa, &mesh, shared, new).unwrap_err().contains("several elements share"));
        assert!(aliases.read(&mut ssa, &mesh, row).is_ok());
    }
}
