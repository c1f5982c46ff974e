//! What a command prints on standard output: text for people, or one JSON object with `--json`.

use std::io::{ErrorKind, Write};

use serde_json::Value;

use crate::failure::{Problem, Result};

/// The result of a command in both forms.
#[derive(Debug)]
pub struct Answer {
    /// For people; lines.
    pub text: String,
    /// For tools; an object.
    pub json: Value,
    /// Why the answer is no, if it is.
    pub no: Option<Problem>,
}

/// Prints to standard output. A reader that went away is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Problem::new(format!("cannot write to standard output: {e}")).bad())
        }
        _ => Ok(()),
    }
}

/// Lines up columns; the last column is not padded. Columns that hold numbers only are right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|s| s.chars().count())
            .chain([header[c].len()])
            .max()
            .unwrap_or(0)
    };
    let numeric = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .all(|s| s.starts_with(|x: char| x.is_ascii_digit() || x == '-' || x == '+'))
    };
    let columns: Vec<(usize, bool)> =
        (0..header.len()).map(|c| (width(c), numeric(c) && !rows.is_empty())).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&columns)
            .map(|(s, &(w, right))| if right { format!("{s:>w$}") } else { format!("{s:<w$}") })
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    std::iter::once(line(header.to_vec()))
        .chain(rows.iter().map(|r| line(r.iter().map(String::as_str).collect())))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A byte count for people.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
