//! Export archives changed in one place, for planting faults.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use serde_json::Value;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// The entry that holds the graph.
pub const GRAPH: &str = "models/model.json";

/// Copies an archive; `change` sees each entry's name and bytes and says under which name and with which bytes it goes on.
pub fn rewrite(from: &Path, to: &Path, mut change: impl FnMut(&str, Vec<u8>) -> (String, Vec<u8>)) {
    let mut old = ZipArchive::new(File::open(from).unwrap()).unwrap();
    let mut new = ZipWriter::new(File::create(to).unwrap());
    // Large and repetitive entries are what a zip bomb is made of, so entries are deflated.
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for i in 0..old.len() {
        let mut entry = old.by_index(i).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        let (name, bytes) = change(entry.name(), bytes);
        new.start_file(name, options).unwrap();
        new.write_all(&bytes).unwrap();
    }
    new.finish().unwrap();
}

/// Copies an archive with its graph changed.
pub fn edit_graph(from: &Path, to: &Path, edit: impl Fn(&mut Value)) {
    let mut seen = false;
    rewrite(from, to, |name, bytes| {
        if !name.ends_with(GRAPH) {
            return (name.to_owned(), bytes);
        }
        seen = true;
        let mut json: Value = serde_json::from_slice(&bytes).unwrap();
        edit(&mut json);
        (name.to_owned(), serde_json::to_vec(&json).unwrap())
    });
    assert!(seen, "{} has no {GRAPH}", from.display());
}

/// The nodes of a graph.
pub fn nodes(graph: &mut Value) -> &mut Vec<Value> {
    graph["graph_module"]["graph"]["nodes"].as_array_mut().unwrap()
}

/// Whether a node calls the given op.
pub fn calls(node: &Value, op: &str) -> bool {
    node["target"].as_str().is_some_and(|t| t.contains(op))
}

/// Name of the only result of a node.
pub fn result(node: &Value) -> String {
    node["outputs"][0]["as_tensor"]["name"].as_str().unwrap().to_owned()
}

/// Name of the first tensor operand of a node.
pub fn operand(node: &Value) -> String {
    node["inputs"][0]["arg"]["as_tensor"]["name"].as_str().unwrap().to_owned()
}

/// Makes every user of the tensor `old` use `new`, in node operands and program outputs.
pub fn redirect(graph: &mut Value, old: &str, new: &str) -> usize {
    fn walk(v: &mut Value, old: &str, new: &str) -> usize {
        match v {
            Value::Object(m) => m
                .iter_mut()
                .map(|(k, v)| match v {
                    Value::String(s) if k == "name" && s == old => {
                        *s = new.to_owned();
                        1
                    }
                    _ => walk(v, old, new),
                })
                .sum(),
            Value::Array(a) => a.iter_mut().map(|v| walk(v, old, new)).sum(),
            _ => 0,
        }
    }
    let mut n: usize = nodes(graph).iter_mut().map(|node| walk(&mut node["inputs"], old, new)).sum();
    n += walk(&mut graph["graph_module"]["graph"]["outputs"], old, new);
    n += walk(&mut graph["graph_module"]["signature"]["output_specs"], old, new);
    n
}
