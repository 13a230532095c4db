"""The kernels of the amx tier, built over plain C++ that follows the manual of its instructions."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
from ml_dtypes import bfloat16
from numpy.lib.stride_tricks import sliding_window_view
from tianyuan import ops, registry
from tianyuan.graph.compile import compile_graph
from tianyuan.graph.graph import Graph
from tianyuan.graph.options import Options
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call, CFunction, Context, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.conv import Conv2d, Conv2dFused
from tianyuan.ops.matmul import MatmulFused
from tianyuan.ops.quantized_product import Conv2dQuantized, MatmulQuantized
from tianyuan.ops.reference import evaluate
from tianyuan.plugins import PluginWarning
from tianyuan.testing import suite
from tianyuan_x86 import native
from tianyuan_x86._proof import disproof
from tianyuan_x86._tier import Tier
from tianyuan_x86.kernels import all_kernels

ops.register_all()

NATIVE = Path(__file__).parents[2] / "native"
KERNELS = ("int8_conv", "int8_matmul", "int8_linear_dynamic", "bf16_conv", "bf16_matmul")
FILES = (*KERNELS, "int8_tiles_impl", "int8_gather_impl", "int8_operands_impl",
         "bf16_conv_tiles_impl", "bf16_product_tiles_impl")  # fmt: skip
FLAGS = [
    "-std=c++17", "-O2", "-w", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off",
    "-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
    "-mavx512vnni", "-mavx512bf16", "-DTY_ISA=amx", "-DTY_EMULATE_TILES",
]  # fmt: skip


def build(folder: Path) -> Path:
    """Build the tier with emulated instructions, its table of kernels exported."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to build the emulated tier")
    (folder / "files.inc").write_text("".join(f"TY_FILE({name})\n" for name in KERNELS))
    include = [f"-I{path}" for path in (NATIVE, NATIVE / "kernels", folder)]
    include.append(f"-I{tianyuan.get_include()}")
    sources = [*(NATIVE / "kernels" / f"{name}.cpp" for name in FILES), NATIVE / "table.cpp"]
    objects = [folder / f"{source.stem}.o" for source in sources]

    def compiled(source: Path, target: Path) -> None:
        subprocess.run([compiler, *FLAGS, *include, "-c", source, "-o", target], check=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compiled, sources, objects))
    subprocess.run([compiler, "-shared", *objects, "-o", folder / "tiles.so"], check=True)
    return folder / "tiles.so"


class KernelEntry(ctypes.Structure):
    """ty_kernel of abi.h."""

    _fields_ = [("version", ctypes.c_uint32), ("size", ctypes.c_uint32),
                ("name", ctypes.c_char_p), ("run", ctypes.c_void_p)]  # fmt: skip


class KernelTable(ctypes.Structure):
    """ty_kernel_table of abi.h."""

    _fields_ = [("version", ctypes.c_uint32), ("size", ctypes.c_uint32),
                ("count", ctypes.c_int64), ("kernels", ctypes.POINTER(KernelEntry))]  # fmt: skip


class TierTable(ctypes.Structure):
    """ty_x86_tier of tiers.hpp."""

    _fields_ = [("name", ctypes.c_char_p), ("count", ctypes.c_int64),
                ("tables", ctypes.POINTER(ctypes.POINTER(KernelTable)))]  # fmt: skip


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Tier:
    """Return the amx tier over emulated instructions."""
    if not native.load().module.features()["avx512_bf16"]:
        pytest.skip("what surrounds the tiles needs AVX-512 with VNNI and BF16")
    library = ctypes.CDLL(str(build(tmp_path_factory.mktemp("tiles"))))
    table, functions = TierTable.in_dll(library, "ty_x86_tier_amx"), {}
    for file in range(table.count):
        entries = table.tables[file].contents
        for entry in entries.kernels[: entries.count]:
            functions[entry.name.decode()] = CFunction(entry.run, library)
    return Tier("amx", functions)


@pytest.fixture(scope="module")
def kernels(tier: Tier) -> list[Kernel]:
    """Return the tier's kernels."""
    return all_kernels((tier,))


@pytest.fixture
def registered(kernels: list[Kernel]) -> Iterator[None]:
    """Let the emulated kernels compete with those of this machine."""
    registry.candidates("conv2d_quantized")
    registry.register_kernels("tiles", "cpu", kernels)
    yield
    registry.unregister("tiles")


