//! One builder with its network: safe calls over the C ABI. The only place that calls into TensorRT.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use super::bindings::*;
use super::library::Library;

/// Most error and warning lines that are kept; the first ones tell the cause.
const MAX_PROBLEM_LINES: usize = 200;
/// Most bytes of the final layer listing that are kept; 39k-node graphs need about 20 MB.
const MAX_LISTING_BYTES: usize = 512 << 20;
/// What the builder prints before the listing of the engine's layers.
const LISTING_START: &str = "Layers:";

/// A call that the library or the shim refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}{}", log_suffix(.log))]
pub struct CallError {
    /// What was refused, by which call.
    pub what: String,
    /// The library's own error and warning lines, oldest first.
    pub log: Vec<String>,
}

fn log_suffix(log: &[String]) -> String {
    log.iter().map(|l| format!("\n  TensorRT: {l}")).collect()
}

/// A step of the builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressEvent<'a> {
    /// A phase of `steps` steps begins, inside `parent` if that is one.
    Start {
        /// Name.
        phase: &'a str,
        /// Name of the enclosing phase.
        parent: Option<&'a str>,
        /// Number of steps.
        steps: u32,
    },
    /// A step of a phase is done.
    Step {
        /// Name.
        phase: &'a str,
        /// Number of the step, from 0.
        step: u32,
    },
    /// A phase is over.
    Finish {
        /// Name.
        phase: &'a str,
    },
}

/// Called from any of the builder's threads; `false` cancels the build at its next step.
pub type ProgressFn<'a> = dyn Fn(ProgressEvent<'_>) -> bool + Sync + 'a;

/// What the log callback collects.
#[derive(Debug, Default)]
struct LogState {
    problems: Vec<String>,
    listing: Option<String>,
}

/// A builder and its network. Tensors are numbered in the order of the calls that make them.
#[derive(Debug)]
pub(super) struct Session {
    raw: *mut SwtSession,
    api: &'static SwtApi,
    // Boxed: the callback holds its address.
    log: Box<Mutex<LogState>>,
    engine: Option<(*const u8, usize)>,
    // Last, so that the library outlives the session.
    _library: Library,
}

/// Calls an entry of the table; every entry is set by the shim.
macro_rules! call {
    ($s:expr, $f:ident $(, $arg:expr)* $(,)?) => {{
        let f = $s.api.$f.expect("the shim fills its whole table");
        // SAFETY: the session is live, arguments are valid for the call, and strings are NUL-terminated.
        unsafe { f($s.raw $(, $arg)*) }
    }};
}

impl Session {
    /// A new builder with an empty network.
    pub(super) fn new(library: &Library) -> Result<Session, CallError> {
        let api = library.api();
        let log = Box::new(Mutex::new(LogState::default()));
        let user = std::ptr::from_ref::<Mutex<LogState>>(&log).cast_mut().cast::<c_void>();
        let version = c_int::try_from(library.version().as_int()).unwrap_or(0);
        let create = api.create.expect("the shim fills its whole table");
        // SAFETY: `entry` is the library's entry point, `user` outlives the session (both are fields of it).
        let raw = unsafe { create(Some(library.entry()), version, Some(on_log), user) };
        if raw.is_null() {
            return Err(CallError {
                what: format!(
                    "{} {} ({}) gave no builder",
                    library.flavour(),
                    library.version(),
                    library.path().display()
                ),
                log: lock(&log).problems.clone(),
            });
        }
        Ok(Session { raw, api, log, engine: None, _library: library.clone() })
    }

    fn error(&self) -> CallError {
        let text = call!(self, last_error);
        // SAFETY: the shim returns a NUL-terminated string that lives until the next call on this session.
        let what = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        CallError { what, log: lock(&self.log).problems.clone() }
    }

    /// Turns the answer of a call into a tensor number.
    fn checked(&self, answer: i32) -> Result<i32, CallError> {
        if answer >= 0 { Ok(answer) } else { Err(self.error()) }
    }

