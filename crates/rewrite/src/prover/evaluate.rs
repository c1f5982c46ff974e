//! Symbolic evaluation of a program and comparison of two: the strictest class, or a counter-example.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use shardweld_interp::symbolic::{Symbolic, SymbolicError, SymbolicTensor};
use shardweld_interp::{EvalError, Named, Slot, evaluate};
use shardweld_ir::{DType, Graph, Mesh, Op, Value};

use super::normalise::Theory;
use crate::class::Class;
use crate::replication::AxisSet;

/// What a proof assumes about an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assumption {
    /// Axes over which it is equal on all ranks.
    pub replicated: AxisSet,
    /// The narrower type that its elements come from.
    pub from: Option<DType>,
}

/// Where and how two programs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterExample {
    /// Mesh.
    pub mesh: String,
    /// Inputs with types and what is assumed of them.
    pub inputs: String,
    /// The output.
    pub output: String,
    /// Global rank.
    pub rank: u32,
    /// Row-major index of the element.
    pub element: usize,
    /// What the left side computes there.
    pub left: String,
    /// What the right side computes there.
    pub right: String,
}

impl fmt::Display for CounterExample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mesh {}, inputs {}: `{}` on rank {}, element {}: {} against {}",
            self.mesh, self.inputs, self.output, self.rank, self.element, self.left, self.right
        )
    }
}

/// The strictest classes that hold between two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes {
    /// Where float reductions may depend on position and buffer size.
    pub class: Class,
    /// Where they do not.
    pub fixed_order: Class,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// The programs are not of one kind.
    #[error("the programs cannot be compared: {0}")]
    Incomparable(String),
    /// A program has no symbolic value.
    #[error("{side} side: {source}")]
    Evaluate {
        /// `left` or `right`.
        side: &'static str,
        /// Why.
        source: EvalError<SymbolicError>,
    },
    /// An input that is too large or not static.
    #[error(transparent)]
    Input(#[from] SymbolicError),
}

/// Values of a graph's outputs: per output and rank, undefined ones left out.
type Outputs = Vec<Vec<Option<Arc<SymbolicTensor>>>>;

/// Compares the outputs of two programs in order. With `refines`, the right side may define what the left leaves undefined.
///
/// # Errors
/// If the programs have different meshes, inputs or outputs, or one cannot be evaluated.
pub fn compare(
    left: &Graph,
    right: &Graph,
    assumption: &dyn Fn(&str) -> Assumption,
    refines: bool,
) -> Result<Result<Classes, CounterExample>, ProveError> {
    comparable(left, right)?;
    let domain = Symbolic::default();
    let inputs = inputs(&domain, left, assumption)?;
    let a =
        outputs(&domain, left, &inputs).map_err(|source| ProveError::Evaluate { side: "left", source })?;
    let b = match outputs(&domain, right, &inputs) {
        Ok(b) => b,
        // The right side reads what nobody defined, and the left side does not.
        Err(EvalError::Undefined { user, rank, origin }) => {
            return Ok(Err(CounterExample {
                mesh: left.mesh().to_string(),
                inputs: describe(left, assumption),
                output: user,
                rank,
                element: 0,
                left: "a value".into(),
                right: format!("undefined, as `{origin}` leaves it"),
            }));
        }
        Err(source) => return Err(ProveError::Evaluate { side: "right", source }),
    };
    let terms = domain.terms();
    let mut found = [None; 2];
    for (slot, fixed_order) in found.iter_mut().zip([false, true]) {
        let mut theory = Theory::new(&terms, fixed_order);
        let mut at = 0;
        for ((output, xs), ys) in left.outputs().iter().zip(&a).zip(&b) {
            for (rank, (x, y)) in (0u32..).zip(xs.iter().zip(ys)) {
                let (x, y) = match (x, y) {
                    (None, None) => continue,
                    (None, Some(_)) if refines => continue,
                    (Some(x), Some(y)) => (x, y),
                    (x, y) => {
                        let say = |v: &Option<_>| if v.is_some() { "a value" } else { "undefined" };
                        return Ok(Err(CounterExample {
                            mesh: left.mesh().to_string(),
                            inputs: describe(left, assumption),
                            output: output.name.clone(),
                            rank,
                            element: 0,
                            left: say(x).into(),
                            right: say(y).into(),
                        }));
                    }
                };
                for (element, (&s, &t)) in x.data.iter().zip(&y.data).enumerate() {
                    // Classes only get looser, so start at the loosest needed so far.
                    while let Some(&class) = Class::PROVABLE.get(at) {
                        if theory.equal(s, t, class) {
                            break;
                        }
                        at += 1;
                    }
                    if at >= Class::PROVABLE.len() {
                        return Ok(Err(CounterExample {
                            mesh: left.mesh().to_string(),
                            inputs: describe(left, assumption),
                            output: output.name.clone(),
                            rank,
                            element,
                            left: terms.show(s),
                            right: terms.show(t),
                        }));
                    }
                }
            }
        }
        *slot = Class::PROVABLE.get(at).copied();
    }
    match found {
        [Some(class), Some(fixed_order)] => Ok(Ok(Classes { class, fixed_order })),
        _ => Err(ProveError::Incomparable("no class was found".into())),
    }
}

