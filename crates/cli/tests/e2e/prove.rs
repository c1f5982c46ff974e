//! `prove` and `rules`: the answer, and the answer no.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shardweld::{arg, shardweld};

fn program(dir: &Path, name: &str, body: &str) -> PathBuf {
    let file = dir.join(name);
    let text = format!("swir 1\nmesh [tp=2]\n%x = input() name=\"x\" : f32[8]\n{body}\nreturn \"y\" = %y\n");
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn an_all_gather_as_a_padded_all_reduce() {
    let dir = tempfile::tempdir().unwrap();
    let gather = program(dir.path(), "gather.swir", "%y = all_gather(%x) dim=0 group=[tp] : f32[16]");
    let padded = |pad: &str| {
        program(
            dir.path(),
            &format!("reduce{pad}.swir"),
            &format!(
                "%p = own_pad(%x) dim=0 group=[tp] value={pad} : f32[16]\n%y = all_reduce(%p) op=sum group=[tp] : f32[16]"
            ),
        )
    };
    let class =
        |rhs: &Path| shardweld(&["prove", arg(&gather), arg(rhs), "--json"]).done().json()["class"].clone();
    assert_eq!(class(&padded("-0.0")), "nan");
    assert_eq!(class(&padded("0.0")), "zero");
    shardweld(&["prove", arg(&gather), arg(&padded("1.0"))]).says_no(&["not equal"]);
}

#[test]
fn every_rule_is_proved() {
    let rules = shardweld(&["rules", "--json"]).done().json();
    let rules = rules["rules"].as_array().unwrap();
    assert!(!rules.is_empty());
    assert!(rules.iter().all(|r| r["record"]["branches"].as_object().is_some_and(|b| !b.is_empty())));
}
