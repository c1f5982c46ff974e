//! `shardweld rules`: every rule with its equation, classes and proof record.

use clap::Args;
use serde_json::{Value, json};
use shardweld_rewrite::prover::prove_rule;
use shardweld_rewrite::rules::record::{ProofRecord, Standing, standing};
use shardweld_rewrite::rules::{Rule, families};

use crate::failure::{Problem, Result};
use crate::output::Answer;
use crate::progress::Progress;

/// Arguments of `rules`.
#[derive(Args, Debug)]
pub struct Rules {
    /// Prove every rule again and say no (exit 1) if a record is not what the prover finds
    #[arg(long)]
    prove: bool,
}

/// Lists the rules.
pub fn rules(args: &Rules, progress: Progress) -> Result<Answer> {
    let mut text = Vec::new();
    let mut list = Vec::new();
    let mut wrong = Vec::new();
    for (family, rules) in families() {
        text.push(format!("{family}:"));
        for rule in rules {
            let mut state = match standing(rule) {
                Standing::Proved(record) => Ok(record),
                Standing::Stale => Err("its record is of another definition; it is not used".to_owned()),
                Standing::Unproved => Err("it has no record; it is not used".to_owned()),
            };
            if args.prove {
                let found = progress.stage(rule.name, |_| prove(rule));
                state = match (state, found) {
                    (Ok(record), Ok(found)) if record == found => Ok(record),
                    (Ok(_), Ok(_)) => Err("the prover finds something else than its record says".to_owned()),
                    (Ok(_), Err(e)) => Err(e),
                    (Err(e), _) => Err(e),
                };
            }
            text.push(format!("  {}\n    {}\n    {}", rule.name, rule.equation(), classes(&state)));
            list.push(entry(family, rule, &state));
            if let Err(why) = state {
                wrong.push(format!("{}: {why}", rule.name));
            }
        }
    }
    text.push(format!("{} rules, {} without a current record", list.len(), wrong.len()));
    let no = (!wrong.is_empty()).then(|| {
        Problem::new(format!("{} rules are not proved as they stand", wrong.len())).found(wrong.join("\n"))
    });
    Ok(Answer { text: text.join("\n"), json: json!({"rules": list}), no })
}

fn prove(rule: &Rule) -> std::result::Result<ProofRecord, String> {
    let compiled = rule.compile().map_err(|e| e.to_string())?;
    prove_rule(&compiled).map_err(|e| e.to_string())
}

fn classes(state: &std::result::Result<ProofRecord, String>) -> String {
    match state {
        Ok(r) => {
            let branches: Vec<String> = r.branches.iter().map(|(b, c)| format!("{b} {}", c.class)).collect();
            format!("{} ({} instances on {})", branches.join(", "), r.instances_found, r.meshes.join(" "))
        }
        Err(why) => why.clone(),
    }
}

fn entry(family: &str, rule: &Rule, state: &std::result::Result<ProofRecord, String>) -> Value {
    match state {
        Ok(record) => {
            json!({"family": family, "name": rule.name, "equation": rule.equation(), "record": record})
        }
        Err(why) => {
            json!({"family": family, "name": rule.name, "equation": rule.equation(), "unproved": why})
        }
    }
}
