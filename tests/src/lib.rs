//! Tests that need several crates and not the command; they are in `tests/`. The command's own are in `crates/cli/tests`.
