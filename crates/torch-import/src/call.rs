//! One call in the exported graph: arguments by name with the defaults of the op schema, and a record of which were read, so that an
//! argument that nobody looked at is an error instead of being ignored.

use std::cell::Cell;

use shardweld_ir::{DType, Scalar};

use crate::schema::{Argument, Node, Text, scalar_type_name};

/// Why a node is refused; the importer adds the node's name.
pub(crate) type Refused<T> = Result<T, String>;

/// Arguments that say where and how a tensor is stored, never what it holds.
const PLACEMENT: &[&str] =
    &["device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad"];

/// In-place forms that Python's operators call, with their functional forms.
const DUNDER_IN_PLACE: &[(&str, &str)] = &[
    ("__iand__", "__and__"),
    ("__ior__", "__or__"),
    ("__ixor__", "__xor__"),
    ("__ilshift__", "__lshift__"),
    ("__irshift__", "__rshift__"),
];

/// Most arguments of a call; the read record is a bit set.
const MAX_ARGUMENTS: usize = 64;

/// A call of an op.
pub(crate) struct Call<'p> {
    pub node: &'p Node<'p>,
    /// Name of the node.
    pub name: &'p str,
    /// `aten`, `_c10d_functional`, ...
    pub namespace: &'p str,
    /// Op name; of the in-place form, that of the functional one.
    pub op: &'p str,
    /// Overload, `default` if there is only one.
    pub overload: &'p str,
    /// Whether this is the in-place form.
    pub in_place: bool,
    read: Cell<u64>,
}

