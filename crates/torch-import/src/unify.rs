//! Per-rank programs to one SPMD graph.
//!
//! The programs are walked in lock-step. Where they agree, one node stands for all. A local op whose attributes differ by rank gives one node
//! per variant, and where such variants (or different results) meet at an op that all ranks run, `axis_select` picks by mesh coordinate, in
//! its canonical form `own_slice` where the variants are equal blocks of one value. Anything else that differs is an error.

use std::mem::discriminant;

use rustc_hash::FxHashMap;
use shardweld_ir::{
    AxisId, Graph, GraphError, Group, Mesh, NodeId, Op, Value, Weight, WeightStore, WeightView,
};

use crate::{
    error::ImportError,
    identity::{same_data, table_mismatch},
    program::Program,
    ssa::{SsaNode, Val},
};

/// Puts the programs together; their ranks are a partition of the mesh's. Inputs and outputs get the given public names.
pub(crate) fn unify(
    name: &str,
    mesh: &Mesh,
    programs: &[Program],
    inputs: &[String],
    outputs: &[String],
    store: &WeightStore,
) -> Result<Graph, ImportError> {
    let Some(first) = programs.first() else {
        return Err(ImportError::Ranks("no program was given".into()));
    };
    let mut program_of = vec![0usize; mesh.world_size() as usize];
    for (k, p) in programs.iter().enumerate() {
        for &r in &p.ranks {
            if let Some(slot) = program_of.get_mut(r as usize) {
                *slot = k;
            }
        }
    }
    let mut u = Unifier {
        graph: Graph::new(name, mesh.clone()),
        programs,
        program_of,
        maps: programs.iter().map(|p| Vec::with_capacity(p.ssa.nodes.len())).collect(),
        selects: FxHashMap::default(),
        public: first.inputs.iter().map(|(n, _)| n.as_str()).zip(inputs.iter().map(String::as_str)).collect(),
    };
    u.weights(store)?;
    for i in 0..first.ssa.nodes.len() {
        u.node(i)?;
    }
    for p in programs {
        if p.ssa.nodes.len() > first.ssa.nodes.len() {
            let at = &p.ssa.nodes[first.ssa.nodes.len()];
            return Err(u.differ(p, format!("the second goes on at {}", describe(p, at))));
        }
    }
    for (i, name) in outputs.iter().enumerate() {
        let mut values = Vec::new();
        for (k, p) in programs.iter().enumerate() {
            match p.outputs.get(i).filter(|_| p.outputs.len() == outputs.len()) {
                Some((_, v)) => values.push(u.maps[k][*v as usize]),
                None => return Err(u.differ(p, format!("{} outputs and {}", outputs.len(), p.outputs.len()))),
            }
        }
        let value = u.select(&values, name)?;
        u.graph.add_output(name, value).map_err(|e| u.internal(e))?;
    }
    Ok(u.graph)
}

struct Unifier<'p> {
    graph: Graph,
    programs: &'p [Program],
    /// Which program each rank runs.
    program_of: Vec<usize>,
    /// For each program, what its values are in the graph.
    maps: Vec<Vec<Value>>,
    /// Selections made so far, by what each program gives.
    selects: FxHashMap<Vec<Value>, Value>,
    /// Public names of the inputs, by the name in the first program.
    public: FxHashMap<&'p str, &'p str>,
}

