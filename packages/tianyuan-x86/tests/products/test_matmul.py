"""Matrix products against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.kernel import FULL, Kernel
from tianyuan.ops.matmul import Matmul, MatmulFused


def kernels_of(op: str) -> list[Kernel]:
    """Return the plugin's own kernels of an op that sum products of what they are given."""
    return [
        kernel
        for kernel in registry.candidates(op, "cpu", "x86")
        if kernel.is_native and kernel.precision == FULL and kernel.tolerance is None
    ]


# rows, columns, inner extent: single, tails of the tile, several blocks of k, vectors, empty,
# rows 4 KiB apart.
SIZES = [
    (1, 1, 1), (1, 17, 33), (33, 1, 20), (3, 5, 0), (0, 3, 4), (4, 0, 3), (14, 32, 16),
    (15, 33, 17), (6, 16, 8), (7, 130, 9), (50, 70, 400), (100, 200, 800), (1, 300, 500),
    (200, 2100, 20), (20, 100, 1024),
]  # fmt: skip
BATCHES = [((3,), ()), ((), (2,)), ((2, 1), (1, 3)), ((5, 2), (5, 2)), ((1,), (4,)), ((0,), (1,))]
TRANSPOSES = [(False, False), (True, False), (False, True), (True, True)]


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "clip": lambda x: np.clip(x, -0.5, 0.7),
}


def _operands(
    rng: np.random.Generator,
    size: tuple[int, int, int],
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    transposes: tuple[bool, bool],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both operands and their product in float64."""
    m, n, k = size
    a = rng.standard_normal((*batches[0], m, k))
    b = rng.standard_normal((*batches[1], k, n))
    a, b = a.astype(np.float32), b.astype(np.float32)
    product = a.astype(np.float64) @ b.astype(np.float64)
    a = np.ascontiguousarray(a.swapaxes(-1, -2)) if transposes[0] else a
    b = np.ascontiguousarray(b.swapaxes(-1, -2)) if transposes[1] else b
    return a, b, product


def _check(kernel: Kernel, got: np.ndarray, want: np.ndarray, inner: int) -> None:
    np.testing.assert_allclose(
        got, want, rtol=2e-5, atol=2e-6 * (inner + 1) ** 0.5 * 4, err_msg=kernel.name
    )


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
@pytest.mark.parametrize("transposes", TRANSPOSES)
def test_product(kernel: Kernel, transposes: tuple[bool, bool], run: Any, call_of: Any) -> None:
    rng = np.random.default_rng(1)
    cases = [(size, ((), ())) for size in SIZES]
    cases += [
        (size, batches) for size in ((3, 5, 4), (15, 33, 17), (1, 9, 8)) for batches in BATCHES
    ]
    count = 0
    for size, batches in cases:
        a, b, want = _operands(rng, size, batches, transposes)
        for threads in (1, 3):
            call = call_of("matmul", (a, b), Matmul(*transposes), threads)
            if kernel.supports(call) is None:
                count += 1
                _check(kernel, run(kernel, call, (a, b))[0], want, size[2])
    if count == 0:
        assert kernel.name.endswith("packed" if transposes[1] else "packed_transposed")


@pytest.mark.parametrize("kernel", kernels_of("matmul_fused"), ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogue(kernel: Kernel, activation: str, run: Any, call_of: Any) -> None:
    rng, count = np.random.default_rng(2), 0
    for index, size in enumerate((*SIZES[:10], (50, 70, 1100), (20, 100, 1024))):
        transposes = TRANSPOSES[index % 4]
        a, b, want = _operands(rng, size, ((2,), ()), transposes)
        for has_bias, has_residual in ((True, False), (False, True), (True, True), (False, False)):
            inputs, total = [a, b], want
            if has_bias:
                inputs.append(rng.standard_normal(size[1]).astype(np.float32))
                total = total + inputs[-1]
            if has_residual:
                inputs.append(rng.standard_normal(want.shape).astype(np.float32))
                total = total + inputs[-1]
            attrs = MatmulFused(*transposes, has_bias, has_residual, activation, -0.5, 0.7)
            call = call_of("matmul_fused", inputs, attrs, 1 + index % 2)
            if kernel.supports(call) is None:
                got = run(kernel, call, inputs)[0]
                _check(kernel, got, ACTIVATIONS[activation](total), size[2])
                count += 1
    assert count >= 16


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
def test_threads_change_nothing(kernel: Kernel, run: Any, call_of: Any) -> None:
    rng = np.random.default_rng(3)
    swapped = not kernel.name.endswith("_packed")
    a, b, _ = _operands(rng, (150, 170, 500), ((), ()), (False, swapped))
    attrs = Matmul(False, swapped)
    one, *others = (
        run(kernel, call_of("matmul", (a, b), attrs, threads), (a, b))[0] for threads in (1, 2, 5)
    )
    for other in others:
        np.testing.assert_array_equal(one, other)
