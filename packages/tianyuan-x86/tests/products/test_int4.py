"""Products with weights of 4 bits against sums in float64."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.quantized_linear import LinearInt4, packed_int4

ops.register_all()


def natively(arrays: list[np.ndarray], attrs: LinearInt4) -> dict[str, np.ndarray]:
    """Run every native kernel that serves the call."""
    op = registry.get_op("linear_int4")
    specs = tuple(TensorSpec(a.shape, a.dtype) for a in arrays)
    call = Call(op, specs, op.infer(specs, attrs), attrs, 2)
    kernels: list[Kernel] = [
        kernel
        for kernel in registry.candidates("linear_int4", "cpu", "x86")
        if kernel.backend == "x86" and registry.refusal(kernel, call) is None
    ]
    return {kernel.name: run_kernel(kernel, call, arrays)[0] for kernel in kernels}


def weights(outputs: int, inner: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return stored bytes, scales, and the float64 matrix that they stand for."""
    rng = np.random.default_rng(outputs + inner)
    integers = rng.integers(-8, 8, (outputs, inner))
    scales = rng.uniform(0.01, 0.1, (outputs, -(-inner // group))).astype(np.float32)
    wide = np.repeat(scales.astype(np.float64), group, axis=1)[:, :inner]
    return packed_int4(integers), scales, integers * wide


@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "group"),
    [
        (1, 512, 512, 32),
        (1, 70, 1001, 128),
        (5, 33, 40, 8),
        (3, 16, 7, 64),
        (9, 200, 96, 96),
        (7, 64, 2048, 128),
        (39, 130, 200, 64),
    ],
)
def test_products_are_as_exact_as_sums_in_float32(
    rows: int, outputs: int, inner: int, group: int
) -> None:
    rng = np.random.default_rng(rows)
    stored, scales, matrix = weights(outputs, inner, group)
    x = (rng.standard_normal((rows, inner)) * 10.0 ** rng.integers(-3, 4, (rows, 1))).astype("f")
    bias = rng.standard_normal(outputs).astype(np.float32)
    want = x.astype(np.float64) @ matrix.T + bias
    reach = np.abs(x).astype(np.float64).max(axis=1, keepdims=True) * np.abs(matrix).sum(axis=1)
    found = natively([x, stored, scales, bias], LinearInt4(group, True))
    assert any("avx2" in name for name in found)
    for name, got in found.items():
        assert np.all(np.abs(got - want) <= 1e-6 * (reach + np.abs(bias))), name


def test_integers_as_activations_give_their_exact_sums() -> None:
    """Bytes at the ends of their range do not saturate on the way into the sum."""
    stored = packed_int4(np.where(np.arange(64) % 3, 7, -8)[None].repeat(20, axis=0))
    scales = np.ones((20, 2), np.float32)
    x = np.where(np.arange(64) % 3, 8355000.0, -8355000.0).astype(np.float32)[None]
    want = np.sum(np.where(np.arange(64) % 3, 7.0, 8.0)) * 8355000.0
    for name, got in natively([x, stored, scales], LinearInt4(32)).items():
        np.testing.assert_allclose(got, np.full((1, 20), want), rtol=3e-7, err_msg=name)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_rows_with_infinities_come_out_as_floats_do(special: float) -> None:
    stored, scales, matrix = weights(18, 48, 16)
    scales[:, 1] *= -1  # so that the group of an infinity shows in its sign
    matrix[:, 16:32] *= -1
    x = np.random.default_rng(3).standard_normal((3, 48)).astype(np.float32)
    x[1, 21] = special
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ matrix.T
    found = natively([x, stored, scales], LinearInt4(16))
    assert found
    for name, got in found.items():
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_zeros_and_the_smallest_numbers_stay_finite() -> None:
    stored, scales, _ = weights(5, 24, 8)
    x = np.array([[0.0] * 24, [1e-44] * 24], np.float32)
    for name, got in natively([x, stored, scales], LinearInt4(8)).items():
        np.testing.assert_allclose(got, np.zeros((2, 5)), atol=1e-35, err_msg=name)
