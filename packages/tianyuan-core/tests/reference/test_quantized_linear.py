"""Linear maps with stored integers: a value computed by hand, and bytes unpacked in a loop."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan import Tensor, registry
from tianyuan.ops.quantized_linear import packed_int4, unpacked_int4


def apply(name, *arrays, **attrs):
    inputs = [Tensor(a, str(a.dtype)) for a in arrays]
    return registry.get_op(name)(*inputs, **attrs).numpy()


def test_dynamic_by_hand():
    # The scale is 3 / 255, the zero point 170; 1 becomes 85, -2 becomes -170.
    x = np.float32([[1.0, -2.0]])
    w = np.int8([[3, 1], [0, -127]])
    scales, bias = np.float32([0.5, 0.25]), np.float32([1.0, 0.0])
    got = apply("linear_dynamic", x, w, scales, bias, has_bias=True)
    sums = np.float32([85 * 3 - 170, 170 * 127])
    scale = np.float32(3) / np.float32(255)
    np.testing.assert_array_equal(got, [sums * (scales * scale) + bias])


def test_dynamic_is_close_to_floats():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((9, 300)), rng.standard_normal((20, 300))
    scales = np.abs(w).max(1) / 127
    stored = np.rint(w / scales[:, None]).astype(np.int8)
    got = apply("linear_dynamic", x.astype(np.float32), stored, scales.astype(np.float32))
    want = x @ w.T
    assert np.square(got - want).mean() < np.square(want).mean() * 1e-3


@pytest.mark.parametrize("count", [1, 6, 7])
def test_two_to_a_byte(count):
    q = np.random.default_rng(count).integers(-8, 8, (3, count)).astype(np.int8)
    stored = packed_int4(q)
    assert stored.shape == (3, (count + 1) // 2)
    for row in range(3):
        for place in range(count):
            half = int(stored[row, place // 2]) >> (4 if place % 2 else 0) & 15
            assert half - 8 == q[row, place]
    np.testing.assert_array_equal(unpacked_int4(stored, count), q)


@pytest.mark.parametrize(("inner", "group"), [(12, 4), (7, 3), (5, 8)])
def test_int4_scales_go_along_groups(inner, group):
    rng = np.random.default_rng(inner)
    q = rng.integers(-8, 8, (4, inner)).astype(np.int8)
    scales = rng.uniform(0.5, 2, (4, -(-inner // group))).astype(np.float32)
    x, bias = rng.standard_normal((3, inner)), rng.standard_normal(4)
    weight = np.array([[q[o, i] * scales[o, i // group] for i in range(inner)] for o in range(4)])
    got = apply(
        "linear_int4", x.astype(np.float32), packed_int4(q), scales, bias.astype(np.float32),
        group=group, has_bias=True,
    )  # fmt: skip
    np.testing.assert_allclose(got, x @ weight.T + bias, rtol=1e-5, atol=1e-5)
