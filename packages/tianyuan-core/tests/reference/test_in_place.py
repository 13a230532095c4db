"""Operators in place change the value of the handle, and lose nothing of the result's kind."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import tianyuan as ty
from tianyuan.autodiff import GradManager

INTS = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
FLOATS = INTS.astype(np.float32) / 4
BOOLS = INTS % 2 == 0


@pytest.mark.parametrize(
    ("name", "start", "other", "dtype"),
    [
        ("iadd", INTS, 1.5, "float32"),
        ("isub", INTS, FLOATS, "float32"),
        ("imul", INTS, 0.25, "float32"),
        ("itruediv", INTS, 4, "float32"),
        ("ifloordiv", INTS, 1.5, "float32"),
        ("imod", INTS, 2.5, "float32"),
        ("ipow", INTS, 0.5, "float32"),
        ("iadd", BOOLS, INTS, "int32"),
        ("iadd", INTS, 2, "int32"),
        ("iadd", INTS.astype(np.int8), INTS, "int8"),
        ("imul", FLOATS.astype(np.float16), FLOATS, "float16"),
        ("itruediv", FLOATS.astype(np.float16), FLOATS, "float16"),
        ("imatmul", FLOATS, FLOATS.T, "float32"),
        ("ilshift", INTS, 2, "int32"),
        ("irshift", INTS, 1, "int32"),
        ("iand", INTS, 3, "int32"),
        ("ixor", INTS, 5, "int32"),
        ("ior", BOOLS, True, "bool"),
    ],
)
def test_operator_in_place(name: str, start: np.ndarray, other: object, dtype: str) -> None:
    x = ty.Tensor(start)
    seen = x
    x = getattr(operator, name)(x, ty.Tensor(other) if isinstance(other, np.ndarray) else other)
    assert x is seen
    assert x.dtype == dtype
    want = getattr(operator, name[1:] if name not in ("iand", "ior") else f"{name[1:]}_")
    expected = np.asarray(want(start, other)).astype(dtype)
    np.testing.assert_allclose(x.numpy(), expected, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_gradient_flows_through_a_product_in_place() -> None:
    x, w = ty.Tensor(FLOATS), ty.Tensor(FLOATS.T)
    with GradManager().attach([w]) as gm:
        y = x * 1
        y @= w
        gm.backward(y.sum())
    np.testing.assert_allclose(w.grad.numpy(), FLOATS.sum(0)[:, None].repeat(2, 1), rtol=1e-6)


def test_refusal_leaves_the_value() -> None:
    x = ty.Tensor(INTS)
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+="):
        x += "text"
    np.testing.assert_array_equal(x.numpy(), INTS)
