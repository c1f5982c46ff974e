//! File tests: `tests/filetests/rewrite/*.swir` hold options, a program, and what rewriting makes of it.
//!
//! `SHARDWELD_REGENERATE=1 cargo test -p shardweld-rewrite --test filetests` writes the results anew. Every result is also
//! run on the reference interpreter against its source.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use shardweld_ir::Graph;
use shardweld_rewrite::{AllGather, Boundary, Class, Exactness, Options, TargetProfile, Topology, optimise};

/// Separates the program from what becomes of it.
const RESULT: &str = "// result\n";
const ERROR: &str = "// error\n";

fn options(line: &str) -> Options {
    let mut o = Options::default();
    for word in line.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("`{word}` is no key=value"));
        match key {
            "profile" => o.profile = Some(TargetProfile::named(value).unwrap()),
            "exactness" => o.exactness = Exactness::from_name(value).unwrap(),
            "boundary" => o.boundary = Boundary::from_name(value).unwrap(),
            "all-gather" => o.all_gather = AllGather::from_name(value).unwrap(),
            "topology" => o.topology = Topology::preset(value).unwrap(),
            "replicated" => {
                let (input, axis) = value.split_once(':').unwrap();
                o.replicated_inputs.entry(input.into()).or_default().push(axis.into());
            }
            _ => panic!("unknown option `{key}`"),
        }
    }
    o
}

fn run(path: &Path) -> Result<(), String> {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (first, rest) = text.split_once('\n').ok_or("empty")?;
    let options = options(first.strip_prefix("// options:").ok_or("the first line is not `// options: ..`")?);
    let cut = rest.find(RESULT).or_else(|| rest.find(ERROR)).unwrap_or(rest.len());
    let (program, expected) = rest.split_at(cut);
    let source = Graph::from_text(&name, program).map_err(|e| e.to_string())?;
    let found = match optimise(&source, &options) {
        Ok(r) => {
            // Inputs declared replicated would have to be made so; their laws are proved, not run.
            if options.replicated_inputs.is_empty() && r.report.class != Class::Accuracy {
                let inputs = common::inputs(&source, 7);
                let a = common::outputs(&source, &inputs).ok_or("the source does not run")?;
                let b = common::outputs(&r.graph, &inputs).ok_or("the result does not run")?;
                if let Some(d) = common::difference(&a, &b, r.report.class) {
                    return Err(format!("the result computes something else: {d}"));
                }
            }
            format!("{RESULT}{}", r.graph.to_text().map_err(|e| e.to_string())?)
        }
        Err(e) => format!("{ERROR}{e}\n"),
    };
    if found == expected {
        return Ok(());
    }
    if std::env::var_os("SHARDWELD_REGENERATE").is_some() {
        fs::write(path, format!("{first}\n{program}{found}")).map_err(|e| e.to_string())?;
        return Ok(());
    }
    Err(format!("expected\n{expected}\nfound\n{found}"))
}

#[test]
fn results_are_as_committed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/rewrite");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "swir"))
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{} file tests in {}", files.len(), folder.display());
    let failed: Vec<String> =
        files.iter().filter_map(|p| run(p).err().map(|e| format!("{}: {e}", p.display()))).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
