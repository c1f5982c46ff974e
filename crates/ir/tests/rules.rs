//! The shape and dtype rules, one op at a time: what they give, and beside it what they refuse. Written in the text form,
//! whose parser compares the written type with the inferred one.

use shardweld_ir::Graph;

/// Values that the cases use, on a mesh of 4 x 2.
const HEAD: &str = r#"swir 1
mesh [cp=4, tp=2]
weight "w" : f32[8,4] = [absent]
%x = input() name="x" : f32[4,8]
%y = input() name="y" : f32[1,8]
%z = input() name="z" : f32[3,8]
%h = input() name="h" : bf16[4,8]
%i = input() name="i" : i64[4,8]
%b = input() name="b" : bool[4,8]
%v = input() name="v" : f32[8]
%s = input() name="s" : f32[]
%q = input() name="q" : f32[2,4,6,8]
%k = input() name="k" : f32[2,4,5,8]
%n = input() name="n" : f32[1,1,6,5]
%d = input() name="d" : f32[dim("t", 1, 4, 8, 1),8]
%image = input() name="image" : f32[2,4,9,9]
%kernel = input() name="kernel" : f32[6,2,3,3]
%grow = input() name="grow" : f32[2,8,8]
%six = input() name="six" : f32[6]
%index = input() name="index" : i64[2,3]
%small = input() name="small" : i32[2,8]
%empty = input() name="empty" : f32[0,8]
"#;

/// Op with operands and attributes, the result type.
fn gives(op: &str, ty: &str) {
    let text = format!("{HEAD}%r = {op} : {ty}\n");
    if let Err(e) = Graph::from_text("t", &text) {
        panic!("`{op}` should give {ty}: {e}");
    }
}

/// Op with operands and attributes, part of the message.
fn refuses(op: &str, message: &str) {
    // A type that no op gives, so that a rule that fails to refuse shows as another message.
    let ty = "f8e4m3[7,7,7]";
    refuses_as(op, ty, message);
}

/// As [`refuses`], for ops that take their result from the written type.
fn refuses_as(op: &str, ty: &str, message: &str) {
    let text = format!("{HEAD}%r = {op} : {ty}\n");
    let error = Graph::from_text("t", &text).expect_err(op).to_string();
    assert!(error.contains(message), "`{op}`: `{error}` does not say `{message}`");
}

#[test]
fn sources() {
    gives("weight() name=\"w\"", "f32[8,4]");
    refuses("weight() name=\"none\"", "declared before");
    refuses("weight(%x) name=\"w\"", "takes 0 operands, found 1");
    gives("constant() splat=1.0", "f32[2,2]");
    refuses_as("constant() splat=1.0", "f32[dim(\"t\", 1, 1, 1, 1)]", "another size");
    gives("iota() dim=1 first=0 step=2", "i64[2,3]");
    gives("iota() dim=0 first=0.5 step=-1.0", "f16[2,3]");
    refuses_as("iota() dim=0 first=0.5 step=1", "i64[2]", "integer `first`");
    refuses_as("iota() dim=2 first=0 step=1", "i64[2,3]", "dimension 2 of a tensor with 2");
    refuses_as("iota() dim=0 first=0 step=1", "bool[2]", "iota of bool");
    gives("group_rank() group=[cp, tp]", "i32[]");
    refuses("group_rank() group=[cp, cp]", "twice");
    gives("cast(%x)", "bf16[4,8]");
    refuses_as("cast(%x)", "bf16[4,4]", "the shape rules give bf16[4,8]");
}

