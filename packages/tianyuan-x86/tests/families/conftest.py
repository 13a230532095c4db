"""Run one native kernel per ISA tier on plain arrays, watching workspace and padding lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.imperative.dispatch import bind_kernel, empty, logical
from tianyuan.kernel import PLAIN, SAME, Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan_x86 import native
from tianyuan_x86._tier import LANES

_GUARD = 256
_MARK = 0xA5

Apply = Callable[..., Any]


def _kernel_of(tier: str, call: Call, variant: str | None) -> Kernel:
    """Return the tier's first kernel that serves a call: plain, or the named variant."""
    refused = []
    for kernel in registry.candidates(call.op.name, "cpu", "x86"):
        forms = (*kernel.layouts.inputs, *kernel.layouts.outputs)
        if kernel.isa != tier or kernel.is_reference or kernel.backend != "x86":
            continue
        named = kernel.name.endswith(f"__{tier}_{variant}")
        if not named and (variant is not None or any(f not in (PLAIN, SAME) for f in forms)):
            continue
        reason = registry.refusal(kernel, call)
        if reason is None:
            return kernel
        refused.append(f"{kernel.name}: {reason}")
    raise LookupError(f"{call.op.name}: no kernel of {tier} serves: {'; '.join(refused)}")


def _packed(layout: str, array: np.ndarray) -> np.ndarray:
    source = array if layout in (PLAIN, SAME) else registry.get_layout(layout).pack(array)
    aligned = empty(source.shape, source.dtype)
    aligned[...] = source
    return aligned


def _room(layout: str, spec: TensorSpec) -> np.ndarray:
    shape = (
        spec.shape if layout in (PLAIN, SAME) else registry.get_layout(layout).extents(spec.shape)
    )
    return np.full(shape, 77, spec.dtype)


def _unpacked(layout: str, data: np.ndarray, spec: TensorSpec, name: str) -> np.ndarray:
    if layout in (PLAIN, SAME):
        return data
    form = registry.get_layout(layout)
    value = form.unpack(data, spec.shape)
    np.testing.assert_array_equal(form.pack(value), data, f"{name}: padding lanes")
    return value


def _run(kernel: Kernel, call: Call, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    forms = kernel.layouts
    inputs = [_packed(forms.of_input(i), array) for i, array in enumerate(arrays)]
    outputs = [_room(forms.of_output(i), spec) for i, spec in enumerate(call.outputs)]
    size = kernel.workspace(call)
    scratch = empty((size + _GUARD,), np.dtype(np.uint8))
    scratch[:] = 0xFF  # NaN as float32, so that a read of what was never written shows
    scratch[size:] = _MARK
    bind_kernel(kernel, call)(
        [logical(a, s.shape) for a, s in zip(inputs, call.inputs, strict=True)],
        [logical(a, s.shape) for a, s in zip(outputs, call.outputs, strict=True)],
        scratch,
    )
    assert (scratch[size:] == _MARK).all(), f"{kernel.name} wrote behind its workspace"
    return [
        _unpacked(forms.of_output(i), data, spec, kernel.name)
        for i, (data, spec) in enumerate(zip(outputs, call.outputs, strict=True))
    ]


# The tiers of float kernels; `vnni` holds those of 8-bit integers alone.
_TIERS = [tier.name for tier in native.load().tiers if tier.name in LANES]


@pytest.fixture(params=_TIERS)
def apply(request: pytest.FixtureRequest) -> Apply:
    """Return ``apply(op, *arrays, variant=None, threads=2, **attrs)`` for each tier."""
    tier: str = request.param

    def function(
        name: str, *arrays: Any, variant: str | None = None, threads: int = 2, **attrs: Any
    ) -> Any:
        op = registry.get_op(name)
        given = [np.array(array, order="C") for array in arrays]
        specs = tuple(TensorSpec(array.shape, array.dtype) for array in given)
        made = op.attrs(**attrs)
        call = Call(op, specs, op.infer(specs, made), made, threads)
        found = _run(_kernel_of(tier, call, variant), call, given)
        return found[0] if len(found) == 1 else tuple(found)

    return function


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a generator with a fixed seed."""
    return np.random.default_rng(20)
