"""The eager engine gives what core's own apply gives, and steps aside where anything is unusual."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from tianyuan import native, registry
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, KernelError, ShapeError
from tianyuan.imperative import dispatch
from tianyuan.jit import trace

RNG = np.random.default_rng(7)


def tensor(*shape: int) -> tianyuan.Tensor:
    return tianyuan.Tensor(RNG.standard_normal(shape), dtype="float32")


@pytest.fixture
def core_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the ops that core ran itself, in order."""
    seen: list[str] = []
    run_now = dispatch._run_now

    def counted(op, *rest):
        seen.append(op.name)
        return run_now(op, *rest)

    monkeypatch.setattr(dispatch, "_run_now", counted)
    return seen


def test_a_call_met_before_runs_without_core(core_calls: list[str]) -> None:
    a, b = tensor(3, 5), tensor(3, 5)
    a + b  # the first use of all loads the plugin
    first = (a + b).numpy()
    core_calls.clear()
    second = (a + b).numpy()
    assert core_calls == []
    np.testing.assert_array_equal(first, a.numpy() + b.numpy())
    np.testing.assert_array_equal(second, first)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda x: x * 2.0 + 1.0, lambda x: x * np.float32(2) + np.float32(1)),
        (lambda x: 3 - x, lambda x: np.float32(3) - x),
        (lambda x: 1.0 / (x * x + 1), lambda x: np.float32(1) / (x * x + np.float32(1))),
        (lambda x: F.sum(x, axis=1), lambda x: x.astype("float64").sum(1)),
        (lambda x: F.transpose(x, (1, 0)), lambda x: x.T),
        (lambda x: F.matmul(x, F.transpose(x, (1, 0))), lambda x: x.astype("float64") @ x.T),
        (lambda x: F.concat([x, x], axis=0), lambda x: np.concatenate([x, x])),
        (lambda x: x > 0, lambda x: x > 0),
    ],
)
@pytest.mark.parametrize("shape", [(4, 7), (0, 7), (1, 1), (70, 90)])
def test_values_again_and_again(mine: Callable, theirs: Callable, shape: tuple[int, int]) -> None:
    x = tensor(*shape)
    for _ in range(3):
        np.testing.assert_allclose(mine(x).numpy(), theirs(x.numpy()), rtol=1e-5, atol=1e-5)


def test_what_narrows_the_choice_of_kernels_is_heeded(core_calls: list[str]) -> None:
    a, b = tensor(3), tensor(3)
    for _ in range(2):
        a * b
    core_calls.clear()
    with tianyuan.use_backend("numpy"):
        a * b
        a * b
    assert core_calls == ["mul", "mul"]
    with registry.use_isa("avx2"):
        a * b
    assert core_calls == ["mul"] * 3
    threads = tianyuan.get_num_threads()
    tianyuan.set_num_threads(threads + 1)
    a * b
    tianyuan.set_num_threads(threads)
    assert core_calls == ["mul"] * 4
    a * b
    assert core_calls == ["mul"] * 4


def test_programs_heed_it_too() -> None:
    run = trace(lambda a, b: a * b)
    a, b = tensor(300), tensor(300)

    def kernel() -> str:
        np.testing.assert_array_equal(run(a, b).numpy(), a.numpy() * b.numpy())
        (step,) = run.explain().steps
        return step.kernel

    usual = kernel()
    with registry.use_isa("avx2"):
        assert "__avx2_" in kernel()
    with tianyuan.use_backend("numpy"):
        assert "__numpy" in kernel()
    assert kernel() == usual


def test_gradients_of_first_and_second_order() -> None:
    x = tianyuan.Parameter(np.array([0.5, -2.0, 3.0]), dtype="float32")
    for _ in range(3):
        outer, inner = GradManager().attach([x]), GradManager().attach([x])
        with outer:
            with inner:
                inner.backward((x * x * x).sum())
            np.testing.assert_allclose(x.grad.numpy(), 3 * x.numpy() ** 2, rtol=1e-6)
            first, x.grad = x.grad, None
            outer.backward(first.sum())
        np.testing.assert_allclose(x.grad.numpy(), 6 * x.numpy(), rtol=1e-6)
        x.grad = None


def test_a_tape_holds_what_the_call_read_whatever_becomes_of_the_handle() -> None:
    x = tianyuan.Parameter(np.array([2.0]), dtype="float32")
    for _ in range(3):
        x[...] = 2.0
        with GradManager().attach([x]) as manager:
            y = x * x
            y += 1.0
            manager.backward(y)
        np.testing.assert_array_equal(x.grad.numpy(), [4.0])
        x.grad = None


def test_scalars_keep_their_sign_and_their_nan() -> None:
    x = tianyuan.Tensor([1.0, -1.0])
    for _ in range(3):
        assert np.signbit((x * 0.0).numpy()).tolist() == [False, True]
        assert np.signbit((x * -0.0).numpy()).tolist() == [True, False]
        assert np.isnan((x + float("nan")).numpy()).all()
        assert (tianyuan.Tensor([1, 2]) + True).dtype == np.int32
        assert (tianyuan.Tensor([1, 2]) * 1.5).numpy().tolist() == [1.5, 3.0]
        assert (x + 1).dtype == np.float32


def test_faults_are_told_as_by_core() -> None:
    a, b = tensor(3), tensor(4)
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"add: .*got .*3.* and .*4"):
            a + b
        with pytest.raises(AttrError, match="add: inputs must be tensors, got Tensor, list"):
            registry.get_op("add")(a, [1.0])
    base, exponent = tianyuan.Tensor([2, 3]), tianyuan.Tensor([1, 2])
    for _ in range(2):
        assert (base**exponent).numpy().tolist() == [2, 9]
    with pytest.raises(KernelError, match="pow: .*negative"):
        base ** tianyuan.Tensor([1, -2])


def test_large_results_are_aligned_and_own_their_memory() -> None:
    array = RNG.standard_normal((64, 65)).astype("float32")
    results = [tianyuan.Tensor(array) + 1.0 for _ in range(20)]
    for result in results:
        assert result._data.ctypes.data % 64 == 0
        np.testing.assert_array_equal(result.numpy(), array + np.float32(1))


def test_nothing_is_left_behind() -> None:
    a, b = tensor(3), tensor(3)
    a + b
    counted = [a._data, a._spec, registry.get_op("add")]
    before = [sys.getrefcount(object) for object in counted]
    with GradManager().attach([a]) as manager:
        for _ in range(500):
            a + b
        manager.release()
    assert [sys.getrefcount(object) for object in counted] == before


def test_many_threads_at_once() -> None:
    def work(seed: int) -> float:
        x = tianyuan.Tensor(np.arange(300) % (seed + 3), dtype="float32")
        for _ in range(200):
            x = F.relu(x * 0.5 + 1.0) - 0.25
        return x.sum().item()

    serial = [work(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == serial


def test_the_engine_is_the_first_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor(1) + 1.0
    engine = native.engine
    assert engine is not None
    native.set_engine(object())
    assert native.engine is engine


def test_a_failing_kernel_names_its_op_once() -> None:
    table, first, other = tensor(4, 2), tianyuan.Tensor([9]), tianyuan.Tensor([7])
    for wanted, indices in ((9, first), (9, first), (7, other)):  # the second call finds its plan
        with pytest.raises(KernelError) as found:
            F.nn.embedding(indices, table)
        text = str(found.value)
        assert re.fullmatch(rf"take: index out of range, got {wanted}, .* \(take_\w+\)", text), text
