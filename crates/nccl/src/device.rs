//! The GPU of a rank: context, stream, memory. Everything on one stream, in order.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DriverError};

use crate::error::CommError;

/// Oldest driver whose functions are called: CUDA 12.0.
const NEEDED_DRIVER: i32 = 12_000;

/// One GPU and the stream this rank uses on it.
#[derive(Clone, Debug)]
pub struct Device {
    stream: Arc<CudaStream>,
}

/// Bytes on a GPU; CUDA has no allocation of no bytes, so that is `None`.
#[derive(Debug)]
pub struct DeviceBuffer(pub(crate) Option<CudaSlice<u8>>);

impl Device {
    /// GPU number `ordinal`, as CUDA counts them.
    pub fn open(ordinal: usize) -> Result<Device, CommError> {
        // `cudarc` panics when it calls into a driver that is not there, so this comes first.
        // SAFETY: looks for the driver library by its usual names; opening it has no other effect.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(CommError::Cuda {
                what: format!("opening GPU {ordinal}"),
                detail: "no CUDA driver library (libcuda.so.1) is installed".into(),
            });
        }
        let mut version = 0;
        // SAFETY: `version` is writable; the function exists in every driver.
        let got = unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) };
        got.result().map_err(cuda("reading the driver's version"))?;
        if version < NEEDED_DRIVER {
            let show = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
            return Err(CommError::Cuda {
                what: "checking the driver".into(),
                detail: format!("found CUDA {}, needed >= {}", show(version), show(NEEDED_DRIVER)),
            });
        }
        let context = CudaContext::new(ordinal).map_err(cuda(format!("opening GPU {ordinal}")))?;
        let stream = context.new_stream().map_err(cuda("making a stream"))?;
        Ok(Device { stream })
    }

    /// Name of the GPU.
    pub fn name(&self) -> Result<String, CommError> {
        self.stream.context().name().map_err(cuda("reading the GPU's name"))
    }

    /// Host and GPU as text; equal for ranks that share a GPU.
    pub(crate) fn identity(&self) -> Result<String, CommError> {
        let uuid = self.stream.context().uuid().map_err(cuda("reading the GPU's id"))?;
        let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(format!("{} {:?}", host.trim(), uuid.bytes))
    }

    /// Makes the GPU current for this thread, as NCCL wants it.
    pub(crate) fn bind(&self) -> Result<(), CommError> {
        self.stream.context().bind_to_thread().map_err(cuda("making the GPU current"))
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// A buffer holding `bytes`.
    pub fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer, CommError> {
        if bytes.is_empty() {
            return Ok(DeviceBuffer(None));
        }
        let copied = self.stream.clone_htod(bytes);
        let buffer = copied.map_err(cuda(format!("copying {} bytes to the GPU", bytes.len())))?;
        // The copy may still read `bytes` afterwards if the driver stages it.
        self.stream.synchronize().map_err(cuda("waiting for a copy"))?;
        Ok(DeviceBuffer(Some(buffer)))
    }

    /// What a buffer holds.
    pub fn download(&self, buffer: &DeviceBuffer) -> Result<Vec<u8>, CommError> {
        let Some(slice) = &buffer.0 else { return Ok(Vec::new()) };
        let bytes = self.stream.clone_dtoh(slice).map_err(cuda("copying from the GPU"))?;
        self.stream.synchronize().map_err(cuda("waiting for a copy"))?;
        Ok(bytes)
    }

    /// Marks the present end of the stream.
    pub(crate) fn mark(&self) -> Result<CudaEvent, CommError> {
        self.stream.record_event(None).map_err(cuda("recording an event"))
    }
}

impl DeviceBuffer {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, CudaSlice::len)
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Turns a driver error into ours.
pub(crate) fn cuda(what: impl Into<String>) -> impl FnOnce(DriverError) -> CommError {
    let what = what.into();
    move |e| CommError::Cuda { what, detail: format!("{e:?}") }
}
