//! Reads tokens and attribute values from one line. Every step consumes input or fails, so reading is linear.

use super::attr::{Attr, MAX_EXCERPT};
use super::{MAX_DEPTH, TextErrorKind};
use crate::literal::{float_from_text, from_hex};
use crate::types::{DType, Dim, Shape, SymbolicDim, TensorType};

/// A position in a line.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    line: &'a str,
    at: usize,
}

/// What stands wrong at a byte of the line.
pub(super) struct LexError {
    pub at: usize,
    pub kind: TextErrorKind,
}

type Result<T> = std::result::Result<T, LexError>;

impl<'a> Cursor<'a> {
    pub fn new(line: &'a str) -> Cursor<'a> {
        Cursor { line, at: 0 }
    }

    /// Byte offset in the line.
    pub fn at(&self) -> usize {
        self.at
    }

    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.line.as_bytes().get(self.at).copied()
    }

    /// Skips blanks; a `//` comment counts as the end of the line.
    pub fn skip_blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        if self.rest().starts_with("//") {
            self.at = self.line.len();
        }
    }

    pub fn at_end(&mut self) -> bool {
        self.skip_blank();
        self.at >= self.line.len()
    }

    /// The error that `expected` does not stand here.
    pub fn expected<T>(&self, expected: impl Into<String>) -> Result<T> {
        let rest = self.rest();
        let found = match rest.chars().next() {
            None => "the end of the line".to_owned(),
            Some(c) if c.is_alphanumeric() || c == '_' => {
                let word = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or(rest);
                format!("`{}`", word.chars().take(MAX_EXCERPT).collect::<String>())
            }
            Some(c) => format!("`{}`", c.escape_debug()),
        };
        self.found(found, expected)
    }

    /// The error that `found` stands here instead of `expected`.
    pub fn found<T>(&self, found: impl Into<String>, expected: impl Into<String>) -> Result<T> {
        Err(LexError {
            at: self.at,
            kind: TextErrorKind::Syntax { found: found.into(), expected: expected.into() },
        })
    }

    /// Takes a symbol if it stands here.
    pub fn take(&mut self, symbol: &str) -> bool {
        self.skip_blank();
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    pub fn expect(&mut self, symbol: &str) -> Result<()> {
        if self.take(symbol) { Ok(()) } else { self.expected(format!("`{symbol}`")) }
    }

    fn run_of(&mut self, of: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&of) {
            self.at += 1;
        }
        &self.line[start..self.at]
    }

    /// A bare word.
    pub fn word(&mut self, what: &str) -> Result<&'a str> {
        self.skip_blank();
        if !matches!(self.peek(), Some(b'_' | b'a'..=b'z' | b'A'..=b'Z')) {
            return self.expected(what);
        }
        Ok(self.run_of(is_word_byte))
    }

    /// A quoted string.
    pub fn quoted(&mut self, what: &str) -> Result<String> {
        self.skip_blank();
        if self.peek() != Some(b'"') {
            return self.expected(what);
        }
        self.at += 1;
        let mut out = String::new();
        loop {
            let plain = self.run_of(|b| b != b'"' && b != b'\\');
            out.push_str(plain);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(_) => out.push(self.escape()?),
                None => return self.expected("`\"` at the end of the string"),
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        const EXPECTED: &str = "`\\\"`, `\\\\`, `\\n` or `\\u{..}`";
        let rest = self.rest();
        let simple = match rest.as_bytes().get(1) {
            Some(b'"') => Some('"'),
            Some(b'\\') => Some('\\'),
            Some(b'n') => Some('\n'),
            _ => None,
        };
        if let Some(c) = simple {
            self.at += 2;
            return Ok(c);
        }
        let hex = rest.strip_prefix("\\u{").and_then(|r| r.find('}').filter(|&n| n <= 6).map(|n| &r[..n]));
        match hex.and_then(|h| u32::from_str_radix(h, 16).ok().and_then(char::from_u32).map(|c| (c, h.len())))
        {
            Some((c, n)) => {
                self.at += n + 4;
                Ok(c)
            }
            None => self.found("another escape", EXPECTED),
        }
    }

    /// The name after `%`.
    pub fn value_name(&mut self) -> Result<String> {
        self.expect("%")?;
        if self.peek() == Some(b'"') {
            return self.quoted("a name");
        }
        let name = self.run_of(is_word_byte);
        if name.is_empty() { self.expected("a value's name") } else { Ok(name.to_owned()) }
    }

    /// A number without sign or point.
    pub fn number(&mut self, what: &str) -> Result<u64> {
        self.skip_blank();
        let start = self.clone();
        let digits = self.run_of(|b| b.is_ascii_digit());
        match digits.parse() {
            Ok(n) => Ok(n),
            Err(_) => start.expected(what),
        }
    }

    /// A type: `f32[2,3]`.
    pub fn ty(&mut self) -> Result<TensorType> {
        self.skip_blank();
        let start = self.clone();
        let name = self.word("a type such as f32[2,3]")?;
        let Some(dtype) = DType::from_name(name) else {
            let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            return start.found(format!("element type `{name}`"), format!("one of {}", known.join(", ")));
        };
        self.type_after(dtype)
    }

    fn type_after(&mut self, dtype: DType) -> Result<TensorType> {
        self.expect("[")?;
        let mut dims = Vec::new();
        if !self.take("]") {
            loop {
                dims.push(self.dim()?);
                if !self.take(",") {
                    break;
                }
            }
            self.expect("]")?;
        }
        Ok(TensorType { dtype, shape: Shape(dims) })
    }

    fn dim(&mut self) -> Result<Dim> {
        if !self.take("dim(") {
            return self.number("a size or dim(..)").map(Dim::Static);
        }
        let name = self.quoted("the symbol's name")?;
        let mut n = [0u64; 4];
        for (slot, what) in n.iter_mut().zip(["min", "opt", "max", "multiple"]) {
            self.expect(",")?;
            *slot = self.number(what)?;
        }
        self.expect(")")?;
        let [min, opt, max, multiple_of] = n;
        Ok(Dim::Symbol(SymbolicDim { name, min, opt, max, multiple_of }))
    }

    /// An attribute value, at most [`MAX_DEPTH`] deep.
    pub fn attr(&mut self, depth: usize) -> Result<Attr> {
        if depth > MAX_DEPTH {
            return self.found("deeper nesting", format!("at most {MAX_DEPTH} levels"));
        }
        self.skip_blank();
        match self.peek() {
            Some(b'"') => self.quoted("a string").map(Attr::Text),
            Some(b'[') => self.items("[", "]", depth).map(Attr::List),
            Some(b'{') => self.items("{", "}", depth).map(Attr::Set),
            Some(b'-' | b'0'..=b'9') => self.numeric(),
            Some(b'_' | b'a'..=b'z' | b'A'..=b'Z') => self.worded(depth),
            _ => self.expected("a value"),
        }
    }

    fn items(&mut self, open: &str, close: &str, depth: usize) -> Result<Vec<Attr>> {
        self.expect(open)?;
        let mut out = Vec::new();
        if self.take(close) {
            return Ok(out);
        }
        loop {
            out.push(self.attr(depth + 1)?);
            if !self.take(",") {
                break;
            }
        }
        self.expect(close)?;
        Ok(out)
    }

    fn numeric(&mut self) -> Result<Attr> {
        let start = self.clone();
        if self.take("-inf") {
            return Ok(Attr::Float(f64::NEG_INFINITY));
        }
        let text = self.run_of(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e'));
        let value = if text.contains(['.', 'e']) {
            float_from_text(text).map(Attr::Float)
        } else {
            text.parse().ok().map(Attr::Int)
        };
        match value {
            Some(v) => Ok(v),
            None => start.expected("a number"),
        }
    }

    fn worded(&mut self, depth: usize) -> Result<Attr> {
        let start = self.clone();
        let word = self.run_of(is_word_byte);
        match (word, self.peek()) {
            ("inf", _) => Ok(Attr::Float(f64::INFINITY)),
            ("nan", Some(b':')) => {
                self.at += 1;
                let bits = self.run_of(|b| b.is_ascii_alphanumeric());
                match float_from_text(&format!("nan:{bits}")) {
                    Some(x) => Ok(Attr::Float(x)),
                    None => start.expected("nan:0x and the bits of a NaN"),
                }
            }
            ("x", Some(b'"')) => {
                self.at += 1;
                let digits = self.run_of(|b| b.is_ascii_hexdigit());
                match from_hex(digits) {
                    Some(bytes) => self.expect("\"").map(|()| Attr::Hex(bytes)),
                    None => start.found("an odd number of digits", "whole bytes"),
                }
            }
            (_, Some(b'[')) => match DType::from_name(word) {
                Some(dtype) => self.type_after(dtype).map(Attr::Type),
                None => start.found(format!("`{word}[`"), "an element type before `[`"),
            },
            (_, Some(b'(')) => self.arguments(depth).map(|a| Attr::Call(word.to_owned(), a)),
            _ => Ok(Attr::Word(word.to_owned())),
        }
    }

    fn arguments(&mut self, depth: usize) -> Result<Vec<(Option<String>, Attr)>> {
        self.expect("(")?;
        let mut out = Vec::new();
        if self.take(")") {
            return Ok(out);
        }
        loop {
            self.skip_blank();
            let before = self.clone();
            let key = match self.word("") {
                Ok(word) if self.peek() == Some(b'=') => {
                    self.at += 1;
                    Some(word.to_owned())
                }
                _ => {
                    *self = before;
                    None
                }
            };
            out.push((key, self.attr(depth + 1)?));
            if !self.take(",") {
                break;
            }
        }
        self.expect(")")?;
        Ok(out)
    }
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'.'
}
