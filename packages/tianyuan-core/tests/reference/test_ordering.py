"""Updates run as soon as nobody misses the old value, and results stay what they were."""

from __future__ import annotations

import numpy as np
import tianyuan as ty
from tianyuan import ops, registry
from tianyuan.graph.graph import Graph, Value
from tianyuan.graph.ordering import advance_updates
from tianyuan.op import TensorSpec
from tianyuan.ops.attrs import Shape

ops.register_all()
F32 = np.dtype("float32")


class Build:
    """Appends ops to a graph by their names."""

    def __init__(self) -> None:
        self.graph = Graph()

    def input(self, *shape: int, dtype: str = "float32") -> Value:
        name = f"x{len(self.graph.inputs)}"
        return self.graph.add_input(TensorSpec(shape, np.dtype(dtype)), name)

    def state(self, *shape: int) -> Value:
        return self.graph.add_state(TensorSpec(shape, F32), f"s{len(self.graph.states)}")

    def add(self, name: str, *inputs: Value, **attrs: object) -> Value:
        op = registry.get_op(name)
        return self.graph.add_node(op, inputs, op.attrs(**attrs))[0]

    def update(self, state: Value, grad: Value, rate: Value) -> Value:
        return self.add(
            "sgd_update", state, grad, rate, momentum=0.0, weight_decay=0.0, nesterov=False
        )

    def names(self, *updates: Value, outputs: tuple[Value, ...] = ()) -> list[str]:
        """Return the ops in their new order; updates are given in the order of the states."""
        self.graph.updates = dict(enumerate(updates))
        self.graph.outputs = list(outputs)
        return [node.op.name for node in advance_updates(self.graph).nodes]


def test_an_update_follows_its_gradient() -> None:
    b = Build()
    v, w, x, rate = b.state(3), b.state(3), b.input(3), b.input()
    first, second = b.add("exp", x), b.add("sin", x)
    order = b.names(b.update(v, first, rate), b.update(w, second, rate))
    assert order == ["exp", "sgd_update", "sin", "sgd_update"]


def test_an_update_waits_for_readers_of_the_old_value_under_any_shape() -> None:
    b = Build()
    v, w, x, rate = b.state(3), b.state(2, 3), b.input(3), b.input()
    flat = b.graph.add_node(registry.get_op("reshape"), [w], Shape((6,)))[0]
    first, second = b.add("exp", x), b.add("broadcast_to", x, shape=(2, 3))
    late = b.add("cos", flat)
    order = b.names(b.update(v, first, rate), b.update(w, second, rate), outputs=(late,))
    assert order == ["reshape", "exp", "sgd_update", "broadcast_to", "cos", "sgd_update"]


def test_an_update_waits_for_the_last_step_that_may_refuse_its_data() -> None:
    b = Build()
    v, x, rate = b.state(3), b.input(3), b.input()
    gradient = b.add("exp", x)
    row = b.add("take", x, b.input(2, dtype="int32"), axis=0)
    order = b.names(b.update(v, gradient, rate), outputs=(row,))
    assert order == ["exp", "take", "sgd_update"]


def test_an_update_behind_which_somebody_reads_the_old_value_stays() -> None:
    b = Build()
    v, x, rate = b.state(3), b.input(3), b.input()
    gradient = b.add("exp", x)
    b.add("sin", x)
    new = b.update(v, gradient, rate)
    old = b.add("cos", v)
    order = b.names(new, outputs=(old,))
    assert order == ["exp", "sin", "sgd_update", "cos"]


def test_a_graph_without_updates_is_left_alone() -> None:
    b = Build()
    b.graph.outputs = [b.add("exp", b.input(3))]
    assert advance_updates(b.graph) is b.graph


def test_steps_of_descent_are_those_of_a_closed_form() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(6, 4)).astype("f"), rng.normal(size=(6, 2)).astype("f")
    first, second = (rng.normal(size=s).astype("f") for s in ((4, 5), (5, 2)))
    a, b = ty.Parameter(first), ty.Parameter(second)
    optimiser = ty.optimizer.SGD([a, b], lr=0.05)
    manager = ty.autodiff.GradManager().attach([a, b])

    @ty.jit.trace(symbolic=True)
    def step(x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
        with manager:
            loss = ((ty.functional.matmul(ty.functional.matmul(x, a), b) - y) ** 2).sum()
            manager.backward(loss)
        optimiser.step().clear_grad()
        return loss

    u, v = first.astype("d"), second.astype("d")
    for _ in range(3):
        loss = step(ty.tensor(x), ty.tensor(y))
        miss = x @ u @ v - y
        np.testing.assert_allclose(loss.numpy(), (miss**2).sum(), rtol=1e-5)
        u, v = u - 0.1 * x.T @ miss @ v.T, v - 0.1 * (x @ u).T @ miss
    np.testing.assert_allclose(a.numpy(), u, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(b.numpy(), v, rtol=1e-4, atol=1e-5)
