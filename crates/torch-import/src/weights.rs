//! Where a program's parameters lie: the archive's payload tables, or a safetensors file by parameter name. Nothing is read here but the tables.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use rustc_hash::FxHashMap;
use safetensors::tensor::Metadata;
use shardweld_ir::{
    Blob, BlobEntry, DType, StridedView, TensorType, WeightView, store::safetensors_dtype,
    weight::row_major_strides,
};

use crate::{
    archive::{Entry, ModelFile},
    call::dtype_of,
    error::ImportError,
    schema::{PayloadConfig, SymInt, TensorMeta},
};

/// Most bytes of a safetensors header that are read.
pub const MAX_SAFETENSORS_HEADER: u64 = 256 << 20;

/// The weights' entry before torch 2.8.
const PICKLED_WEIGHTS: &str = "serialized_state_dict.pt";

/// Where weights come from.
pub(crate) enum Payloads {
    /// Nowhere: a bare graph JSON.
    Absent,
    /// A pickle in the archive, as torch wrote them before 2.9: not read, since a pickle is a program.
    Pickled { file: PathBuf, entry: String },
    /// The archive of the model.
    Archive { file: PathBuf, places: FxHashMap<String, Place> },
    /// A safetensors file.
    Safetensors { file: PathBuf, tensors: FxHashMap<String, (Option<DType>, Vec<u64>)> },
}

/// An archive entry and how the tensor lies in it.
pub(crate) struct Place {
    entry: Entry,
    pickled: bool,
    meta: Option<TensorMeta>,
}

fn bad(file: &Path, weight: &str, reason: impl Into<String>) -> ImportError {
    ImportError::Weight { file: file.into(), weight: weight.into(), reason: reason.into() }
}

impl Payloads {
    /// Reads the tables of an archive.
    pub fn of_archive(model: &mut ModelFile) -> Result<Payloads, ImportError> {
        let Some(archive) = &mut model.archive else { return Ok(Payloads::Absent) };
        for entry in [PICKLED_WEIGHTS.to_owned(), format!("data/weights/{}.pt", model.model_name)] {
            if archive.entry(&entry).is_some() {
                return Ok(Payloads::Pickled { file: model.path.clone(), entry });
            }
        }
        let mut places = FxHashMap::default();
        for (folder, suffix) in [("data/constants", "constants"), ("data/weights", "weights")] {
            let config_name = format!("{folder}/{}_{suffix}_config.json", model.model_name);
            let Some(entry) = archive.entry(&config_name).cloned() else { continue };
            let text = archive.read_json(&model.path, &entry)?;
            let config: PayloadConfig = serde_json::from_slice(&text).map_err(|e| ImportError::Archive {
                file: model.path.clone(),
                reason: format!("entry {config_name:?}: {e}"),
            })?;
            for (fqn, p) in config.config {
                let name = format!("{folder}/{}", p.path_name);
                let entry = archive
                    .entry(&name)
                    .ok_or_else(|| bad(&model.path, &fqn, format!("the archive has no entry {name:?}")))?;
                places
                    .insert(fqn, Place { entry: entry.clone(), pickled: p.use_pickle, meta: p.tensor_meta });
            }
        }
        Ok(Payloads::Archive { file: model.path.clone(), places })
    }

