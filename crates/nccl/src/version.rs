//! NCCL versions: NCCL's number for them, and what needs which.

use std::fmt;

/// A version of the NCCL library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NcclVersion {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
    /// Patch.
    pub patch: u32,
}

impl NcclVersion {
    /// First with `ncclAlltoAll`, `ncclGather` and `ncclScatter`.
    pub const NEEDED: NcclVersion = NcclVersion::new(2, 28, 0);
    /// First that puts several ranks on one GPU (with [`MULTI_RANK_ENV`] set).
    pub const NEEDED_FOR_SHARED_GPU: NcclVersion = NcclVersion::new(2, 30, 0);

    /// A version by its parts.
    pub const fn new(major: u32, minor: u32, patch: u32) -> NcclVersion {
        NcclVersion { major, minor, patch }
    }

    /// From what `ncclGetVersion` gives: `major * 10000 + minor * 100 + patch`, up to 2.8 with a factor of 1000.
    pub const fn from_code(code: u32) -> NcclVersion {
        if code < 10_000 {
            NcclVersion::new(code / 1000, code % 1000 / 100, code % 100)
        } else {
            NcclVersion::new(code / 10_000, code % 10_000 / 100, code % 100)
        }
    }
}

/// NCCL puts several ranks on one GPU only if this is `1`.
pub const MULTI_RANK_ENV: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_number_schemes_are_read() {
        assert_eq!(NcclVersion::from_code(23007), NcclVersion::new(2, 30, 7));
        assert_eq!(NcclVersion::from_code(22809), NcclVersion::new(2, 28, 9));
        assert_eq!(NcclVersion::from_code(2708), NcclVersion::new(2, 7, 8));
        assert!(NcclVersion::from_code(2708) < NcclVersion::NEEDED);
        assert!(NcclVersion::from_code(22907) < NcclVersion::NEEDED_FOR_SHARED_GPU);
    }
}
