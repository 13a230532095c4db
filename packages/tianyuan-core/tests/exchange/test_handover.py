"""Tensors change hands with numpy and torch without being copied."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tianyuan
from tianyuan import Tensor
from tianyuan.errors import DeviceError, DTypeError
from tianyuan.torch import from_torch, to_torch
from tianyuan.utils.dlpack import from_dlpack, to_dlpack

DTYPES = (
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool",
    "complex64",
)  # fmt: skip


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


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_a_torch_tensor_is_shared_both_ways(torch: Any, dtype: str) -> None:
    theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    ours = from_dlpack(theirs)
    assert ours.dtype.name == dtype
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == theirs.data_ptr()
    assert back.dtype == theirs.dtype
    theirs[1, 2] = 1
    np.testing.assert_array_equal(ours.numpy(), from_torch(theirs))
    assert torch.equal(back, theirs)


# Where a DLTensor holds what, in bytes, by dlpack.h.
LANES, EXTENTS, STRIDES, OFFSET = 22, 24, 32, 40


def capsule_of(array: np.ndarray) -> tuple[Any, int]:
    """Return a capsule that numpy makes, and where its DLTensor lies."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = array.__dlpack__()
    return capsule, pointer(capsule, b"dltensor")


def test_data_may_begin_behind_its_address() -> None:
    array = np.arange(12, dtype=np.float32)
    capsule, place = capsule_of(array)
    extents = ctypes.POINTER(ctypes.c_int64).from_address(place + EXTENTS)
    extents[0] = 9
    ctypes.c_uint64.from_address(place + OFFSET).value = 3 * 4
    tensor = from_dlpack(capsule)
    np.testing.assert_array_equal(tensor.numpy(), array[3:])
    array[3] = -1
    assert tensor[0].item() == -1


def test_data_without_strides_is_contiguous() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    capsule, place = capsule_of(array)
    ctypes.c_void_p.from_address(place + STRIDES).value = None
    np.testing.assert_array_equal(from_dlpack(capsule).numpy(), array)


def test_vectors_as_elements_are_refused() -> None:
    capsule, place = capsule_of(np.zeros(4, np.float32))
    ctypes.c_uint16.from_address(place + LANES).value = 4
    with pytest.raises(DTypeError, match="got kind 2 of 32 bits and 4 lanes"):
        from_dlpack(capsule)


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


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_what_cannot_be_handed_over_is_refused(torch: Any) -> None:
    with pytest.raises(TypeError, match="from_dlpack: cannot be handed over, got list"):
        from_dlpack([1, 2])
    with pytest.raises(DTypeError, match="from_dlpack"):
        from_dlpack(torch.zeros(2, dtype=torch.complex32))


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_of_no_elements_and_of_no_axes(torch: Any, shape: Any, dtype: str) -> None:
    ours = from_dlpack(torch.ones(shape, dtype=getattr(torch, dtype)))
    assert (ours.shape, ours.dtype.name) == (shape, dtype)
    assert ours.numpy().size == (0 if shape else 1)
    assert torch.from_dlpack(ours).shape == shape
    assert from_dlpack(np.ones(shape, np.float32)).shape == shape


def test_strided_arrays_arrive_in_order(torch: Any) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (whole[::2, 1:4], whole[::-1], whole.T, whole[:, ::-2], whole[1:, 2]):
        np.testing.assert_array_equal(from_dlpack(view).numpy(), view)
    theirs = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    for part in (theirs[::2, 1:4], theirs.t(), theirs[1], torch.ones(3).expand(2, 3)):
        np.testing.assert_array_equal(from_dlpack(part).numpy(), from_torch(part))
    rows = from_dlpack(whole[2:])  # C order, though not from the start: shared
    whole[2, 0] = -1
    assert rows.numpy()[0, 0] == -1


def test_memory_that_may_only_be_read_stays_so() -> None:
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = False
    ours = from_dlpack(array)
    assert address(np.from_dlpack(ours)) == address(array)
    assert not np.from_dlpack(ours).flags.writeable
    with pytest.raises(BufferError, match="may only be read"):
        ours.__dlpack__()
    copied = from_dlpack(ours.__dlpack__(copy=True))
    np.testing.assert_array_equal(copied.numpy(), [0, 1, 2])

    @tianyuan.jit.trace
    def step() -> None:
        ours[...] = ours + 1

    step()
    step()
    np.testing.assert_array_equal(ours.numpy(), [2, 3, 4])
    np.testing.assert_array_equal(array, [0, 1, 2])