impl Unifier<'_> {
    fn differ(&self, other: &Program, reason: String) -> ImportError {
        ImportError::Unify { files: (self.programs[0].file.clone(), other.file.clone()), reason }
    }

    fn internal(&self, e: GraphError) -> ImportError {
        ImportError::Schema { file: self.programs[0].file.clone(), reason: e.to_string() }
    }

    /// The weight table: a weight varies over the axes that its contents vary over. Contents that are not at hand count as different
    /// where the files differ.
    fn weights(&mut self, store: &WeightStore) -> Result<(), ImportError> {
        let first = &self.programs[0];
        if let Some((k, i)) = table_mismatch(self.programs) {
            let show =
                |p: &Program| p.weights.get(i).map_or("none".into(), |w| format!("`{}` {}", w.fqn, w.ty));
            let p = &self.programs[k];
            return Err(self.differ(
                p,
                format!("weight #{i} is {} in the first and {} in the second", show(first), show(p)),
            ));
        }
        for (i, kinds) in same_data(self.programs, store)?.into_iter().enumerate() {
            let mesh = self.graph.mesh().clone();
            let kind_of = |r: u32| kinds[self.program_of[r as usize]];
            let over = varying_axes(&mesh, kind_of);
            let count: usize = over.iter().map(|&a| mesh.axis_size(a).unwrap_or(1) as usize).product();
            let mut shards = vec![WeightView::Absent; count];
            // Walked backwards so that the lowest rank of equals gives the view.
            for r in (0..mesh.world_size()).rev() {
                if let Some(s) = shards.get_mut(mesh.index_over(r, &over)) {
                    *s = self.programs[kinds[self.program_of[r as usize]]].weights[i].view.clone();
                }
            }
            let w = &first.weights[i];
            let weight = Weight { name: w.fqn.clone(), ty: w.ty.clone(), over, shards };
            self.graph.add_weight(weight).map_err(|e| self.internal(e))?;
        }
        Ok(())
    }

    /// Adds node `i` of all programs.
    fn node(&mut self, i: usize) -> Result<(), ImportError> {
        let programs = self.programs;
        let first = &programs[0].ssa.nodes[i];
        let mut same = true;
        for p in &programs[1..] {
            let Some(n) = p.ssa.nodes.get(i) else {
                return Err(
                    self.differ(p, format!("the second ends before {}", describe(&programs[0], first)))
                );
            };
            if discriminant(&n.op) != discriminant(&first.op)
                || n.op.name() != first.op.name()
                || n.ty != first.ty
                || n.operands.len() != first.operands.len()
            {
                let reason = format!(
                    "{} in the first is {} in the second",
                    describe(&programs[0], first),
                    describe(p, n)
                );
                return Err(self.differ(p, reason));
            }
            same &= n.op == first.op;
        }
        let source = &programs[0].ssa.sources[first.source as usize];
        if same {
            let mut operands = Vec::with_capacity(first.operands.len());
            for j in 0..first.operands.len() {
                let values: Vec<Value> = (0..programs.len()).map(|k| self.operand(k, i, j)).collect();
                operands.push(self.select(&values, source)?);
            }
            let value = self.add(&programs[0], i as Val, &operands)?;
            for m in &mut self.maps {
                m.push(value);
            }
            return Ok(());
        }
        if !first.op.is_local() {
            let p = programs.iter().find(|p| p.ssa.nodes[i].op != first.op).unwrap_or(&programs[0]);
            let reason = format!(
                "{} in the first is {} in the second",
                describe(&programs[0], first),
                describe(p, &p.ssa.nodes[i])
            );
            return Err(self.differ(p, reason));
        }
        let mut variants: Vec<(&Op, Vec<Value>, Value)> = Vec::new();
        for (k, p) in programs.iter().enumerate() {
            let n = &p.ssa.nodes[i];
            let operands: Vec<Value> = (0..n.operands.len()).map(|j| self.operand(k, i, j)).collect();
            let known = variants.iter().find(|(op, o, _)| **op == n.op && *o == operands).map(|v| v.2);
            let value = match known {
                Some(v) => v,
                None => {
                    let v = self.add(p, i as Val, &operands)?;
                    variants.push((&n.op, operands, v));
                    v
                }
            };
            self.maps[k].push(value);
        }
        Ok(())
    }

    fn operand(&self, k: usize, i: usize, j: usize) -> Value {
        self.maps[k][self.programs[k].ssa.nodes[i].operands[j] as usize]
    }

    fn add(&mut self, p: &Program, v: Val, operands: &[Value]) -> Result<Value, ImportError> {
        let n = &p.ssa.nodes[v as usize];
        let source = &p.ssa.sources[n.source as usize];
        let id = match &n.op {
            Op::Input { name } => {
                let public = self.public.get(name.as_str()).copied().unwrap_or(name);
                self.graph.add_input_as(name, public, n.ty.clone())
            }
            op if p.ssa.named[n.source as usize] == Some(v) => self.graph.add(source, op.clone(), operands),
            op => self.graph.add(&format!("{source}.{}", op.name()), op.clone(), operands),
        }
        .map_err(|e| self.internal(e))?;
        self.graph.set_sources(id, vec![source.clone()]);
        Ok(id.into())
    }

    /// The value that each rank takes from its own program: one value if all agree.
    fn select(&mut self, values: &[Value], source: &str) -> Result<Value, ImportError> {
        let first = values[0];
        if values.iter().all(|v| *v == first) {
            return Ok(first);
        }
        if let Some(v) = self.selects.get(values) {
            return Ok(*v);
        }
        let by_rank: Vec<Value> = self.program_of.iter().map(|&k| values[k]).collect();
        let value = self.select_by_rank(&by_rank, source)?;
        self.selects.insert(values.to_vec(), value);
        Ok(value)
    }

    fn select_by_rank(&mut self, by_rank: &[Value], source: &str) -> Result<Value, ImportError> {
        let mesh = self.graph.mesh().clone();
        let axes = varying_axes(&mesh, |r| by_rank[r as usize]);
        let Some((&axis, _)) = axes.split_first() else { return Ok(by_rank[0]) };
        let size = mesh.axis_size(axis).unwrap_or(1);
        let mut chosen = Vec::with_capacity(size as usize);
        for c in 0..size {
            // What the ranks would take if all had coordinate c on this axis.
            let fixed: Vec<Value> = (0..mesh.world_size())
                .map(|r| {
                    let mut at = mesh.coordinates(r);
                    at[axis.0 as usize] = c;
                    by_rank[mesh.rank_at(&at) as usize]
                })
                .collect();
            chosen.push(self.select_by_rank(&fixed, source)?);
        }
        self.axis_select(axis, &chosen, source)
    }

    /// `axis_select`, or what it is equal to: the same op on a selection, or an own slice.
    fn axis_select(&mut self, axis: AxisId, values: &[Value], source: &str) -> Result<Value, ImportError> {
        let nodes: Vec<_> = values.iter().map(|v| self.graph.node(v.node).clone()).collect();
        let first = &nodes[0];
        let group = Group::axis(axis);
        if let Some((base, dim, start, limit)) = equal_blocks(&nodes.iter().collect::<Vec<_>>()) {
            let size = self.graph.ty(base).shape.0.get(dim as usize).and_then(|d| d.as_static());
            let whole = start == 0 && size == Some(limit);
            let from = if whole {
                base
            } else {
                self.added(
                    &format!("{source}.blocks"),
                    Op::Slice { dim, start, limit, stride: 1 },
                    &[base],
                    &first.sources,
                )?
                .into()
            };
            return Ok(self
                .added(&format!("{source}.own_slice"), Op::OwnSlice { dim, group }, &[from], &first.sources)?
                .into());
        }
        let movable = matches!(
            first.op,
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Broadcast { .. } | Op::Cast { .. }
        );
        let operand_types_agree = nodes.iter().all(|n| {
            n.op == first.op
                && n.operands.len() == 1
                && self.graph.ty(n.operands[0]) == self.graph.ty(first.operands[0])
        });
        if movable && operand_types_agree {
            let inner: Vec<Value> = nodes.iter().map(|n| n.operands[0]).collect();
            let inner = self.axis_select(axis, &inner, source)?;
            return Ok(self
                .added(&format!("{source}.own"), first.op.clone(), &[inner], &first.sources)?
                .into());
        }
        Ok(self
            .added(&format!("{source}.axis_select"), Op::AxisSelect { axis }, values, &first.sources)?
            .into())
    }

    fn added(
        &mut self,
        name: &str,
        op: Op,
        operands: &[Value],
        sources: &[String],
    ) -> Result<NodeId, ImportError> {
        let id = self.graph.add(name, op, operands).map_err(|e| self.internal(e))?;
        self.graph.set_sources(id, sources.to_vec());
        Ok(id)
    }
}

