//! Instances of a rule: meshes, groups, small tensors and attributes for which its left side is well typed.

use egg::{ENodeOrVar, Id, Language, Var};
use shardweld_ir::{AxisId, DType, Group, Mesh, MeshError, ReduceOp, Scalar, TensorType, infer};

use crate::facts::{DTypeSet, Facts};
use crate::language::{Attr, Head, Sort, Spmd, convert::to_op};
use crate::replication::AxisSet;
use crate::rules::functions::Bound;
use crate::rules::{Bindings, CompiledRule};

/// Meshes of the instances: one and two axes, sizes 1 to 4, at most 6 ranks.
///
/// # Errors
/// Never for the fixed list; the mesh's own checks.
pub fn meshes() -> Result<Vec<Mesh>, MeshError> {
    [
        vec![("a", 1)],
        vec![("a", 2)],
        vec![("a", 3)],
        vec![("a", 4)],
        vec![("a", 2), ("b", 1)],
        vec![("a", 2), ("b", 2)],
        vec![("a", 2), ("b", 3)],
    ]
    .into_iter()
    .map(Mesh::new)
    .collect()
}

/// Groups over a mesh: every ordered subset of its axes, and rank lists that are no axes.
pub fn groups(mesh: &Mesh) -> Vec<Group> {
    let axes: Vec<AxisId> = (0..mesh.axes().len() as u32).map(AxisId).collect();
    let mut out = vec![Group::Axes(vec![])];
    for &a in &axes {
        out.push(Group::axis(a));
        out.extend(axes.iter().filter(|&&b| b != a).map(|&b| Group::Axes(vec![a, b])));
    }
    let n = mesh.world_size();
    if n >= 3 {
        // All ranks, in an order that no axis order gives.
        out.push(Group::Ranks(vec![[n - 1].into_iter().chain(0..n - 1).collect()]));
    }
    if n == 4 {
        out.push(Group::Ranks(vec![vec![0, 3], vec![1, 2]]));
    }
    out
}

/// Every way to bind the variables of a rule's left side on a mesh so that it is well typed, guards not looked at.
pub fn bindings(rule: &CompiledRule, mesh: &Mesh) -> Vec<Bindings> {
    // What only moves data is the same for every element type.
    let typed = rule.depends_on_type();
    let nodes = rule.lhs.ast.as_ref();
    let search = Search { rule, mesh, typed, groups: groups(mesh) };
    let mut state = State { bindings: Bindings::default(), types: vec![None; nodes.len()] };
    let mut out = Vec::new();
    search.node(0, &mut state, &mut out);
    out
}

struct Search<'a> {
    rule: &'a CompiledRule,
    mesh: &'a Mesh,
    typed: bool,
    groups: Vec<Group>,
}

struct State {
    bindings: Bindings,
    types: Vec<Option<TensorType>>,
}

