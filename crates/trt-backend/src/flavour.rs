//! The two libraries that build engines, and what differs between them by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which TensorRT library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Flavour {
    /// TensorRT (`libnvinfer`).
    #[serde(rename = "tensorrt")]
    TensorRt,
    /// TensorRT for RTX (`libtensorrt_rtx`); builds ahead of time without a GPU.
    #[serde(rename = "tensorrt-rtx")]
    TensorRtRtx,
}

impl Flavour {
    /// Both, the production library first.
    pub const ALL: [Flavour; 2] = [Flavour::TensorRt, Flavour::TensorRtRtx];

    /// Name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Flavour::TensorRt => "tensorrt",
            Flavour::TensorRtRtx => "tensorrt-rtx",
        }
    }

    /// The flavour called `name`.
    pub fn from_name(name: &str) -> Option<Flavour> {
        Flavour::ALL.into_iter().find(|f| f.name() == name)
    }

    /// File name of the shared library, with the major version that the binding is made for.
    pub const fn soname(self) -> &'static str {
        match self {
            Flavour::TensorRt => "libnvinfer.so.11",
            Flavour::TensorRtRtx => "libtensorrt_rtx.so.1",
        }
    }

    /// Environment variable that names the library's file or folder.
    pub const fn variable(self) -> &'static str {
        match self {
            Flavour::TensorRt => "SHARDWELD_TENSORRT_LIB",
            Flavour::TensorRtRtx => "SHARDWELD_TENSORRT_RTX_LIB",
        }
    }

    /// Folder of the Python package that carries the library.
    pub const fn python_package(self) -> &'static str {
        match self {
            Flavour::TensorRt => "tensorrt_libs",
            Flavour::TensorRtRtx => "tensorrt_rtx_libs",
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavour::TensorRt => "TensorRT",
            Flavour::TensorRtRtx => "TensorRT-RTX",
        })
    }
}

/// Version of a library or of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
    /// Patch.
    pub patch: u32,
    /// Build number; 0 if unknown.
    pub build: u32,
}

impl Version {
    /// A version without build number.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch, build: 0 }
    }

    /// As one number, in the form that the library's entry point takes.
    pub const fn as_int(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if self.build > 0 { write!(f, ".{}", self.build) } else { Ok(()) }
    }
}
