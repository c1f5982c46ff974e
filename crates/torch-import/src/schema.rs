//! The JSON that `torch.export.save` writes, read by field name: fields that are unknown are skipped, fields that older versions lack have
//! defaults, and values that the importer cannot use are kept by name so that they can be refused with their node.

use std::{borrow::Cow, fmt, marker::PhantomData};

use rustc_hash::FxHashMap;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};

/// The schema's major version that this module reads, whatever the minor.
pub const SCHEMA_MAJOR: u64 = 8;

/// A borrowed or unescaped string.
pub type Text<'a> = Cow<'a, str>;

/// `models/model.json`.
#[derive(Debug, Deserialize)]
pub struct ExportedProgram<'a> {
    /// Graph and signature.
    #[serde(borrow)]
    pub graph_module: GraphModule<'a>,
    /// Version of the schema.
    pub schema_version: SchemaVersion,
    /// Version of torch, where it is given.
    #[serde(default, borrow)]
    pub torch_version: Option<Text<'a>>,
}

/// Version of the schema.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SchemaVersion {
    /// Incompatible changes.
    pub major: u64,
    /// Compatible changes.
    #[serde(default)]
    pub minor: u64,
}

/// Graph and signature.
#[derive(Debug, Deserialize)]
pub struct GraphModule<'a> {
    /// Nodes and values.
    #[serde(borrow)]
    pub graph: Graph<'a>,
    /// What inputs and outputs are.
    #[serde(borrow)]
    pub signature: Signature<'a>,
}

/// Nodes and values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Graph<'a> {
    /// Arguments of the graph, in the order of the signature.
    #[serde(default, borrow)]
    pub inputs: Vec<Argument<'a>>,
    /// Results of the graph, in the order of the signature.
    #[serde(default, borrow)]
    pub outputs: Vec<Argument<'a>>,
    /// Nodes in execution order.
    #[serde(borrow)]
    pub nodes: Vec<Node<'a>>,
    /// Type of every tensor by name.
    #[serde(borrow)]
    pub tensor_values: FxHashMap<Text<'a>, TensorMeta>,
    /// Symbolic integers by name.
    #[serde(default, borrow)]
    pub sym_int_values: FxHashMap<Text<'a>, IgnoredAny>,
}

/// A call of one op.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Node<'a> {
    /// `torch.ops.NAMESPACE.OP.OVERLOAD`.
    #[serde(borrow)]
    pub target: Text<'a>,
    /// Arguments by the name that the op schema gives them.
    #[serde(borrow)]
    pub inputs: Vec<NamedArgument<'a>>,
    /// Results.
    #[serde(borrow)]
    pub outputs: Vec<Argument<'a>>,
    /// Name; older versions lack it.
    #[serde(default, borrow)]
    pub name: Option<Text<'a>>,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct NamedArgument<'a> {
    /// Name in the op schema.
    #[serde(borrow)]
    pub name: Text<'a>,
    /// Value.
    #[serde(borrow)]
    pub arg: Argument<'a>,
    /// 1 positional, 2 by keyword; older versions lack it.
    #[serde(default)]
    pub kind: Option<u8>,
}

/// A graph that a higher-order op runs.
#[derive(Clone, PartialEq, Deserialize)]
pub struct Subgraph<'a> {
    /// Name of the submodule.
    #[serde(borrow)]
    pub name: Text<'a>,
    /// Its graph, with names of its own.
    #[serde(borrow)]
    pub graph: Graph<'a>,
}

/// The name only: messages show arguments.
impl fmt::Debug for Subgraph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)
    }
}

/// Type and layout of a tensor.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TensorMeta {
    /// torch's number of the element type; see [`scalar_type_name`].
    pub dtype: i64,
    /// Sizes.
    pub sizes: Vec<SymInt>,
    /// Distance between neighbours in each dimension, in elements.
    #[serde(default)]
    pub strides: Vec<SymInt>,
    /// First element in the storage.
    #[serde(default)]
    pub storage_offset: Option<SymInt>,
}

