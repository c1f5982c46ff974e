//! Files to one graph: which ranks run which file, parsing in parallel, unification, public names.

use std::{
    path::{Path, PathBuf},
    sync::Mutex,
};

use rayon::prelude::*;
use rustc_hash::FxHashSet;
use shardweld_ir::{Graph, Mesh, WeightStore};

use crate::{
    archive::ModelFile,
    error::ImportError,
    groups::{Groups, PublicTensor},
    program::{self, Program},
    side_file::dtype_named,
    ssa::{Ssa, Val},
    unify::unify,
    weights::Payloads,
};

/// A model file and who runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// A `.pt2` archive, or the graph JSON alone, plain or gzip.
    pub model: PathBuf,
    /// Weights by parameter name (safetensors); `None` takes them from the archive, or leaves them absent for a bare graph.
    pub weights: Option<PathBuf>,
    /// Global ranks that run it, one of which exported it; empty for all ranks.
    pub ranks: Vec<u32>,
}

impl Source {
    /// One file for all ranks.
    pub fn for_all(model: impl Into<PathBuf>) -> Source {
        Source { model: model.into(), weights: None, ranks: Vec::new() }
    }

    /// A file for the given ranks.
    pub fn for_ranks(model: impl Into<PathBuf>, ranks: impl IntoIterator<Item = u32>) -> Source {
        Source { model: model.into(), weights: None, ranks: ranks.into_iter().collect() }
    }
}

/// Imports one SPMD program from the files of its ranks.
///
/// `groups` gives the mesh; without it the program runs on one rank and has no collectives. Inputs and outputs have the side file's names
/// where it has them, else those of the graph. Weights are referred to, not read, except that `store` hashes them if there are several files.
///
/// # Errors
/// If a file is damaged or hostile, a node cannot be imported (all such nodes are listed), a group is not defined, a weight is missing or
/// too short, the files do not cover each rank once, or their graphs are not one program.
pub fn load(sources: &[Source], groups: Option<&Groups>, store: &WeightStore) -> Result<Graph, ImportError> {
    let mesh = match groups {
        Some(g) => g.mesh().clone(),
        None => Mesh::new(Vec::<(String, u32)>::new()).map_err(|e| ImportError::Ranks(e.to_string()))?,
    };
    let ranks = assign(sources, &mesh)?;
    let loaded: Vec<Result<Program, ImportError>> = sources
        .par_iter()
        .zip(&ranks)
        .map(|(s, ranks)| {
            let mut model = ModelFile::open(&s.model)?;
            let payloads = match &s.weights {
                Some(file) => Payloads::of_safetensors(file)?,
                None => Payloads::of_archive(&mut model)?,
            };
            let parsed = program::parse(&s.model, &model.json)?;
            let converted = program::convert(&s.model, &parsed, &payloads, &mesh, groups, ranks)?;
            Ok(Program { archive: model.archive.map(Mutex::new), ..converted })
        })
        .collect();
    // In the order of the files, so that the same error is reported every time.
    let programs = loaded.into_iter().collect::<Result<Vec<_>, _>>()?;
    let first = programs.first().ok_or_else(|| ImportError::Ranks("no program was given".into()))?;
    let side = groups.map(Groups::file);
    let given = groups.and_then(|g| g.inputs.as_deref());
    let inputs = public_names(side, "inputs", given, &first.inputs, &first.ssa, &[])?;
    let given = groups.and_then(|g| g.outputs.as_deref());
    let outputs = public_names(side, "outputs", given, &first.outputs, &first.ssa, &inputs)?;
    let name = stem(&first.file);
    let mut graph = unify(&name, &mesh, &programs, &inputs, &outputs, store)?;
    graph.remove_dead();
    Ok(graph)
}

