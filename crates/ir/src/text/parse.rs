//! Parses a text into a graph, line by line. Nothing is trusted, nothing panics, every line is read once.

use rustc_hash::FxHashMap;

use super::attr::Attr;
use super::attrs::{Context, from_attrs};
use super::field::Field;
use super::lex::{Cursor, LexError};
use super::view::read_view;
use super::{
    MAX_ATTRS, MAX_LINE_BYTES, MAX_TEXT_BYTES, MAX_TEXT_NODES, TEXT_VERSION, TextError, TextErrorKind,
};
use crate::graph::{Graph, Value};
use crate::mesh::{AxisId, Mesh};
use crate::rebuild::add_node;
use crate::weight::{Weight, WeightId};

type Result<T> = std::result::Result<T, LexError>;

pub(super) fn parse(file: &str, text: &str) -> std::result::Result<Graph, TextError> {
    let error = |line, column, kind| TextError { file: file.to_owned(), line, column, kind: Box::new(kind) };
    let limit = |found, limit, name| TextErrorKind::Limit { found, limit, name };
    if text.len() > MAX_TEXT_BYTES {
        return Err(error(1, 1, limit(text.len(), MAX_TEXT_BYTES, "MAX_TEXT_BYTES")));
    }
    let mut parser = Parser::default();
    let mut last = 1;
    for (i, line) in text.lines().enumerate() {
        last = i + 1;
        if line.len() > MAX_LINE_BYTES {
            return Err(error(last, 1, limit(line.len(), MAX_LINE_BYTES, "MAX_LINE_BYTES")));
        }
        parser.line(line).map_err(|e| {
            let before = line.get(..e.at).unwrap_or(line);
            error(last, before.chars().count() + 1, e.kind)
        })?;
    }
    parser.finish().map_err(|expected| {
        let found = "the end of the text".into();
        error(last, 1, TextErrorKind::Syntax { found, expected })
    })
}

#[derive(Default)]
struct Parser {
    version: bool,
    name: Option<String>,
    graph: Option<Graph>,
    weights: FxHashMap<String, WeightId>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<()> {
        let mut c = Cursor::new(line);
        if c.at_end() {
            return Ok(());
        }
        if !self.version {
            c.expect("swir")?;
            c.skip_blank();
            let start = c.clone();
            if c.number("a version number")? != TEXT_VERSION {
                return start.found("another version", format!("{TEXT_VERSION}"));
            }
            self.version = true;
        } else if self.graph.is_none() {
            self.header(&mut c)?;
        } else {
            self.statement(&mut c)?;
        }
        if c.at_end() { Ok(()) } else { c.expected("the end of the line") }
    }

    fn finish(self) -> std::result::Result<Graph, String> {
        self.graph.ok_or_else(|| if self.version { "`mesh [..]`" } else { "`swir 1`" }.into())
    }

    fn header(&mut self, c: &mut Cursor<'_>) -> Result<()> {
        let start = c.clone();
        match c.word("`graph` or `mesh`")? {
            "graph" if self.name.is_none() => {
                self.name = Some(c.quoted("the program's name in quotes")?);
                Ok(())
            }
            "mesh" => {
                c.skip_blank();
                let at = c.at();
                let mesh = mesh(c)?.map_err(|e| LexError { at, kind: e.into() })?;
                self.graph = Some(Graph::new(self.name.take().unwrap_or_default(), mesh));
                Ok(())
            }
            _ if self.name.is_none() => start.expected("`graph` or `mesh`"),
            _ => start.expected("`mesh`"),
        }
    }

    fn statement(&mut self, c: &mut Cursor<'_>) -> Result<()> {
        c.skip_blank();
        let start = c.clone();
        let Some(graph) = &mut self.graph else { return start.expected("`mesh`") };
        if c.take("%") {
            *c = start;
            return node(graph, &self.weights, c);
        }
        match c.word("`%`, `weight` or `return`")? {
            "weight" => {
                let weight = weight(graph.mesh(), c)?;
                let name = weight.name.clone();
                let id = graph.add_weight(weight).map_err(|e| LexError { at: start.at(), kind: e.into() })?;
                self.weights.insert(name, id);
                Ok(())
            }
            "return" => {
                let name = c.quoted("the output's name in quotes")?;
                c.expect("=")?;
                let v = value(graph, c)?;
                graph.add_output(&name, v).map_err(|e| LexError { at: start.at(), kind: e.into() })
            }
            _ => start.expected("`%`, `weight` or `return`"),
        }
    }
}

