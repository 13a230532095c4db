"""Normalise batches that are spread over processes by the statistics of all of them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, cast

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from . import elemwise, math
from .arguments import choice, floating, tensor
from .joining import concat, cut
from .movement import reshape
from .norm import batch_norm, moved

__all__ = ["sync_batch_norm"]

_GROUPS = f"{__package__.rpartition('.')[0]}.distributed"


def sync_batch_norm(
    inp: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.9,
    eps: float = 1e-5,
    eps_mode: str = "additive",
    group: Any = None,
) -> Tensor:
    """Normalise each channel of (N, C, ...) by the statistics of a group of processes.

    It is ``batch_norm`` where one process works alone or ``training`` is off. Otherwise mean and
    variance are those of all batches of the group (``distributed.WORLD`` if None) together, and
    so are the running values. ``eps_mode`` is ``additive`` (var + eps) or ``max``
    (max(var, eps)).

    Raises:
        ShapeError: where the input has no channel axis or a vector does not have C elements.
        AttrError: where the mode is unknown or running values are missing.

    >>> x = Tensor([[1.0], [3.0]])
    >>> sync_batch_norm(x, Tensor([0.0]), Tensor([1.0]), training=True).numpy().round(2).tolist()
    [[-1.0], [1.0]]
    """
    op = "sync_batch_norm"
    tensor(op, inp)
    mode = choice(op, "eps_mode", eps_mode, ("additive", "max"))
    alone = not training or _size(group) == 1
    if alone and mode == "additive":
        return cast(Tensor, batch_norm(
            inp, running_mean, running_var, weight, bias,
            training=training, momentum=momentum, eps=eps,
        ))  # fmt: skip
    x = floating(tensor(op, inp))
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: input has the wrong rank, got {shapes.format_shape(x.shape)}, "
            "expected (N, C, ...)"
        )
    if running_mean is None or running_var is None:
        raise AttrError(f"{op}: running_mean and running_var are needed")
    wide = (1, x.shape[1], *(1,) * (x.ndim - 2))
    if training:
        reduce = _alone if alone else functools.partial(_all_reduced, group=group)
        mean, var, count = _statistics(x, wide, reduce)
        running_mean[...] = moved(running_mean, mean, momentum, count)
        running_var[...] = moved(running_var, var, momentum, count, unbiased=True)
    else:
        mean, var = (reshape(value, wide) for value in (running_mean, running_var))
    spread = elemwise.add(var, eps) if mode == "additive" else elemwise.maximum(var, eps)
    y = elemwise.div(elemwise.sub(x, mean), elemwise.sqrt(spread))
    if weight is not None:
        y = elemwise.mul(y, reshape(weight, wide))
    return y if bias is None else elemwise.add(y, reshape(bias, wide))


def _size(group: Any) -> int:
    """Return how many processes work together; without the room of groups, one does."""
    distributed = sys.modules.get(_GROUPS)
    if distributed is None or not distributed.is_distributed():
        return 1
    return int((distributed.WORLD if group is None else group).size)


def _alone(value: Tensor) -> Tensor:
    return value


def _all_reduced(value: Tensor, group: Any) -> Tensor:
    from .distributed import all_reduce_sum

    chosen = sys.modules[_GROUPS].WORLD if group is None else group
    return all_reduce_sum(value, chosen)


def _statistics(
    x: Tensor, wide: shapes.Shape, reduce: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and biased variance (1, C, 1...) of all batches, and how many elements each has.

    The variance is summed about the common mean, for which a second exchange is worth it.
    """
    channels, axes = x.shape[1], (0, *range(2, x.ndim))
    own = reshape(x.extent(shapes.volume((x.shape[0], *x.shape[2:])), x.dtype), (1,))
    sums = reduce(concat([math.sum(x, axes), own]))
    count = cut(sums, 0, channels, 1)
    mean = reshape(elemwise.div(cut(sums, 0, 0, channels), count), wide)
    squares = math.sum(elemwise.square(elemwise.sub(x, mean)), axes)
    return mean, reshape(elemwise.div(reduce(squares), count), wide), count