#[test]
fn pointwise() {
    gives("exp(%x)", "f32[4,8]");
    refuses("exp(%i)", "exp of i64");
    gives("neg(%i)", "i64[4,8]");
    refuses("neg(%b)", "neg of bool");
    gives("not(%b)", "bool[4,8]");
    refuses("not(%x)", "not of f32");
    gives("is_nan(%x)", "bool[4,8]");
    refuses("is_nan(%i)", "is_nan of i64");
    refuses("exp(%x, %x)", "takes 1 operands, found 2");
    gives("add(%x, %y)", "f32[4,8]");
    gives("add(%y, %x)", "f32[4,8]");
    refuses("add(%x, %z)", "do not broadcast");
    refuses("add(%x, %v)", "differ in rank");
    refuses("add(%x, %h)", "differ");
    gives("add(%d, %d)", "f32[dim(\"t\", 1, 4, 8, 1),8]");
    refuses("add(%d, %x)", "do not broadcast");
    gives("lt(%x, %y)", "bool[4,8]");
    gives("and(%b, %b)", "bool[4,8]");
    refuses("and(%x, %x)", "and of f32");
    gives("max(%b, %b)", "bool[4,8]");
    refuses("add(%b, %b)", "add of bool");
    refuses("div(%i, %i)", "div of i64");
    gives("mul(%i) scalar=2", "i64[4,8]");
    refuses("mul(%i) scalar=2.0", "float scalar");
    refuses("mul(%b) scalar=2", "integer scalar with a bool");
    gives("select(%b, %x, %y)", "f32[4,8]");
    refuses("select(%x, %x, %y)", "the condition is f32");
    refuses("select(%b, %x, %h)", "differ");
    refuses("select(%b, %x, %z)", "do not broadcast");
}

#[test]
fn contractions() {
    gives("matmul(%x, %x) transpose_b=true", "f32[4,4]");
    gives("matmul(%x, %x) transpose_a=true", "f32[8,8]");
    refuses("matmul(%x, %x)", "contracted sizes differ: 8");
    gives("matmul(%q, %k) transpose_b=true", "f32[2,4,6,5]");
    gives("matmul(%q, %x) transpose_b=true", "f32[2,4,6,4]");
    refuses("matmul(%x, %v)", "two dimensions or more");
    refuses("matmul(%x, %h) transpose_b=true", "differ");
    refuses("matmul(%b, %b) transpose_b=true", "matmul of bool");
    gives("matmul(%x, %x, %v) transpose_a=true", "f32[8,8]");
    refuses("matmul(%x, %x, %six) transpose_a=true", "do not broadcast");
    refuses("matmul(%x, %x, %grow) transpose_a=true", "does not broadcast to");
    gives("attention(%q, %k, %k) scale=1.0", "f32[2,4,6,8]");
    gives("attention(%q, %k, %k, %n) scale=1.0 mask=true", "f32[2,4,6,8]");
    refuses("attention(%q, %k, %k) scale=1.0 mask=true", "takes 4 operands, found 3");
    refuses("attention(%q, %k, %k, %q) scale=1.0 mask=true", "do not broadcast");
    refuses("attention(%q, %k, %q) scale=1.0", "need q [.., L, E]");
    refuses("attention(%q, %x, %x) scale=1.0", "one rank");
    gives(
        "conv(%image, %kernel) stride=[2, 1] padding=[[1, 1], [0, 0]] dilation=[1, 2] groups=2",
        "f32[2,6,5,5]",
    );
    gives(
        "conv(%image, %kernel, %six) stride=[1, 1] padding=[[0, 0], [0, 0]] dilation=[1, 1] groups=2 bias=true",
        "f32[2,6,7,7]",
    );
    refuses(
        "conv(%image, %kernel) stride=[1, 1] padding=[[0, 0], [0, 0]] dilation=[1, 1]",
        "1 channel groups",
    );
    refuses(
        "conv(%image, %kernel) stride=[1, 1] padding=[[0, 0], [0, 0]] dilation=[1, 1] groups=0",
        "0 channel groups",
    );
    refuses(
        "conv(%image, %kernel) stride=[0, 1] padding=[[0, 0], [0, 0]] dilation=[1, 1] groups=2",
        "spatial dimension 0",
    );
    refuses(
        "conv(%image, %kernel) stride=[1, 1] padding=[[0, 0], [0, 0]] dilation=[1, 5] groups=2",
        "spatial dimension 1",
    );
    refuses(
        "conv(%image, %kernel) stride=[1] padding=[[0, 0]] dilation=[1] groups=2",
        "1 spatial dimensions disagree",
    );
    refuses(
        "conv(%image, %kernel, %v) stride=[1, 1] padding=[[0, 0], [0, 0]] dilation=[1, 1] groups=2 bias=true",
        "expected [6]",
    );
}