fn mesh(c: &mut Cursor<'_>) -> Result<std::result::Result<Mesh, crate::mesh::MeshError>> {
    c.expect("[")?;
    let mut axes = Vec::new();
    if !c.take("]") {
        loop {
            c.skip_blank();
            let start = c.clone();
            let name = match c.attr(0)? {
                Attr::Word(w) | Attr::Text(w) => w,
                _ => return start.expected("an axis name"),
            };
            c.expect("=")?;
            c.skip_blank();
            let start = c.clone();
            let Ok(size) = u32::try_from(c.number("the size of the axis")?) else {
                return start.expected("a size that fits 32 bits");
            };
            axes.push((name, size));
            if !c.take(",") {
                break;
            }
        }
        c.expect("]")?;
    }
    Ok(Mesh::new(axes))
}

fn weight(mesh: &Mesh, c: &mut Cursor<'_>) -> Result<Weight> {
    let name = c.quoted("the weight's name in quotes")?;
    c.expect(":")?;
    let ty = c.ty()?;
    c.skip_blank();
    let mut over: Vec<AxisId> = Vec::new();
    if c.take("over") {
        c.skip_blank();
        let start = c.clone();
        let attr = c.attr(0)?;
        match Vec::read(&attr, mesh) {
            Ok(axes) => over = axes,
            Err(expected) => return start.found(attr.describe(), expected),
        }
    }
    c.expect("=")?;
    c.expect("[")?;
    let mut shards = Vec::new();
    if !c.take("]") {
        loop {
            c.skip_blank();
            let start = c.clone();
            let attr = c.attr(0)?;
            match read_view(attr) {
                Ok(view) => shards.push(view),
                Err(expected) => return start.found("another view", expected),
            }
            if !c.take(",") {
                break;
            }
        }
        c.expect("]")?;
    }
    Ok(Weight { name, ty, over, shards })
}

fn value(graph: &Graph, c: &mut Cursor<'_>) -> Result<Value> {
    c.skip_blank();
    let at = c.at();
    let name = c.value_name()?;
    let Some(node) = graph.find(&name) else {
        return Err(LexError { at, kind: TextErrorKind::Undefined { name } });
    };
    let result = if c.take("#") { c.number("the number of a result")? } else { 0 };
    let results = graph.node(node).results.len();
    match u32::try_from(result) {
        Ok(r) if (r as usize) < results => Ok(Value { node, result: r }),
        _ => Err(LexError { at, kind: TextErrorKind::NoSuchResult { name, result, results } }),
    }
}

fn node(graph: &mut Graph, weights: &FxHashMap<String, WeightId>, c: &mut Cursor<'_>) -> Result<()> {
    let at = c.at();
    if graph.len() >= MAX_TEXT_NODES {
        let (found, limit) = (graph.len() + 1, MAX_TEXT_NODES);
        return Err(LexError { at, kind: TextErrorKind::Limit { found, limit, name: "MAX_TEXT_NODES" } });
    }
    let name = c.value_name()?;
    c.expect("=")?;
    c.skip_blank();
    let op_start = c.clone();
    let mnemonic = c.word("an op")?;
    c.expect("(")?;
    let mut operands = Vec::new();
    if !c.take(")") {
        loop {
            operands.push(value(graph, c)?);
            if !c.take(",") {
                break;
            }
        }
        c.expect(")")?;
    }
    let mut attrs: Vec<(String, Attr)> = Vec::new();
    while !c.take(":") {
        c.skip_blank();
        let start = c.clone();
        let key = c.word("an attribute or `:` and a type")?;
        if attrs.len() >= MAX_ATTRS {
            let (found, limit) = (attrs.len() + 1, MAX_ATTRS);
            return Err(LexError {
                at: start.at(),
                kind: TextErrorKind::Limit { found, limit, name: "MAX_ATTRS" },
            });
        }
        if attrs.iter().any(|(k, _)| k == key) {
            return start.found(format!("attribute `{key}` again"), "each attribute once");
        }
        c.expect("=")?;
        attrs.push((key.to_owned(), c.attr(0)?));
    }
    let mut types = vec![c.ty()?];
    while c.take(",") {
        types.push(c.ty()?);
    }
    let mut sources = Vec::new();
    if c.take(";") {
        c.expect("from")?;
        loop {
            sources.push(c.quoted("the name of a source node in quotes")?);
            if !c.take(",") {
                break;
            }
        }
    }
    let context =
        Context { mesh: graph.mesh(), weight_name: &|_| None, weight: &|n| weights.get(n).copied() };
    let op = match from_attrs(mnemonic, attrs, &types, context) {
        Ok(op) => op,
        Err(e) => return op_start.found(e.found, e.expected),
    };
    add_node(graph, &name, op, &operands, &types, sources)
        .map(|_| ())
        .map_err(|e| LexError { at, kind: e.into() })
}
