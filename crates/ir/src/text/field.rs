//! How each kind of op field is written as an attribute value and read back.

use super::attr::Attr;
use crate::literal::Scalar;
use crate::mesh::{AxisId, Group, Mesh};
use crate::op::{Binary, GatherMode, NormKind, ReduceKind, ReduceOp};
use crate::types::DType;

/// A field of an op. `read` gives what was expected if the value is of another kind.
pub(super) trait Field: Sized {
    fn write(&self, mesh: &Mesh) -> Attr;
    fn read(attr: &Attr, mesh: &Mesh) -> Result<Self, String>;
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Field for $t {
            fn write(&self, _: &Mesh) -> Attr {
                Attr::Int(i128::from(*self))
            }
            fn read(attr: &Attr, _: &Mesh) -> Result<Self, String> {
                match attr {
                    Attr::Int(i) => <$t>::try_from(*i).ok(),
                    _ => None,
                }
                .ok_or_else(|| format!("a whole number from 0 to {}", <$t>::MAX))
            }
        }
    )* };
}
integers!(u32, u64);

macro_rules! words {
    ($($t:ty),*) => { $(
        impl Field for $t {
            fn write(&self, _: &Mesh) -> Attr {
                Attr::Word(self.name().to_owned())
            }
            fn read(attr: &Attr, _: &Mesh) -> Result<Self, String> {
                match attr {
                    Attr::Word(w) => <$t>::from_name(w),
                    _ => None,
                }
                .ok_or_else(|| {
                    let names: Vec<_> = <$t>::ALL.iter().map(|m| m.name()).collect();
                    format!("one of {}", names.join(", "))
                })
            }
        }
    )* };
}
words!(DType, Binary, GatherMode, NormKind, ReduceKind, ReduceOp);

impl Field for bool {
    fn write(&self, _: &Mesh) -> Attr {
        Attr::Word(self.to_string())
    }
    fn read(attr: &Attr, _: &Mesh) -> Result<Self, String> {
        match attr {
            Attr::Word(w) if w == "true" => Ok(true),
            Attr::Word(w) if w == "false" => Ok(false),
            _ => Err("true or false".into()),
        }
    }
}

impl Field for Scalar {
    fn write(&self, mesh: &Mesh) -> Attr {
        match *self {
            Scalar::Float(x) => Attr::Float(x),
            Scalar::Int(i) => Attr::Int(i128::from(i)),
            Scalar::Bool(b) => b.write(mesh),
        }
    }
    fn read(attr: &Attr, mesh: &Mesh) -> Result<Self, String> {
        let value = match attr {
            Attr::Float(x) => Some(Scalar::Float(*x)),
            Attr::Int(i) => i64::try_from(*i).ok().map(Scalar::Int),
            other => bool::read(other, mesh).ok().map(Scalar::Bool),
        };
        value.ok_or_else(|| "a number (floats with a point), true or false".into())
    }
}

impl Field for Option<DType> {
    fn write(&self, mesh: &Mesh) -> Attr {
        self.map_or_else(|| Attr::Word("none".into()), |d| d.write(mesh))
    }
    fn read(attr: &Attr, mesh: &Mesh) -> Result<Self, String> {
        match attr {
            Attr::Word(w) if w == "none" => Ok(None),
            other => DType::read(other, mesh).map(Some),
        }
    }
}

impl Field for String {
    fn write(&self, _: &Mesh) -> Attr {
        Attr::Text(self.clone())
    }
    fn read(attr: &Attr, _: &Mesh) -> Result<Self, String> {
        match attr {
            Attr::Text(t) => Ok(t.clone()),
            _ => Err("a quoted string".into()),
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn write(&self, mesh: &Mesh) -> Attr {
        Attr::List(self.iter().map(|x| x.write(mesh)).collect())
    }
    fn read(attr: &Attr, mesh: &Mesh) -> Result<Self, String> {
        match attr {
            Attr::List(items) => items
                .iter()
                .map(|a| T::read(a, mesh).map_err(|e| format!("a list whose members are {e}")))
                .collect(),
            _ => Err("a list `[..]`".into()),
        }
    }
}

impl Field for (u64, u64) {
    fn write(&self, mesh: &Mesh) -> Attr {
        vec![self.0, self.1].write(mesh)
    }
    fn read(attr: &Attr, mesh: &Mesh) -> Result<Self, String> {
        match Vec::<u64>::read(attr, mesh).as_deref() {
            Ok(&[a, b]) => Ok((a, b)),
            _ => Err("a pair `[before, after]`".into()),
        }
    }
}

impl Field for AxisId {
    fn write(&self, mesh: &Mesh) -> Attr {
        match mesh.axes().get(self.0 as usize) {
            Some(axis) => Attr::name(&axis.name),
            // Only a graph that `verify` refuses gets here; the number cannot be read back as an axis.
            None => Attr::Int(i128::from(self.0)),
        }
    }
    fn read(attr: &Attr, mesh: &Mesh) -> Result<Self, String> {
        match attr {
            Attr::Word(w) | Attr::Text(w) => mesh.axis(w),
            _ => None,
        }
        .ok_or_else(|| format!("an axis of the mesh {mesh}"))
    }
}

impl Field for Group {
    fn write(&self, mesh: &Mesh) -> Attr {
        match self {
            Group::Axes(axes) => axes.write(mesh),
            Group::Ranks(lists) => {
                let set = |l: &Vec<u32>| Attr::Set(l.iter().map(|r| r.write(mesh)).collect());
                Attr::Set(lists.iter().map(set).collect())
            }
        }
    }
    fn read(attr: &Attr, mesh: &Mesh) -> Result<Self, String> {
        let expected = || format!("axes `[a, b]` of the mesh {mesh} or rank lists `{{{{0,1}}, {{2,3}}}}`");
        let ranks = |attr: &Attr| match attr {
            Attr::Set(items) => items.iter().map(|r| u32::read(r, mesh).map_err(|_| expected())).collect(),
            _ => Err(expected()),
        };
        match attr {
            Attr::List(_) => Vec::read(attr, mesh).map(Group::Axes).map_err(|_| expected()),
            Attr::Set(lists) => lists.iter().map(ranks).collect::<Result<_, _>>().map(Group::Ranks),
            _ => Err(expected()),
        }
    }
}