#[test]
fn reductions() {
    gives("reduce(%x) kind=sum dims=[0]", "f32[8]");
    gives("reduce(%x) kind=mean dims=[0, 1] keep_dims=true", "f32[1,1]");
    refuses("reduce(%x) kind=sum dims=[1, 0]", "not sorted and distinct");
    refuses("reduce(%x) kind=sum dims=[0, 0]", "not sorted and distinct");
    refuses("reduce(%x) kind=sum dims=[2]", "dimension 2");
    refuses("reduce(%i) kind=mean dims=[0]", "mean of i64");
    gives("reduce(%b) kind=max dims=[0]", "bool[8]");
    refuses("reduce(%b) kind=sum dims=[0]", "sum or product of bool");
    gives("reduce(%empty) kind=sum dims=[0]", "f32[8]");
    refuses("reduce(%empty) kind=max dims=[0]", "empty dimension");
    gives("softmax(%x) dim=1", "f32[4,8]");
    refuses("softmax(%x) dim=2", "dimension 2");
    refuses("softmax(%i) dim=1", "expected a float");
    gives("normalize(%x, %v) kind=rms trailing=1 epsilon=1e-6 scale=true", "f32[4,8]");
    refuses("normalize(%x) kind=rms trailing=1 epsilon=1e-6 scale=true", "takes 2 operands");
    refuses("normalize(%x, %six) kind=rms trailing=1 epsilon=1e-6 scale=true", "expected [8]");
    refuses("normalize(%x) kind=layer trailing=0 epsilon=1e-6", "last 0 of 2");
    refuses("normalize(%x) kind=layer trailing=3 epsilon=1e-6", "last 3 of 2");
}

#[test]
fn layout() {
    gives("reshape(%x)", "f32[2,16]");
    refuses_as("reshape(%x)", "f32[2,15]", "has 32 elements");
    refuses_as("reshape(%d)", "f32[32]", "needs static sizes");
    gives("transpose(%q) perm=[0, 2, 3, 1]", "f32[2,6,8,4]");
    refuses("transpose(%q) perm=[0, 1, 2]", "no permutation");
    refuses("transpose(%x) perm=[1, 1]", "no permutation");
    gives("broadcast(%y)", "f32[5,8]");
    refuses_as("broadcast(%x)", "f32[5,8]", "does not broadcast");
    gives("slice(%x) dim=1 start=1 limit=8 stride=3", "f32[4,3]");
    gives("slice(%x) dim=1 start=8 limit=8", "f32[4,0]");
    refuses("slice(%x) dim=1 start=0 limit=9", "limit <= 8");
    refuses("slice(%x) dim=1 start=3 limit=2", "start <= limit");
    refuses("slice(%x) dim=1 start=0 limit=8 stride=0", "step >= 1");
    refuses("slice(%d) dim=0 start=0 limit=1", "symbolic");
    gives("update_slice(%x, %y) dim=0 start=3", "f32[4,8]");
    gives("update_slice(%x, %z) dim=0 start=1", "f32[4,8]");
    refuses("update_slice(%x, %z) dim=0 start=2", "do not fit");
    refuses("update_slice(%x, %z) dim=0 start=0 stride=2", "do not fit");
    refuses("update_slice(%x, %y) dim=0 start=0 stride=0", "do not fit");
    refuses("update_slice(%x, %y) dim=1 start=0", "differ outside");
    refuses("update_slice(%x, %v) dim=0 start=0", "differ in rank");
    gives("split(%x) dim=1 sizes=[3, 5]", "f32[4,3], f32[4,5]");
    refuses("split(%x) dim=1 sizes=[3, 4]", "do not add up");
    refuses("split(%x) dim=1 sizes=[]", "do not add up");
    gives("concat(%x, %z, %y) dim=0", "f32[8,8]");
    refuses("concat(%x, %z) dim=1", "differ");
    refuses("concat(%x, %h) dim=0", "differ");
    refuses("concat() dim=0", "1 or more");
    gives("pad(%x) dim=0 low=1 high=2 value=0.0", "f32[7,8]");
    refuses("pad(%x) dim=0 low=18446744073709551615 high=2 value=0.0", "overflows");
    refuses("pad(%i) dim=0 low=1 high=2 value=0.5", "no value of i64");
    refuses("pad(%x) dim=0 low=1 high=2 value=0", "no value of f32");
    gives("gather(%x, %index) mode=take dim=1", "f32[4,2,3]");
    gives("gather(%x, %small) mode=elements dim=0", "f32[2,8]");
    refuses("gather(%x, %index) mode=elements dim=2", "dimension 2");
    refuses("gather(%z, %i) mode=elements dim=1", "do not fit data");
    refuses("gather(%x, %y) mode=take dim=1", "expected i64 or i32");
}

