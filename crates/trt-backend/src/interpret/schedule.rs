//! All ranks side by side. Ranks with equal traces form a class and step together; a class runs on until its next
//! collective, which takes place once every rank of its group waits there.
//!
//! Within a class, ranks whose operands are the same data share one computation. A value is dropped at its last use.

use rayon::prelude::*;
use shardweld_interp::{Named, Slot, Tensor};
use shardweld_ir::{TensorType, WeightStore};

use super::collective::{self, reads_root_only, root_position};
use super::error::InterpretError;
use super::layer::{self, sizes};
use crate::trace::{Call, DistCollective, Layer, NetworkTrace};

/// Ranks that run the same trace.
pub(super) type Members<'a> = (&'a NetworkTrace, Vec<usize>);
type Result<T> = std::result::Result<T, InterpretError>;
type PerRank = Vec<Slot<Tensor>>;

/// Groups ranks by trace. `traces[rank]` is that rank's.
pub(super) fn classes<'a>(traces: &[&'a NetworkTrace]) -> Vec<Members<'a>> {
    let mut classes: Vec<Members<'a>> = Vec::new();
    for (rank, &trace) in traces.iter().enumerate() {
        let same = |(known, _): &&mut Members<'a>| std::ptr::eq(*known, trace) || *known == trace;
        match classes.iter_mut().find(same) {
            Some((_, members)) => members.push(rank),
            None => classes.push((trace, vec![rank])),
        }
    }
    classes
}

/// Runs checked traces.
pub(super) fn run(
    classes: Vec<Members<'_>>,
    weights: &WeightStore,
    inputs: &[Named<Tensor>],
) -> Result<Vec<Named<Tensor>>> {
    let mut of_rank = vec![0; inputs.len()];
    for (c, (_, members)) in classes.iter().enumerate() {
        members.iter().for_each(|&m| of_rank[m] = c);
    }
    let mut classes: Vec<Class<'_>> = classes.into_iter().map(|(t, m)| Class::new(t, m)).collect();
    loop {
        let advanced: Vec<Result<()>> = classes.par_iter_mut().map(|c| c.advance(weights, inputs)).collect();
        // In class order, so the error does not depend on which ran first.
        advanced.into_iter().collect::<Result<()>>()?;
        let mut ready = Vec::new();
        for c in &classes {
            if let Some(group) = ready_group(c, &classes, &of_rank)?
                && !ready.contains(&group)
            {
                ready.push(group);
            }
        }
        if ready.is_empty() {
            match classes.iter().find_map(|c| c.waiting().map(|w| (c, w))) {
                None => break,
                Some((c, (l, dc))) => return Err(stuck(c, l, dc, &classes, &of_rank)),
            }
        }
        let results: Vec<Result<PerRank>> =
            ready.par_iter().map(|group| exchange(group, &classes, &of_rank)).collect();
        for (group, slots) in ready.iter().zip(results) {
            for (&rank, slot) in group.iter().zip(slots?) {
                classes[of_rank[rank]].received.push((rank, slot));
            }
        }
        classes.iter_mut().try_for_each(Class::resume)?;
    }
    let mut outputs = vec![Named::new(); inputs.len()];
    for c in &classes {
        c.outputs(&mut outputs)?;
    }
    Ok(outputs)
}

struct Class<'a> {
    trace: &'a NetworkTrace,
    ranks: Vec<usize>,
    /// The layer to run next.
    at: usize,
    /// By layer, then by rank of the class.
    values: Vec<Option<PerRank>>,
    /// The layer after which nobody reads a value; the number of layers for outputs.
    last_use: Vec<usize>,
    /// What the collective at `at` gave, by global rank.
    received: Vec<(usize, Slot<Tensor>)>,
}

