//! One communicator per group of a program, made in the same order on all ranks.

use shardweld_ir::{Graph, GraphError, Group, Mesh};

use crate::error::CommError;
use crate::transport::Transport;

/// The communicators of one rank, by group.
#[derive(Debug)]
pub struct Groups<C> {
    comms: Vec<(Group, C)>,
}

impl<C> Groups<C> {
    /// Makes one communicator for each distinct group. All ranks call it together.
    ///
    /// The ranks first agree on the mesh and the list of groups: communicators made in different orders would pair up
    /// wrongly or hang.
    pub fn create<T: Transport<Comm = C>>(
        transport: &mut T,
        mesh: &Mesh,
        groups: &[Group],
    ) -> Result<Groups<C>, CommError> {
        mesh.validate()?;
        let mut distinct: Vec<&Group> = Vec::new();
        for g in groups {
            g.validate(mesh)?;
            if !distinct.contains(&g) {
                distinct.push(g);
            }
        }
        let partitions: Vec<Vec<Vec<u32>>> = distinct.iter().map(|g| g.all(mesh)).collect();
        let text = format!("{} ranks, {partitions:?}", mesh.world_size());
        transport
            .agree("the mesh and the groups of the program", *blake3::hash(text.as_bytes()).as_bytes())?;
        let comms = distinct
            .into_iter()
            .zip(&partitions)
            .map(|(g, p)| Ok((g.clone(), transport.split(p)?)))
            .collect::<Result<_, CommError>>()?;
        Ok(Groups { comms })
    }

    /// The communicator of a group.
    pub fn get_mut(&mut self, group: &Group) -> Result<&mut C, CommError> {
        match self.comms.iter().position(|(g, _)| g == group) {
            Some(i) => Ok(&mut self.comms[i].1),
            None => Err(CommError::UnknownGroup {
                group: format!("{group:?}"),
                known: self.comms.iter().map(|(g, _)| format!("{g:?}")).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

/// The distinct groups of a graph's collectives, in the order in which the program first uses them.
pub fn groups_of(graph: &Graph) -> Result<Vec<Group>, GraphError> {
    let mut groups: Vec<Group> = Vec::new();
    for id in graph.order()? {
        if let Some((_, g)) = graph.node(id).op.collective()
            && !groups.contains(g)
        {
            groups.push(g.clone());
        }
    }
    Ok(groups)
}
