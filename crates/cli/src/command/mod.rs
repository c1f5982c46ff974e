//! One file per command: its arguments, and what it does.

pub mod build;
pub mod check;
pub mod compare;
pub mod opt;
pub mod prove;
pub mod rules;
pub mod run;
