"""Convolve within regions only, and convolve, add and activate in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import shapes
from ..errors import ShapeError
from ..imperative.tensor import Tensor
from . import elemwise
from .activation import hswish, relu, sigmoid
from .arguments import choice, floating, run, same_dtype, tensor
from .conv import add_bias, conv2d, plain_weight
from .layers import sliding_window
from .movement import reshape, transpose

__all__ = ["conv_bias_activation", "region_restricted_conv"]


def _identity(x: Tensor) -> Tensor:
    return x


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": _identity,
    "relu": relu,
    "sigmoid": sigmoid,
    "h_swish": hswish,
}


def region_restricted_conv(
    inp: Tensor,
    weight: Tensor,
    rin: Tensor,
    rout: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Convolve (N, C, H, W) where each output takes only the pixels of its own region.

    ``rin`` (N, H, W) names the region of each pixel and ``rout`` (N, OH, OW) that of each output,
    as integers; a pixel of another region counts as zero. The weight is (O, C/groups, KH, KW), or
    has the groups first; the bias has O elements.

    Raises:
        ShapeError: where the shapes do not fit.

    >>> x, w = Tensor([[[[1.0, 2.0, 4.0]]]]), Tensor([[[[1.0, 1.0]]]])
    >>> rin, rout = Tensor([[[0, 0, 1]]]), Tensor([[[0, 1]]])
    >>> region_restricted_conv(x, w, rin, rout).tolist()
    [[[[3.0, 4.0]]]]
    """
    op = "region_restricted_conv"
    choice(op, "conv_mode", conv_mode, ("cross_correlation",))
    choice(op, "compute_mode", compute_mode, ("default", "float32"))
    x, w = same_dtype(op, floating(tensor(op, inp)), plain_weight(op, weight, groups, 4))
    if x.ndim != 4 or int(x.shape[1]) != int(w.shape[1]) * groups or int(w.shape[0]) % groups:
        raise ShapeError(
            f"{op}: weight does not fit, got {shapes.format_shape(w.shape)} in {groups} groups "
            f"for {shapes.format_shape(x.shape)}, "
            "expected weights of the groups' channels"
        )
    n, o, taps = x.shape[0], w.shape[0], (int(w.shape[2]), int(w.shape[3]))
    windows = sliding_window(x, taps, padding, stride, dilation)
    oh, ow = windows.shape[2:4]
    inside = _region(op, "rin", rin, (n, *x.shape[2:]))
    wanted = _region(op, "rout", rout, (n, oh, ow))
    seen = elemwise.equal(
        sliding_window(inside, taps, padding, stride, dilation),
        reshape(wanted, (n, 1, oh, ow, 1, 1)),
    )
    kept = run("where", seen, windows, windows.full((), 0.0))
    size = w.shape[1] * taps[0] * taps[1]
    columns = transpose(kept, (0, 1, 4, 5, 2, 3))
    columns = reshape(columns, (n, groups, size, oh * ow))
    kernels = reshape(w, (1, groups, o // groups, size))
    found = run("matmul", kernels, columns, transpose_a=False, transpose_b=False)
    return add_bias(op, reshape(found, (n, o, oh, ow)), bias)


def _region(op: str, what: str, value: Tensor, want: shapes.Shape) -> Tensor:
    found = tensor(op, value, what)
    if tuple(map(int, found.shape)) != tuple(map(int, want)):
        raise ShapeError(
            f"{op}: {what} does not fit, got {shapes.format_shape(found.shape)}, "
            f"expected {shapes.format_shape(want)}"
        )
    return reshape(found, (want[0], 1, *want[1:]))


def conv_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    nonlinear_mode: str = "identity",
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Return act(conv2d(inp, weight) + bias), converted to ``dtype`` where one is given.

    ``nonlinear_mode`` is identity, relu, sigmoid or h_swish. Other arguments as in ``conv2d``.
    Quantised inputs go to ``functional.quantized.conv_bias_activation``.

    Raises:
        ShapeError: where ranks, channels or groups do not fit.
        AttrError: where a mode is unknown.

    >>> x, w, b = Tensor([[[[2.0]]]]), Tensor([[[[-1.0]]]]), Tensor([1.0])
    >>> conv_bias_activation(x, w, b, nonlinear_mode="relu").tolist()
    [[[[0.0]]]]
    """
    op = "conv_bias_activation"
    if tensor(op, inp).qparams is not None:
        from .quantized import conv_bias_activation as on_integers

        return on_integers(
            inp, weight, bias, dtype, stride, padding, dilation, groups, nonlinear_mode, conv_mode,
            compute_mode,
        )  # fmt: skip
    mode = choice(op, "nonlinear_mode", nonlinear_mode, tuple(_ACTIVATIONS))
    y = conv2d(inp, weight, bias, stride, padding, dilation, groups, conv_mode, compute_mode)
    found = _ACTIVATIONS[mode](y)
    return found if dtype is None else found.astype(dtype)
