//! The device mesh and the groups that collectives run over. Nothing here knows about tensors.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most ranks a mesh may have; far above any machine, low enough that per-rank tables stay small.
pub const MAX_RANKS: u64 = 65_536;

/// Most axes a mesh may have; 16 of size 2 already reach [`MAX_RANKS`].
pub const MAX_AXES: usize = 64;

/// A named axis of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MeshAxis {
    /// Name, such as `cp` or `tp`.
    pub name: String,
    /// Number of coordinates along the axis, at least 1.
    pub size: u32,
}

/// Index of an axis in its [`Mesh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AxisId(pub u32);

/// Named axes with sizes. Rank numbers are row-major: the last axis varies fastest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mesh {
    axes: Vec<MeshAxis>,
}

/// What is wrong with a mesh or a group.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MeshError {
    /// An axis of size 0.
    #[error("mesh axis `{0}` has size 0; every axis needs at least one coordinate")]
    EmptyAxis(String),
    /// Two axes with one name, or a name that the text form cannot hold.
    #[error("mesh axis name `{0}` is empty, repeated, or not made of letters, digits and `_`")]
    BadName(String),
    /// Too many ranks.
    #[error("the mesh has {0} ranks; at most {MAX_RANKS} are allowed")]
    TooManyRanks(u64),
    /// Too many axes.
    #[error("the mesh has {0} axes; at most {MAX_AXES} are allowed")]
    TooManyAxes(usize),
    /// A group names an axis that the mesh does not have.
    #[error("the group names mesh axis #{axis}; the mesh has {axes} axes")]
    NoSuchAxis {
        /// Index found.
        axis: u32,
        /// Axes of the mesh.
        axes: usize,
    },
    /// A group names an axis twice.
    #[error("the group names mesh axis `{0}` twice")]
    RepeatedAxis(String),
    /// An explicit group list is no ordered partition of the ranks into equal parts.
    #[error("the rank lists {lists} do not split the {world} ranks into groups of one size: {reason}")]
    NotAPartition {
        /// The lists as text.
        lists: String,
        /// Ranks of the mesh.
        world: u32,
        /// What is wrong.
        reason: String,
    },
}

impl Mesh {
    /// A mesh of the given axes, first axis major.
    pub fn new<N: Into<String>>(axes: impl IntoIterator<Item = (N, u32)>) -> Result<Mesh, MeshError> {
        let axes: Vec<MeshAxis> =
            axes.into_iter().map(|(name, size)| MeshAxis { name: name.into(), size }).collect();
        let mesh = Mesh { axes };
        mesh.validate()?;
        Ok(mesh)
    }

    /// Checks what [`Mesh::new`] checks; for meshes that came through serde.
    pub fn validate(&self) -> Result<(), MeshError> {
        if self.axes.len() > MAX_AXES {
            return Err(MeshError::TooManyAxes(self.axes.len()));
        }
        let mut world = 1u64;
        for (i, a) in self.axes.iter().enumerate() {
            let good = !a.name.is_empty() && a.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !good || self.axes[..i].iter().any(|b| b.name == a.name) {
                return Err(MeshError::BadName(a.name.clone()));
            }
            if a.size == 0 {
                return Err(MeshError::EmptyAxis(a.name.clone()));
            }
            world = world.saturating_mul(u64::from(a.size));
        }
        if world > MAX_RANKS {
            return Err(MeshError::TooManyRanks(world));
        }
        Ok(())
    }

    /// The axes, major first.
    pub fn axes(&self) -> &[MeshAxis] {
        &self.axes
    }

    /// Number of ranks; 1 for a mesh without axes.
    pub fn world_size(&self) -> u32 {
        self.axes.iter().map(|a| a.size).product()
    }

    /// The axis called `name`.
    pub fn axis(&self, name: &str) -> Option<AxisId> {
        self.axes.iter().position(|a| a.name == name).map(|i| AxisId(i as u32))
    }

    /// Size of an axis; `None` if the mesh has no such axis.
    pub fn axis_size(&self, axis: AxisId) -> Option<u32> {
        self.axes.get(axis.0 as usize).map(|a| a.size)
    }

    /// Coordinates of a global rank, one per axis.
    pub fn coordinates(&self, rank: u32) -> Vec<u32> {
        let mut rest = rank;
        let mut c = vec![0; self.axes.len()];
        for (i, a) in self.axes.iter().enumerate().rev() {
            c[i] = rest % a.size;
            rest /= a.size;
        }
        c
    }