    /// Reads the header of a safetensors file.
    pub fn of_safetensors(file: &Path) -> Result<Payloads, ImportError> {
        let io = |source| ImportError::Io { file: file.into(), source };
        let malformed = |reason: String| ImportError::Archive { file: file.into(), reason };
        let mut reader = File::open(file).map_err(io)?;
        let mut head = vec![0; 8];
        reader
            .read_exact(&mut head)
            .map_err(|_| malformed("no safetensors file: shorter than its header".into()))?;
        let len = u64::from_le_bytes(head.as_slice().try_into().unwrap_or_default());
        if len > MAX_SAFETENSORS_HEADER {
            return Err(malformed(format!("no safetensors file: a header of {len} bytes")));
        }
        head.clear();
        (&mut reader).take(len).read_to_end(&mut head).map_err(io)?;
        // Whether the data are all there is checked when they are read.
        let meta: Metadata =
            serde_json::from_slice(&head).map_err(|e| malformed(format!("no safetensors file: {e}")))?;
        let tensors = meta
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                (name, (safetensors_dtype(info.dtype), info.shape.iter().map(|d| *d as u64).collect()))
            })
            .collect();
        Ok(Payloads::Safetensors { file: file.into(), tensors })
    }

    /// The view that a parameter of the given type is, and the archive entry if it is all of one.
    pub fn view(&self, fqn: &str, ty: &TensorType) -> Result<(WeightView, Option<Entry>), ImportError> {
        let shape = ty.shape.as_static().unwrap_or_default();
        match self {
            Payloads::Pickled { file, entry } => Err(bad(
                file,
                fqn,
                format!(
                    "lies in the pickle {entry:?} of an older torch, which is not read: give the state dict as a safetensors file, or export with torch 2.9 or newer"
                ),
            )),
            Payloads::Absent => Ok((WeightView::Absent, None)),
            Payloads::Archive { file, places } => {
                let place =
                    places.get(fqn).ok_or_else(|| bad(file, fqn, "the archive holds no data for it"))?;
                if place.pickled {
                    return Err(bad(
                        file,
                        fqn,
                        format!("entry {:?} is a pickle; pickles are not read", place.entry),
                    ));
                }
                let (strides, offset) = match &place.meta {
                    None => (row_major_strides(&shape), 0),
                    Some(m) => layout(m, ty).map_err(|r| bad(file, fqn, r))?,
                };
                let blob = Blob { file: file.clone(), entry: BlobEntry::Zip(place.entry.name.clone()) };
                let view = StridedView { blob, dtype: ty.dtype, shape, strides, offset };
                let needed = view.end().and_then(|e| e.checked_mul(ty.dtype.size() as u64));
                match needed {
                    Some(n) if n <= place.entry.size => {
                        let whole = n == place.entry.size && offset == 0 && view.is_contiguous();
                        Ok((WeightView::Strided(view), whole.then(|| place.entry.clone())))
                    }
                    _ => Err(bad(
                        file,
                        fqn,
                        format!(
                            "entry {:?} holds {} bytes, but {ty} (strides {:?}, offset {offset}) needs {}",
                            place.entry.name,
                            place.entry.size,
                            view.strides,
                            needed.map_or("more than memory can hold".into(), |n| n.to_string())
                        ),
                    )),
                }
            }
            Payloads::Safetensors { file, tensors } => {
                let (dtype, found) =
                    tensors.get(fqn).ok_or_else(|| bad(file, fqn, "the file has no such tensor"))?;
                if *dtype != Some(ty.dtype) || *found != shape {
                    let dtype = dtype.map_or("unsupported".into(), |d| d.to_string());
                    return Err(bad(file, fqn, format!("is {dtype} {found:?}, the graph expects {ty}")));
                }
                let blob = Blob { file: file.clone(), entry: BlobEntry::Safetensors(fqn.to_owned()) };
                Ok((WeightView::Strided(StridedView::contiguous(blob, ty.dtype, &shape)), None))
            }
        }
    }
}

/// Strides and offset of a stored tensor, which must have the type that the graph gives it.
fn layout(meta: &TensorMeta, ty: &TensorType) -> Result<(Vec<u64>, u64), String> {
    let number = |s: &SymInt| {
        s.as_int()
            .and_then(|i| u64::try_from(i).ok())
            .ok_or_else(|| format!("{s:?} in its table entry is no number"))
    };
    let sizes = meta.sizes.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let dtype = dtype_of(meta.dtype)?;
    if dtype != ty.dtype || Some(&sizes) != ty.shape.as_static().as_ref() {
        return Err(format!("is stored as {dtype}{sizes:?}, the graph expects {ty}"));
    }
    let strides = meta.strides.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    if strides.len() != sizes.len() {
        return Err(format!("{} strides for {} dimensions", strides.len(), sizes.len()));
    }
    let offset = meta.storage_offset.as_ref().map_or(Ok(0), number)?;
    Ok((strides, offset))
}
