//! Which ranks hold the same data for a weight, so that replicated weights are stored once.

use rayon::prelude::*;
use shardweld_ir::{WeightStore, WeightView};

use crate::{archive::Entry, error::ImportError, program::Program};

/// What is known of a weight's data without reading them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outline {
    /// The data are not at hand: they count as different wherever the files differ.
    Absent,
    /// A whole archive entry: different checksums mean different data, equal ones must be confirmed.
    Entry { crc: u32, size: u64 },
    /// Anything else, to be compared by content.
    Other,
}

/// For each weight and each program, the first program that holds the same data.
pub(crate) fn same_data(programs: &[Program], store: &WeightStore) -> Result<Vec<Vec<usize>>, ImportError> {
    let Some(first) = programs.first() else { return Ok(Vec::new()) };
    let count = first.weights.len();
    if programs.len() == 1 {
        return Ok(vec![vec![0]; count]);
    }
    let outlines: Vec<Vec<Outline>> = (0..count)
        .map(|i| {
            let all: Vec<Outline> = programs.iter().map(|p| outline(p, i)).collect();
            // One that must be compared by content makes all others so.
            if all.contains(&Outline::Other) {
                all.iter().map(|o| if *o == Outline::Absent { *o } else { Outline::Other }).collect()
            } else {
                all
            }
        })
        .collect();
    let digests: Vec<Vec<Option<blake3::Hash>>> = programs
        .par_iter()
        .enumerate()
        .map(|(k, p)| outlines.iter().enumerate().map(|(i, o)| digest(p, i, k, o, store)).collect())
        .collect::<Result<_, _>>()?;
    Ok((0..count)
        .map(|i| {
            let key = |k: usize| (outlines[i][k], digests[k][i]);
            (0..programs.len())
                .map(|k| {
                    let same = |other: &usize| outlines[i][k] != Outline::Absent && key(*other) == key(k);
                    (0..k).find(same).unwrap_or(k)
                })
                .collect()
        })
        .collect())
}

fn outline(p: &Program, weight: usize) -> Outline {
    let w = &p.weights[weight];
    match (&w.view, &w.entry) {
        (WeightView::Absent, _) => Outline::Absent,
        (_, Some(Entry { crc, size, .. })) => Outline::Entry { crc: *crc, size: *size },
        _ => Outline::Other,
    }
}

/// Hash of the data, where equality with another program is still open.
fn digest(
    p: &Program,
    weight: usize,
    k: usize,
    outlines: &[Outline],
    store: &WeightStore,
) -> Result<Option<blake3::Hash>, ImportError> {
    let w = &p.weights[weight];
    match outlines[k] {
        Outline::Absent => Ok(None),
        o @ Outline::Entry { .. } if outlines.iter().filter(|x| **x == o).count() < 2 => Ok(None),
        Outline::Entry { .. } => match (&p.archive, &w.entry) {
            (Some(archive), Some(entry)) => {
                let mut archive = archive.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                archive.digest(&p.file, entry).map(Some)
            }
            _ => Ok(None),
        },
        Outline::Other => store.content_hash(&w.view).map(Some).map_err(|e| ImportError::Weight {
            file: p.file.clone(),
            weight: w.fqn.clone(),
            reason: e.to_string(),
        }),
    }
}

/// Programs whose weight tables have other names or types than the first one's, with the place.
pub(crate) fn table_mismatch(programs: &[Program]) -> Option<(usize, usize)> {
    let (first, rest) = programs.split_first()?;
    let table = |p: &Program, i: usize| p.weights.get(i).map(|w| (w.fqn.clone(), w.ty.clone()));
    rest.iter().enumerate().find_map(|(k, p)| {
        let n = first.weights.len().max(p.weights.len());
        (0..n).find(|&i| table(first, i) != table(p, i)).map(|i| (k + 1, i))
    })
}
