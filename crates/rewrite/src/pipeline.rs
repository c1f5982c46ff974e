//! The passes in order, with the verifier after each.

use shardweld_ir::Graph;

use crate::certificate::{CERTIFICATE_VERSION, Certificate};
use crate::class::Class;
use crate::constraints::Constraints;
use crate::context::{Context, declared_inputs};
use crate::error::RewriteError;
use crate::group_size::{largest, rewrite_for_group_size};
use crate::legalise::{illegal, legalise};
use crate::merge::merge;
use crate::options::Options;
use crate::report::{Counters, PassStats, Report, collectives};
use crate::rules::record::{proved, rule_set};

/// A pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name, as `--pass` and `--dump-after` take it.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    run: fn(Graph, &mut Context) -> Result<Graph, RewriteError>,
}

/// All passes, in order.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "merge-identical",
        about: "computes equal operations on equal operands once",
        run: |g, cx| in_pass("merge-identical", merge(g, cx)),
    },
    Pass {
        name: "legalise",
        about: "directed steps: reductions in f32, rooted collectives by symmetric ones, where needed or ordered",
        run: |g, cx| in_pass("legalise", legalise(g, cx)),
    },
    Pass {
        name: "rewrite-windows",
        about: "legality and cost in one search, over windows around collectives",
        run: |g, cx| rewrite_for_group_size(&g, cx),
    },
    Pass {
        name: "merge-rewritten",
        about: "computes once what rewriting made equal",
        run: |g, cx| in_pass("merge-rewritten", merge(g, cx)),
    },
    Pass {
        name: "remove-dead",
        about: "drops what no output depends on",
        run: |mut g, _| {
            g.remove_dead();
            Ok(g)
        },
    },
    Pass {
        name: "check-target",
        about: "refuses what the target cannot build",
        run: |g, cx| {
            if cx.constraints.profile.one_group_size_for_shapes {
                cx.constraints.group_size = largest(&g, &cx.constraints, |_| true);
            }
            let illegal = in_pass("check-target", illegal(&g, cx))?;
            if illegal.is_empty() {
                Ok(g)
            } else {
                Err(RewriteError::Illegal { illegal, exactness: cx.exactness })
            }
        },
    },
];

fn in_pass<T>(pass: &'static str, r: Result<T, shardweld_ir::GraphError>) -> Result<T, RewriteError> {
    r.map_err(|source| RewriteError::Graph { pass, source })
}

/// A rewritten program.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The program.
    pub graph: Graph,
    /// What was done.
    pub report: Report,
    /// Why it may be.
    pub certificate: Certificate,
}

/// Rewrites a program for a target. See [`optimise_observed`].
///
/// # Errors
/// As [`RewriteError`] says.
pub fn optimise(graph: &Graph, options: &Options) -> Result<Rewritten, RewriteError> {
    optimise_observed(graph, options, &mut |_, _| {})
}

/// Rewrites a program for a target; `observe` sees the program after each pass, by the pass's name.
///
/// The result is the same for the same source, options and rules, whatever the machine and the number of threads.
///
/// # Errors
/// If there is no profile, the source is invalid, an option names what does not exist, or the target cannot build what
/// remains.
pub fn optimise_observed(
    graph: &Graph,
    options: &Options,
    observe: &mut dyn FnMut(&'static str, &Graph),
) -> Result<Rewritten, RewriteError> {
    let Some(profile) = options.profile.clone() else { return Err(RewriteError::NoProfile) };
    let passes = selected(options)?;
    graph.verify()?;
    let mut cx = Context {
        constraints: Constraints::new(profile, options),
        exactness: options.exactness,
        rules: proved()?,
        declared: declared_inputs(graph, options)?,
        stop_after: options.stop_after,
        trail: Default::default(),
        steps: Vec::new(),
        counters: Counters::default(),
        loosest_directed: None,
    };
    let mut current = graph.clone();
    let mut stats = Vec::new();
    for pass in passes {
        let before = current.len();
        let start = std::time::Instant::now();
        current = (pass.run)(current, &mut cx)?;
        tracing::debug!(pass = pass.name, nodes = current.len(), elapsed = ?start.elapsed(), "pass done");
        current.verify_after(pass.name)?;
        observe(pass.name, &current);
        stats.push(PassStats { pass: pass.name.to_owned(), before, after: current.len() });
    }
    current.verify()?;
    let hash = |g: &Graph| in_pass("certificate", g.content_hash()).map(|h| h.to_hex().to_string());
    let certificate = Certificate {
        version: CERTIFICATE_VERSION,
        source: hash(graph)?,
        result: hash(&current)?,
        rules: rule_set()?,
        profile: cx.constraints.profile.name.clone(),
        replicated_inputs: options.replicated_inputs.clone().into_iter().collect(),
        steps: cx.steps,
    };
    let report = Report {
        collectives: in_pass("report", collectives(graph, &current, &cx.trail, &cx.constraints))?,
        passes: stats,
        counters: cx.counters,
        class: cx.loosest_directed.unwrap_or(Class::Bit).max(options.exactness.class()),
    };
    Ok(Rewritten { graph: current, report, certificate })
}

fn selected(options: &Options) -> Result<Vec<&'static Pass>, RewriteError> {
    let known = || PASSES.iter().map(|p| p.name.to_owned()).collect();
    if let Some(name) = options.passes.iter().find(|n| PASSES.iter().all(|p| p.name != n.as_str())) {
        return Err(RewriteError::UnknownPass { name: name.clone(), known: known() });
    }
    let wanted = |p: &&Pass| options.passes.is_empty() || options.passes.iter().any(|n| n == p.name);
    Ok(PASSES.iter().filter(wanted).collect())
}
