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
