//! One exported graph to its functional form: inputs and weights bound, nodes converted in order, every type checked against the recorded
//! one, every refusal collected.

use std::{
    path::{Path, PathBuf},
    sync::Mutex,
};

use rustc_hash::FxHashMap;
use shardweld_ir::{Mesh, Op, TensorType, WeightId, WeightView};

use crate::{
    alias::{Aliases, TensorId},
    archive::{Archive, Entry},
    call::{Call, Refused},
    context::{Binding, Cx, Out, recorded_type},
    error::{ImportError, Refusal},
    groups::Groups,
    higher_order::HIGHER_ORDER,
    liveness::live,
    ops,
    schema::{
        Argument, ExportedProgram, InputSpec, Node, OutputSpec, SCHEMA_MAJOR, SymInt, TensorMeta, Text,
    },
    ssa::{Ssa, Val},
    weights::Payloads,
};

/// The functional form of the graph that one or several ranks run.
#[derive(Debug)]
pub(crate) struct Program {
    pub file: PathBuf,
    /// Ranks that run it.
    pub ranks: Vec<u32>,
    pub ssa: Ssa,
    /// Inputs by the name they have in the graph, in order.
    pub inputs: Vec<(String, Val)>,
    /// Outputs, in order, by the name of the value.
    pub outputs: Vec<(String, Val)>,
    /// Weights, in the order of their `WeightId`s.
    pub weights: Vec<ProgramWeight>,
    /// The archive that it came from, for comparing weights.
    pub archive: Option<Mutex<Archive>>,
}

/// A parameter or buffer.
#[derive(Debug)]
pub(crate) struct ProgramWeight {
    pub fqn: String,
    pub ty: TensorType,
    pub view: WeightView,
    /// The archive entry that the view is all of, if so.
    pub entry: Option<Entry>,
}

/// Parses the graph JSON and checks its version.
pub(crate) fn parse<'a>(file: &Path, json: &'a [u8]) -> Result<ExportedProgram<'a>, ImportError> {
    let schema = |reason: String| ImportError::Schema { file: file.into(), reason };
    let program: ExportedProgram = serde_json::from_slice(json).map_err(|e| schema(e.to_string()))?;
    let (major, minor) = (program.schema_version.major, program.schema_version.minor);
    if major != SCHEMA_MAJOR {
        let torch = program.torch_version.as_deref().unwrap_or("an unnamed version");
        return Err(schema(format!(
            "schema version {major}.{minor} (torch {torch}); expected major version {SCHEMA_MAJOR}: export again with a newer torch"
        )));
    }
    Ok(program)
}

/// Converts a parsed graph.
pub(crate) fn convert(
    file: &Path,
    program: &ExportedProgram,
    payloads: &Payloads,
    mesh: &Mesh,
    groups: Option<&Groups>,
    ranks: &[u32],
) -> Result<Program, ImportError> {
    let graph = &program.graph_module.graph;
    let symbols = symbolic(program);
    if !symbols.is_empty() {
        return Err(ImportError::Refused { file: file.into(), refusals: symbols });
    }
    let mut conversion = Conversion {
        cx: Cx {
            ssa: Ssa::default(),
            aliases: Aliases::default(),
            mesh: mesh.clone(),
            names: FxHashMap::default(),
            metas: &graph.tensor_values,
            groups,
            exporters: ranks,
            resolved: FxHashMap::default(),
        },
        refusals: Vec::new(),
        inputs: Vec::new(),
        weights: Vec::new(),
    };
    for spec in &program.graph_module.signature.input_specs {
        conversion.input(spec, payloads)?;
    }
    let specs = &program.graph_module.signature.output_specs;
    let returned = specs.iter().filter_map(|s| match s {
        OutputSpec::User(a) => Some(a),
        OutputSpec::Other(_) => None,
    });
    conversion.nodes(&graph.nodes, graph.outputs.iter().chain(returned));
    let outputs = conversion.outputs(specs);
    let Conversion { cx, refusals, inputs, weights } = conversion;
    if !refusals.is_empty() {
        return Err(ImportError::Refused { file: file.into(), refusals });
    }
    Ok(Program {
        file: file.into(),
        ranks: ranks.to_vec(),
        ssa: cx.ssa,
        inputs,
        outputs,
        weights,
        archive: None,
    })
}