impl Search<'_> {
    fn nodes(&self) -> &[ENodeOrVar<Spmd>] {
        self.rule.lhs.ast.as_ref()
    }

    fn node(&self, i: usize, state: &mut State, out: &mut Vec<Bindings>) {
        match self.nodes().get(i) {
            None => out.push(state.bindings.clone()),
            Some(ENodeOrVar::ENode(Spmd::Op(head, children))) => {
                self.child(i, *head, children, 0, state, out)
            }
            Some(_) => self.node(i + 1, state, out),
        }
    }

    /// Binds child `k` of operator node `i` in every way, then goes on.
    fn child(
        &self,
        i: usize,
        head: Head,
        children: &[Id],
        k: usize,
        state: &mut State,
        out: &mut Vec<Bindings>,
    ) {
        let Some(&child) = children.get(k) else {
            if let Some(ty) = self.typed_result(head, children, state) {
                state.types[i] = Some(ty);
                self.node(i + 1, state, out);
                state.types[i] = None;
            }
            return;
        };
        let at = usize::from(child);
        let var = match &self.nodes()[at] {
            ENodeOrVar::Var(v) if !state.bindings.0.contains_key(v) => *v,
            ENodeOrVar::Var(v) => {
                if let Some(Bound::Tensor(f)) = state.bindings.0.get(v) {
                    state.types[at] = Some(f.ty.clone());
                }
                return self.child(i, head, children, k + 1, state, out);
            }
            ENodeOrVar::ENode(_) => return self.child(i, head, children, k + 1, state, out),
        };
        let candidates = match head.signature()[k] {
            Sort::Tensor => self.tensors(),
            sort => {
                let operand = children.first().and_then(|c| state.types[usize::from(*c)].clone());
                match operand {
                    Some(ty) => self.attrs(sort, &ty).into_iter().map(Bound::Attr).collect(),
                    None => Vec::new(),
                }
            }
        };
        for c in candidates {
            if let Bound::Tensor(f) = &c {
                state.types[at] = Some(f.ty.clone());
            }
            state.bindings.0.insert(var, c);
            self.child(i, head, children, k + 1, state, out);
            state.bindings.0.remove(&var);
        }
    }

    fn typed_result(&self, head: Head, children: &[Id], state: &State) -> Option<TensorType> {
        let mut types = Vec::new();
        let mut attrs = Vec::new();
        for (&c, sort) in children.iter().zip(head.signature()) {
            match sort {
                Sort::Tensor => types.push(state.types[usize::from(c)].as_ref()?),
                _ => attrs.push(attr_of(&self.nodes()[usize::from(c)], &state.bindings)?.clone()),
            }
        }
        let op = to_op(head, &attrs)?;
        infer(&op, &types, self.mesh, &[]).ok()?.into_iter().next()
    }

    fn tensors(&self) -> Vec<Bound> {
        let n = u64::from(self.mesh.world_size());
        let shapes: [&[u64]; 7] = [&[n], &[2, n], &[n, 3], &[n, n], &[2, n, 3], &[1, n, 2], &[n, 1, 2 * n]];
        let dtypes: &[DType] =
            if self.typed { &[DType::F32, DType::BF16, DType::I32, DType::Bool] } else { &[DType::F32] };
        let axes = AxisSet::all(self.mesh);
        let replications: Vec<AxisSet> = if self.rule.asks("replicated") {
            (0..=axes.0).map(AxisSet).filter(|s| axes.contains(*s)).collect()
        } else {
            vec![AxisSet::NONE]
        };
        let mut out = Vec::new();
        for dims in shapes {
            for &dtype in dtypes {
                let origins: &[DTypeSet] = match dtype {
                    DType::F32 if self.rule.asks("representable") => &[
                        DTypeSet(0),
                        DTypeSet(1 << DType::BF16 as u16),
                        DTypeSet(1 << DType::F16 as u16),
                        DTypeSet(1 << DType::I8 as u16),
                        DTypeSet(1 << DType::Bool as u16),
                    ],
                    _ => &[DTypeSet(0)],
                };
                let base = Facts::of(TensorType::new(dtype, dims));
                for &fits in origins {
                    for &replicated in &replications {
                        out.push(Bound::Tensor(Facts { replicated, fits, ..base.clone() }));
                    }
                }
                if self.rule.reads_root_only() {
                    out.push(Bound::Tensor(Facts { defined: false, ..base }));
                }
            }
        }
        out
    }

    fn attrs(&self, sort: Sort, operand: &TensorType) -> Vec<Attr> {
        let dims = operand.shape.as_static().unwrap_or_default();
        let ints = |n: u64| (0..n).map(Attr::Int).collect();
        match sort {
            Sort::Tensor => Vec::new(),
            Sort::Dim => ints(dims.len() as u64),
            Sort::Root => ints(u64::from(self.mesh.world_size())),
            Sort::Size => ints(3),
            Sort::Group => self.groups.iter().cloned().map(Attr::Group).collect(),
            Sort::DType => {
                [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::I8, DType::Bool]
                    .map(Attr::DType)
                    .to_vec()
            }
            Sort::Accum => vec![Attr::Accum(None), Attr::Accum(Some(DType::F32))],
            Sort::Reduce => ReduceOp::ALL.iter().copied().map(Attr::Reduce).collect(),
            Sort::Shape => factorisations(dims.iter().product()).into_iter().map(Attr::Dims).collect(),
            Sort::Broadcast => {
                vec![Attr::Dims(dims.iter().map(|&n| if n == 1 { 2 } else { n }).collect())]
            }
            Sort::Perm => permutations(dims.len() as u64).into_iter().map(Attr::Dims).collect(),
            Sort::Scalar => [
                Scalar::Float(-0.0),
                Scalar::Float(0.0),
                Scalar::Float(1.5),
                Scalar::Int(0),
                Scalar::Int(3),
                Scalar::Bool(false),
                Scalar::Bool(true),
            ]
            .map(Attr::Scalar)
            .to_vec(),
        }
    }
}

/// The attribute that a pattern node is or is bound to.
pub fn attr_of<'a>(node: &'a ENodeOrVar<Spmd>, bindings: &'a Bindings) -> Option<&'a Attr> {
    match node {
        ENodeOrVar::ENode(Spmd::Attr(a)) => Some(a),
        ENodeOrVar::Var(v) => match bindings.0.get(v)? {
            Bound::Attr(a) => Some(a),
            Bound::Tensor(_) => None,
        },
        ENodeOrVar::ENode(n) => {
            debug_assert!(!n.is_leaf());
            None
        }
    }
}

/// Shapes of up to three dimensions above 1 with the given number of elements, each also with one dimension of 1 in every
/// place.
fn factorisations(n: u64) -> Vec<Vec<u64>> {
    fn factor(n: u64, left: usize, prefix: &mut Vec<u64>, out: &mut Vec<Vec<u64>>) {
        if n == 1 {
            out.push(prefix.clone());
            return;
        }
        if left == 0 {
            return;
        }
        for d in (2..=n).filter(|d| n.is_multiple_of(*d)) {
            prefix.push(d);
            factor(n / d, left - 1, prefix, out);
            prefix.pop();
        }
    }
    let mut plain = Vec::new();
    factor(n, 3, &mut Vec::new(), &mut plain);
    let mut out = Vec::new();
    for shape in plain {
        for at in 0..=shape.len() {
            let mut with = shape.clone();
            with.insert(at, 1);
            out.push(with);
        }
        if !shape.is_empty() {
            out.push(shape);
        }
    }
    out
}

fn permutations(n: u64) -> Vec<Vec<u64>> {
    (0..n).fold(vec![vec![]], |all, k| {
        all.into_iter()
            .flat_map(|p: Vec<u64>| {
                (0..=p.len()).map(move |at| {
                    let mut q = p.clone();
                    q.insert(at, k);
                    q
                })
            })
            .collect()
    })
}

/// Variables of a rule that stand for tensors, with their facts.
pub fn tensors(bindings: &Bindings) -> impl Iterator<Item = (Var, &Facts)> {
    bindings.0.iter().filter_map(|(v, b)| match b {
        Bound::Tensor(f) => Some((*v, f)),
        Bound::Attr(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_keep_the_number_of_elements() {
        let all = factorisations(8);
        assert!(all.iter().all(|s| s.iter().product::<u64>() == 8));
        assert!(all.contains(&vec![2, 1, 4]) && all.contains(&vec![2, 2, 2]) && all.contains(&vec![8]));
        assert_eq!(permutations(3).len(), 6);
    }
}
