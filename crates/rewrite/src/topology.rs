//! What links cost: the alpha-beta model of a machine, as data.

use serde::{Deserialize, Serialize};

/// Costs of communication and of memory on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Name.
    pub name: String,
    /// Start of one collective, in nanoseconds.
    pub launch_ns: u64,
    /// One message step, in nanoseconds.
    pub step_ns: u64,
    /// Sending one byte per rank, in picoseconds.
    pub wire_ps_per_byte: u64,
    /// Reading or writing one KiB of device memory, in picoseconds.
    pub memory_ps_per_kib: u64,
    /// Start of one kernel that moves or casts data, in nanoseconds.
    pub kernel_ns: u64,
}

impl Topology {
    /// NVLink-connected data-centre GPUs of the H100 class: about 370 GB/s of bus bandwidth, 3 TB/s of memory.
    pub fn nvlink() -> Topology {
        Topology {
            name: "nvlink".into(),
            launch_ns: 6_000,
            step_ns: 700,
            wire_ps_per_byte: 3,
            memory_ps_per_kib: 340,
            kernel_ns: 2_000,
        }
    }

    /// GPUs on PCIe 4.0 x16: about 20 GB/s of bus bandwidth, 1 TB/s of memory.
    pub fn pcie() -> Topology {
        Topology {
            name: "pcie".into(),
            launch_ns: 10_000,
            step_ns: 2_500,
            wire_ps_per_byte: 50,
            memory_ps_per_kib: 1_000,
            kernel_ns: 2_000,
        }
    }

    /// The preset called `name`.
    pub fn preset(name: &str) -> Option<Topology> {
        [Topology::nvlink(), Topology::pcie()].into_iter().find(|t| t.name == name)
    }

    /// A topology from JSON text.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn from_json(text: &str) -> Result<Topology, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl Default for Topology {
    fn default() -> Self {
        Topology::nvlink()
    }
}
