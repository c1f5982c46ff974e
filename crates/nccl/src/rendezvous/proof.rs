//! Showing that one holds the job's token without sending it: keyed hashes over nonces of both sides.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// 32 bytes as lower-case hexadecimal.
pub(super) type Hex = String;

/// Key derived from the token; the token itself is never written or sent.
#[derive(Clone)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn new(token: &str) -> Key {
        Key(blake3::derive_key("shardweld rendezvous token, version 1", token.as_bytes()))
    }

    /// Proof over `parts`; parts are length-prefixed, so that no two lists run together.
    pub(super) fn proof(&self, parts: &[&str]) -> Hex {
        let mut h = blake3::Hasher::new_keyed(&self.0);
        for p in parts {
            h.update(&(p.len() as u64).to_le_bytes());
            h.update(p.as_bytes());
        }
        h.finalize().to_hex().to_string()
    }

    /// Whether `proof` is the proof over `parts`; compares in constant time.
    pub(super) fn verify(&self, proof: &str, parts: &[&str]) -> bool {
        match (blake3::Hash::from_hex(proof), blake3::Hash::from_hex(self.proof(parts))) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        }
    }
}

/// A value that was not used before: the process's random hash keys, its id and the clock.
pub(super) fn nonce() -> Hex {
    let mut h = blake3::Hasher::new();
    for _ in 0..4 {
        h.update(&RandomState::new().hash_one(0u8).to_le_bytes());
    }
    h.update(&std::process::id().to_le_bytes());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    h.update(&now.as_nanos().to_le_bytes());
    h.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_bound_to_token_and_parts() {
        let (a, b) = (Key::new("a"), Key::new("b"));
        let p = a.proof(&["x", "yz"]);
        assert!(a.verify(&p, &["x", "yz"]));
        assert!(!a.verify(&p, &["xy", "z"]));
        assert!(!b.verify(&p, &["x", "yz"]));
        assert!(!a.verify("not hex", &["x", "yz"]));
        assert_ne!(nonce(), nonce());
    }
}
