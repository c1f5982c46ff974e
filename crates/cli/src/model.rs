//! Loading a program: from torch.export files, text IR or IR JSON, whichever MODEL names; verified.

use std::path::Path;

use clap::Args;
use shardweld_ir::{Graph, VerifyError, WeightStore};
use shardweld_torch::{Groups, ImportError, Source};

use crate::failure::{Failure, Problem, Result, io};
use crate::pattern::Pattern;
use crate::progress::Progress;

/// How much of a JSON file is looked at to tell IR JSON from a torch.export graph; the format member stands first.
const SNIFF_BYTES: u64 = 4096;

/// Which program.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// The program: one file for all ranks, or a pattern with {rank} or a mesh coordinate such as {tp}
    #[arg(value_name = "MODEL")]
    model: String,
    /// Side file that says which ranks each group name means, and the public names of inputs and outputs; may be a pattern too
    #[arg(long, value_name = "FILE")]
    groups: Option<String>,
    /// Safetensors file with the weights by parameter name, for a graph that comes without; may be a pattern too
    #[arg(long, value_name = "FILE")]
    weights_file: Option<String>,
}

/// A program and the open files of its weights.
#[derive(Debug)]
pub struct Model {
    /// The program, verified.
    pub graph: Graph,
    /// Its weights.
    pub weights: WeightStore,
}

/// Reads an IR file.
type Reader = fn(&Path) -> Result<Graph>;

impl ModelArgs {
    /// The MODEL argument.
    pub fn name(&self) -> &str {
        &self.model
    }

    /// Loads and verifies the program.
    pub fn load(&self, progress: Progress) -> Result<Model> {
        let weights = WeightStore::new();
        let here = std::env::current_dir().map_err(|e| io(Path::new("."), "read", &e))?;
        let mut graph = progress.stage("import", |_| match self.ir_file()? {
            Some(read) => {
                let file = here.join(&self.model);
                let mut graph = read(Path::new(&self.model))?;
                graph.resolve_weight_files(file.parent().unwrap_or(&here));
                Ok(graph)
            }
            None => self.import(&weights),
        })?;
        // Full names, so that a program written elsewhere still finds its weights.
        graph.resolve_weight_files(&here);
        progress.stage("verify", |_| graph.verify()).map_err(|e| unverified(&self.model, &e))?;
        Ok(Model { graph, weights })
    }

    /// The reader of IR files, if MODEL is one.
    fn ir_file(&self) -> Result<Option<Reader>> {
        let reader: Reader = if self.model.ends_with(".swir") {
            read_text
        } else if self.model.ends_with(".json") && is_ir_json(&Pattern::new(&self.model)?.first())? {
            read_json
        } else {
            return Ok(None);
        };
        if let Some(option) =
            [self.groups.as_ref().map(|_| "--groups"), self.weights_file.as_ref().map(|_| "--weights-file")]
                .into_iter()
                .flatten()
                .next()
        {
            return Err(Problem::new(format!("{option} is for torch.export programs"))
                .file(&self.model)
                .help("an IR file holds its mesh, groups and weight references itself")
                .bad());
        }
        Ok(Some(reader))
    }

