"""Per-op goldens from PyTorch's eager CPU ops for the reference interpreter.

    python -m venv venv && venv/bin/pip install torch==2.15.0 numpy safetensors
    venv/bin/python scripts/goldens/make_goldens.py crates/interp/tests/data

One safetensors file per family. The metadata of the file hold the cases: key is the case, value is JSON with the op, its
attributes, the keys of the operands (`in`) and of the result (`out`), as the interpreter's golden test reads it. The values are the same on every run; the last bits of f32 library functions depend on the vector
instructions of the machine (the committed files are from one with AVX-512).
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def sort_metadata(path):
    """Puts the metadata of a safetensors file in order; the library writes them in another one each time."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    path.write_bytes(data[:8] + text.ljust(size) + data[8 + size :])


class Family:
    """Cases of one file."""

    def __init__(self, name):
        self.name, self.tensors, self.cases, self.keys = name, {}, {}, {}

    def add(self, case, op, operands, out, **attributes):
        assert case not in self.cases, case
        keys = [self.store(x) for x in operands]
        self.cases[case] = json.dumps({"op": op, "in": keys, "out": self.store(out), **attributes})

    def store(self, x):
        """Key of the tensor; equal tensors are stored once."""
        x = x.detach().clone().contiguous()
        content = (x.dtype, tuple(x.shape), x.view(torch.uint8).numpy().tobytes() if x.dim() else x.item())
        if content not in self.keys:
            self.keys[content] = f"t{len(self.keys)}"
            self.tensors[self.keys[content]] = x
        return self.keys[content]

    def save(self, folder):
        path = folder / f"goldens_{self.name}.safetensors"
        save_file(self.tensors, path, metadata=self.cases)
        sort_metadata(path)
        print(f"{path}: {len(self.cases)} cases, {path.stat().st_size} bytes")


def specials(dtype):
    """Zeros, subnormals, infinities, NaNs with payloads, the largest and smallest numbers, of either sign."""
    if dtype == torch.float32:
        bits = [0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001, 0x7FABCDEF, 0x3F800000,
                0x3F7FFFFF, 0x3F800001, 0x3F000000, 0x40000000, 0x4B000000, 0x4B000001, 0x5F000000]
        bits += [b | 0x80000000 for b in bits]
        return torch.tensor([b - (1 << 32) if b >= 1 << 31 else b for b in bits], dtype=torch.int32).view(dtype)
    if dtype == torch.float16:
        bits = [0, 1, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0x7E00, 0x7C01, 0x7D55, 0x3C00, 0x3BFF, 0x3C01, 0x3800, 0x4000]
    else:
        bits = [0, 1, 0x007F, 0x0080, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81, 0x7FAB, 0x3F80, 0x3F7F, 0x3F81, 0x3F00, 0x4000]
    bits += [b | 0x8000 for b in bits]
    return torch.tensor([b - (1 << 16) if b >= 1 << 15 else b for b in bits], dtype=torch.int16).view(dtype)


def exponents(dtype, generator):
    """One random number per exponent and sign."""
    if dtype == torch.float32:
        e = torch.arange(0, 255, dtype=torch.int64).repeat(2) << 23
        m = torch.randint(0, 1 << 23, (510,), generator=generator)
        s = torch.cat([torch.zeros(255, dtype=torch.int64), torch.full((255,), -(1 << 31))])
        return (e | m | s).to(torch.int32).view(dtype)
    width = 10 if dtype == torch.float16 else 7
    count = 31 if dtype == torch.float16 else 255
    e = torch.arange(0, count, dtype=torch.int64).repeat(2) << width
    m = torch.randint(0, 1 << width, (2 * count,), generator=generator)
    s = torch.cat([torch.zeros(count, dtype=torch.int64), torch.full((count,), -(1 << 15))])
    return (e | m | s).to(torch.int16).view(dtype)


def samples(dtype, seed, ordinary=200):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ordinary, generator=g) * torch.exp(torch.randn(ordinary, generator=g))
    return whole_vectors(torch.cat([specials(dtype), exponents(dtype, g), x.to(dtype)]))


def whole_vectors(x):
    """Without a remainder, which PyTorch computes by other code than whole vectors."""
    return x[: len(x) // 64 * 64]


UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "ceil": torch.ceil, "floor": torch.floor,
    "round": torch.round, "trunc": torch.trunc, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "recip": torch.reciprocal,
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p,
    "log2": torch.log2, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "erf": torch.erf,
    "sigmoid": torch.sigmoid, "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu, "softplus": F.softplus, "is_nan": torch.isnan, "is_inf": torch.isinf,
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "rem": torch.remainder, "fmod": torch.fmod, "pow": torch.pow, "max": torch.maximum, "min": torch.minimum,
    "atan2": torch.atan2, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}