/// Ranks of each source; together each rank once.
fn assign(sources: &[Source], mesh: &Mesh) -> Result<Vec<Vec<u32>>, ImportError> {
    let world = mesh.world_size();
    let all: Vec<Vec<u32>> = sources
        .iter()
        .map(|s| if s.ranks.is_empty() { (0..world).collect() } else { s.ranks.clone() })
        .collect();
    let mut owner: Vec<Option<&Path>> = vec![None; world as usize];
    for (s, ranks) in sources.iter().zip(&all) {
        for &r in ranks {
            match owner.get_mut(r as usize) {
                None => {
                    return Err(ImportError::Ranks(format!(
                        "{} is given for rank {r}, but the mesh {mesh} has {world} ranks",
                        s.model.display()
                    )));
                }
                Some(Some(other)) => {
                    return Err(ImportError::Ranks(format!(
                        "rank {r} has two files, {} and {}",
                        other.display(),
                        s.model.display()
                    )));
                }
                Some(slot) => *slot = Some(&s.model),
            }
        }
    }
    let missing: Vec<String> =
        owner.iter().enumerate().filter(|(_, o)| o.is_none()).map(|(r, _)| r.to_string()).collect();
    if missing.is_empty() {
        Ok(all)
    } else {
        Err(ImportError::Ranks(format!(
            "no file is given for rank {} of the mesh {mesh}",
            missing.join(", ")
        )))
    }
}

/// Public names of inputs or outputs: the side file's, which must fit, or those of the graph made unique and unlike `others`, since
/// an engine's inputs and outputs share one set of names.
fn public_names(
    side: Option<&Path>,
    what: &str,
    given: Option<&[PublicTensor]>,
    values: &[(String, Val)],
    ssa: &Ssa,
    others: &[String],
) -> Result<Vec<String>, ImportError> {
    if let (Some(side), Some(given)) = (side, given) {
        let bad = |reason: String| Err(ImportError::Groups { file: side.into(), reason });
        if given.len() != values.len() {
            return bad(format!("{} {what} are named, the graph has {}", given.len(), values.len()));
        }
        for (g, (name, v)) in given.iter().zip(values) {
            // Names become keys of tensor files and of engines, where `/` separates a key's parts.
            if g.name.is_empty() || g.name.contains(|c: char| c == '/' || c.is_control()) {
                return bad(format!(
                    "{:?} of the {what} is no name; expected text without `/` and control characters",
                    g.name
                ));
            }
            let found = ssa.ty(*v).shape.as_static();
            if g.shape.is_some() && g.shape != found {
                return bad(format!(
                    "`{}` of the {what} has shape {:?}, `{name}` of the graph has {}",
                    g.name,
                    g.shape.as_deref().unwrap_or_default(),
                    ssa.ty(*v).shape
                ));
            }
            let element = ssa.ty(*v).dtype;
            match g.dtype.as_deref().map(|d| (d, dtype_named(d))) {
                Some((d, None)) => {
                    return bad(format!("`{}` of the {what} has the unknown element type `{d}`", g.name));
                }
                Some((d, Some(t))) if t != element => {
                    return bad(format!(
                        "`{}` of the {what} has element type {d}, `{name}` of the graph has {element}",
                        g.name
                    ));
                }
                _ => {}
            }
        }
        return Ok(given.iter().map(|g| g.name.clone()).collect());
    }
    let mut taken: FxHashSet<String> = others.iter().cloned().collect();
    Ok(values
        .iter()
        .map(|(n, _)| {
            let mut name = n.clone();
            let mut i = 1;
            while !taken.insert(name.clone()) {
                name = format!("{n}_{i}");
                i += 1;
            }
            name
        })
        .collect())
}

/// File name up to its first dot.
fn stem(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    name.split('.').next().filter(|s| !s.is_empty()).unwrap_or("program").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_is_an_output_has_two_names() {
        let value = |name: &str| (name.to_owned(), Val::MIN);
        let names = |others: &[String]| {
            public_names(None, "outputs", None, &[value("x"), value("x")], &Ssa::default(), others).unwrap()
        };
        assert_eq!(names(&["x".into()]), ["x_1", "x_2"]);
        assert_eq!(names(&["y".into()]), ["x", "x_1"]);
    }
}
