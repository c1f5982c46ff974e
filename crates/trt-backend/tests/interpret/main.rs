//! The trace interpreter: each layer kind on numbers worked out by hand, what TensorRT refuses, ranks side by side, and
//! lowered programs against the reference interpreter.

mod contract;
mod functions;
mod layers;
mod lowered;
mod network;
mod ranks;
