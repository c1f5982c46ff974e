//! Why a program was not rewritten.

use shardweld_ir::{GraphError, VerifyError};
use thiserror::Error;

use crate::class::{Class, Exactness};

/// A collective that the target cannot build and that nothing allowed makes buildable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Illegal {
    /// The node.
    pub node: String,
    /// Source names that it stands for.
    pub sources: Vec<String>,
    /// What it is, in words.
    pub what: String,
    /// Why it may not stay.
    pub reason: String,
    /// Rules that would have helped, with the class that each needs.
    pub would_help: Vec<(String, Class)>,
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum RewriteError {
    /// Nothing says what the target can build.
    #[error("there is no target profile; name one, or probe the target")]
    NoProfile,
    /// A pass that does not exist.
    #[error("there is no pass `{name}`; there are: {}", known.join(", "))]
    UnknownPass {
        /// Name asked for.
        name: String,
        /// Names there are.
        known: Vec<String>,
    },
    /// An option names something that the program does not have.
    #[error("option `{option}` names {what} `{name}`, which the program does not have")]
    UnknownName {
        /// The option.
        option: &'static str,
        /// `input` or `mesh axis`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Collectives remain that the target cannot build.
    #[error("{}", text(illegal, *exactness))]
    Illegal {
        /// All of them.
        illegal: Vec<Illegal>,
        /// The class allowed.
        exactness: Exactness,
    },
    /// The source or the result of a pass is no valid program.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A program could not be read or built.
    #[error("pass `{pass}`: {source}")]
    Graph {
        /// The pass.
        pass: &'static str,
        /// Why.
        source: GraphError,
    },
    /// The rules contradict each other in a window: a fault of the rule set.
    #[error("the rules do not agree on the window around `{node}`: {}", errors.join("; "))]
    Rules {
        /// First node of the window.
        node: String,
        /// What the analysis found.
        errors: Vec<String>,
    },
    /// A rule's text is wrong.
    #[error(transparent)]
    Rule(#[from] crate::rules::RuleError),
}

fn text(illegal: &[Illegal], exactness: Exactness) -> String {
    let mut t = format!("{} collectives cannot be built:", illegal.len());
    for i in illegal {
        t += &format!("\n  node `{}`", i.node);
        if !i.sources.is_empty() && i.sources != [i.node.clone()] {
            t += &format!(" (from {})", i.sources.join(", "));
        }
        t += &format!(", {}: {}.", i.what, i.reason);
        for (rule, class) in &i.would_help {
            t += &format!(" Rule `{rule}` of class {class} would help; ");
            t += &match (*class, exactness.admits(*class)) {
                (_, true) => "the orders given rule it out.".to_owned(),
                (Class::Accuracy, _) => "`--boundary` orders it.".to_owned(),
                _ => format!("allowed is {exactness}; `--exactness {class}` admits it."),
            };
        }
        if i.would_help.is_empty() {
            t += " No rule makes it buildable.";
        }
    }
    t
}
