"""Check the eager call, the shared thread pool, detection and lazy loading."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tianyuan_x86
from tianyuan import native as core
from tianyuan import registry
from tianyuan.abi import encode_attrs
from tianyuan.dtypes import CODES
from tianyuan.errors import KernelError, PluginError
from tianyuan.kernel import CFunction
from tianyuan.op import NoAttrs
from tianyuan_x86 import native
from tianyuan_x86._tier import Tier

Functions = Callable[[str], CFunction]
ATTRS = encode_attrs(registry.get_op("copy"), NoAttrs(), 1, 1)


def run_in_child(code: str, **environment: str) -> str:
    """Run Python code in a fresh process and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "invoke", [lambda *a: native.load().module.call(*a), core.invoke_by_ctypes]
)
@pytest.mark.parametrize("n", [0, 1, 5, 40000])
def test_eager_call_computes(c_kernels: Functions, invoke: core.Invoker, n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    y = np.full(n, np.nan, np.float32)
    invoke(c_kernels("test_square").address, ATTRS, [x], (y,), np.empty(64, np.uint8), 2)
    np.testing.assert_array_equal(y, x * x)


@pytest.mark.parametrize(
    "invoke", [lambda *a: native.load().module.call(*a), core.invoke_by_ctypes]
)
@pytest.mark.parametrize("name", list(CODES))
def test_eager_call_passes_every_dtype(
    c_kernels: Functions, invoke: core.Invoker, name: str
) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    out = np.empty(8, np.int64)
    invoke(c_kernels("test_describe").address, ATTRS, [np.zeros((4, 1, 2), dtype)], [out], None, 1)
    assert out[:4].tolist() == [CODES[name], 3, 4, 1]
    assert out[4:6].tolist() == [11, 0]


@pytest.mark.parametrize(
    "invoke", [lambda *a: native.load().module.call(*a), core.invoke_by_ctypes]
)
def test_eager_call_raises_what_the_kernel_reports(
    c_kernels: Functions, invoke: core.Invoker
) -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(KernelError, match="it is broken, got 3, expected 0"):
        invoke(c_kernels("test_fail").address, ATTRS, [x], [x.copy()], None, 1)


@pytest.mark.parametrize(
    ("inputs", "outputs", "what"),
    [
        ([np.zeros(4, np.float32)[::2]], [np.zeros(2, np.float32)], "input 0 is not C-contiguous"),
        ([np.zeros(2, ">i4")], [np.zeros(2, np.float32)], "input 0 has an unsupported dtype"),
        ([np.zeros(2, "M8[s]")], [np.zeros(2, np.float32)], "input 0 has an unsupported dtype"),
        ([np.zeros((1,) * 9)], [np.zeros(2)], "more than 8 dimensions"),
        ([np.zeros(2)], [[0.0, 0.0]], "output 0 is not an array"),
        ([np.zeros(9, np.uint8)[1:].view(np.float32)], [np.zeros(2)], "is not aligned"),
        (3, [np.zeros(2)], "sequence"),
    ],
)
def test_eager_call_refuses_what_the_abi_cannot_carry(
    c_kernels: Functions, inputs: object, outputs: object, what: str
) -> None:
    with pytest.raises(TypeError, match=what):
        native.load().module.call(c_kernels("test_square").address, ATTRS, inputs, outputs)


def test_eager_call_checks_its_own_arguments(c_kernels: Functions) -> None:
    call = native.load().module.call
    with pytest.raises(TypeError, match="expected"):
        call(1, 2, 3, 4)
    with pytest.raises(ValueError, match="address is 0"):
        call(0, ATTRS, [], [])
    read_only = np.zeros(2, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        call(c_kernels("test_square").address, ATTRS, [read_only], [read_only])


def test_many_inputs(c_kernels: Functions) -> None:
    arrays = [np.full(3, i, np.float32) for i in range(40)]
    out = np.empty(3, np.float32)
    native.load().module.call(c_kernels("test_add").address, ATTRS, arrays, [out])
    np.testing.assert_array_equal(out, [1, 1, 1])


def test_threads_of_a_call_are_bounded_by_pool_and_caller(c_kernels: Functions) -> None:
    native.load()
    before = core.get_num_threads()
    try:
        core.set_num_threads(3)
        out = np.empty(8, np.int64)
        x = np.zeros(2, np.float32)
        address = c_kernels("test_describe").address
        for asked, got in ((0, 3), (2, 2), (7, 3)):
            native.load().module.call(address, ATTRS, [x], [out], None, asked)
            assert out[3] == got
    finally:
        core.set_num_threads(before)


def test_python_threads_share_the_pool(c_kernels: Functions) -> None:
    native.load()
    before = core.get_num_threads()
    core.set_num_threads(3)
    address, wrong = c_kernels("test_square").address, []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(60000).astype(np.float32)
        for _ in range(30):
            y = np.empty_like(x)
            core.invoker(address, ATTRS, [x], [y], None, 3)
            if not np.array_equal(y, x * x):
                wrong.append(seed)

    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        core.set_num_threads(before)
    assert not wrong


def test_child_of_fork_computes(c_kernels: Functions) -> None:
    native.load()
    before = core.get_num_threads()
    core.set_num_threads(3)
    try:
        address = c_kernels("test_square").address
        x = np.arange(50000, dtype=np.float32)
        y = np.empty_like(x)
        core.invoker(address, ATTRS, [x], [y], None, 3)
        child = os.fork()
        if child == 0:
            y[:] = 0
            core.invoker(address, ATTRS, [x], [y], None, 3)
            os._exit(0 if np.array_equal(y, x * x) else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        core.invoker(address, ATTRS, [x], [y], None, 3)
        np.testing.assert_array_equal(y, x * x)
    finally:
        core.set_num_threads(before)


def test_pool_is_published_and_invoker_installed() -> None:
    loaded = native.load()
    assert core.invoker is loaded.module.call
    assert core.published_thread_pool() is not None
    again = core.publish_thread_pool(loaded.module.thread_pool())
    assert again is core.published_thread_pool()


ADOPTION = """
import ctypes, sys
import numpy as np
from tianyuan import native as core
library = ctypes.CDLL(sys.argv[1])
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
table = ctypes.addressof(ctypes.c_char.in_dll(library, "test_pool"))
capsule = new(table, b"tianyuan.thread_pool.v1", None)
assert core.publish_thread_pool(capsule) is capsule
from tianyuan_x86 import native
native.load()
assert core.published_thread_pool() is capsule
address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
x, y, told = np.arange(9999, dtype=np.float32), np.empty(9999, np.float32), np.empty(8, np.int64)
core.invoker(address("test_square"), bytes(16), [x], [y], None, 0)
assert np.array_equal(y, x * x)
core.invoker(address("test_describe"), bytes(16), [x], [told], None, 0)
print(library.test_loops(), told[3])
"""


def test_pool_of_another_plugin_is_adopted(c_library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTION, c_library], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "7"]


def test_import_loads_no_shared_object() -> None:
    code = (
        "import sys, tianyuan_x86; print('tianyuan_x86._native' in sys.modules,"
        " any('libtianyuan' in line for line in open('/proc/self/maps')))"
    )
    assert run_in_child(code) == "False False"
    assert run_in_child("import tianyuan;" + code) == "False False"


def test_plugin_is_loaded_whichever_is_imported_first() -> None:
    code = (
        "; from tianyuan import plugins; import tianyuan; "
        "print([r.state for r in plugins.records() if r.name == 'x86'])"
    )
    for first in ("tianyuan", "tianyuan_x86"):
        assert run_in_child(f"import {first}" + code) == "['loaded']"


@pytest.mark.parametrize("first", ["tianyuan_x86.native", "tianyuan_x86._native"])
def test_threads_come_from_the_environment(first: str) -> None:
    code = (
        f"import {first}, numpy as np; from tianyuan_x86 import native; from tianyuan import native"
        " as core; native.load(); print(core.get_num_threads())"
    )
    assert run_in_child(code, TIANYUAN_NUM_THREADS="5") == "5"


def test_report_tells_features_and_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIANYUAN_ISA", raising=False)
    report = tianyuan_x86.tianyuan_report()
    with open("/proc/cpuinfo") as info:
        flags = next(line for line in info if line.startswith("flags")).split()
    for name in ("avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl",
                 "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "pclmulqdq"):  # fmt: skip
        assert report["features"][name] == (name in flags), name
    with open("/proc/cpuinfo") as info:
        assert report["features"]["amd"] == ("AuthenticAMD" in info.read())
    assert report["tier"] == report["tiers"][0]
    assert "unavailable" not in report
    monkeypatch.setenv("TIANYUAN_ISA", "avx2")
    assert tianyuan_x86.tianyuan_report()["tier"] == "avx2"
    monkeypatch.setenv("TIANYUAN_ISA", "any")
    assert tianyuan_x86.tianyuan_report()["tier"] is None


def test_kernels_are_named_by_tier_and_unknown_ones_are_refused() -> None:
    groups = tianyuan_x86.tianyuan_kernels("cpu")
    kernels = [kernel for group in groups for op in group.ops for kernel in group.of(op)]
    for kernel in kernels:
        assert f"__{kernel.isa}_" in kernel.name
        assert kernel.is_native
    assert {kernel.isa for kernel in kernels} == {tier.name for tier in native.load().tiers}
    assert list(tianyuan_x86.tianyuan_kernels("cuda")) == []
    with pytest.raises(PluginError, match="nothing_f32__avx2_plain"):
        Tier("avx2", {}).kernel("nothing_f32", "plain", "copy")


def test_machine_without_avx2_registers_nothing_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = native.Native(native.load().module, (), {})
    monkeypatch.setattr(native, "load", lambda: bare)
    assert list(tianyuan_x86.tianyuan_kernels("cpu")) == []
    report = tianyuan_x86.tianyuan_report()
    assert report["unavailable"].startswith("AVX2 with FMA and F16C is missing")
    assert report["tier"] is None
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert list(tianyuan_x86.tianyuan_kernels("cpu")) == []
    assert tianyuan_x86.tianyuan_report()["unavailable"] == "the machine is aarch64, not x86-64"