def test_kernels_agree_with_references(kernels: list[Kernel]) -> None:
    """The conformance kit's cases give the references' integers, and do so on any threads."""
    assert {kernel.isa for kernel in kernels} == {"amx"}
    integers = {"conv2d_quantized", "matmul_quantized", "linear_dynamic"}
    pairs = {"conv2d", "conv2d_fused", "matmul", "matmul_fused"}
    assert {kernel.op for kernel in kernels} == integers | pairs
    for kernel in kernels:
        suite.test_kernel_agrees_with_reference(kernel)
        suite.test_kernel_is_repeatable(kernel)


def conv_attrs(**changes: object) -> Conv2dQuantized:
    base = Conv2dQuantized(
        stride=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1, has_bias=True,
        has_residual=False, x_zero_point=128, w_zero_points=(0,), multipliers=(2.0**-12,),
        residual_zero_point=0, residual_multiplier=1.0, scale=1.0, zero_point=0, dtype="int8",
        lower=-128, upper=127,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def call_of(name: str, arrays: list[np.ndarray], attrs: object, threads: int = 1) -> Call:
    op = registry.get_op(name)
    specs = tuple(TensorSpec(a.shape, a.dtype) for a in arrays)
    return Call(op, specs, op.infer(specs, attrs), attrs, threads)


def network() -> Graph:
    """Build a first layer, a block with a residual, and a strided pointwise convolution."""
    graph, rng = Graph(), np.random.default_rng(11)
    conv = registry.get_op("conv2d_quantized")
    x = graph.add_input(TensorSpec((2, 3, 34, 38), np.dtype("uint8")), "x")
    for o, size, stride, joins in ((64, 7, 2, False), (64, 3, 1, True), (128, 1, 2, False)):
        w = rng.integers(-128, 128, (o, int(x.spec.shape[1]), size, size)).astype(np.int8)
        bias = rng.integers(-999, 999, o).astype(np.int32)
        inputs = [x, graph.add_constant(w, "w"), graph.add_constant(bias, "b")]
        attrs = conv_attrs(
            stride=(stride, stride), padding=(size // 2,) * 4, x_zero_point=121, zero_point=121,
            multipliers=(float(np.float32(0.02 / w[0].size**0.5)),), dtype="uint8", lower=121,
            upper=255, has_residual=joins, residual_zero_point=121, residual_multiplier=0.75,
        )  # fmt: skip
        x = graph.add_node(conv, (*inputs, x) if joins else inputs, attrs)[0]
    graph.outputs.append(x)
    return graph


def serving(kernels: list[Kernel], name: str, arrays: list[np.ndarray], attrs: object) -> int:
    """Hold every kernel that serves a call to the reference's integers, and count them."""
    call, count = call_of(name, arrays, attrs, threads=2), 0
    (want,) = evaluate(call.op, arrays, attrs)
    for kernel in kernels:
        if kernel.op == name and registry.refusal(kernel, call) is None:
            (got,) = run_kernel(kernel, call, arrays)
            np.testing.assert_array_equal(got, want, err_msg=kernel.name)
            count += 1
    return count


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    ("n", "c", "o", "size", "kernel", "stride", "groups", "dilation"),
    [
        (1, 64, 64, (13, 14), 3, 1, 1, 1),  # rows of the image at a distance
        (2, 128, 40, (5, 7), 3, 1, 1, 1),  # what lies between rows costs more than gathering
        (3, 128, 33, (3, 10), 1, 2, 1, 1),
        (1, 3, 32, (21, 23), 7, 2, 1, 1),
        (2, 96, 96, (6, 9), 3, 1, 3, 1),
        (1, 68, 17, (8, 9), 1, 1, 1, 1),  # terms that no step divides
        (1, 20, 18, (9, 8), 3, 1, 1, 2),
        (1, 10, 6, (9, 8), 3, 2, 2, 1),
        (1, 256, 16, (1, 1), 1, 1, 1, 1),
    ],
)
def test_convolutions_give_the_defined_integers(
    kernels: list[Kernel], n: int, c: int, o: int, size: tuple[int, int], kernel: int, stride: int,
    groups: int, dilation: int, residual: bool, dtype: str,
) -> None:  # fmt: skip
    rng, info = np.random.default_rng(c + o), np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (n, c, *size)).astype(dtype)
    w = rng.integers(-128, 128, (o, c // groups, kernel, kernel)).astype(np.int8)
    arrays = [x, w, rng.integers(-9999, 9999, o).astype(np.int32)]
    pad = kernel // 2 * dilation
    length = c // groups * kernel * kernel
    attrs = conv_attrs(
        x_zero_point=5, padding=(pad,) * 4, groups=groups, stride=(stride, stride),
        dilation=(dilation, dilation),
        multipliers=tuple(float(np.float32((1 + i % 3) / 200 / length**0.5)) for i in range(o)),
    )  # fmt: skip
    if residual:
        y = call_of("conv2d_quantized", arrays, attrs).outputs[0].shape
        arrays.append(rng.integers(0, 256, y).astype(np.uint8))
        attrs = replace(attrs, has_residual=True, residual_zero_point=9, residual_multiplier=0.375)
    assert serving(kernels, "conv2d_quantized", arrays, attrs) >= 1


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1000, 512), (49, 48, 64), (33, 17, 130), (64, 64, 3)]
)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("int8", 0), ("int8", 4)])
def test_products_give_the_defined_integers(
    kernels: list[Kernel], m: int, n: int, k: int, dtype: str, zero: int
) -> None:
    rng, info = np.random.default_rng(k), np.iinfo(dtype)
    a = rng.integers(info.min, info.max + 1, (m, k)).astype(dtype)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    attrs = MatmulQuantized(
        transpose_a=False, transpose_b=False, has_bias=False, has_residual=False, x_zero_point=3,
        w_zero_points=(zero,), multipliers=(float(np.float32(0.01 / k**0.5)),), scale=1.0,
        residual_zero_point=0, residual_multiplier=1.0, zero_point=-4, dtype="int8", lower=-128,
        upper=127,
    )  # fmt: skip
    assert serving(kernels, "matmul_quantized", [a, b], attrs) == 2


