"""Normalisation: by batch, layer, group, instance, chosen axes or neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .. import dtypes, shapes
from ..errors import AttrError, ShapeError
from ..imperative.precision import lowered, raised
from ..imperative.tensor import Tensor
from . import elemwise, math
from .arguments import floating, run, run_many, same_dtype, same_shape, tensor

__all__ = [
    "batch_norm", "general_norm", "group_norm", "instance_norm", "layer_norm",
    "local_response_norm", "rms_norm",
]  # fmt: skip


def _vector(op: str, what: str, value: Tensor | None, like: Tensor, default: float) -> Tensor:
    """Return a per-channel value as (C,) in the dtype of the input, or its default."""
    channels = like.shape[1]
    if value is None:
        return cast(Tensor, like.full((channels,), default))
    _check_vector(op, what, value, channels)
    flat = value if value.ndim == 1 else run("reshape", value, shape=(channels,))
    return cast(Tensor, flat.cast(like.dtype))


def _check_vector(op: str, what: str, value: Tensor, channels: int) -> None:
    if int(shapes.volume(tensor(op, value, what).shape)) != int(channels):
        raise ShapeError(
            f"{op}: {what} does not fit, got shape {shapes.format_shape(value.shape)}, "
            f"expected {int(channels)} elements"
        )


def batch_norm(
    inp: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    inplace: bool = True,
) -> Any:
    """Normalise each channel of (N, C, ...) and scale by weight and bias of C elements.

    In training the batch's mean and biased variance are used, and the running ones become
    momentum * running + (1 - momentum) * batch, with the unbiased variance; a batch without
    elements leaves them as they are. With ``inplace`` they are updated and the result is returned;
    else (result, new mean, new variance) is returned, where there are running values.

    Raises:
        ShapeError: where the input has no channel axis or a vector does not have C elements.
        AttrError: where running values are missing outside of training.

    >>> x = Tensor([[1.0], [3.0]])
    >>> batch_norm(x, training=True).numpy().round(3)
    array([[-1.],
           [ 1.]], dtype=float32)
    """
    x = raised(floating(tensor("batch_norm", inp)))
    if x.ndim < 2:
        raise ShapeError(
            f"batch_norm: input has the wrong rank, got {shapes.format_shape(x.shape)}, "
            "expected (N, C, ...)"
        )
    scale = _vector("batch_norm", "weight", weight, x, 1.0)
    shift = _vector("batch_norm", "bias", bias, x, 0.0)
    if not training:
        if running_mean is None or running_var is None:
            raise AttrError("batch_norm: running_mean and running_var are needed for inference")
        mean = _vector("batch_norm", "running_mean", running_mean, x, 0.0)
        var = _vector("batch_norm", "running_var", running_var, x, 1.0)
        return lowered(run("batch_norm", x, mean, var, scale, shift, eps=float(eps)))
    for what, value in (("running_mean", running_mean), ("running_var", running_var)):
        if value is not None:
            _check_vector("batch_norm", what, value, x.shape[1])
    y, mean, var = run_many("batch_norm_train", x, scale, shift, eps=float(eps))
    y = lowered(y)
    count = _count(x)
    new_mean = moved(running_mean, mean, momentum, count)
    new_var = moved(running_var, var, momentum, count, unbiased=True)
    if not inplace and (new_mean is not None or new_var is not None):
        return y, new_mean, new_var
    if running_mean is not None:
        running_mean[...] = new_mean
    if running_var is not None:
        running_var[...] = new_var
    return y


def _count(inp: Tensor) -> Any:
    """Return how many elements a channel has: a number, or a tensor where sizes have names."""
    count = shapes.volume((inp.shape[0], *inp.shape[2:]))
    return inp.extent(count, inp.dtype) if shapes.symbols_of(count) else int(count)


def moved(
    running: Tensor | None, batch: Tensor, momentum: Any, count: Any, unbiased: bool = False
) -> Tensor | None:
    """Return running values after a batch; one without elements leaves them as they are.

    ``unbiased`` makes the variance of ``count`` elements that of what they are a sample of.
    """
    if running is None or (isinstance(count, int) and count == 0):
        return running
    new = run("reshape", batch.detach(), shape=running.shape).cast(running.dtype)
    share: Any = 1.0 - momentum
    if unbiased and isinstance(count, int):
        share = share * (count / max(count - 1, 1))
    elif unbiased:
        share = elemwise.mul(
            elemwise.div(count, elemwise.maximum(elemwise.sub(count, 1.0), 1.0)), share
        )
    new = elemwise.add(elemwise.mul(running, momentum), elemwise.mul(new, share))
    if isinstance(count, int):
        return new
    return run("where", elemwise.greater(count, 0), new, running)


def layer_norm(
    inp: Tensor,
    normalized_shape: Any,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the last axes, whose extents are ``normalized_shape``.

    With ``affine``, weight and bias of that shape scale the result.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where affine is asked for without weight and bias.

    >>> layer_norm(Tensor([[1.0, 3.0]]), (2,), affine=False).numpy().round(3)
    array([[-1.,  1.]], dtype=float32)
    """
    x = raised(floating(tensor("layer_norm", inp)))
    axes, extents = _last_axes("layer_norm", x, normalized_shape)
    operands = _scaled("layer_norm", x, extents, affine, weight, bias)
    return run("layer_norm", *operands, ndim=len(axes), eps=float(eps), affine=bool(affine))