fn comparable(left: &Graph, right: &Graph) -> Result<(), ProveError> {
    let fail = |text: String| Err(ProveError::Incomparable(text));
    if left.mesh() != right.mesh() {
        return fail(format!("meshes {} and {}", left.mesh(), right.mesh()));
    }
    let types = |g: &Graph| {
        let mut all: Vec<(String, String)> =
            g.inputs().iter().map(|&i| (input_name(g, i.into()), g.ty(i).to_string())).collect();
        all.sort();
        all
    };
    if types(left) != types(right) {
        return fail(format!("inputs {:?} and {:?}", types(left), types(right)));
    }
    let outs = |g: &Graph| -> Vec<(String, String)> {
        g.outputs().iter().map(|o| (o.name.clone(), g.ty(o.value).to_string())).collect()
    };
    if outs(left) != outs(right) || outs(left).is_empty() {
        return fail(format!("outputs {:?} and {:?}", outs(left), outs(right)));
    }
    Ok(())
}

fn input_name(g: &Graph, value: Value) -> String {
    match &g.node(value.node).op {
        Op::Input { name } => name.clone(),
        _ => g.node(value.node).name.clone(),
    }
}

fn describe(g: &Graph, assumption: &dyn Fn(&str) -> Assumption) -> String {
    let one = |&i: &shardweld_ir::NodeId| {
        let name = input_name(g, i.into());
        let a = assumption(&name);
        let mut text = format!("{name}: {}", g.ty(i));
        for (k, axis) in (0u32..).zip(g.mesh().axes()) {
            if a.replicated.has(shardweld_ir::AxisId(k)) {
                text += &format!(" equal over {}", axis.name);
            }
        }
        match a.from {
            Some(d) => text + &format!(" of {d} values"),
            None => text,
        }
    };
    g.inputs().iter().map(one).collect::<Vec<_>>().join(", ")
}

fn inputs(
    domain: &Symbolic,
    graph: &Graph,
    assumption: &dyn Fn(&str) -> Assumption,
) -> Result<Vec<Named<Arc<SymbolicTensor>>>, SymbolicError> {
    let mesh = graph.mesh();
    let mut all = vec![Named::new(); mesh.world_size() as usize];
    let mut names: Vec<_> = graph.inputs().iter().map(|&i| (input_name(graph, i.into()), i)).collect();
    names.sort();
    for (tensor, (name, id)) in (0u32..).zip(&names) {
        let a = assumption(name);
        let mut made: FxHashMap<u32, Arc<SymbolicTensor>> = FxHashMap::default();
        for (rank, named) in (0u32..).zip(&mut all) {
            let same = representative(mesh, rank, a.replicated);
            let value = match made.get(&same) {
                Some(v) => v.clone(),
                None => {
                    let v = domain.unknown(graph.ty(*id), tensor, same, a.from)?;
                    made.insert(same, v.clone());
                    v
                }
            };
            named.insert(name.clone(), value);
        }
    }
    Ok(all)
}

/// The smallest rank that agrees with `rank` outside the given axes.
fn representative(mesh: &Mesh, rank: u32, replicated: AxisSet) -> u32 {
    let mut c = mesh.coordinates(rank);
    for (k, x) in (0u32..).zip(&mut c) {
        if replicated.has(shardweld_ir::AxisId(k)) {
            *x = 0;
        }
    }
    mesh.rank_at(&c)
}

fn outputs(
    domain: &Symbolic,
    graph: &Graph,
    inputs: &[Named<Arc<SymbolicTensor>>],
) -> Result<Outputs, EvalError<SymbolicError>> {
    let mut seen: FxHashMap<Value, Vec<Option<Arc<SymbolicTensor>>>> = FxHashMap::default();
    let wanted: Vec<Value> = graph.outputs().iter().map(|o| o.value).collect();
    let run = evaluate(graph, domain, inputs, &mut |o| {
        for (result, slots) in (0u32..).zip(o.results) {
            let value = Value { node: o.id, result };
            if wanted.contains(&value) {
                let defined = slots.iter().map(|s| match s {
                    Slot::Defined(v) => Some(v.clone()),
                    Slot::Undefined { .. } => None,
                });
                seen.insert(value, defined.collect());
            }
        }
    });
    let all: Option<Outputs> = wanted.iter().map(|v| seen.get(v).cloned()).collect();
    match (all, run) {
        // An output that is undefined off root ends the run with an error, after every node has run.
        (Some(all), Ok(_) | Err(EvalError::Undefined { .. })) => Ok(all),
        (_, Err(e)) => Err(e),
        (None, Ok(_)) => {
            Err(EvalError::Malformed { node: graph.name.clone(), reason: "an output has no value".into() })
        }
    }
}