/// Base, dimension and range, if the nodes are neighbouring slices of one value, in order, of equal length.
fn equal_blocks(nodes: &[&shardweld_ir::Node]) -> Option<(Value, u32, u64, u64)> {
    let mut range: Option<(Value, u32, u64, u64, u64)> = None;
    for n in nodes {
        let (Op::Slice { dim, start, limit, stride: 1 }, [base]) = (&n.op, n.operands.as_slice()) else {
            return None;
        };
        let length = limit.checked_sub(*start)?;
        range = Some(match range {
            None => (*base, *dim, *start, *limit, length),
            Some((b, d, first, end, l)) if (b, d, end, l) == (*base, *dim, *start, length) => {
                (b, d, first, *limit, l)
            }
            Some(_) => return None,
        });
    }
    range.map(|(b, d, first, end, _)| (b, d, first, end))
}

/// Axes along which a function of the rank is not constant.
fn varying_axes<T: PartialEq>(mesh: &Mesh, of: impl Fn(u32) -> T) -> Vec<AxisId> {
    (0..mesh.axes().len() as u32)
        .map(AxisId)
        .filter(|a| {
            (0..mesh.world_size()).any(|r| {
                let mut at = mesh.coordinates(r);
                at[a.0 as usize] = 0;
                of(r) != of(mesh.rank_at(&at))
            })
        })
        .collect()
}

/// Most characters of a node's attributes in a message; a constant's data may be megabytes.
const MAX_ATTRIBUTES: usize = 200;

fn describe(p: &Program, n: &SsaNode) -> String {
    let name = &p.ssa.sources[n.source as usize];
    let mut attributes = format!("{:?}", n.op);
    if let Some((end, _)) = attributes.char_indices().nth(MAX_ATTRIBUTES) {
        attributes.truncate(end);
        attributes.push_str("...");
    }
    format!("`{name}` ({} {} of {}: {attributes})", n.op.name(), n.ty, p.file.display())
}
