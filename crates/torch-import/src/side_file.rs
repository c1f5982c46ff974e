//! The JSON form of a side file (`docs/groups-file.md`): its fields, and what can be checked of them without the groups' meaning.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::Deserialize;
use serde_json::Value;
use shardweld_ir::{DType, Mesh};

use crate::{call::dtype_of, error::ImportError, schema::scalar_type_name};

/// A group as one rank's table defines it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GroupEntry {
    /// Global ranks in group order.
    pub ranks: Vec<u32>,
    /// What torch calls it, such as `mesh_cp`; empty if not given.
    #[serde(default)]
    pub desc: String,
    /// Position of the table's rank in `ranks`, checked if given.
    #[serde(default)]
    pub(crate) this_rank_in_group: Option<u32>,
}

/// A name, and the type if it is given, of a program input or output.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PublicTensor {
    /// Public name.
    pub name: String,
    /// Local shape, checked if given.
    #[serde(default)]
    pub shape: Option<Vec<u64>>,
    /// Element type as torch calls it (`float32`, `torch.int64`), checked if given.
    #[serde(default)]
    pub dtype: Option<String>,
}

impl fmt::Display for PublicTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)?;
        if let Some(dtype) = &self.dtype {
            write!(f, " {dtype}")?;
        }
        match &self.shape {
            Some(shape) => write!(f, " {shape:?}"),
            None => Ok(()),
        }
    }
}

/// The element type that torch calls by this name, with or without `torch.` before it.
pub(crate) fn dtype_named(name: &str) -> Option<DType> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    (0..=MAX_SCALAR_TYPE).filter(|n| scalar_type_name(*n) == name).find_map(|n| dtype_of(n).ok())
}

/// Above the largest number of an element type in torch.
const MAX_SCALAR_TYPE: i64 = 64;

/// Group name to members.
pub(crate) type Table = BTreeMap<String, GroupEntry>;

/// The whole file.
#[derive(Deserialize)]
pub(crate) struct SideFile {
    #[serde(default)]
    pub world_size: Option<u32>,
    #[serde(default)]
    pub rank: Option<u32>,
    #[serde(default)]
    pub mesh: Option<MeshForm>,
    #[serde(default)]
    pub groups_of_this_rank: Option<Table>,
    #[serde(default)]
    pub groups: Option<BTreeMap<u32, Table>>,
    #[serde(default)]
    pub inputs: Option<Vec<PublicTensor>>,
    #[serde(default)]
    pub outputs: Option<Vec<PublicTensor>>,
}

/// `mesh`.
#[derive(Deserialize)]
pub(crate) struct MeshForm {
    shape: Vec<u32>,
    #[serde(default)]
    dim_names: Option<Vec<String>>,
    #[serde(default)]
    coordinate: Option<Coordinate>,
}

/// Where a rank is in the mesh: by axis name, or in the order of the axes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Coordinate {
    Named(BTreeMap<String, u32>),
    Ordered(Vec<u32>),
}

pub(crate) fn bad(file: &Path, reason: impl Into<String>) -> ImportError {
    ImportError::Groups { file: file.into(), reason: reason.into() }
}

impl SideFile {
    /// Reads the JSON; `path` is for messages.
    pub fn parse(path: &Path, text: &[u8]) -> Result<SideFile, ImportError> {
        let wrong = |e: String| bad(path, format!("not a groups side file: {e}"));
        let json: Value = serde_json::from_slice(text).map_err(|e| wrong(e.to_string()))?;
        check_form(&json).map_err(wrong)?;
        serde_json::from_slice(text).map_err(|e| wrong(e.to_string()))
    }
}

