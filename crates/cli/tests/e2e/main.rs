//! End to end through the binary, as a user would call it.

mod archive;
mod bad_input;
mod builds;
mod compare;
mod determinism;
mod parity;
mod prove;
mod real_data;
mod shardweld;
mod silent_errors;
