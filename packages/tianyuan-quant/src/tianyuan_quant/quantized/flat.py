"""Write a convolution of one or three axes as one of images, of the same sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import ShapeError
from tianyuan.functional.joining import cut
from tianyuan.functional.quantized import zeros_like_quantised
from tianyuan.op import QuantParams

Ints = Sequence[int]


def in_planes(
    owner: str,
    x: Tensor,
    weight: Tensor,
    quant: QuantParams,
    stride: Ints,
    margins: Ints,
    dilation: Ints,
) -> tuple[Tensor, Tensor, dict[str, Any], Callable[[Tensor], Tensor]]:
    """Return input, weight and geometry of a convolution of images, and the way back.

    A signal is an image of one row. Of a volume, each place along the depth becomes an image whose
    channels are those of all planes that its window meets: sums stay whole, and are rounded once.

    ``margins`` are what zero points pad in front of all axes, then behind.

    >>> from tianyuan import registry
    >>> x = registry.get_op("quantize")(F.zeros((1, 2, 9)), scales=(0.5,), zero_points=(3,))
    >>> weight = F.zeros((4, 2, 3))
    >>> x, weight, geometry, _ = in_planes("op", x, weight, x.qparams, (2,), (1, 1), (1,))
    >>> x.shape, weight.shape, geometry["stride"], geometry["padding"]
    ((1, 2, 1, 9), (4, 2, 1, 3), (1, 2), (0, 1, 0, 1))
    """
    axes = len(stride)
    back: Callable[[Tensor], Tensor] = _as_it_is
    if axes == 1:
        stride, dilation = (1, *stride), (1, *dilation)
        margins = (0, margins[0], 0, margins[1])
        x, weight, back = F.expand_dims(x, 2), F.expand_dims(weight, 2), _row
    elif axes == 3:
        x = _padded(x, quant, margins[0], margins[3])
        x, weight, back = _by_depth(owner, x, weight, stride[0], dilation[0])
        stride, dilation = stride[1:], dilation[1:]
        margins = (*margins[1:3], *margins[4:])
    geometry = {
        "stride": tuple(stride), "padding": tuple(margins), "dilation": tuple(dilation),
    }  # fmt: skip
    return x, weight, geometry, back


def _as_it_is(y: Tensor) -> Tensor:
    return y


def _row(y: Tensor) -> Tensor:
    n, channels, _, extent = y.shape
    result: Tensor = F.reshape(y, (n, channels, extent))
    return result


def _padded(x: Tensor, quant: QuantParams, before: int, after: int) -> Tensor:
    """Put planes of zero points in front of a volume and behind it."""
    n, channels, _, *plane = x.shape
    parts = [
        x if count is None else zeros_like_quantised(x, quant, (n, channels, count, *plane))
        for count in (before, None, after)
        if count != 0
    ]
    return F.concat(parts, 2) if len(parts) > 1 else x


def _by_depth(
    owner: str, x: Tensor, weight: Tensor, stride: int, dilation: int
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    outputs, inputs, depth, *window = weight.shape
    n, channels, extent, *plane = x.shape
    span = extent - dilation * (depth - 1) - 1
    if int(span) < 0:
        raise ShapeError(
            f"{owner}: kernel is too deep, got {depth} for {int(extent)}, expected a "
            "kernel that fits"
        )
    places = span // stride + 1
    parts = [F.expand_dims(cut(x, 2, k * dilation, places, stride), 2) for k in range(int(depth))]
    x = F.transpose(F.concat(parts, 2), (0, 3, 1, 2, 4, 5))
    x = F.reshape(x, (n * places, channels * depth, *plane))

    def back(y: Tensor) -> Tensor:
        y = F.reshape(y, (n, places, *y.shape[1:]))
        result: Tensor = F.transpose(y, (0, 2, 1, 3, 4))
        return result

    return x, F.reshape(weight, (outputs, inputs * depth, *window)), back
