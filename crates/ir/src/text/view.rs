//! Weight views as attribute values: `absent`, `zip(..)`, `raw(..)`, `safetensors(..)`, `concat(..)`.

use std::path::PathBuf;

use super::attr::{Attr, static_type};
use crate::types::{DType, TensorType};
use crate::weight::{Blob, BlobEntry, StridedView, WeightView, row_major_strides};

pub(super) fn write_view(view: &WeightView) -> Attr {
    let int = |n: u64| (None, Attr::Int(i128::from(n)));
    match view {
        WeightView::Absent => Attr::Word("absent".into()),
        WeightView::Concat { dim, parts } => {
            let mut arguments = vec![int(u64::from(*dim))];
            arguments.extend(parts.iter().map(|p| (None, write_view(p))));
            Attr::Call("concat".into(), arguments)
        }
        WeightView::Strided(v) => {
            // `verify` refuses paths that are not Unicode.
            let mut arguments = vec![(None, Attr::Text(v.blob.file.to_string_lossy().into_owned()))];
            let kind = match &v.blob.entry {
                BlobEntry::Raw { offset, len } => {
                    arguments.extend([int(*offset), int(*len)]);
                    "raw"
                }
                BlobEntry::Zip(entry) => {
                    arguments.push((None, Attr::Text(entry.clone())));
                    "zip"
                }
                BlobEntry::Safetensors(name) => {
                    arguments.push((None, Attr::Text(name.clone())));
                    "safetensors"
                }
            };
            arguments.push((None, static_type(v.dtype, &v.shape)));
            if v.strides != row_major_strides(&v.shape) {
                let strides = v.strides.iter().map(|&s| Attr::Int(i128::from(s))).collect();
                arguments.push((Some("strides".into()), Attr::List(strides)));
            }
            if v.offset != 0 {
                arguments.push((Some("offset".into()), Attr::Int(i128::from(v.offset))));
            }
            Attr::Call(kind.into(), arguments)
        }
    }
}

/// Reads what [`write_view`] writes; `Err` says what was expected.
pub(super) fn read_view(attr: Attr) -> Result<WeightView, String> {
    const EXPECTED: &str = "absent, concat(..), zip(..), raw(..) or safetensors(..)";
    let (kind, arguments) = match attr {
        Attr::Word(w) if w == "absent" => return Ok(WeightView::Absent),
        Attr::Call(kind, arguments) => (kind, arguments),
        _ => return Err(EXPECTED.into()),
    };
    let mut arguments = arguments.into_iter();
    let mut next = |what: &str| match arguments.next() {
        Some((None, a)) => Ok(a),
        _ => Err(format!("{what} in {kind}(..)")),
    };
    match kind.as_str() {
        "concat" => {
            let dim = number(&next("a dimension")?).and_then(|n| u32::try_from(n).ok());
            let dim = dim.ok_or("a dimension in concat(..)")?;
            let mut parts = Vec::new();
            for (key, a) in arguments {
                if key.is_some() {
                    return Err("views in concat(..)".into());
                }
                parts.push(read_view(a)?);
            }
            Ok(WeightView::Concat { dim, parts })
        }
        "raw" | "zip" | "safetensors" => {
            let file = PathBuf::from(text(next("a file")?).ok_or("a quoted file name")?);
            let entry = match kind.as_str() {
                "raw" => {
                    let offset = number(&next("the first byte")?).ok_or("the first byte as a number")?;
                    let len = number(&next("the number of bytes")?).ok_or("the number of bytes")?;
                    BlobEntry::Raw { offset, len }
                }
                "zip" => BlobEntry::Zip(text(next("an entry")?).ok_or("a quoted entry name")?),
                _ => BlobEntry::Safetensors(text(next("a tensor")?).ok_or("a quoted tensor name")?),
            };
            let (dtype, shape) = window_type(next("a type")?).ok_or("a type with numbers as sizes")?;
            let mut view = StridedView::contiguous(Blob { file, entry }, dtype, &shape);
            let mut seen: Vec<Option<String>> = Vec::new();
            for (key, a) in arguments {
                if seen.contains(&key) {
                    return Err("strides and offset once".into());
                }
                seen.push(key.clone());
                match (key.as_deref(), a) {
                    (Some("strides"), Attr::List(items)) => {
                        view.strides =
                            items.iter().map(number).collect::<Option<_>>().ok_or("strides as numbers")?;
                    }
                    (Some("offset"), a) => view.offset = number(&a).ok_or("the offset as a number")?,
                    _ => return Err("strides=[..] or offset=N".into()),
                }
            }
            Ok(WeightView::Strided(view))
        }
        _ => Err(EXPECTED.into()),
    }
}

fn number(attr: &Attr) -> Option<u64> {
    match attr {
        Attr::Int(i) => u64::try_from(*i).ok(),
        _ => None,
    }
}

fn text(attr: Attr) -> Option<String> {
    match attr {
        Attr::Text(t) => Some(t),
        _ => None,
    }
}

fn window_type(attr: Attr) -> Option<(DType, Vec<u64>)> {
    match attr {
        Attr::Type(TensorType { dtype, shape }) => Some((dtype, shape.as_static()?)),
        _ => None,
    }
}