def _last_axes(op: str, x: Tensor, normalized_shape: Any) -> tuple[shapes.Shape, shapes.Shape]:
    """Return the last axes, which must have the extents given, and those extents."""
    given = normalized_shape if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    axes = tuple(range(x.ndim - len(given), x.ndim))
    extents = tuple(x.shape[axis] for axis in axes) if x.ndim >= len(given) else ()
    if not given or tuple(map(int, extents)) != tuple(map(int, given)):
        raise ShapeError(
            f"{op}: normalized_shape does not fit, got {tuple(map(int, given))} for input "
            f"{shapes.format_shape(x.shape)}, "
            "expected the input's last extents"
        )
    return axes, extents


def _scaled(
    op: str,
    x: Tensor,
    extents: Sequence[int],
    affine: bool,
    weight: Tensor | None,
    bias: Tensor | None,
) -> list[Tensor]:
    """Return the input, and with ``affine`` weight and bias in the extents given."""
    if not affine:
        return [x]
    if weight is None or bias is None:
        raise AttrError(f"{op}: weight and bias are needed where affine is true")
    found = [x]
    for what, value in (("weight", weight), ("bias", bias)):
        size = shapes.volume(tensor(op, value, what).shape)
        if int(size) != int(shapes.volume(extents)):
            raise ShapeError(
                f"{op}: {what} does not fit, got shape {shapes.format_shape(value.shape)}, "
                f"expected {shapes.format_shape(extents)}"
            )
        same = tuple(map(int, value.shape)) == tuple(map(int, extents))
        found.append(value if same else run("reshape", value, shape=tuple(extents)))
    return same_dtype(op, *found)


