"""Random programs: every way to save memory or to trace gives eager's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan import dtr
from tianyuan.autodiff import GradManager, value_and_grad
from tianyuan.jit import DTRConfig, SublinearMemoryConfig, partial_trace, trace

ONE: list[Callable[[ty.Tensor], ty.Tensor]] = [
    F.sin, F.tanh, F.sigmoid, lambda x: F.exp(x * 0.1), lambda x: x * x * 0.1,
    lambda x: x.reshape(-1, 4).reshape(x.shape), lambda x: F.transpose(x.T * 2, (1, 0)),
    lambda x: F.softmax(x, axis=1), lambda x: x - x.mean(axis=0, keepdims=True),
    lambda x: F.concat([x[:, 3:], x[:, :3]], axis=1),
]  # fmt: skip
TWO: list[Callable[[ty.Tensor, ty.Tensor], ty.Tensor]] = [
    lambda a, b: a + b, lambda a, b: a * b * 0.1, F.maximum,
    lambda a, b: F.where(a > b, a, b * 0.5), lambda a, b: a @ (b.T @ b) * 0.01,
]  # fmt: skip


def program(seed: int) -> Callable[[dict], tuple[ty.Tensor, ty.Tensor]]:
    """Return a function of two tensors: a loss, and a value from its midst."""
    rng = np.random.default_rng(seed)
    steps = []
    for known in range(2, int(rng.integers(8, 40))):
        if rng.random() < 0.6:
            steps.append((ONE[rng.integers(len(ONE))], [int(rng.integers(known))]))
        else:
            chosen = [int(rng.integers(max(0, known - 4), known)), int(rng.integers(known))]
            steps.append((TWO[rng.integers(len(TWO))], chosen))
    picked = [int(i) for i in rng.integers(0, len(steps) + 2, 2)]

    def function(given: dict) -> tuple[ty.Tensor, ty.Tensor]:
        values = [given["w"], given["x"]]
        for verb, chosen in steps:
            values.append(verb(*(values[i] for i in chosen)))
        loss = values[-1].sum() + values[picked[0]].mean() + values[picked[1]].mean()
        return loss, values[picked[0]]

    return function


def arrays(found: tuple) -> list[np.ndarray]:
    (value, middle), slope = found
    return [t.numpy() for t in (value, middle, slope["w"], slope["x"])]


def assert_same(found: list, expected: list) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    dtr.disable()
    dtr.eviction_threshold, dtr.evictee_minimum_size = 0, 1 << 20
    dtr.enable_sqrt_sampling = False


@pytest.fixture(params=range(8))
def case(request: pytest.FixtureRequest) -> tuple[Callable, dict[str, ty.Tensor], list]:
    function = program(request.param)
    rng = np.random.default_rng(1000 + request.param)
    given = {key: ty.Tensor(rng.standard_normal((16, 8)).astype("f")) for key in "wx"}
    return function, given, arrays(value_and_grad(function, has_aux=True)(given))


def test_traced(case: tuple) -> None:
    function, given, expected = case
    step = trace(value_and_grad(function, has_aux=True), opt_level=0)
    assert_same(arrays(step(given)), expected)


@pytest.mark.parametrize("level", [0, 2])
def test_computing_twice(case: tuple, level: int) -> None:
    function, given, _ = case
    step = value_and_grad(function, has_aux=True)
    plain = trace(step, opt_level=level)
    expected = arrays(plain(given))
    arena = plain.explain().arena_size
    for options in (
        {"sublinear_memory_config": SublinearMemoryConfig(thresh_nr_try=4)},
        {"dtr_config": DTRConfig(arena * 3 // 4, evictee_minimum_size=1)},
    ):
        saving = trace(step, opt_level=level, **options)
        for _ in range(2):
            assert_same(arrays(saving(given)), expected)
        assert saving.explain().arena_size <= arena


@pytest.mark.parametrize(("threshold", "sample"), [(1, False), (20_000, True)])
def test_evicting(case: tuple, threshold: int, sample: bool) -> None:
    function, given, expected = case
    dtr.eviction_threshold, dtr.evictee_minimum_size = threshold, 0
    dtr.enable_sqrt_sampling = sample
    dtr.enable()
    assert_same(arrays(value_and_grad(function, has_aux=True)(given)), expected)


def test_partly_traced(case: tuple) -> None:
    function, given, expected = case
    given = {key: ty.Parameter(tensor) for key, tensor in given.items()}
    gm = GradManager().attach(given.values())
    with gm:
        loss, middle = partial_trace(function, opt_level=0)(given)
        gm.backward(loss)
    slopes = [given[key].grad for key in "wx"]
    zeros = np.zeros((16, 8), np.float32)
    found = [zeros if slope is None else slope.numpy() for slope in slopes]
    assert_same([loss.numpy(), middle.numpy(), *found], expected)
