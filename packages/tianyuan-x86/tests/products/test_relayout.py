"""Native repacking against the layouts' own numpy definition, which is checked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.graph import lower
from tianyuan.graph.graph import Constant, Graph
from tianyuan.graph.options import Options
from tianyuan.graph.selection import Labelling
from tianyuan.graph.slab import Slab
from tianyuan.imperative.dispatch import bind_kernel, empty, logical
from tianyuan.kernel import Kernel
from tianyuan.ops.attrs import Relayout
from tianyuan_x86.kernels import all_layouts


def kernels_of(op: str) -> list[Kernel]:
    """Return the plugin's own float32 kernels that move elements and leave them as they are."""
    return [
        kernel
        for kernel in registry.candidates(op, "cpu", "x86")
        if kernel.is_native and kernel.dtypes == ("float32",) and _keeps_elements(kernel)
    ]


def _keeps_elements(kernel: Kernel) -> bool:
    names = {*kernel.layouts.inputs, *kernel.layouts.outputs} - {"plain"}
    return all(registry.get_layout(name).exact for name in names)


SHAPES = [(1, 16, 2, 3), (2, 3, 5, 7), (3, 40, 1, 1), (17, 33, 3, 3), (0, 4, 2, 2), (5, 1, 4, 17)]


@pytest.mark.parametrize("kernel", kernels_of("relayout"), ids=str)
def test_round_trip(kernel: Kernel, run: Any, call_of: Any) -> None:
    source, target = kernel.layouts.inputs[0], kernel.layouts.outputs[0]
    attrs = Relayout(source, target)
    matrices = 2 in {registry.get_layout(name).ndim for name in (source, target) if name != "plain"}
    for full in SHAPES:
        shape = (full[0], math.prod(full[1:])) if matrices else full
        x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
        for threads in (1, 3):
            call = call_of("relayout", (x,), attrs, threads)
            assert kernel.supports(call) is None
            np.testing.assert_array_equal(run(kernel, call, (x,))[0], x)
        other = call_of("relayout", (x,), Relayout(target, source))
        assert "repacks" in (kernel.supports(other) or "")


@pytest.mark.parametrize("lanes", [8, 16])
def test_where_elements_lie(lanes: int) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 21, 3, 4)).astype(np.float32)
    image = registry.get_layout(f"nchw{lanes}c").pack(x)
    weight = registry.get_layout(f"oihw{lanes}i{lanes}o").pack(x)
    narrow = registry.get_layout(f"goihw{lanes}g").pack(x)
    for a, b, c, d in ((0, 0, 0, 0), (1, 20, 2, 3), (0, 9, 1, 2), (1, 16, 0, 1)):
        assert image[a, b // lanes, c, d, b % lanes] == x[a, b, c, d]
        assert weight[a // lanes, b // lanes, c, d, b % lanes, a % lanes] == x[a, b, c, d]
        assert narrow[a // lanes, b, c, d, a % lanes] == x[a, b, c, d]


@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (19, 37, 1, 1), (5, 3, 2, 2)])
def test_constants_are_packed_as_their_layout_says(shape: tuple[int, ...]) -> None:
    w = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    blocked = (layout for layout in all_layouts() if layout.exact and layout.ndim == 4)
    for layout in blocked:
        if layout.trailing and shape[2:] != layout.trailing:
            continue
        labelling = Labelling(Graph(), {}, "cpu", Options())
        constant = Constant(w)
        packed = lower.packed(constant, layout.name, labelling, Slab([constant.spec.nbytes]))
        np.testing.assert_array_equal(packed.array, layout.pack(w), layout.name)


def integer_packers() -> list[Kernel]:
    """Return the kernels that pack 8-bit weights."""
    return [
        kernel
        for kernel in registry.candidates("relayout", "cpu", "x86")
        if kernel.is_native and kernel.dtypes == ("int8",)
    ]


@pytest.mark.parametrize("kernel", integer_packers(), ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_weights_of_integers_are_packed_as_their_layout_says(
    kernel: Kernel, threads: int, call_of: Any
) -> None:
    """To the byte: with the sums of terms, which products read, and zeros where nothing lies."""
    layout = registry.get_layout(kernel.layouts.outputs[0])
    shapes = {
        4: [(16, 16, 3, 3), (19, 37, 1, 1), (70, 1, 5, 3), (1, 3, 7, 2), (130, 1, 3, 3)],
        2: [(16, 16), (37, 19), (1, 70), (130, 1), (33, 64)],
    }
    for shape in shapes[layout.ndim]:
        w = np.random.default_rng(5).integers(-128, 128, shape).astype(np.int8)
        call = call_of("relayout", (w,), Relayout("plain", layout.name), threads)
        assert kernel.supports(call) is None
        made = np.full(layout.extents(shape), 77, np.int8)
        scratch = empty((kernel.workspace(call),), np.dtype(np.uint8))
        bind_kernel(kernel, call)([w], [logical(made, shape)], scratch)
        np.testing.assert_array_equal(made, layout.pack(w), str(shape))
    other = call_of("relayout", (w,), Relayout(layout.name, "plain"))
    assert "repacks" in (kernel.supports(other) or "")


@pytest.mark.parametrize("kernel", integer_packers(), ids=str)
def test_empty_weights_of_integers_are_packed_and_unpacked(kernel: Kernel) -> None:
    layout = registry.get_layout(kernel.layouts.outputs[0])
    for shape in ((0, 1, 3, 3), (5, 0, 3, 3)) if layout.ndim == 4 else ((0, 4), (4, 0), (0, 0)):
        packed = layout.pack(np.zeros(shape, np.int8))
        assert packed.shape == layout.extents(shape)
        assert not packed.any()
        assert layout.unpack(packed, shape).shape == shape


def test_every_layout_of_ungrouped_integers_has_a_native_packer() -> None:
    found = {kernel.layouts.outputs[0] for kernel in integer_packers()}
    assert found in (
        {"oihw16o4i", "goihw64g4i", "owhi16o4i", "kn16n4k", "nk16n4k"},
        set(),  # on a machine without AVX2
    )
