"""Compare the neighbourhoods of two feature maps, as optical flow does."""

from __future__ import annotations

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from . import elemwise, math
from .arguments import floating, run, same_dtype, same_shape, tensor
from .joining import concat

__all__ = ["correlation"]


def correlation(
    data1: Tensor,
    data2: Tensor,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    pad_size: int = 0,
    is_multiply: bool = True,
) -> Tensor:
    """Correlate patches of two feature maps (N, C, H, W) at all displacements within a bound.

    With r = max_displacement // stride2, channel (i + r) * (2r + 1) + (j + r) of the result
    compares patches of ``kernel_size`` of ``data1`` with those of ``data2`` displaced by
    (i, j) * stride2: the mean of their products, or of their absolute differences unless
    ``is_multiply``. Both are padded with zeros first; ``stride1`` is the distance of patches.
    Follows Dosovitskiy et al., FlowNet, 2015.

    Raises:
        ShapeError: where the shapes differ, or nothing is left of the map.
        AttrError: where the kernel is even or a size is out of range.

    >>> x = Tensor([[[[1.0, 2.0, 3.0]] * 3]])
    >>> correlation(x, x).numpy().reshape(-1).tolist()
    [2.0, 4.0, 6.0, 2.0, 4.0, 6.0, 2.0, 4.0, 6.0]
    """
    op = "correlation"
    a, b = same_dtype(
        op, floating(tensor(op, data1, "data1")), floating(tensor(op, data2, "data2"))
    )
    if a.ndim != 4 or not same_shape(a.shape, b.shape):
        raise ShapeError(
            f"{op}: shapes must agree, got {shapes.format_shape(a.shape)} and "
            f"{shapes.format_shape(b.shape)}, expected (N, C, H, W)"
        )
    for what, value, least in (
        ("kernel_size", kernel_size, 1), ("max_displacement", max_displacement, 0),
        ("stride1", stride1, 1), ("stride2", stride2, 1), ("pad_size", pad_size, 0),
    ):  # fmt: skip
        if int(value) < least or (what == "kernel_size" and value % 2 == 0):
            raise AttrError(f"{op}: {what} is out of range, got {value}")
    n, c, h, w = a.shape
    border = 2 * (max_displacement + kernel_size // 2 - pad_size)
    out = tuple((extent - border + stride1 - 1) // stride1 for extent in (h, w))
    if min(map(int, out)) < 1:
        raise ShapeError(
            f"{op}: nothing is left, got {shapes.format_shape(a.shape)} for displacements "
            f"up to {max_displacement}, expected larger maps or more padding"
        )
    margin = (0, 0, pad_size, pad_size)
    a, b = (run("pad", x, before=margin, after=margin, mode="constant", value=0.0) for x in (a, b))
    sizes = (n, c, *((extent - 1) * stride1 + kernel_size for extent in out))

    def patch(x: Tensor, row: int, column: int) -> Tensor:
        return run("slice", x, starts=(0, 0, row, column), sizes=sizes, steps=(1,) * 4)

    centre = patch(a, max_displacement, max_displacement)
    reach = max_displacement // stride2
    shifts = [max_displacement + i * stride2 for i in range(-reach, reach + 1)]
    found = []
    for row in shifts:
        for column in shifts:
            other = patch(b, row, column)
            alike = (
                elemwise.mul(centre, other)
                if is_multiply
                else elemwise.abs(elemwise.sub(centre, other))
            )
            found.append(math.mean(alike, 1, True))
    return run(
        "avg_pool2d", concat(found, 1), kernel=(kernel_size, kernel_size),
        stride=(stride1, stride1), padding=(0, 0, 0, 0), count_include_pad=False,
    )  # fmt: skip