    /// Coordinate of a global rank on one axis; 0 if the mesh has no such axis.
    pub fn coordinate(&self, rank: u32, axis: AxisId) -> u32 {
        self.coordinates(rank).get(axis.0 as usize).copied().unwrap_or(0)
    }

    /// Global rank at the given coordinates (one per axis).
    pub fn rank_at(&self, coordinates: &[u32]) -> u32 {
        self.axes.iter().zip(coordinates).fold(0, |r, (a, c)| r * a.size + c)
    }

    /// Index of a rank in a row-major table over `axes`, as weight shards are stored.
    pub fn index_over(&self, rank: u32, axes: &[AxisId]) -> usize {
        let c = self.coordinates(rank);
        axes.iter().fold(0usize, |i, a| {
            let at = a.0 as usize;
            i * self.axes.get(at).map_or(1, |x| x.size as usize) + c.get(at).map_or(0, |&x| x as usize)
        })
    }

    /// The group over all axes, in mesh order: the whole world.
    pub fn world_group(&self) -> Group {
        Group::Axes((0..self.axes.len() as u32).map(AxisId).collect())
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, a) in self.axes.iter().enumerate() {
            write!(f, "{}{}={}", if i > 0 { ", " } else { "" }, a.name, a.size)?;
        }
        f.write_str("]")
    }
}

/// Who takes part in a collective. The group of *one* rank is derived with [`Group::members`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Ranks that agree on all other axes, ordered with the first listed axis major.
    Axes(Vec<AxisId>),
    /// An explicit ordered partition of all ranks into groups of one size.
    Ranks(Vec<Vec<u32>>),
}

impl Group {
    /// A group over one axis.
    pub fn axis(axis: AxisId) -> Group {
        Group::Axes(vec![axis])
    }

    /// Checks the group against a mesh.
    pub fn validate(&self, mesh: &Mesh) -> Result<(), MeshError> {
        match self {
            Group::Axes(axes) => {
                for (i, a) in axes.iter().enumerate() {
                    let Some(axis) = mesh.axes.get(a.0 as usize) else {
                        return Err(MeshError::NoSuchAxis { axis: a.0, axes: mesh.axes.len() });
                    };
                    if axes[..i].contains(a) {
                        return Err(MeshError::RepeatedAxis(axis.name.clone()));
                    }
                }
                Ok(())
            }
            Group::Ranks(lists) => {
                let world = mesh.world_size();
                let fail =
                    |reason: String| MeshError::NotAPartition { lists: format!("{lists:?}"), world, reason };
                let Some(first) = lists.first() else { return Err(fail("no list".into())) };
                let mut seen = vec![false; world as usize];
                for l in lists {
                    if l.len() != first.len() {
                        return Err(fail(format!(
                            "one list has {} members, another {}",
                            first.len(),
                            l.len()
                        )));
                    }
                    for &r in l {
                        match seen.get_mut(r as usize) {
                            None => return Err(fail(format!("rank {r} does not exist"))),
                            Some(true) => return Err(fail(format!("rank {r} stands twice"))),
                            Some(s) => *s = true,
                        }
                    }
                }
                match seen.iter().position(|s| !s) {
                    Some(r) => Err(fail(format!("rank {r} is in no list"))),
                    None => Ok(()),
                }
            }
        }
    }

    /// Number of ranks in each group. Meaningful for a validated group.
    pub fn size(&self, mesh: &Mesh) -> u32 {
        match self {
            Group::Axes(axes) => axes.iter().map(|&a| mesh.axis_size(a).unwrap_or(1)).product(),
            Group::Ranks(lists) => lists.first().map_or(0, |l| l.len() as u32),
        }
    }

    /// Global ranks of the group that `rank` is in, in group order. Meaningful for a validated group.
    pub fn members(&self, mesh: &Mesh, rank: u32) -> Vec<u32> {
        match self {
            Group::Axes(axes) => {
                let mut c = mesh.coordinates(rank);
                (0..self.size(mesh))
                    .map(|i| {
                        let mut rest = i;
                        for a in axes.iter().rev() {
                            let size = mesh.axis_size(*a).unwrap_or(1);
                            if let Some(slot) = c.get_mut(a.0 as usize) {
                                *slot = rest % size;
                            }
                            rest /= size;
                        }
                        mesh.rank_at(&c)
                    })
                    .collect()
            }
            Group::Ranks(lists) => lists.iter().find(|l| l.contains(&rank)).cloned().unwrap_or_default(),
        }
    }