def pointwise():
    unary, binary = Family("unary"), Family("binary")
    for name, dtype in FLOATS.items():
        x = samples(dtype, 1)
        for op, f in UNARY.items():
            # PyTorch's f32 and bf16 GELU gives NaN or infinity for large arguments and flushes tiny ones.
            y = whole_vectors(x[(x.abs().float() < 1e4) & (x.abs().float() > 1e-30)]) if op == "gelu" else x
            unary.add(f"{op}.{name}", "unary", [y], f(y), name=op)
        g = torch.Generator().manual_seed(2)
        # Every special with every special, then ordinary numbers with each other.
        s = specials(dtype)[::2] if dtype == torch.float32 else specials(dtype)
        a = torch.cat([s.repeat_interleave(len(s)), (torch.randn(200, generator=g) * 3).to(dtype)])
        b = torch.cat([s.repeat(len(s)), (torch.randn(200, generator=g) * 3).to(dtype)])
        a, b = whole_vectors(a), whole_vectors(b)
        # PyTorch's remainders are NaN where the quotient overflows.
        bounded = (a.double() / b.double()).abs() < 1e9
        for op, f in BINARY.items():
            x, y = (whole_vectors(v[bounded]) for v in (a, b)) if op in ("rem", "fmod", "floor_div") else (a, b)
            binary.add(f"{op}.{name}", "binary", [x, y], f(x, y), name=op)
        for op, scalar, f in [
            ("add", 0.1, lambda x: x + 0.1), ("sub", 0.1, lambda x: x - 0.1), ("mul", 0.1, lambda x: x * 0.1),
            ("div", 0.3, lambda x: x / 0.3), ("rsub", 1.0 / 3, lambda x: 1.0 / 3 - x),
            ("pow", 2.0, lambda x: x**2.0), ("pow", 3.0, lambda x: x**3.0), ("pow", 0.5, lambda x: x**0.5),
            ("pow", -0.5, lambda x: x**-0.5), ("pow", -1.0, lambda x: x**-1.0), ("pow", -2.0, lambda x: x**-2.0),
            ("pow", 2.5, lambda x: x**2.5), ("rpow", 10000.0, lambda x: torch.pow(10000.0, x)),
            ("rem", 0.7, lambda x: torch.remainder(x, 0.7)), ("fmod", 0.7, lambda x: torch.fmod(x, 0.7)),
            ("max", 0.1, lambda x: torch.clamp_min(x, 0.1)), ("min", 0.1, lambda x: torch.clamp_max(x, 0.1)),
            ("gt", 0.5, lambda x: x > 0.5), ("le", 0.5, lambda x: x <= 0.5),
        ]:
            y = samples(dtype, 3, ordinary=100)
            if op in ("rem", "fmod"):
                y = whole_vectors(y[y.abs().float() < 1e8])
            # Only these take the number as it is; the others round it to the tensor's type first, and so does an importer.
            if op not in ("mul", "div", "pow"):
                scalar = torch.tensor(scalar).to(dtype).item()
            first = op in ("rsub", "rpow")
            binary.add(f"{op}_{scalar:.4}.{name}", "binary_scalar", [y], f(y), name=op[1:] if first else op,
                       scalar=scalar, first=first)
    ints = torch.tensor([-(1 << 31), -7, -3, -1, 1, 2, 3, 7, (1 << 31) - 1], dtype=torch.int32)
    for name, dtype in {"i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8}.items():
        values = ints.to(dtype)
        values = values[values != 0]
        a, b = values.repeat_interleave(len(values)), values.repeat(len(values))
        # The quotient of the least integer by -1 overflows; what comes then is the hardware's.
        keep = ~((a == torch.iinfo(dtype).min) & (b.to(torch.int64) == -1))
        a, b = a[keep], b[keep]
        for op in ["add", "sub", "mul", "floor_div", "trunc_div", "rem", "fmod", "max", "min", "eq", "lt", "ge"]:
            binary.add(f"{op}.{name}", "binary", [a, b], BINARY[op](a, b), name=op)
        for op, f in {"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}.items():
            binary.add(f"{op}.{name}", "binary", [a, b], f(a, b), name=op)
        for op, f in {"neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "not": torch.bitwise_not}.items():
            unary.add(f"{op}.{name}", "unary", [values], f(values), name=op)
    flags = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    for op, f in {"and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor, "eq": torch.eq,
                  "max": torch.maximum, "min": torch.minimum}.items():
        binary.add(f"{op}.bool", "binary", list(flags), f(*flags), name=op)
    unary.add("not.bool", "unary", [flags[1]], torch.logical_not(flags[1]), name="not")
    return [unary, binary]


def casts():
    family = Family("cast")
    ints = torch.tensor([-(1 << 62), -(1 << 33) - 1, -(1 << 24) - 1, -300, -129, -128, -1, 0, 1, 2, 127, 128, 255, 256, 449,
                         464, 465, 2049, 65503, 65519, 65520, (1 << 24) + 1, (1 << 24) + 3, (1 << 53) + 1, (1 << 62) + 1])
    sources = {
        **{n: samples(d, 4, ordinary=60) for n, d in FLOATS.items()},
        "f64": torch.cat([samples(torch.float32, 4, ordinary=60).double(),
                          torch.tensor([1e300, 1e-300, 1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40,
                                        1 + 2.0**-11 + 2.0**-40, 65519.999, 2.0**-25], dtype=torch.float64)]),
        "f8e4m3": torch.arange(0, 256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn),
        "i64": ints, "i32": ints[(ints.abs() < 1 << 31)].to(torch.int32),
        "i8": torch.arange(-128, 128, dtype=torch.int32).to(torch.int8), "u8": torch.arange(0, 256, dtype=torch.int32).to(torch.uint8),
        "bool": torch.tensor([False, True]),
    }
    targets = {**FLOATS, "f64": torch.float64, "f8e4m3": torch.float8_e4m3fn, "i64": torch.int64, "i32": torch.int32,
               "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}
    for s, x in sources.items():
        for t, dtype in targets.items():
            y = x
            if s in ("f32", "f16", "bf16", "f64", "f8e4m3") and t in ("i64", "i32", "i8", "u8"):
                # Conversions of what does not fit the integer are undefined in C++, and PyTorch's differ by code path.
                info, wide = torch.iinfo(dtype), x.double()
                y = x.view(torch.uint8)[(wide.trunc() >= info.min) & (wide.trunc() < float(info.max))].view(x.dtype) \
                    if s == "f8e4m3" else x[(wide.trunc() >= info.min) & (wide.trunc() < float(info.max))]
            family.add(f"{s}.{t}", "cast", [y], y.to(dtype), to=t)
    return [family]


def movement():
    """NaN payloads must survive whatever only moves data."""
    family = Family("movement")
    for name, dtype in FLOATS.items():
        x = specials(dtype)[:24].reshape(2, 3, 4)
        family.add(f"transpose.{name}", "transpose", [x], x.permute(2, 0, 1), perm=[2, 0, 1])
        family.add(f"slice.{name}", "slice", [x], x[:, :, 1:4:2], dim=2, start=1, limit=4, stride=2)
        family.add(f"broadcast.{name}", "broadcast", [x[:, :1]], x[:, :1].expand(2, 5, 4), shape=[2, 5, 4])
        family.add(f"concat.{name}", "concat", [x, x.flip(0)], torch.cat([x, x.flip(0)], 1), dim=1)
        family.add(f"pad.{name}", "pad", [x], F.pad(x, (0, 0, 1, 2), value=-0.0), dim=1, low=1, high=2, value=-0.0)
        i = torch.tensor([2, 0, 2])
        family.add(f"take.{name}", "gather", [x, i], x.index_select(1, i), mode="take", dim=1)
        j = torch.tensor([[[0, 1, 2, 1]], [[2, 2, 0, 0]]])
        # As integers: PyTorch's own gather loses the payload of 16-bit NaNs.
        picked = x.view(torch.int32 if dtype == torch.float32 else torch.int16).gather(1, j).view(dtype)
        family.add(f"elements.{name}", "gather", [x, j], picked, mode="elements", dim=1)
        c = torch.tensor([True, False, True]).reshape(1, 3, 1)
        family.add(f"select.{name}", "select", [c, x, x.flip(2)], torch.where(c, x, x.flip(2)))
        base = x.clone()
        base[:, ::2] = x.flip(0)[:, ::2]
        family.add(f"update.{name}", "update_slice", [x, x.flip(0)[:, ::2]], base, dim=1, start=0, stride=2)
    return [family]


def reductions():
    family = Family("reduce")
    ops = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}
    for name, dtype in FLOATS.items():
        g = torch.Generator().manual_seed(5)
        for shape, dims in [((3, 5), [1]), ((2, 130), [1]), ((2, 1000), [1]), ((40, 37), [0]), ((2, 33, 7), [1]),
                            ((3, 4, 5), [1, 2]), ((3, 4, 5), [0, 2]), ((3, 4, 5), [0, 1, 2]), ((6, 1), [1])]:
            x = (torch.randn(shape, generator=g) * 2).to(dtype)
            for op, f in ops.items():
                case = f"{op}.{name}.{'x'.join(map(str, shape))}.{'_'.join(map(str, dims))}"
                family.add(case, "reduce", [x], f(x, dim=dims), kind=op, dims=dims, keep=False)
        x = torch.randn((3, 6), generator=g).to(dtype)
        family.add(f"prod.{name}", "reduce", [x], torch.prod(x, dim=1, keepdim=True), kind="prod", dims=[1], keep=True)
        special = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), 1.0, -float("inf")], [-0.0, -0.0, -0.0]]).to(dtype)
        for op, f in ops.items():
            family.add(f"{op}.{name}.special", "reduce", [special], f(special, dim=[1]), kind=op, dims=[1], keep=False)
        for shape, dim in [((4, 7), 1), ((4, 100), 1), ((9, 5), 0), ((2, 9, 3), 1)]:
            x = (torch.randn(shape, generator=g) * 3).to(dtype)
            family.add(f"softmax.{name}.{'x'.join(map(str, shape))}.{dim}", "softmax", [x], torch.softmax(x, dim), dim=dim)
    i = torch.randint(-1000, 1000, (4, 50), generator=torch.Generator().manual_seed(6), dtype=torch.int32)
    family.add("sum.i32", "reduce", [i], i.sum(1, dtype=torch.int32), kind="sum", dims=[1], keep=False)
    family.add("max.i32", "reduce", [i], i.amax(1), kind="max", dims=[1], keep=False)
    return [family]


