//! The C++ source sink: a trace as one readable file that builds the same engine with either library.

use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use shardweld_ir::DType;
use shardweld_ir::store::{StoreError, WeightStore};
use thiserror::Error;

use crate::files;
use crate::sink::Sink;
use crate::trace::{Call, CollectiveKind, Layer, NetworkTrace, TensorId, name};

/// Literals up to this size stand in the source, larger ones in the weights file.
const MAX_INLINE_BYTES: usize = 256;
/// Alignment of tensors in the weights file.
const WEIGHT_ALIGNMENT: u64 = 64;
/// Calls per function; compilers are slow on very long functions.
const CALLS_PER_FUNCTION: usize = 400;

/// What stands before the calls.
const PRELUDE: &str = include_str!("../cpp/emitted_prelude.inc");
/// What stands after them.
const EPILOGUE: &str = include_str!("../cpp/emitted_main.inc");

/// Writes C++ source.
#[derive(Clone, Copy, Debug, Default)]
pub struct CppSink;

/// C++ source and what its weights file holds.
#[derive(Debug)]
pub struct CppSource<'t> {
    /// The source.
    pub text: String,
    trace: &'t NetworkTrace,
    /// Tensors of the weights file: byte offset and the layer that embeds it.
    stored: Vec<(u64, &'t Layer)>,
}

/// Why no source was written.
#[derive(Debug, Error)]
pub enum CppError {
    /// A weight cannot be read.
    #[error("weight `{weight}`: {source}")]
    Weight {
        /// Name.
        weight: String,
        /// Why.
        source: Box<StoreError>,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl CppSink {
    /// The source of a trace.
    pub fn source<'t>(&self, trace: &'t NetworkTrace) -> CppSource<'t> {
        let mut stored = Vec::new();
        let mut size = 0u64;
        let mut calls = Vec::with_capacity(trace.layers().len());
        for (i, layer) in trace.layers().iter().enumerate() {
            let mut at = None;
            let is_stored = match &layer.call {
                Call::Weight(_) => true,
                Call::Constant(_) => layer.bytes() > MAX_INLINE_BYTES as u64,
                _ => false,
            };
            if is_stored {
                stored.push((size, layer));
                at = Some(size);
                size = (size + layer.bytes()).next_multiple_of(WEIGHT_ALIGNMENT);
            }
            calls.push(call(trace, i, at));
        }
        let mut text = String::new();
        let title: String = trace.name().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "// Network \"{title}\": {} layers, {} collectives, communicator of {} ranks.",
            trace.layer_count(),
            trace.collectives().count(),
            trace.world_size()
        );
        text.push_str(PRELUDE);
        let _ = writeln!(
            text,
            "constexpr size_t kTensors = {};\nconstexpr size_t kWeightBytes = {size};\n",
            calls.len()
        );
        for (part, chunk) in calls.chunks(CALLS_PER_FUNCTION).enumerate() {
            let _ = writeln!(text, "void part{part}(Net& n) {{");
            for line in chunk {
                text.push_str(line);
            }
            text.push_str("}\n\n");
        }
        text.push_str("void define(Net& n) {\n");
        for part in 0..calls.len().div_ceil(CALLS_PER_FUNCTION) {
            let _ = writeln!(text, "    part{part}(n);");
        }
        for o in trace.outputs() {
            let _ = writeln!(text, "    n.output({}, {});", o.tensor.0, quoted(&o.name));
        }
        text.push_str("}\n");
        text.push_str(EPILOGUE);
        CppSource { text, trace, stored }
    }
}

impl Sink for CppSink {
    type Output = String;
    type Error = std::convert::Infallible;

    fn replay(&self, trace: &NetworkTrace, _: &WeightStore) -> Result<String, Self::Error> {
        Ok(self.source(trace).text)
    }
}