/// A size, which may be an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SymInt {
    /// A number.
    Int(i64),
    /// An expression over symbols.
    Expr(String),
}

impl SymInt {
    /// The number, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            SymInt::Int(i) => Some(*i),
            SymInt::Expr(_) => None,
        }
    }
}

/// The value of an argument: one member of torch's argument union.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument<'a> {
    /// No value.
    None,
    /// A tensor by name.
    Tensor(Text<'a>),
    /// Tensors by name.
    Tensors(Vec<Text<'a>>),
    /// Tensors by name, some absent.
    OptionalTensors(Vec<Option<Text<'a>>>),
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
    /// A float.
    Float(f64),
    /// Floats.
    Floats(Vec<f64>),
    /// A truth value.
    Bool(bool),
    /// Truth values.
    Bools(Vec<bool>),
    /// Text.
    Str(Text<'a>),
    /// torch's number of an element type.
    ScalarType(i64),
    /// A layout, device or memory format: nothing that a value depends on.
    Placement,
    /// A number that depends on symbols.
    Symbolic(String),
    /// A graph that the op runs.
    Graph(Box<Subgraph<'a>>),
    /// A member that the importer does not know, by its name.
    Other(String),
}

/// Meaning of a graph input.
#[derive(Debug)]
pub enum InputSpec<'a> {
    /// Given by the caller.
    User(Argument<'a>),
    /// A parameter, buffer or constant tensor: graph name, fully qualified name, and whether it may be stored under constants.
    Stored {
        /// Name in the graph.
        arg: Text<'a>,
        /// Fully qualified name in the module.
        fqn: Text<'a>,
        /// Constants and non-persistent buffers lie in `data/constants`.
        constant: bool,
    },
    /// A constant argument of the exported function; it stands in the graph itself.
    Constant(Text<'a>),
    /// A member that the importer does not know, by its name.
    Other(String),
}

/// Meaning of a graph output.
#[derive(Debug)]
pub enum OutputSpec<'a> {
    /// Returned to the caller.
    User(Argument<'a>),
    /// Anything else (mutations, gradients), by its name and the tensor concerned.
    Other(String),
}

/// What inputs and outputs are.
#[derive(Debug, Deserialize)]
pub struct Signature<'a> {
    /// One per graph input.
    #[serde(borrow)]
    pub input_specs: Vec<InputSpec<'a>>,
    /// One per graph output.
    #[serde(borrow)]
    pub output_specs: Vec<OutputSpec<'a>>,
}

/// `data/weights/*_weights_config.json` and `data/constants/*_constants_config.json`.
#[derive(Debug, Deserialize)]
pub struct PayloadConfig {
    /// Payloads by fully qualified name.
    pub config: FxHashMap<String, PayloadMeta>,
}

/// Where the data of one weight are.
#[derive(Debug, Deserialize)]
pub struct PayloadMeta {
    /// File name in the config's folder.
    pub path_name: String,
    /// Whether the file is a pickle rather than raw bytes.
    #[serde(default)]
    pub use_pickle: bool,
    /// Type and view of the storage.
    #[serde(default)]
    pub tensor_meta: Option<TensorMeta>,
}

/// Name of torch's scalar type number, for messages.
pub fn scalar_type_name(n: i64) -> &'static str {
    match n {
        1 => "uint8",
        2 => "int8",
        3 => "int16",
        4 => "int32",
        5 => "int64",
        6 => "float16",
        7 => "float32",
        8 => "float64",
        9 => "complex32",
        10 => "complex64",
        11 => "complex128",
        12 => "bool",
        13 => "bfloat16",
        28 => "uint16",
        29 => "float8_e4m3fn",
        30 => "float8_e5m2",
        31 => "float8_e4m3fnuz",
        32 => "float8_e5m2fnuz",
        33 => "float8_e8m0fnu",
        34 => "uint32",
        35 => "uint64",
        _ => "unknown",
    }
}

/// Deserializes a type from a map with one member that is not null. The arms give, for a member's name, its value; `$map` reads it.
macro_rules! union {
    ($ty:ident, $what:literal, |$key:ident, $map:ident| $read:expr) => {
        impl<'de: 'a, 'a> Deserialize<'de> for $ty<'a> {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Members<'a>(PhantomData<&'a ()>);
                impl<'de: 'a, 'a> Visitor<'de> for Members<'a> {
                    type Value = $ty<'a>;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("a ", $what, " with one member"))
                    }
                    fn visit_map<A: MapAccess<'de>>(self, mut $map: A) -> Result<Self::Value, A::Error> {
                        let mut found: Option<$ty<'a>> = None;
                        while let Some(Key($key)) = $map.next_key()? {
                            let value: Option<$ty<'a>> = $read;
                            if value.is_some() && found.is_some() {
                                return Err(A::Error::custom(format!(
                                    "a {} with a second member `{}`",
                                    $what, $key
                                )));
                            }
                            found = found.or(value);
                        }
                        found.ok_or_else(|| A::Error::custom(concat!("a ", $what, " without a member")))
                    }
                }
                d.deserialize_map(Members(PhantomData))
            }
        }
    };
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Text<'a>);

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Text<'a>,
}

