"""Quantised ops give the integers that Python's own integers and single float32 steps give."""

from __future__ import annotations

import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.ops import quantized_rules as rules
from tianyuan.ops.reference import evaluate
from tianyuan.testing.cases import cases_of
from tianyuan.testing.compare import difference
from tianyuan.testing.oracles_quantized import EXACT, rounded


def single(value: float) -> float:
    """Round a Python float to float32 by the machine's own conversion."""
    return struct.unpack("f", struct.pack("f", value))[0]


def test_rounding_helper_is_the_machines():
    rng = np.random.default_rng(0)
    for value in (*rng.normal(size=50) * 10.0 ** rng.integers(-9, 9, 50), 2.0**24 + 1, 3.5):
        assert rounded(Fraction(value)) == single(value)


@pytest.mark.parametrize("name", EXACT)
def test_reference_agrees_with_exact_arithmetic(name: str):
    op, rng, count = registry.get_op(name), np.random.default_rng(1), 0
    for seed, case in enumerate(cases_of(name)):
        arrays = case.arrays(seed)
        (got,) = evaluate(op, arrays, case.attrs)
        places = list(np.ndindex(got.shape))
        some = rng.choice(len(places), min(len(places), 12), replace=False) if places else []
        for place in (places[index] for index in some):
            want = np.full((), EXACT[name](arrays, case.attrs, place), got.dtype)
            wrong = difference(case, [got[place]], [want])
            assert wrong is None, f"{case} at {place}: {wrong}"
            count += 1
    assert count > 10


@pytest.mark.parametrize("name", ["conv2d_quantized", "matmul_quantized", "add_quantized"])
def test_cases_reach_most_of_the_range(name: str):
    for seed, case in enumerate(cases_of(name)):
        (got,) = evaluate(registry.get_op(name), case.arrays(seed), case.attrs)
        if got.size > 200:
            assert len(np.unique(got)) > 20, str(case)


def test_many_multipliers_are_rounded_as_one_is():
    rng = np.random.default_rng(3)
    numerators = rng.random(300) * 10.0 ** rng.integers(-9, 9, 300)
    want = tuple(single(float(n) / 0.037) for n in numerators)
    assert rules.ratios(numerators, 0.037) == want
    assert rules.ratios(np.append(numerators, 1e39), 0.037) is None
    assert rules.ratios(np.append(numerators, 1e-42), 0.037) is None


@pytest.mark.parametrize("name", ["conv2d_quantized", "matmul_quantized"])
def test_products_without_outputs_have_no_zero_points(name: str):
    case = next(case for case in cases_of(name) if not case.attrs.has_residual)
    attrs = replace(case.attrs, w_zero_points=(), multipliers=(), has_bias=False)
    shapes = ((2, 3), (3, 0)) if name.startswith("matmul") else ((1, 3, 4, 4), (0, 3, 1, 1))
    if name.startswith("matmul"):
        attrs = replace(attrs, transpose_a=False, transpose_b=False)
    else:
        attrs = replace(attrs, groups=1, stride=(1, 1), dilation=(1, 1), padding=(0, 0, 0, 0))
    arrays = [np.zeros(shape, np.int8) for shape in shapes]
    (got,) = evaluate(registry.get_op(name), arrays, replace(attrs, x_zero_point=0))
    assert got.shape == ((2, 0) if name.startswith("matmul") else (1, 0, 4, 4))
