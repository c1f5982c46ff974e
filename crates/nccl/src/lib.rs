//! Collectives between ranks: NCCL on GPUs, an in-process transport with the same interface for tests without one.
//!
//! | module | holds |
//! |---|---|
//! | [`element`] | element types as NCCL knows them |
//! | [`call`] | one collective call: kind, shape rules on dim 0, byte counts |

pub mod call;
pub mod element;

pub use call::{Call, CallError, Kind};
pub use element::ElementType;
