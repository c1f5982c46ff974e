//! How a command ends when it does not end well: the answer is no (exit 1), or the input or usage is bad (exit 2).

use std::fmt;
use std::path::{Path, PathBuf};

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};
use thiserror::Error;

/// Why a command did not end with exit code 0.
#[derive(Debug)]
pub enum Failure {
    /// The question was understood and the answer is no.
    No(Box<Problem>),
    /// Bad input, bad usage, or the machine cannot do it.
    Bad(Box<Problem>),
}

/// Result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

/// A diagnostic: what was wrong, where, and what helps.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct Problem {
    message: String,
    file: Option<PathBuf>,
    node: Option<String>,
    found: Option<String>,
    expected: Option<String>,
    help: Option<String>,
    place: Option<Place>,
}

/// A place in a text file.
#[derive(Debug)]
struct Place {
    source: NamedSource<String>,
    offset: usize,
    len: usize,
    label: String,
}

impl Problem {
    /// A problem with a message only.
    pub fn new(message: impl Into<String>) -> Problem {
        Problem {
            message: message.into(),
            file: None,
            node: None,
            found: None,
            expected: None,
            help: None,
            place: None,
        }
    }

    /// The file concerned.
    pub fn file(mut self, file: impl AsRef<Path>) -> Problem {
        self.file = Some(file.as_ref().to_path_buf());
        self
    }

    /// The node concerned.
    pub fn node(mut self, node: impl Into<String>) -> Problem {
        self.node = Some(node.into());
        self
    }

    /// What was found.
    pub fn found(mut self, found: impl Into<String>) -> Problem {
        self.found = Some(found.into());
        self
    }

    /// What was expected.
    pub fn expected(mut self, expected: impl Into<String>) -> Problem {
        self.expected = Some(expected.into());
        self
    }

    /// What the user can do.
    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// The line and column (from 1) in a text file where it is wrong.
    pub fn at(
        mut self,
        file: &Path,
        text: &str,
        line: usize,
        column: usize,
        label: impl Into<String>,
    ) -> Problem {
        let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        let rest = text.get(start..).unwrap_or("").lines().next().unwrap_or("");
        let skip = rest.char_indices().nth(column.saturating_sub(1)).map_or(rest.len(), |(i, _)| i);
        let word = rest.get(skip..).unwrap_or("").find(char::is_whitespace).unwrap_or(rest.len() - skip);
        self.place = Some(Place {
            source: NamedSource::new(file.display().to_string(), text.to_owned()),
            offset: start + skip,
            len: word.max(usize::from(skip < rest.len())),
            label: label.into(),
        });
        self
    }

    /// As the reason for exit code 2.
    pub fn bad(self) -> Failure {
        Failure::Bad(Box::new(self))
    }

    /// As the reason for exit code 1.
    pub fn no(self) -> Failure {
        Failure::No(Box::new(self))
    }

    /// For `--json`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "message": self.message,
            "file": self.file,
            "node": self.node,
            "found": self.found,
            "expected": self.expected,
            "help": self.help,
        })
    }
}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let facts = [
            self.file.as_ref().map(|f| format!("file: {}", f.display())),
            self.node.as_ref().map(|n| format!("node: {n}")),
            self.found.as_ref().map(|f| format!("found: {f}")),
            self.expected.as_ref().map(|e| format!("expected: {e}")),
            self.help.clone(),
        ];
        let lines: Vec<String> = facts.into_iter().flatten().collect();
        if lines.is_empty() { None } else { Some(Box::new(lines.join("\n"))) }
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|p| &p.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let p = self.place.as_ref()?;
        Some(Box::new(std::iter::once(LabeledSpan::new(Some(p.label.clone()), p.offset, p.len))))
    }
}

/// An error of reading or writing a file.
pub fn io(file: &Path, doing: &str, error: &std::io::Error) -> Failure {
    Problem::new(format!("cannot {doing} {}: {error}", file.display())).file(file).bad()
}
