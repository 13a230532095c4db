"""Check what core does for native plugins while none is there: tables, threads, running C."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from tianyuan import calling, native, structs
from tianyuan.errors import KernelError, PluginError

RunPrototype = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(calling.TyCtx),
    ctypes.POINTER(calling.TyTensor),
    ctypes.POINTER(calling.TyTensor),
    ctypes.c_void_p,
    ctypes.c_void_p,
)
TaskPrototype = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32
)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def floats(tensor: calling.TyTensor) -> np.ndarray:
    count = int(np.prod(tensor.shape[: tensor.ndim], dtype=np.int64))
    pointer = ctypes.cast(tensor.data, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (count,))


@RunPrototype
def double(ctx, inputs, outputs, attrs, workspace):  # type: ignore[no-untyped-def]
    """Doubles float32 values through the context's parallel loop."""

    @TaskPrototype
    def piece(arg, begin, end, slot):  # type: ignore[no-untyped-def]
        assert slot < ctx[0].threads
        floats(outputs[0])[begin:end] = 2 * floats(inputs[0])[begin:end]

    count = floats(inputs[0]).size
    ctx[0].parallel_for(ctx, count, 1, ctypes.cast(piece, ctypes.c_void_p), None)
    return 0


@RunPrototype
def fail(ctx, inputs, outputs, attrs, workspace):  # type: ignore[no-untyped-def]
    reason = b"double: the reason, got 1, expected 2\0"
    assert ctx[0].error_size >= len(reason)
    ctypes.memmove(ctx[0].error, reason, len(reason))
    return 1


def address_of(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address
    return address


def make_table(versions: tuple[int, int] = (1, 1), padding: int = 0) -> tuple[object, object]:
    """Return a capsule of a table with kernels ``a`` and ``b``, and what keeps it alive."""
    stride = ctypes.sizeof(structs.TyKernel) + padding
    memory = ctypes.create_string_buffer(2 * stride)
    for index, (name, run) in enumerate(((b"a", double), (b"b", fail))):
        entry = structs.TyKernel.from_buffer(memory, index * stride)
        entry.abi_version, entry.struct_size = versions[1], stride
        entry.name, entry.run = name, address_of(run)
    table = structs.TyKernelTable(
        versions[0], ctypes.sizeof(structs.TyKernelTable), 2, ctypes.addressof(memory)
    )
    capsule = new_capsule(ctypes.addressof(table), structs.KERNEL_TABLE_CAPSULE, None)
    return capsule, (memory, table)


@pytest.mark.parametrize("padding", [0, 16])
def test_functions_of_a_table_run(padding: int) -> None:
    capsule, _alive = make_table(padding=padding)
    functions = native.functions_of_table(capsule)
    assert list(functions) == ["a", "b"]
    assert functions["a"].owner is capsule
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.zeros_like(x)
    native.invoke_by_ctypes(functions["a"].address, b"\0" * 16, [x], [y], None)
    np.testing.assert_array_equal(y, [[0, 2, 4], [6, 8, 10]])


@pytest.mark.parametrize("versions", [(2, 1), (1, 2)])
def test_table_of_another_version_is_refused(versions: tuple[int, int]) -> None:
    capsule, _alive = make_table(versions)
    with pytest.raises(PluginError, match="ABI version"):
        native.functions_of_table(capsule)


@pytest.mark.parametrize("offered", [None, 3, "kernel table"])
def test_what_is_no_kernel_table_is_refused(offered: object) -> None:
    with pytest.raises(PluginError, match="expected a capsule named 'tianyuan.kernel_table.v1'"):
        native.functions_of_table(offered)
    capsule, _alive = make_table()
    with pytest.raises(PluginError, match="expected a capsule named 'tianyuan.thread_pool.v1'"):
        native.publish_thread_pool(capsule)


def test_failure_of_a_kernel_is_raised_with_its_reason() -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(KernelError, match="^double: the reason, got 1, expected 2$"):
        native.invoke_by_ctypes(address_of(fail), b"\0" * 16, [x], [x.copy()], None)


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros((4, 4), np.float32).T[1:], "not C-contiguous"),
        (np.zeros((1,) * 9, np.float32), "too many dimensions, got 9"),
    ],
)
def test_array_that_the_abi_cannot_carry_is_refused(array: np.ndarray, what: str) -> None:
    with pytest.raises(KernelError, match=what):
        native.invoke_by_ctypes(address_of(double), b"\0" * 16, [array], [array.copy()], None)


def run_in_child(code: str, threads: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TIANYUAN_NUM_THREADS": threads}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )


def test_thread_count_comes_from_the_environment_then_from_the_caller() -> None:
    code = (
        "from tianyuan import get_num_threads as get, set_num_threads as put\n"
        "print(get()); put(7); print(get())"
    )
    assert run_in_child(code, "3").stdout.split() == ["3", "7"]
    usable = str(len(os.sched_getaffinity(0)))
    assert run_in_child(code, "").stdout.split() == [usable, "7"]


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_senseless_thread_count_is_refused(text: str) -> None:
    done = run_in_child("import tianyuan; tianyuan.get_num_threads()", text)
    assert f"TIANYUAN_NUM_THREADS: must be an integer, got '{text}'" in done.stderr


def test_set_num_threads_refuses_less_than_one() -> None:
    before = native.get_num_threads()
    with pytest.raises(ValueError, match="got 0, expected 1 to 1024"):
        native.set_num_threads(0)
    assert native.get_num_threads() == before


class FakePool:
    """A thread pool that only remembers its size."""

    def __init__(self, version: int = 1) -> None:
        self.threads = 0
        size, resize = (kind for name, kind in structs.TyThreadPool._fields_[4:])
        self.callbacks = size(lambda _: self.threads), resize(self._resize)
        self.table = structs.TyThreadPool(
            version, ctypes.sizeof(structs.TyThreadPool), None, None, *self.callbacks
        )
        address = ctypes.addressof(self.table)
        self.capsule = new_capsule(address, structs.THREAD_POOL_CAPSULE, None)

    def _resize(self, _: object, threads: int) -> None:
        self.threads = threads


def test_first_published_pool_wins_and_follows_the_thread_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_pool", None)
    monkeypatch.setattr(native, "_threads", 5)
    first, second = FakePool(), FakePool()
    assert native.publish_thread_pool(first.capsule) is first.capsule
    assert native.publish_thread_pool(second.capsule) is first.capsule
    assert native.published_thread_pool() is first.capsule
    assert (first.threads, second.threads) == (5, 0)
    native.set_num_threads(2)
    assert (first.threads, second.threads) == (2, 0)


def test_pool_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_pool", None)
    with pytest.raises(PluginError, match="ABI version differs, got 2, expected 1"):
        native.publish_thread_pool(FakePool(version=2).capsule)
    assert native.published_thread_pool() is None


def test_first_invoker_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "invoker", native.invoke_by_ctypes)

    def one(*arguments: object) -> None:
        raise AssertionError("never called")

    def other(*arguments: object) -> None:
        raise AssertionError("never called")

    native.set_invoker(one)
    native.set_invoker(other)
    assert native.invoker is one


def test_first_checksum_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "crc32", None)
    one, other = (lambda data: 1), (lambda data: 2)
    native.set_crc32(one)
    native.set_crc32(other)
    assert native.crc32 is one