def group_norm(
    inp: Tensor,
    num_groups: int,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each group of channels of (N, C, ...); weight and bias have C elements.

    Raises:
        ShapeError: where there is no channel axis, or C cannot be cut into the groups.
        AttrError: where affine is asked for without weight and bias.

    >>> group_norm(Tensor([[[1.0], [3.0]]]), 1, affine=False).numpy().round(3).tolist()
    [[[-1.0], [1.0]]]
    """
    return _group_norm("group_norm", inp, num_groups, affine, weight, bias, eps)


def instance_norm(
    inp: Tensor,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample of (N, C, ...); weight and bias have C elements.

    Raises:
        ShapeError: where there is no channel axis.
        AttrError: where affine is asked for without weight and bias.

    >>> instance_norm(Tensor([[[1.0, 3.0]]]), affine=False).numpy().round(3).tolist()
    [[[-1.0, 1.0]]]
    """
    return _group_norm("instance_norm", inp, None, affine, weight, bias, eps)


def _group_norm(
    op: str,
    inp: Tensor,
    groups: int | None,
    affine: bool,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    x = raised(floating(tensor(op, inp)))
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: input has the wrong rank, got {shapes.format_shape(x.shape)}, "
            "expected (N, C, ...)"
        )
    channels = x.shape[1]
    count = int(channels) if groups is None else int(groups)
    if count < 1 or int(channels) % count:
        raise ShapeError(
            f"{op}: channels cannot be cut, got {int(channels)} into {count} groups, "
            "expected a divisor"
        )
    if affine:
        operands = _scaled(op, x, (channels,), affine, weight, bias)
    else:
        operands = [x, x.full((channels,), 1.0), x.full((channels,), 0.0)]
    return run("group_norm", *operands, groups=count, eps=float(eps))


def general_norm(
    inp: Tensor,
    normalized_axis: Any,
    affine: bool = True,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the axes given; weight and bias have the extents of those axes.

    Raises:
        ShapeError: where weight or bias does not fit.
        AttrError: where affine is asked for without weight and bias.

    >>> general_norm(Tensor([[1.0], [3.0]]), (0,), affine=False).numpy().round(3).tolist()
    [[-1.0], [1.0]]
    """
    x = floating(tensor("general_norm", inp))
    axes = shapes.normalize_axes("general_norm", normalized_axis, x.ndim)
    extents = tuple(x.shape[axis] for axis in axes)
    x, *rest = _scaled("general_norm", x, extents, affine, weight, bias)
    centred = elemwise.sub(x, math.mean(x, axes, True))
    spread = math.mean(elemwise.square(centred), axes, True)
    y = elemwise.div(centred, elemwise.sqrt(elemwise.add(spread, eps)))
    if not rest:
        return y
    wide = tuple(n if axis in axes else 1 for axis, n in enumerate(x.shape))
    scale, shift = (run("reshape", value, shape=wide) for value in rest)
    return elemwise.add(elemwise.mul(y, scale), shift)


def local_response_norm(
    inp: Tensor, kernel_size: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75
) -> Tensor:
    """Divide by (k + alpha * sum of squares over neighbouring channels)**beta, on (N, C, H, W).

    Raises:
        ShapeError: where the input has another rank than 4.
        AttrError: where the window of channels is not odd and positive.

    >>> local_response_norm(Tensor([[[[2.0]]]]), 1, k=1.0, alpha=0.75, beta=1.0).tolist()
    [[[[0.5]]]]
    """
    x = floating(tensor("local_response_norm", inp))
    if x.ndim != 4:
        raise ShapeError(
            f"local_response_norm: input has the wrong rank, got {shapes.format_shape(x.shape)}, "
            "expected (N, C, H, W)"
        )
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise AttrError(
            f"local_response_norm: kernel_size must be odd and positive, got {kernel_size}, "
            "expected 1, 3, 5 or more"
        )
    n, c, h, w = x.shape
    half = kernel_size // 2
    squares = run("reshape", elemwise.square(x), shape=(n, 1, c, h * w))
    average = run(
        "avg_pool2d",
        squares,
        kernel=(kernel_size, 1),
        stride=(1, 1),
        padding=(half, 0, half, 0),
        count_include_pad=True,
    )
    total = elemwise.mul(run("reshape", average, shape=x.shape), float(kernel_size * alpha))
    return elemwise.div(x, elemwise.pow(elemwise.add(total, k), beta))


def rms_norm(
    inp: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide by the root of the mean square over the last axes, of extents ``normalized_shape``.

    A weight of that shape scales the result. ``eps``, the dtype's epsilon by default, is added to
    the mean square. Follows Zhang and Sennrich, Root mean square layer normalization, 2019.

    Raises:
        ShapeError: where the shapes do not fit.

    >>> rms_norm(Tensor([3.0, 3.0]), (2,)).numpy().round(3).tolist()
    [1.0, 1.0]
    """
    x = raised(floating(tensor("rms_norm", inp)))
    axes, extents = _last_axes("rms_norm", x, normalized_shape)
    least = float(dtypes.epsilon(x.dtype)) if eps is None else float(eps)
    # 16-bit floats are squared in float32, which large activations would overflow otherwise.
    wide = cast(Tensor, x.cast("float32")) if x.dtype.itemsize == 2 else x
    spread = math.mean(elemwise.square(wide), axes, True)
    y = elemwise.div(wide, elemwise.sqrt(elemwise.add(spread, least))).cast(x.dtype)
    if weight is None:
        return cast(Tensor, y)
    if not same_shape(tensor("rms_norm", weight, "weight").shape, extents):
        raise ShapeError(
            f"rms_norm: weight does not fit, got shape {shapes.format_shape(weight.shape)}, "
            f"expected {shapes.format_shape(extents)}"
        )
    return elemwise.mul(y, weight)