impl<'p> Call<'p> {
    /// Reads the target of a node. `position` names nodes of schema versions that have no names.
    pub fn new(node: &'p Node<'p>) -> Call<'p> {
        let target = node.target.as_ref();
        let path = target.strip_prefix("torch.ops.").unwrap_or(target);
        let mut parts = path.splitn(3, '.');
        let namespace = parts.next().unwrap_or("");
        let op = parts.next().unwrap_or("");
        let overload = parts.next().unwrap_or("default");
        // `__and__` and the like end in underscores but are not in place; `__iand__` is.
        let dunder = DUNDER_IN_PLACE.iter().find(|(i, _)| *i == op).map(|(_, functional)| *functional);
        let suffixed = op.strip_suffix('_').filter(|o| !o.is_empty() && !op.starts_with("__"));
        let functional = dunder.or(suffixed);
        let first_output = node.outputs.first().and_then(|o| match o {
            Argument::Tensor(n) => Some(n.as_ref()),
            Argument::Tensors(v) => v.first().map(Text::as_ref),
            _ => None,
        });
        Call {
            node,
            name: node.name.as_deref().or(first_output).unwrap_or(op),
            namespace,
            op: functional.unwrap_or(op),
            overload,
            in_place: functional.is_some(),
            read: Cell::new(0),
        }
    }

    /// The op as messages show it, such as `aten.add.Tensor`.
    pub fn target(&self) -> String {
        let target = self.node.target.as_ref();
        target.strip_prefix("torch.ops.").unwrap_or(target).to_owned()
    }

    /// The argument, marked as read; `None` if it is absent or none.
    pub fn get(&self, name: &str) -> Option<&'p Argument<'p>> {
        let (i, a) = self.node.inputs.iter().enumerate().find(|(_, a)| a.name == name)?;
        if i < MAX_ARGUMENTS {
            self.read.set(self.read.get() | 1 << i);
        }
        (a.arg != Argument::None).then_some(&a.arg)
    }

    /// Whether the call has the argument, without marking it.
    pub fn has(&self, name: &str) -> bool {
        self.node.inputs.iter().any(|a| a.name == name && a.arg != Argument::None)
    }

    /// An argument that was given and that nobody read.
    pub fn unread(&self) -> Option<&'p str> {
        self.node
            .inputs
            .iter()
            .enumerate()
            .find(|(i, a)| {
                let read = *i < MAX_ARGUMENTS && self.read.get() >> i & 1 == 1;
                let harmless = matches!(a.arg, Argument::None | Argument::Placement)
                    || PLACEMENT.contains(&a.name.as_ref());
                !read && !harmless
            })
            .map(|(_, a)| a.name.as_ref())
    }

    fn wrong<T>(&self, name: &str, expected: &str, found: &Argument) -> Refused<T> {
        match found {
            Argument::Symbolic(s) => Err(format!(
                "argument `{name}` is the symbolic number `{s}`; only static shapes are imported"
            )),
            other => Err(format!("argument `{name}` is {other:?}, expected {expected}")),
        }
    }

    /// An optional integer.
    pub fn opt_int(&self, name: &str) -> Refused<Option<i64>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::Int(i)) => Ok(Some(*i)),
            Some(Argument::Bool(b)) => Ok(Some(i64::from(*b))),
            Some(other) => self.wrong(name, "an integer", other),
        }
    }

    /// An integer with a default.
    pub fn int_or(&self, name: &str, default: i64) -> Refused<i64> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    /// An integer that must be given.
    pub fn int(&self, name: &str) -> Refused<i64> {
        self.opt_int(name)?.ok_or_else(|| format!("argument `{name}` is missing, expected an integer"))
    }

    /// Optional integers; a single one counts as a list of one.
    pub fn opt_ints(&self, name: &str) -> Refused<Option<Vec<i64>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::Ints(v)) => Ok(Some(v.clone())),
            Some(Argument::Int(i)) => Ok(Some(vec![*i])),
            Some(Argument::Tensors(v)) if v.is_empty() => Ok(Some(vec![])),
            Some(other) => self.wrong(name, "integers", other),
        }
    }

    /// Integers that must be given.
    pub fn ints(&self, name: &str) -> Refused<Vec<i64>> {
        self.opt_ints(name)?.ok_or_else(|| format!("argument `{name}` is missing, expected integers"))
    }

    /// An optional float; integers count.
    pub fn opt_float(&self, name: &str) -> Refused<Option<f64>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::Float(x)) => Ok(Some(*x)),
            Some(Argument::Int(i)) => Ok(Some(*i as f64)),
            Some(other) => self.wrong(name, "a float", other),
        }
    }

    /// Optional floats; integers count.
    pub fn opt_floats(&self, name: &str) -> Refused<Option<Vec<f64>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::Floats(v)) => Ok(Some(v.clone())),
            Some(Argument::Ints(v)) => Ok(Some(v.iter().map(|i| *i as f64).collect())),
            Some(other) => self.wrong(name, "floats", other),
        }
    }

    /// A float with a default.
    pub fn float_or(&self, name: &str, default: f64) -> Refused<f64> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    /// A truth value with a default.
    pub fn bool_or(&self, name: &str, default: bool) -> Refused<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(Argument::Bool(b)) => Ok(*b),
            Some(Argument::Int(i)) => Ok(*i != 0),
            Some(other) => self.wrong(name, "a truth value", other),
        }
    }

    /// An optional string.
    pub fn opt_str(&self, name: &str) -> Refused<Option<&'p str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::Str(s)) => Ok(Some(s)),
            Some(other) => self.wrong(name, "text", other),
        }
    }

    /// A string that must be given.
    pub fn str(&self, name: &str) -> Refused<&'p str> {
        self.opt_str(name)?.ok_or_else(|| format!("argument `{name}` is missing, expected text"))
    }

    /// An optional number.
    pub fn opt_scalar(&self, name: &str) -> Refused<Option<Scalar>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::Float(x)) => Ok(Some(Scalar::Float(*x))),
            Some(Argument::Int(i)) => Ok(Some(Scalar::Int(*i))),
            Some(Argument::Bool(b)) => Ok(Some(Scalar::Bool(*b))),
            Some(other) => self.wrong(name, "a number", other),
        }
    }

    /// An optional element type.
    pub fn opt_dtype(&self, name: &str) -> Refused<Option<DType>> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::ScalarType(n)) => dtype_of(*n).map(Some),
            Some(other) => self.wrong(name, "an element type", other),
        }
    }
}

/// The IR's element type for torch's number.
pub(crate) fn dtype_of(scalar_type: i64) -> Refused<DType> {
    Ok(match scalar_type {
        1 => DType::U8,
        2 => DType::I8,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        12 => DType::Bool,
        13 => DType::BF16,
        29 => DType::F8E4M3,
        n => {
            let known: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
            return Err(format!(
                "element type {n} ({}) is not supported; expected one of {}",
                scalar_type_name(n),
                known.join(", ")
            ));
        }
    })
}
