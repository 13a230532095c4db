"""Numbers that an integer dtype cannot hold are refused, as numpy 2 refuses them."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F

_NARROW = [
    ([300], "uint8"), (300, "uint8"), ([-1], "uint8"), ([[1, 2], [3, 400]], "int8"),
    ((1, 300), "uint8"), ([300.0], "uint8"), ([2**40], "int32"), ([2**70], "int64"),
    ([True, 300], "uint8"), ([-(2**31) - 1], "int32"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "dtype"), _NARROW, ids=str)
def test_numbers_that_do_not_fit_are_refused_as_by_numpy(data, dtype):
    if int(np.__version__.split(".")[0]) >= 2:
        with pytest.raises(OverflowError):
            np.array(data, dtype=dtype)
    place = ty.Tensor(np.zeros(np.shape(data)), dtype=dtype)
    makers = (
        lambda: ty.Tensor(data, dtype=dtype),
        lambda: ty.tensor(data, dtype=dtype),
        lambda: ty.Parameter(data, dtype=dtype),
        lambda: place.set_value(data),
        lambda: place.__setitem__(..., data),
    )
    for make in makers:
        with pytest.raises(OverflowError, match="does not fit"):
            make()
    assert not place.numpy().any()


def test_numbers_at_the_ends_of_a_dtype_fit():
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        ends = [np.iinfo(name).min, np.iinfo(name).max]
        assert [ty.Tensor(int(end), dtype=name).item() for end in ends] == ends
        assert ty.Tensor([int(end) for end in ends[1:]], dtype=name).tolist() == ends[1:]
    assert ty.Tensor([1.9, -1.9], dtype="int8").tolist() == [1, -1]


def test_a_number_that_fills_must_fit_too():
    x = ty.Tensor([1, 2], dtype="uint8")
    makers = (
        lambda: F.full((1,), 300, dtype="uint8"),
        lambda: F.full((1,), -1, dtype="uint8"),
        lambda: F.full_like(x, 300),
        lambda: F.arange(300, dtype="uint8"),
        lambda: F.linspace(0, 300, 3, dtype="uint8"),
        lambda: F.pad(x, ((1, 1),), "constant", 300),
        lambda: x.__setitem__(0, 300),
        lambda: x + 300,
    )
    for make in makers:
        with pytest.raises(OverflowError, match="does not fit uint8"):
            make()


def test_arrays_are_converted_as_numpy_converts_them():
    data = np.array([300, -1, 256])
    assert ty.Tensor(data, dtype="uint8").tolist() == data.astype("uint8").tolist()
    assert ty.Tensor(data).astype("uint8").tolist() == data.astype("uint8").tolist()
