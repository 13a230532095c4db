"""Products that update a parameter against the product and the update of the same tier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import functional as F  # noqa: N812
from tianyuan import jit, native, registry
from tianyuan import module as M  # noqa: N812
from tianyuan.autodiff import GradManager
from tianyuan.kernel import Kernel
from tianyuan.ops.attrs import MatmulSgdUpdate, SgdUpdate
from tianyuan.ops.matmul import Matmul
from tianyuan.optimizer import SGD

OP = "matmul_sgd_update"
KERNELS = [k for k in registry.candidates(OP, "cpu", "x86") if k.is_native]
# m, n, k: whole tiles, broken ones, one row, one column, several blocks of columns, many rows.
SIZES = [(224, 96, 128), (61, 83, 30), (1, 70, 9), (70, 1, 9), (31, 2100, 20), (400, 40, 33)]


@pytest.fixture(scope="module", autouse=True)
def five_threads() -> Iterator[None]:
    before = native.get_num_threads()
    native.set_num_threads(5)
    yield
    native.set_num_threads(before)


def _named(op: str, name: str) -> Kernel:
    return next(k for k in registry.candidates(op, "cpu", "x86") if k.name == name)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_equals_the_product_and_the_update(
    kernel: Kernel, size: tuple[int, int, int], run: Any, call_of: Any
) -> None:
    m, n, k = size
    rng = np.random.default_rng(m * n)
    shapes = (k, m), (k, n), (m, n), (m, n)
    a, b, param, velocity = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    rate = np.array(0.1, np.float32)
    product = _named("matmul", f"matmul_f32__{kernel.isa}_tiled")
    step = _named("sgd_update", f"sgd_update_f32__{kernel.isa}_simd")
    for momentum, decay, nesterov in (
        (0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.01, False), (0.9, 0.01, True),
        (0.0, 0.01, False),
    ):  # fmt: skip
        moving = [velocity] if momentum else []
        call = call_of("matmul", (a, b), Matmul(True, False))
        grad = run(product, call, (a, b))[0]
        exact = a.astype(np.float64).T @ b
        if min(m, n) > 1:  # thin products have an order of their own
            np.testing.assert_allclose(grad, exact, atol=1e-4)
        apart = [param, grad, rate, *moving]
        call = call_of("sgd_update", apart, SgdUpdate(momentum, decay, nesterov))
        want = run(step, call, apart)
        attrs = MatmulSgdUpdate(True, False, momentum, decay, nesterov)
        arrays = [a, b, param, rate, *moving]
        for threads in (1, 2, 5):
            got = run(kernel, call_of(OP, arrays, attrs, threads), arrays)
            for x, y in zip(got, want, strict=True):
                if min(m, n) > 1:
                    np.testing.assert_array_equal(x, y, f"{attrs} on {threads} threads")
                else:
                    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_training_with_it_is_training_step_by_step() -> None:
    rng = np.random.default_rng(5)
    x = ty.Tensor(rng.standard_normal((24, 30)).astype(np.float32))
    y = ty.Tensor(rng.integers(0, 7, 24).astype(np.int32))
    weights = [rng.standard_normal(s).astype(np.float32) / 6 for s in ((40, 30), (7, 40))]

    def trained(traced: bool) -> tuple[list[np.ndarray], str]:
        net = M.Sequential(M.Linear(30, 40), M.ReLU(), M.Linear(40, 7))
        net[0].weight[...], net[2].weight[...] = map(ty.Tensor, weights)
        manager = GradManager().attach(net.parameters())
        optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)

        def body(x: Any, y: Any) -> Any:
            with manager:
                loss = F.nn.cross_entropy(net(x), y)
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        step: Any = jit.trace(symbolic=True)(body) if traced else body
        losses = [float(step(x, y).numpy()) for _ in range(6)]
        assert losses[-1] < losses[0]
        steps = str(step.explain()) if traced else ""
        return [p.numpy() for p in net.parameters()], steps

    (want, _), (got, steps) = trained(False), trained(True)
    assert OP in steps
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
