"""Functional gradients against finite differences, closed forms and PyTorch, eager and traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.autodiff import (
    Function,
    GradManager,
    detach,
    grad,
    hessian_vector_product,
    jvp,
    no_grad,
    stop_gradient,
    value_and_grad,
    vjp,
)
from tianyuan.errors import GradError
from tianyuan.jit import trace

rng = np.random.default_rng(3)


def wide(*shape: int) -> ty.Tensor:
    """Return a tensor in float64, so that finite differences tell."""
    return ty.Tensor(rng.standard_normal(shape), dtype="float64")


def differences(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Return the gradient by central differences."""
    found = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = 1e-5
        found[index] = (function(at + step) - function(at - step)) / 2e-5
    return found


def numeric(function: Callable[[ty.Tensor], ty.Tensor], at: ty.Tensor) -> np.ndarray:
    return differences(
        lambda array: float(function(ty.Tensor(array, dtype="float64")).item()), at.numpy()
    )


def smooth(x: ty.Tensor) -> ty.Tensor:
    return (F.exp(x * 0.5) * F.sin(x) + F.log(1 + x * x)).sum()


def test_value_and_gradient() -> None:
    x = wide(3, 2)
    value, slope = value_and_grad(smooth)(x)
    array = x.numpy()
    expected = (np.exp(array / 2) * np.sin(array) + np.log(1 + array**2)).sum()
    assert value.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), numeric(smooth, x), rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(grad(smooth)(x).numpy(), slope.numpy())
    assert x.grad is None


def test_derivatives_of_every_order() -> None:
    derivative, x = lambda x: x**5, ty.Tensor(1.5, dtype="float64")
    for order, factor in enumerate((5, 20, 60, 120, 120), start=1):
        derivative = grad(derivative)
        assert derivative(x).item() == pytest.approx(factor * 1.5 ** (5 - order), rel=1e-12)
    assert grad(derivative)(x).item() == 0


def test_argnums_and_keywords() -> None:
    def f(x: ty.Tensor, power: int, y: ty.Tensor, *, scale: float) -> ty.Tensor:
        return (x**power * y).sum() * scale

    x, y = ty.Tensor([2.0, 3.0]), ty.Tensor([5.0, 7.0])
    np.testing.assert_array_equal(grad(f)(x, 2, y, scale=10.0).numpy(), [200, 420])
    np.testing.assert_array_equal(grad(f, 2)(x, 2, y, scale=1.0).numpy(), [4, 9])
    dy, dx = grad(f, argnums=(-1, 0))(x, 2, y, scale=1.0)
    np.testing.assert_array_equal(dy.numpy(), [4, 9])
    np.testing.assert_array_equal(dx.numpy(), [20, 42])
    with pytest.raises(GradError, match="argnums do not fit, got 3 for 3"):
        grad(f, 3)(x, 2, y, scale=1.0)
    with pytest.raises(GradError, match="holds no tensor"):
        grad(f, 1)(x, 2, y, scale=1.0)


class Pair(NamedTuple):
    a: ty.Tensor
    b: list


def test_gradients_are_nested_like_arguments() -> None:
    def f(p: dict) -> ty.Tensor:
        return (p["pair"].a * p["pair"].b[0]).sum() + p["x"][0] ** 2

    slope = grad(f)({"pair": Pair(ty.Tensor([1.0, 2.0]), [ty.Tensor([3.0, 4.0])]), "x": (5.0,)})
    assert isinstance(slope["pair"], Pair)
    np.testing.assert_array_equal(slope["pair"].a.numpy(), [3, 4])
    np.testing.assert_array_equal(slope["pair"].b[0].numpy(), [1, 2])
    assert slope["x"][0].item() == 10


def test_aux_is_handed_through() -> None:
    def f(x: ty.Tensor) -> tuple[ty.Tensor, dict]:
        y = x * 3
        return (y * y).sum(), {"y": y, "name": "aux"}

    x = ty.Tensor([2.0])
    (value, aux), slope = value_and_grad(f, has_aux=True)(x)
    assert (value.item(), slope.item(), aux["y"].item(), aux["name"]) == (36, 36, 6, "aux")
    slope, aux = grad(f, has_aux=True)(x)
    assert (slope.item(), aux["y"].item()) == (36, 6)
    with pytest.raises(GradError, match="must return .output, aux."):
        grad(lambda x: x.sum(), has_aux=True)(x)