    /// Position of `rank` in its own group. Meaningful for a validated group.
    pub fn position(&self, mesh: &Mesh, rank: u32) -> u32 {
        match self {
            Group::Axes(axes) => mesh.index_over(rank, axes) as u32,
            Group::Ranks(_) => self.members(mesh, rank).iter().position(|&r| r == rank).unwrap_or(0) as u32,
        }
    }

    /// All groups, each in group order, sorted by their smallest member.
    pub fn all(&self, mesh: &Mesh) -> Vec<Vec<u32>> {
        match self {
            Group::Ranks(lists) => {
                let mut l = lists.clone();
                l.sort_by_key(|g| g.iter().min().copied());
                l
            }
            Group::Axes(_) => {
                let mut seen = vec![false; mesh.world_size() as usize];
                let mut out = Vec::new();
                for r in 0..mesh.world_size() {
                    if !seen[r as usize] {
                        let g = self.members(mesh, r);
                        for &m in &g {
                            seen[m as usize] = true;
                        }
                        out.push(g);
                    }
                }
                out
            }
        }
    }

    /// The same groups over mesh axes if there are such axes (any order), else unchanged.
    ///
    /// Axes of size 1 are never named in the result.
    pub fn normalised(&self, mesh: &Mesh) -> Group {
        let Group::Ranks(_) = self else { return self.clone() };
        let wanted = self.all(mesh);
        let axes: Vec<AxisId> = (0..mesh.axes.len() as u32)
            .map(AxisId)
            .filter(|a| {
                mesh.axis_size(*a) != Some(1)
                    && wanted.first().is_some_and(|g| {
                        let base = g.first().map_or(0, |&r| mesh.coordinate(r, *a));
                        g.iter().any(|&r| mesh.coordinate(r, *a) != base)
                    })
            })
            .collect();
        let product: u64 = axes.iter().map(|&a| u64::from(mesh.axis_size(a).unwrap_or(1))).product();
        if product != u64::from(self.size(mesh)) {
            return self.clone();
        }
        permutations(&axes)
            .into_iter()
            .map(Group::Axes)
            .find(|g| g.all(mesh) == wanted)
            .unwrap_or_else(|| self.clone())
    }
}

/// All orders of a few axes (meshes have a handful; above 6 only the given order is tried).
fn permutations(axes: &[AxisId]) -> Vec<Vec<AxisId>> {
    if axes.len() > 6 {
        return vec![axes.to_vec()];
    }
    let mut out = vec![vec![]];
    for &a in axes {
        out = out
            .into_iter()
            .flat_map(|p: Vec<AxisId>| {
                (0..=p.len()).map(move |i| {
                    let mut q = p.clone();
                    q.insert(i, a);
                    q
                })
            })
            .collect();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        Mesh::new([("cp", 4), ("tp", 2)]).unwrap()
    }

    #[test]
    fn groups_follow_axis_order() {
        let m = mesh();
        let (cp, tp) = (AxisId(0), AxisId(1));
        assert_eq!(Group::axis(cp).all(&m), vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
        assert_eq!(Group::axis(tp).members(&m, 5), vec![4, 5]);
        assert_eq!(Group::Axes(vec![tp, cp]).members(&m, 0), vec![0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(Group::Axes(vec![tp, cp]).position(&m, 1), 4);
    }

    #[test]
    fn explicit_lists_become_axes_only_where_they_are() {
        let m = mesh();
        let lists = Group::Ranks(vec![vec![1, 3, 5, 7], vec![0, 2, 4, 6]]);
        assert_eq!(lists.normalised(&m), Group::axis(AxisId(0)));
        let swapped = Group::Ranks(vec![vec![3, 1, 5, 7], vec![0, 2, 4, 6]]);
        assert_eq!(swapped.normalised(&m), swapped);
    }

    #[test]
    fn partitions_are_checked() {
        let m = mesh();
        assert!(Group::Ranks(vec![vec![0, 1, 2], vec![3, 4, 5]]).validate(&m).is_err());
        assert!(Group::Ranks(vec![vec![0, 1, 2, 3], vec![4, 5, 6, 6]]).validate(&m).is_err());
        assert!(Group::Ranks(vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]).validate(&m).is_ok());
        assert!(Group::Axes(vec![AxisId(0), AxisId(0)]).validate(&m).is_err());
    }
}
