"""Run programs built by hand on the native executor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tianyuan.dtypes import CODES
from tianyuan.errors import KernelError
from tianyuan.graph.program import ARENA, INPUT, OUTPUT, STATE
from tianyuan.kernel import CFunction
from tianyuan.op import QuantParams
from tianyuan_x86 import tianyuan_compile
from tianyuan_x86.executable import NativeExecutable

Functions = Callable[[str], CFunction]
RNG = np.random.default_rng(7)


def square_then_add(builder: Any, c_kernels: Functions, n: int) -> NativeExecutable:
    """y = (x*x)*(x*x) + c, through the arena, an alias and a workspace."""
    x = builder.slot(INPUT, (n,))
    middle = builder.slot(ARENA, (n,))
    flat = builder.alias(middle, (1, n))
    fourth = builder.slot(ARENA, (n,))
    c = builder.constant(np.arange(n, dtype=np.float32))
    y = builder.slot(OUTPUT, (n,))
    builder.step(c_kernels("test_square"), (x,), (middle,), workspace=64)
    builder.step(c_kernels("test_square"), (flat,), (fourth,))
    builder.step(c_kernels("test_add"), (fourth, c), (y,))
    return NativeExecutable(builder.program())


@pytest.mark.parametrize("n", [0, 1, 7, 1000, 70001])
def test_program_computes_what_numpy_computes(builder: Any, c_kernels: Functions, n: int) -> None:
    executable = square_then_add(builder, c_kernels, n)
    for _ in range(3):
        x = RNG.standard_normal(n).astype(np.float32)
        y = np.full(n, np.nan, np.float32)
        executable.run([x], [], [y])
        np.testing.assert_array_equal(y, (x * x) * (x * x) + np.arange(n, dtype=np.float32))
    assert executable.native_share() == 1.0
    assert executable.arenas == 1


def test_calls_from_many_threads_do_not_mix(builder: Any, c_kernels: Functions) -> None:
    n = 5000
    executable = square_then_add(builder, c_kernels, n)
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
        want = (x * x) * (x * x) + np.arange(n, dtype=np.float32)
        for _ in range(50):
            y = np.empty(n, np.float32)
            executable.run([x], [], [y])
            if not np.array_equal(y, want):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= executable.arenas <= 6


def test_state_is_updated_in_place_and_runs_take_turns(builder: Any, c_kernels: Functions) -> None:
    n = 300
    x, total = builder.slot(INPUT, (n,)), builder.slot(STATE, (n,))
    builder.step(c_kernels("test_add"), (total, x), (total,))
    executable = NativeExecutable(builder.program())
    state, one = np.zeros(n, np.float32), np.ones(n, np.float32)

    def work() -> None:
        for _ in range(100):
            executable.run([one], [state], [])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(state, np.full(n, 400, np.float32))


def test_python_kernel_runs_as_a_call_out(builder: Any, c_kernels: Functions) -> None:
    seen = []

    def negate(ctx, inputs, outputs, attrs, workspace) -> None:  # type: ignore[no-untyped-def]
        seen.append((ctx.threads, workspace.nbytes, inputs[0].flags.writeable))
        np.negative(inputs[0], out=outputs[0])

    x, middle, y = (builder.slot(kind, (2, 3)) for kind in (INPUT, ARENA, OUTPUT))
    builder.step(c_kernels("test_square"), (x,), (middle,))
    builder.step(negate, (middle,), (y,), workspace=128)
    executable = NativeExecutable(builder.program())
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = np.empty_like(data)
    executable.run([data], [], [out])
    np.testing.assert_array_equal(out, -data * data)
    assert seen == [(2, 128, False)]
    assert executable.native_share() == 0.5


@pytest.mark.parametrize("name", list(CODES))
def test_every_dtype_crosses_the_abi(builder: Any, c_kernels: Functions, name: str) -> None:
    x = builder.slot(INPUT, (5, 2), name)
    y = builder.slot(OUTPUT, (8,), "int64")
    builder.step(c_kernels("test_describe"), (x,), (y,))
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    out = np.empty(8, np.int64)
    NativeExecutable(builder.program()).run([np.zeros((5, 2), dtype)], [], [out])
    assert out[:3].tolist() == [CODES[name], 2, 5]
    assert out[4] == 11


def test_quantisation_parameters_cross_the_abi(builder: Any, c_kernels: Functions) -> None:
    quant = QuantParams((0.5, 0.25), (3, -4), axis=0)
    x = builder.slot(INPUT, (2, 3), "int8", quant=quant)
    y = builder.slot(OUTPUT, (8,), "int64")
    builder.step(c_kernels("test_describe"), (x,), (y,))
    out = np.empty(8, np.int64)
    NativeExecutable(builder.program()).run([np.zeros((2, 3), np.int8)], [], [out])
    assert out[5:].tolist() == [2, -4, 500]


def test_profile_runs_and_times_each_step(builder: Any, c_kernels: Functions) -> None:
    executable = square_then_add(builder, c_kernels, 100)
    x, y = np.ones(100, np.float32), np.empty(100, np.float32)
    seconds = executable.profile([x], [], [y])
    np.testing.assert_array_equal(y, 1 + np.arange(100, dtype=np.float32))
    assert len(seconds) == 3
    assert all(0 <= spent < 60 for spent in seconds)


def test_failing_kernel_names_op_kernel_and_origin(builder: Any, c_kernels: Functions) -> None:
    x, y = builder.slot(INPUT, (3,)), builder.slot(OUTPUT, (3,))
    builder.step(c_kernels("test_square"), (x,), (y,))
    builder.step(c_kernels("test_fail"), (x,), (y,), name="broken_f32__any_plain")
    executable = NativeExecutable(builder.program())
    with pytest.raises(KernelError) as caught:
        executable.run([np.ones(3, np.float32)], [], [np.empty(3, np.float32)])
    assert str(caught.value) == (
        "copy: it is broken, got 3, expected 0 (step 1, broken_f32__any_plain, from model.py:7)"
    )


def test_failing_python_kernel_keeps_its_cause(builder: Any, c_kernels: Functions) -> None:
    def broken(ctx, inputs, outputs, attrs, workspace) -> None:  # type: ignore[no-untyped-def]
        raise ZeroDivisionError("too flat")

    x, y = builder.slot(INPUT, (3,)), builder.slot(OUTPUT, (3,))
    builder.step(broken, (x,), (y,), name="broken_f32__python_plain")
    executable = NativeExecutable(builder.program())
    data = [np.ones(3, np.float32)], [], [np.empty(3, np.float32)]
    for _ in range(2):
        with pytest.raises(KernelError, match=r"copy: too flat .*model\.py:7") as caught:
            executable.run(*data)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.ones(4, np.float32), "does not fit its slot"),
        (np.ones(3, np.float64), "does not fit its slot"),
        (np.ones((3, 1), np.float32), "does not fit its slot"),
        (np.ones(6, np.float32)[::2], "is not C-contiguous"),
        (np.ones(3, ">f4"), "has an unsupported dtype"),
        (np.ones(3, np.complex64), "has an unsupported dtype"),
        ([1.0, 2.0, 3.0], "is not an array"),
    ],
)
def test_array_that_does_not_fit_is_refused_before_anything_runs(
    builder: Any, c_kernels: Functions, array: np.ndarray, what: str
) -> None:
    x, y = builder.slot(INPUT, (3,)), builder.slot(OUTPUT, (3,))
    builder.step(c_kernels("test_square"), (x,), (y,))
    executable = NativeExecutable(builder.program())
    out = np.full(3, -1, np.float32)
    with pytest.raises((ValueError, TypeError), match=what):
        executable.run([array], [], [out])
    np.testing.assert_array_equal(out, np.full(3, -1, np.float32))


def test_read_only_output_is_refused(builder: Any, c_kernels: Functions) -> None:
    x, y = builder.slot(INPUT, (3,)), builder.slot(OUTPUT, (3,))
    builder.step(c_kernels("test_square"), (x,), (y,))
    out = np.zeros(3, np.float32)
    out.flags.writeable = False
    executable = NativeExecutable(builder.program())
    with pytest.raises(TypeError, match="read-only"):
        executable.run([np.ones(3, np.float32)], [], [out])
    with pytest.raises(ValueError, match="wrong number of outputs, got 0, expected 1"):
        executable.run([np.ones(3, np.float32)], [], [])


def test_arena_that_memory_cannot_hold_is_an_error(builder: Any, c_kernels: Functions) -> None:
    x, y = builder.slot(INPUT, (3,)), builder.slot(OUTPUT, (3,))
    builder.step(c_kernels("test_square"), (x,), (y,))
    builder.arena_size = 1 << 60
    executable = NativeExecutable(builder.program())
    with pytest.raises(KernelError, match="executor: out of memory"):
        executable.run([np.ones(3, np.float32)], [], [np.empty(3, np.float32)])


def test_compile_declines_with_a_reason(builder: Any, c_kernels: Functions) -> None:
    x, y = builder.slot(INPUT, (3,)), builder.slot(OUTPUT, (3,))
    builder.step(lambda *args: None, (x,), (y,))
    assert tianyuan_compile(builder.program(), "cpu") == "no step has a C kernel"
    assert tianyuan_compile(builder.program(), "cuda:0") == "serves cpu, not cuda:0"
    builder.step(c_kernels("test_square"), (x,), (y,))
    made = tianyuan_compile(builder.program(), "cpu")
    assert isinstance(made, NativeExecutable)
    assert made.name == "x86"
