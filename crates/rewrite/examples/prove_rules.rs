//! Proves every rule and writes the proof records: `cargo run --release -p shardweld-rewrite --example prove_rules`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use shardweld_rewrite::prover::prove_rules;
use shardweld_rewrite::rules::families;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proofs");
    let start = Instant::now();
    let mut failed = 0;
    for (family, rules) in families() {
        let mut records = Vec::new();
        for proof in prove_rules(&rules.iter().collect::<Vec<_>>()) {
            match proof {
                Ok(record) => {
                    println!("{}: {}", record.rule, record.equation);
                    for (branch, r) in &record.branches {
                        println!(
                            "    {branch}: {} (fixed order: {}), {} instances",
                            r.class, r.fixed_order, r.instances
                        );
                    }
                    records.push(record);
                }
                Err(e) => {
                    println!("FAILED {e}");
                    failed += 1;
                }
            }
        }
        let written = serde_json::to_string_pretty(&records).map_err(|e| e.to_string()).and_then(|t| {
            std::fs::write(folder.join(format!("{family}.json")), t + "\n").map_err(|e| e.to_string())
        });
        if let Err(e) = written {
            eprintln!("proofs/{family}.json: {e}");
            return ExitCode::FAILURE;
        }
    }
    println!("{:.1?}, {failed} failed", start.elapsed());
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
