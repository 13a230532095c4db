"""Traces as programs use them: state, randomness, containers, sharing, faults and threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan import random
from tianyuan.autodiff import GradManager, grad
from tianyuan.errors import KernelError, ShapeError, TraceError
from tianyuan.imperative.state import state
from tianyuan.jit import load, trace
from tianyuan.jit.model import Model

Wrap = Callable[[Callable], Callable]
BOTH: list[Wrap] = [lambda function: function, trace(opt_level=0)]


def plain(result: object) -> object:
    """Return nested tensors as nested lists."""
    if isinstance(result, ty.Tensor):
        return result.tolist()
    if isinstance(result, dict):
        return {key: plain(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)(plain(value) for value in result)
    return result


def alike(scenario: Callable[[Wrap], object]) -> None:
    """Assert that a scenario goes the same way in Python and traced."""
    eager, traced = (plain(scenario(wrap)) for wrap in BOTH)
    assert eager == traced


class Counting(M.Module):
    """Buffers of several kinds: statistics, a counter, a history that shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = M.BatchNorm1d(3)
        self.drop = M.Dropout(0.5)
        self.count = ty.Tensor(0, dtype="int32")
        self.history = ty.Tensor(np.zeros((4, 3)))

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        self.count += 1
        self.history[1:] = self.history[:-1]
        self.history[0] = x.mean(axis=0)
        return self.drop(self.bn(x)) + self.history.sum(axis=0) * self.count


def test_buffers_dropout_and_modes() -> None:
    def scenario(wrap: Wrap) -> object:
        random.seed(5)
        net, rng, found = Counting(), np.random.default_rng(0), []
        run = wrap(lambda x: net(x))
        for step in range(8):
            net.train(step % 3 != 2)
            found.append(run(ty.Tensor(rng.standard_normal((6, 3)).astype("f"))))
        return found, [t for _, t in sorted(net.named_tensors())]

    alike(scenario)
    net = Counting()
    run = trace(lambda x: net(x))
    for expected in (1, 2, 3):
        run(ty.Tensor(np.full((2, 3), expected, "f")))
        assert net.count.item() == expected
    np.testing.assert_array_equal(net.history.numpy()[:, 0], [3, 2, 1, 0])


