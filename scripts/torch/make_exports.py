"""Makes the small exports that the tests of crates/torch-import read.

    python scripts/torch/make_exports.py OUT_DIR [CASE ...]

Needs torch (CPU is enough; 2.7 to 2.15 were used) and safetensors. One process stands for rank 1 of 4 (mesh dp=2, tp=2) by means of torch's fake process
group. Per case: CASE.model.json.gz (the graph that torch.export.save writes, without stack traces), CASE.functional.model.json.gz and
CASE.core.model.json.gz (after run_decompositions({}) and run_decompositions()), and, where there are no collectives,
CASE.io.safetensors with in/NAME and out/INDEX as eager torch computes them. Weights and lifted constants are in CASE.weights.safetensors; the case
with weights is also kept as an archive, CASE.pt2. groups.json is the side file of all cases. A case that the installed torch cannot export is reported.
"""

import gzip
import io
import json
import os
import sys
import zipfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD, RANK, MESH = 4, 1, (2, 2)
CASES = {}


def case(*inputs, forms=("", "functional", "core"), **options):
    def register(f):
        CASES[f.__name__] = (f, inputs, forms, options)
        return f

    return register


def t(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    x = torch.randn(*shape, generator=g)
    if dtype == torch.bool:
        return x > 0
    return (x * 4).to(dtype) if not dtype.is_floating_point else x.to(dtype)


BF, I64 = torch.bfloat16, torch.int64


# ---- writes through views: each returns the base after the write ----
@case(t(4, 6), t(4, 3), t(6))
def writes_through_views(x, y, r):
    out = []
    a = x.clone()
    a[:, 1:4].addcmul_(y, y, value=0.5)
    out.append(a)
    b = x.clone()
    b[:, ::2].mul_(2.0)
    out.append(b)
    c = x.clone()
    c[2].copy_(r)
    out.append(c)
    d = x.clone()
    d.t()[1:3].add_(1)
    out.append(d)
    e = x.clone()
    v = e.view(2, 2, 6)
    w = v[1].transpose(0, 1)
    w[0].zero_()
    out.append(e)
    out.append(v + 0)  # a sibling view that was made before the write sees it
    f = x.clone()
    f.unsqueeze(1).squeeze(1).unbind(1)[3].fill_(7.0)
    out.append(f)
    g = x.clone()
    p, q = g.chunk(2, dim=1)
    p.add_(q)
    out.append(g)
    h = x.clone()
    first = h[0]
    h.relu_()
    out.append(first * 1)  # a view read after a write to its base
    i = x.clone()
    i.unflatten(1, (2, 3)).permute(1, 0, 2)[0].sub_(y)
    out.append(i)
    j = x.clone()
    j[1:].copy_(j[:-1].clone())
    out.append(j)
    k = x.clone()
    k.copy_(r)  # the source broadcasts
    out.append(k)
    m = x.to(BF)
    m[:, 1:4] += y  # bf16 + f32 written back as bf16
    out.append(m)
    n = x.clone()
    n[:, 1:6:3] = 5.0
    out.append(n)
    return tuple(out)


# ---- where torch copies instead of aliasing, a write must not reach the base ----
@case(t(4, 6))
def copies_are_no_views(x):
    a = x.clone()
    a.t().reshape(24).mul_(0.0)  # reshape of a transposed tensor copies
    b = x.clone()
    b.reshape(24).mul_(0.0)  # this one is a view
    c = x.clone()
    c.contiguous().mul_(0.0)  # the same tensor
    d = x.clone()
    d.t().contiguous().mul_(0.0)  # a copy
    e = x.clone()
    e.to(torch.float32).mul_(0.0)  # the same tensor
    f = x.clone()
    f.to(torch.float64).mul_(0.0)  # a copy
    g = x.clone()
    g.flatten().mul_(0.0)
    h = x.clone()
    h.t().flatten().mul_(0.0)
    return a, b, c, d, e, f, g, h


@case(t(4, 6), forms=("",))
def writes_to_input(x):
    x[1:].add_(1.0)
    return x * 2


@case(t(1, 6), forms=("",))
def writes_to_expanded(x):
    y = x.clone().expand(1, 6).diagonal()
    y.add_(1.0)
    return y + 0


# ---- type promotion and scalars ----
@case(t(3, 4), t(3, 4, dtype=BF), t(3, 4, dtype=I64), t(3, 4, dtype=torch.bool), t(4, dtype=torch.int32), t(1).squeeze(), t(3, 4, dtype=torch.float16))
def promotion(f, b, i, o, s, z, h):
    return (
        f + b, b + i, i + o, o + o, i * 2.5, o * 2, o + 1.5, b * 0.1, b + z, i + z, i / 2, i // 2, i / i.abs().clamp(min=1), s + i, s * f,
        2 - b, 1 / b, b - 1, 3 ** b.abs(), i**2, b**0.5, b**2, b**3, b**-1, f**-0.5, (f > b), (i == 2), (b >= 0.1), (o == i), h + b, h * 0.1,
        torch.where(o, f, b), torch.where(o, i, 1.5), torch.where(o, 0.0, b), torch.add(b, b, alpha=0.3), torch.sub(i, i, alpha=2),
        torch.add(f, 2, alpha=3), torch.rsub(b, 1, alpha=2), i.float().to(BF), b.to(torch.int32), f.to(torch.bool), i % 3, f % 2.0,
        torch.maximum(b, f), torch.minimum(i, s), torch.clamp(b, -0.3, 0.7), torch.clamp(i, min=1), torch.clamp(f, max=0.1),
        torch.div(i, 3, rounding_mode="floor"), torch.div(f, 0.3, rounding_mode="trunc"), torch.addcmul(b, b, b, value=0.1),
        torch.addcdiv(b, b, b.abs() + 1, value=0.1), torch.lerp(b, b * 2, 0.3), z * i, z + b,
    )


@case(t(3, 8), t(3, 8, dtype=BF), t(3, 8, dtype=I64), t(3, 8, dtype=torch.bool))
def pointwise(f, b, i, o):
    p = f.abs() + 0.1
    return (
        f.neg(), f.abs(), f.sign(), f.ceil(), f.floor(), f.round(), f.trunc(), p.sqrt(), p.rsqrt(), p.reciprocal(), f.exp(), f.exp2(), f.expm1(),
        p.log(), p.log1p(), p.log2(), p.log10(), f.sin(), f.cos(), f.tan(), f.tanh(), f.sinh(), f.cosh(), f.atan(), f.erf(), f.sigmoid(), F.silu(f), F.gelu(f),
        F.gelu(f, approximate="tanh"), F.relu(f), F.softplus(f), F.leaky_relu(f, 0.1), F.elu(f), F.hardtanh(f), F.relu6(f), F.hardswish(f),
        F.hardsigmoid(f), F.mish(f), F.logsigmoid(f), F.selu(f), f.square(), b.exp(), F.gelu(b), F.silu(b), b.rsqrt().isnan(), (f / 0).isinf(), f.isfinite(),
        o.logical_not(), o.logical_and(o), o.logical_or(~o), o ^ o, i & 3, i | i, ~i, i.bitwise_xor(i), i.float().sin(), i.sin(), o.exp(), torch.atan2(f, p),
        torch.fmod(f, 0.7), torch.remainder(i, 3), f.masked_fill(o, -1.5), b.masked_fill(o, float("-inf")), torch.pow(f.abs(), p), f.ne(0.0), i.lt(i), f.le(f),
        torch.nan_to_num(f / 0), F.glu(f, dim=1), torch.logical_xor(o, o), torch.special.expit(f), f.frac(), F.threshold(f, 0.1, 20.0),
    )


@case(t(2, 3, 4, 6), t(4, 6, dtype=BF), t(2, 3, dtype=I64), t(2, 3, dtype=torch.bool))
def reductions(x, b, i, o):
    v, k = x.max(dim=1)
    return (
        x.sum(), x.sum(dim=(1, -1)), x.mean(), x.mean(dim=1, keepdim=True), x.amax(dim=(2, 3)), x.amin(dim=1), x.max(), x.min(), v, x.min(dim=-1).values,
        x.prod(dim=2), x.prod(), i.sum(), i.sum(dim=1), i.prod(), o.sum(), o.sum(dim=0), o.any(), o.all(), o.any(dim=1), o.all(dim=0, keepdim=True), x.any(dim=1), b.sum(dim=1),
        b.sum(dim=1, dtype=torch.float32), b.mean(dim=0), x.var(dim=1), x.var(dim=(1, 2), unbiased=False, keepdim=True), x.std(dim=-1), torch.var_mean(x, dim=1, correction=0)[0],
        x.softmax(dim=-1), x.log_softmax(dim=1), b.softmax(dim=0), b.softmax(dim=0, dtype=torch.float32), torch.linalg.vector_norm(x, dim=-1), x.norm(dim=-1, keepdim=True),
        F.normalize(x, dim=1), x.logsumexp(dim=1), i.amax(dim=0),
    )


@case(t(2, 6, 4), t(2, 6, 4, dtype=BF), t(1, 6, 1))
def shapes(x, b, u):
    y, z = x.split([2, 4], dim=1)
    return (
        x.view(2, -1), x.reshape(-1, 4), x.flatten(1), x.flatten(), x.unflatten(1, (2, -1)), x.squeeze(), u.squeeze(), u.squeeze(0), u.squeeze((0, 2)), x.unsqueeze(-1), x.permute(2, 0, 1),
        x.transpose(1, -1), x.swapaxes(0, 1), x.movedim(0, -1), x.movedim((0, 1), (2, 0)), x[0].t(), x.mT, x[:, 1:5:2], x[..., -1], x[:, -3:], x.narrow(1, 2, 3), x.select(1, -1), y, z,
        *x.chunk(4, dim=1), *x.unbind(2)[:2], *x.tensor_split(3, dim=1), torch.cat([x, b.float()], dim=1), torch.cat([x, b], dim=-1), torch.stack([x, x], dim=1), torch.concat([x, x]), u.expand(2, 6, 4), u.expand(-1, -1, 3), u.expand_as(x),
        x.repeat(2, 1, 3), x.repeat(3, 1, 1, 1), x.tile(2), x.repeat_interleave(2, dim=1), x.repeat_interleave(3), torch.broadcast_to(u, (3, 1, 6, 2)), x.roll(1, dims=1), x.roll((1, -1), dims=(0, 2)), x.flip(1),
        F.pad(x, (1, 2)), F.pad(x, (0, 0, 1, 1), value=2.0), F.pad(x, (0, 0, -1, 1)), torch.zeros(2, 3), torch.ones(2, dtype=I64), torch.full((2, 2), 1.5), torch.full((2,), 3), torch.zeros_like(b),
        torch.ones_like(x, dtype=BF), torch.full_like(x, 0.1), x.new_zeros(3), x.new_ones(2, 2), x.new_full((2,), 2.0), torch.arange(5), torch.arange(1, 9, 2), torch.arange(0, 1, 0.25), torch.arange(3, dtype=torch.float32),
        torch.linspace(0, 1, 5), torch.linspace(1, 3, 4, dtype=torch.float64), torch.scalar_tensor(2.5), x.clone(), x.contiguous(), x.detach(), x.float(), b.float(), torch.empty_like(x).fill_(2.0), torch.tril(x), torch.triu(x, 1),
        x.diff(dim=1), torch.slice_scatter(x, x[:, :3] * 2, 1, 1, 6, 2), torch.select_scatter(x, x[:, 0] * 2, 1, -1), torch.outer(x[0, 0], x[0, 1]), torch.eye(3), 
        torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij")[1], torch.hstack([x, x]), torch.vstack([x, x]), x.clone().view_as(x), x.reshape_as(x), x.ravel(), torch.atleast_2d(x[0, 0]),
    )


# ---- regions that torch wraps in an op of their own ----
@case(t(4, 4), t(4, 4, seed=1))
def regions(x, y):
    with torch.no_grad():
        a = torch.cos(x)
        b = a.sin()
        a.add_(1)  # inside
        with torch.autocast("cpu", enabled=False):
            c = a @ b
    base = y.clone()
    with torch.no_grad():
        base[1:3].mul_(2)  # reaches what was made outside
        d = base + 1
    e = torch.tanh(x)
    row = e[0]
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        e.mul_(3)  # read through a view that was made outside
    return a, b, c, base, d, row * 1


@case(t(4, 4), forms=("",))
def autocast(x):
    with torch.autocast("cpu", dtype=BF):
        return x @ x


@case(t(1, 4, 6, 6), t(1, 9, 3, 2, dtype=BF), forms=("", "functional"))
def resampled(x, b):
    return (
        F.interpolate(x, scale_factor=2), F.interpolate(x, size=(12, 18)), F.interpolate(x, scale_factor=(1, 3)), F.interpolate(x, scale_factor=3, mode="nearest-exact"), F.interpolate(x[0], scale_factor=5),
        F.interpolate(x.unsqueeze(2), scale_factor=(7, 2, 1)), F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 3), F.pixel_shuffle(b, 3), F.pixel_unshuffle(x[0], 2), F.interpolate(b, size=(33, 80)),
    )


