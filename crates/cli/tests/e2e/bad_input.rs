//! Input that is broken or hostile: a clear error, exit code 2, and nothing left behind.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use zip::write::SimpleFileOptions;

use crate::archive::{GRAPH, calls, edit_graph, nodes, rewrite};
use crate::shardweld::{Call, arg, command, finish, listing, samples, shardweld};

/// A folder with the two ranks of `mlp_tp2_sp`, one of them to be broken.
struct Broken {
    dir: tempfile::TempDir,
}

impl Broken {
    /// `plant` gets rank 0's archive and the path of the broken copy.
    fn new(plant: impl FnOnce(&Path, &Path)) -> Broken {
        let dir = tempfile::tempdir().unwrap();
        let from = samples().join("mlp_tp2");
        for name in ["mlp_tp2_sp.rank0.json", "mlp_tp2_sp.rank1.json", "mlp_tp2_sp.rank1.pt2"] {
            fs::copy(from.join(name), dir.path().join(name)).unwrap();
        }
        plant(&from.join("mlp_tp2_sp.rank0.pt2"), &dir.path().join("mlp_tp2_sp.rank0.pt2"));
        Broken { dir }
    }

    /// Builds it without a TensorRT library: every error here is found before one is needed.
    fn build(&self) -> Call {
        let before = listing(self.dir.path());
        let file = |name: &str| self.dir.path().join(name).to_str().unwrap().to_owned();
        let call = shardweld(&[
            "build",
            &file("mlp_tp2_sp.rank{rank}.pt2"),
            "--groups",
            &file("mlp_tp2_sp.rank{rank}.json"),
            "--target",
            "trace",
            "--out",
            &file("out"),
        ]);
        let left: Vec<String> = listing(self.dir.path()).into_iter().filter(|n| *n != "out").collect();
        assert_eq!(left, before, "something half-written stayed behind");
        assert!(
            call.code == 0 || !self.dir.path().join("out").exists(),
            "an --out was left by a failed build"
        );
        call
    }
}

fn edited(edit: impl Fn(&mut Value)) -> Broken {
    Broken::new(|from, to| edit_graph(from, to, &edit))
}

#[test]
fn an_unbroken_copy_builds() {
    edited(|_| {}).build().done();
}

#[test]
fn a_truncated_archive() {
    let b = Broken::new(|from, to| {
        let bytes = fs::read(from).unwrap();
        fs::write(to, &bytes[..bytes.len() / 2]).unwrap();
    });
    b.build().refuses(&["mlp_tp2_sp.rank0.pt2"]);
}

#[test]
fn a_file_that_is_no_archive() {
    Broken::new(|_, to| fs::write(to, "hello").unwrap()).build().refuses(&["mlp_tp2_sp.rank0.pt2"]);
    Broken::new(|_, to| fs::write(to, "").unwrap()).build().refuses(&["mlp_tp2_sp.rank0.pt2"]);
}

/// A graph of spaces: about a thousandth of its size in the archive.
#[test]
fn a_zip_bomb() {
    let b = Broken::new(|from, to| {
        rewrite(from, to, |name, bytes| {
            let bomb = name.ends_with(GRAPH);
            (name.to_owned(), if bomb { vec![b' '; 64 << 20] } else { bytes })
        });
    });
    b.build().refuses(&["mlp_tp2_sp.rank0.pt2", "model.json", "inflates"]);
}

#[test]
fn an_entry_that_leaves_the_archive() {
    for evil in ["../../evil", "/etc/evil", "mlp/../../evil"] {
        let b = Broken::new(|from, to| {
            let mut first = true;
            rewrite(from, to, |name, bytes| {
                let name = if std::mem::take(&mut first) { evil.to_owned() } else { name.to_owned() };
                (name, bytes)
            });
        });
        b.build().refuses(&["mlp_tp2_sp.rank0.pt2", "evil"]);
    }
}

