//! Verified rewriting of SPMD programs: makes a program buildable on a target, and faster, without changing what it computes
//! beyond a promised exactness class.
//!
//! [`optimise`] takes a [`shardweld_ir::Graph`] and [`Options`] with a [`TargetProfile`], and gives a new graph, a
//! [`Report`] of what became of every collective, and a [`Certificate`]. Rules ([`rules`]) are equations with guards; the
//! [`prover`] computes the exactness [`Class`] of each, per branch, and a rule without a current proof record is not used.
//!
//! ```
//! use shardweld_ir::Graph;
//! use shardweld_rewrite::{Options, TargetProfile, optimise};
//!
//! let source = Graph::from_text("example.swir", r#"swir 1
//! graph "gather"
//! mesh [tp=2]
//! %x = input() name="x" : bf16[2,4]
//! %y = all_gather(%x) dim=0 group=[tp] : bf16[4,4]
//! return "y" = %y
//! "#)?;
//! let options = Options { profile: Some(TargetProfile::named("tensorrt-11.0")?), ..Options::default() };
//! let result = optimise(&source, &options)?;
//! assert_eq!(result.report.collectives[0].after[0].kind, "all_reduce");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`class`] | exactness classes |
//! | [`language`] | the egg language |
//! | [`replication`], [`facts`], [`analysis`] | what is known of a value, in the graph and in the e-graph |
//! | [`rules`], [`prover`] | rules and their proofs |
//! | [`profile`], [`topology`], [`cost`], [`constraints`], [`options`] | what a target can do, what things cost, what the user orders |
//! | [`window`], [`saturate`], [`extract`], [`plan`], [`replace`] | the search |
//! | [`group_size`] | the search for targets that compute shapes with one group size |
//! | [`legalise`], [`merge`] | directed steps, merging |
//! | [`pipeline`], [`context`], [`copy`], [`report`], [`certificate`], [`error`] | running it |
#![deny(missing_docs)]

pub mod analysis;
pub mod certificate;
pub mod class;
pub mod constraints;
pub mod context;
pub mod copy;
pub mod cost;
pub mod error;
pub mod extract;
pub mod facts;
pub mod group_size;
pub mod language;
pub mod legalise;
pub mod merge;
pub mod options;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod prover;
pub mod replace;
pub mod replication;
pub mod report;
pub mod rules;
pub mod saturate;
pub mod topology;
pub mod window;

pub use certificate::{Certificate, CertificateStep};
pub use class::{Class, Exactness};
pub use error::{Illegal, RewriteError};
pub use options::{AllGather, Boundary, Options};
pub use pipeline::{PASSES, Pass, Rewritten, optimise, optimise_observed};
pub use profile::{Placement, ProfileError, TargetProfile};
pub use prover::{Assumption, Classes, CounterExample, ProveError, Verdict, prove};
pub use report::{CollectiveReport, CollectiveView, Counters, PassStats, Report};
pub use topology::Topology;
