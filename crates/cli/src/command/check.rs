//! `shardweld check MODEL`: verify and summarise.

use clap::Args;

use crate::failure::Result;
use crate::model::ModelArgs;
use crate::output::Answer;
use crate::progress::Progress;
use crate::summary::summary;

/// Arguments of `check`.
#[derive(Args, Debug)]
pub struct Check {
    #[command(flatten)]
    model: ModelArgs,
}

/// Loads (which verifies) and summarises.
pub fn check(args: &Check, progress: Progress) -> Result<Answer> {
    let model = args.model.load(progress)?;
    let (text, json) = summary(&model.graph);
    Ok(Answer { text, json, no: None })
}