#[test]
fn a_weight_shorter_than_its_shape() {
    let b = Broken::new(|from, to| {
        rewrite(from, to, |name, mut bytes| {
            if name.ends_with("data/weights/weight_0") {
                bytes.truncate(bytes.len() - 4);
            }
            (name.to_owned(), bytes)
        });
    });
    b.build().refuses(&["mlp_tp2_sp.rank0.pt2", "weight_0"]);
}

/// All refusals are listed at once.
#[test]
fn unknown_ops() {
    let b = edited(|g| {
        for n in nodes(g).iter_mut().filter(|n| calls(n, "aten.linear")) {
            n["target"] = "torch.ops.aten.frobnicate.default".into();
        }
    });
    b.build().refuses(&["aten.frobnicate.default", "2 nodes", "`linear`", "`linear_1`"]);
}

#[test]
fn an_unknown_dtype() {
    let b = edited(|g| {
        for (_, t) in g["graph_module"]["graph"]["tensor_values"].as_object_mut().unwrap() {
            t["dtype"] = 99.into();
        }
    });
    b.build().refuses(&["mlp_tp2_sp.rank0.pt2", "99"]);
}

#[test]
fn a_symbolic_size() {
    let b = edited(|g| {
        let (_, t) =
            g["graph_module"]["graph"]["tensor_values"].as_object_mut().unwrap().iter_mut().next().unwrap();
        t["sizes"][0] = json!({"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}});
    });
    b.build().refuses(&["mlp_tp2_sp.rank0.pt2", "s0"]);
}

#[test]
fn a_group_that_the_side_file_lacks() {
    let b = edited(|_| {});
    side_file(&b, |s| {
        let groups = s["groups_of_this_rank"].as_object_mut().unwrap();
        let entry = groups.remove("0").unwrap();
        groups.insert("7".into(), entry);
    });
    b.build().refuses(&["no group `0`", "mlp_tp2_sp.rank0.json"]);
}

#[test]
fn a_rank_that_is_not_in_its_group() {
    let b = edited(|_| {});
    side_file(&b, |s| s["groups_of_this_rank"]["0"]["ranks"] = json!([1, 2]));
    b.build().refuses(&["`0`", "mlp_tp2_sp.rank0.json"]);
}

#[test]
fn ranks_whose_groups_contradict_each_other() {
    let b = edited(|_| {});
    side_file(&b, |s| {
        s["groups_of_this_rank"]["0"] =
            json!({"ranks": [1, 0], "desc": "default_pg", "this_rank_in_group": 1});
    });
    b.build().refuses(&["`0`"]);
}

/// Changes rank 0's side file.
fn side_file(b: &Broken, edit: impl FnOnce(&mut Value)) {
    let path = b.dir.path().join("mlp_tp2_sp.rank0.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

#[test]
fn a_rank_pattern_with_a_hole() {
    let b = edited(|_| {});
    fs::remove_file(b.dir.path().join("mlp_tp2_sp.rank1.pt2")).unwrap();
    b.build().refuses(&["mlp_tp2_sp.rank1.pt2", "{rank}"]);
}

#[test]
fn a_pattern_with_an_unknown_axis() {
    let model = samples().join("mlp_tp2/mlp_tp2_sp.rank{pp}.pt2");
    let groups = samples().join("mlp_tp2/mlp_tp2_sp.rank0.json");
    shardweld(&["check", arg(&model), "--groups", arg(&groups)]).refuses(&["{pp}", "tp=2"]);
}

/// Two ranks that run different programs.
#[test]
fn graphs_that_are_not_one_program() {
    let b = edited(|g| {
        let gelu = nodes(g).iter_mut().find(|n| calls(n, "aten.gelu")).unwrap();
        gelu["target"] = "torch.ops.aten.silu.default".into();
        gelu["inputs"].as_array_mut().unwrap().truncate(1);
    });
    b.build().refuses(&["mlp_tp2_sp.rank0.pt2", "mlp_tp2_sp.rank1.pt2", "gelu"]);
}

/// An archive with an entry whose declared sizes lie would be one more; the reader takes sizes from what it inflates.
#[test]
fn an_archive_without_graph() {
    let b = Broken::new(|_, to| {
        let mut zip = zip::ZipWriter::new(fs::File::create(to).unwrap());
        zip.start_file("x/archive_format", SimpleFileOptions::default()).unwrap();
        zip.write_all(b"pt2").unwrap();
        zip.finish().unwrap();
    });
    b.build().refuses(&["mlp_tp2_sp.rank0.pt2", "model.json"]);
}

fn cp8_build(out: &Path, more: &[&str]) -> std::process::Command {
    let (model, groups) = (
        samples().join("ltx2_tiny_cp8/ltx2_tiny_cp8.rank0.pt2"),
        samples().join("ltx2_tiny_cp8/ltx2_tiny_cp8.rank0.json"),
    );
    command(&[&["build", arg(&model), "--groups", arg(&groups), "--out", arg(out)], more].concat())
}

#[test]
fn an_unreadable_or_wrong_tensorrt_library() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let text = dir.path().join("text.so");
    fs::write(&text, "no library").unwrap();
    finish(&mut cp8_build(&out, &["--tensorrt-lib", arg(&text)])).refuses(&["text.so"]);
    finish(&mut cp8_build(&out, &["--tensorrt-lib", arg(&dir.path().join("missing.so"))]))
        .refuses(&["missing.so"]);
    finish(&mut cp8_build(&out, &["--tensorrt-lib", "libc.so.6"]))
        .refuses(&["libc.so.6", "not a TensorRT-RTX library"]);
    assert_eq!(listing(dir.path()), ["text.so"]);
}

/// A limit on the size of files stands for a full disk: writing fails half-way.
#[test]
fn a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let build = cp8_build(&out, &["--target", "trace"]);
    let mut limited = std::process::Command::new("bash");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "bash"])
        .arg(build.get_program())
        .args(build.get_args());
    finish(limited.env("NO_COLOR", "1")).refuses(&["out", "write"]);
    assert_eq!(listing(dir.path()), [""; 0]);
    let tensors = samples().join("mlp_tp2/mlp_tp2_sp.parity.safetensors");
    let model = samples().join("mlp_tp2/mlp_tp2_sp.rank{rank}.pt2");
    let groups = samples().join("mlp_tp2/mlp_tp2_sp.rank{rank}.json");
    let run = command(&[
        "run",
        arg(&model),
        "--groups",
        arg(&groups),
        "--inputs",
        arg(&tensors),
        "--out",
        arg(&out),
    ]);
    let mut limited = std::process::Command::new("bash");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "bash"])
        .arg(run.get_program())
        .args(run.get_args());
    finish(limited.env("NO_COLOR", "1")).refuses(&["out"]);
    assert_eq!(listing(dir.path()), [""; 0]);
}