/// `start + 1` overflowed for the largest start.
#[test]
fn update_slice_at_the_largest_start() {
    refuses("update_slice(%x, %y) dim=0 start=18446744073709551615", "do not fit");
}

#[test]
fn collectives() {
    gives("all_reduce(%x) op=sum group=[cp]", "f32[4,8]");
    gives("all_reduce(%h) op=sum accum=f32 group=[cp]", "bf16[4,8]");
    refuses("all_reduce(%x) op=sum accum=bf16 group=[cp]", "does not hold it");
    refuses("all_reduce(%b) op=sum group=[cp]", "sum of bool");
    gives("all_reduce(%b) op=max group=[cp]", "bool[4,8]");
    refuses("all_reduce(%i) op=avg group=[cp]", "avg of i64");
    gives("all_gather(%x) dim=1 group=[cp]", "f32[4,32]");
    gives("all_gather(%x) dim=1 group=[cp, tp]", "f32[4,64]");
    gives("all_gather(%x) dim=1 group={{0,3},{1,2},{5,4},{7,6}}", "f32[4,16]");
    refuses("all_gather(%x) dim=2 group=[cp]", "dimension 2");
    refuses("all_gather(%s) dim=0 group=[cp]", "dimension 0");
    gives("reduce_scatter(%x) op=sum dim=0 group=[cp]", "f32[1,8]");
    refuses("reduce_scatter(%z) op=sum dim=0 group=[cp]", "size 3, which a group of 4 ranks does not divide");
    gives("all_to_all(%x) split_dim=1 concat_dim=0 group=[tp]", "f32[8,4]");
    refuses("all_to_all(%z) split_dim=0 concat_dim=1 group=[tp]", "does not divide");
    gives("broadcast_from(%x) root=3 group=[cp]", "f32[4,8]");
    refuses("broadcast_from(%x) root=4 group=[cp]", "root 4 is outside a group of 4");
    gives("reduce_to(%x) op=max root=0 group=[tp]", "f32[4,8]");
    refuses("reduce_to(%x) op=max root=2 group=[tp]", "root 2");
    gives("gather_to(%x) dim=0 root=1 group=[tp]", "f32[8,8]");
    gives("scatter_from(%x) dim=0 root=1 group=[tp]", "f32[2,8]");
    refuses("scatter_from(%z) dim=0 root=1 group=[tp]", "does not divide");
    gives("own_slice(%x) dim=1 group=[cp]", "f32[4,2]");
    refuses("own_slice(%six) dim=0 group=[cp]", "does not divide");
    gives("own_pad(%x) dim=1 group=[cp] value=-0.0", "f32[4,32]");
    refuses("own_pad(%i) dim=1 group=[cp] value=-0.0", "no value of i64");
    gives("axis_select(%x, %x) axis=tp", "f32[4,8]");
    refuses("axis_select(%x) axis=tp", "takes 2");
    refuses("axis_select(%x, %z) axis=tp", "operand types differ");
    refuses("axis_select(%x, %x) axis=dp", "an axis of the mesh");
}

/// The bad input that the issue of a group that does not fit names: 3 ranks over a dimension of 8.
#[test]
fn a_group_of_three_over_a_dimension_of_eight() {
    let text = "swir 1\nmesh [cp=3]\n%x = input() name=\"x\" : f32[8]\n%r = own_slice(%x) dim=0 group=[cp] : f32[3]\n";
    let error = Graph::from_text("t", text).unwrap_err().to_string();
    assert!(error.contains("size 8, which a group of 3 ranks does not divide"), "{error}");
}

#[test]
fn rank_and_size_are_bounded() {
    gives("reshape(%x)", "f32[1,1,1,1,1,1,4,8]");
    refuses_as("reshape(%x)", "f32[1,1,1,1,1,1,1,4,8]", "at most 8");
    refuses_as("broadcast(%y)", "f32[9223372036854775807,8]", "larger than memory");
}
