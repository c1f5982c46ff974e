//! What `build` reports: the JSON that stays with the engines, the same on every run, and the table on the terminal.

use serde_json::{Value, json};
use shardweld_ir::Graph;
use shardweld_trt::build::EngineFile;
use shardweld_trt::live::Library;
use shardweld_trt::lower::RankTrace;
use shardweld_trt::placement::Placement;

use crate::failure::{Problem, Result};
use crate::output::{bytes, table};
use crate::rewriting::Rewritten;
use crate::summary;

/// Name of the report in the output folder.
pub use crate::staging::REPORT;

/// The `format` and `version` members of the report.
const REPORT_FORMAT: &str = "shardweld-report";
const REPORT_VERSION: u32 = 1;
/// Collectives listed on the terminal; the report has all.
const TABLE_ROWS: usize = 40;
/// Ranks listed on the terminal in one cell.
const TABLE_RANKS: usize = 8;

/// Everything that a build has to tell.
#[derive(Debug)]
pub struct Built<'a> {
    /// The program as imported.
    pub source: &'a Graph,
    /// As it was built.
    pub rewritten: &'a Rewritten,
    /// Distinct networks.
    pub traces: &'a [RankTrace],
    /// Engines, one per network; none if only networks were asked for.
    pub engines: &'a [EngineFile],
    /// The library that built them.
    pub library: Option<&'a Library>,
    /// What they were built for.
    pub compute_capability: Option<u32>,
}

/// The report.
pub fn json(b: &Built<'_>) -> Result<Value> {
    let target = b.library.map(|l| {
        json!({"library": l.flavour().name(), "version": l.version().to_string(),
            "compute_capability": b.compute_capability})
    });
    let networks: Vec<Value> = b
        .traces
        .iter()
        .map(|t| {
            json!({"ranks": t.ranks, "layers": t.trace.layer_count(), "world_size": t.trace.world_size(),
                "weight_bytes": t.trace.weight_bytes(), "structure": t.trace.structure_hash().to_hex().to_string()})
        })
        .collect();
    let engines = b.engines.iter().map(engine).collect::<Result<Vec<_>>>()?;
    let eliminated: Vec<Value> = b
        .rewritten
        .eliminated()
        .iter()
        .map(|(source, rules)| json!({"source": source, "rules": rules}))
        .collect();
    Ok(json!({"format": REPORT_FORMAT, "version": REPORT_VERSION, "target": target,
        "source": summary::summary(b.source).1, "rewriting": b.rewritten.to_json()?, "eliminated": eliminated,
        "networks": networks, "engines": engines}))
}

fn engine(e: &EngineFile) -> Result<Value> {
    let (fused, standalone) = e.placement.counts();
    Ok(json!({"file": e.path.file_name().map(|n| n.to_string_lossy()), "ranks": e.ranks, "bytes": e.bytes,
        "network_layers": e.network_layers, "fused": fused, "standalone": standalone, "missing": 0,
        "placement": to_value(&e.placement)?}))
}

/// The certificate of the rewriting.
pub fn certificate(rewritten: &Rewritten) -> Result<Value> {
    to_value(&rewritten.certificate)
}

fn to_value(v: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(v)
        .map_err(|e| Problem::new(format!("a report cannot be written as JSON: {e}")).bad())
}

/// The table and the totals.
pub fn text(b: &Built<'_>) -> String {
    let mut lines = Vec::new();
    if let Some(e) = b.engines.first().filter(|e| !e.placement.collectives.is_empty()) {
        let all = &e.placement.collectives;
        let rows: Vec<Vec<String>> = all
            .iter()
            .take(TABLE_ROWS)
            .map(|c| {
                vec![
                    c.sources.join("+"),
                    c.kind.name().into(),
                    c.dtype.to_string(),
                    ranks(&c.ranks),
                    c.operand_bytes.to_string(),
                    where_it_is(c.placement).into(),
                    c.engine_layer.clone(),
                ]
            })
            .collect();
        lines.push(table(&["source", "kind", "dtype", "group", "bytes", "where", "engine layer"], &rows));
        if all.len() > TABLE_ROWS {
            lines.push(format!("... and {} more, all in {REPORT}", all.len() - TABLE_ROWS));
        }
    }
    for (source, rules) in b.rewritten.eliminated() {
        lines.push(format!("{source}: needs no communication any more, by {}", rules.join(", ")));
    }
    for e in b.engines {
        let (fused, standalone) = e.placement.counts();
        lines.push(format!(
            "{}: {}, {} network layers, {} engine layers, built in {:.1} s; ranks {}; collectives: {fused} fused, {standalone} \
             standalone, 0 missing",
            e.path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            bytes(e.bytes),
            e.network_layers,
            e.placement.engine_layers,
            e.build_time.as_secs_f64(),
            ranks(&e.ranks),
        ));
    }
    let covered: usize = b.traces.iter().map(|t| t.ranks.len()).sum();
    match b.library {
        Some(l) => lines.push(format!(
            "{} for {} by {} {}",
            plural(b.engines.len(), "engine"),
            plural(covered, "rank"),
            l.flavour(),
            l.version()
        )),
        None => {
            for t in b.traces {
                let n = t.trace.collectives().count();
                lines.push(format!(
                    "ranks {}: {} layers, {n} of them collectives",
                    ranks(&t.ranks),
                    t.trace.layer_count()
                ));
            }
            lines.push(format!(
                "{} for {}, not built",
                plural(b.traces.len(), "network"),
                plural(covered, "rank")
            ));
        }
    }
    lines.join("\n")
}

fn where_it_is(p: Placement) -> &'static str {
    match p {
        Placement::Fused => "fused",
        Placement::Standalone => "standalone",
    }
}

fn ranks(all: &[u32]) -> String {
    let shown: Vec<String> = all.iter().take(TABLE_RANKS).map(u32::to_string).collect();
    let more = if all.len() > TABLE_RANKS { ",.." } else { "" };
    format!("{}{more}", shown.join(","))
}

fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
