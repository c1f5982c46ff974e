//! Inputs and outputs of all ranks in one safetensors file, under keys `rank{r}/in/NAME` and `rank{r}/out/NAME`.

use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use shardweld_ir::DType;
use shardweld_ir::store::safetensors_dtype;
use thiserror::Error;

use crate::error::KernelError;
use crate::evaluate::Named;
use crate::tensor::Tensor;

/// Whether tensors are a rank's inputs or outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `in`
    Input,
    /// `out`
    Output,
}

impl Role {
    /// Key of a rank's tensor.
    pub fn key(self, rank: usize, name: &str) -> String {
        let role = match self {
            Role::Input => "in",
            Role::Output => "out",
        };
        format!("rank{rank}/{role}/{name}")
    }
}

/// Why a tensor file cannot be read or written.
#[derive(Debug, Error)]
pub enum TensorFileError {
    /// The operating system refuses.
    #[error("{action} {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not a safetensors file.
    #[error("{}: not a safetensors file: {reason}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An element type that the IR does not have.
    #[error("{}: tensor `{key}` has element type {dtype}, which is not supported", file.display())]
    DType {
        /// The file.
        file: PathBuf,
        /// Key of the tensor.
        key: String,
        /// Element type found.
        dtype: String,
    },
    /// A tensor whose data do not fit its type.
    #[error("{}: tensor `{key}`: {source}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// Key of the tensor.
        key: String,
        /// What is wrong.
        source: KernelError,
    },
}

/// All tensors of a safetensors file by key.
///
/// # Errors
/// If the file cannot be read or a tensor has an unknown type.
pub fn read(file: &Path) -> Result<Named<Tensor>, TensorFileError> {
    let bytes = std::fs::read(file).map_err(|source| TensorFileError::Io {
        file: file.to_owned(),
        action: "reading",
        source,
    })?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|e| TensorFileError::Format { file: file.to_owned(), reason: e.to_string() })?;
    let mut all = Named::new();
    for (key, view) in tensors.iter() {
        let dtype = safetensors_dtype(view.dtype()).ok_or_else(|| TensorFileError::DType {
            file: file.to_owned(),
            key: key.to_owned(),
            dtype: format!("{:?}", view.dtype()),
        })?;
        let tensor = Tensor::from_bytes(dtype, view.shape(), view.data()).map_err(|source| {
            TensorFileError::Tensor { file: file.to_owned(), key: key.to_owned(), source }
        })?;
        all.insert(key.to_owned(), tensor);
    }
    Ok(all)
}

/// The tensors of each rank in one role; other keys are left out, and a rank without any has an empty list.
pub fn of_ranks(all: &Named<Tensor>, role: Role, ranks: usize) -> Vec<Named<Tensor>> {
    (0..ranks)
        .map(|r| {
            let prefix = role.key(r, "");
            all.range(prefix.clone()..)
                .take_while(|(k, _)| k.starts_with(&prefix))
                .map(|(k, t)| (k[prefix.len()..].to_owned(), t.clone()))
                .collect()
        })
        .collect()
}

/// Writes tensors by key. The file appears when it is complete, or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn write(file: &Path, all: &Named<Tensor>) -> Result<(), TensorFileError> {
    let io = |action| move |source| TensorFileError::Io { file: file.to_owned(), action, source };
    let mut views = Vec::with_capacity(all.len());
    for (key, t) in all {
        let view = TensorView::new(dtype_of(t.dtype()), t.shape().to_vec(), t.bytes())
            .map_err(|e| TensorFileError::Format { file: file.to_owned(), reason: e.to_string() })?;
        views.push((key, view));
    }
    let bytes = safetensors::serialize(views, None)
        .map_err(|e| TensorFileError::Format { file: file.to_owned(), reason: e.to_string() })?;
    let folder = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::NamedTempFile::new_in(folder).map_err(io("creating a file beside"))?;
    part.write_all(&bytes).map_err(io("writing"))?;
    part.as_file().sync_all().map_err(io("writing"))?;
    part.persist(file).map_err(|e| io("writing")(e.error))?;
    Ok(())
}

/// All ranks' tensors under the keys of a role.
pub fn keyed(ranks: &[Named<Tensor>], role: Role) -> Named<Tensor> {
    ranks
        .iter()
        .enumerate()
        .flat_map(|(r, named)| named.iter().map(move |(name, t)| (role.key(r, name), t.clone())))
        .collect()
}

fn dtype_of(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F64 => Dtype::F64,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_by_rank() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.safetensors");
        let named = |v: f32| Named::from([("y".to_owned(), Tensor::new(&[1], &[v]).unwrap())]);
        let ranks: Vec<_> = (0..11).map(|r| named(r as f32)).collect();
        write(&file, &keyed(&ranks, Role::Output)).unwrap();
        let all = read(&file).unwrap();
        assert_eq!(all["rank10/out/y"].slice::<f32>(), [10.0]);
        let back = of_ranks(&all, Role::Output, 11);
        assert_eq!(back[1]["y"].slice::<f32>(), [1.0]);
        assert!(of_ranks(&all, Role::Input, 11).iter().all(Named::is_empty));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn bad_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("short.safetensors");
        std::fs::write(&file, b"not a tensor file").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("short.safetensors"));
        let missing = folder.path().join("none").join("t.safetensors");
        assert!(matches!(read(&missing), Err(TensorFileError::Io { .. })));
        assert!(matches!(write(&missing, &Named::new()), Err(TensorFileError::Io { .. })));
    }
}
