"""Convolutions and their gradients in every layout, against torch in float64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.kernel import Kernel
from tianyuan.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeight, Conv2dFused

torch = pytest.importorskip("torch")
F = torch.nn.functional


def kernels_of(op: str) -> list[Kernel]:
    """Return the plugin's own kernels of an op that sum as the definition does."""
    return [
        kernel
        for kernel in registry.candidates(op, "cpu", "x86")
        if kernel.is_native and kernel.tolerance is None
    ]


class Case(NamedTuple):
    """A convolution: batch, channels, size, outputs, kernel, stride, padding, dilation, groups."""

    n: int
    c: int
    size: tuple[int, int]
    o: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def geometry(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }


ONE = (1, 1, 1, 1)
CASES = [
    Case(1, 3, (17, 19), 24, (3, 3), padding=ONE),
    Case(2, 24, (13, 9), 17, (3, 3), (2, 2), ONE),
    Case(2, 17, (7, 7), 40, (3, 3), padding=ONE),
    Case(1, 64, (28, 28), 64, (3, 3), padding=ONE),
    Case(1, 64, (15, 33), 70, (1, 1)),
    Case(1, 16, (9, 9), 32, (1, 1), (2, 2)),
    Case(1, 3, (31, 29), 64, (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(1, 8, (11, 12), 8, (5, 5), padding=(2, 2, 2, 2)),
    Case(2, 9, (5, 6), 5, (3, 3), padding=(0, 1, 2, 3), dilation=(2, 1)),
    Case(1, 4, (2, 2), 3, (5, 5), padding=(2, 2, 2, 2)),  # the kernel is larger than the input
    Case(0, 4, (5, 5), 3, (3, 3), padding=ONE),
    Case(1, 33, (10, 10), 20, (3, 2), (3, 1), (1, 0, 1, 0), (1, 3)),
    Case(3, 32, (4, 4), 48, (3, 3), padding=ONE),
    Case(1, 20, (14, 14), 36, (3, 3), (1, 2)),
    Case(1, 256, (14, 14), 40, (1, 1), padding=(1, 0, 0, 1)),
    Case(2, 5, (1, 40), 18, (1, 5), padding=(0, 2, 0, 2)),
    Case(3, 1, (12, 30), 10, (5, 5), padding=(2, 2, 2, 2)),
    Case(1, 128, (40, 40), 33, (3, 3)),
    Case(2, 12, (9, 9), 8, (3, 3), padding=ONE, groups=4),
    Case(1, 6, (8, 8), 12, (3, 3), (2, 2), ONE, groups=6),
    Case(2, 19, (9, 31), 19, (3, 3), padding=ONE, groups=19),
    Case(1, 16, (21, 13), 16, (5, 5), (2, 2), (2, 2, 2, 2), groups=16),
    Case(1, 33, (12, 12), 33, (3, 3), (1, 2), (2, 2, 2, 2), (2, 2), groups=33),
    Case(0, 3, (5, 5), 3, (3, 3), padding=ONE, groups=3),
    Case(1, 10, (6, 7), 6, (1, 1), groups=2),
    Case(2, 40, (9, 13), 22, (1, 1), groups=2),
    Case(1, 14, (1, 1), 40, (1, 1), groups=2),
    Case(1, 32, (16, 15), 18, (1, 1), groups=2),
    Case(1, 15, (6, 7), 9, (1, 1), groups=3),
    Case(2, 60, (9, 13), 33, (1, 1), groups=3),
    Case(1, 21, (1, 1), 60, (1, 1), groups=3),
    Case(1, 48, (16, 15), 27, (1, 1), groups=3),
    Case(1, 20, (6, 7), 12, (1, 1), groups=4),
    Case(2, 80, (9, 13), 44, (1, 1), groups=4),
    Case(1, 28, (1, 1), 80, (1, 1), groups=4),
    Case(1, 64, (16, 15), 36, (1, 1), groups=4),
    Case(1, 40, (6, 7), 24, (1, 1), groups=8),
    Case(2, 160, (9, 13), 88, (1, 1), groups=8),
    Case(1, 56, (1, 1), 160, (1, 1), groups=8),
    Case(1, 128, (16, 15), 72, (1, 1), groups=8),
    Case(2, 32, (6, 7), 64, (3, 3), padding=ONE, groups=2),
    Case(1, 3, (2, 2), 3, (5, 5), padding=(2, 2, 2, 2), groups=3),
]

SMALL = [case for case in CASES if case.n * case.c * case.size[0] * case.size[1] < 7000]

ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "relu6": lambda x: x.clamp(0, 6),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "hswish": F.hardswish,
    "gelu": F.gelu,
    "clip": lambda x: x.clamp(-0.5, 0.7),
}
EPILOGUES = [(True, False), (False, True), (True, True), (False, False)]


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _operands(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = _numbers(rng, case.n, case.c, *case.size)
    return x, _numbers(rng, case.o, case.c // case.groups, *case.kernel)


@cache
def _forward(case: Case, seed: int) -> Any:
    """Return torch's answer on the case's operands in float64."""
    return _torch_conv(case, *map(_double, _operands(case, seed)))


def _torch_conv(case: Case, x: Any, w: Any) -> Any:
    top, left, bottom, right = case.padding
    padded = F.pad(x, (left, right, top, bottom))
    return F.conv2d(padded, w, None, case.stride, 0, case.dilation, case.groups)


def _double(array: np.ndarray) -> Any:
    return torch.from_numpy(array).double()


def _check(kernel: Kernel, case: Case, got: np.ndarray, want: Any, terms: int) -> None:
    np.testing.assert_allclose(
        got,
        want.detach().numpy(),
        rtol=2e-5,
        atol=1e-5 * (terms + 1) ** 0.5,
        err_msg=f"{kernel.name} on {case}",
    )


def _terms(case: Case) -> int:
    return case.c // case.groups * case.kernel[0] * case.kernel[1]


def _served(kernel: Kernel, call: Any) -> bool:
    return kernel.supports(call) is None


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
def test_forward(kernel: Kernel, run: Any, call_of: Any) -> None:
    count = 0
    for seed, case in enumerate(CASES):
        x, w = _operands(case, seed)
        want = _forward(case, seed)
        for threads in (1, 3):
            call = call_of("conv2d", (x, w), Conv2d(**case.geometry), threads)
            if _served(kernel, call):
                count += 1
                _check(kernel, case, run(kernel, call, (x, w))[0], want, _terms(case))
    assert count >= 8


@pytest.mark.parametrize("kernel", kernels_of("conv2d_fused"), ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogue(kernel: Kernel, activation: str, run: Any, call_of: Any) -> None:
    count = 0
    for seed, case in enumerate(SMALL):
        rng = np.random.default_rng(100 + seed)
        x, w = _operands(case, seed)
        base = _forward(case, seed)
        for has_bias, has_residual in EPILOGUES:
            inputs, total = [x, w], base
            if has_bias:
                inputs.append(_numbers(rng, case.o))
                total = total + _double(inputs[-1])[:, None, None]
            if has_residual:
                inputs.append(_numbers(rng, *base.shape))
                total = total + _double(inputs[-1])
            attrs = Conv2dFused(
                **case.geometry,
                has_bias=has_bias,
                has_residual=has_residual,
                activation=activation,
                lower=-0.5,
                upper=0.7,
            )
            call = call_of("conv2d_fused", inputs, attrs, 1 + seed % 2)
            if _served(kernel, call):
                count += 1
                want = ACTIVATIONS[activation](total)
                _check(kernel, case, run(kernel, call, inputs)[0], want, _terms(case))
    assert count >= 3


@cache
def _gradients(case: Case, seed: int) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
    """Return x, w and a gradient of the output, and torch's gradients of x and w."""
    x, w = _operands(case, seed)
    tx, tw = _double(x).requires_grad_(), _double(w).requires_grad_()
    y = _torch_conv(case, tx, tw)
    g = _numbers(np.random.default_rng(200 + seed), *y.shape)
    y.backward(_double(g))
    return (x, w, g), (tx.grad, tw.grad)


@pytest.mark.parametrize("kernel", kernels_of("conv2d_backward_data"), ids=str)
def test_backward_data(kernel: Kernel, run: Any, call_of: Any) -> None:
    count = 0
    for seed, case in enumerate(CASES):
        (x, w, g), (want, _) = _gradients(case, seed)
        attrs = Conv2dBackwardData(**case.geometry, size=x.shape[2:])
        terms = w.size // max(case.c // case.groups, 1) // case.groups
        for threads in (1, 3):
            call = call_of("conv2d_backward_data", (g, w), attrs, threads)
            if _served(kernel, call):
                count += 1
                _check(kernel, case, run(kernel, call, (g, w))[0], want, terms)
    assert count >= 8


@pytest.mark.parametrize("kernel", kernels_of("conv2d_backward_weight"), ids=str)
def test_backward_weight(kernel: Kernel, run: Any, call_of: Any) -> None:
    count = 0
    for seed, case in enumerate(CASES):
        (x, w, g), (_, want) = _gradients(case, seed)
        attrs = Conv2dBackwardWeight(**case.geometry, size=w.shape[2:])
        for threads in (1, 3):
            call = call_of("conv2d_backward_weight", (x, g), attrs, threads)
            if _served(kernel, call):
                count += 1
                terms = case.n * g.shape[2] * g.shape[3]
                _check(kernel, case, run(kernel, call, (x, g))[0], want, terms)
    assert count >= 8


def test_padding_stays_zero_beside_infinite_values(run: Any, call_of: Any) -> None:
    """Infinity times the zeros behind the last channel is no zero; later kernels rely on zeros."""
    rng = np.random.default_rng(0)
    x, w = (np.abs(_numbers(rng, *shape)) for shape in ((1, 16, 5, 6), (20, 16, 1, 1)))
    x[0, 3, 2, 2] = np.inf
    want = np.minimum(np.einsum("oc,nchw->nohw", w[:, :, 0, 0], x), 6)
    bias, residual = np.zeros(20, np.float32), np.zeros(want.shape, np.float32)
    served = 0
    for has_bias, has_residual in ((True, False), (True, True), (False, True), (False, False)):
        arrays = [x, w, *([bias] if has_bias else []), *([residual] if has_residual else [])]
        attrs = Conv2dFused(has_bias=has_bias, has_residual=has_residual, activation="relu6")
        call = call_of("conv2d_fused", arrays, attrs)
        for kernel in kernels_of("conv2d_fused"):
            if _served(kernel, call):
                got = run(kernel, call, arrays)[0]
                np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=kernel.name)
                served += kernel.layouts.of_output(0) != "plain"
    assert served


def test_refusals_name_what_is_served(call_of: Any) -> None:
    dense, depthwise = CASES[3], CASES[20]
    for case, variant, part in (
        (depthwise, "_direct", "groups"),
        (dense, "_depthwise", "per group"),
    ):
        x, w = _operands(case, 0)
        call = call_of("conv2d", (x, w), Conv2d(**case.geometry))
        for kernel in kernels_of("conv2d"):
            if kernel.name.endswith(variant):
                assert part in (kernel.supports(call) or "")
