//! File patterns with `{rank}` or mesh coordinates such as `{tp}`: which file each rank reads.

use std::path::PathBuf;

use shardweld_ir::Mesh;

use crate::failure::{Problem, Result};

/// Placeholder for the global rank.
const RANK: &str = "rank";

/// A file name, possibly with placeholders.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Placeholder(String),
}

/// A file and the ranks that read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFile {
    /// The file.
    pub path: PathBuf,
    /// Global ranks, ascending.
    pub ranks: Vec<u32>,
}

impl Pattern {
    /// Reads a pattern.
    pub fn new(text: &str) -> Result<Pattern> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| Problem::new(format!("the pattern {text} has a `{{` without `}}`")).bad())?;
            pieces.extend([Piece::Text(before.to_owned()), Piece::Placeholder(name.to_owned())]);
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Pattern { text: text.to_owned(), pieces })
    }

    /// Whether it names one file for all ranks.
    pub fn is_single(&self) -> bool {
        self.placeholders().next().is_none()
    }

    /// The file of rank 0.
    pub fn first(&self) -> PathBuf {
        self.fill(|_| Some(0)).unwrap_or_default()
    }

    fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|p| match p {
            Piece::Placeholder(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    fn fill(&self, value: impl Fn(&str) -> Option<u32>) -> Option<PathBuf> {
        let mut out = String::new();
        for p in &self.pieces {
            match p {
                Piece::Text(t) => out.push_str(t),
                Piece::Placeholder(name) => out.push_str(&value(name)?.to_string()),
            }
        }
        Some(out.into())
    }

    /// The files of all ranks of a mesh, in order of their first rank. A file that is not there is an error.
    pub fn expand(&self, mesh: &Mesh) -> Result<Vec<RankFile>> {
        for name in self.placeholders() {
            if name != RANK && mesh.axis(name).is_none() {
                return Err(Problem::new(format!("the pattern {} names `{{{name}}}`", self.text))
                    .found(format!("a mesh {mesh}"))
                    .expected("{rank} or an axis of the mesh")
                    .bad());
            }
        }
        let mut files: Vec<RankFile> = Vec::new();
        for rank in 0..mesh.world_size() {
            let value = |name: &str| {
                if name == RANK { Some(rank) } else { mesh.axis(name).map(|a| mesh.coordinate(rank, a)) }
            };
            let path = self.fill(value).unwrap_or_default();
            match files.iter_mut().find(|f| f.path == path) {
                Some(f) => f.ranks.push(rank),
                None => files.push(RankFile { path, ranks: vec![rank] }),
            }
        }
        let missing: Vec<String> =
            files.iter().filter(|f| !f.path.is_file()).map(|f| f.path.display().to_string()).collect();
        if missing.is_empty() {
            return Ok(files);
        }
        Err(Problem::new(format!(
            "{} has no file for {} of {} places",
            self.text,
            missing.len(),
            files.len()
        ))
        .found(format!("no {}", missing.join(", no ")))
        .expected(format!("a file for each of them in the mesh {mesh}"))
        .bad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        Mesh::new([("cp", 2), ("tp", 2)]).unwrap()
    }

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for n in names {
            std::fs::write(dir.path().join(n), "").unwrap();
        }
        dir
    }

    fn pattern(dir: &tempfile::TempDir, name: &str) -> Pattern {
        Pattern::new(dir.path().join(name).to_str().unwrap()).unwrap()
    }

    #[test]
    fn coordinates_group_the_ranks() {
        let dir = folder(&["m.0", "m.1"]);
        let files = pattern(&dir, "m.{tp}").expand(&mesh()).unwrap();
        assert_eq!(files.iter().map(|f| f.ranks.clone()).collect::<Vec<_>>(), [[0, 2], [1, 3]]);
        assert_eq!(pattern(&dir, "m.0").expand(&mesh()).unwrap()[0].ranks, [0, 1, 2, 3]);
        assert!(pattern(&dir, "m.{pp}").expand(&mesh()).is_err());
        assert!(Pattern::new("m.{tp").is_err());
    }

    #[test]
    fn a_hole_is_an_error() {
        let dir = folder(&["m.0", "m.1", "m.3"]);
        assert!(pattern(&dir, "m.{rank}").expand(&mesh()).is_err());
        std::fs::write(dir.path().join("m.2"), "").unwrap();
        assert_eq!(pattern(&dir, "m.{rank}").expand(&mesh()).unwrap().len(), 4);
    }
}
