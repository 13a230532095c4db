"""Every dtype goes through the verbs that numpy has for it, with numpy's values."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")


def values(dtype, seed=0):
    """Return a (4, 4) array that no verb below takes out of the dtype's range."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, (4, 4)).astype(bool)
    if dtype in FLOATS:
        return rng.uniform(0.5, 2, (4, 4)).astype(dtype)
    return rng.integers(1, 4, (4, 4)).astype(dtype)


def asked(array):
    return Tensor(array, array.dtype)


OURS = {"multiply": "mul", "subtract": "sub", "floor_divide": "floor_div", "power": "pow"}


class Ours:
    """The functional verbs under numpy's names."""

    def __getattr__(self, name):
        return getattr(F, OURS.get(name, name))


ANY_DTYPE = {
    "add": lambda f, x: f.add(x, x),
    "multiply": lambda f, x: f.multiply(x, x),
    "maximum": lambda f, x: f.maximum(x, x[::-1]),
    "minimum": lambda f, x: f.minimum(x, x[::-1]),
    "max": lambda f, x: f.max(x, 1),
    "min": lambda f, x: f.min(x, 0),
    "flip": lambda f, x: f.flip(x, 0),
    "roll": lambda f, x: f.roll(x, 1, 0),
    "tile": lambda f, x: f.tile(x, (2, 1)),
    "repeat": lambda f, x: f.repeat(x, 2, 0),
    "transpose": lambda f, x: f.transpose(x, (1, 0)),
    "concat": lambda f, x: f.concat([x, x]) if f is not np else np.concatenate([x, x]),
    "stack": lambda f, x: f.stack([x, x], 1),
    "split": lambda f, x: f.split(x, 2, 1)[1],
    "where": lambda f, x: f.where(x > x[:1], x, x[::-1]),
    "diag": lambda f, x: f.diag(x[1]),
    "triu": lambda f, x: f.triu(x),
    "tril": lambda f, x: f.tril(x, -1),
    "unique": lambda f, x: f.unique(x),
    "meshgrid": lambda f, x: f.meshgrid(x[0], x[1])[1],
    "index": lambda f, x: x[1:, ::-2],
    "fancy": lambda f, x: x[[0, 3], [1, 2]],
    "mask": lambda f, x: x[x == x[1]],
    "zeros_like": lambda f, x: f.zeros_like(x),
}
NUMBERS = {
    "subtract": lambda f, x: f.subtract(x, x[:1] * 0),
    "floor_divide": lambda f, x: f.floor_divide(x, x[::-1]),
    "mod": lambda f, x: f.mod(x, x[::-1]),
    "power": lambda f, x: f.power(x, x),
    "clip": lambda f, x: f.clip(x, 1, 2),
    "abs": lambda f, x: f.abs(x),
    "sign": lambda f, x: f.sign(x),
    "square": lambda f, x: f.square(x),
    "sort": lambda f, x: f.sort(x) if f is np else f.sort(x)[0],
    "matmul": lambda f, x: f.matmul(x, x[::-1]),
    "dot": lambda f, x: f.dot(x[0], x[1]),
    "einsum": lambda f, x: f.einsum("ij,kj->ik", x, x),
    "cross": lambda f, x: f.cross(x[:, :3], x[::-1, :3]),
    "pad": lambda f, x: np.pad(x, ((1, 1), (0, 0))) if f is np else f.pad(x, ((1, 1), (0, 0))),
}
# numpy widens these for integers; values agree, and ours stay in their dtype.
NARROW = {
    "sum": lambda f, x: f.sum(x, 1),
    "prod": lambda f, x: f.prod(x, 0),
    "cumsum": lambda f, x: f.cumsum(x, 1),
    "cumprod": lambda f, x: f.cumprod(x, 0),
    "floor": lambda f, x: f.floor(x),
    "ceil": lambda f, x: f.ceil(x),
    "round": lambda f, x: f.round(x),
}
TO_FLOAT = {
    "exp": lambda f, x: f.exp(x),
    "sqrt": lambda f, x: f.sqrt(x),
    "log1p": lambda f, x: f.log1p(x),
    "tanh": lambda f, x: f.tanh(x),
    "mean": lambda f, x: f.mean(x, 1),
    "std": lambda f, x: f.std(x, 0),
    "var": lambda f, x: f.var(x),
    "norm": lambda f, x: f.linalg.norm(x) if f is np else f.norm(x),
    "logaddexp": lambda f, x: f.logaddexp(x, x),
}
COUNTS = {
    "argmax": lambda f, x: f.argmax(x, 1),
    "argmin": lambda f, x: f.argmin(x),
    "argsort": lambda f, x: f.argsort(x, kind="stable") if f is np else f.argsort(x),
    "non_zero": lambda f, x: np.argwhere(x) if f is np else f.non_zero(x),
}


def agree(got, want, dtype, tolerance=1e-6):
    assert got.dtype == dtype
    np.testing.assert_allclose(
        got.numpy().astype(np.float64), np.asarray(want).astype(np.float64), rtol=tolerance
    )


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_what_takes_any_dtype(dtype):
    x = values(dtype)
    for call in ANY_DTYPE.values():
        agree(call(Ours(), asked(x)), call(np, x), dtype, 2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_what_takes_numbers(dtype):
    x = values(dtype)
    for call in (NUMBERS | NARROW).values():
        agree(call(Ours(), asked(x)), call(np, x), dtype, 1e-2 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_what_gives_floats(dtype):
    x = values(dtype)
    want = dtype if dtype in FLOATS else "float32"
    for call in TO_FLOAT.values():
        peer = call(np, x.astype(np.float64))
        agree(call(Ours(), asked(x)), peer, want, 5e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_what_gives_indices(dtype):
    x = values(dtype)
    for call in COUNTS.values():
        agree(call(Ours(), asked(x)), call(np, x), "int32")


@pytest.mark.parametrize("dtype", ["int64", "uint32", "uint64"])
def test_large_integers_stay_exact(dtype):
    big = np.array([2**31 + 1, 2**31 + 3, 5], dtype)
    x = asked(big)
    assert F.sum(x).item() == int(big.sum(dtype=dtype))
    assert F.max(x).item() == 2**31 + 3
    assert F.sort(x, descending=True)[0].tolist() == sorted(big.tolist(), reverse=True)
    assert (x - 1).tolist() == (big - 1).tolist()
    assert (x // 2).tolist() == (big // 2).tolist()
    assert F.concat([x, x]).dtype == dtype
    assert F.maximum(x, 6).tolist()[2] == 6


def test_float64_keeps_its_digits():
    x = asked(np.array([1.0, 1.0 + 1e-12]))
    assert (F.max(x) - F.min(x)).item() > 0
    third = F.div(x, 3.0)
    assert third.dtype == np.float64
    assert third.numpy()[0] == 1 / 3
    np.testing.assert_allclose(F.exp(x).numpy(), np.exp(x.numpy()), rtol=1e-15)
