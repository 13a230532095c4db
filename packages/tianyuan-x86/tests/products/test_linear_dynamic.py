"""linear_dynamic against integers summed in numpy, on odd extents, by several threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.ops.quantized_linear import LinearDynamic

ops.register_all()


def expected(x: np.ndarray, w: np.ndarray, scales: np.ndarray, bias: np.ndarray) -> np.ndarray:
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = int(np.rint(-low / scale))
    q = np.clip(np.rint(x / scale).astype(np.int64) + zero, 0, 255) - zero
    sums = (q @ w.astype(np.int64).T).astype(np.float32)
    return np.asarray(sums * (scales * scale) + bias)


@pytest.mark.parametrize("shape", [(1, 512), (7, 33), (50, 3), (257, 130)])
@pytest.mark.parametrize("outputs", [1, 16, 71, 200])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_it_is_what_its_integers_say(
    call_of: Callable[..., Any],
    run: Callable[..., list[np.ndarray]],
    shape: tuple[int, int],
    outputs: int,
    shift: float,
) -> None:
    """Also where all inputs have one sign, so that the zero point lies at an end."""
    rng = np.random.default_rng(outputs)
    x = (rng.standard_normal(shape) + shift).astype(np.float32)
    w = rng.integers(-128, 128, (outputs, shape[1])).astype(np.int8)
    scales = rng.uniform(0.001, 0.02, outputs).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    want = expected(x, w, scales, bias)
    for threads in (1, 3):
        call = call_of("linear_dynamic", [x, w, scales, bias], LinearDynamic(True), threads)
        found = [
            kernel
            for kernel in registry.candidates("linear_dynamic", "cpu", "x86")
            if kernel.backend == "x86" and registry.refusal(kernel, call) is None
        ]
        assert {kernel.isa for kernel in found} >= {"avx2"}
        for kernel in found:
            (got,) = run(kernel, call, [x, w, scales, bias])
            np.testing.assert_array_equal(got, want, err_msg=kernel.name)
