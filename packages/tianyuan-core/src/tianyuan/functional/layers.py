"""What layers do beside convolving and normalising: dropout, embedding, one-hot, pad, windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import dtypes, shapes
from ..errors import AttrError, DTypeError, ShapeError
from ..imperative import generator
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import (
    accepts_keepdim,
    choice,
    floating,
    is_pair,
    numbers_of,
    pair,
    positions,
    run,
    share,
    tensor,
    whole,
)
from .joining import stack

__all__ = [
    "dropout", "embedding", "fold", "indexing_one_hot", "one_hot", "pad", "pixel_shuffle",
    "sliding_window", "sliding_window_transpose", "unfold",
]  # fmt: skip


def dropout(inp: Tensor, drop_prob: float, training: bool = True) -> Tensor:
    """Zero each element with a probability and scale the others by 1/(1 - probability).

    Outside of training the input is returned as it is. The mask comes from the generator that
    ``random.seed`` seeds.

    Raises:
        AttrError: where the probability is not in 0 <= p < 1.

    >>> dropout(Tensor([1.0, 2.0]), 0.5, training=False).tolist()
    [1.0, 2.0]
    """
    drop_prob = share("dropout", "drop_prob", drop_prob)
    found = floating(tensor("dropout", inp))
    if not training or drop_prob == 0:
        return found
    drawn = generator.default.draw("philox_uniform", found.shape, "float32")
    keep = elemwise.greater_equal(drawn, float(drop_prob)).cast(found.dtype)
    return elemwise.mul(found, elemwise.mul(keep, 1.0 / (1.0 - drop_prob)))


def embedding(
    inp: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float | None = None,
) -> Tensor:
    """Look up rows of ``weight`` (count, size) by integer indices of any shape.

    Raises:
        AttrError: where one of the options is used, which MegEngine refuses too.
        DTypeError: where the indices are not integers.
        ShapeError: where the weight is not a matrix.

    >>> embedding(Tensor([1, 0]), Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """
    if padding_idx is not None or max_norm is not None or norm_type is not None:
        raise AttrError("embedding: padding_idx, max_norm and norm_type must be None")
    rows = positions("embedding", inp, "input")
    if tensor("embedding", weight, "weight").ndim != 2:
        raise ShapeError(
            f"embedding: weight must be a matrix, got {shapes.format_shape(weight.shape)}, "
            "expected 2 dimensions"
        )
    return run("take", weight, rows, axis=0)


def one_hot(inp: Tensor, num_classes: int) -> Tensor:
    """Append an axis of ``num_classes`` that holds 1 at each element's index and 0 elsewhere.

    The result has the input's dtype, as in MegEngine.

    Raises:
        DTypeError: where the input is not an integer.
        IndexRangeError: where an index is out of range.

    >>> one_hot(Tensor([2, 0]), 3).tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    if tensor("one_hot", inp).dtype.kind not in "iu":
        raise DTypeError(
            f"one_hot: input must be an integer, got {inp.dtype.name}, expected an integer dtype"
        )
    index = inp if inp.dtype.name in ("int32", "int64") else inp.cast("int32")
    return run(
        "one_hot", index, depth=whole("one_hot", "num_classes", num_classes), dtype=inp.dtype.name
    )


@accepts_keepdim
def indexing_one_hot(src: Tensor, index: Tensor, axis: int = 1, keepdims: bool = False) -> Tensor:
    """Pick one element along an axis for each index; the index lacks that axis.

    Raises:
        ShapeError: where the index' shape is not the source's without the axis.

    >>> indexing_one_hot(Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([1, 0])).tolist()
    [2.0, 3.0]
    """
    op = "indexing_one_hot"
    where = shapes.normalize_axis(op, axis, tensor(op, src).ndim)
    rest = (*src.shape[:where], *src.shape[where + 1 :])
    if tuple(map(int, tensor(op, index, "index").shape)) != tuple(map(int, rest)):
        raise ShapeError(
            f"{op}: index does not fit, got {shapes.format_shape(index.shape)}, "
            f"expected {shapes.format_shape(rest)}"
        )
    wide = run(
        "reshape", positions(op, index), shape=(*src.shape[:where], 1, *src.shape[where + 1 :])
    )
    picked = run("gather", src, wide, axis=where)
    return picked if keepdims else run("reshape", picked, shape=rest)


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge"}


def pad(src: Tensor, pad_width: Any, mode: str = "constant", constant_value: float = 0.0) -> Tensor:
    """Add elements around each axis; ``pad_width`` holds one (before, after) per leading axis.

    Axes without a pair are left as they are; a vector's pair may stand alone.

    Modes: ``constant``, ``reflect`` (without repeating the border), ``replicate`` or ``edge``.

    Raises:
        AttrError: where the widths do not fit, or the mode is unknown.
        NumberRangeError: where the constant does not fit an integer dtype.

    >>> pad(Tensor([1, 2, 3]), ((1, 2),), "reflect").tolist()
    [2, 1, 2, 3, 2, 1]
    """
    found, pad_width = tensor("pad", src), numbers_of(pad_width)
    kind = _PAD_MODES[choice("pad", "mode", mode, tuple(_PAD_MODES))]
    alone = found.ndim == 1 and is_pair(pad_width)
    given = pad_width if isinstance(pad_width, Iterable) else [pad_width]
    widths: list[Any] = [pad_width] if alone else list(given)
    if len(widths) > found.ndim or not all(is_pair(width) for width in widths):
        raise AttrError(
            f"pad: widths do not fit, got {pad_width!r}, "
            f"expected at most {found.ndim} pairs of ints >= 0, as in ((1, 1), (0, 2))"
        )
    dtypes.expect_fits("pad", float(constant_value), found.dtype)
    widths += [(0, 0)] * (found.ndim - len(widths))
    before, after = (tuple(int(width[i]) for width in widths) for i in (0, 1))
    value = float(constant_value)
    if found.qparams is not None and kind == "constant":
        from .quantized_dtype import stored_number

        value = float(stored_number("pad", value, found))
    return run("pad", found, before=before, after=after, mode=kind, value=value)


def pixel_shuffle(inp: Tensor, upscale_factor: int) -> Tensor:
    """Turn (..., C*r*r, H, W) into (..., C, H*r, W*r), where r is the factor.

    Raises:
        ShapeError: where the channels cannot be cut into r*r.

    >>> pixel_shuffle(Tensor([1, 2, 3, 4]).reshape(1, 4, 1, 1), 2).tolist()
    [[[[1, 2], [3, 4]]]]
    """
    r = whole("pixel_shuffle", "upscale_factor", upscale_factor)
    shape = tensor("pixel_shuffle", inp).shape
    if r < 1 or len(shape) < 3 or int(shape[-3]) % (r * r):
        raise ShapeError(
            f"pixel_shuffle: channels cannot be cut, got shape {shapes.format_shape(shape)} "
            f"for factor {upscale_factor}, "
            "expected a multiple of the factor squared"
        )
    lead, (c, h, w) = tuple(shape[:-3]), shape[-3:]
    rank = len(lead)
    apart = run("reshape", inp, shape=(*lead, c // (r * r), r, r, h, w))
    perm = (*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2)
    moved = run("transpose", apart, perm=perm)
    return run("reshape", moved, shape=(*lead, c // (r * r), h * r, w * r))


class _Windows:
    """Where sliding windows lie on a padded image."""

    def __init__(
        self, op: str, size: tuple[int, int], kernel: Any, padding: Any, stride: Any, dilation: Any
    ) -> None:
        self.kernel = pair(op, "kernel_size", kernel, 1)
        self.padding = pair(op, "padding", padding)
        self.stride = pair(op, "stride", stride, 1)
        self.dilation = pair(op, "dilation", dilation, 1)
        self.padded = tuple(n + 2 * p for n, p in zip(size, self.padding, strict=True))
        self.out = tuple(
            (n - d * (k - 1) - 1) // s + 1
            for n, d, k, s in zip(self.padded, self.dilation, self.kernel, self.stride, strict=True)
        )
        if any(int(n) < 1 for n in self.out):
            raise ShapeError(
                f"{op}: kernel is larger than the image, got {self.kernel} with dilation "
                f"{self.dilation} on {tuple(map(int, self.padded))}, "
                "expected a kernel that fits"
            )

    def starts(self) -> list[tuple[int, int]]:
        """Return where the first window has each of its elements, in row-major order."""
        rows, cols = self.kernel
        return [
            (i * self.dilation[0], j * self.dilation[1]) for i in range(rows) for j in range(cols)
        ]


def sliding_window(
    inp: Tensor, kernel_size: Any, padding: Any = 0, stride: Any = 1, dilation: Any = 1
) -> Tensor:
    """Gather the windows of (N, C, H, W) as (N, C, OH, OW, KH, KW).

    Raises:
        ShapeError: where the input has another rank than 4 or is smaller than a window.

    >>> sliding_window(Tensor([[[[1, 2, 3]]]]), (1, 2)).tolist()
    [[[[[[1, 2]], [[2, 3]]]]]]
    """
    op = "sliding_window"
    n, c, h, w = _image(op, inp).shape
    windows = _Windows(op, (h, w), kernel_size, padding, stride, dilation)
    margins = (0, 0, *windows.padding)
    padded = run("pad", inp, before=margins, after=margins, mode="constant", value=0.0)
    picks = [
        run(
            "slice",
            padded,
            starts=(0, 0, *start),
            sizes=(n, c, *windows.out),
            steps=(1, 1, *windows.stride),
        )
        for start in windows.starts()
    ]
    return run("reshape", stack(picks, 4), shape=(n, c, *windows.out, *windows.kernel))


def sliding_window_transpose(
    inp: Tensor,
    output_size: Any,
    kernel_size: Any,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
) -> Tensor:
    """Add windows (N, C, OH, OW, KH, KW) up where they came from in (N, C, *output_size).

    Raises:
        ShapeError: where the input's shape is not that of the windows of such an image.

    >>> sliding_window_transpose(Tensor([[[[[[1, 2]], [[2, 3]]]]]]), (1, 3), (1, 2)).tolist()
    [[[[1, 4, 3]]]]
    """
    op = "sliding_window_transpose"
    size = pair(op, "output_size", output_size, 1)
    windows = _Windows(op, size, kernel_size, padding, stride, dilation)
    want = (*windows.out, *windows.kernel)
    shape = tensor(op, inp).shape
    if len(shape) != 6 or tuple(map(int, shape[2:])) != tuple(map(int, want)):
        raise ShapeError(
            f"{op}: input does not fit, got {shapes.format_shape(shape)}, "
            f"expected (N, C, {', '.join(str(int(n)) for n in want)})"
        )
    n, c = shape[:2]
    count = windows.kernel[0] * windows.kernel[1]
    flat = run("reshape", inp, shape=(n, c, *windows.out, count))
    total: Tensor | None = None
    for number, start in enumerate(windows.starts()):
        part = run(
            "slice",
            flat,
            starts=(0, 0, 0, 0, number),
            sizes=(n, c, *windows.out, 1),
            steps=(1,) * 5,
        )
        placed = run(
            "slice_backward",
            run("reshape", part, shape=(n, c, *windows.out)),
            shape=(n, c, *windows.padded),
            starts=(0, 0, *start),
            steps=(1, 1, *windows.stride),
        )
        total = placed if total is None else elemwise.add(total, placed)
    return run("slice", total, starts=(0, 0, *windows.padding), sizes=(n, c, *size), steps=(1,) * 4)


def _image(op: str, inp: Any) -> Tensor:
    found = tensor(op, inp)
    if found.ndim != 4:
        raise ShapeError(
            f"{op}: input has the wrong rank, got shape {shapes.format_shape(found.shape)}, "
            "expected (N, C, H, W)"
        )
    return found


def unfold(
    inp: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Gather the windows of (N, C, H, W) as columns (N, C * KH * KW, OH * OW), as PyTorch does.

    Raises:
        ShapeError: where the input has another rank than 4 or is smaller than a window.

    >>> unfold(Tensor([[[[1, 2], [3, 4]]]]), (1, 2)).tolist()
    [[[1, 3], [2, 4]]]
    """
    windows = sliding_window(tensor("unfold", inp), kernel_size, padding, stride, dilation)
    n, c, oh, ow, kh, kw = windows.shape
    moved = run("transpose", windows, perm=(0, 1, 4, 5, 2, 3))
    return run("reshape", moved, shape=(n, c * kh * kw, oh * ow))


def fold(
    inp: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """Add columns (N, C * KH * KW, OH * OW) up where ``unfold`` took them from.

    Raises:
        ShapeError: where the input's shape is not that of the columns of such an image.

    >>> fold(Tensor([[[1, 3], [2, 4]]]), (2, 2), (1, 2)).tolist()
    [[[[1, 2], [3, 4]]]]
    """
    size = pair("fold", "output_size", output_size, 1)
    windows = _Windows("fold", size, kernel_size, padding, stride, dilation)
    kh, kw = windows.kernel
    shape = tensor("fold", inp).shape
    places = shapes.volume(windows.out)
    if len(shape) != 3 or int(shape[1]) % (kh * kw) or int(shape[2]) != int(places):
        raise ShapeError(
            f"fold: input does not fit, got {shapes.format_shape(shape)}, "
            f"expected (N, C * {kh * kw}, {int(places)})"
        )
    channels = shape[1] // (kh * kw)
    apart = run("reshape", inp, shape=(shape[0], channels, kh, kw, *windows.out))
    moved = run("transpose", apart, perm=(0, 1, 4, 5, 2, 3))
    return sliding_window_transpose(moved, size, kernel_size, padding, stride, dilation)