@case(t(1, 2, 6, 6), forms=("",))
def resampled_unevenly(x):
    return F.interpolate(x, scale_factor=1.5), F.interpolate(x, size=(9, 6)), F.interpolate(x, scale_factor=0.5), F.interpolate(x, size=(246, 6))


@case(t(2, 4, 6, 6), t(5, 4, 3, 3), t(3, 4, dtype=I64), t(3, 4, dtype=torch.bool), t(3, 4, dtype=torch.bool, seed=1))
def defaults_and_operators(x, w, i, o, p):
    a, b, c, j = o.clone(), o.clone(), o.clone(), i.clone()
    a |= p
    b &= True
    c ^= p
    c[1] &= p[1]
    j |= 5
    return F.conv2d(x, w, padding="valid"), F.conv2d(x, w, padding="valid", stride=2), F.pad(i, (1, 2), value=7), a, b, c, j


@case(t(3, 4, dtype=I64), forms=("",))
def shift_in_place(i):
    j = i.clone()
    j <<= 1
    return j


@case(t(2, 4, 6, 6), forms=("",))
def unused(x):
    a = F.max_pool2d(x, 2)
    b = a * 2
    b + 1
    torch.cumsum(x, 1)
    return x + 1


@case(t(2, 4, 6, 6), forms=("",))
def used_by_a_write(x):
    a = torch.cumsum(x, 1)
    a.add_(1)
    return x + 1


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(8)
        self.rms = torch.nn.RMSNorm(8, eps=1e-5)
        self.group = torch.nn.GroupNorm(2, 4)
        self.conv1 = torch.nn.Conv1d(4, 6, 3, padding=1, stride=2)
        self.conv2 = torch.nn.Conv2d(4, 8, 3, padding="same", groups=2, bias=False)
        self.conv3 = torch.nn.Conv3d(4, 2, (1, 2, 2), dilation=(1, 1, 2))
        self.table = torch.nn.Embedding(10, 8)
        self.drop = torch.nn.Dropout(0.5)
        self.batch = torch.nn.BatchNorm2d(4).eval()
        self.register_buffer("scale", torch.tensor([0.5, 2.0]).to(BF))
        self.register_buffer("shift", torch.tensor(3.0), persistent=False)

    def forward(self, x, y, i, q):
        m = torch.ones(4, 4, dtype=torch.bool).tril()
        h = F.scaled_dot_product_attention
        return (
            self.up(x), self.norm(x), self.rms(x), self.group(y), self.conv1(y[..., 0]), self.conv2(y), self.conv3(y.unsqueeze(2)), self.table(i), self.drop(x), self.batch(y),
            h(q, q, q), h(q, q, q, is_causal=True), h(q, q, q, attn_mask=m), h(q, q, q, attn_mask=m.float(), scale=0.3), h(q, q[:, :1], q[:, :1], enable_gqa=True),
            x @ x.transpose(-1, -2), torch.bmm(x, x.mT), torch.mm(x[0], x[1].t()), torch.addmm(self.up.bias, x[0], self.up.weight.t()), torch.baddbmm(x, x @ x.mT, x, beta=0.5, alpha=2.0),
            x[0] @ x[0, 0], x[0, 0] @ x[0, 1], torch.matmul(x[0], q.transpose(-1, -2)), x.index_select(1, i[0]), torch.gather(x, 1, i.unsqueeze(-1).expand(2, 4, 3) % 4), x[:, i[0] % 4], F.one_hot(i, 10),
            self.scale * 2, self.shift + x, F.embedding(i, self.table.weight, padding_idx=0), F.layer_norm(x, (4, 8)), 
            F.linear(x, self.up.weight), torch.addmv(x[0, :, 0], x[0], x[0, 0]), F.scaled_dot_product_attention(q.to(BF), q.to(BF), q.to(BF)), F.rms_norm(x.to(BF), (8,)), F.layer_norm(x.to(BF), (8,)),
        )


