//! TensorRT backend.

pub mod flavour;
#[cfg(feature = "live")]
pub mod live;
