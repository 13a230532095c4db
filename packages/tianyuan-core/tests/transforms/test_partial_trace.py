"""A traced part of an eager model gives the values and gradients of its body."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan import random
from tianyuan.autodiff import GradManager, grad
from tianyuan.errors import GradError, TraceError
from tianyuan.jit import exclude_from_trace, partial_trace, trace

rng = np.random.default_rng(5)


class Block(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(2, 4, 3, padding=1)
        self.bn = M.BatchNorm2d(4)
        self.drop = M.Dropout(0.3)
        self.fc = M.Linear(4, 3)

    def forward(self, x: ty.Tensor) -> dict:
        y = self.drop(F.relu(self.bn(self.conv(x))))
        return {"logits": self.fc(F.mean(y, axis=(2, 3))), "argmax": F.argmax(y, axis=1)}


def filled(net: M.Module) -> M.Module:
    for index, parameter in enumerate(net.parameters()):
        values = np.random.default_rng(index).standard_normal(parameter.shape) * 0.4
        parameter[...] = ty.Tensor(values)
    return net


def train(wrap: Callable[[Callable], Callable], steps: int = 4) -> tuple[list, list]:
    random.seed(11)
    net = filled(Block())
    body = wrap(net.forward)
    opt, gm = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), GradManager()
    gm.attach(net.parameters())
    generator, losses = np.random.default_rng(0), []
    for _ in range(steps):
        opt.clear_grad()
        x = ty.Tensor(generator.standard_normal((4, 2, 5, 5)).astype("f"))
        with gm:
            found = body(x)
            loss = F.nn.cross_entropy(found["logits"] * 2, ty.Tensor([0, 1, 2, 1]))
            gm.backward(loss)
        opt.step()
        losses.append(loss.item())
        assert found["argmax"].dtype == np.int32
    return losses, [t.numpy() for t in net.tensors()]


def test_training_is_bit_equal_to_eager() -> None:
    eager = train(lambda body: body)
    traced = train(lambda body: partial_trace(body, opt_level=0))
    assert traced[0] == eager[0]
    for mine, theirs in zip(traced[1], eager[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_training_with_passes_is_near() -> None:
    eager, traced = train(lambda body: body), train(partial_trace)
    np.testing.assert_allclose(traced[0], eager[0], rtol=1e-4)
    for mine, theirs in zip(traced[1], eager[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_the_body_runs_once_and_programs_do_the_rest() -> None:
    runs: list[int] = []

    @partial_trace
    def body(x: ty.Tensor, w: ty.Tensor) -> ty.Tensor:
        runs.append(1)
        return F.exp(x * w)

    w = ty.Parameter([2.0, 3.0])
    for value in (0.5, 0.25, -1.0):
        gm = GradManager().attach(w)
        with gm:
            gm.backward(body(ty.Tensor([value, value]), w).sum())
        expected = value * np.exp(value * w.numpy())
        np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-6)
        w.grad = None
    assert len(runs) == 1


def test_gradients_reach_arguments_captured_tensors_and_what_made_them() -> None:
    p, q = ty.Parameter([1.0, 2.0]), ty.Parameter([3.0, 4.0])
    body = partial_trace(lambda x: (x * q, x + q))
    gm = GradManager().attach([p, q])
    with gm:
        product, total = body(p * 10)
        gm.backward([product, total], [ty.Tensor([1.0, 1.0]), ty.Tensor([0.0, 100.0])])
    np.testing.assert_array_equal(product.numpy(), [30, 80])
    np.testing.assert_array_equal(p.grad.numpy(), [30, 10 * (4 + 100)])
    np.testing.assert_array_equal(q.grad.numpy(), [10, 20 + 100])


def test_a_result_without_gradient_counts_as_zero() -> None:
    p = ty.Parameter([3.0])
    body = partial_trace(lambda x: (x * x, x * 5))
    gm = GradManager().attach(p)
    with gm:
        used, _ = body(p)
        gm.backward(used)
    assert p.grad.numpy() == [6]


def test_attachment_is_part_of_the_key() -> None:
    p, q = ty.Parameter([2.0]), ty.Parameter([5.0])
    body = partial_trace(lambda: p * q)
    cases = (([p], (5, None)), ([q], (None, 2)), ([p, q], (5, 2)), ([p], (5, None)))
    for attached, expected in cases:
        gm = GradManager().attach(attached)
        with gm:
            gm.backward(body())
        for tensor, value in zip((p, q), expected, strict=True):
            assert (tensor.grad is None) if value is None else (tensor.grad.item() == value)
            tensor.grad = None


def test_what_backward_reads_is_what_forward_saw() -> None:
    p, state = ty.Parameter([2.0]), ty.Tensor([3.0])

    def body(x: ty.Tensor) -> ty.Tensor:
        y = x * state
        state[...] = state + 1
        return y

    traced = partial_trace(body)
    for seen in (3.0, 4.0, 5.0):
        gm = GradManager().attach(p)
        with gm:
            y = traced(p)
            state[...] = state * 1  # a later write does not reach what was read
            gm.backward(y)
        assert p.grad.item() == seen
        assert y.item() == 2 * seen
        assert state.item() == seen + 1
        p.grad = None


def test_without_a_manager_and_inside_a_trace() -> None:
    body = partial_trace(lambda x: x * x)
    assert body(ty.Tensor(3.0)).item() == 9
    assert trace(lambda x: body(x) + 1)(ty.Tensor(3.0)).item() == 10


def test_higher_derivatives_run_the_body() -> None:
    body = partial_trace(lambda x: x**3)
    assert grad(grad(body))(ty.Tensor(2.0)).item() == 12
    p, inner, outer = ty.Parameter([2.0]), GradManager(), GradManager()
    inner.attach(p)
    with inner:
        y = body(p)
        outer.attach(p)
        with outer, pytest.raises(GradError, match="cannot be differentiated again"):
            inner.backward(y)


def test_what_two_programs_cannot_hold_runs_in_python() -> None:
    @partial_trace
    def body(x: ty.Tensor) -> ty.Tensor:
        with exclude_from_trace():
            scale = 2.0 if x.item() > 0 else 3.0
        return x * scale

    @partial_trace
    def changes(x: ty.Tensor) -> ty.Tensor:
        y = x * 1
        x[...] = x * 2
        return y

    for value, expected in ((1.0, 2.0), (-1.0, 3.0)):
        p = ty.Parameter([value])
        gm = GradManager().attach(p)
        with gm:
            gm.backward(body(p))
        assert p.grad.item() == expected
    p = ty.Parameter([1.0])
    gm = GradManager().attach(p)
    with gm:
        gm.backward(changes(p))
    assert (p.item(), p.grad.item()) == (2, 1)


def test_options_and_backends() -> None:
    body = partial_trace(opt_level=0, profiling=True)(lambda x: x + 1)
    assert body(ty.Tensor(1.0)).item() == 2
    assert [step["op"] for step in body.get_profile()["steps"]][-1] == "add"
    with pytest.raises(TraceError, match="backend cannot be had, got 'xla'"):
        partial_trace(lambda x: x, backend="xla")


def test_callbacks_see_the_gradients() -> None:
    p, seen = ty.Parameter([3.0]), []

    def callback(tensor: ty.Tensor, gradient: ty.Tensor) -> ty.Tensor:
        seen.append(gradient.item())
        return gradient * 10

    gm = GradManager().attach(p, callbacks=callback)
    with gm:
        gm.backward(partial_trace(lambda x: x * x)(p))
    assert (seen, p.grad.item()) == ([6.0], 60.0)


class Scaled(M.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = ty.Parameter([scale])

    @partial_trace
    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return x * self.scale


def test_methods_belong_to_their_instances() -> None:
    nets = [Scaled(2.0), Scaled(3.0)]
    for net in (*nets, copy.deepcopy(nets[1])):
        gm = GradManager().attach(net.parameters())
        with gm:
            y = net(ty.Tensor([5.0]))
            gm.backward(y)
        assert y.item() == 5 * net.scale.item()
        assert net.scale.grad.item() == 5
    assert [net(ty.Tensor([1.0])).item() for net in nets] == [2, 3]
