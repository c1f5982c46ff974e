//! Messages of the TCP rendezvous on a byte stream: a 4-byte length, a JSON head, then raw payloads.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::MAX_PAYLOAD;
use super::proof::Hex;
use crate::transport::Arrival;

/// First word of a conversation; a service that is something else will not say it.
pub(super) const GREETING: &str = "shardweld-rendezvous-1";

/// Longest JSON head; a larger one comes from something that is not a rendezvous.
const MAX_HEAD: usize = 64 << 10;

/// What rank 0 says to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum FromHub {
    /// Opens the conversation.
    Challenge { greeting: String, nonce: Hex },
    /// Turned away.
    Refused { why: Refusal },
    /// Taken in; the proof shows that the hub holds the token too.
    Welcome { proof: Hex },
    /// All ranks are there.
    Ready,
    /// Not all ranks came.
    Missing { missing: Vec<u32>, refused: Vec<String> },
    /// Everybody's part of an exchange, by rank; the payloads follow.
    All { seq: u64, lengths: Vec<usize> },
    /// Two ranks exchange different things.
    Mismatch { a: u32, a_what: String, b: u32, b_what: String },
    /// A rank is lost.
    Lost { rank: u32, how: String },
    /// Still there; with the ranks that came to another collective since the last beat.
    Beat { arrivals: Vec<(u32, Arrival)> },
}

/// Why a caller is turned away.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Refusal {
    WrongToken,
    WorldSize { theirs: u32 },
    DuplicateRank { holder: String },
}

/// What a rank says to rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum FromRank {
    /// Answers the challenge.
    Hello { rank: u32, world_size: u32, holder: String, nonce: Hex, proof: Hex },
    /// Its part of an exchange; the payload follows.
    Put { seq: u64, what: String, length: usize },
    /// Still there; with the collective it has come to.
    Beat { arrival: Option<Arrival> },
    /// Leaves in order.
    Bye,
}

/// Writes one message.
pub(super) fn write<T: Serialize>(out: &mut impl Write, head: &T, payloads: &[&[u8]]) -> io::Result<()> {
    let head = serde_json::to_vec(head).map_err(io::Error::other)?;
    let length = u32::try_from(head.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&head);
    for p in payloads {
        bytes.extend_from_slice(p);
    }
    out.write_all(&bytes)?;
    out.flush()
}

/// Reads the head of one message.
pub(super) fn read<T: for<'a> Deserialize<'a>>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0u8; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEAD {
        return Err(invalid(format!("a message head of {length} bytes")));
    }
    let mut head = vec![0; length];
    from.read_exact(&mut head)?;
    serde_json::from_slice(&head).map_err(|e| invalid(e.to_string()))
}

/// Reads one payload that a head announced.
pub(super) fn read_payload(from: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    if length > MAX_PAYLOAD {
        return Err(invalid(format!("a payload of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_foreign_bytes_are_refused() {
        let mut bytes = Vec::new();
        write(&mut bytes, &FromRank::Put { seq: 3, what: "id".into(), length: 2 }, &[&[7, 8]]).unwrap();
        let mut from = bytes.as_slice();
        let FromRank::Put { seq: 3, length: 2, .. } = read(&mut from).unwrap() else { panic!() };
        assert_eq!(read_payload(&mut from, 2).unwrap(), [7, 8]);
        assert!(read::<FromRank>(&mut &b"HTTP/1.1 400 Bad Request\r\n"[..]).is_err());
        assert!(read::<FromRank>(&mut &b"\x02\0\0\0{}"[..]).is_err());
        assert!(read_payload(&mut &[0u8][..], MAX_PAYLOAD + 1).is_err());
    }
}
