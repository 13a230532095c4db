"""Numbers become constants exactly or not at all, whichever way they enter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError, DTypeError, ShapeError
from tianyuan.jit import trace

# Integers that no double holds, and the ends of the dtypes' ranges.
EXACT = [
    ("int64", 2**53 + 1), ("int64", -(2**60) - 1), ("int64", 2**63 - 1), ("int64", -(2**63)),
    ("uint64", 2**64 - 1), ("uint64", 2**63 + 3), ("int32", -(2**31)), ("uint8", 255),
]  # fmt: skip
WRONG = [("uint8", 256), ("uint8", -1), ("int32", 2**31), ("int64", 2**63), ("int64", 10**400)]


@pytest.mark.parametrize(("dtype", "number"), EXACT)
def test_integers_are_exact(dtype: str, number: int) -> None:
    zero = Tensor([0], dtype=dtype)
    assert (zero + number).tolist() == [number]
    assert trace(lambda x: x + number)(zero).tolist() == [number]
    assert F.full((1,), number, dtype=dtype).tolist() == [number]
    assert (F.full((1,), number, dtype=dtype) == number).tolist() == [True]


@pytest.mark.parametrize(("dtype", "number"), WRONG)
@pytest.mark.parametrize(
    "use",
    [
        lambda dtype, number: Tensor([0], dtype=dtype) + number,
        lambda dtype, number: F.maximum(Tensor([0], dtype=dtype), number),
        lambda dtype, number: F.full((1,), number, dtype=dtype),
        lambda dtype, number: trace(lambda x: x * number)(Tensor([1], dtype=dtype)),
    ],
)
def test_integers_that_do_not_fit_are_refused(
    use: Callable[[str, int], Any], dtype: str, number: int
) -> None:
    with pytest.raises(DTypeError, match=f"a number does not fit {dtype}"):
        use(dtype, number)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 3e9])
def test_numbers_that_are_no_int32_are_refused(number: float) -> None:
    with pytest.raises(DTypeError, match="full: a number does not fit int32"):
        F.full((2,), number, dtype="int32")


@pytest.mark.filterwarnings("error")
def test_large_numbers_become_infinite_in_floats() -> None:
    assert (Tensor(np.ones(1, np.float16)) + 1e6).tolist() == [np.inf]
    assert (Tensor([1.0]) + 10**400).tolist() == [np.inf]
    assert (Tensor([1.0]) - 10**400).tolist() == [-np.inf]


def test_large_ranges_are_exact() -> None:
    for start, stop, step in ((2**60, 2**60 + 4, 1), (-(2**60) - 1, -(2**60) + 5, 3)):
        made = F.arange(start, stop, step, dtype="int64")
        assert made.tolist() == list(range(start, stop, step))


def test_ranges_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DTypeError, match="arange: a number does not fit uint8, got 299"):
        F.arange(300, dtype="uint8")
    for bound in (float("nan"), float("inf")):
        with pytest.raises(AttrError, match="arange: bounds must be finite"):
            F.arange(0, bound)
    with pytest.raises(AttrError, match="linspace: bounds must be finite"):
        F.linspace(0, float("inf"), 3)


def test_a_range_along_a_traced_extent_does_not_fix_it() -> None:
    numbers = ty.jit.trace(symbolic=True)(lambda x: F.arange(x.shape[0], dtype="int32"))
    for size in (1, 3, 5):
        assert numbers(Tensor(np.zeros(size, np.float32))).tolist() == list(range(size))


@pytest.mark.parametrize("shape", [(2**40, 2**40), (1,) * 70, (2**62, 2**62, 0)])
def test_shapes_that_no_array_can_have_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="full: no array can have the output's shape"):
        F.zeros(shape)


def test_ragged_data_is_refused() -> None:
    with pytest.raises(ShapeError, match="tensor: data is no array, got list"):
        Tensor([[1], [1, 2]])