CASES["network"] = (Network(), (t(2, 4, 8), t(2, 4, 6, 6), t(2, 4, dtype=I64).abs() % 4, t(2, 2, 4, 8)), ("", "functional", "core"), {"keep_archive": True})


# ---- collectives ----
def c10d():
    return torch.ops._c10d_functional


@case(t(4, 6), forms=("", "functional", "core"), collectives=True)
def collectives(x):
    c, dp, tp, world = c10d(), GROUPS["mesh_dp"], GROUPS["mesh_tp"], GROUPS["default_pg"]
    w = c.wait_tensor
    reduced = w(c.all_reduce(x, "sum", tp))
    twice = w(w(reduced)) + w(reduced)  # one collective, waited for again and again
    late = c.all_gather_into_tensor(x * 2, 2, dp)
    between = x + 1
    several = c.all_reduce_coalesced([x, between], "avg", tp)
    gathered = c.all_gather_into_tensor_coalesced([x, between], 2, tp)
    scattered = c.reduce_scatter_tensor_coalesced([x, between], "max", 2, dp)
    return (
        twice, w(late) + w(late), *[w(v) for v in several], *[w(v) for v in gathered], *[w(v) for v in scattered], w(c.reduce_scatter_tensor(x, "sum", 4, world)), w(c.broadcast(x, 1, tp)),
        w(c.all_to_all_single(x, [1, 1, 1, 1], [1, 1, 1, 1], world)), w(c.all_to_all_single(x, [2, 2], [2, 2], tp)), w(c.all_reduce(x, "product", tp)),
    )