/// The conversion of one file.
pub(crate) struct Conversion<'p> {
    pub(crate) cx: Cx<'p>,
    refusals: Vec<Refusal>,
    inputs: Vec<(String, Val)>,
    weights: Vec<ProgramWeight>,
}

impl<'p> Conversion<'p> {
    fn refuse(&mut self, node: &str, target: &str, reason: String) {
        // What follows from an earlier refusal has no reason of its own.
        if !reason.is_empty() {
            self.refusals.push(Refusal { node: node.into(), target: target.into(), reason });
        }
    }

    fn recorded(&self, name: &str) -> Refused<TensorType> {
        let meta =
            self.cx.metas.get(name).ok_or_else(|| format!("the graph records no type for `{name}`"))?;
        recorded_type(meta)
    }

    fn input(&mut self, spec: &'p InputSpec<'p>, payloads: &Payloads) -> Result<(), ImportError> {
        let (name, fqn) = match spec {
            InputSpec::User(Argument::Tensor(n)) => (n.as_ref(), None),
            InputSpec::Stored { arg, fqn, .. } => (arg.as_ref(), Some(fqn.as_ref())),
            // Numbers and none stand in the graph itself.
            InputSpec::User(
                Argument::None | Argument::Int(_) | Argument::Float(_) | Argument::Bool(_) | Argument::Str(_),
            )
            | InputSpec::Constant(_) => return Ok(()),
            InputSpec::User(other) => {
                self.refuse("input", "input", format!("a program input is {other:?}, expected a tensor"));
                return Ok(());
            }
            InputSpec::Other(kind) => {
                self.refuse("input", kind, "this kind of program input is not supported".into());
                return Ok(());
            }
        };
        self.cx.ssa.begin(name);
        let ty = match self.recorded(name) {
            Ok(ty) => ty,
            Err(reason) => {
                self.refuse(name, "input", reason);
                self.cx.names.insert(name, Binding::Unusable(String::new()));
                return Ok(());
            }
        };
        let (op, what) = match fqn {
            None => (Op::Input { name: name.to_owned() }, format!("the program input `{name}`")),
            Some(fqn) => {
                let (view, entry) = payloads.view(fqn, &ty)?;
                self.weights.push(ProgramWeight { fqn: fqn.to_owned(), ty: ty.clone(), view, entry });
                (Op::Weight(WeightId(self.weights.len() as u32 - 1)), format!("the weight `{fqn}`"))
            }
        };
        let value = self.cx.ssa.add_typed(op, &[], ty);
        if fqn.is_none() {
            self.inputs.push((name.to_owned(), value));
        }
        let tensor = self.cx.aliases.fresh(value, Some(what));
        self.cx.names.insert(name, Binding::Tensor(tensor));
        Ok(())
    }

