//! `shardweld prove LHS RHS`: in which exactness class two programs are equal, or where they are not.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use shardweld_rewrite::replication::AxisSet;
use shardweld_rewrite::{Assumption, Verdict, prove as prove_equal};

use crate::failure::{Problem, Result};
use crate::model::load_ir;
use crate::output::Answer;
use crate::progress::Progress;
use crate::rewriting::replicated;

/// Arguments of `prove`.
#[derive(Args, Debug)]
pub struct Prove {
    /// A program in text IR or IR JSON
    lhs: PathBuf,
    /// The program it is compared with; mesh, inputs and outputs are the same
    rhs: PathBuf,
    /// An input that is equal on all ranks along the given mesh axes; may be given more than once
    #[arg(long, value_name = "INPUT=AXIS,AXIS", value_parser = replicated)]
    replicated: Vec<(String, Vec<String>)>,
}

/// Proves or refutes.
pub fn prove(args: &Prove, progress: Progress) -> Result<Answer> {
    let (left, right) = (load_ir(&args.lhs)?, load_ir(&args.rhs)?);
    let mut known = Vec::new();
    for (input, axes) in &args.replicated {
        let mut ids = Vec::new();
        for axis in axes {
            let id = left.mesh().axis(axis).ok_or_else(|| {
                Problem::new(format!("--replicated names a mesh axis `{axis}`"))
                    .found(format!("a mesh {}", left.mesh()))
                    .bad()
            })?;
            ids.push(id);
        }
        known.push((input.as_str(), AxisSet::of(&ids)));
    }
    let assumption = |input: &str| Assumption {
        replicated: known.iter().find(|(n, _)| *n == input).map_or(AxisSet::NONE, |(_, s)| *s),
        from: None,
    };
    let verdict = progress
        .stage("prove", |_| prove_equal(&left, &right, &assumption))
        .map_err(|e| Problem::new(e.to_string()).bad())?;
    Ok(match verdict {
        Verdict::Equal(c) => Answer {
            text: format!(
                "equal, class {}; {} where the order of float reductions depends on neither position nor buffer size",
                c.class, c.fixed_order
            ),
            json: json!({"equal": true, "class": c.class.to_string(), "class_fixed_order": c.fixed_order.to_string()}),
            no: None,
        },
        Verdict::Refuted(e) => Answer {
            text: format!("not equal: {e}"),
            json: json!({"equal": false, "mesh": e.mesh, "inputs": e.inputs, "output": e.output, "rank": e.rank,
                "element": e.element, "left": e.left, "right": e.right}),
            no: Some(Problem::new("the programs are not equal")),
        },
    })
}
