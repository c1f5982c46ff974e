//! The side file that says which ranks a group name means (`docs/groups-file.md`), and the resolution of names to mesh axes.
//!
//! A name in a graph is only what torch called the process group in the exporting process. It is looked up in the *exporting* rank's table
//! and turned into mesh axes, so that the graph then serves every rank.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use shardweld_ir::{AxisId, Group, Mesh};

pub use crate::side_file::{GroupEntry, PublicTensor};
use crate::{
    error::ImportError,
    side_file::{SideFile, Table, axis_name, bad},
};

/// Most bytes of a side file that are read.
pub const MAX_SIDE_FILE_BYTES: u64 = 64 << 20;

/// Name of the only axis where the side file gives a world size and no mesh.
pub const FLAT_AXIS: &str = "world";

/// Mesh, group tables and public names, from one or more side files.
#[derive(Clone, Debug)]
pub struct Groups {
    file: PathBuf,
    /// The rank that the file says it is of.
    rank: Option<u32>,
    mesh: Mesh,
    tables: BTreeMap<u32, Table>,
    /// Public names of the inputs, in order, if the side file has them.
    pub inputs: Option<Vec<PublicTensor>>,
    /// Public names of the outputs, in order, if the side file has them.
    pub outputs: Option<Vec<PublicTensor>>,
}

impl Groups {
    /// Reads side files: one, or one per rank (the tables are put together).
    ///
    /// # Errors
    /// If a file cannot be read, two files contradict each other, or a table is inconsistent.
    pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Groups, ImportError> {
        let mut all: Option<Groups> = None;
        let mut of_rank: BTreeMap<u32, &Path> = BTreeMap::new();
        for p in paths {
            let one = Groups::read_one(p.as_ref())?;
            let before = one.rank.and_then(|r| Some((r, of_rank.insert(r, p.as_ref())?)));
            if let Some((rank, other)) = before {
                let reason = format!("`rank` is {rank}, as in {}; each file is of one rank", other.display());
                return Err(bad(p.as_ref(), reason));
            }
            match &mut all {
                None => all = Some(one),
                Some(g) => g.merge(one)?,
            }
        }
        let groups = all.ok_or_else(|| ImportError::Ranks("no side file was given".into()))?;
        groups.check_overlaps()?;
        Ok(groups)
    }

