//! Layer names that survive the builder: a one-to-one map from any text to letters that its log prints unchanged.

/// Encodes a name: everything but ASCII letters, digits, `_`, `-`, `.` and `/` becomes `%` and two hex digits per byte.
pub fn encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for b in name.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/') {
            out.push(char::from(b));
        } else {
            out.push('%');
            for half in [b >> 4, b & 15] {
                out.push(char::from(b"0123456789ABCDEF"[usize::from(half)]));
            }
        }
    }
    out
}

/// Undoes [`encode`]; `None` if `text` is not something that `encode` writes.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        if b == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = tail.get(2..)?;
        } else {
            bytes.push(b);
            rest = tail;
        }
    }
    let name = String::from_utf8(bytes).ok()?;
    (encode(&name) == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_come_back() {
        for name in ["", "plain_1.2", "a\"b", "q % [x] + {y}, (z):µ\n\0", "%41"] {
            let e = encode(name);
            assert!(e.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./%".contains(&b)), "{e}");
            assert_eq!(decode(&e).as_deref(), Some(name));
        }
    }

    #[test]
    fn foreign_text_is_not_decoded() {
        for text in ["a b", "%4", "%zz", "%41", "%+1", "é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