    fn import(&self, weights: &WeightStore) -> Result<Graph> {
        let groups = self.groups.as_deref().map(read_groups).transpose()?;
        let pattern = Pattern::new(&self.model)?;
        let sources = match &groups {
            None if pattern.is_single() => vec![Source::for_all(&self.model)],
            None => {
                return Err(Problem::new(format!("the pattern {} needs a mesh", self.model))
                    .help("give the side file with --groups; it says which ranks there are")
                    .bad());
            }
            Some(groups) => {
                let mesh = groups.mesh();
                let of_rank = |files: &[crate::pattern::RankFile], rank: u32| {
                    files.iter().find(|f| f.ranks.contains(&rank)).map(|f| f.path.clone())
                };
                let stores =
                    self.weights_file.as_deref().map(|w| Pattern::new(w)?.expand(mesh)).transpose()?;
                let mut sources: Vec<Source> = Vec::new();
                for file in pattern.expand(mesh)? {
                    for rank in file.ranks {
                        let own = stores.as_deref().and_then(|s| of_rank(s, rank));
                        match sources.iter_mut().find(|s| s.model == file.path && s.weights == own) {
                            Some(s) => s.ranks.push(rank),
                            None => sources.push(Source {
                                model: file.path.clone(),
                                weights: own,
                                ranks: vec![rank],
                            }),
                        }
                    }
                }
                sources
            }
        };
        let sources = match (&groups, &self.weights_file) {
            (None, Some(file)) => {
                sources.into_iter().map(|s| Source { weights: Some(file.into()), ..s }).collect()
            }
            _ => sources,
        };
        shardweld_torch::load(&sources, groups.as_ref(), weights)
            .map_err(|e| import_failed(e, groups.is_some()))
    }
}

/// Reads the side files that a pattern names. The first says which others there are.
fn read_groups(text: &str) -> Result<Groups> {
    let failed = |e| import_failed(e, true);
    let pattern = Pattern::new(text)?;
    let first = Groups::read(&[pattern.first()]).map_err(failed)?;
    if pattern.is_single() {
        return Ok(first);
    }
    let paths: Vec<_> = pattern.expand(first.mesh())?.into_iter().map(|f| f.path).collect();
    Groups::read(&paths).map_err(failed)
}

fn import_failed(e: ImportError, groups_given: bool) -> Failure {
    let message = e.to_string();
    let problem = Problem::new(message);
    match e {
        ImportError::Groups { file, .. } if groups_given => problem
            .file(file)
            .help("docs/groups-file.md describes the side file that says which ranks a group name means"),
        ImportError::Groups { file, .. } => problem
            .file(file)
            .help("a torch.export file does not say which ranks a group name means: give the side file with --groups"),
        _ => problem,
    }
    .bad()
}

fn unverified(model: &str, e: &VerifyError) -> Failure {
    let mut problem = Problem::new(format!("{model} is not a well-formed program: {e}")).file(model);
    if let Some(first) = e.problems.first() {
        problem = problem.node(&first.place).found(&first.found).expected(&first.expected);
    }
    problem.bad()
}

/// Loads and verifies a program in text IR or IR JSON.
pub fn load_ir(file: &Path) -> Result<Graph> {
    let graph =
        if file.extension().is_some_and(|e| e == "json") { read_json(file)? } else { read_text(file)? };
    graph.verify().map_err(|e| unverified(&file.display().to_string(), &e))?;
    Ok(graph)
}

fn read_text(file: &Path) -> Result<Graph> {
    let text = std::fs::read_to_string(file).map_err(|e| io(file, "read", &e))?;
    Graph::from_text(&file.display().to_string(), &text)
        .map_err(|e| Problem::new(e.to_string()).at(file, &text, e.line, e.column, e.kind.to_string()).bad())
}

fn read_json(file: &Path) -> Result<Graph> {
    let bytes = std::fs::read(file).map_err(|e| io(file, "read", &e))?;
    Graph::from_json(&file.display().to_string(), &bytes)
        .map_err(|e| Problem::new(e.to_string()).file(file).bad())
}

/// Whether a JSON file is IR; anything else is taken for the graph of a torch.export archive.
fn is_ir_json(file: &Path) -> Result<bool> {
    use std::io::Read;
    let mut head = Vec::new();
    std::fs::File::open(file)
        .and_then(|f| f.take(SNIFF_BYTES).read_to_end(&mut head))
        .map_err(|e| io(file, "read", &e))?;
    let marker = shardweld_ir::json::JSON_FORMAT.as_bytes();
    Ok(head.windows(marker.len()).any(|w| w == marker))
}