/// Objects stand where objects belong: serde would take an array for an object's fields in order.
fn check_form(json: &Value) -> Result<(), String> {
    let file = json.as_object().ok_or_else(|| format!("the file is {}, expected an object", kind(json)))?;
    let mut objects: Vec<(String, &Value)> = Vec::new();
    let given = |field: &str| file.get(field).filter(|v| !v.is_null()).map(|v| (field.to_owned(), v));
    objects.extend(given("mesh"));
    for (field, depth) in [("groups_of_this_rank", 1), ("groups", 2)] {
        let mut level: Vec<(String, &Value)> = given(field).into_iter().collect();
        for _ in 0..depth {
            let mut next = Vec::new();
            for (place, v) in &level {
                next.extend(v.as_object().into_iter().flatten().map(|(k, v)| (format!("{place}.{k}"), v)));
            }
            objects.append(&mut level);
            level = next;
        }
        objects.append(&mut level);
    }
    for (field, list) in [given("inputs"), given("outputs")].into_iter().flatten() {
        let list = list
            .as_array()
            .ok_or_else(|| format!("`{field}` is {}, expected an array of objects", kind(list)))?;
        objects.extend(list.iter().enumerate().map(|(i, v)| (format!("{field}.{i}"), v)));
    }
    match objects.into_iter().find(|(_, v)| !v.is_object()) {
        Some((place, v)) => Err(format!("`{place}` is {}, expected an object", kind(v))),
        None => Ok(()),
    }
}

fn kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The name that an axis has in the IR: torch allows any characters, the IR letters, digits and `_`.
pub(crate) fn axis_name(torch: &str) -> String {
    torch.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

impl MeshForm {
    /// The mesh; `rank` is the rank that the file says it is of.
    pub fn mesh(self, path: &Path, rank: Option<u32>) -> Result<Mesh, ImportError> {
        let names =
            self.dim_names.unwrap_or_else(|| (0..self.shape.len()).map(|i| format!("axis{i}")).collect());
        if names.len() != self.shape.len() {
            return Err(bad(
                path,
                format!("the mesh has {} sizes and {} names", self.shape.len(), names.len()),
            ));
        }
        let mut taken: BTreeMap<String, &str> = BTreeMap::new();
        for name in &names {
            if name.is_empty() {
                return Err(bad(path, "the name of a mesh axis is empty"));
            }
            let mapped = axis_name(name);
            match taken.insert(mapped.clone(), name) {
                Some(other) if other == name => {
                    return Err(bad(path, format!("two axes are called `{name}`")));
                }
                Some(other) => {
                    return Err(bad(
                        path,
                        format!("the axes `{other}` and `{name}` are both `{mapped}` here: rename one"),
                    ));
                }
                None => {}
            }
        }
        let mesh = Mesh::new(names.iter().map(|n| axis_name(n)).zip(self.shape))
            .map_err(|e| bad(path, e.to_string()))?;
        // Without a rank it says nothing; the members of the groups do.
        if let (Some(given), Some(rank)) = (self.coordinate, rank) {
            check_coordinate(path, &mesh, &names, rank, given)?;
        }
        Ok(mesh)
    }
}

/// The IR's ranks are row-major in the mesh; torch allows any order, and states it only by each rank's coordinate.
fn check_coordinate(
    path: &Path,
    mesh: &Mesh,
    names: &[String],
    rank: u32,
    given: Coordinate,
) -> Result<(), ImportError> {
    if rank >= mesh.world_size() {
        return Err(bad(path, format!("`rank` is {rank}, the mesh {mesh} has {} ranks", mesh.world_size())));
    }
    let expected = mesh.coordinates(rank);
    let given: Vec<u32> = match given {
        Coordinate::Ordered(v) if v.len() == names.len() => v,
        // Axes of size 1 that are not in the mesh may be named too.
        Coordinate::Named(m)
            if names.iter().all(|n| m.contains_key(n))
                && m.iter().all(|(n, at)| *at == 0 || names.contains(n)) =>
        {
            names.iter().filter_map(|n| m.get(n).copied()).collect()
        }
        _ => {
            let axes = names.join(", ");
            return Err(bad(
                path,
                format!(
                    "`mesh.coordinate` of rank {rank} is not one number for each of the axes {axes}; expected {expected:?}"
                ),
            ));
        }
    };
    if given != expected {
        return Err(bad(
            path,
            format!(
                "`mesh.coordinate` of rank {rank} is {given:?}, but its row-major place in the mesh {mesh} is {expected:?}; meshes with another order of ranks are not supported"
            ),
        ));
    }
    Ok(())
}
