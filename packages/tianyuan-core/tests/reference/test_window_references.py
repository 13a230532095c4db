"""References of products, convolutions, poolings and norms agree with PyTorch or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tianyuan  # noqa: F401 - registers the ops
from tianyuan.ops.reference import evaluate
from tianyuan.registry import get_op

torch = pytest.importorskip("torch")
TF = torch.nn.functional


def _run(name: str, *arrays: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
    op = get_op(name)
    return evaluate(op, arrays, op.attrs(**attrs))


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def _leaf(array: np.ndarray) -> Any:
    return torch.tensor(array, requires_grad=True)


def _close(got: np.ndarray, want: Any) -> None:
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batches", [((), ()), ((2, 1), (3,))])
def test_matmul_is_numpys(transpose_a: bool, transpose_b: bool, batches: Any) -> None:
    a = _random(*batches[0], *((4, 3) if transpose_a else (3, 4)))
    b = _random(*batches[1], *((5, 4) if transpose_b else (4, 5)))
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    (got,) = _run("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    np.testing.assert_allclose(got, left @ right, rtol=1e-12)


def test_integer_matmul_wraps() -> None:
    a = np.array([[100, 100]], np.int8)
    b = np.array([[2], [3]], np.int8)
    (got,) = _run("matmul", a, b, transpose_a=False, transpose_b=False)
    assert got.dtype == np.int8
    assert got.item() == (100 * 2 + 100 * 3 + 128) % 256 - 128


CONVS = [
    ((1, 1), (0, 0), (1, 1), 1, (3, 3)),
    ((2, 1), (1, 2), (1, 2), 2, (3, 2)),
    ((3, 2), (2, 0), (2, 1), 1, (2, 4)),
    ((1, 1), (1, 1), (1, 1), 4, (3, 3)),
]


@pytest.mark.parametrize(("stride", "pad", "dilation", "groups", "kernel"), CONVS)
def test_conv_and_its_gradients(
    stride: Any, pad: Any, dilation: Any, groups: int, kernel: Any
) -> None:
    x, w = _random(2, 4, 9, 11), _random(8, 4 // groups, *kernel)
    tx, tw = _leaf(x), _leaf(w)
    y = TF.conv2d(tx, tw, None, stride, pad, dilation, groups)
    g = _random(*y.shape, seed=1)
    y.backward(torch.tensor(g))
    attrs = {"stride": stride, "padding": (*pad, *pad), "dilation": dilation, "groups": groups}
    _close(_run("conv2d", x, w, **attrs)[0], y)
    _close(_run("conv2d_backward_data", g, w, size=(9, 11), **attrs)[0], tx.grad)
    _close(_run("conv2d_backward_weight", x, g, size=kernel, **attrs)[0], tw.grad)


ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": TF.relu,
    "relu6": TF.relu6,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": TF.silu,
    "hswish": TF.hardswish,
    "gelu": TF.gelu,
    "clip": lambda x: torch.clamp(x, -0.5, 0.75),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fused_ops_end_in_bias_residual_activation(name: str) -> None:
    x, w, bias, residual = _random(2, 3, 5, 5), _random(4, 3, 3, 3), _random(4), _random(2, 4, 3, 3)
    tail = {
        "has_bias": True, "has_residual": True, "activation": name, "lower": -0.5, "upper": 0.75
    }  # fmt: skip
    want = TF.conv2d(torch.tensor(x), torch.tensor(w), torch.tensor(bias)) + torch.tensor(residual)
    attrs = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    _close(_run("conv2d_fused", x, w, bias, residual, **attrs, **tail)[0], ACTIVATIONS[name](want))

    a, b, bias, residual = _random(3, 4), _random(5, 4), _random(5), _random(3, 5)
    want = torch.tensor(a @ b.T + bias + residual)
    got = _run("matmul_fused", a, b, bias, residual, transpose_a=False, transpose_b=True, **tail)
    _close(got[0], ACTIVATIONS[name](want))


WINDOWS = [((2, 2), (2, 2), (0, 0)), ((3, 2), (2, 1), (1, 1)), ((3, 3), (1, 3), (1, 0))]


@pytest.mark.parametrize(("kernel", "stride", "pad"), WINDOWS)
def test_max_pool_and_its_gradient(kernel: Any, stride: Any, pad: Any) -> None:
    # Whole numbers repeat within a window; the first of them takes the gradient.
    x = np.random.default_rng(0).integers(-2, 3, (2, 3, 7, 8)).astype(np.float64)
    tx = _leaf(x)
    y, places = TF.max_pool2d(tx, kernel, stride, pad, return_indices=True)
    g, t = _random(*y.shape, seed=1), _random(*x.shape, seed=2)
    y.backward(torch.tensor(g))
    attrs = {"kernel": kernel, "stride": stride, "padding": (*pad, *pad)}
    _close(_run("max_pool2d", x, **attrs)[0], y)
    _close(_run("max_pool2d_backward", x, g, **attrs)[0], tx.grad)
    picked = np.take_along_axis(t.reshape(2, 3, -1), places.numpy().reshape(2, 3, -1), 2)
    (got,) = _run("max_pool2d_pick", x, t, **attrs)
    np.testing.assert_array_equal(got, picked.reshape(y.shape))


@pytest.mark.parametrize(("kernel", "stride", "pad"), WINDOWS)
@pytest.mark.parametrize("include", [False, True])
def test_avg_pool_and_its_gradient(kernel: Any, stride: Any, pad: Any, include: bool) -> None:
    x = _random(2, 3, 7, 8)
    tx = _leaf(x)
    y = TF.avg_pool2d(tx, kernel, stride, pad, count_include_pad=include)
    g = _random(*y.shape, seed=1)
    y.backward(torch.tensor(g))
    attrs = {
        "kernel": kernel, "stride": stride, "padding": (*pad, *pad), "count_include_pad": include
    }  # fmt: skip
    _close(_run("avg_pool2d", x, **attrs)[0], y)
    _close(_run("avg_pool2d_backward", g, size=(7, 8), **attrs)[0], tx.grad)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (7, 8), (9, 2)])
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive_pools_and_their_gradients(size: Any, kind: str) -> None:
    x = _random(2, 3, 7, 8)
    tx = _leaf(x)
    y = (TF.adaptive_avg_pool2d if kind == "avg" else TF.adaptive_max_pool2d)(tx, size)
    g = _random(*y.shape, seed=1)
    y.backward(torch.tensor(g))
    _close(_run(f"adaptive_{kind}_pool2d", x, size=size)[0], y)
    if kind == "avg":
        _close(_run("adaptive_avg_pool2d_backward", g, size=(7, 8))[0], tx.grad)
    else:
        _close(_run("adaptive_max_pool2d_backward", x, g, size=size)[0], tx.grad)
        (own,) = _run("adaptive_max_pool2d_pick", x, x, size=size)
        _close(own, y)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm_and_its_gradient(shape: Any) -> None:
    x, weight, bias, g = _random(*shape), _random(3), _random(3, seed=1), _random(*shape, seed=2)
    leaves = [_leaf(array) for array in (x, weight, bias)]
    y = TF.batch_norm(leaves[0], None, None, *leaves[1:], True, eps=1e-3)
    y.backward(torch.tensor(g))
    got, mean, var = _run("batch_norm_train", x, weight, bias, eps=1e-3)
    _close(got, y)
    axes = (0, *range(2, len(shape)))
    np.testing.assert_allclose(mean, x.mean(axes), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(var, x.var(axes), rtol=1e-12)
    for found, leaf in zip(
        _run("batch_norm_backward", x, weight, mean, var, g, eps=1e-3), leaves, strict=True
    ):
        _close(found, leaf.grad)
    (fixed,) = _run("batch_norm", x, mean, var, weight, bias, eps=1e-3)
    _close(fixed, y)


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_and_its_gradient(ndim: int, affine: bool) -> None:
    x, g = _random(2, 3, 4, 5), _random(2, 3, 4, 5, seed=1)
    inner = x.shape[-ndim:]
    given = [_random(*inner, seed=2), _random(*inner, seed=3)] if affine else []
    leaves = [_leaf(array) for array in (x, *given)]
    y = TF.layer_norm(leaves[0], inner, *leaves[1:], eps=1e-3)
    y.backward(torch.tensor(g))
    attrs = {"ndim": ndim, "eps": 1e-3, "affine": affine}
    _close(_run("layer_norm", x, *given, **attrs)[0], y)
    found = _run("layer_norm_backward", x, g, *given[:1], **attrs)
    for gradient, leaf in zip(found, leaves, strict=True):
        _close(gradient, leaf.grad)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups: int) -> None:
    x, weight, bias = _random(2, 6, 3, 4), _random(6), _random(6, seed=1)
    want = TF.group_norm(torch.tensor(x), groups, torch.tensor(weight), torch.tensor(bias), 1e-3)
    _close(_run("group_norm", x, weight, bias, groups=groups, eps=1e-3)[0], want)