def test_whole_network_runs_in_tiles_where_they_pay(registered: None) -> None:
    """The choice by cost takes some of the tier's kernels, and no integer changes."""
    graph, x = network(), np.random.default_rng(4).integers(0, 256, (2, 3, 34, 38), np.uint8)
    found = {}
    for cap in ("vnni", "amx"):
        with registry.use_isa(cap):
            compiled = compile_graph(graph, {}, options=Options(threads=2))
        tiles = [step.kernel.name for step in compiled.program.steps if step.kernel.isa == "amx"]
        assert bool(tiles) == (cap == "amx")
        found[cap] = np.empty(graph.outputs[0].spec.shape, np.uint8)
        compiled.executable.run([x], [], [found[cap]])
    np.testing.assert_array_equal(found["amx"], found["vnni"])
    assert len(np.unique(found["amx"])) > 10


def rounded(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return standard normal float32 values that bfloat16 holds."""
    found: np.ndarray = rng.standard_normal(shape).astype(bfloat16).astype(np.float32)
    return found


def convolved(x: np.ndarray, w: np.ndarray, a: Conv2d) -> np.ndarray:
    """Return a convolution in float64, window by window."""
    top, left, bottom, right = a.padding
    (sh, sw), (dh, dw) = a.stride, a.dilation
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    span = ((w.shape[2] - 1) * dh + 1, (w.shape[3] - 1) * dw + 1)
    windows = sliding_window_view(padded, span, axis=(2, 3))[:, :, ::sh, ::sw, ::dh, ::dw]
    n, c, *rest = windows.shape
    windows = windows.reshape(n, a.groups, c // a.groups, *rest)
    weights = w.astype(np.float64).reshape(a.groups, -1, *w.shape[1:])
    sums = np.einsum("ngchwij,gocij->ngohw", windows, weights)
    return sums.reshape(n, -1, *rest[:2])


ENDS: dict[str, Any] = {
    "identity": lambda x: x,
    "clip": lambda x: np.clip(x, -0.5, 0.7),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "attrs"),
    [
        ((2, 64, 20, 21), 64, 1, Conv2d()),  # more positions than a block
        ((1, 33, 3, 5), 49, 1, Conv2d()),
        ((3, 16, 4, 4), 16, 1, Conv2d()),  # one tile of rows by one of outputs
        ((1, 40, 9, 9), 32, 1, Conv2d((2, 2))),
        ((2, 48, 7, 7), 80, 3, Conv2d(padding=(1, 1, 1, 1))),  # what lies between rows as well
        ((1, 20, 5, 70), 17, 3, Conv2d(padding=(1, 1, 1, 1))),  # row by row
        ((2, 20, 9, 11), 33, 3, Conv2d()),
        ((1, 40, 17, 19), 72, 3, Conv2d((2, 2), (1, 1, 1, 1))),
        ((1, 20, 11, 12), 18, 3, Conv2d((1, 1), (2, 2, 2, 2), (2, 2))),
        ((2, 64, 11, 11), 96, 3, Conv2d((1, 1), (1, 1, 1, 1), (1, 1), 2)),
        ((1, 48, 8, 9), 48, 3, Conv2d((1, 1), (1, 1, 1, 1), (1, 1), 3)),  # half a step each
        ((1, 16, 12, 30), 16, 5, Conv2d((1, 3), (0, 2, 1, 0))),
    ],
)
def test_pairs_are_convolved_as_in_float64(
    kernels: list[Kernel], shape: tuple[int, ...], outputs: int, kernel: int, attrs: Conv2d,
    call_of: Any, run: Any,
) -> None:  # fmt: skip
    """Results err by what keeps them in bfloat16, whatever follows the sums."""
    rng = np.random.default_rng(outputs)
    x, w = rounded(rng, *shape), rounded(rng, outputs, shape[1] // attrs.groups, kernel, kernel)
    plain, bias = convolved(x, w, attrs), rounded(rng, outputs)
    residual = rounded(rng, *plain.shape)
    cases: list[tuple[str, list[np.ndarray], Any, np.ndarray]] = [("conv2d", [x, w], attrs, plain)]
    place = (attrs.stride, attrs.padding, attrs.dilation, attrs.groups)
    ends = [("identity", True, False), ("clip", True, True), ("silu", True, True)]
    for activation, biased, joins in (*ends, ("clip", False, True)):
        total = plain + (bias[:, None, None] if biased else 0) + (residual if joins else 0)
        arrays = [x, w, *([bias] if biased else []), *([residual] if joins else [])]
        fused = Conv2dFused(
            *place, has_bias=biased, has_residual=joins, activation=activation, lower=-0.5,
            upper=0.7,
        )  # fmt: skip
        cases.append(("conv2d_fused", arrays, fused, ENDS[activation](total)))
    for name, arrays, given, want in cases:
        results = []
        for threads in (1, 3):
            call = call_of(name, arrays, given, threads=threads)
            (found,) = (k for k in kernels if k.op == name and registry.refusal(k, call) is None)
            (got,) = run(found, call, arrays)
            assert np.abs(got - want).max() <= 2.0**-8 * np.abs(want).max(), found.name
            results.append(got)
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("rows", [1, 17, 33, 131])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 31), (96, 200), (17, 64), (50, 513)])
@pytest.mark.parametrize("activation", ENDS)
def test_pairs_are_multiplied_as_in_float64(
    kernels: list[Kernel], rows: int, n: int, k: int, activation: str, call_of: Any, run: Any
) -> None:
    """Results stay in float32, so that they are those of a float32 product of rounded operands."""
    rng = np.random.default_rng(rows * n + k)
    a, b, bias = rounded(rng, rows, k), rounded(rng, n, k), rounded(rng, n)
    residual = rounded(rng, rows, n)
    want = ENDS[activation](a.astype(np.float64) @ b.T + bias + residual)
    served = 0
    for transposed in (False, True):
        arrays = [a, b if transposed else np.ascontiguousarray(b.T), bias, residual]
        attrs = MatmulFused(
            transpose_b=transposed, has_bias=True, has_residual=True, activation=activation,
            lower=-0.5, upper=0.7,
        )  # fmt: skip
        call = call_of("matmul_fused", arrays, attrs, threads=2)
        for found in kernels:
            if found.op == "matmul_fused" and registry.refusal(found, call) is None:
                (got,) = run(found, call, arrays)
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * (k + 8))
                served += 1
    assert served == 2


def test_tiles_take_denormal_numbers_for_zero(
    kernels: list[Kernel], call_of: Any, run: Any
) -> None:
    """So does the processor, whatever a thread's floating-point modes say."""
    a = np.full((2, 2), 1e-39, bfloat16).astype(np.float32)
    b = np.full((2, 3), 1e38, bfloat16).astype(np.float32)
    call = call_of("matmul_fused", [a, b], MatmulFused())
    (found,) = (k for k in kernels if k.op == "matmul_fused" and registry.refusal(k, call) is None)
    assert (run(found, call, [a, b])[0] == 0).all()
    assert (a @ b > 0.1).all()


def float_network() -> Graph:
    """Build two convolutions, a residual among them, and a product of all that they give."""
    graph, rng = Graph(), np.random.default_rng(12)
    x = graph.add_input(TensorSpec((2, 64, 14, 15), np.dtype(np.float32)), "x")
    conv = registry.get_op("conv2d_fused")
    for size in (1, 3):
        w = graph.add_constant(rng.standard_normal((64, 64, size, size), np.float32) / 20, "w")
        attrs = Conv2dFused(padding=(size // 2,) * 4, has_residual=size == 3, activation="relu")
        x = graph.add_node(conv, (x, w, x) if size == 3 else (x, w), attrs)[0]
    right = graph.add_constant(rng.standard_normal((15, 40), np.float32), "r")
    graph.outputs.append(
        graph.add_node(registry.get_op("matmul_fused"), (x, right), MatmulFused())[0]
    )
    return graph


def test_float_networks_run_in_tiles_where_bfloat16_is_permitted(
    kernels: list[Kernel], registered: None
) -> None:
    """Layouts are those of the tier below, so its kernels and tiles share a program."""
    graph = float_network()
    x = np.random.default_rng(5).standard_normal((2, 64, 14, 15), np.float32)
    found = {}
    for precision in ("full", "bf16"):
        compiled = compile_graph(graph, {}, options=Options(threads=2, precision=precision))
        names = [step.kernel.name for step in compiled.program.steps]
        assert ("conv2d_fused_bf16__amx_direct" in " ".join(names)) == (precision == "bf16")
        found[precision] = np.empty(graph.outputs[0].spec.shape, np.float32)
        compiled.executable.run([x], [], [found[precision]])
    error = np.abs(found["bf16"] - found["full"]).max()
    assert 0 < error < 2e-2 * np.abs(found["full"]).max()


def test_costs_prefer_tiles_to_float32(kernels: list[Kernel], call_of: Any) -> None:
    """Where products are long and rows many, tiles are charged less than any float32 kernel is."""
    exact = [k for k in registry.candidates("conv2d", "cpu", "x86") if k.precision != "bf16"]
    arrays = [np.empty((1, 256, 28, 28), np.float32), np.empty((256, 256, 3, 3), np.float32)]
    call = call_of("conv2d", arrays, Conv2d(padding=(1, 1, 1, 1)))
    (tiles,) = (k for k in kernels if k.op == "conv2d")
    served = [k.cost(call) for k in exact if registry.refusal(k, call) is None]
    assert tiles.cost(call) < min(served)


@pytest.mark.parametrize("name", ["conv2d_q8__amx_direct", "matmul_bf16__amx_packed"])
def test_a_tier_that_computes_wrong_numbers_is_named(kernels: list[Kernel], name: str) -> None:
    assert disproof(kernels) is None
    direct = next(k for k in kernels if k.name == name)

    def off_by_one(
        context: Context, inputs: list[np.ndarray], outputs: list[np.ndarray], *_: object
    ) -> None:
        outputs[0][...] = 1

    why = disproof([*kernels, replace(direct, run=off_by_one)])
    assert why is not None
    assert re.match(rf"{name} gave \d+ of \d+ wrong numbers for", why)


def test_a_faulty_tier_is_refused_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is used without the tier, a warning says why, and the report repeats it."""
    good = native.load()
    why = "conv2d gave 3 of 4 wrong integers"
    monkeypatch.setattr(native, "fault", lambda tier: why if tier.name == "avx2" else None)
    with pytest.warns(PluginWarning, match=f"tier avx2 is not used.*{why}"):
        bad = native._load()
    assert [tier.name for tier in bad.tiers] == [t.name for t in good.tiers if t.name != "avx2"]
    monkeypatch.setattr(native, "load", lambda: bad)
    import tianyuan_x86

    assert tianyuan_x86.tianyuan_report()["refused"] == {"avx2": why}
    assert "avx2" not in tianyuan_x86.tianyuan_report()["tiers"]


def test_a_sound_tier_is_offered_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not native._load().refused
