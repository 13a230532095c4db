"""ATen operators of networks: products, convolutions, pooling, normalisation, resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import functional as F
from ... import shapes
from ...functional.arguments import run
from ...functional.special_conv import conv_transpose3d
from ...imperative.tensor import Tensor
from .table import UnsupportedError, aten


@aten("linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.nn.linear(x, weight, bias)


@aten("mm", "bmm", "matmul", "mv", "dot")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return F.matmul(a, b)


@aten("addmm", "baddbmm", "addmv")
def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = F.matmul(a, b)
    product = product if alpha == 1 else F.mul(product, alpha)
    return F.add(product, x if beta == 1 else F.mul(x, beta))


# Convolutions


@aten("convolution")
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    if x.ndim == 3:
        x, weight = F.expand_dims(x, 2), F.expand_dims(weight, 2)
        wide = [(1, *stride), (0, *padding), (1, *dilation), (0, *output_padding)]
        y = convolution(x, weight, bias, wide[0], wide[1], wide[2], transposed, wide[3], groups)
        return F.squeeze(y, 2)
    if x.ndim == 5:
        return _volume(
            x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
    top, left = _both(padding)
    options = {
        "stride": _both(stride), "padding": (top, left, top, left), "dilation": _both(dilation),
        "groups": groups,
    }  # fmt: skip
    if transposed:
        size = _transposed_size(x, weight, options, _both(output_padding))
        y = run("conv2d_backward_data", x, weight, size=size, **options)
    else:
        y = run("conv2d", x, weight, **options)
    return y if bias is None else F.add(y, bias.reshape((1, y.shape[1], 1, 1)))


def _both(values: Sequence[int]) -> tuple[int, int]:
    items = tuple(values)
    return (items[0], items[0]) if len(items) == 1 else (items[0], items[1])


def _transposed_size(
    x: Tensor, weight: Tensor, options: dict[str, Any], extra: tuple[int, int]
) -> tuple[int, ...]:
    return tuple(
        (x.shape[2 + axis] - 1) * options["stride"][axis]
        - 2 * options["padding"][axis]
        + options["dilation"][axis] * (weight.shape[2 + axis] - 1)
        + extra[axis]
        + 1
        for axis in range(2)
    )


def _volume(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Tensor:  # fmt: skip
    if not transposed:
        return F.nn.conv3d(x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups)
    if groups != 1:
        raise UnsupportedError(f"groups must be 1, got {groups}")
    return conv_transpose3d(
        x, weight, bias, tuple(stride), tuple(padding), tuple(output_padding), tuple(dilation)
    )


# Pooling


def _window(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool
) -> dict[str, tuple[int, ...]]:
    """Return a window's attributes; rounding up is padding behind the end."""
    size, pads = _both(kernel), _both(padding)
    steps = _both(stride) if stride else size
    behind = list(pads)
    for axis in range(2):
        extent = x.shape[2 + axis]
        if ceil:
            if shapes.symbols_of(extent):
                raise UnsupportedError("ceil_mode must be false where sizes are dynamic")
            behind[axis] += _open_end(int(extent), size[axis], steps[axis], pads[axis])
    return {"kernel": size, "stride": steps, "padding": (*pads, *behind)}


