//! Proves every rule and writes the proof records: `cargo run --release -p shardweld-rewrite --example prove_rules`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use shardweld_rewrite::prover::prove_rule;
use shardweld_rewrite::rules::families;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proofs");
    let mut failed = 0;
    for (family, rules) in families() {
        let mut records = Vec::new();
        for rule in rules {
            let start = Instant::now();
            let proof = match rule.compile() {
                Ok(compiled) => prove_rule(&compiled).map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            };
            match proof {
                Ok(record) => {
                    let classes: Vec<String> = record
                        .branches
                        .iter()
                        .map(|(b, r)| format!("{b}: {}/{} ({})", r.class, r.fixed_order, r.instances))
                        .collect();
                    println!("{} {:?}\n    {}", rule.name, start.elapsed(), classes.join("; "));
                    records.push(record);
                }
                Err(e) => {
                    println!("FAILED {e}");
                    failed += 1;
                }
            }
        }
        let text = match serde_json::to_string_pretty(&records) {
            Ok(t) => t,
            Err(e) => {
                eprintln!("{family}: {e}");
                return ExitCode::FAILURE;
            }
        };
        if let Err(e) = std::fs::write(folder.join(format!("{family}.json")), text + "\n") {
            eprintln!("proofs/{family}.json: {e}");
            return ExitCode::FAILURE;
        }
    }
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