    /// Converts nodes in order, of which the values `kept` are used afterwards.
    pub(crate) fn nodes(&mut self, nodes: &'p [Node<'p>], kept: impl Iterator<Item = &'p Argument<'p>>) {
        for (node, live) in nodes.iter().zip(live(nodes, kept)) {
            self.node(&Call::new(node), live);
        }
    }

    fn node(&mut self, call: &Call<'p>, live: bool) {
        self.cx.ssa.begin(call.name);
        let names = output_names(call);
        let result = match &names {
            Ok(names) => self.convert_node(call, names),
            Err(e) => Err(e.clone()),
        };
        if let Err(reason) = result {
            if !live {
                tracing::debug!(
                    node = call.name,
                    op = call.target(),
                    reason,
                    "dropped: nobody uses its results"
                );
                // Should anything use them after all, that is refused.
                let why = format!("the result of {}: {reason}", call.target());
                for name in names.unwrap_or_default().into_iter().flatten() {
                    self.cx.names.insert(name, Binding::Unusable(why.clone()));
                }
                return;
            }
            self.refuse(call.name, &call.target(), reason);
            // A stand-in of the recorded type lets the rest be looked at, so that all refusals are found at once.
            for name in names.unwrap_or_default().into_iter().flatten() {
                let binding = match self.recorded(name) {
                    Ok(ty) => {
                        let value = self.cx.ssa.add_typed(Op::Input { name: name.to_owned() }, &[], ty);
                        Binding::Tensor(self.cx.aliases.fresh(value, None))
                    }
                    Err(_) => Binding::Unusable(String::new()),
                };
                self.cx.names.insert(name, binding);
            }
        }
    }

    fn convert_node(&mut self, call: &Call<'p>, names: &[Option<&'p str>]) -> Refused<()> {
        if call.namespace == HIGHER_ORDER {
            let results = self.inline(call)?;
            return self.bind_all(results, names);
        }
        let out = ops::convert(&mut self.cx, call)?;
        let out = if call.in_place { self.cx.written(call, out)? } else { out };
        let tensors = match out {
            Out::None => Vec::new(),
            Out::Alias(tensors) => tensors,
            Out::Fresh(values) => values.into_iter().map(|v| self.cx.aliases.fresh(v, None)).collect(),
            Out::FirstOnly(value, why) => {
                let mut names = names.iter().copied().flatten();
                if let Some(first) = names.next() {
                    self.bind(first, value)?;
                }
                for further in names {
                    self.cx.names.insert(further, Binding::Unusable(why.into()));
                }
                return Ok(());
            }
        };
        self.bind_all(tensors, names)
    }

    fn bind_all(&mut self, tensors: Vec<TensorId>, names: &[Option<&'p str>]) -> Refused<()> {
        if tensors.len() != names.len() {
            return Err(format!("has {} results, the graph records {}", tensors.len(), names.len()));
        }
        for (tensor, name) in tensors.into_iter().zip(names) {
            let Some(name) = name else { continue };
            let value = self.cx.read(tensor)?;
            self.check(name, value)?;
            self.cx.names.insert(name, Binding::Tensor(tensor));
        }
        Ok(())
    }

    fn bind(&mut self, name: &'p str, value: Val) -> Refused<()> {
        self.check(name, value)?;
        let tensor = self.cx.aliases.fresh(value, None);
        self.cx.names.insert(name, Binding::Tensor(tensor));
        Ok(())
    }

    /// The import stands or falls with agreeing to torch on every type.
    pub(crate) fn check(&self, name: &str, value: Val) -> Refused<()> {
        let (found, expected) = (self.cx.ty(value), self.recorded(name)?);
        if *found != expected {
            return Err(format!("`{name}` is recorded as {expected}, but its meaning gives {found}"));
        }
        Ok(())
    }

    fn outputs(&mut self, specs: &'p [OutputSpec<'p>]) -> Vec<(String, Val)> {
        let mut outputs = Vec::new();
        for spec in specs {
            match spec {
                OutputSpec::User(Argument::Tensor(name)) => {
                    let value = self.cx.bound(name).and_then(|t| self.cx.read(t));
                    match value {
                        Ok(v) => outputs.push((name.to_string(), v)),
                        Err(reason) => self.refuse(name, "output", reason),
                    }
                }
                OutputSpec::User(Argument::None) => {}
                OutputSpec::User(other) => {
                    self.refuse(
                        "output",
                        "output",
                        format!("a program output is {other:?}, expected a tensor"),
                    );
                }
                OutputSpec::Other(kind) => {
                    let reason = "the program changes what it is given; only programs without such effects are imported";
                    self.refuse("output", kind, reason.into());
                }
            }
        }
        outputs
    }
}

impl<'p> Cx<'p> {
    /// Writes a value to a tensor, cast and broadcast to its type as torch's in-place ops do.
    pub(crate) fn write(&mut self, tensor: TensorId, value: Val) -> Refused<()> {
        let old = self.read(tensor)?;
        let (dtype, dims) = (self.dtype(old), self.dims(old));
        let value = self.cast(value, dtype)?;
        if self.dims(value) != dims {
            return Err(format!("writes {} into {}", self.ty(value), self.ty(old)));
        }
        self.aliases.write(&mut self.ssa, &self.mesh, tensor, value)
    }