def test_requests_of_the_array_api() -> None:
    ours = Tensor([1.0, 2.0])
    assert ours.__dlpack_device__() == (1, 0)
    for wanted in ({"max_version": (1, 0)}, {"max_version": (0, 8)}, {"dl_device": (1, 0)},
                   {"max_version": (2, 1), "copy": False}):  # fmt: skip
        np.testing.assert_array_equal(from_dlpack(ours.__dlpack__(**wanted)).numpy(), [1, 2])
    versioned = "dltensor_versioned" in repr(ours.__dlpack__(max_version=(1, 0)))
    assert versioned
    assert "dltensor_versioned" not in repr(ours.__dlpack__())
    apart = from_dlpack(ours.__dlpack__(max_version=(1, 0), copy=True))
    assert address(np.from_dlpack(apart)) != address(np.from_dlpack(ours))
    with pytest.raises(BufferError, match=r"got \(2, 0\), expected \(1, 0\)"):
        ours.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream must be None"):
        ours.__dlpack__(stream=1)
    with pytest.raises(DeviceError, match="stream must be None"):
        from_dlpack(np.ones(2), stream=2)


class Elsewhere:
    """Stands for a tensor on a GPU, which is asked where it lies before anything else."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise AssertionError("the data must not be asked for")


class Older:
    """Stands for a framework of the time before versions."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()


def test_other_devices_and_older_frameworks() -> None:
    with pytest.raises(
        DeviceError, match="got cuda:1, expected the CPU; copy it to the host first"
    ):
        from_dlpack(Elsewhere())
    np.testing.assert_array_equal(from_dlpack(Older(np.arange(3.0))).numpy(), [0, 1, 2])


def test_memory_is_given_back() -> None:
    array = np.arange(4, dtype=np.float32)
    seen = weakref.ref(array)
    ours = from_dlpack(array)
    part = from_dlpack(np.from_dlpack(ours)[1:])
    del array, ours
    gc.collect()
    np.testing.assert_array_equal(part.numpy(), [1, 2, 3])
    assert seen() is not None
    del part
    gc.collect()
    assert seen() is None
    tensor = Tensor([1.0])

    def holders() -> int:
        return sys.getrefcount(tensor._data)

    alone = holders()
    unused, taken = tensor.__dlpack__(), np.from_dlpack(tensor)
    assert holders() == alone + 2
    del unused, taken
    gc.collect()
    assert holders() == alone


def test_what_a_taker_refuses_is_given_back_without_a_word() -> None:
    """numpy drops the capsule while its own error is on its way, which must arrive."""
    tensor = Tensor(np.array([1.5, -2], ml_dtypes.bfloat16))
    alone = sys.getrefcount(tensor._data)
    with pytest.raises((RuntimeError, BufferError), match="dtype"):
        np.from_dlpack(tensor)
    left = sys.getrefcount(tensor._data)
    assert left == alone
    capsule = tensor.__dlpack__()
    with pytest.raises(ZeroDivisionError):
        _fails_with(capsule)
    assert from_dlpack(capsule).tolist() == [1.5, -2]


def _fails_with(capsule: Any) -> None:
    dropped = Tensor([1.0]).__dlpack__(), capsule
    raise ZeroDivisionError(len(dropped))


def test_python_ends_while_memory_is_lent() -> None:
    code = (
        "import numpy as np, tianyuan as ty\n"
        "kept = np.from_dlpack(ty.Tensor([1.0, 2.0]))\n"
        "more = ty.from_dlpack(np.arange(3))\n"
        "class Late:\n"
        "    def __init__(self): self.kept = np.from_dlpack(ty.Tensor([3.0])), self\n"
        "late = Late()\n"
        "capsule = ty.Tensor([4.0]).__dlpack__(), Late()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_a_state_dict_comes_from_torch_by_name(torch: Any) -> None:
    theirs = torch.nn.Linear(3, 2).bfloat16()
    found = from_torch(theirs.state_dict())
    assert list(found) == ["weight", "bias"]
    assert found["weight"].dtype.name == "bfloat16"
    theirs.weight.data[0, 0] = 5
    assert found["weight"][0, 0] == 5
    with pytest.raises(TypeError, match="from_torch: step cannot be handed over, got int"):
        from_torch({"weight": theirs.weight, "step": 3})