    pub(super) fn add_input(&self, name: &str, dtype: SwtDataType, dims: &SwtDims) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_input, name.as_ptr(), dtype, dims))
    }

    /// `data` must stay alive and unchanged until the session is dropped or the build has returned.
    pub(super) fn add_constant(
        &self,
        name: &str,
        dtype: SwtDataType,
        dims: &SwtDims,
        data: &[u8],
        count: i64,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        let data = data.as_ptr().cast::<c_void>();
        self.checked(call!(self, add_constant, name.as_ptr(), dtype, dims, data, count))
    }

    pub(super) fn add_cast(&self, name: &str, input: i32, to: SwtDataType) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_cast, name.as_ptr(), input, to))
    }

    pub(super) fn add_unary(&self, name: &str, input: i32, op: SwtUnary) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_unary, name.as_ptr(), input, op))
    }

    pub(super) fn add_elementwise(
        &self,
        name: &str,
        a: i32,
        b: i32,
        op: SwtElementWise,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_elementwise, name.as_ptr(), a, b, op))
    }

    pub(super) fn add_activation(&self, name: &str, input: i32, op: SwtActivation) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_activation, name.as_ptr(), input, op))
    }

    pub(super) fn add_select(&self, name: &str, condition: i32, a: i32, b: i32) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_select, name.as_ptr(), condition, a, b))
    }

    pub(super) fn add_matmul(
        &self,
        name: &str,
        (a, transpose_a): (i32, bool),
        (b, transpose_b): (i32, bool),
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(
            self,
            add_matmul,
            name.as_ptr(),
            a,
            i32::from(transpose_a),
            b,
            i32::from(transpose_b)
        ))
    }

    pub(super) fn add_reduce(
        &self,
        name: &str,
        input: i32,
        op: SwtReduce,
        axes: u32,
        keep_dims: bool,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_reduce, name.as_ptr(), input, op, axes, i32::from(keep_dims)))
    }

    pub(super) fn add_softmax(&self, name: &str, input: i32, axis_mask: u32) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_softmax, name.as_ptr(), input, axis_mask))
    }

    pub(super) fn add_normalization(
        &self,
        name: &str,
        (input, scale, bias): (i32, i32, i32),
        axes: u32,
        epsilon: f32,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_normalization, name.as_ptr(), input, scale, bias, axes, epsilon))
    }

    pub(super) fn add_attention(
        &self,
        name: &str,
        (query, key, value): (i32, i32, i32),
        mask: Option<i32>,
        causal: SwtCausal,
        decomposable: bool,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(
            self,
            add_attention,
            name.as_ptr(),
            query,
            key,
            value,
            mask.unwrap_or(-1),
            causal,
            i32::from(decomposable)
        ))
    }

    pub(super) fn add_shuffle(
        &self,
        name: &str,
        input: i32,
        first: Option<&SwtPermutation>,
        reshape: Option<&SwtDims>,
        second: Option<&SwtPermutation>,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(
            self,
            add_shuffle,
            name.as_ptr(),
            input,
            ptr_or_null(first),
            ptr_or_null(reshape),
            ptr_or_null(second)
        ))
    }

    pub(super) fn add_slice(
        &self,
        name: &str,
        input: i32,
        start: &SwtDims,
        size: &SwtDims,
        stride: &SwtDims,
        fill: Option<i32>,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_slice, name.as_ptr(), input, start, size, stride, fill.unwrap_or(-1)))
    }

    pub(super) fn add_concat(&self, name: &str, inputs: &[i32], axis: i32) -> Result<i32, CallError> {
        let name = c_name(name)?;
        let count = i32::try_from(inputs.len()).unwrap_or(i32::MAX);
        self.checked(call!(self, add_concat, name.as_ptr(), inputs.as_ptr(), count, axis))
    }

    pub(super) fn add_gather(
        &self,
        name: &str,
        data: i32,
        indices: i32,
        axis: i32,
        elements: bool,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, add_gather, name.as_ptr(), data, indices, axis, i32::from(elements)))
    }

    pub(super) fn add_convolution(
        &self,
        name: &str,
        (input, kernel, bias): (i32, i32, Option<i32>),
        dtype: SwtDataType,
        desc: &SwtConvolutionDesc,
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        let bias = bias.unwrap_or(-1);
        self.checked(call!(self, add_convolution, name.as_ptr(), input, kernel, bias, dtype, desc))
    }

    pub(super) fn add_collective(
        &self,
        name: &str,
        input: i32,
        (op, reduce): (SwtCollective, SwtReduce),
        root: i64,
        ranks: &[i64],
    ) -> Result<i32, CallError> {
        let name = c_name(name)?;
        let desc = SwtCollectiveDesc {
            op,
            reduce,
            root,
            ranks: ranks.as_ptr(),
            nb_ranks: i64::try_from(ranks.len()).unwrap_or(0),
        };
        self.checked(call!(self, add_collective, name.as_ptr(), input, &raw const desc))
    }

    pub(super) fn mark_output(&self, tensor: i32, name: &str) -> Result<(), CallError> {
        let name = c_name(name)?;
        self.checked(call!(self, mark_output, tensor, name.as_ptr())).map(|_| ())
    }

    /// Type and shape that the library computed for a tensor.
    pub(super) fn tensor_type(&self, tensor: i32) -> Result<(SwtDataType, SwtDims), CallError> {
        let mut dtype = SwtDataType::SWT_DTYPE_FLOAT;
        let mut dims = SwtDims::default();
        self.checked(call!(self, tensor_type, tensor, &raw mut dtype, &raw mut dims))?;
        Ok((dtype, dims))
    }

    /// Number of layers in the network.
    pub(super) fn nb_layers(&self) -> i32 {
        call!(self, nb_layers)
    }

    /// Builds the engine and returns the builder's listing of its layers.
    pub(super) fn build(
        &mut self,
        compute_capability: i32,
        max_threads: i32,
        progress: Option<&ProgressFn<'_>>,
    ) -> Result<String, CallError> {
        let user = progress.as_ref().map_or(std::ptr::null_mut(), |p| {
            std::ptr::from_ref::<&ProgressFn<'_>>(p).cast_mut().cast::<c_void>()
        });
        let options = SwtBuildOptions {
            compute_capability,
            max_threads,
            progress: progress.map(|_| on_progress as _),
            progress_user: user,
        };
        let mut data = std::ptr::null();
        let mut size = 0usize;
        self.engine = None;
        lock(&self.log).listing = None;
        self.checked(call!(self, build, &raw const options, &raw mut data, &raw mut size))?;
        self.engine = Some((data.cast::<u8>(), size));
        Ok(lock(&self.log).listing.take().unwrap_or_default())
    }

    /// The bytes of the last engine built; empty if there is none.
    pub(super) fn engine(&self) -> &[u8] {
        match self.engine {
            // SAFETY: the shim handed out `size` bytes that live as long as the session, or until the next build, which
            // needs `&mut self`.
            Some((data, size)) => unsafe { std::slice::from_raw_parts(data, size) },
            None => &[],
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        call!(self, destroy);
    }
}