def _open_end(extent: int, kernel: int, stride: int, pad: int) -> int:
    """Return how many elements a last, incomplete window lacks; 0 where there is none."""
    last = -(-(extent + 2 * pad - kernel) // stride)
    if last * stride >= extent + pad:  # it would start behind the end
        last -= 1
    return max(0, last * stride + kernel - extent - 2 * pad)


@aten("max_pool2d")
def max_pool2d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    if any(n != 1 for n in dilation):
        raise UnsupportedError(f"dilation must be 1, got {tuple(dilation)}")
    return run("max_pool2d", x, **_window(x, kernel, stride, padding, ceil_mode))


@aten("max_pool2d_with_indices")
def max_pool2d_with_indices(x: Tensor, *window: Any) -> tuple[Tensor, None]:
    return max_pool2d(x, *window), None


@aten("max_pool1d")
def max_pool1d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    steps = (1, *stride) if stride else ()
    wide = max_pool2d(F.expand_dims(x, 2), (1, *kernel), steps, (0, *padding), dilation, ceil_mode)
    return F.squeeze(wide, 2)


@aten("max_pool3d")
def max_pool3d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Take the largest of each plane's windows, then of each line's over the planes."""
    if x.ndim != 5:
        raise UnsupportedError(f"input must be (N, C, D, H, W), got rank {x.ndim}")
    size, step, pad = (
        tuple(v) * 3 if len(v) == 1 else tuple(v) for v in (kernel, stride or kernel, padding)
    )
    n, c, d, h, w = x.shape
    flat = x.reshape((n, c * d, h, w))
    flat = max_pool2d(flat, size[1:], step[1:], pad[1:], dilation, ceil_mode)
    high, wide = flat.shape[2:]
    line = flat.reshape((n, c, d, high * wide))
    line = max_pool2d(line, (size[0], 1), (step[0], 1), (pad[0], 0), dilation, ceil_mode)
    return line.reshape((n, c, line.shape[2], high, wide))


@aten("max_pool3d_with_indices")
def max_pool3d_with_indices(x: Tensor, *window: Any) -> tuple[Tensor, None]:
    return max_pool3d(x, *window), None


@aten("avg_pool2d")
def avg_pool2d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    window = _window(x, kernel, stride, padding, ceil_mode)
    top, left, bottom, right = window["padding"]
    if divisor_override or (count_include_pad and (top, left) != (bottom, right)):
        raise UnsupportedError("the divisor must be the count of elements in the window")
    counts = count_include_pad and any(window["padding"])
    return run("avg_pool2d", x, **window, count_include_pad=bool(counts))


@aten("avg_pool1d")
def avg_pool1d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    steps = (1, *stride) if stride else ()
    wide = avg_pool2d(
        F.expand_dims(x, 2), (1, *kernel), steps, (0, *padding), ceil_mode, count_include_pad
    )
    return F.squeeze(wide, 2)


@aten("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.nn.adaptive_avg_pool2d(x, tuple(size))


@aten("adaptive_avg_pool1d", "_adaptive_avg_pool1d")
def adaptive_avg_pool1d(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.squeeze(F.nn.adaptive_avg_pool2d(F.expand_dims(x, 2), (1, *size)), 2)


@aten("adaptive_max_pool2d")
def adaptive_max_pool2d(x: Tensor, size: Sequence[int]) -> tuple[Tensor, None]:
    return F.nn.adaptive_max_pool2d(x, tuple(size)), None


# Normalisation


@aten("_native_batch_norm_legit_no_training")
def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    momentum: float, eps: float,
) -> tuple[Tensor, None, None]:  # fmt: skip
    return F.nn.batch_norm(x, mean, var, weight, bias, eps=eps), None, None


@aten("_native_batch_norm_legit_functional", modal=True)
def batch_norm_train(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    train: bool, momentum: float, eps: float, *, training: bool,
) -> tuple[Any, ...]:  # fmt: skip
    if not train or not training:
        return F.nn.batch_norm(x, mean, var, weight, bias, eps=eps), None, None, mean, var
    y, new_mean, new_var = F.nn.batch_norm(
        x, mean, var, weight, bias, training=True, momentum=1 - momentum, eps=eps, inplace=False
    )
    return y, None, None, new_mean, new_var


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, train: bool, momentum: float, eps: float
) -> tuple[Tensor, None, None]:
    return F.nn.batch_norm(x, None, None, weight, bias, training=True, eps=eps), None, None


@aten("layer_norm")
def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    extents = tuple(shape)
    if weight is not None and bias is None:
        bias = x.full(extents, 0.0)
    if weight is None and bias is not None:
        weight = x.full(extents, 1.0)
    return F.nn.layer_norm(x, extents, weight is not None, weight, bias, eps)


@aten("native_layer_norm")
def native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, None, None]:
    return layer_norm(x, shape, weight, bias, eps), None, None


@aten("group_norm")
def group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    return F.nn.group_norm(x, groups, weight is not None, weight, bias, eps)


@aten("native_group_norm")
def native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, rest: int, groups: int,
    eps: float,
) -> tuple[Tensor, None, None]:  # fmt: skip
    return group_norm(x, groups, weight, bias, eps), None, None


# Others


@aten("dropout", modal=True)
def dropout(x: Tensor, p: float, train: bool, *, training: bool) -> Tensor:
    return F.nn.dropout(x, p, training=True) if train and training and p else x


@aten("native_dropout", modal=True)
def native_dropout(
    x: Tensor, p: float, train: bool | None, *, training: bool
) -> tuple[Tensor, None]:
    return dropout(x, p, train is not False, training=training), None


@aten("embedding")
def embedding(weight: Tensor, index: Tensor, *_: Any) -> Tensor:
    return run("take", weight, index, axis=0)


@aten("softmax", "_softmax")
def softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    given = x.cast(dtype) if isinstance(dtype, str) else x
    return F.nn.softmax(given, dim)


@aten("log_softmax", "_log_softmax")
def log_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    given = x.cast(dtype) if isinstance(dtype, str) else x
    return F.nn.logsoftmax(given, dim)


@aten("pixel_shuffle")
def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    return F.nn.pixel_shuffle(x, factor)


def _resampled(x: Tensor, mode: str, size: Any, scales: Any, align: bool | None = None) -> Tensor:
    factors = [scale for scale in (scales or ()) if scale is not None]
    if size is None:
        size = [int(int(n) * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    exact = all(int(n) * f == int(m) for n, f, m in zip(x.shape[2:], factors, size, strict=False))
    if not exact and not align:
        raise UnsupportedError("scale factors must give whole sizes")
    return F.vision.interpolate(x, tuple(int(n) for n in size), mode=mode, align_corners=align)


@aten("upsample_nearest2d")
def upsample_nearest2d(x: Tensor, size: Any, *scales: Any) -> Tensor:
    return _resampled(x, "nearest", size, _flat(scales))


@aten("upsample_bilinear2d")
def upsample_bilinear2d(x: Tensor, size: Any, align_corners: bool, *scales: Any) -> Tensor:
    return _resampled(x, "bilinear", size, _flat(scales), align_corners)


@aten("upsample_bicubic2d")
def upsample_bicubic2d(x: Tensor, size: Any, align_corners: bool, *scales: Any) -> Tensor:
    return _resampled(x, "bicubic", size, _flat(scales), align_corners)


def _flat(scales: tuple[Any, ...]) -> list[Any]:
    """Return factors given as one list or one by one."""
    if len(scales) == 1 and isinstance(scales[0], (list, tuple)):
        return list(scales[0])
    return list(scales)
