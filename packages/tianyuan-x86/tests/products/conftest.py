"""Run one native kernel on plain arrays, watching its workspace and the padding of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tianyuan import config, registry
from tianyuan.imperative.dispatch import bind_kernel, empty, logical
from tianyuan.kernel import Call, Kernel
from tianyuan.op import TensorSpec

_GUARD = 256
_MARK = 0xA5


def _call_of(op_name: str, arrays: Sequence[np.ndarray], attrs: Any, threads: int = 1) -> Call:
    """Return the call of an op on these arrays."""
    op = registry.get_op(op_name)
    specs = tuple(TensorSpec(array.shape, array.dtype) for array in arrays)
    return Call(op, specs, op.infer(specs, attrs), attrs, threads)


def _run(
    kernel: Kernel, call: Call, arrays: Sequence[np.ndarray], threads: int | None = None
) -> list[np.ndarray]:
    """Run a kernel in its layouts; assert that it stays in its workspace and zeroes padding.

    ``threads`` may be fewer than are planned for, as in a pool that has become smaller.
    """
    forms = kernel.layouts
    inputs = [_packed(forms.of_input(i), array) for i, array in enumerate(arrays)]
    outputs = [
        np.full(_extents(forms.of_output(i), spec.shape), _unlikely(spec.dtype), spec.dtype)
        for i, spec in enumerate(call.outputs)
    ]
    size = kernel.workspace(call)
    scratch = empty((size + _GUARD,), np.dtype(np.uint8))
    scratch[:] = 0xFF  # NaN as float32, so that a read of what was never written shows
    scratch[size:] = _MARK
    bind_kernel(kernel, replace(call, threads=threads or call.threads))(
        [logical(a, s.shape) for a, s in zip(inputs, call.inputs, strict=True)],
        [logical(a, s.shape) for a, s in zip(outputs, call.outputs, strict=True)],
        scratch,
    )
    assert (scratch[size:] == _MARK).all(), f"{kernel.name} wrote behind its workspace"
    found = []
    for i, (data, spec) in enumerate(zip(outputs, call.outputs, strict=True)):
        name = forms.of_output(i)
        if name == "plain":
            found.append(data)
            continue
        layout = registry.get_layout(name)
        value = layout.unpack(data, spec.shape)
        if layout.padding == "zero":
            np.testing.assert_array_equal(layout.pack(value), data, f"{kernel.name}: padding lanes")
        found.append(value)
    return found


def _unlikely(dtype: np.dtype[Any]) -> float:
    """Return what shows where a result was not written."""
    return 77 if dtype.kind in "iu" else np.nan


def _packed(layout: str, array: np.ndarray) -> np.ndarray:
    source = array if layout == "plain" else registry.get_layout(layout).pack(array)
    aligned = empty(source.shape, source.dtype)
    aligned[...] = source
    return aligned


def _extents(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if layout == "plain" else tuple(registry.get_layout(layout).extents(shape))


@pytest.fixture(scope="session")
def call_of() -> Callable[..., Call]:
    """Return the function that makes the call of an op on arrays."""
    return _call_of


@pytest.fixture(scope="session")
def run() -> Callable[..., list[np.ndarray]]:
    """Return the function that runs a kernel on plain arrays."""
    return _run


@pytest.fixture
def switch() -> Iterator[None]:
    """Let a test turn Winograd's methods off and on."""
    before = config.winograd
    yield
    config.winograd = before
