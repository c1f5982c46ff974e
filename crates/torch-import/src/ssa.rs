//! The functional form of one exported graph: a list of IR ops in execution order, each with one result, before ranks are unified.

use shardweld_ir::{InferError, Mesh, Op, TensorType, infer};

/// Index of a node, and so of its result.
pub(crate) type Val = u32;

/// One op of the list.
#[derive(Clone, Debug)]
pub(crate) struct SsaNode {
    pub op: Op,
    pub operands: Vec<Val>,
    pub ty: TensorType,
    /// Index in [`Ssa::sources`].
    pub source: u32,
}

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Ssa {
    pub nodes: Vec<SsaNode>,
    /// Names of the exported nodes (and inputs) that ops stand for.
    pub sources: Vec<String>,
    /// For each source, the value that carries its name: the last one made for it.
    pub named: Vec<Option<Val>>,
}

impl Ssa {
    /// Starts a new source: following ops stand for it.
    pub fn begin(&mut self, source: &str) {
        self.sources.push(source.to_owned());
        self.named.push(None);
    }

    /// Adds an op for the current source; its type is computed by the IR's shape rules.
    pub fn add(&mut self, mesh: &Mesh, op: Op, operands: &[Val]) -> Result<Val, String> {
        let ty = {
            let types: Vec<&TensorType> = operands.iter().map(|&v| self.ty(v)).collect();
            let mut results =
                infer(&op, &types, mesh, &[]).map_err(|e: InferError| format!("{}: {e}", op.name()))?;
            match (results.pop(), results.pop()) {
                (Some(ty), None) => ty,
                _ => return Err(format!("{}: more than one result", op.name())),
            }
        };
        Ok(self.add_typed(op, operands, ty))
    }

    /// Adds an op whose type is given: inputs, weights and what stands in for refused nodes.
    pub fn add_typed(&mut self, op: Op, operands: &[Val], ty: TensorType) -> Val {
        if self.sources.is_empty() {
            self.begin("graph");
        }
        let source = self.sources.len() as u32 - 1;
        self.nodes.push(SsaNode { op, operands: operands.to_vec(), ty, source });
        let val = self.nodes.len() as Val - 1;
        if let Some(n) = self.named.last_mut() {
            *n = Some(val);
        }
        val
    }

    /// Type of a value of this list.
    pub fn ty(&self, v: Val) -> &TensorType {
        &self.nodes[v as usize].ty
    }
}
