"""Broadcasting, chains of moves, promotion and reductions, drawn and held against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tianyuan.autodiff import grad
from tianyuan.errors import ShapeError
from tianyuan.jit import trace

QUICK = settings(max_examples=150, deadline=None)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum,
    "minimum": np.minimum, "less": np.less, "equal": np.equal,
}  # fmt: skip


def whole(shape, seed=0):
    """Return small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@QUICK
@given(st.sampled_from(sorted(BINARY)), SHAPES, SHAPES)
def test_shapes_broadcast_or_are_refused_as_numpys(name, left, right):
    a, b = whole(left), whole(right, 1)
    function = getattr(F, name)
    try:
        want = BINARY[name](a, b)
    except ValueError:
        with pytest.raises(ShapeError, match=f"{name}: .*, got .*, expected "):
            function(ty.Tensor(a), ty.Tensor(b))
        return
    got = function(ty.Tensor(a), ty.Tensor(b)).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@QUICK
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
def test_gradients_take_the_shape_of_what_was_broadcast(drawn):
    left, right = (whole(shape, i) for i, shape in enumerate(drawn.input_shapes))
    by_left, by_right = grad(lambda a, b: F.sum(a * b), argnums=(0, 1))(
        ty.Tensor(left), ty.Tensor(right)
    )
    full = np.broadcast_shapes(left.shape, right.shape)
    for got, own, other in ((by_left, left, right), (by_right, right, left)):
        spread = np.broadcast_to(other, full)
        lead = tuple(range(len(full) - own.ndim))
        kept = tuple(axis for axis in range(own.ndim) if own.shape[axis] != full[axis + len(lead)])
        want = spread.sum(lead).sum(kept, keepdims=True)
        np.testing.assert_array_equal(got.numpy(), want.reshape(own.shape))


@st.composite
def chains(draw):
    """Draw a shape and steps that each keep all elements."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
    steps, now = [], shape
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["reshape", "flat", "transpose", "expand", "squeeze", "flip"]))
        if kind == "reshape":
            now = tuple(draw(st.permutations(now)))
            given_shape = list(now)
            if now and 0 not in now and draw(st.booleans()):
                given_shape[draw(st.integers(0, len(now) - 1))] = -1
            steps.append((kind, tuple(given_shape)))
        elif kind == "flat":
            now = (int(np.prod(now, dtype=np.int64)),)
            steps.append(("reshape", now))
        elif kind == "transpose":
            perm = tuple(draw(st.permutations(range(len(now)))))
            now = tuple(now[i] for i in perm)
            steps.append((kind, perm))
        elif kind == "expand" and len(now) < 6:
            axis = draw(st.integers(0, len(now)))
            now = (*now[:axis], 1, *now[axis:])
            steps.append((kind, axis))
        elif kind == "squeeze" and 1 in now:
            axis = now.index(1)
            now = (*now[:axis], *now[axis + 1 :])
            steps.append((kind, axis))
        elif kind == "flip" and now:
            steps.append((kind, draw(st.integers(0, len(now) - 1))))
    return shape, steps


MOVES = {
    "reshape": (F.reshape, np.reshape),
    "transpose": (F.transpose, np.transpose),
    "expand": (F.expand_dims, np.expand_dims),
    "squeeze": (F.squeeze, np.squeeze),
    "flip": (F.flip, np.flip),
}


@QUICK
@given(chains(), st.booleans())
def test_chains_of_moves_are_numpys(case, traced):
    shape, steps = case
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)

    def run(x):
        for kind, argument in steps:
            x = MOVES[kind][0](x, argument)
        return x

    want = array
    for kind, argument in steps:
        want = MOVES[kind][1](want, argument)
    got = (trace(run, symbolic=True) if traced else run)(ty.Tensor(array)).numpy()
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def kind_of(name):
    return "float" if "float" in name else name.rstrip("0123456789")


def met(left, right):
    """Return the dtype in which two meet: that of the higher kind, else numpy's."""
    if {left, right} == {"float16", "bfloat16"}:
        return "float32"
    rank = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}
    ranks = rank[kind_of(left)], rank[kind_of(right)]
    if ranks[0] != ranks[1]:
        return left if ranks[0] > ranks[1] else right
    plain = [ml_dtypes.bfloat16 if n == "bfloat16" else np.dtype(n) for n in (left, right)]
    wanted = np.result_type(*plain)
    # numpy leaves the integers where a sign meets uint64.
    return "int64" if ranks[0] == 1 and wanted.kind == "f" else wanted.name


@pytest.mark.parametrize("left", DTYPES)
def test_promotion_is_by_category(left):
    for right in DTYPES:
        a, b = (ty.Tensor(np.ones(2), dtype=name) for name in (left, right))
        found = (a * b).dtype
        assert found.name == met(left, right), (left, right)
        assert (b * a).dtype == found


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("scalar", [True, 2, 0.5, 1j])
def test_python_numbers_give_way(name, scalar):
    kinds = ["bool", "int", "float", "complex"]
    rank = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}[kind_of(name)]
    given = kinds.index(type(scalar).__name__)
    found = (ty.Tensor(np.ones(2), dtype=name) * scalar).dtype.name
    if given <= rank:
        assert found == name
    else:
        assert kind_of(found) == kinds[given]


REDUCTIONS = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean,
}  # fmt: skip


@st.composite
def reductions(draw):
    name = draw(st.sampled_from(sorted(REDUCTIONS)))
    least = 1 if name in ("max", "min", "mean") else 0
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=least, max_side=4))
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    signed = [axis - len(shape) * draw(st.booleans()) for axis in sorted(axes)]
    axis = signed[0] if len(signed) == 1 else tuple(signed)
    return name, shape, draw(st.sampled_from([axis, None])), draw(st.booleans())


@QUICK
@given(reductions(), st.sampled_from(["float32", "float64", "int32"]), st.booleans())
def test_reductions_over_any_axes_are_numpys(case, dtype, spelled_keepdim):
    name, shape, axis, keepdims = case
    if name == "mean" and dtype == "int32":
        dtype = "float32"
    array = np.random.default_rng(len(shape)).integers(1, 4, shape).astype(dtype)
    word = "keepdim" if spelled_keepdim else "keepdims"
    keep = {} if axis is None else {word: keepdims}
    got = getattr(F, name)(ty.Tensor(array, dtype=dtype), axis, **keep).numpy()
    want = REDUCTIONS[name](array, axis=axis, keepdims=axis is not None and keepdims)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want.astype(got.dtype), rtol=1e-5)


@QUICK
@given(st.data(), st.sampled_from(["argmax", "argmin", "cumsum", "sort", "argsort"]))
def test_functions_along_an_axis_are_numpys(data, name):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    seed = data.draw(st.integers(0, 9))
    array = np.random.default_rng(seed).permutation(int(np.prod(shape))).reshape(shape)
    array = array.astype(np.float32)
    keywords = {"axis": axis}
    found = getattr(F, name)(ty.Tensor(array), **keywords)
    got = (found[0] if isinstance(found, tuple) else found).numpy()
    if name == "argsort" and isinstance(found, tuple):
        got = found[1].numpy()
    np.testing.assert_array_equal(got, getattr(np, name)(array, axis=axis))