#[test]
fn an_output_folder_with_other_files_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("thesis.tex"), "years of work").unwrap();
    finish(&mut cp8_build(&out, &["--target", "trace"])).refuses(&["not the output of a build"]);
    assert_eq!(listing(&out), ["thesis.tex"]);
    let tensors = samples().join("ltx2_tiny_cp8/ltx2_tiny_cp8.parity.safetensors");
    let model = samples().join("ltx2_tiny_cp8/ltx2_tiny_cp8.rank0.pt2");
    let groups = samples().join("ltx2_tiny_cp8/ltx2_tiny_cp8.rank0.json");
    let to = ["run", arg(&model), "--groups", arg(&groups), "--inputs", arg(&tensors), "--out", "/dev/null"];
    shardweld(&to).refuses(&["not a regular file"]);
}

/// Checks a program in text IR.
fn check_text(program: &str) -> Call {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("program.swir");
    fs::write(&file, program).unwrap();
    shardweld(&["check", arg(&file)])
}

fn three_ranks(size: u32, op: &str) -> String {
    format!(
        "swir 1\nmesh [tp=3]\n%x = input() name=\"x\" : f32[{size}]\n%y = {op} : f32[{}]\nreturn \"y\" = %y\n",
        size / 3
    )
}

#[test]
fn a_group_of_3_over_a_dimension_of_8() {
    let scatter = "reduce_scatter(%x) op=sum dim=0 group=[tp]";
    check_text(&three_ranks(9, scatter)).done();
    check_text(&three_ranks(8, scatter)).refuses(&["program.swir", "3", "8"]);
}

