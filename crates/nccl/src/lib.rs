//! Collectives between ranks: NCCL on GPUs, and an in-process transport with the same interface for tests without one.
//!
//! Everything builds and tests on a machine without CUDA; the libraries are opened when they are first needed.
//!
//! | module | holds |
//! |---|---|
//! | [`element`] | element types as NCCL knows them |
//! | [`call`] | one collective call: kind, shape rules on dim 0, byte counts |
//! | [`transport`] | the interface: ranks, communicators, buffers |
//! | [`groups`] | one communicator per group of a program |
//! | [`local`] | the in-process transport |
//! | [`rendezvous`] | how ranks find each other, by file or TCP, and notice who is lost |
//! | [`version`], [`library`] | which NCCL is there and whether it will do |
//! | [`device`] | the GPU of a rank |
//! | [`nccl`] | the NCCL transport |
//! | [`error`] | what can go wrong between ranks |

pub mod call;
pub mod device;
pub mod element;
pub mod error;
pub mod groups;
pub mod library;
pub mod local;
pub mod nccl;
pub mod rendezvous;
pub mod transport;
pub mod version;

pub use call::{Call, CallError, Kind};
pub use device::{Device, DeviceBuffer};
pub use element::ElementType;
pub use error::{Cause, CommError};
pub use groups::{Groups, groups_of};
pub use library::{LibraryError, Search};
pub use local::{LocalComm, LocalTransport, local_world};
pub use nccl::{NcclComm, NcclLibrary, NcclTransport};
pub use rendezvous::{FileRendezvous, Join, Rendezvous, RendezvousError, TcpRendezvous};
pub use transport::{Arrival, Communicator, LostRank, Missing, PeerWatch, Transport};
pub use version::NcclVersion;