impl CppSource<'_> {
    /// Writes `NAME.cpp` and `NAME.weights` into a folder, each whole or not at all, and returns their paths.
    ///
    /// # Errors
    /// If a weight cannot be read or a file not be written.
    pub fn write(&self, folder: &Path, name: &str, weights: &WeightStore) -> Result<[PathBuf; 2], CppError> {
        let paths = [folder.join(format!("{name}.cpp")), folder.join(format!("{name}.weights"))];
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CppError::Write { path, source }
        };
        let temp = |path: &Path| files::temporary(folder).map_err(failed(path));
        let mut source = temp(&paths[0])?;
        source.write_all(self.text.as_bytes()).map_err(failed(&paths[0]))?;
        let data = temp(&paths[1])?;
        {
            let mut out = BufWriter::new(data.as_file());
            let mut at = 0u64;
            for (offset, layer) in &self.stored {
                let gap = vec![0u8; usize::try_from(offset - at).unwrap_or(0)];
                out.write_all(&gap).map_err(failed(&paths[1]))?;
                let written = match &layer.call {
                    Call::Constant(literal) => out.write_all(&literal.to_bytes()),
                    Call::Weight(w) => {
                        let w = &self.trace.weights()[*w as usize];
                        let bytes = weights
                            .view_bytes(&w.view)
                            .map_err(|e| CppError::Weight { weight: w.name.clone(), source: Box::new(e) })?;
                        out.write_all(&bytes)
                    }
                    _ => Ok(()),
                };
                written.map_err(failed(&paths[1]))?;
                at = offset + layer.bytes();
            }
            let end = at.next_multiple_of(WEIGHT_ALIGNMENT);
            let gap = vec![0u8; usize::try_from(end - at).unwrap_or(0)];
            out.write_all(&gap).and_then(|()| out.flush()).map_err(failed(&paths[1]))?;
        }
        for (file, path) in [(source, &paths[0]), (data, &paths[1])] {
            files::keep(file, path).map_err(failed(path))?;
        }
        Ok(paths)
    }
}

/// One call as a line of C++, with what it stands for.
fn call(trace: &NetworkTrace, index: usize, stored_at: Option<u64>) -> String {
    let layer = &trace.layers()[index];
    let n = quoted(&layer.name);
    let t = |t: &TensorId| format!("n[{}]", t.0);
    let flag = |b: &bool| if *b { "true" } else { "false" };
    let matrix = |b: &bool| if *b { "MatrixOperation::kTRANSPOSE" } else { "MatrixOperation::kNONE" };
    let line = match &layer.call {
        Call::Input => format!("n.input({n}, {}, {})", data_type(layer.dtype), list(&layer.dims)),
        Call::Constant(_) | Call::Weight(_) => match (stored_at, &layer.call) {
            (Some(at), _) => {
                format!("n.stored({n}, {}, {}, {at})", data_type(layer.dtype), list(&layer.dims))
            }
            (None, Call::Constant(literal)) => format!(
                "n.literal({n}, {}, {}, {{{}}})",
                data_type(layer.dtype),
                list(&layer.dims),
                joined(literal.to_bytes().iter())
            ),
            (None, _) => String::new(),
        },
        Call::Cast { input, to } => format!("n.add({n}, n->addCast({}, {}))", t(input), data_type(*to)),
        Call::Unary { input, op } => {
            format!("n.add({n}, n->addUnary({}, UnaryOperation::k{}))", t(input), op.name())
        }
        Call::ElementWise { a, b, op } => {
            format!("n.add({n}, n->addElementWise({}, {}, ElementWiseOperation::k{}))", t(a), t(b), op.name())
        }
        Call::Activation { input, op } => {
            format!("n.add({n}, n->addActivation({}, ActivationType::k{}))", t(input), op.name())
        }
        Call::Select { condition, then_input, else_input } => {
            format!("n.add({n}, n->addSelect({}, {}, {}))", t(condition), t(then_input), t(else_input))
        }
        Call::MatMul { a, transpose_a, b, transpose_b } => format!(
            "n.add({n}, n->addMatrixMultiply({}, {}, {}, {}))",
            t(a),
            matrix(transpose_a),
            t(b),
            matrix(transpose_b)
        ),
        Call::Reduce { input, op, axes, keep_dims } => format!(
            "n.add({n}, n->addReduce({}, ReduceOperation::k{}, {}, {}))",
            t(input),
            op.name(),
            mask(axes),
            flag(keep_dims)
        ),
        Call::Softmax { input, axis } => format!("n.softmax({n}, {}, {})", t(input), mask(&[*axis])),
        Call::Normalization { input, scale, bias, axes, epsilon } => format!(
            "n.normalization({n}, {}, {}, {}, {}, {}F)",
            t(input),
            t(scale),
            t(bias),
            mask(axes),
            c_float(epsilon.as_f64() as f32)
        ),
        Call::Attention { query, key, value, mask, causal } => format!(
            "n.attention({n}, {}, {}, {}, {}, CausalMaskKind::k{})",
            t(query),
            t(key),
            t(value),
            mask.map_or("nullptr".to_owned(), |m| format!("&{}", t(&m))),
            causal.name()
        ),
        Call::Shuffle { input, first, reshape, second } => format!(
            "n.shuffle({n}, {}, {}, {}, {})",
            t(input),
            optional(first.as_ref()),
            optional(reshape.as_ref()),
            optional(second.as_ref())
        ),
        Call::Slice { input, start, size, stride, fill } => format!(
            "n.slice({n}, {}, {}, {}, {}, {})",
            t(input),
            list(start),
            list(size),
            list(stride),
            fill.map_or("nullptr".to_owned(), |f| format!("&{}", t(&f)))
        ),
        Call::Concat { inputs, axis } => {
            let inputs: Vec<String> = inputs.iter().map(|i| format!("&{}", t(i))).collect();
            format!("n.concat({n}, {{{}}}, {axis})", inputs.join(", "))
        }
        Call::Gather { data, indices, axis, elements } => format!(
            "n.gather({n}, {}, {}, GatherMode::k{}, {axis})",
            t(data),
            t(indices),
            if *elements { "ELEMENT" } else { "DEFAULT" }
        ),
        Call::Convolution { input, kernel, bias, stride, pre_padding, post_padding, dilation, groups } => {
            let k = &trace.layers()[kernel.index()].dims;
            format!(
                "n.convolution({n}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {groups}, {})",
                t(input),
                t(kernel),
                bias.map_or("nullptr".to_owned(), |b| format!("&{}", t(&b))),
                k.first().copied().unwrap_or(0),
                list(k.get(2..).unwrap_or(&[])),
                list(stride),
                list(pre_padding),
                list(post_padding),
                list(dilation),
                data_type(layer.dtype)
            )
        }
        Call::Collective { input, collective: c } => format!(
            "n.collective({n}, {}, CollectiveOperation::k{}, ReduceOperation::k{}, {}, {})",
            t(input),
            collective(c.kind()),
            c.reduce().map_or("NONE".to_owned(), |r| r.name().to_uppercase()),
            c.root_or_minus_one(),
            list(c.ranks())
        ),
    };
    let mut about = String::new();
    // The layer's own name is in the call already.
    let shown = name::decode(&layer.name).unwrap_or_default();
    for s in layer.sources.iter().filter(|s| **s != shown).take(4) {
        let _ = write!(about, " {s}");
    }
    // A source name must not end the comment or continue it on the next line.
    let about: String = about.chars().map(|c| if c.is_control() || c == '\\' { '?' } else { c }).collect();
    format!("    {line}; // {index}: {:?}{about}\n", layer.dims)
}

