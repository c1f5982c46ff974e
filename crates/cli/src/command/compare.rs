//! `shardweld compare A B`: how far the tensors of two safetensors files are from each other.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use shardweld_interp::{Named, Tensor, distance, tensor_file};

use crate::failure::{Problem, Result};
use crate::output::{Answer, table};

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub struct Compare {
    /// A safetensors file
    a: PathBuf,
    /// The safetensors file it is compared with
    b: PathBuf,
    /// Compare only tensors whose key starts with this; may be given more than once
    #[arg(long, value_name = "PREFIX")]
    only: Vec<String>,
    /// Say no (exit 1) if the cosine of any tensor is below this
    #[arg(long, value_name = "C")]
    min_cosine: Option<f64>,
    /// Say no (exit 1) if any element differs by more than this
    #[arg(long, value_name = "E")]
    max_abs: Option<f64>,
}

/// Compares two files.
pub fn compare(args: &Compare) -> Result<Answer> {
    for (name, limit) in [("--min-cosine", args.min_cosine), ("--max-abs", args.max_abs)] {
        if limit.is_some_and(f64::is_nan) {
            return Err(Problem::new(format!("{name} is not a number")).bad());
        }
    }
    let read = |file: &Path| -> Result<Named<Tensor>> {
        let mut all = tensor_file::read(file).map_err(|e| Problem::new(e.to_string()).file(file).bad())?;
        all.retain(|key, _| args.only.is_empty() || args.only.iter().any(|p| key.starts_with(p.as_str())));
        Ok(all)
    };
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let shared: Vec<&String> = a.keys().filter(|k| b.contains_key(*k)).collect();
    if shared.is_empty() {
        let first = |t: &Named<Tensor>| t.keys().next().map_or("none".to_owned(), |k| format!("`{k}`, ..."));
        return Err(Problem::new(format!(
            "{} and {} share no tensor{}",
            args.a.display(),
            args.b.display(),
            if args.only.is_empty() {
                String::new()
            } else {
                format!(" that starts with {}", args.only.join(" or "))
            }
        ))
        .found(format!("keys {} and {}", first(&a), first(&b)))
        .expected("at least one key in both files")
        .bad());
    }
    let mut rows = Vec::new();
    let mut list = Vec::new();
    let mut beyond = Vec::new();
    for key in &shared {
        let (x, y) = (&a[*key], &b[*key]);
        let d = match distance(x, y) {
            Ok(d) => d,
            Err(types) => {
                beyond.push(format!("{key}: {} against {}", types.left, types.right));
                rows.push(vec![(*key).clone(), types.left.clone(), "-".into(), "-".into(), "-".into()]);
                list.push(json!({"key": key, "a": types.left, "b": types.right, "close": false}));
                continue;
            }
        };
        // Written so that a NaN fails.
        let close =
            args.min_cosine.is_none_or(|c| d.cosine >= c) && args.max_abs.is_none_or(|m| d.max_abs <= m);
        if !close {
            beyond.push(format!("{key}: cosine {:.10}, max abs {:.3e}", d.cosine, d.max_abs));
        }
        rows.push(vec![
            (*key).clone(),
            x.ty().to_string(),
            format!("{:.12}", d.cosine),
            format!("{:.3e}", d.max_abs),
            if d.max_ulp == u64::MAX { "inf".into() } else { d.max_ulp.to_string() },
        ]);
        list.push(json!({"key": key, "type": x.ty().to_string(), "cosine": d.cosine,
            "max_abs": if d.max_abs.is_finite() { json!(d.max_abs) } else { json!("inf") },
            "max_ulp": if d.max_ulp == u64::MAX { json!("inf") } else { json!(d.max_ulp) }, "close": close}));
    }
    // A rank's output that one run did not give must not go unseen beside those that agree.
    let alone: Vec<&String> = a
        .keys()
        .filter(|k| !b.contains_key(*k))
        .chain(b.keys().filter(|k| !a.contains_key(*k)))
        .filter(|k| k.contains("/out/") && k.starts_with("rank"))
        .collect();
    let mut text = format!(
        "{}\n{} tensors compared, {} too far",
        table(&["tensor", "type", "cosine", "max abs", "max ulp"], &rows),
        shared.len(),
        beyond.len()
    );
    if !alone.is_empty() {
        let names: Vec<&str> = alone.iter().map(|k| k.as_str()).collect();
        text.push_str(&format!("\noutputs that only one of the files has: {}", names.join(", ")));
    }
    let json = json!({"compared": shared.len(), "only_in_one": alone, "too_far": beyond.len(), "min_cosine": args.min_cosine,
        "max_abs": args.max_abs, "tensors": list});
    let no = (!beyond.is_empty()).then(|| {
        Problem::new(format!("{} of {} tensors are too far apart", beyond.len(), shared.len()))
            .found(beyond.join("\n"))
            .expected(format!(
                "equal types, cosine >= {}, max abs <= {}",
                args.min_cosine.map_or("any".into(), |c| c.to_string()),
                args.max_abs.map_or("any".into(), |c| c.to_string())
            ))
    });
    Ok(Answer { text, json, no })
}