@case(t(4, 6), forms=("",), collectives=True)
def collectives_in_place(x):
    c, dp, tp, world = c10d(), GROUPS["mesh_dp"], GROUPS["mesh_tp"], GROUPS["default_pg"]
    w = c.wait_tensor
    part = x.clone()
    w(c.all_reduce_(part[:, :3], "sum", tp))
    listed = [x.clone(), x.clone()]
    [w(v) for v in c.all_reduce_coalesced_(listed, "min", world)]
    out = torch.zeros(8, 6)
    w(c.all_gather_into_tensor_out(x, 2, tp, out=out))
    seen = x.clone()
    w(c.broadcast_(seen, 0, dp))
    return part, *listed, out, seen


@case(t(4, 6), forms=("",), collectives=True)
def uneven_all_to_all(x):
    return c10d().wait_tensor(c10d().all_to_all_single(x, [1, 3], [3, 1], GROUPS["mesh_tp"]))


@case(t(2, 3, 4), t(2, 5, 4), t(5), t(2, 3, 4, dtype=BF))
def einsums(x, y, v, b):
    e = torch.einsum
    return (
        e("bij,bkj->bik", x, y), e("bij,bkj->kbi", x, y), e("...n,d->...nd", x, v), e("bij->jb", x), e("bij,bij->b", x, x), e("ij,kj", x[0], y[1]), e("...ij,...kj->...ik", x, y),
        e("bij,j->bi", x, x[0, 0]), e("bij,bij->bij", b, b), e("bij,bkj->b", x, y), e("i,j->ij", v, v), e("bij,bik->bjk", b, b), e("bij->", x), e("bij,bkl->ik", x[:, :, :1], y),
    )


