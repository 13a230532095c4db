"""Indexing against numpy: the same results, the same places of axes, the same refusals."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tianyuan
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, IndexRangeError, ShapeError

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


def numbered(shape):
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


@st.composite
def keys(draw):
    """Draw a shape and a key for it: slices, ints, None, Ellipsis, index arrays and masks."""
    shape = draw(SHAPES)
    common = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=3))
    items, axis, dots = [], 0, False
    while axis < len(shape) and draw(st.integers(0, 5)):
        kind = draw(st.sampled_from(["slice", "int", "none", "dots", "array", "mask", "zero-d"]))
        extent = shape[axis]
        if kind == "slice":
            items.append(draw(st.slices(extent)))
        elif kind == "int":
            items.append(draw(st.integers(-extent, extent - 1)))
        elif kind == "zero-d":
            items.append(np.array(draw(st.integers(-extent, extent - 1))))
        elif kind == "none":
            items.append(None)
            continue
        elif kind == "dots":
            if dots:
                continue
            items.append(Ellipsis)
            dots = True
            axis += draw(st.integers(0, len(shape) - axis))
            continue
        elif kind == "array":
            part = draw(st.sampled_from([common, common[-1:], (1,)]))
            picks = st.integers(-extent, extent - 1)
            items.append(draw(hnp.arrays(np.int64, part, elements=picks)))
        else:
            items.append(draw(hnp.arrays(np.bool_, (extent,))))
        axis += 1
    key = tuple(items)
    return shape, key if len(key) != 1 or draw(st.booleans()) else key[0]


def numpy_result(array, key):
    with warnings.catch_warnings():
        # Where nothing is picked, numpy may only warn that it will refuse an index out of range.
        warnings.filterwarnings("error", "Out of bound index", DeprecationWarning)
        try:
            return array[key]
        except (IndexError, ValueError, DeprecationWarning):
            return None


@settings(max_examples=400, deadline=None)
@given(keys(), st.booleans())
def test_getitem_is_numpys(case, as_tensors):
    shape, key = case
    array = numbered(shape)
    want = numpy_result(array, key)
    if want is None:
        return
    if as_tensors:
        key = tensors_in(key)
    got = tianyuan.Tensor(array)[key].numpy()
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def tensors_in(key):
    def one(item):
        return tianyuan.Tensor(item) if isinstance(item, np.ndarray) else item

    return tuple(map(one, key)) if isinstance(key, tuple) else one(key)


@settings(max_examples=400, deadline=None)
@given(keys(), st.data())
def test_setitem_is_numpys(case, data):
    shape, key = case
    array = numbered(shape)
    target = numpy_result(array, key)
    if target is None:
        return
    some = data.draw(st.sampled_from(["scalar", "full", "ones", "lead"]))
    value = {
        "scalar": np.float32(-1),
        "full": -1 - numbered(target.shape),
        "ones": -1 - numbered(target.shape[-1:]),
        "lead": -1 - numbered((1, *target.shape)),
    }[some]
    want = array.copy()
    try:
        want[key] = value
    except (TypeError, ValueError):
        return  # numpy drops leading ones of a value for some keys only
    got = tianyuan.Tensor(array)
    got[key] = value if some == "scalar" else tianyuan.Tensor(value)
    np.testing.assert_array_equal(got.numpy(), want)


CASES = [
    (0, Ellipsis),
    (slice(None), 0, [0, 2]),
    (0, slice(None), [0, 2]),
    ([0, 1], slice(None), 1),
    (slice(None), [0, 1], None, [1, 0]),
    ([[0], [1]], [[0, 2, 1]]),
    (slice(None, None, -1), slice(2, None, -2)),
    (slice(5, 9),),
    (True,),
    (False,),
    (np.array([True, False]), 1),
    (np.array([[True, False, True], [False, True, True]]),),
    ([],),
    (np.zeros((0, 2), int),),
    (None, Ellipsis, None),
    (slice(-2, None), slice(0, 0)),
    (np.int64(1), np.array(2)),
]


@pytest.mark.parametrize("key", CASES, ids=repr)
def test_chosen_keys(key):
    array = numbered((2, 3, 4))
    np.testing.assert_array_equal(tianyuan.Tensor(array)[key].numpy(), array[key])
    want, got = array.copy(), tianyuan.Tensor(array)
    want[key] = -3
    got[key] = -3
    np.testing.assert_array_equal(got.numpy(), want)


def test_mask_with_vector_value():
    array = numbered((2, 3))
    mask = array > 2
    want = array.copy()
    want[mask] = [7, 8, 9]
    got = tianyuan.Tensor(array)
    got[tianyuan.Tensor(mask)] = [7, 8, 9]
    np.testing.assert_array_equal(got.numpy(), want)


def test_value_takes_the_tensors_dtype():
    got = tianyuan.Tensor([1, 2, 3])
    got[1] = 2.9
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got.numpy(), [1, 2, 3])


def test_whole_key_gives_a_tensor_of_its_own():
    source = tianyuan.Tensor([1.0, 2.0])
    taken = source[...]
    taken[0] = 9.0
    np.testing.assert_array_equal(source.numpy(), [1, 2])


def test_assignment_leaves_earlier_reads_alone():
    source = tianyuan.Tensor([1.0, 2.0])
    before = source[:]
    source[...] = 5.0
    np.testing.assert_array_equal(before.numpy(), [1, 2])
    np.testing.assert_array_equal(source.numpy(), [5, 5])


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (3, IndexRangeError),
        (-3, IndexRangeError),
        ((0, 0, 0, 0), IndexRangeError),
        ([0, 2], IndexRangeError),
        ((Ellipsis, Ellipsis), AttrError),
        (slice(None, None, 0), AttrError),
        (1.5, DTypeError),
        ("a", DTypeError),
        (np.array([0.5]), DTypeError),
        (np.array([True, False, True]), ShapeError),
        (([0, 1], [0, 1, 2]), ShapeError),
    ],
    ids=repr,
)
def test_refusals(key, error):
    with pytest.raises(error, match="^index: "):
        tianyuan.Tensor(numbered((2, 3, 4)))[key]


def test_value_that_does_not_fit_changes_nothing():
    array = numbered((2, 3))
    tensor = tianyuan.Tensor(array)
    with pytest.raises(ShapeError, match="value does not fit"):
        tensor[0] = np.zeros(2, np.float32)
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_iteration_ends():
    assert [row.tolist() for row in tianyuan.Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("key", CASES, ids=repr)
def test_gradient_of_getitem_counts_the_picks(key):
    """The gradient of a weighted sum of picked elements is the sum of their weights."""
    array = numbered((2, 3, 4))
    weights = 1 + np.arange(array[key].size, dtype=np.float32).reshape(array[key].shape)
    want = np.zeros_like(array)
    np.add.at(want, key, weights)
    tensor = tianyuan.Tensor(array)
    with GradManager() as gm:
        gm.attach(tensor)
        gm.backward((tensor[key] * tianyuan.Tensor(weights)).sum())
    np.testing.assert_array_equal(tensor.grad.numpy(), want)


def test_gradient_of_setitem():
    base, value = tianyuan.Tensor(np.ones((3, 4), np.float32)), tianyuan.Tensor([[2.0], [3.0]])
    weights = numbered((3, 4))
    with GradManager() as gm:
        gm.attach([base, value])
        changed = base * 1.0
        changed[[0, 2], 1:3] = value
        gm.backward((changed * tianyuan.Tensor(weights)).sum())
    want = weights.copy()
    want[[0, 2], 1:3] = 0
    np.testing.assert_array_equal(base.grad.numpy(), want)
    np.testing.assert_array_equal(value.grad.numpy(), [[1 + 2], [9 + 10]])
