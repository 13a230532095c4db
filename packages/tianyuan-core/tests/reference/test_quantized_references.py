"""Quantised ops give the integers that Python's own integers and single float32 steps give."""

from __future__ import annotations

import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.errors import ShapeError
from tianyuan.op import TensorSpec
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


def test_what_is_no_number_becomes_the_lower_bound():
    """Two terms beyond float32 that cancel: their sum is as far up as down."""
    op = registry.get_op("add_quantized")
    attrs = op.attrs(
        a_zero_point=0, b_zero_point=0, a_multiplier=2.0**126, b_multiplier=2.0**126, scale=1.0,
        zero_point=4, dtype="int8", lower=-100, upper=90,
    )  # fmt: skip
    a, b = np.int8([127, 127, -128, -128]), np.int8([-128, 127, 127, -128])
    with np.errstate(over="ignore", invalid="ignore"):
        (got,) = evaluate(op, [a, b], attrs)
    assert got.tolist() == [-100, 90, -100, -100]


def test_sums_are_refused_from_the_first_length_that_may_leave_int32():
    """The farthest from zero points: 255 (uint8 from 0) and 128 (int8 from 0)."""
    op, case = registry.get_op("matmul_quantized"), next(iter(cases_of("matmul_quantized")))
    attrs = replace(
        case.attrs, transpose_a=False, transpose_b=False, has_bias=False, has_residual=False,
        x_zero_point=0, w_zero_points=(0,), multipliers=(1.0,),
    )  # fmt: skip

    def infer(length: int) -> None:
        shapes = ((1, length), "uint8"), ((length, 1), "int8")
        op.infer([TensorSpec(shape, np.dtype(dtype)) for shape, dtype in shapes], attrs)

    longest = (2**31 - 1) // (255 * 128)
    infer(longest)
    with pytest.raises(ShapeError, match=f"got {longest + 1} terms, expected at most {longest}"):
        infer(longest + 1)