#[test]
fn a_group_that_is_no_partition_of_the_ranks() {
    let program = |group: &str| {
        format!(
            "swir 1\nmesh [tp=4]\n%x = input() name=\"x\" : f32[8]\n%y = all_reduce(%x) op=sum group={group} : f32[8]\nreturn \"y\" = %y\n"
        )
    };
    check_text(&program("{{0,1}, {2,3}}")).done();
    check_text(&program("{{0,1}, {2,4}}")).refuses(&["rank 4"]);
    check_text(&program("{{0,1}, {1,3}}")).refuses(&["rank 1"]);
    check_text(&program("{{0,1,2}, {3}}")).refuses(&["members"]);
    check_text(&program("[dp]")).refuses(&["dp"]);
}

#[test]
fn a_cyclic_or_dangling_text() {
    let program = |operand: &str| {
        format!(
            "swir 1\nmesh []\n%x = input() name=\"x\" : f32[8]\n%a = neg({operand}) : f32[8]\n%b = neg(%a) : f32[8]\nreturn \"y\" = %b\n"
        )
    };
    check_text(&program("%x")).done();
    check_text(&program("%b")).refuses(&["program.swir", "4:", "%b"]);
    check_text(&program("%a")).refuses(&["program.swir", "4:", "%a"]);
    check_text(&program("%nobody")).refuses(&["program.swir", "4:", "%nobody"]);
    check_text("swir 99\n").refuses(&["99"]);
    check_text("").refuses(&["program.swir"]);
}

#[test]
fn a_dangling_json() {
    let dir = tempfile::tempdir().unwrap();
    let (text, json) = (dir.path().join("program.swir"), dir.path().join("program.json"));
    fs::write(&text, "swir 1\nmesh []\n%x = input() name=\"x\" : f32[8]\nreturn \"y\" = %x\n").unwrap();
    shardweld(&["opt", arg(&text), "--out", arg(&json)]).done();
    shardweld(&["check", arg(&json)]).done();
    let mut program: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    program["outputs"][0]["value"] = json!([7, 0]);
    fs::write(&json, program.to_string()).unwrap();
    shardweld(&["check", arg(&json)]).refuses(&["program.json", "7"]);
}

#[test]
fn usage() {
    shardweld(&["frobnicate"]).refuses(&["frobnicate"]);
    shardweld(&["check"]).refuses(&["MODEL"]);
    let model = samples().join("mlp_tp2/mlp_tp2.rank0.pt2");
    shardweld(&["check", arg(&model)]).refuses(&["--groups"]);
    shardweld(&["check", "no/such/file.pt2"]).refuses(&["no/such/file.pt2"]);
    shardweld(&["opt", arg(&model), "--pass", "polish"]).refuses(&["polish", "remove-dead"]);
    shardweld(&["opt", arg(&model), "--exactness", "roughly"]).refuses(&["roughly"]);
}

/// Not an input, but it leaves nothing either.
#[test]
fn an_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    // A pipe that nobody writes to: the program waits in the middle of its work.
    let model = dir.path().join("waits.swir");
    assert!(std::process::Command::new("mkfifo").arg(&model).status().unwrap().success());
    let mut child =
        command(&["build", arg(&model), "--target", "trace", "--out", arg(&out)]).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while listing(dir.path()).len() < 2 {
        assert!(std::time::Instant::now() < deadline, "no output folder was begun");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(listing(dir.path()), ["waits.swir"]);
}