fn ptr_or_null<T>(x: Option<&T>) -> *const T {
    x.map_or(std::ptr::null(), std::ptr::from_ref)
}

fn c_name(name: &str) -> Result<CString, CallError> {
    CString::new(name)
        .map_err(|_| CallError { what: format!("the name {name:?} contains a NUL byte"), log: Vec::new() })
}

fn lock(m: &Mutex<LogState>) -> std::sync::MutexGuard<'_, LogState> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn on_log(user: *mut c_void, severity: i32, message: *const c_char) {
    // SAFETY: `user` is the address of the session's log, which outlives the builder; `message` is NUL-terminated.
    let (log, message) = unsafe { (&*user.cast::<Mutex<LogState>>(), CStr::from_ptr(message)) };
    let message = message.to_string_lossy();
    // A panic must not unwind into C++.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        const WARNING: i32 = 2;
        if severity <= WARNING {
            tracing::debug!(target: "tensorrt", severity, "{message}");
        } else {
            tracing::trace!(target: "tensorrt", severity, "{message}");
        }
        let mut log = lock(log);
        if severity <= WARNING && log.problems.len() < MAX_PROBLEM_LINES {
            log.problems.push(message.trim_end().to_owned());
        }
        if let Some(at) = message.find(LISTING_START).filter(|_| severity > WARNING) {
            log.listing = Some(message[at..].to_owned());
        } else if let Some(listing) = &mut log.listing
            && listing.len() + message.len() < MAX_LISTING_BYTES
        {
            listing.push('\n');
            listing.push_str(&message);
        }
    }));
}

unsafe extern "C" fn on_progress(
    user: *mut c_void,
    kind: SwtProgressKind,
    phase: *const c_char,
    parent: *const c_char,
    step: i32,
) -> i32 {
    let text = |p: *const c_char| {
        // SAFETY: TensorRT passes NUL-terminated strings or null.
        (!p.is_null()).then(|| unsafe { CStr::from_ptr(p) }.to_string_lossy())
    };
    let (phase, parent) = (text(phase).unwrap_or_default(), text(parent));
    let step = u32::try_from(step).unwrap_or(0);
    let event = match kind {
        SwtProgressKind::SWT_PROGRESS_START => {
            ProgressEvent::Start { phase: &phase, parent: parent.as_deref(), steps: step }
        }
        SwtProgressKind::SWT_PROGRESS_STEP => ProgressEvent::Step { phase: &phase, step },
        _ => ProgressEvent::Finish { phase: &phase },
    };
    // SAFETY: `user` is the address of the reference that `build` holds for as long as the builder runs.
    let f = unsafe { &*user.cast::<&ProgressFn<'_>>() };
    // A panic must not unwind into C++; it cancels the build instead.
    catch_unwind(AssertUnwindSafe(|| i32::from(f(event)))).unwrap_or(0)
}