union!(Argument, "argument", |key, map| match key.as_ref() {
    "as_none" => map.next_value::<Option<bool>>()?.map(|_| Argument::None),
    "as_tensor" => map.next_value::<Option<Named<'de>>>()?.map(|n| Argument::Tensor(n.name)),
    "as_tensors" => map
        .next_value::<Option<Vec<Named<'de>>>>()?
        .map(|v| Argument::Tensors(v.into_iter().map(|n| n.name).collect())),
    "as_optional_tensor" => map.next_value::<Option<Argument<'de>>>()?,
    "as_optional_tensors" => map.next_value::<Option<Vec<Argument<'de>>>>()?.map(|v| {
        Argument::OptionalTensors(
            v.into_iter()
                .map(|a| match a {
                    Argument::Tensor(n) => Some(n),
                    _ => None,
                })
                .collect(),
        )
    }),
    "as_int" => map.next_value::<Option<i64>>()?.map(Argument::Int),
    "as_ints" => map.next_value::<Option<Vec<i64>>>()?.map(Argument::Ints),
    "as_float" => map.next_value::<Option<Number>>()?.map(|n| Argument::Float(n.0)),
    "as_floats" => map
        .next_value::<Option<Vec<Number>>>()?
        .map(|v| Argument::Floats(v.into_iter().map(|n| n.0).collect())),
    "as_bool" => map.next_value::<Option<bool>>()?.map(Argument::Bool),
    "as_bools" => map.next_value::<Option<Vec<bool>>>()?.map(Argument::Bools),
    "as_string" => map.next_value::<Option<Key<'de>>>()?.map(|k| Argument::Str(k.0)),
    "as_scalar_type" => map.next_value::<Option<i64>>()?.map(Argument::ScalarType),
    "as_graph" => map.next_value::<Option<Subgraph<'de>>>()?.map(|g| Argument::Graph(Box::new(g))),
    "as_layout" | "as_device" | "as_memory_format" =>
        map.next_value::<Option<IgnoredAny>>()?.map(|_| Argument::Placement),
    "as_sym_int" | "as_sym_float" | "as_sym_bool" => map.next_value::<Option<Symbolic>>()?.map(|s| match s {
        Symbolic::Name(n) => Argument::Symbolic(n),
        Symbolic::Int(i) => Argument::Int(i),
        Symbolic::Float(x) => Argument::Float(x),
        Symbolic::Bool(b) => Argument::Bool(b),
    }),
    "as_sym_ints" => map.next_value::<Option<Vec<Symbolic>>>()?.map(|v| {
        let mut ints = Vec::with_capacity(v.len());
        for s in v {
            match s {
                Symbolic::Int(i) => ints.push(i),
                Symbolic::Name(n) => return Argument::Symbolic(n),
                Symbolic::Float(_) | Symbolic::Bool(_) => return Argument::Other("as_sym_ints".into()),
            }
        }
        Argument::Ints(ints)
    }),
    other => map.next_value::<Option<IgnoredAny>>()?.map(|_| Argument::Other(other.to_owned())),
});