def test_dropout_draws_anew_and_keeps_its_share() -> None:
    random.seed(1)
    drop = M.Dropout(0.25)
    run = trace(lambda x: drop(x))
    ones = ty.Tensor(np.ones(4000, "f"))
    first, second = run(ones).numpy(), run(ones).numpy()
    assert set(np.unique(first)) <= {0, np.float32(1 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.03
    assert (first != second).any()
    drop.eval()
    np.testing.assert_array_equal(run(ones).numpy(), 1)


def test_in_place_updates_of_every_kind() -> None:
    def scenario(wrap: Wrap) -> object:
        a, b = ty.Tensor(np.arange(6.0).reshape(2, 3)), ty.Tensor([1, 2, 3], dtype="int32")

        def body(x: ty.Tensor) -> ty.Tensor:
            nonlocal_view = a[0]
            a[...] = a + x
            a[1, :2] = 7
            b.__iadd__(1)
            y = nonlocal_view + a[0] * b
            a.__imul__(2)
            return y

        run = wrap(body)
        found = [run(ty.Tensor([1.0, 10.0, 100.0])) for _ in range(3)]
        return found, a, b

    alike(scenario)


def test_nested_containers_in_and_out() -> None:
    def scenario(wrap: Wrap) -> object:
        def body(batch: dict, *rest: ty.Tensor, scale: float = 1.0, **named: object) -> dict:
            total = batch["a"][0] + batch["b"]["c"] * scale
            for value in rest:
                total = total - value
            return {"out": (total, [total * 2, named["tag"]]), "same": batch["a"], "none": None}

        run, x = wrap(body), ty.Tensor([1.0, 2.0])
        nested = {"a": (x, x * 2), "b": {"c": x + 1}}
        return (
            run(nested, tag="t"),
            run(nested, x, x, scale=2.0, tag="u"),
            run({"b": {"c": x}, "a": (x, x)}, tag=3),
        )

    alike(scenario)


def test_a_loop_over_a_list_is_unrolled_for_its_length() -> None:
    runs = []

    @trace
    def total(items: list) -> ty.Tensor:
        runs.append(len(items))
        result = items[0] * 0
        for index, item in enumerate(items):
            result = result + item * index
        return result

    for count in (1, 3, 2, 3, 1):
        items = [ty.Tensor([float(i + 1)]) for i in range(count)]
        assert total(items).item() == sum(i * (i + 1) for i in range(count))
    assert runs == [1, 3, 2]


@pytest.mark.parametrize("dynamic", [None, {"x": {0: "n"}}])
def test_batches_of_changing_size(dynamic: dict | None) -> None:
    net, runs = M.Sequential(M.Linear(3, 4), M.ReLU(), M.BatchNorm1d(4)), []
    net.eval()

    def body(x: ty.Tensor) -> ty.Tensor:
        runs.append(1)
        return net(x).reshape(x.shape[0], -1).sum(axis=1)

    run = trace(body, dynamic_shapes=dynamic)
    rng = np.random.default_rng(0)
    for size in (4, 1, 7, 4, 16, 1, 2):
        x = ty.Tensor(rng.standard_normal((size, 3)).astype("f"))
        np.testing.assert_allclose(run(x).numpy(), net(x).numpy().sum(1), rtol=1e-4, atol=1e-6)
    assert len(runs) == (5 if dynamic is None else 2)


def test_a_last_small_batch_in_training() -> None:
    def scenario(wrap: Wrap) -> object:
        net = M.Linear(3, 1)
        net.weight[...] = ty.Tensor(np.ones((1, 3)))
        gm, opt = GradManager().attach(net.parameters()), optim.SGD(net.parameters(), 0.1, 0.9)

        def step(x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
            opt.clear_grad()
            with gm:
                loss = ((net(x) - y) ** 2).mean()
                gm.backward(loss)
            opt.step()
            return loss

        run, rng = wrap(step), np.random.default_rng(1)
        losses = [
            run(*(ty.Tensor(rng.standard_normal((n, k)).astype("f")) for k in (3, 1)))
            for n in (4, 4, 2, 4, 4, 2)
        ]
        return losses, net.weight, net.bias

    alike(scenario)


def test_two_models_share_weights() -> None:
    def scenario(wrap: Wrap) -> object:
        shared = M.Linear(2, 2)
        shared.weight[...] = ty.Tensor([[1.0, 2.0], [3.0, 4.0]])
        first, second = M.Sequential(shared), M.Sequential(shared, M.ReLU(), shared)
        one, two = wrap(lambda x: first(x)), wrap(lambda x: second(x))

        def halve() -> None:
            shared.weight[...] = shared.weight * 0.5

        x, change, found = ty.Tensor([[1.0, -1.0]]), wrap(halve), []
        for _ in range(3):
            found += [one(x), two(x)]
            change()
        gm = GradManager().attach(shared.parameters())

        def step(x: ty.Tensor) -> None:
            with gm:
                gm.backward(first(x).sum() + second(x).sum())

        wrap(step)(x)
        return found, shared.weight, shared.weight.grad, shared.bias.grad

    alike(scenario)


def test_a_trace_of_a_trace_of_a_trace() -> None:
    runs = []

    def body(x: ty.Tensor) -> ty.Tensor:
        runs.append(1)
        return x * 2

    inner = trace(body)
    middle = trace(lambda x: inner(x) + inner(x + 1))
    outer = trace(lambda x: middle(x) * inner(x))
    for value in (1.0, 3.0, 1.0):
        expected = (2 * value + 2 * (value + 1)) * 2 * value
        assert outer(ty.Tensor(value)).item() == expected
    assert len(runs) == 3
    assert trace(inner)(ty.Tensor(4.0)).item() == 8
    assert trace(grad(lambda x: middle(x)))(ty.Tensor(4.0)).item() == 4


@pytest.mark.parametrize("where", ["while tracing", "in a kernel", "in a shape"])
def test_faults_leave_everything_as_it_was(where: str) -> None:
    p, counter = ty.Parameter([1.0, 2.0]), ty.Tensor(0, dtype="int32")
    opt, gm = optim.SGD([p], lr=1.0, momentum=0.9), GradManager().attach(p)

    @trace
    def step(x: ty.Tensor, index: ty.Tensor, fail: bool) -> ty.Tensor:
        counter[...] = counter + 1
        with gm:
            picked = F.gather(x * p, 0, index)
            gm.backward(picked.sum())
        opt.step().clear_grad()
        if fail:
            raise RuntimeError("while tracing")
        return picked

    x, good = ty.Tensor([3.0, 4.0]), ty.Tensor([0, 1], dtype="int32")
    step(x, good, False)
    before = [t.numpy() for t in (p, counter)]
    faults = {
        "while tracing": (RuntimeError, lambda: step(x, good, True)),
        "in a kernel": (KernelError, lambda: step(x, ty.Tensor([0, 9], dtype="int32"), False)),
        "in a shape": (ShapeError, lambda: step(ty.Tensor([1.0, 2.0, 3.0]), good, False)),
    }
    error, call = faults[where]
    for _ in range(2):
        with pytest.raises(error):
            call()
        assert (state.recorder, state.tapes, gm._tape) == (None, [], None)
        assert p.grad is None
        for tensor, value in zip((p, counter), before, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), value)
    step(x, good, False)
    assert counter.item() == 2
    np.testing.assert_allclose(p.numpy(), [1 - 3 - 3 * 1.9, 2 - 4 - 4 * 1.9], rtol=1e-6)


def test_a_value_read_while_tracing_is_refused_and_the_trace_can_be_mended() -> None:
    branch = {"on": True}

    @trace
    def body(x: ty.Tensor) -> ty.Tensor:
        if branch["on"] and x.sum() > 0:
            return x
        return x * 2

    with pytest.raises(TraceError, match="not known while the trace is made"):
        body(ty.Tensor([1.0]))
    branch["on"] = False
    assert body(ty.Tensor([1.0])).numpy() == [2]


def test_results_are_freed_as_soon_as_nobody_holds_them() -> None:
    run = trace(lambda x, rest: {"y": [x + 1], "z": rest["a"] * 2})
    gc.disable()
    try:
        x = ty.Tensor([1.0])
        found = run(x, {"a": ty.Tensor([2.0])})
        refs = [weakref.ref(found["y"][0]), weakref.ref(found["z"])]
        del found
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


THREADS, CALLS = 8, 1000


def in_threads(work: Callable[[int], None]) -> None:
    faults: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults


def test_eight_threads_times_a_thousand_calls_equal_serial() -> None:
    w = ty.Tensor(np.random.default_rng(0).standard_normal((3, 3)).astype("f"))
    run = trace(lambda x: F.relu(x @ w).sum(axis=1) + x[:, 0])
    inputs = [
        ty.Tensor(np.random.default_rng(i).standard_normal((1 + i % 3, 3)).astype("f"))
        for i in range(20)
    ]
    with ty.use_backend("numpy"):
        expected = [run(x).numpy().tobytes() for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        with ty.use_backend("numpy"):
            for call in range(CALLS):
                pick = (call * 7 + index) % len(inputs)
                if run(inputs[pick]).numpy().tobytes() != expected[pick]:
                    wrong.append(pick)

    in_threads(work)
    assert wrong == []


def test_eight_threads_update_one_state_and_lose_nothing() -> None:
    total = ty.Tensor(0, dtype="int32")

    @trace
    def add(x: ty.Tensor) -> ty.Tensor:
        total[...] = total + x
        return total + 0

    one, seen = ty.Tensor(1, dtype="int32"), [[] for _ in range(THREADS)]

    def work(index: int) -> None:
        for _ in range(CALLS // 10):
            seen[index].append(add(one).item())

    in_threads(work)
    assert total.item() == THREADS * (CALLS // 10)
    everything = sorted(value for values in seen for value in values)
    assert everything == list(range(1, THREADS * (CALLS // 10) + 1))


def test_an_index_out_of_range_leaves_the_state_that_it_would_write() -> None:
    table, other = ty.Tensor(np.zeros((4, 2))), ty.Tensor([1.0])

    @trace
    def write(rows: ty.Tensor) -> None:
        other[...] = other * 2
        table[rows] = table[rows] + 1

    write(ty.Tensor([0, 2], dtype="int32"))
    before = table.numpy()
    np.testing.assert_array_equal(before[:, 0], [1, 0, 1, 0])
    with pytest.raises(KernelError, match="index out of range, got 7"):
        write(ty.Tensor([1, 7], dtype="int32"))
    np.testing.assert_array_equal(table.numpy(), before)
    assert other.item() == 2


@pytest.fixture
def doubling(tmp_path) -> Model:
    run = trace(lambda x: x * 2, capture_as_const=True)
    run(ty.Tensor(np.ones(3)))
    run.dump(tmp_path / "double.tym")
    return load(tmp_path / "double.tym")


def test_memory_that_a_caller_holds_too_is_not_written(doubling: Model) -> None:
    held = np.zeros((2, 3), np.float32)
    x = doubling(ty.Tensor(np.ones(3)), out=[held[0]])

    @trace
    def advance() -> None:
        nonlocal x
        x += 1

    advance()
    advance()
    assert x.tolist() == [4.0, 4.0, 4.0]
    np.testing.assert_array_equal(held, [[2, 2, 2], [0, 0, 0]])


def test_a_program_is_of_as_many_threads_as_are_wanted_now(doubling: Model) -> None:
    """Scratch is planned for a number of threads; more of them would write behind it."""
    before = ty.get_num_threads()
    try:
        for count in (1, 3, 2):
            ty.set_num_threads(count)
            np.testing.assert_array_equal(doubling(np.ones(3, np.float32)), [2, 2, 2])
            assert doubling.program().threads == count
    finally:
        ty.set_num_threads(before)


def test_an_argument_that_is_a_tensor_of_the_functions_own_is_so_only_then() -> None:
    own = ty.Parameter([3.0])
    run = trace(lambda x: x * own)
    assert [run(x).item() for x in (own, ty.Tensor([5.0]), own)] == [9.0, 15.0, 9.0]
