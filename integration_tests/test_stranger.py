"""A stranger's C kernel runs in our executor's loop, without Python, on the same thread pool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

STRANGER = Path(__file__).parent / "plugins" / "stranger"

if find_spec("tianyuan_x86") is None:
    pytest.skip("tianyuan-x86 is not installed", allow_module_level=True)

PROGRAM = """
import ctypes, json, sys
import numpy as np
import tianyuan
from tianyuan import native, plugins, structs
from tianyuan.graph.program import ARENA, INPUT, OUTPUT, Program, Slot, Step
from tianyuan.kernel import Call
from tianyuan.op import NoAttrs, TensorSpec
from tianyuan import registry

n = 50000
spec = TensorSpec((n,), np.dtype("float32"))
op = registry.get_op("square")
kernel = registry.select(Call(op, (spec,), (spec,), NoAttrs(), native.get_num_threads())).kernel
slots = (
    Slot(INPUT, 0, spec, "plain", (n,)),
    Slot(ARENA, 0, spec, "plain", (n,)),
    Slot(OUTPUT, 0, spec, "plain", (n,)),
)
steps = (
    Step(kernel, op, NoAttrs(), (0,), (1,)),
    Step(kernel, op, NoAttrs(), (1,), (2,)),
)
size = -(-4 * n // 64) * 64
program = Program(slots, steps, (0,), (2,), (), (), size, size, native.get_num_threads())
executable, refusals = plugins.compile_program(program, "cpu", "x86")
from tianyuan_stranger import _kernels

x = np.random.default_rng(3).standard_normal(n).astype(np.float32)
y = np.empty_like(x)
executable.run([x], [], [y])
calls_of_one_run, pool = _kernels.seen()

entered = []
sys.setprofile(lambda frame, event, arg: entered.append(frame.f_code.co_qualname
    if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name) if event == "call" else None)
executable.run([x], [], [y])
sys.setprofile(None)

capsule = native.published_thread_pool()
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
table = structs.TyThreadPool.from_address(get(capsule, b"tianyuan.thread_pool.v1"))

eager = tianyuan.tensor(x)
squared = tianyuan.functional.square(eager)
print(json.dumps({
    "kernel": kernel.name,
    "backend": kernel.backend,
    "executable": executable.name,
    "share": executable.native_share(),
    "calls": calls_of_one_run,
    "calls_after": _kernels.seen()[0],
    "same_pool": pool == table.self,
    "entered": entered,
    "right": bool(np.array_equal(y, (x * x) * (x * x))),
    "eager_right": bool(np.array_equal(squared.numpy(), x * x)),
    "threads": table.size(table.self),
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which the stranger's distribution is built and installed."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler to build the stranger's kernel")
    source = tmp_path_factory.mktemp("stranger") / "source"
    shutil.copytree(STRANGER, source)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--target", target, source],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def answer(site: Path) -> dict[str, Any]:
    """Return what the program printed with the stranger installed."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "TIANYUAN_NUM_THREADS": "2",
            "TIANYUAN_STRICT_PLUGINS": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_cheaper_kernel_of_the_stranger_is_chosen(answer: dict[str, Any]) -> None:
    assert answer["kernel"] == "square_f32__any_stranger"
    assert answer["backend"] == "stranger"


def test_x86_executor_runs_it_in_its_own_loop(answer: dict[str, Any]) -> None:
    assert answer["executable"] == "x86"
    assert answer["share"] == 1.0
    assert answer["calls"] == 2
    assert answer["right"]


def test_no_python_runs_per_step(answer: dict[str, Any]) -> None:
    assert [name.rpartition(".")[2] for name in answer["entered"]] == ["run"]


def test_it_runs_on_the_one_thread_pool(answer: dict[str, Any]) -> None:
    assert answer["same_pool"]
    assert answer["threads"] == 2


def test_eager_execution_runs_it_too(answer: dict[str, Any]) -> None:
    assert answer["calls_after"] == 5
    assert answer["eager_right"]
