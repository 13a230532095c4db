"""Philox gives its published numbers, on the reference and on numpy's kernels."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.backends.numpy.random import philox
from tianyuan.ops.attrs import RandomFill
from tianyuan.ops.random import philox_block
from tianyuan.ops.reference import evaluate

# kat_vectors of Random123 for philox4x32-10: counter, key, result.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def _draw(name, state, shape, dtype, skip=0):
    op = registry.get_op(name)
    return evaluate(op, [np.array(state, np.int64)], RandomFill(shape, dtype, skip))[0]


def _fast(name, state, shape, dtype, skip=0):
    out = np.empty(shape, dtype)
    (kernel,) = [
        k for k in registry.candidates(name) if k.backend == "numpy" and not k.is_reference
    ]
    kernel.run(None, [np.array(state, np.int64)], [out], RandomFill(shape, dtype, skip), None)
    return out


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    assert philox_block(counter, key) == expected
    words = philox([np.array([word], np.uint64) for word in counter], key)
    assert tuple(int(word[0]) for word in words) == expected


@pytest.mark.parametrize("draw", [_draw, _fast])
def test_bits_of_seed_zero(draw):
    assert tuple(draw("philox_bits", [0, 0], (4,), "uint32")) == KNOWN[0][2]


@pytest.mark.parametrize("draw", [_draw, _fast])
def test_offset_and_skip_count_blocks(draw):
    whole = draw("philox_bits", [99, 5], (40,), "uint32")
    np.testing.assert_array_equal(draw("philox_bits", [99, 7], (8,), "uint32"), whole[8:16])
    np.testing.assert_array_equal(draw("philox_bits", [99, 5], (9,), "uint32", 3), whole[12:21])


@pytest.mark.parametrize("draw", [_draw, _fast])
def test_uniform_is_the_top_bits(draw):
    bits = draw("philox_bits", [3, 0], (24,), "uint32").astype(np.int64)
    single = draw("philox_uniform", [3, 0], (24,), "float32")
    np.testing.assert_array_equal(single, np.floor(bits / 256) / 2.0**24)
    double = draw("philox_uniform", [3, 0], (12,), "float64")
    joined = [int(high) * 2**32 + int(low) for low, high in bits.reshape(-1, 2)]
    np.testing.assert_array_equal(double, [n // 2**11 / 2.0**53 for n in joined])


@pytest.mark.parametrize("draw", [_draw, _fast])
def test_normal_is_box_muller(draw):
    bits = draw("philox_bits", [3, 0], (8,), "uint32").astype(np.float64).reshape(-1, 2)
    first, second = (bits[:, 0] + 0.5) / 2**32, bits[:, 1] / 2**32
    polar = np.sqrt(-2 * np.log(first)) * np.exp(2j * np.pi * second)
    want = np.stack((polar.real, polar.imag), 1).reshape(-1)
    np.testing.assert_allclose(draw("philox_normal", [3, 0], (8,), "float64"), want, 1e-12, 1e-13)
    np.testing.assert_allclose(draw("philox_normal", [3, 0], (8,), "float32"), want, 1e-6)


def test_moments():
    count = 200_000
    uniform = _fast("philox_uniform", [11, 0], (count,), "float64")
    normal = _fast("philox_normal", [11, 0], (count,), "float64")
    # Five standard errors of each estimate.
    assert abs(uniform.mean() - 0.5) < 5 * np.sqrt(1 / 12 / count)
    assert abs(uniform.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / count)
    assert abs(normal.mean()) < 5 / np.sqrt(count)
    assert abs(normal.var() - 1) < 5 * np.sqrt(2 / count)
    assert uniform.min() >= 0
    assert uniform.max() < 1