    fn read_one(path: &Path) -> Result<Groups, ImportError> {
        let io = |source| ImportError::Io { file: path.into(), source };
        let mut text = Vec::new();
        File::open(path).map_err(io)?.take(MAX_SIDE_FILE_BYTES + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() as u64 > MAX_SIDE_FILE_BYTES {
            return Err(bad(path, format!("more than {MAX_SIDE_FILE_BYTES} bytes; a side file is small")));
        }
        Groups::from_json(path, &text)
    }

    /// Reads a side file's JSON; `path` is for messages.
    ///
    /// # Errors
    /// If it is not of the documented form or inconsistent.
    pub fn from_json(path: &Path, text: &[u8]) -> Result<Groups, ImportError> {
        let side = SideFile::parse(path, text)?;
        let rank = side.rank;
        let mut tables = side.groups.unwrap_or_default();
        if let Some(table) = side.groups_of_this_rank {
            let rank = rank.ok_or_else(|| bad(path, "`groups_of_this_rank` without `rank`"))?;
            tables.insert(rank, table);
        }
        if tables.is_empty() {
            return Err(bad(path, "neither `groups` (rank, then group name) nor `groups_of_this_rank`"));
        }
        let mesh = match side.mesh {
            Some(form) => form.mesh(path, rank)?,
            None => {
                let world =
                    side.world_size.ok_or_else(|| bad(path, "neither `mesh` nor `world_size` is given"))?;
                infer_mesh(path, world, &tables)?
            }
        };
        let world = mesh.world_size();
        if let Some(w) = side.world_size.filter(|w| *w != world) {
            return Err(bad(path, format!("`world_size` is {w}, the mesh {mesh} has {world} ranks")));
        }
        for (&rank, table) in &tables {
            check_table(path, rank, table, &mesh)?;
        }
        Ok(Groups { file: path.into(), rank, mesh, tables, inputs: side.inputs, outputs: side.outputs })
    }

    fn merge(&mut self, other: Groups) -> Result<(), ImportError> {
        if self.mesh != other.mesh {
            return Err(bad(
                &other.file,
                format!("mesh {}, but {} has {}", other.mesh, self.file.display(), self.mesh),
            ));
        }
        for (rank, table) in other.tables {
            if let Some(old) = self.tables.get(&rank).filter(|old| **old != table) {
                let name = table.keys().chain(old.keys()).find(|n| table.get(*n) != old.get(*n));
                return Err(bad(
                    &other.file,
                    format!(
                        "group `{}` of rank {rank} is not what {} says",
                        name.map_or("?", String::as_str),
                        self.file.display()
                    ),
                ));
            }
            self.tables.insert(rank, table);
        }
        let file = &self.file;
        for (what, mine, others) in
            [("inputs", &mut self.inputs, other.inputs), ("outputs", &mut self.outputs, other.outputs)]
        {
            match (mine, others) {
                (Some(mine), Some(others)) if *mine != others => {
                    let at = mine.iter().zip(&others).take_while(|(a, b)| a == b).count();
                    let shown = |v: &[PublicTensor]| v.get(at).map_or("nothing".into(), |t| t.to_string());
                    let reason = format!(
                        "number {at} of the {what} is {}, but {} has {}; all ranks have the same",
                        shown(&others),
                        file.display(),
                        shown(mine)
                    );
                    return Err(bad(&other.file, reason));
                }
                (mine @ None, others) => *mine = others,
                _ => {}
            }
        }
        Ok(())
    }

    /// Two ranks that give one name to two groups with a common member contradict each other.
    fn check_overlaps(&self) -> Result<(), ImportError> {
        let mut seen: BTreeMap<&str, Vec<(u32, &GroupEntry)>> = BTreeMap::new();
        for (&rank, table) in &self.tables {
            for (name, entry) in table {
                let others = seen.entry(name).or_default();
                for (other, e) in others.iter() {
                    if e.ranks != entry.ranks && e.ranks.iter().any(|r| entry.ranks.contains(r)) {
                        return Err(bad(
                            &self.file,
                            format!(
                                "group `{name}` is {:?} for rank {other} and {:?} for rank {rank}: one of them is wrong",
                                e.ranks, entry.ranks
                            ),
                        ));
                    }
                }
                if others.iter().all(|(_, e)| e.ranks != entry.ranks) {
                    others.push((rank, entry));
                }
            }
        }
        Ok(())
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The (first) side file, for messages.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The group that `name` means in a graph exported by one of `exporters`.
    ///
    /// # Errors
    /// If no exporter's table has the name, or two of them mean different groups by it.
    pub fn resolve(&self, name: &str, exporters: &[u32]) -> Result<Group, ImportError> {
        let mut found: Option<(u32, Group)> = None;
        for &rank in exporters {
            let Some(entry) = self.tables.get(&rank).and_then(|t| t.get(name)) else { continue };
            let group = self.group_of(name, rank, entry)?;
            match &found {
                Some((first, g)) if *g != group => {
                    return Err(bad(
                        &self.file,
                        format!(
                            "group `{name}` means one thing on rank {first} and another on rank {rank}; say which rank exported the graph"
                        ),
                    ));
                }
                Some(_) => {}
                None => found = Some((rank, group)),
            }
        }
        found.map(|(_, g)| g).ok_or_else(|| {
            let known: BTreeSet<&str> = exporters
                .iter()
                .filter_map(|r| self.tables.get(r))
                .flat_map(|t| t.keys().map(String::as_str))
                .collect();
            let have = if known.is_empty() {
                format!("it has tables for ranks {:?} only", self.tables.keys().collect::<Vec<_>>())
            } else {
                format!("it has {}", known.into_iter().collect::<Vec<_>>().join(", "))
            };
            bad(&self.file, format!("no group `{name}` for the rank that exported the graph; {have}"))
        })
    }

    /// Mesh axes in the order that gives exactly the members listed; else an explicit partition.
    fn group_of(&self, name: &str, rank: u32, entry: &GroupEntry) -> Result<Group, ImportError> {
        let mesh = &self.mesh;
        if let [_] = entry.ranks.as_slice() {
            let axis = entry.desc.strip_prefix("mesh_").and_then(|n| mesh.axis(&axis_name(n)));
            return Ok(Group::Axes(axis.into_iter().collect()));
        }
        let varying: Vec<AxisId> = (0..mesh.axes().len() as u32)
            .map(AxisId)
            .filter(|&a| entry.ranks.iter().any(|&r| mesh.coordinate(r, a) != mesh.coordinate(rank, a)))
            .collect();
        let by_axes = orders(&varying)
            .into_iter()
            .map(Group::Axes)
            .find(|g| g.size(mesh) as usize == entry.ranks.len() && g.members(mesh, rank) == entry.ranks);
        if let Some(group) = by_axes {
            return Ok(group);
        }
        self.partition(name, entry)
    }

    /// The groups of all ranks that go with one that is no set of axes: those of the same size and description.
    fn partition(&self, name: &str, entry: &GroupEntry) -> Result<Group, ImportError> {
        let mut lists: BTreeSet<&Vec<u32>> = BTreeSet::new();
        for t in self.tables.values() {
            let mut alike =
                t.iter().filter(|(_, e)| e.desc == entry.desc && e.ranks.len() == entry.ranks.len());
            let named =
                t.get(name).filter(|e| e.desc == entry.desc).or_else(|| match (alike.next(), alike.next()) {
                    (Some((_, only)), None) => Some(only),
                    _ => None,
                });
            lists.extend(named.map(|e| &e.ranks));
        }
        lists.insert(&entry.ranks);
        let group = Group::Ranks(lists.into_iter().cloned().collect());
        group.validate(&self.mesh).map_err(|e| {
            bad(
                &self.file,
                format!(
                    "group `{name}` {:?} is no set of axes of the mesh {}, and the groups of the other ranks that go with it are not known: {e}",
                    entry.ranks, self.mesh
                ),
            )
        })?;
        Ok(group)
    }
}

fn check_table(path: &Path, rank: u32, table: &Table, mesh: &Mesh) -> Result<(), ImportError> {
    let world = mesh.world_size();
    if rank >= world {
        return Err(bad(path, format!("a table for rank {rank}, but there are {world} ranks")));
    }
    for (name, e) in table {
        let fail =
            |what: String| Err(bad(path, format!("group `{name}` of rank {rank}, {:?}: {what}", e.ranks)));
        let mut sorted = e.ranks.clone();
        sorted.sort_unstable();
        if let Some(w) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return fail(format!("rank {} stands twice", w[0]));
        }
        if let Some(r) = sorted.last().filter(|r| **r >= world) {
            return fail(format!("rank {r} does not exist, there are {world} ranks"));
        }
        let Some(position) = e.ranks.iter().position(|r| *r == rank) else {
            return fail(format!("rank {rank} is not in it"));
        };
        if let Some(p) = e.this_rank_in_group.filter(|p| *p as usize != position) {
            return fail(format!(
                "`this_rank_in_group` is {p}, but rank {rank} stands at position {position}"
            ));
        }
        // Rank 0 has the same coordinates in every order of the ranks, so its groups must tell.
        let axis = e.desc.strip_prefix("mesh_").and_then(|n| mesh.axis(&axis_name(n)));
        let members = axis.map(|a| Group::Axes(vec![a]).members(mesh, rank)).unwrap_or_default();
        if members.len() == e.ranks.len() && members != e.ranks {
            return fail(format!(
                "`{}` has the members {members:?} where ranks are row-major in the mesh {mesh}; other meshes are not supported",
                e.desc
            ));
        }
    }
    Ok(())
}

/// The mesh that the groups called `mesh_AXIS` span, if that is unambiguous; one flat axis if there are none.
fn infer_mesh(path: &Path, world: u32, tables: &BTreeMap<u32, Table>) -> Result<Mesh, ImportError> {
    /// Size, and distance of neighbours in ranks.
    type Extent = (u32, u32);
    let mut axes: BTreeMap<&str, (Extent, &[u32])> = BTreeMap::new();
    for e in tables.values().flat_map(|t| t.values()) {
        let Some(axis) = e.desc.strip_prefix("mesh_").filter(|_| e.ranks.len() > 1) else { continue };
        let step = e.ranks[1].checked_sub(e.ranks[0]).filter(|s| *s > 0);
        let even = step.filter(|s| e.ranks.windows(2).all(|w| w[1].checked_sub(w[0]) == Some(*s)));
        let Some(step) = even else {
            return Err(bad(
                path,
                format!("the mesh cannot be told from group {:?} ({}): give `mesh`", e.ranks, e.desc),
            ));
        };
        let extent = (e.ranks.len() as u32, step);
        if let Some((old, ranks)) = axes.insert(axis, (extent, &e.ranks)).filter(|(old, _)| *old != extent) {
            return Err(bad(
                path,
                format!(
                    "axis `{axis}` is both {ranks:?} and {:?} (size {} and {}): give `mesh`",
                    e.ranks, old.0, extent.0
                ),
            ));
        }
    }
    if axes.is_empty() {
        return Mesh::new([(FLAT_AXIS, world)]).map_err(|e| bad(path, e.to_string()));
    }
    let mut sorted: Vec<(&str, Extent)> = axes.into_iter().map(|(n, (e, _))| (n, e)).collect();
    sorted.sort_by_key(|(_, (_, step))| std::cmp::Reverse(*step));
    let mut expected = u64::from(world);
    for (name, (size, step)) in &sorted {
        if u64::from(*size) * u64::from(*step) != expected {
            return Err(bad(
                path,
                format!(
                    "the groups do not span a row-major mesh of {world} ranks at axis `{name}` (size {size}, step {step}): give `mesh`"
                ),
            ));
        }
        expected = u64::from(*step);
    }
    if expected != 1 {
        return Err(bad(
            path,
            format!("no group is called `mesh_...` for the last axis, of size {expected}: give `mesh`"),
        ));
    }
    Mesh::new(sorted.into_iter().map(|(n, (s, _))| (axis_name(n), s))).map_err(|e| bad(path, e.to_string()))
}

/// All orders of a few axes; meshes have a handful, above 5 only the given order is tried.
fn orders(axes: &[AxisId]) -> Vec<Vec<AxisId>> {
    if axes.len() > 5 {
        return vec![axes.to_vec()];
    }
    axes.iter().fold(vec![vec![]], |all: Vec<Vec<AxisId>>, &a| {
        all.into_iter()
            .flat_map(|p| {
                (0..=p.len()).rev().map(move |i| {
                    let mut q = p.clone();
                    q.insert(i, a);
                    q
                })
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Groups, ImportError> {
        Groups::from_json(Path::new("side.json"), json.as_bytes())
            .and_then(|g| g.check_overlaps().map(|()| g))
    }

    const RANK_FORM: &str = r#"{"world_size": 8, "rank": 1, "mesh": {"shape": [4, 2], "dim_names": ["cp", "tp"]},
        "groups_of_this_rank": {"0": {"ranks": [0,1,2,3,4,5,6,7]}, "2": {"ranks": [1,3,5,7], "this_rank_in_group": 0},
        "3": {"ranks": [0,1]}, "9": {"ranks": [1,0]}, "x": {"ranks": [0,2,4,6,1,3,5,7]}, "p": {"ranks": [1,2]}, "t": {"ranks": [1,2,3]}}}"#;

    fn table_form(swap: bool) -> String {
        let tables: Vec<String> = (0..8)
            .map(|r| {
                let tp = r / 2 * 2;
                let pair = r / 4 * 4 + r % 4 % 2;
                let mut odd = vec![pair, pair + 2];
                if swap {
                    odd.reverse();
                }
                format!(
                    r#""{r}": {{"0": {{"ranks": [0,1,2,3,4,5,6,7], "desc": "default_pg"}},
                    "{}": {{"ranks": [{},{},{},{}], "desc": "mesh_cp"}}, "{}": {{"ranks": [{tp},{}], "desc": "mesh_tp"}},
                    "e": {{"ranks": {odd:?}, "desc": "mine"}}}}"#,
                    1 + r % 2,
                    r % 2,
                    r % 2 + 2,
                    r % 2 + 4,
                    r % 2 + 6,
                    3 + r / 2,
                    tp + 1
                )
            })
            .collect();
        format!(r#"{{"world_size": 8, "groups": {{{}}}}}"#, tables.join(","))
    }

    #[test]
    fn names_become_axes_in_order() {
        let g = read(RANK_FORM).unwrap();
        let (cp, tp) = (AxisId(0), AxisId(1));
        assert_eq!(g.resolve("2", &[1]).unwrap(), Group::Axes(vec![cp]));
        assert_eq!(g.resolve("3", &[0, 1, 2]).unwrap(), Group::Axes(vec![tp]));
        assert_eq!(g.resolve("0", &[1]).unwrap(), Group::Axes(vec![cp, tp]));
        assert_eq!(g.resolve("x", &[1]).unwrap(), Group::Axes(vec![tp, cp]));
    }

    #[test]
    fn a_missing_group_is_named_with_its_file() {
        let e = read(RANK_FORM).unwrap().resolve("7", &[1]).unwrap_err().to_string();
        assert!(e.contains("`7`") && e.contains("side.json"), "{e}");
        let e = read(RANK_FORM).unwrap().resolve("3", &[4]).unwrap_err().to_string();
        assert!(e.contains("`3`") && e.contains("[1]"), "{e}");
    }

    #[test]
    fn lists_that_are_no_axes_need_the_table_of_all_ranks() {
        for name in ["9", "p", "t"] {
            let e = read(RANK_FORM).unwrap().resolve(name, &[1]).unwrap_err().to_string();
            assert!(e.contains(&format!("`{name}`")), "{e}");
        }
        let g = read(&table_form(true)).unwrap();
        assert_eq!(
            g.resolve("e", &[1]).unwrap(),
            Group::Ranks(vec![vec![2, 0], vec![3, 1], vec![6, 4], vec![7, 5]])
        );
    }

    #[test]
    fn the_mesh_is_told_from_the_table_where_it_can_be() {
        let g = read(&table_form(false)).unwrap();
        assert_eq!(g.mesh(), &Mesh::new([("cp", 4), ("tp", 2)]).unwrap());
        assert_eq!(g.resolve("1", &(0..8).collect::<Vec<_>>()).unwrap(), Group::Axes(vec![AxisId(0)]));
        let e = read(&table_form(false).replace("mesh_tp", "mine_too")).unwrap_err().to_string();
        assert!(e.contains("give `mesh`"), "{e}");
    }

    #[test]
    fn a_rank_outside_its_group_is_refused() {
        let e = read(&RANK_FORM.replace("[1,3,5,7]", "[0,2,4,6]")).unwrap_err().to_string();
        assert!(e.contains("rank 1 is not in it") && e.contains("`2`"), "{e}");
        let e =
            read(&RANK_FORM.replace(r#""this_rank_in_group": 0"#, r#""this_rank_in_group": 1"#)).unwrap_err();
        assert!(e.to_string().contains("position 0"), "{e}");
    }

    #[test]
    fn ranks_that_contradict_each_other_are_refused() {
        let json =
            r#"{"world_size": 2, "groups": {"0": {"a": {"ranks": [0,1]}}, "1": {"a": {"ranks": [1,0]}}}}"#;
        let e = read(json).unwrap_err().to_string();
        assert!(e.contains("`a`") && e.contains("side.json"), "{e}");
    }

    #[test]
    fn a_world_size_against_the_mesh_is_refused() {
        assert!(read(&RANK_FORM.replace(r#""world_size": 8"#, r#""world_size": 4"#)).is_err());
        assert!(read(r#"{"groups": {}}"#).is_err());
        assert!(read("[").is_err());
    }

    /// Rank 2 of the mesh `[[0, 2], [1, 3]]`.
    const COLUMNS: &str = r#"{"world_size": 4, "rank": 2, "mesh": {"shape": [2, 2], "dim_names": ["dp", "tp"], "coordinate": {"dp": 0, "tp": 1}},
        "groups_of_this_rank": {"0": {"ranks": [0,1,2,3]}}}"#;

    #[test]
    fn a_coordinate_that_is_not_row_major_was_ignored() {
        for form in [COLUMNS.to_owned(), COLUMNS.replace(r#"{"dp": 0, "tp": 1}"#, "[0, 1]")] {
            let e = read(&form).unwrap_err().to_string();
            for word in ["side.json", "rank 2", "[0, 1]", "[1, 0]"] {
                assert!(e.contains(word), "`{word}` is not in: {e}");
            }
        }
        for good in [r#"{"dp": 1, "tp": 0}"#, r#"{"dp": 1, "tp": 0, "pp": 0}"#, "[1, 0]", "null"] {
            read(&COLUMNS.replace(r#"{"dp": 0, "tp": 1}"#, good)).unwrap();
        }
        for bad in [r#"{"dp": 1}"#, r#"{"dp": 1, "tp": 0, "pp": 1}"#, "[1]", r#"{"dp": 1, "pp": 0}"#] {
            let e = read(&COLUMNS.replace(r#"{"dp": 0, "tp": 1}"#, bad)).unwrap_err().to_string();
            assert!(e.contains("`mesh.coordinate` of rank 2") && e.contains("[1, 0]"), "{e}");
        }
        // Without a rank there is nothing to compare it with: the groups of all ranks are, below.
        let tables = |dp: [[u32; 2]; 2]| {
            let of = |r: u32| {
                let members = dp.iter().find(|g| g.contains(&r)).unwrap();
                format!(r#""{r}": {{"1": {{"ranks": {members:?}, "desc": "mesh_dp"}}}}"#)
            };
            let tables: Vec<String> = (0..4).map(of).collect();
            let all = format!(r#""groups": {{{}}}}}"#, tables.join(","));
            let (head, _) = COLUMNS.split_once(r#""groups_of_this_rank""#).unwrap();
            read(&(head.replace(r#""rank": 2, "#, "") + &all))
        };
        tables([[0, 2], [1, 3]]).unwrap();
        let e = tables([[0, 1], [2, 3]]).unwrap_err().to_string();
        assert!(e.contains("`mesh_dp`") && e.contains("row-major"), "{e}");
    }

    #[test]
    fn rank_0_alone_shows_a_mesh_that_is_not_row_major() {
        let table = |dp: &str| {
            let groups = format!(r#"{{"1": {{"ranks": {dp}, "desc": "mesh_dp"}}}}"#);
            let mesh = r#"{"shape": [2, 2], "dim_names": ["dp", "tp"], "coordinate": {"dp": 0, "tp": 0}}"#;
            read(&format!(r#"{{"rank": 0, "mesh": {mesh}, "groups_of_this_rank": {groups}}}"#))
        };
        let e = table("[0, 1]").unwrap_err().to_string();
        assert!(e.contains("`mesh_dp`") && e.contains("[0, 2]") && e.contains("row-major"), "{e}");
        table("[0, 2]").unwrap();
    }

    /// Two side files of one rank's form, read together.
    fn two(first: &str, second: &str) -> Result<Groups, ImportError> {
        let folder = tempfile::tempdir().unwrap();
        let files = [folder.path().join("first.json"), folder.path().join("second.json")];
        std::fs::write(&files[0], first).unwrap();
        std::fs::write(&files[1], second).unwrap();
        Groups::read(&files)
    }

    fn of_rank(rank: u32, rest: &str) -> String {
        format!(
            r#"{{"world_size": 2, "rank": {rank}, "groups_of_this_rank": {{"0": {{"ranks": [0, 1]}}}}{rest}}}"#
        )
    }

    #[test]
    fn two_files_of_one_rank_are_refused_by_their_rank() {
        let e = two(&of_rank(0, ""), &of_rank(0, "")).unwrap_err().to_string();
        assert!(e.contains("second.json: `rank` is 0") && e.contains("first.json"), "{e}");
        two(&of_rank(0, ""), &of_rank(1, "")).unwrap();
    }

    #[test]
    fn names_that_differ_between_the_ranks_are_refused() {
        let named = |rank, name: &str| of_rank(rank, &format!(r#", "inputs": [{{"name": "{name}"}}]"#));
        let e = two(&named(0, "x"), &named(1, "y")).unwrap_err().to_string();
        assert!(e.contains("second.json: number 0 of the inputs is `y`") && e.contains("has `x`"), "{e}");
        let longer = of_rank(1, r#", "inputs": [{"name": "x"}, {"name": "z"}]"#);
        let e = two(&named(0, "x"), &longer).unwrap_err().to_string();
        assert!(e.contains("number 1") && e.contains("`z`") && e.contains("nothing"), "{e}");
        let g = two(&of_rank(0, ""), &named(1, "x")).unwrap();
        assert_eq!(g.inputs.unwrap()[0].name, "x");
        two(&named(0, "x"), &named(1, "x")).unwrap();
    }

    #[test]
    fn axis_names_that_the_ir_cannot_hold_are_mapped() {
        let named = |a: &str, b: &str| {
            read(&format!(
                r#"{{"rank": 0, "mesh": {{"shape": [2, 2], "dim_names": ["{a}", "{b}"], "coordinate": {{"{a}": 0, "{b}": 0}}}},
                "groups_of_this_rank": {{"1": {{"ranks": [0], "desc": "mesh_{a}"}}}}}}"#
            ))
        };
        let mesh = Mesh::new([("dp_cp", 2), ("t_p__", 2)]).unwrap();
        assert_eq!(named("dp-cp", "t p.é").unwrap().mesh(), &mesh);
        let e = named("a-b", "a.b").unwrap_err().to_string();
        assert!(e.contains("`a-b`") && e.contains("`a.b`") && e.contains("`a_b`"), "{e}");
        let e = named("", "tp").unwrap_err().to_string();
        assert!(e.contains("empty") && !e.contains("letters"), "{e}");
        let e = named("tp", "tp").unwrap_err().to_string();
        assert!(e.contains("two axes are called `tp`"), "{e}");
    }

    #[test]
    fn arrays_in_place_of_objects_are_refused_by_their_place() {
        let of = |groups: &str, inputs: &str| {
            let e = read(&format!(r#"{{"world_size": 2, "groups": {groups}, "inputs": {inputs}}}"#));
            e.err().map(|e| e.to_string()).unwrap_or_default()
        };
        let good = r#"{"0": {"a": {"ranks": [0, 1]}}}"#;
        assert_eq!(of(good, r#"[{"name": "x"}]"#), "");
        for (groups, inputs, place) in [
            (r#"{"0": {"a": [[0, 1]]}}"#, "[]", "`groups.0.a` is an array"),
            (r#"{"0": [0, 1]}"#, "[]", "`groups.0` is an array"),
            ("[]", "[]", "`groups` is an array"),
            (good, r#"[["x", [2]]]"#, "`inputs.0` is an array"),
            (good, r#"{"x": 1}"#, "`inputs` is an object"),
        ] {
            let e = of(groups, inputs);
            assert!(e.contains(place), "`{place}` is not in: {e}");
        }
        assert!(read("[]").unwrap_err().to_string().contains("the file is an array"));
        assert!(read("3").unwrap_err().to_string().contains("the file is a number"));
    }
}
