//! Attribute values of the text form: one small tree that knows no op. Printing is the inverse of `lex`'s parsing.

use std::fmt;

use crate::literal::{float_to_text, to_hex};
use crate::types::{DType, Dim, Shape, TensorType};

/// Longest excerpt of the text in a message, in characters.
pub(super) const MAX_EXCERPT: usize = 60;

/// A value in the text form.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attr {
    /// A bare word: an enum member, an axis, `true`, `false`.
    Word(String),
    /// A quoted string.
    Text(String),
    /// A whole number; i128 holds both i64 and u64.
    Int(i128),
    /// A float, with `.` or exponent, `inf`, `-inf`, or `nan:0x<bits>`.
    Float(f64),
    /// `[a, b]`
    List(Vec<Attr>),
    /// `{a, b}`
    Set(Vec<Attr>),
    /// `f32[2,3]`
    Type(TensorType),
    /// `x"00ff"`
    Hex(Vec<u8>),
    /// `name(a, key=b)`
    Call(String, Vec<(Option<String>, Attr)>),
}

impl Attr {
    /// A bare word if it reads back as one, a string otherwise.
    pub fn name(text: &str) -> Attr {
        if is_word(text) { Attr::Word(text.to_owned()) } else { Attr::Text(text.to_owned()) }
    }

    /// What kind of value this is, for messages.
    pub fn describe(&self) -> String {
        match self {
            Attr::Hex(bytes) => format!("{} bytes of data", bytes.len()),
            Attr::List(items) => format!("a list of {}", items.len()),
            Attr::Set(items) => format!("a set of {}", items.len()),
            other => {
                let text = other.to_string();
                let excerpt: String = text.chars().take(MAX_EXCERPT).collect();
                format!("`{excerpt}{}`", if excerpt.len() < text.len() { ".." } else { "" })
            }
        }
    }
}

/// Whether `text` reads as a word: letters, digits, `_`, `.`, no digit first, and no spelling of a float.
pub(super) fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
        && text != "inf"
        && text != "nan"
        && text != "x"
}

/// Writes a string with quotes; control characters, quotes and backslashes are escaped.
pub(super) fn write_quoted(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            c if c.is_control() => write!(out, "\\u{{{:x}}}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

/// Writes a value's name after `%`: bare if it is made of letters, digits, `_` and `.`, quoted otherwise.
pub(super) fn write_value_name(out: &mut impl fmt::Write, name: &str) -> fmt::Result {
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.') {
        write!(out, "%{name}")
    } else {
        out.write_char('%')?;
        write_quoted(out, name)
    }
}

/// Writes a type; symbolic sizes as `dim("name", min, opt, max, multiple)`.
pub(super) fn write_type(out: &mut impl fmt::Write, ty: &TensorType) -> fmt::Result {
    out.write_str(ty.dtype.name())?;
    out.write_char('[')?;
    for (i, d) in ty.shape.0.iter().enumerate() {
        if i > 0 {
            out.write_char(',')?;
        }
        match d {
            Dim::Static(n) => write!(out, "{n}")?,
            Dim::Symbol(s) => {
                out.write_str("dim(")?;
                write_quoted(out, &s.name)?;
                write!(out, ", {}, {}, {}, {})", s.min, s.opt, s.max, s.multiple_of)?;
            }
        }
    }
    out.write_char(']')
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = |f: &mut fmt::Formatter<'_>, open: &str, items: &[Attr], close: &str| {
            f.write_str(open)?;
            for (i, a) in items.iter().enumerate() {
                if i > 0 {
                    f.write_str(", ")?;
                }
                a.fmt(f)?;
            }
            f.write_str(close)
        };
        match self {
            Attr::Word(w) => f.write_str(w),
            Attr::Text(t) => write_quoted(f, t),
            Attr::Int(i) => write!(f, "{i}"),
            Attr::Float(x) => f.write_str(&float_to_text(*x)),
            Attr::List(a) => items(f, "[", a, "]"),
            Attr::Set(a) => items(f, "{", a, "}"),
            Attr::Type(ty) => write_type(f, ty),
            Attr::Hex(bytes) => write!(f, "x\"{}\"", to_hex(bytes)),
            Attr::Call(name, arguments) => {
                write!(f, "{name}(")?;
                for (i, (key, a)) in arguments.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    if let Some(key) = key {
                        write!(f, "{key}=")?;
                    }
                    a.fmt(f)?;
                }
                f.write_str(")")
            }
        }
    }
}

/// A static type as an attribute.
pub(super) fn static_type(dtype: DType, shape: &[u64]) -> Attr {
    Attr::Type(TensorType { dtype, shape: Shape::of(shape) })
}