fn mask(axes: &[u32]) -> String {
    let bits = axes.iter().fold(0u32, |m, &a| m | 1u32.checked_shl(a).unwrap_or(0));
    format!("{bits}U")
}

fn joined<T: std::fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    format!("{{{}}}", joined(items.iter()))
}

/// An absent list is `{-1}`, which no shape and no permutation is.
fn optional<T: std::fmt::Display>(items: Option<&Vec<T>>) -> String {
    items.map_or_else(|| "kAbsent".to_owned(), |i| list(i))
}

/// An f32 that C++ reads back to the same bits.
fn c_float(x: f32) -> String {
    format!("{x:e}")
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for b in text.bytes() {
        match b {
            b'"' | b'\\' | b'?' => {
                out.push('\\');
                out.push(char::from(b));
            }
            0x20..=0x7e => out.push(char::from(b)),
            // Three octal digits always end the escape.
            _ => {
                let _ = write!(out, "\\{b:03o}");
            }
        }
    }
    out.push('"');
    out
}

fn data_type(d: DType) -> &'static str {
    match d {
        DType::F32 => "DataType::kFLOAT",
        DType::F16 => "DataType::kHALF",
        DType::BF16 => "DataType::kBF16",
        DType::F8E4M3 => "DataType::kFP8",
        DType::I64 => "DataType::kINT64",
        DType::I32 => "DataType::kINT32",
        DType::I8 => "DataType::kINT8",
        DType::U8 => "DataType::kUINT8",
        DType::Bool => "DataType::kBOOL",
        // Traces have none.
        DType::F64 => "DataType::kNONE_F64",
    }
}

fn collective(kind: CollectiveKind) -> String {
    kind.name().to_uppercase()
}
