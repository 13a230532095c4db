"""Gradients by tape: closed forms, higher orders, callbacks, user-defined functions."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.autodiff import Function, GradManager
from tianyuan.errors import GradError


@pytest.fixture
def x() -> ty.Parameter:
    return ty.Parameter(np.array([0.5, -1.0, 2.0], np.float32))


def test_gradient_of_a_polynomial(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    with gm:
        gm.backward((x * x * x - 2 * x).sum())
    np.testing.assert_allclose(x.grad.numpy(), 3 * x.numpy() ** 2 - 2, rtol=1e-6)


def test_given_output_gradients_weigh_the_outputs(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    weights = np.array([1.0, 2.0, 3.0], np.float32)
    with gm:
        gm.backward([x * 2, F.exp(x)], [ty.Tensor(weights), ty.Tensor(weights)])
    np.testing.assert_allclose(x.grad.numpy(), weights * (2 + np.exp(x.numpy())), rtol=1e-6)


def test_gradients_add_up_until_cleared(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    for _ in range(3):
        with gm:
            gm.backward(x * 2)
    np.testing.assert_allclose(x.grad.numpy(), [6, 6, 6])


def test_an_input_used_twice_gets_the_sum(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x * x + x)
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy() + 1, rtol=1e-6)


def test_broadcast_operands_get_gradients_of_their_own_shape() -> None:
    a = ty.Parameter(np.ones((2, 3), np.float32))
    b = ty.Parameter(np.arange(3, dtype=np.float32))
    gm = GradManager().attach([a, b])
    with gm:
        gm.backward(a * b)
    np.testing.assert_allclose(a.grad.numpy(), np.tile(np.arange(3), (2, 1)))
    np.testing.assert_allclose(b.grad.numpy(), [2, 2, 2])


def test_second_derivative_by_nested_managers(x: ty.Parameter) -> None:
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(F.sin(x) * x)
        first = x.grad
        x.grad = None
        outer.backward(first)
    value = x.numpy()
    expected = 2 * np.cos(value) - value * np.sin(value)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)


def test_third_derivative(x: ty.Parameter) -> None:
    managers = [GradManager().attach(x) for _ in range(3)]
    for manager in managers:
        manager.record()
    y = x * x * x * x
    for manager in reversed(managers):
        x.grad = None
        manager.backward(y)
        y = x.grad
    np.testing.assert_allclose(y.numpy(), 24 * x.numpy(), rtol=1e-5)


def test_callbacks_run_in_turn(x: ty.Parameter) -> None:
    seen = []

    def double(tensor: ty.Tensor, grad: ty.Tensor) -> ty.Tensor:
        seen.append(tensor is x)
        return grad * 2

    gm = GradManager().attach(x, callbacks=[double, double])
    with gm:
        gm.backward(x * 3)
    np.testing.assert_allclose(x.grad.numpy(), [12, 12, 12])
    assert seen == [True, True]


def test_detach_stops_the_gradient(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x.detach() * x)
    np.testing.assert_allclose(x.grad.numpy(), x.numpy())


def test_rebinding_in_place_keeps_the_gradient_of_what_was_read(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    old = x.numpy()
    with gm:
        y = x * x
        x += 1
        gm.backward(y)
    np.testing.assert_allclose(x.grad.numpy(), 2 * old)


def test_gradient_flows_through_item_assignment() -> None:
    x, v = ty.Parameter(np.ones(4, np.float32)), ty.Parameter(np.float32(3))
    gm = GradManager().attach([x, v])
    with gm:
        y = x * 2
        y[1:3] = v
        gm.backward((y * ty.Tensor([1.0, 2.0, 3.0, 4.0])).sum())
    np.testing.assert_allclose(x.grad.numpy(), [2, 0, 0, 8])
    np.testing.assert_allclose(v.grad.numpy(), 5)


def test_groups_run_together() -> None:
    a, b = ty.Parameter(np.float32(2)), ty.Parameter(np.float32(3))
    first, second = GradManager().attach(a), GradManager().attach(b)
    with first | second as group:
        group.backward(a * b)
    assert (a.grad.item(), b.grad.item()) == (3, 2)


class Clamp(Function):
    """Passes the gradient straight through a clamp."""

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return F.clip(x, 0, 1)

    def backward(self, grad: ty.Tensor) -> ty.Tensor:
        return grad * 10


def test_user_defined_gradient(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    with gm:
        y = Clamp()(x)
        gm.backward(y)
    np.testing.assert_allclose(y.numpy(), np.clip(x.numpy(), 0, 1))
    np.testing.assert_allclose(x.grad.numpy(), [10, 10, 10])


def test_a_function_that_returns_its_input_keeps_the_two_apart(x: ty.Parameter) -> None:
    class Scaled(Function):
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return x

        def backward(self, grad: ty.Tensor) -> ty.Tensor:
            return grad * 5

    gm = GradManager().attach(x)
    with gm:
        gm.backward(Scaled()(x))
    np.testing.assert_allclose(x.grad.numpy(), [5, 5, 5])


def test_second_derivative_through_a_function_that_saves_its_output(x: ty.Parameter) -> None:
    class Sigmoid(Function):
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            self.y = 1 / (1 + F.exp(-x))
            return self.y

        def backward(self, grad: ty.Tensor) -> ty.Tensor:
            return grad * self.y * (1 - self.y)

    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward((x * Sigmoid()(x)).sum())
        first = x.grad
        x.grad = None
        outer.backward(first.sum())
    s = 1 / (1 + np.exp(-x.numpy()))
    slope, curve = s * (1 - s), s * (1 - s) * (1 - 2 * s)
    np.testing.assert_allclose(x.grad.numpy(), 2 * slope + x.numpy() * curve, rtol=1e-4)


def test_faults_name_what_is_wrong(x: ty.Parameter) -> None:
    gm = GradManager().attach(x)
    with pytest.raises(GradError, match="not recording"):
        gm.backward(x)
    with gm, pytest.raises(GradError, match="does not depend"):
        gm.backward(ty.Tensor([1.0]) * 2)
    with gm, pytest.raises(GradError, match=r"got \(2,\), expected \(3,\)"):
        gm.backward(x * 2, ty.Tensor([1.0, 2.0]))
    with gm, pytest.raises(GradError, match="recording already"):
        gm.record()
    function = Clamp()
    function(x)
    with pytest.raises(GradError, match="one call"):
        function(x)
    with pytest.raises(GradError, match="only tensors"):
        gm.attach([1.0])  # type: ignore[list-item]
    with pytest.raises(AttributeError, match="GradManager"):
        x.requires_grad = True


def test_scalars_of_operators_are_not_the_tensor_of_the_same_value() -> None:
    for scalar in (F.full_like(ty.Tensor(1.0), 3.0), ty.Tensor(1.0).full((), 3.0)):
        manager = GradManager().attach([scalar])
        with manager:
            manager.backward((ty.Tensor([1.0, 2.0]) * 3.0).sum() + scalar * 5.0)
        assert scalar.grad is not None
        assert scalar.grad.item() == 5.0


def test_a_gradient_of_another_float_dtype_becomes_its_inputs() -> None:
    class Wide(Function):
        """Compute in float32, whatever comes in."""

        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return x.astype("float32") * 2

        def backward(self, dy: ty.Tensor) -> ty.Tensor:
            return dy * 2

    w, x = ty.Parameter(np.eye(3, dtype=np.float32)), np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    gm = GradManager().attach(w)
    with gm:
        with ty.amp.autocast():
            y = F.matmul(ty.Tensor(x), w)
        gm.backward(Wide()(y).sum())
    assert y.dtype == np.float16
    assert w.grad.dtype == np.float32
    np.testing.assert_array_equal(w.grad.numpy(), 2 * x.sum(axis=0)[:, None] * np.ones((1, 3)))


def test_a_target_given_twice_has_the_sum_of_its_seeds(x: ty.Parameter) -> None:
    with GradManager().attach([x]) as manager:
        y = x * x
        manager.backward([y, y], [ty.Tensor(np.ones(x.shape)), ty.Tensor(np.full(x.shape, 2.0))])
    np.testing.assert_allclose(x.grad.numpy(), 3 * 2 * x.numpy())


def test_an_input_of_a_composed_op_that_is_given_twice_has_one_sum() -> None:
    """Weight and bias are one tensor: y = norm(x) * t + t."""
    rng = np.random.default_rng(2)
    images, t = ty.Tensor(rng.standard_normal((3, 4, 5, 5))), ty.Parameter(np.arange(4.0))
    with GradManager().attach([t]) as manager:
        manager.backward(F.nn.group_norm(images, 2, True, t, t, 1e-5).sum())
    groups = images.numpy().reshape(3, 2, 2, 5, 5)
    centred = groups - groups.mean(axis=(2, 3, 4), keepdims=True)
    scaled = centred / np.sqrt(groups.var(axis=(2, 3, 4), keepdims=True) + 1e-5)
    want = scaled.reshape(3, 4, 5, 5).sum(axis=(0, 2, 3)) + 3 * 5 * 5
    np.testing.assert_allclose(t.grad.numpy(), want, rtol=1e-5, atol=1e-4)