def products():
    family = Family("matmul")
    for name, dtype in FLOATS.items():
        g = torch.Generator().manual_seed(7)
        r = lambda *s: torch.randn(*s, generator=g).to(dtype)
        # Sizes for which PyTorch calls its BLAS library; it has other loops for a handful of elements.
        a, b, c = r(32, 40), r(40, 24), r(24)
        family.add(f"mm.{name}", "matmul", [a, b], a @ b, ta=False, tb=False)
        w = r(24, 40)
        family.add(f"linear.{name}", "matmul", [a, w, c], F.linear(a, w, c), ta=False, tb=True)
        x = r(2, 16, 40)
        family.add(f"linear3.{name}", "matmul", [x, w, c], F.linear(x, w, c), ta=False, tb=True)
        p, q = r(2, 1, 32, 16), r(2, 1, 16, 24)
        family.add(f"batched.{name}", "matmul", [p, q], p @ q, ta=False, tb=False)
        q1 = r(1, 1, 16, 24)
        family.add(f"broadcast.{name}", "matmul", [p, q1], p @ q1, ta=False, tb=False)
        k, m = r(32, 128), r(128, 24)
        family.add(f"long.{name}", "matmul", [k, m], k @ m, ta=False, tb=False)
        k, m = r(4, 300), r(300, 5)
        family.add(f"few.{name}", "matmul", [k, m], k @ m, ta=False, tb=False)
        # Small integers: every order of summation gives the same bits.
        u = torch.randint(-8, 9, (7, 64), generator=g).to(dtype)
        v = torch.randint(-8, 9, (64, 6), generator=g).to(dtype)
        family.add(f"exact.{name}", "matmul", [u, v], u @ v, ta=False, tb=False)
    u = torch.randint(-100, 100, (3, 20), generator=g)
    v = torch.randint(-100, 100, (20, 4), generator=g)
    family.add("mm.i64", "matmul", [u, v], u @ v, ta=False, tb=False)
    return [family]