def test_what_a_function_ignores_has_gradient_zero() -> None:
    dx, dy = grad(lambda x, y: (x * 2).sum(), (0, 1))(ty.Tensor([1.0]), ty.Tensor([[1.0, 2.0]]))
    assert dx.numpy() == [2]
    np.testing.assert_array_equal(dy.numpy(), [[0, 0]])


def test_a_closure_is_no_argument() -> None:
    x = ty.Tensor([3.0])
    assert grad(lambda y: (x * y).sum())(x).item() == 3
    assert grad(lambda y: (x * x).sum())(x).item() == 0


@pytest.mark.parametrize(
    ("function", "argument", "match"),
    [
        (lambda x: x * 2, ty.Tensor([1.0, 2.0]), r"one element, got \(2\)|one element, got \(2,\)"),
        (lambda x: x.sum(), ty.Tensor([1, 2]), "not floating, got int32"),
        (lambda x: 3, ty.Tensor([1.0]), "the result: holds no tensor"),
        (lambda x: x.astype("int32").sum(), ty.Tensor([1.0]), "not floating, got int32"),
    ],
)
def test_faults(function: Callable, argument: ty.Tensor, match: str) -> None:
    with pytest.raises(GradError, match=match):
        grad(function)(argument)


def test_a_fault_inside_leaves_no_tape_open() -> None:
    def fails(x: ty.Tensor) -> ty.Tensor:
        raise RuntimeError("inside")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            grad(fails)(ty.Tensor([1.0]))
    from tianyuan.imperative.state import state

    assert state.tapes == []


def test_pullbacks() -> None:
    x, y = wide(2, 3), wide(3, 4)
    result, pull = vjp(lambda x, y: {"p": x @ y, "s": x.sum()}, x, y)
    seed = wide(2, 4)
    for scale in (1.0, 2.0):  # a pullback may be called again
        dx, dy = pull({"p": seed * scale, "s": ty.Tensor(5.0, dtype="float64")})
        np.testing.assert_allclose(dx.numpy(), scale * seed.numpy() @ y.numpy().T + 5, rtol=1e-12)
        np.testing.assert_allclose(dy.numpy(), scale * x.numpy().T @ seed.numpy(), rtol=1e-12)
    np.testing.assert_allclose(result["p"].numpy(), x.numpy() @ y.numpy(), rtol=1e-12)
    with pytest.raises(GradError, match="seeds do not fit"):
        pull({"p": seed})
    with pytest.raises(GradError, match="seeds do not fit"):
        pull({"p": x, "s": ty.Tensor(5.0, dtype="float64")})
    *_, aux = vjp(lambda x: (x, "aux"), x, has_aux=True)
    assert aux == "aux"


