"""Rematerialisation: less memory, not a bit of difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import device, dtr, random
from tianyuan.autodiff import Function, GradManager, grad, hessian_vector_product, vjp
from tianyuan.errors import AttrError, GradError
from tianyuan.jit import partial_trace, trace

MB = 1 << 20


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    dtr.disable()
    dtr.eviction_threshold, dtr.evictee_minimum_size = 0, MB
    dtr.enable_sqrt_sampling = False


def limit(threshold: int | str, least: int | str = 0) -> None:
    dtr.eviction_threshold, dtr.evictee_minimum_size = threshold, least
    dtr.enable()


def deep(x: ty.Tensor, layers: int = 40) -> ty.Tensor:
    for _ in range(layers):
        x = F.sin(x) * 1.01
    return (x * x).mean()


def measured(run: Callable[[], object]) -> tuple[object, int]:
    """Return a result, and the most bytes that tensors held beyond those at the start."""
    device.reset_max_memory_stats()
    start = device.get_allocated_memory()
    found = run()
    return found, device.get_max_allocated_memory() - start


def slope_of(function: Callable[[ty.Tensor], ty.Tensor], array: np.ndarray) -> Callable:
    def run() -> tuple[np.ndarray, np.ndarray]:
        p = ty.Parameter(array)
        gm = GradManager().attach(p)
        with gm:
            y = function(p)
            gm.backward(y)
        return y.numpy(), p.grad.numpy()

    return run


@pytest.mark.parametrize("sample", [False, True])
def test_a_deep_chain_in_a_fraction_of_the_memory(sample: bool) -> None:
    array = np.random.default_rng(0).standard_normal(MB // 4).astype("f")  # 1 MiB a value
    (y, slope), usual = measured(slope_of(deep, array))
    limit("12MB")
    dtr.enable_sqrt_sampling = sample
    base = device.get_allocated_memory()
    dtr.eviction_threshold = base + 12 * MB
    (y_less, slope_less), less = measured(slope_of(deep, array))
    assert usual > 80 * MB
    assert less < 18 * MB
    np.testing.assert_array_equal(y_less, y)
    np.testing.assert_array_equal(slope_less, slope)


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = [M.Conv2d(3, 3, 3, padding=1) for _ in range(6)]
        self.norms = [M.BatchNorm2d(3) for _ in range(6)]
        self.drop = M.Dropout(0.2)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.drop(F.relu(norm(conv(x))))
        return (x * x).mean()


def train(threshold: int | None) -> list[np.ndarray]:
    random.seed(3)
    net = Net()
    for index, parameter in enumerate(net.parameters()):
        values = np.random.default_rng(index).standard_normal(parameter.shape)
        parameter[...] = ty.Tensor(values * 0.3)
    if threshold is not None:
        limit(threshold)
    gm = GradManager().attach(net.parameters())
    x = ty.Tensor(np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("f"))
    for _ in range(2):
        with gm:
            gm.backward(net(x))
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter[...] = parameter - parameter.grad * 0.1
    return [t.numpy() for t in net.tensors()]


@pytest.mark.parametrize("threshold", [1, 20_000, 60_000])
def test_a_network_with_dropout_and_running_statistics(threshold: int) -> None:
    usual, less = train(None), train(threshold)
    for mine, theirs in zip(less, usual, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_the_user_holds_stays() -> None:
    limit(1)
    p, held = ty.Parameter(np.ones(1000, "f")), []
    gm = GradManager().attach(p)
    with gm:
        x = p
        for _ in range(5):
            x = F.exp(x * 0.1)
            held.append(x)
        gm.backward(sum(h.sum() for h in held))
    expected = [1.0]
    for _ in range(5):
        expected.append(np.exp(expected[-1] * 0.1))
    for tensor, value in zip(held, expected[1:], strict=True):
        np.testing.assert_allclose(tensor.numpy(), value, rtol=1e-6)
    d, total = 1.0, 0.0
    for value in expected[1:]:
        d *= 0.1 * value
        total += d
    np.testing.assert_allclose(p.grad.numpy(), total, rtol=1e-5)


def test_a_tensor_attached_in_between_gets_its_gradient_too() -> None:
    limit(1)
    p = ty.Parameter(np.full(100, 2.0, "f"))
    gm = GradManager().attach(p)
    with gm:
        y = p * p
        gm.attach(y)
        gm.backward((F.exp(y * 0.1) * 3).sum())
    np.testing.assert_allclose(y.grad.numpy(), 0.3 * np.exp(0.4), rtol=1e-6)
    np.testing.assert_allclose(p.grad.numpy(), 1.2 * np.exp(0.4), rtol=1e-6)


def test_user_defined_gradients_and_repeated_pullbacks() -> None:
    class Twice(Function):
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            self.x = x
            return x * 2

        def backward(self, dy: ty.Tensor) -> ty.Tensor:
            return dy * 2 + self.x * 0

    limit(1)
    x = ty.Tensor(np.full(10, 0.5, "f"))
    _, pull = vjp(lambda x: F.sin(Twice()(F.sin(x * 3))).sum(), x)
    inner = np.sin(1.5)
    expected = np.cos(2 * inner) * 2 * np.cos(1.5) * 3
    for scale in (1.0, 2.0):
        np.testing.assert_allclose(pull(ty.Tensor(scale))[0].numpy(), expected * scale, rtol=1e-5)


def test_higher_derivatives_are_right() -> None:
    x = ty.Tensor(np.linspace(0.1, 1, 50), dtype="float64")
    function = lambda x: (F.sin(x) * F.exp(x)).sum()  # noqa: E731
    v = ty.Tensor(np.ones(50), dtype="float64")
    usual = hessian_vector_product(function, [x], [v])[0].numpy()
    limit(1)
    np.testing.assert_array_equal(hessian_vector_product(function, [x], [v])[0].numpy(), usual)
    np.testing.assert_allclose(usual, 2 * np.cos(x.numpy()) * np.exp(x.numpy()), rtol=1e-12)
    assert grad(grad(grad(lambda x: x**4)))(ty.Tensor(2.0)).item() == 48


def test_a_trace_keeps_its_own_plan() -> None:
    limit(1)
    step = trace(grad(lambda x: (x**3).sum()))
    np.testing.assert_allclose(step(ty.Tensor([2.0, 3.0])).numpy(), [12, 27])


def test_it_cannot_end_while_a_manager_records() -> None:
    limit(1)
    p = ty.Parameter([3.0])
    gm = GradManager().attach(p)
    with gm:
        y = p * p
        with pytest.raises(GradError, match="a manager is recording"):
            dtr.disable()
        gm.backward(y)
    assert p.grad.numpy() == [6]
    dtr.disable()


def test_a_partly_traced_network() -> None:
    limit(1)
    p = ty.Parameter(np.full(100, 0.5, "f"))
    gm = GradManager().attach(p)
    block = partial_trace(lambda x: F.sin(x) * 2)
    with gm:
        gm.backward(F.exp(block(F.square(p))).sum())
    square = 0.25
    expected = np.exp(2 * np.sin(square)) * 2 * np.cos(square) * 2 * 0.5
    np.testing.assert_allclose(p.grad.numpy(), expected, rtol=1e-5)


def test_limits_check_what_they_are_given() -> None:
    dtr.eviction_threshold = "1.5 GB"
    assert dtr.eviction_threshold == 3 << 29
    dtr.evictee_minimum_size = "2k"
    assert dtr.evictee_minimum_size == 2048
    for name in ("eviction_threshold", "evictee_minimum_size"):
        for wrong in ("5 TB", -1, True, None):
            with pytest.raises(AttrError, match=f"dtr: {name} is wrong"):
                setattr(dtr, name, wrong)
    with pytest.raises(AttrError, match="enable_sqrt_sampling is wrong"):
        dtr.enable_sqrt_sampling = 1  # type: ignore[assignment]
    assert dtr.enable_sqrt_sampling is False