/// A member of torch's unions of a symbol and a number.
#[derive(Deserialize)]
enum Symbolic {
    #[serde(rename = "as_name")]
    Name(String),
    #[serde(rename = "as_int")]
    Int(i64),
    #[serde(rename = "as_float")]
    Float(f64),
    #[serde(rename = "as_bool")]
    Bool(bool),
}

#[derive(Deserialize)]
struct UserSpec<'a> {
    #[serde(borrow)]
    arg: Argument<'a>,
}

#[derive(Deserialize)]
struct StoredSpec<'a> {
    #[serde(borrow)]
    arg: Named<'a>,
    #[serde(borrow, alias = "buffer_name", alias = "tensor_constant_name")]
    parameter_name: Text<'a>,
    #[serde(default = "yes")]
    persistent: bool,
}

fn yes() -> bool {
    true
}

impl<'a> StoredSpec<'a> {
    fn input(self, constant: bool) -> InputSpec<'a> {
        InputSpec::Stored {
            arg: self.arg.name,
            fqn: self.parameter_name,
            constant: constant || !self.persistent,
        }
    }
}

union!(InputSpec, "input spec", |key, map| match key.as_ref() {
    "user_input" => map.next_value::<Option<UserSpec<'de>>>()?.map(|s| InputSpec::User(s.arg)),
    "parameter" | "buffer" => map.next_value::<Option<StoredSpec<'de>>>()?.map(|s| s.input(false)),
    "tensor_constant" => map.next_value::<Option<StoredSpec<'de>>>()?.map(|s| s.input(true)),
    "constant_input" => map.next_value::<Option<Named<'de>>>()?.map(|n| InputSpec::Constant(n.name)),
    other => map.next_value::<Option<IgnoredAny>>()?.map(|_| InputSpec::Other(other.to_owned())),
});

union!(OutputSpec, "output spec", |key, map| match key.as_ref() {
    "user_output" => map.next_value::<Option<UserSpec<'de>>>()?.map(|s| OutputSpec::User(s.arg)),
    other => map.next_value::<Option<IgnoredAny>>()?.map(|_| OutputSpec::Other(other.to_owned())),
});

/// A float; torch writes infinities and NaN as text.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"Infinity\", \"-Infinity\" or \"NaN\"")
            }
            fn visit_f64<E: Error>(self, x: f64) -> Result<Number, E> {
                Ok(Number(x))
            }
            fn visit_i64<E: Error>(self, x: i64) -> Result<Number, E> {
                Ok(Number(x as f64))
            }
            fn visit_u64<E: Error>(self, x: u64) -> Result<Number, E> {
                Ok(Number(x as f64))
            }
            fn visit_str<E: Error>(self, s: &str) -> Result<Number, E> {
                match s {
                    "Infinity" => Ok(Number(f64::INFINITY)),
                    "-Infinity" => Ok(Number(f64::NEG_INFINITY)),
                    "NaN" => Ok(Number(f64::NAN)),
                    _ => Err(E::custom(format!("`{s}` is not a float"))),
                }
            }
        }
        d.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for SymInt {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Expr {
            expr_str: String,
        }
        #[derive(Deserialize)]
        enum Member {
            #[serde(rename = "as_int")]
            Int(i64),
            #[serde(rename = "as_expr")]
            Expr(Expr),
        }
        Ok(match Member::deserialize(d)? {
            Member::Int(i) => SymInt::Int(i),
            Member::Expr(e) => SymInt::Expr(e.expr_str),
        })
    }
}