    /// The meaning of an in-place form: the functional result, written to the operands.
    fn written(&mut self, call: &Call<'p>, out: Out) -> Refused<Out> {
        let values = match out {
            Out::Fresh(values) => values,
            Out::Alias(_) | Out::None => return Ok(out),
            Out::FirstOnly(..) => return Err("the in-place form of this op is not supported".into()),
        };
        let first = call.node.inputs.first().ok_or("writes to nothing")?;
        let targets = match &first.arg {
            Argument::Tensor(n) => vec![self.bound(n)?],
            Argument::Tensors(v) => v.iter().map(|n| self.bound(n)).collect::<Refused<_>>()?,
            other => return Err(format!("writes to {other:?}")),
        };
        if targets.len() != values.len() {
            return Err(format!("writes {} results to {} tensors", values.len(), targets.len()));
        }
        for (t, v) in targets.iter().zip(values) {
            self.write(*t, v)?;
        }
        Ok(Out::Alias(targets))
    }
}

/// Names of a call's results; absent ones are none.
fn output_names<'p>(call: &Call<'p>) -> Refused<Vec<Option<&'p str>>> {
    let mut names = Vec::new();
    for o in &call.node.outputs {
        match o {
            Argument::Tensor(n) => names.push(Some(n.as_ref())),
            Argument::Tensors(v) => names.extend(v.iter().map(|n| Some(n.as_ref()))),
            Argument::OptionalTensors(v) => names.extend(v.iter().map(|n| n.as_deref())),
            Argument::None => names.push(None),
            Argument::Symbolic(s) => {
                return Err(format!("gives the symbolic number `{s}`; only static shapes are imported"));
            }
            other => return Err(format!("gives {other:?}, expected tensors")),
        }
    }
    Ok(names)
}

/// Above this many, further values with symbolic sizes are only counted.
const LISTED_SYMBOLIC: usize = 20;

/// Refusals for symbolic sizes: the inputs that have them, or, if none has, the values where they arise.
fn symbolic(program: &ExportedProgram) -> Vec<Refusal> {
    let graph = &program.graph_module.graph;
    let refusal = |name: &str, meta: &TensorMeta| -> Option<Refusal> {
        let sizes = &meta.sizes;
        let all = sizes.iter().chain(&meta.strides).chain(&meta.storage_offset);
        if all.clone().all(|s| s.as_int().is_some()) {
            return None;
        }
        let shown: Vec<String> = sizes.iter().map(shown).collect();
        Some(Refusal {
            node: name.to_owned(),
            target: "symbolic size".into(),
            reason: format!(
                "[{}]: only static shapes are imported; export without dynamic shapes",
                shown.join(", ")
            ),
        })
    };
    let names = |a: &Argument| match a {
        Argument::Tensor(n) => vec![n.to_string()],
        _ => vec![],
    };
    let meta_of = |n: &String| graph.tensor_values.get(&Text::from(n.as_str())).and_then(|m| refusal(n, m));
    let inputs: Vec<Refusal> = graph.inputs.iter().flat_map(names).filter_map(|n| meta_of(&n)).collect();
    if !inputs.is_empty() {
        return inputs;
    }
    let mut values: Vec<Refusal> = graph.tensor_values.iter().filter_map(|(n, m)| refusal(n, m)).collect();
    values.sort_by(|a, b| a.node.cmp(&b.node));
    let more = values.len().saturating_sub(LISTED_SYMBOLIC);
    values.truncate(LISTED_SYMBOLIC);
    if more > 0 {
        values.push(Refusal {
            node: "..".into(),
            target: "symbolic size".into(),
            reason: format!("{more} more values"),
        });
    }
    values
}

/// An expression as a person would write it: the names of its symbols where it is just one.
fn shown(s: &SymInt) -> String {
    match s {
        SymInt::Int(i) => i.to_string(),
        SymInt::Expr(e) => {
            let name = e.strip_prefix("Symbol('").and_then(|r| r.split_once('\'')).map(|(n, _)| n);
            name.unwrap_or(e).to_owned()
        }
    }
}
