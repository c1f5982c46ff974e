//! Small networks: made by the trace builder, run by the interpreter, tampered with through their serialised form.

use serde_json::Value;
use shardweld_interp::{Named, Tensor};
use shardweld_ir::{DType, WeightStore};
use shardweld_trt::interpret::{InterpretError, interpret};
use shardweld_trt::trace::{Call, NetworkTrace, TensorId, TraceBuilder};

/// A network of one layer called `layer` with inputs `x0`, `x1`, .. and the output `y`.
pub fn network(inputs: &[&Tensor], call: impl FnOnce(&[TensorId]) -> Call) -> NetworkTrace {
    let mut b = TraceBuilder::new("test", 1);
    let ids: Vec<TensorId> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| {
            b.input(&format!("x{i}"), t.dtype(), &t.shape().iter().map(|&d| d as u64).collect::<Vec<_>>())
                .unwrap()
        })
        .collect();
    let y = b.add("layer", &[], call(&ids)).unwrap();
    b.output("y", y).unwrap();
    b.finish().unwrap()
}

/// The trace with its JSON edited; only the interpreter's own rules stand between it and nonsense.
pub fn tampered(trace: &NetworkTrace, edit: impl FnOnce(&mut Value)) -> NetworkTrace {
    let mut json = serde_json::to_value(trace).unwrap();
    edit(&mut json);
    serde_json::from_value(json).unwrap()
}

/// The layer called `name` in a trace's JSON.
pub fn layer<'a>(json: &'a mut Value, name: &str) -> &'a mut Value {
    json["layers"].as_array_mut().unwrap().iter_mut().find(|l| l["name"] == name).unwrap()
}

pub fn named(inputs: &[&Tensor]) -> Named<Tensor> {
    inputs.iter().enumerate().map(|(i, &t)| (format!("x{i}"), t.clone())).collect()
}

pub fn run(trace: &NetworkTrace, inputs: &[&Tensor]) -> Result<Tensor, InterpretError> {
    interpret(&[trace], &WeightStore::new(), &[named(inputs)]).map(|mut o| o[0].remove("y").unwrap())
}

/// Result of one layer.
pub fn apply(inputs: &[&Tensor], call: impl FnOnce(&[TensorId]) -> Call) -> Tensor {
    run(&network(inputs, call), inputs).unwrap()
}

pub fn f32s(shape: &[usize], elements: &[f32]) -> Tensor {
    Tensor::new(shape, elements).unwrap()
}

pub fn i32s(shape: &[usize], elements: &[i32]) -> Tensor {
    Tensor::new(shape, elements).unwrap()
}

pub fn cast(x: &Tensor, to: DType) -> Tensor {
    shardweld_interp::cast::cast(x, to).unwrap()
}

/// Elements as f32.
pub fn floats(x: &Tensor) -> Vec<f32> {
    cast(x, DType::F32).slice::<f32>().to_vec()
}

#[track_caller]
pub fn assert_close(x: &Tensor, expected: &[f32]) {
    let found = floats(x);
    let close = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= 1e-6 * b.abs().max(1.0);
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(close),
        "{found:?}, expected {expected:?}"
    );
}

/// Asserts that a trace is refused before anything runs, by a rule with the given words.
#[track_caller]
pub fn assert_refused(trace: &NetworkTrace, words: &str) {
    // Without inputs anything but a refusal would be another error.
    match interpret(&[trace], &WeightStore::new(), &vec![Named::new(); trace.world_size() as usize]) {
        Err(InterpretError::Refused(r)) if r.rule.contains(words) => {}
        other => panic!("expected a refusal with `{words}`, got {other:?}"),
    }
}