def norms():
    family = Family("norm")
    for name, dtype in FLOATS.items():
        g = torch.Generator().manual_seed(8)
        for n in (7, 64, 130):
            x, w, b = ((torch.randn(s, generator=g) * 2).to(dtype) for s in ((3, n), (n,), (n,)))
            at = f"{name}.{n}"
            family.add(f"layer.{at}", "normalize", [x], F.layer_norm(x, [n], None, None, 1e-5), kind="layer", trailing=1, eps=1e-5, scale=False, bias=False)
            family.add(f"layer_affine.{at}", "normalize", [x, w, b], F.layer_norm(x, [n], w, b, 1e-5), kind="layer", trailing=1, eps=1e-5, scale=True, bias=True)
            family.add(f"rms.{at}", "normalize", [x], F.rms_norm(x, [n], None, 1e-6), kind="rms", trailing=1, eps=1e-6, scale=False, bias=False)
            family.add(f"rms_scale.{at}", "normalize", [x, w], F.rms_norm(x, [n], w, 1e-6), kind="rms", trailing=1, eps=1e-6, scale=True, bias=False)
        x, w, b = ((torch.randn(s, generator=g) * 2).to(dtype) for s in ((2, 4, 6), (4, 6), (4, 6)))
        family.add(f"layer_two.{name}", "normalize", [x, w, b], F.layer_norm(x, [4, 6], w, b, 1e-5), kind="layer", trailing=2, eps=1e-5, scale=True, bias=True)
    return [family]