@case(t(1, 3, 6), t(2, 3, 3), t(2, 3, dtype=I64))
def left_out_and_spelled_otherwise(x, w, i):
    m = x > 0
    m |= x < -1
    m &= x < 2
    n = i.clone()
    n ^= 5
    return F.conv1d(x, w, padding="valid"), F.pad(i, (1, 0), value=7), m, n


# ---- what is refused ----
@case(t(4, 6), forms=("",))
def unknown_ops(x):
    return torch.linalg.inv(x[:, :4]), torch.sort(x)[0], torch.cumsum(x, 1), torch.einsum("ij,kj,lj->ikl", x, x, x)


@case(t(4, 6), forms=("",), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2, max=64)}})
def symbolic(x):
    return x * 2, x.reshape(-1)


@case(t(4, 6).to(torch.float8_e5m2), forms=("",))
def unknown_dtype(x):
    return x.view(6, 4)


class Function(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.forward = f


def graph_json(program):
    """The graph entry of what torch.export.save writes (its name changed over the versions), and the whole file."""
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node"):
                node.meta.pop(key, None)
    file = io.BytesIO()
    torch.export.save(program, file)
    archive = zipfile.ZipFile(file)
    entry = next(n for n in archive.namelist() if n.endswith(("models/model.json", "serialized_exported_program.json")))
    return archive.read(entry), file.getvalue()


def write_gzip(path, data):
    with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as f:
        f.write(data)


def export(name, out_dir):
    f, inputs, forms, options = CASES[name]
    module = (f if isinstance(f, torch.nn.Module) else Function(f)).eval()
    dynamic = options.get("dynamic_shapes")
    program = torch.export.export(module, inputs, strict=False, dynamic_shapes=dynamic and tuple(dynamic.values()))
    for form in forms:
        p = program if form == "" else program.run_decompositions({} if form == "functional" else None)
        text, archive = graph_json(p)
        base = os.path.join(out_dir, name + (f".{form}" if form else ""))
        if options.get("keep_archive") and form == "":
            with open(base + ".pt2", "wb") as file:
                file.write(archive)
        else:
            write_gzip(base + ".model.json.gz", text)
        tensors = {**p.state_dict, **{k: v for k, v in p.constants.items() if isinstance(v, torch.Tensor)}}
        if tensors:
            save_file({k: v.detach().contiguous() for k, v in tensors.items()}, base + ".weights.safetensors")
    if not options.get("collectives") and len(forms) > 1:
        names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        results = module(*[x.clone() for x in inputs])
        results = results if isinstance(results, tuple) else (results,)
        tensors = {f"in/{n}": x.contiguous() for n, x in zip(names, inputs)}
        tensors |= {f"out/{i}": x.detach().clone().contiguous() for i, x in enumerate(results)}
        save_file(tensors, os.path.join(out_dir, name + ".io.safetensors"))


GROUPS = {}


def make_groups(out_dir):
    dist.init_process_group("fake", rank=RANK, world_size=WORLD, store=FakeStore())
    mesh = dist.init_device_mesh("cpu", MESH, mesh_dim_names=("dp", "tp"))
    groups = {"default_pg": dist.group.WORLD, "mesh_dp": mesh.get_group("dp"), "mesh_tp": mesh.get_group("tp")}
    side = {"world_size": WORLD, "rank": RANK, "mesh": {"shape": list(MESH), "dim_names": ["dp", "tp"]}, "groups_of_this_rank": {}}
    for desc, pg in groups.items():
        GROUPS[desc] = pg.group_name
        ranks = dist.get_process_group_ranks(pg)
        side["groups_of_this_rank"][pg.group_name] = {"ranks": ranks, "desc": desc, "this_rank_in_group": ranks.index(RANK)}
    with open(os.path.join(out_dir, "groups.json"), "w") as f:
        json.dump(side, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    out_dir, wanted = sys.argv[1], sys.argv[2:] or list(CASES)
    os.makedirs(out_dir, exist_ok=True)
    make_groups(out_dir)
    failed = False
    for name in wanted:
        try:
            export(name, out_dir)
            print(name, "ok", flush=True)
        except Exception as e:  # every case is tried, so that one report names all that fail
            failed = True
            print(name, "FAILED", type(e).__name__, str(e)[:800], flush=True)
    sys.exit(failed)
