"""Elementwise ops against numpy and scipy in float64, in units in the last place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

F = np.float32
SPECIAL = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 88.72, 88.8, -87.4, -103.9, -104.1,
     1e-45, 3.4e38, -3.4e38, 0.5, -0.5, 0.625, 0.93, 16384, 16385, 20000], F,
)  # fmt: skip


def _hsigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x + 3, 0, 6) / 6


# The op in float64, and the most units in the last place that the kernel may be off.
UNARY: dict[str, tuple[Callable[[Any], Any], float]] = {
    "abs": (np.abs, 0), "neg": (np.negative, 0), "sign": (np.sign, 0), "floor": (np.floor, 0),
    "ceil": (np.ceil, 0), "round": (np.rint, 0), "square": (np.square, 0.5),
    "sqrt": (np.sqrt, 0.5), "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "reciprocal": (lambda x: 1 / x, 0.5), "exp": (np.exp, 1), "expm1": (np.expm1, 2),
    "log": (np.log, 1), "log1p": (np.log1p, 2), "sin": (np.sin, 2), "cos": (np.cos, 2),
    "tan": (np.tan, 1), "asin": (np.arcsin, 1), "acos": (np.arccos, 1), "atan": (np.arctan, 1),
    "sinh": (np.sinh, 2), "cosh": (np.cosh, 2), "tanh": (np.tanh, 2), "asinh": (np.arcsinh, 2),
    "acosh": (np.arccosh, 2), "atanh": (np.arctanh, 2), "erf": (special.erf, 2),
    "relu": (lambda x: np.maximum(x, 0), 0), "relu6": (lambda x: np.clip(x, 0, 6), 0),
    "sigmoid": (special.expit, 3), "hsigmoid": (_hsigmoid, 2),
    "hswish": (lambda x: x * _hsigmoid(x), 3),
    "softplus": (lambda x: np.logaddexp(0, x), 3),
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floor_div": np.floor_divide, "mod": np.mod, "maximum": np.maximum, "minimum": np.minimum,
    "atan2": np.arctan2, "pow": np.power,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip
# Same shape, scalars, rows, channels, long and short rows, both sides repeated, zero extents.
PAIRS = [
    ((7,), (7,)), ((), ()), ((), (5,)), ((3, 5), (5,)), ((3, 5), (3, 1)),
    ((2, 3, 4, 5), (1, 3, 1, 1)), ((2, 3, 40, 50), (3, 1, 1)), ((4, 1), (1, 6)), ((0, 3), (3,)),
    ((100, 300), (300,)), ((100, 300), (100, 1)), ((70000,), (70000,)), ((70000,), ()),
    ((5, 1, 7, 1, 9), (1, 6, 1, 8, 9)), ((2, 1, 300), (1, 3, 300)), ((64, 10), (64, 1)),
]  # fmt: skip
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint32"]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


def _everywhere(rng: np.random.Generator) -> np.ndarray:
    near = [rng.normal(size=3000) * scale for scale in (1e-3, 0.1, 1, 3, 10, 50)]
    wide = 10.0 ** rng.uniform(-44, 38, 5000) * rng.choice([-1, 1], 5000)
    return np.concatenate([*near, wide, SPECIAL]).astype(F)


def _ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    want = exact.astype(F)
    unit = np.maximum(np.spacing(np.abs(want)).astype(np.float64), 1.5e-45)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same, 0.0, np.abs(got - exact) / unit)


@pytest.mark.parametrize("op", UNARY)
def test_unary(apply: Any, rng: np.random.Generator, op: str) -> None:
    function, allowed = UNARY[op]
    x = _everywhere(rng)
    off = _ulps(apply(op, x), function(x.astype(np.float64)))
    worst = int(np.nanargmax(off))
    assert np.isfinite(off).all(), x[~np.isfinite(off)]
    assert off[worst] <= allowed + 0.51, (off[worst], x[worst])


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("silu", lambda x: x * special.expit(x)),
        ("gelu", lambda x: x * special.ndtr(x)),
    ],
)
def test_unary_of_absolute_error(
    apply: Any, rng: np.random.Generator, op: str, function: Callable[[Any], Any]
) -> None:
    x = (rng.normal(size=20000) * 6).astype(F)
    np.testing.assert_allclose(apply(op, x), function(x.astype(np.float64)), rtol=5e-7, atol=5e-7)


@pytest.mark.parametrize(
    ("op", "function"),
    [("isnan", np.isnan), ("isinf", np.isinf), ("logical_not", np.logical_not)],
)
def test_tests(apply: Any, rng: np.random.Generator, op: str, function: Any) -> None:
    x = _everywhere(rng)
    np.testing.assert_array_equal(apply(op, x), function(x))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("swap", [False, True])
def test_binary_broadcasts(apply: Any, rng: np.random.Generator, pair: Any, swap: bool) -> None:
    a, b = (np.asarray(rng.normal(size=shape) * 2, F) for shape in pair[:: -1 if swap else 1])
    for op, function in BINARY.items():
        wide = function(a.astype(np.float64), b.astype(np.float64))
        want = wide.astype(F) if op == "pow" else function(a, b)
        got = apply(op, a, b)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=3e-7, err_msg=op)
    rounded = np.round(a), np.round(b)
    for op, function in COMPARISONS.items():
        got = apply(op, *rounded)
        assert got.dtype == bool
        np.testing.assert_array_equal(got, function(*rounded), err_msg=op)


def test_binary_of_special_values(apply: Any) -> None:
    values = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, 3, 0.5, -2.5], F)
    a, b = (side.ravel() for side in np.meshgrid(values, values))
    for op, function in {**BINARY, **COMPARISONS, "logaddexp": np.logaddexp}.items():
        np.testing.assert_allclose(
            apply(op, a, b).astype(F), function(a, b).astype(F), rtol=3e-7, atol=1e-7, err_msg=op
        )


def test_logaddexp(apply: Any, rng: np.random.Generator) -> None:
    a, b = ((rng.normal(size=(50, 70)) * 30).astype(F) for _ in range(2))
    want = np.logaddexp(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(apply("logaddexp", a, b), want, rtol=5e-7, atol=2e-7)


@pytest.mark.parametrize("exponent", [2, 3, -1, 0.5, 0])
def test_pow_by_a_number(apply: Any, rng: np.random.Generator, exponent: float) -> None:
    x = (rng.normal(size=1000) * 3).astype(F)
    want = np.power(x.astype(np.float64), exponent)
    np.testing.assert_allclose(apply("pow", x, F(exponent)), want, rtol=3e-7)


def _numbers(rng: np.random.Generator, dtype: str, shape: Any) -> np.ndarray:
    """Return numbers in which 0, 1, -1 and both limits are frequent."""
    limits = np.iinfo(dtype)
    low = -50 if limits.min < 0 else 0
    edges = [limits.min, limits.max, 0, 1, 2, 7, *([-1] if limits.min < 0 else [])]
    pool = np.concatenate([np.array(edges, dtype), rng.integers(low, 50, 60).astype(dtype)])
    return np.asarray(rng.choice(pool, shape))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("shape", [(30, 40), (40,), (30, 1), ()])
def test_integers(apply: Any, rng: np.random.Generator, dtype: str, shape: Any) -> None:
    a, b = _numbers(rng, dtype, (30, 40)), _numbers(rng, dtype, shape)
    names = ("add", "sub", "mul", "maximum", "minimum", "floor_div", "mod")
    functions = {
        **{name: BINARY[name] for name in names},
        **COMPARISONS,
        "bitwise_and": np.bitwise_and,
        "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
        "left_shift": np.left_shift,
        "right_shift": np.right_shift,
    }
    for op, function in functions.items():
        want = function(a, b)
        got = apply(op, a, b)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=op)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_unary_integers(apply: Any, rng: np.random.Generator, dtype: str) -> None:
    x = _numbers(rng, dtype, (500,))
    for op, want in {
        "abs": np.abs(x), "neg": np.negative(x), "sign": np.sign(x), "square": np.square(x),
        "relu": np.maximum(x, 0), "relu6": np.clip(x, 0, 6), "floor": x, "ceil": x, "round": x,
        "bitwise_not": np.bitwise_not(x), "logical_not": np.logical_not(x),
    }.items():  # fmt: skip
        np.testing.assert_array_equal(apply(op, x), want, err_msg=op)


def test_bools(apply: Any, rng: np.random.Generator) -> None:
    a, b = rng.random((9, 33)) < 0.5, rng.random((33,)) < 0.5
    for op, function in {
        "add": np.logical_or, "mul": np.logical_and, "maximum": np.maximum, "minimum": np.minimum,
        "bitwise_and": np.bitwise_and, "bitwise_xor": np.bitwise_xor, "equal": np.equal,
        "less": np.less, "logical_or": np.logical_or,
    }.items():  # fmt: skip
        np.testing.assert_array_equal(apply(op, a, b), function(a, b), err_msg=op)
    np.testing.assert_array_equal(apply("bitwise_not", a), ~a)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "int64", "float16", "uint8"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 6), (5, 6), (5, 6)), ((5, 1), (1, 6), ()), ((), (3,), (2, 1)),
        ((300, 300), (300,), (300, 1)), ((2, 1, 3), (1, 4, 1), (2, 4, 3)), ((), (), ()),
    ],
    ids=str,
)  # fmt: skip
def test_where(apply: Any, rng: np.random.Generator, dtype: str, shapes: Any) -> None:
    mask = np.asarray(rng.random(shapes[0]) < 0.5)
    x, y = (np.asarray(rng.integers(0, 9, shape)).astype(dtype) for shape in shapes[1:])
    np.testing.assert_array_equal(apply("where", mask, x, y), np.where(mask, x, y))