def attentions():
    family = Family("attention")
    for name, dtype in FLOATS.items():
        g = torch.Generator().manual_seed(9)
        r = lambda *s: torch.randn(*s, generator=g).to(dtype)
        q, k, v = r(2, 2, 6, 16), r(2, 2, 9, 16), r(2, 2, 9, 16)
        scale = 1 / math.sqrt(16)
        sdpa = F.scaled_dot_product_attention
        family.add(f"plain.{name}", "attention", [q, k, v], sdpa(q, k, v), scale=scale, causal=False, mask=False)
        m = r(2, 1, 1, 9)
        family.add(f"mask.{name}", "attention", [q, k, v, m], sdpa(q, k, v, attn_mask=m), scale=scale, causal=False, mask=True)
        keep = torch.rand(2, 1, 6, 9, generator=g) > 0.3
        keep[0, 0, 0] = False
        family.add(f"bool.{name}", "attention", [q, k, v, keep], sdpa(q, k, v, attn_mask=keep), scale=scale, causal=False, mask=True)
        family.add(f"scale.{name}", "attention", [q, k, v], sdpa(q, k, v, scale=0.7), scale=0.7, causal=False, mask=False)
        k6, v6 = k[:, :, :6], v[:, :, :6]
        family.add(f"causal.{name}", "attention", [q, k6, v6], sdpa(q, k6, v6, is_causal=True), scale=scale, causal=True, mask=False)
        # Large enough for the BLAS library in both products.
        q, k, v = r(1, 1, 32, 32), r(1, 1, 40, 32), r(1, 1, 40, 32)
        family.add(f"large.{name}", "attention", [q, k, v], sdpa(q, k, v), scale=1 / math.sqrt(32), causal=False, mask=False)
        m = r(1, 1, 1, 40)
        family.add(f"large_mask.{name}", "attention", [q, k, v, m], sdpa(q, k, v, attn_mask=m), scale=1 / math.sqrt(32), causal=False, mask=True)
        k, v = r(1, 1, 520, 8), r(1, 1, 520, 8)
        q = r(1, 1, 4, 8)
        family.add(f"blocks.{name}", "attention", [q, k, v], sdpa(q, k, v), scale=1 / math.sqrt(8), causal=False, mask=False)
    return [family]


def convolutions():
    family = Family("conv")
    for name, dtype in FLOATS.items():
        g = torch.Generator().manual_seed(10)
        r = lambda *s: torch.randn(*s, generator=g).to(dtype)
        x, w, b = r(2, 4, 11), r(6, 2, 3), r(6)
        family.add(f"one.{name}", "conv", [x, w, b], F.conv1d(x, w, b, stride=2, padding=1, groups=2),
                   stride=[2], padding=[[1, 1]], dilation=[1], groups=2, bias=True)
        x, w = r(1, 3, 7, 6), r(4, 3, 3, 2)
        family.add(f"two.{name}", "conv", [x, w], F.conv2d(x, w, stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
                   stride=[1, 2], padding=[[2, 2], [1, 1]], dilation=[2, 1], groups=1, bias=False)
        x, w = r(1, 2, 3, 4, 5), r(2, 2, 2, 2, 2)
        family.add(f"three.{name}", "conv", [x, w], F.conv3d(x, w), stride=[1, 1, 1], padding=[[0, 0]] * 3,
                   dilation=[1, 1, 1], groups=1, bias=False)
    return [family]


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for families in (pointwise(), casts(), movement(), reductions(), products(), norms(), attentions(), convolutions()):
        for family in families:
            family.save(folder)


if __name__ == "__main__":
    main()