def test_directional_derivatives() -> None:
    x, y, u, v = wide(2, 3), wide(3), wide(2, 3), wide(3)

    def f(x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
        return F.tanh(x @ F.expand_dims(y * y, 1)) * F.exp(y[0])

    result, moved = jvp(f, (x, y), (u, v))
    at = [f(x + u * e, y + v * e).numpy() for e in (1e-6, -1e-6)]
    np.testing.assert_allclose(moved.numpy(), (at[0] - at[1]) / 2e-6, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(result.numpy(), f(x, y).numpy())
    with pytest.raises(GradError, match="seeds do not fit"):
        jvp(f, (x, y), (u, u))


def test_directional_derivative_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x, u = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    _, expected = torch.autograd.functional.jvp(
        lambda x: torch.softmax(x, 1) * torch.sin(x), torch.tensor(x), torch.tensor(u)
    )
    _, moved = jvp(
        lambda x: F.softmax(x, 1) * F.sin(x),
        [ty.Tensor(x, dtype="float64")],
        [ty.Tensor(u, dtype="float64")],
    )
    np.testing.assert_allclose(moved.numpy(), expected.numpy(), rtol=1e-10)


def quartic(x: ty.Tensor) -> ty.Tensor:
    return ((x @ x.transpose()) ** 2).sum() + F.sin(x).sum()


@pytest.mark.parametrize("traced", [False, True])
def test_hessian_vector_product(traced: bool) -> None:
    x, v = wide(2, 3), wide(2, 3)

    def product(x: ty.Tensor, v: ty.Tensor) -> ty.Tensor:
        return hessian_vector_product(quartic, [x], [v])[0]

    found = (trace(product, opt_level=0) if traced else product)(x, v).numpy()
    slope = grad(quartic)
    ahead, behind = slope(x + v * 1e-5).numpy(), slope(x - v * 1e-5).numpy()
    np.testing.assert_allclose(found, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-6)
    torch = pytest.importorskip("torch")
    _, expected = torch.autograd.functional.hvp(
        lambda x: ((x @ x.T) ** 2).sum() + torch.sin(x).sum(),
        torch.tensor(x.numpy()),
        torch.tensor(v.numpy()),
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9)


def test_hessian_vector_product_of_two_arguments() -> None:
    a, b, u, v = wide(3), wide(3), wide(3), wide(3)
    du, dv = hessian_vector_product(lambda a, b: (a * a * b).sum(), [a, b], [u, v])
    a, b, u, v = (t.numpy() for t in (a, b, u, v))
    np.testing.assert_allclose(du.numpy(), 2 * b * u + 2 * a * v, rtol=1e-12)
    np.testing.assert_allclose(dv.numpy(), 2 * a * u, rtol=1e-12)


# The three patterns of docs/gradients.md.


def critic(weights: dict, x: ty.Tensor) -> ty.Tensor:
    hidden = F.tanh(F.linear(x, weights["w1"], weights["b1"]))
    return F.linear(hidden, weights["w2"])


def penalty(weights: dict, x: ty.Tensor) -> ty.Tensor:
    slope = grad(lambda x: critic(weights, x).sum())(x)
    norm = F.sqrt((slope * slope).sum(axis=1))
    return ((norm - 1) ** 2).mean()


def critic_weights() -> dict:
    return {"w1": wide(5, 3), "b1": wide(5), "w2": wide(1, 5)}


@pytest.mark.parametrize("traced", [False, True])
def test_gradient_penalty(traced: bool) -> None:
    weights, x = critic_weights(), wide(4, 3)
    step = value_and_grad(penalty)
    value, slope = (trace(step, opt_level=0) if traced else step)(weights, x)
    for name, weight in weights.items():
        expected = numeric(lambda w, name=name: penalty({**weights, name: w}, x), weight)
        np.testing.assert_allclose(slope[name].numpy(), expected, rtol=1e-6, atol=1e-8)
    torch = pytest.importorskip("torch")
    there = {k: torch.tensor(v.numpy(), requires_grad=True) for k, v in weights.items()}
    tx = torch.tensor(x.numpy(), requires_grad=True)
    score = torch.tanh(tx @ there["w1"].T + there["b1"]) @ there["w2"].T
    (inner,) = torch.autograd.grad(score.sum(), tx, create_graph=True)
    loss = ((inner.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    assert value.item() == pytest.approx(loss.item(), rel=1e-10)
    for name, tensor in there.items():
        np.testing.assert_allclose(slope[name].numpy(), tensor.grad.numpy(), rtol=1e-8, atol=1e-12)


class Critic(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(1, 2, 3, padding=1)
        self.fc = M.Linear(2 * 16, 1)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return self.fc(F.flatten(F.sigmoid(self.conv(x)), 1))


@pytest.mark.parametrize("traced", [False, True])
def test_gradient_penalty_of_a_module_by_nested_managers(traced: bool) -> None:
    net, images = Critic(), rng.standard_normal((2, 1, 4, 4)).astype("f")
    outer = GradManager().attach(net.parameters())

    def step(x: ty.Tensor) -> ty.Tensor:
        inner = GradManager()
        with outer:
            with inner:
                inner.attach(x)
                inner.backward(net(x).sum())
            slope = F.flatten(x.grad, 1)
            loss = ((F.sqrt((slope * slope).sum(axis=1)) - 1) ** 2).mean()
            outer.backward(loss)
        x.grad = None
        return loss

    loss = (trace(step) if traced else step)(ty.Tensor(images))
    torch = pytest.importorskip("torch")
    weights = [torch.tensor(p.numpy(), requires_grad=True) for p in net.parameters()]
    names = [name for name, _ in net.named_parameters()]
    there = dict(zip(names, weights, strict=True))
    x = torch.tensor(images, requires_grad=True)
    y = torch.conv2d(x, there["conv.weight"], there["conv.bias"].reshape(-1), padding=1)
    y = torch.sigmoid(y).flatten(1) @ there["fc.weight"].T + there["fc.bias"]
    (inner,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    expected = ((inner.flatten(1).norm(dim=1) - 1) ** 2).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for name, parameter in net.named_parameters():
        theirs = there[name].grad
        if parameter.grad is None or theirs is None:  # the last bias has no part in it
            assert name == "fc.bias"
            continue
        np.testing.assert_allclose(
            parameter.grad.numpy().reshape(theirs.shape), theirs.numpy(), rtol=2e-3, atol=2e-5
        )


def adapted_loss(weights: dict, task: tuple, rate: float) -> ty.Tensor:
    def loss(weights: dict, x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
        return ((F.linear(F.tanh(F.linear(x, weights["a"])), weights["b"]) - y) ** 2).mean()

    x, y, x_new, y_new = task
    slope = grad(loss)(weights, x, y)
    moved = {name: weights[name] - slope[name] * rate for name in weights}
    return loss(moved, x_new, y_new)


@pytest.mark.parametrize("traced", [False, True])
def test_inner_step_of_maml(traced: bool) -> None:
    weights = {"a": wide(4, 2), "b": wide(1, 4)}
    task = (wide(3, 2), wide(3, 1), wide(3, 2), wide(3, 1))

    def step(weights: dict, task: tuple) -> dict:
        return grad(lambda w: adapted_loss(w, task, 0.1))(weights)

    slope = (trace(step, opt_level=0) if traced else step)(weights, task)
    for name, weight in weights.items():
        expected = numeric(
            lambda w, name=name: adapted_loss({**weights, name: w}, task, 0.1), weight
        )
        np.testing.assert_allclose(slope[name].numpy(), expected, rtol=1e-6, atol=1e-8)
    torch = pytest.importorskip("torch")
    a, b = (torch.tensor(weights[k].numpy(), requires_grad=True) for k in "ab")
    x, y, x_new, y_new = (torch.tensor(t.numpy()) for t in task)
    loss = ((torch.tanh(x @ a.T) @ b.T - y) ** 2).mean()
    da, db = torch.autograd.grad(loss, (a, b), create_graph=True)
    after = ((torch.tanh(x_new @ (a - 0.1 * da).T) @ (b - 0.1 * db).T - y_new) ** 2).mean()
    after.backward()
    np.testing.assert_allclose(slope["a"].numpy(), a.grad.numpy(), rtol=1e-9)
    np.testing.assert_allclose(slope["b"].numpy(), b.grad.numpy(), rtol=1e-9)


# What stops gradients, and mixtures.


def test_stopping_gradients() -> None:
    x = ty.Tensor(3.0)
    assert grad(lambda x: x * stop_gradient({"x": x})["x"])(x).item() == 3
    assert detach is stop_gradient

    def f(x: ty.Tensor) -> ty.Tensor:
        with no_grad():
            weight = x * x
        return weight * x

    assert grad(f)(x).item() == 9
    frozen = no_grad()(lambda x: x * x)
    assert grad(lambda x: frozen(x) + x)(x).item() == 1
    p = ty.Parameter([2.0])
    gm = GradManager().attach(p)
    with gm:
        with no_grad():
            held = p * 5
        gm.backward((held * p).sum())
    assert p.grad.numpy() == [10]


def test_transforms_inside_a_manager_and_the_other_way_round() -> None:
    p = ty.Parameter([2.0, 3.0])
    gm = GradManager().attach(p)
    with gm:
        slope = grad(lambda x: (x**3).sum())(p)
        gm.backward((slope * slope).sum())  # d/dx (3x^2)^2 = 36 x^3
    np.testing.assert_allclose(p.grad.numpy(), 36 * np.array([2.0, 3.0]) ** 3, rtol=1e-6)

    def by_manager(x: ty.Tensor) -> ty.Tensor:
        inner = GradManager().attach(x)
        with inner:
            inner.backward((x**3).sum())
        return x.grad.sum()

    np.testing.assert_allclose(grad(by_manager)(ty.Tensor([2.0, 3.0])).numpy(), [12, 18])


def test_user_defined_functions_inside_transforms() -> None:
    class Scaled(Function):
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return x * x

        def backward(self, dy: ty.Tensor) -> ty.Tensor:
            return dy * 100

    assert grad(lambda x: Scaled()(x).sum())(ty.Tensor([3.0])).numpy() == [100]


def test_a_traced_function_inside_a_transform() -> None:
    square = trace(lambda x: (x * x).sum())
    square(ty.Tensor([1.0]))
    assert grad(square)(ty.Tensor([3.0])).numpy() == [6]


def test_a_traced_gradient_serves_every_size() -> None:
    step = trace(grad(lambda x: (x**3).sum()), dynamic_shapes={"x": {0: "n"}})
    for size in (2, 5, 1, 7):
        x = np.arange(1, size + 1, dtype="f")
        np.testing.assert_allclose(step(ty.Tensor(x)).numpy(), 3 * x**2, rtol=1e-6)
