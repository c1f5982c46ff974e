//! The live sink: replays a trace onto an installed TensorRT library. All `unsafe` of the crate is in this folder.

#[allow(missing_docs, non_upper_case_globals, non_camel_case_types, clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings;
mod library;
mod session;

pub use library::{Library, LibraryError, header_version};
pub use session::{CallError, ProgressEvent, ProgressFn};

#[cfg(test)]
mod micro {
    use super::bindings::*;
    use super::*;
    #[test]
    fn micro() {
        let lib = Library::find(crate::flavour::Flavour::TensorRtRtx, None).unwrap();
        println!("{:?} {:?}", lib, header_version(crate::flavour::Flavour::TensorRtRtx));
        let s = session::Session::new(&lib).unwrap();
        let d = SwtDims { nb_dims: 2, d: [8, 16, 0, 0, 0, 0, 0, 0] };
        let x = s.add_input("x", SwtDataType::SWT_DTYPE_FLOAT, &d).unwrap();
        let n = std::env::var("NM").unwrap_or("weird %name [a] + b, (c):d".into());
        let g = s.add_collective(&n, x, (SwtCollective::SWT_COLLECTIVE_ALL_GATHER, SwtReduce::SWT_REDUCE_NONE), -1, &[0, 1]).unwrap();
        println!("{:?}", s.tensor_type(g));
        let g2 = s.add_unary("sin1", g, SwtUnary::SWT_UNARY_SIN).unwrap();
        let r = s.add_collective("ar {1}\"q\"", g2, (SwtCollective::SWT_COLLECTIVE_ALL_REDUCE, SwtReduce::SWT_REDUCE_SUM), -1, &[0, 1]).unwrap();
        let r2 = s.add_unary("exp1", r, SwtUnary::SWT_UNARY_EXP).unwrap();
        let b = s.add_collective("bc", r2, (SwtCollective::SWT_COLLECTIVE_BROADCAST, SwtReduce::SWT_REDUCE_NONE), 1, &[0, 1]).unwrap();
        let r3 = s.add_unary("exp2", b, SwtUnary::SWT_UNARY_EXP).unwrap();
        s.mark_output(r3, "y").unwrap();
        let (bytes, listing) = s.build(80, 1, Some(&|e| {println!("{e:?}"); true})).unwrap();
        println!("{} bytes\n{}", bytes.len(), listing);
        println!("{}", s.nb_layers());
    }
}
