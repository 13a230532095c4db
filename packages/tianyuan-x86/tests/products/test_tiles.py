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

import numpy as np
import pytest
import tianyuan
from tianyuan import ops, registry
from tianyuan.graph.compile import compile_graph
from tianyuan.graph.graph import Graph
from tianyuan.graph.options import Options
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call, CFunction, Context, Kernel
from tianyuan.op import TensorSpec
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
KERNELS = ("conv", "matmul", "linear_dynamic")
FILES = (*(f"int8_{name}" for name in KERNELS), "int8_tiles_impl", "int8_gather_impl",
         "int8_operands_impl")  # fmt: skip
FLAGS = [
    "-std=c++17", "-O2", "-w", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off",
    "-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
    "-mavx512vnni", "-DTY_ISA=amx", "-DTY_EMULATE_TILES",
]  # fmt: skip


def build(folder: Path) -> Path:
    """Build the tier with emulated instructions, its table of kernels exported."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to build the emulated tier")
    (folder / "files.inc").write_text("".join(f"TY_FILE(int8_{name})\n" for name in KERNELS))
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
    if not native.load().module.features()["avx512_vnni"]:
        pytest.skip("what surrounds the tiles needs AVX-512 with VNNI")
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
    products = {"conv2d_quantized", "matmul_quantized", "linear_dynamic"}
    assert {kernel.op for kernel in kernels} == products
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


def test_a_tier_that_computes_wrong_numbers_is_named(kernels: list[Kernel]) -> None:
    assert disproof(kernels) is None
    direct = next(k for k in kernels if re.search("conv2d_q8__amx_direct$", k.name))

    def off_by_one(
        context: Context, inputs: list[np.ndarray], outputs: list[np.ndarray], *_: object
    ) -> None:
        outputs[0][...] = 1

    why = disproof([*kernels, replace(direct, run=off_by_one)])
    assert why is not None
    assert re.match(r"conv2d_q8__amx_direct gave \d+ of \d+ wrong numbers for", why)


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