impl<'a> Class<'a> {
    fn new(trace: &'a NetworkTrace, ranks: Vec<usize>) -> Class<'a> {
        let layers = trace.layers();
        let mut last_use: Vec<usize> = (0..layers.len()).collect();
        for (i, l) in layers.iter().enumerate() {
            l.call.operands().iter().for_each(|t| last_use[t.index()] = i);
        }
        trace.outputs().iter().for_each(|o| last_use[o.tensor.index()] = layers.len());
        Class { trace, ranks, at: 0, values: vec![None; layers.len()], last_use, received: Vec::new() }
    }

    /// The collective that the class waits at.
    fn waiting(&self) -> Option<(&'a Layer, &'a DistCollective)> {
        match self.trace.layers().get(self.at) {
            Some(l) => match &l.call {
                Call::Collective { collective, .. } => Some((l, collective)),
                _ => None,
            },
            None => None,
        }
    }

    fn advance(&mut self, weights: &WeightStore, inputs: &[Named<Tensor>]) -> Result<()> {
        while self.waiting().is_none() {
            let Some(l) = self.trace.layers().get(self.at) else { break };
            let slots = match &l.call {
                Call::Input => {
                    self.ranks.iter().map(|&r| input(l, r, inputs)).collect::<Result<PerRank>>()?
                }
                Call::Weight(index) => vec![self.weight(l, *index, weights)?; self.ranks.len()],
                _ => self.compute(l)?,
            };
            self.store(l, slots)?;
        }
        Ok(())
    }

    /// Stores what the layer at `at` gave, drops what it was the last to read, and goes on.
    fn store(&mut self, l: &Layer, slots: PerRank) -> Result<()> {
        let expected = TensorType::new(l.dtype, &l.dims);
        for (slot, &rank) in slots.iter().zip(&self.ranks) {
            match slot {
                Slot::Defined(t) if t.ty() != expected => {
                    let (layer, call, found) = (l.name.clone(), l.call.kind(), t.ty());
                    return Err(InterpretError::ResultType { layer, call, rank, found, expected });
                }
                _ => {}
            }
        }
        self.values[self.at] = Some(slots);
        for t in l.call.operands().iter().map(|t| t.index()).chain([self.at]) {
            if self.last_use[t] <= self.at {
                self.values[t] = None;
            }
        }
        self.at += 1;
        Ok(())
    }

    fn weight(&self, l: &Layer, index: u32, weights: &WeightStore) -> Result<Slot<Tensor>> {
        let failed = |source| InterpretError::Layer {
            layer: l.name.clone(),
            call: l.call.kind(),
            rank: self.ranks[0],
            source,
        };
        // The contract has looked the weight up.
        let w = &self.trace.weights()[index as usize];
        let bytes = weights.view_bytes(&w.view).map_err(|e| InterpretError::Weight {
            layer: l.name.clone(),
            weight: w.name.clone(),
            source: Box::new(e),
        })?;
        let dims = sizes(&l.dims).map_err(failed)?;
        Tensor::from_bytes(l.dtype, &dims, &bytes).map(Slot::Defined).map_err(failed)
    }

    /// A value on one rank of the class, by position in the class. Values live until their last use.
    fn slot(&self, layer: usize, member: usize) -> &Slot<Tensor> {
        let slots =
            self.values[layer].as_ref().expect("operands come before their users and live until the last");
        &slots[member]
    }

    fn compute(&self, l: &Layer) -> Result<PerRank> {
        let operands = l.call.operands();
        let keys: Vec<Vec<&Slot<Tensor>>> = (0..self.ranks.len())
            .map(|m| operands.iter().map(|t| self.slot(t.index(), m)).collect())
            .collect();
        let same = |a: &[&Slot<Tensor>], b: &[&Slot<Tensor>]| {
            a.iter().zip(b).all(|pair| match pair {
                (Slot::Defined(x), Slot::Defined(y)) => x.same(y),
                (Slot::Undefined { origin: x }, Slot::Undefined { origin: y }) => x == y,
                _ => false,
            })
        };
        let first: Vec<usize> =
            (0..keys.len()).map(|m| (0..m).find(|&e| same(&keys[e], &keys[m])).unwrap_or(m)).collect();
        let one = |m: usize| -> Result<Option<Slot<Tensor>>> {
            if first[m] != m {
                return Ok(None);
            }
            let mut defined = Vec::with_capacity(keys[m].len());
            for slot in &keys[m] {
                match slot {
                    Slot::Defined(t) => defined.push(t),
                    Slot::Undefined { origin } => {
                        return Ok(Some(Slot::Undefined { origin: origin.clone() }));
                    }
                }
            }
            let done = layer::compute(&l.call, &defined).map_err(|source| InterpretError::Layer {
                layer: l.name.clone(),
                call: l.call.kind(),
                rank: self.ranks[m],
                source,
            })?;
            Ok(Some(Slot::Defined(done)))
        };
        let distinct = first.iter().enumerate().filter(|(m, f)| m == *f).count();
        let computed: Vec<Result<Option<Slot<Tensor>>>> = if distinct > 1 {
            (0..keys.len()).into_par_iter().map(one).collect()
        } else {
            (0..keys.len()).map(one).collect()
        };
        let mut slots: PerRank = Vec::with_capacity(keys.len());
        for (c, &f) in computed.into_iter().zip(&first) {
            let slot = match c? {
                Some(own) => own,
                None => slots[f].clone(),
            };
            slots.push(slot);
        }
        Ok(slots)
    }

    /// Takes what the collective gave, if every rank of the class has got it.
    fn resume(&mut self) -> Result<()> {
        let Some((l, _)) = self.waiting() else { return Ok(()) };
        if self.received.len() < self.ranks.len() {
            return Ok(());
        }
        let mut received = std::mem::take(&mut self.received);
        received.sort_by_key(|(rank, _)| *rank);
        self.store(l, received.into_iter().map(|(_, slot)| slot).collect())
    }

    fn outputs(&self, all: &mut [Named<Tensor>]) -> Result<()> {
        for o in self.trace.outputs() {
            for (m, &rank) in self.ranks.iter().enumerate() {
                match self.slot(o.tensor.index(), m) {
                    Slot::Defined(t) => {
                        all[rank].insert(o.name.clone(), t.clone());
                    }
                    Slot::Undefined { origin } => {
                        return Err(InterpretError::Undefined {
                            user: format!("output {}", o.name),
                            rank,
                            origin: origin.clone(),
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

fn input(l: &Layer, rank: usize, inputs: &[Named<Tensor>]) -> Result<Slot<Tensor>> {
    let given = &inputs[rank];
    let value = given.get(&l.name).ok_or_else(|| {
        let names: Vec<&str> = given.keys().map(String::as_str).collect();
        let present = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        InterpretError::MissingInput { rank, input: l.name.clone(), present }
    })?;
    let expected = TensorType::new(l.dtype, &l.dims);
    if value.ty() != expected {
        let (input, found) = (l.name.clone(), value.ty());
        return Err(InterpretError::InputType { rank, input, found, expected });
    }
    Ok(Slot::Defined(value.clone()))
}

/// What a collective is, for comparing and for messages.
fn describe(l: &Layer, c: &DistCollective) -> String {
    let reduce = c.reduce().map_or(String::new(), |r| format!(" {}", r.name()));
    let root = if c.kind().is_rooted() { format!(", root {}", c.root_or_minus_one()) } else { String::new() };
    let sources = if l.sources.is_empty() { String::new() } else { format!(", of {}", l.sources.join("+")) };
    format!("{}{reduce} over {:?}{root} to {}{:?}{sources}", c.kind().name(), c.ranks(), l.dtype, l.dims)
}

/// The ranks of the group that a class waits for, in group order, if all of them wait at the same collective.
fn ready_group(c: &Class<'_>, classes: &[Class<'_>], of_rank: &[usize]) -> Result<Option<Vec<usize>>> {
    let Some((l, dc)) = c.waiting() else { return Ok(None) };
    let group: Vec<usize> = dc.ranks().iter().map(|&r| r as usize).collect();
    let mut all = true;
    for &member in &group {
        let other = &classes[of_rank[member]];
        let mismatch = |other: String| InterpretError::Mismatch {
            rank: c.ranks[0],
            layer: l.name.clone(),
            what: describe(l, dc),
            other_rank: member,
            other,
        };
        let Some((ol, odc)) = other.waiting() else {
            return Err(mismatch("has ended".into()));
        };
        let same = describe(l, dc) == describe(ol, odc);
        // Both need each other, for different things: neither can ever go on.
        if !same && odc.ranks().iter().any(|&r| r as usize == c.ranks[0]) {
            return Err(mismatch(format!("waits at layer `{}` ({})", ol.name, describe(ol, odc))));
        }
        all &= same;
    }
    Ok(all.then_some(group))
}

/// Why nobody can go on: somebody waits for a rank that waits for others.
fn stuck(
    c: &Class<'_>,
    l: &Layer,
    dc: &DistCollective,
    classes: &[Class<'_>],
    of_rank: &[usize],
) -> InterpretError {
    let waits_elsewhere = dc.ranks().iter().find_map(|&r| {
        let (ol, odc) = classes[of_rank[r as usize]].waiting()?;
        let what = describe(ol, odc);
        (what != describe(l, dc)).then(|| (r as usize, format!("waits at layer `{}` ({what})", ol.name)))
    });
    let (other_rank, other) = waits_elsewhere.unwrap_or((c.ranks[0], "waits for itself".into()));
    InterpretError::Mismatch {
        rank: c.ranks[0],
        layer: l.name.clone(),
        what: describe(l, dc),
        other_rank,
        other,
    }
}

/// Runs the collective that a group waits at; results in group order.
fn exchange(group: &[usize], classes: &[Class<'_>], of_rank: &[usize]) -> Result<PerRank> {
    let class = &classes[of_rank[group[0]]];
    let Some((l, c)) = class.waiting() else { return Ok(Vec::new()) };
    let operand = |rank: usize| -> Result<Tensor> {
        let class = &classes[of_rank[rank]];
        // Every rank of the group waits at a collective, which has one operand, and is in its class.
        let input = class.trace.layers()[class.at].call.operands()[0];
        let member = class.ranks.iter().position(|&r| r == rank).expect("a rank is in its own class");
        match class.slot(input.index(), member) {
            Slot::Defined(t) => Ok(t.clone()),
            Slot::Undefined { origin } => {
                Err(InterpretError::Undefined { user: l.name.clone(), rank, origin: origin.clone() })
            }
        }
    };
    let operands = match root_position(c).filter(|_| reads_root_only(c.kind())) {
        Some(root) => vec![operand(group[root])?; group.len()],
        None => group.iter().map(|&r| operand(r)).collect::<Result<_>>()?,
    };
    let results = collective::run(c, &operands).map_err(|source| InterpretError::Layer {
        layer: l.name.clone(),
        call: l.call.kind(),
        rank: group[0],
        source,
    })?;
    Ok(results
        .into_iter()
        .map(|r| r.map_or_else(|| Slot::Undefined { origin: l.name.clone() }, Slot::Defined))
        .collect())
}
