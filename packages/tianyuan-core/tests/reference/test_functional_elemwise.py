"""Elementwise functions against numpy and scipy: values, dtypes of results, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from scipy import special
from tianyuan import Tensor
from tianyuan.errors import AttrError, DTypeError, ShapeError

RNG = np.random.default_rng(3)
ANY = RNG.normal(size=(3, 4)).astype(np.float32) * 3
UNIT = RNG.uniform(-0.95, 0.95, (3, 4)).astype(np.float32)
POSITIVE = RNG.uniform(1.1, 4, (3, 4)).astype(np.float32)

UNARY = [
    ("abs", np.abs, ANY), ("neg", np.negative, ANY), ("square", np.square, ANY),
    ("ceil", np.ceil, ANY), ("floor", np.floor, ANY), ("round", np.round, ANY * 2),
    ("sqrt", np.sqrt, POSITIVE), ("exp", np.exp, ANY), ("expm1", np.expm1, ANY / 100),
    ("log", np.log, POSITIVE), ("log1p", np.log1p, POSITIVE / 100), ("sin", np.sin, ANY),
    ("cos", np.cos, ANY), ("tan", np.tan, UNIT), ("asin", np.arcsin, UNIT),
    ("acos", np.arccos, UNIT), ("atan", np.arctan, ANY), ("sinh", np.sinh, ANY),
    ("cosh", np.cosh, ANY), ("tanh", np.tanh, ANY), ("asinh", np.arcsinh, ANY),
    ("acosh", np.arccosh, POSITIVE), ("atanh", np.arctanh, UNIT), ("erf", special.erf, UNIT),
    ("sign", np.sign, ANY),
]  # fmt: skip


@pytest.mark.parametrize(("name", "oracle", "x"), UNARY, ids=[case[0] for case in UNARY])
def test_unary(name, oracle, x):
    got = getattr(F, name)(Tensor(x))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.numpy(), oracle(x.astype(np.float64)), rtol=3e-6, atol=1e-7)


FLOATING = {name for name, _, _ in UNARY} - {
    "abs",
    "neg",
    "square",
    "ceil",
    "floor",
    "round",
    "sign",
}


@pytest.mark.parametrize("name", sorted(FLOATING))
def test_integers_are_computed_in_float32(name):
    x = np.array([1], np.int32) if name != "atanh" else np.array([0], np.int32)
    got = getattr(F, name)(Tensor(x))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.numpy(), {n: f for n, f, _ in UNARY}[name](x * 1.0), 1e-6)


@pytest.mark.parametrize("name", ["ceil", "floor", "round", "abs", "square"])
def test_integers_stay_integers(name):
    got = getattr(F, name)(Tensor([2, -3]))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got.numpy(), getattr(np, name)(np.array([2, -3])))


BINARY = [
    ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide),
    ("floor_div", np.floor_divide), ("mod", np.mod), ("maximum", np.maximum),
    ("minimum", np.minimum), ("atan2", np.arctan2), ("logaddexp", np.logaddexp),
    ("equal", np.equal), ("not_equal", np.not_equal), ("less", np.less),
    ("less_equal", np.less_equal), ("greater", np.greater), ("greater_equal", np.greater_equal),
    ("logical_and", np.logical_and), ("logical_or", np.logical_or),
    ("logical_xor", np.logical_xor),
]  # fmt: skip


@pytest.mark.parametrize(("name", "oracle"), BINARY, ids=[case[0] for case in BINARY])
def test_binary_broadcasts(name, oracle):
    x, y = np.round(ANY), np.round(ANY[:, :1]) + 0.5
    y[0] = x[0, 0]
    want = oracle(x, y)
    for left, right in ((Tensor(x), Tensor(y)), (x, Tensor(y)), (Tensor(x), y)):
        got = getattr(F, name)(left, right)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-6)


def test_pow():
    np.testing.assert_allclose(F.pow(Tensor(POSITIVE), 1.5).numpy(), POSITIVE**1.5, rtol=1e-6)
    np.testing.assert_allclose(F.pow(Tensor(ANY), 2).numpy(), ANY**2, rtol=1e-6)
    np.testing.assert_allclose(F.pow(2.0, Tensor(ANY)).numpy(), 2.0**ANY, rtol=1e-5)
    np.testing.assert_array_equal(F.pow(Tensor([2, 3]), Tensor([3, 2])).numpy(), [8, 9])


def test_shifts_and_logical_not():
    np.testing.assert_array_equal(F.left_shift(Tensor([1, 3]), 2).numpy(), [4, 12])
    np.testing.assert_array_equal(F.right_shift(Tensor([8, -8]), 1).numpy(), [4, -4])
    np.testing.assert_array_equal(F.logical_not(Tensor([0.0, 2.0])).numpy(), [True, False])


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        (Tensor([1], "int32"), 2, "int32"),
        (Tensor([1], "int32"), 2.5, "float32"),
        (Tensor([1], "int8"), 2, "int8"),
        (Tensor([1.0], "float16"), 2.5, "float16"),
        (Tensor([1.0], "float64"), 2, "float64"),
        (Tensor([1], "int64"), Tensor([1.0], "float16"), "float16"),
        (Tensor([True]), 1, "int32"),
        (Tensor([1.0]), np.float64(2.5), "float32"),
        (Tensor([1], "uint8"), Tensor([1], "int32"), "int32"),
    ],
)
def test_promotion_by_category(left, right, want):
    assert F.add(left, right).dtype.name == want
    assert F.mul(right, left).dtype.name == want


def test_division_of_integers_is_floating():
    got = F.div(Tensor([3]), Tensor([2]))
    assert got.dtype == np.float32
    assert got.item() == 1.5


def test_clip():
    x = np.array([-2, 0.5, 3, np.nan], np.float32)
    np.testing.assert_array_equal(F.clip(Tensor(x), -1, 1).numpy(), np.clip(x, -1, 1))
    np.testing.assert_array_equal(F.clip(Tensor(x), lower=0).numpy(), np.clip(x, 0, None))
    np.testing.assert_array_equal(F.clip(Tensor(x), upper=0).numpy(), np.clip(x, None, 0))


def test_nan_and_infinity():
    x = Tensor([np.nan, np.inf, -np.inf, 1.0])
    np.testing.assert_array_equal(F.isnan(x).numpy(), [True, False, False, False])
    np.testing.assert_array_equal(F.isinf(x).numpy(), [False, True, True, False])
    assert not F.isnan(Tensor([1])).numpy().any()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.add(1, 2), DTypeError, "^add: no input is a tensor"),
        (lambda: F.exp(np.ones(2)), DTypeError, "^exp: .* got ndarray, expected a Tensor: T"),
        (lambda: F.add(Tensor([1]), "a"), DTypeError, "^add: input cannot become a tensor"),
        (lambda: F.add(Tensor([1, 2]), Tensor([1, 2, 3])), ShapeError, "^add: shapes do not"),
        (lambda: F.clip(Tensor([1.0])), AttrError, "^clip: no limit"),
        (lambda: F.clip(Tensor([1.0]), 2, 1), AttrError, "^clip: limits are crossed"),
        (lambda: F.left_shift(Tensor([1.0]), 1), DTypeError, "^left_shift: "),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_names_are_megengines():
    assert F.elemwise.abs is F.abs
    assert tianyuan.functional is F
