"""Tensors change hands with numpy and torch without being copied."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tianyuan
from tianyuan import Tensor
from tianyuan.errors import DTypeError
from tianyuan.torch import from_torch, to_torch
from tianyuan.utils.dlpack import from_dlpack, to_dlpack

DTYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool")


def address(array: np.ndarray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_numpy_array_is_shared(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = tianyuan.from_dlpack(array)
    assert tensor.dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)
    array[0, 0] = 1
    np.testing.assert_array_equal(tensor.numpy(), array)
    back = np.from_dlpack(tensor)
    assert address(back) == address(array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_torch_tensor_is_shared_both_ways(torch: Any, dtype: str) -> None:
    theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    ours = from_dlpack(theirs)
    assert ours.dtype == np.dtype(dtype)
    assert torch.from_dlpack(ours).data_ptr() == theirs.data_ptr()
    theirs[1, 2] = 1
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_capsule_is_taken_once(torch: Any) -> None:
    ours = Tensor(np.arange(4, dtype=np.float32))
    theirs = torch.utils.dlpack.from_dlpack(to_dlpack(ours))
    np.testing.assert_array_equal(theirs.numpy(), ours.numpy())
    capsule = torch.utils.dlpack.to_dlpack(theirs)
    np.testing.assert_array_equal(from_dlpack(capsule).numpy(), ours.numpy())
    with pytest.raises((ValueError, RuntimeError, BufferError, TypeError)):
        from_dlpack(capsule)


def test_a_shared_tensor_computes_and_is_updated_apart(torch: Any) -> None:
    theirs = torch.ones(3)
    ours = from_dlpack(theirs)
    ours += 1
    np.testing.assert_array_equal(ours.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(theirs.numpy(), [1, 1, 1])

    @tianyuan.jit.trace
    def step() -> None:
        ours[...] = ours * 3

    again = from_dlpack(theirs)
    ours._rebind(again)
    step()
    np.testing.assert_array_equal(ours.numpy(), [3, 3, 3])
    np.testing.assert_array_equal(theirs.numpy(), [1, 1, 1])


def test_other_orders_are_copied(torch: Any) -> None:
    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3).t()
    ours = from_dlpack(theirs)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    np.testing.assert_array_equal((ours + 0).numpy(), theirs.numpy())


def test_what_cannot_be_handed_over_is_refused(torch: Any) -> None:
    with pytest.raises(TypeError, match="from_dlpack: cannot be handed over, got list"):
        from_dlpack([1, 2])
    with pytest.raises(DTypeError, match="from_dlpack"):
        from_dlpack(torch.zeros(2, dtype=torch.complex64))


def test_a_state_dict_goes_to_torch_and_back(torch: Any) -> None:
    state = OrderedDict(
        a=np.arange(6, dtype=np.float32).reshape(2, 3),
        brain=np.array([1.5, -2], ml_dtypes.bfloat16),
        tensor=Tensor(np.arange(3), dtype="int64"),
        scalar=np.float32(2),
        order=np.asfortranarray(np.ones((2, 3), np.float32)),
    )
    found = to_torch(state)
    assert list(found) == list(state)
    assert found["brain"].dtype == torch.bfloat16
    assert found["brain"].float().tolist() == [1.5, -2]
    assert found["tensor"].tolist() == [0, 1, 2]
    assert found["scalar"].shape == ()
    assert found["a"].data_ptr() == address(state["a"])
    for name, value in state.items():
        back = from_torch(found[name])
        expected = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        assert back.dtype == expected.dtype
        np.testing.assert_array_equal(back, expected)
    module = torch.nn.Linear(3, 2)
    module.load_state_dict(to_torch({"weight": state["a"], "bias": np.zeros(2, np.float32)}))
    assert to_torch(np.ones(2)).tolist() == [1, 1]
    with pytest.raises(TypeError, match="to_torch: x cannot"):
        to_torch({"x": "text"})
