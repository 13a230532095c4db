"""Offer the collectives as functions of tensors, all differentiable.

Gradients are those of the total loss, the sum of all ranks' losses. Every rank of a group calls the
same collectives in the same order, and the same backward passes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import dtypes
from ..device import device_kind, get_default_device
from ..errors import DistributedError, DTypeError, ShapeError, TraceError
from ..imperative.state import state
from ..imperative.tensor import Tensor
from ..op import TensorSpec
from ..registry import get_op
from ..shapes import Shape, format_shape, normalize_axis
from . import group as groups
from .group import WORLD, Group
from .ops import OPS, Collective, serve

_MOST_DIMS = 64
_NAMES = {code: name for name, code in dtypes.CODES.items()}


def reduce_sum(
    inp: Tensor, group: Group | None = WORLD, device: str | None = None
) -> Tensor | None:
    """Sum a tensor over ranks; the group's first rank gets the sum, the others None.

    Args:
        inp: any numeric tensor, of one shape and dtype on all ranks.
        group: the ranks; all if None.
        device: where the result is wanted.

    Raises:
        DistributedError: where a rank is gone, silent or calls something else (so do all below).
        DTypeError: for bool.

    Example::

        >>> reduce_sum(Tensor([1.0, 2.0])).numpy()  # alone: the sum over one rank
        array([1., 2.], dtype=float32)
    """
    ranks = _ranks("reduce_sum", inp, group)
    if ranks is None:
        return _moved(inp, device)
    out = _apply("reduce_sum", inp, ranks)
    return _moved(out, device) if ranks.is_root else None


def broadcast(inp: Tensor | None, group: Group | None = WORLD, device: str | None = None) -> Tensor:
    """Copy a tensor of the group's first rank to all of them.

    What the others give does not count and may be None, except inside a trace, where it tells
    shape and dtype.

    Example::

        >>> broadcast(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    ranks = _ranks("broadcast", inp, group, optional=True)
    if inp is not None and ranks is None:
        return _moved(inp, device)
    assert ranks is not None
    spec = _told("broadcast", ranks, None if inp is None else inp._spec)
    given = inp if inp is not None and ranks.is_root else _token(spec)
    return _moved(_apply("broadcast", given, ranks, spec.shape), device)


def all_gather(
    inp: Tensor, group: Group | None = WORLD, device: str | None = None, axis: int = 0
) -> Tensor:
    """Concatenate the tensors of all ranks along an axis, for all of them.

    Example::

        >>> all_gather(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    ranks = _ranks("all_gather", inp, group)
    x = _at_least_1d(inp)
    axis = normalize_axis("all_gather", axis, x.ndim)
    if ranks is None:
        return _moved(x, device)
    return _moved(_from_rows(_apply("all_gather", x, ranks), axis), device)


def reduce_scatter_sum(
    inp: Tensor, group: Group | None = WORLD, device: str | None = None, axis: int = 0
) -> Tensor:
    """Sum a tensor over ranks, and give each rank its part of the sum along an axis.

    Raises:
        ShapeError: where the extent is no multiple of the group's size.

    Example::

        >>> reduce_scatter_sum(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    ranks = _ranks("reduce_scatter_sum", inp, group)
    if ranks is None:
        return _moved(inp, device)
    rows = _to_rows("reduce_scatter_sum", inp, axis, ranks.size)
    return _moved(_apply("reduce_scatter_sum", rows, ranks), device)


def all_reduce_sum(inp: Tensor, group: Group | None = WORLD, device: str | None = None) -> Tensor:
    """Sum a tensor over ranks, for all of them; every rank gets the same bits.

    Summed in the order of the ranks, 16-bit floats in float32.

    Example::

        >>> all_reduce_sum(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    return _all_reduce("all_reduce_sum", inp, group, device)


def all_reduce_max(inp: Tensor, group: Group | None = WORLD, device: str | None = None) -> Tensor:
    """Take the elementwise maximum over ranks, for all of them; NaN wins.

    The gradient goes to the ranks that hold the maximum, in equal parts.

    Example::

        >>> all_reduce_max(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    return _all_reduce("all_reduce_max", inp, group, device)


def all_reduce_min(inp: Tensor, group: Group | None = WORLD, device: str | None = None) -> Tensor:
    """Take the elementwise minimum over ranks, for all of them; NaN wins.

    The gradient goes to the ranks that hold the minimum, in equal parts.

    Example::

        >>> all_reduce_min(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    return _all_reduce("all_reduce_min", inp, group, device)


def _all_reduce(name: str, inp: Tensor, group: Group | None, device: str | None) -> Tensor:
    ranks = _ranks(name, inp, group)
    return _moved(inp if ranks is None else _apply(name, inp, ranks), device)


def gather(
    inp: Tensor, group: Group | None = WORLD, device: str | None = None, axis: int = 0
) -> Tensor | None:
    """Concatenate the tensors of all ranks along an axis, for the group's first rank.

    The others get None.

    Example::

        >>> gather(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    ranks = _ranks("gather", inp, group)
    x = _at_least_1d(inp)
    axis = normalize_axis("gather", axis, x.ndim)
    if ranks is None:
        return _moved(x, device)
    rows = _apply("gather", x, ranks)
    return _moved(_from_rows(rows, axis), device) if ranks.is_root else None


def scatter(
    inp: Tensor | None, group: Group | None = WORLD, device: str | None = None, axis: int = 0
) -> Tensor:
    """Give each rank its part, along an axis, of a tensor of the group's first rank.

    What the others give does not count and may be None, except inside a trace, where it tells
    shape and dtype of the whole.

    Raises:
        ShapeError: where the extent is no multiple of the group's size.

    Example::

        >>> scatter(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    ranks = _ranks("scatter", inp, group, optional=True)
    if inp is not None and ranks is None:
        return _moved(inp, device)
    assert ranks is not None
    rows = part = None
    if inp is not None and (ranks.is_root or state.recorder is not None):
        rows = _to_rows("scatter", inp, axis, ranks.size)
        part = rows._spec.with_shape(rows.shape[1:])
    spec = _told("scatter", ranks, part)
    given = rows if rows is not None and ranks.is_root else _token(spec)
    return _moved(_apply("scatter", given, ranks, spec.shape), device)


def all_to_all(
    inp: Tensor,
    group: Group | None = WORLD,
    device: str | None = None,
    split_axis: int = 0,
    concat_axis: int = 0,
) -> Tensor:
    """Send part i along ``split_axis`` to rank i; join what comes along ``concat_axis``.

    Raises:
        ShapeError: where the extent is no multiple of the group's size.

    Example::

        >>> all_to_all(Tensor([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    ranks = _ranks("all_to_all", inp, group)
    if ranks is None:
        return _moved(inp, device)
    rows = _to_rows("all_to_all", inp, split_axis, ranks.size)
    axis = normalize_axis("all_to_all", concat_axis, inp.ndim)
    return _moved(_from_rows(_apply("all_to_all", rows, ranks), axis), device)


def remote_send(inp: Tensor, dest_rank: int) -> None:
    """Hand a tensor to another rank, which calls ``remote_recv``.

    Its gradient comes back from there in ``GradManager.backward``, which needs no ``y`` on a rank
    that only sends.

    Raises:
        DistributedError: for a rank that does not exist, or this one.

    Example::

        >>> from tianyuan.distributed import get_rank, launcher
        >>> @launcher(n_gpus=2)
        ... def work():
        ...     if get_rank() == 0:
        ...         return remote_send(Tensor([1.0, 2.0]), 1)
        ...     return remote_recv(0).numpy()
        >>> work()
        [None, array([1., 2.], dtype=float32)]
    """
    _check_tensor("remote_send", inp)
    pair = _pair("remote_send", dest_rank)
    if state.recorder is None:
        spec = Tensor(_encode(inp._spec), dtype="int64", device=inp.device)
        _apply("remote_send", spec, pair)
    _apply("remote_send", inp, pair)


def remote_recv(src_rank: int, device: str | None = None, inp: Tensor | None = None) -> Tensor:
    """Return what another rank hands over by ``remote_send``, in the order of its sending.

    Args:
        src_rank: the sender.
        device: where the result is wanted.
        inp: only needed inside a trace, where it tells shape and dtype.

    Raises:
        DistributedError: for a rank that does not exist, or this one.
        TraceError: inside a trace without ``inp``.

    Example::

        >>> from tianyuan.distributed import get_rank, launcher
        >>> @launcher(n_gpus=2)
        ... def swap():
        ...     remote_send(Tensor(get_rank()), 1 - get_rank())
        ...     return remote_recv(1 - get_rank()).item()
        >>> swap()
        [1, 0]
    """
    pair = _pair("remote_recv", src_rank)
    if state.recorder is not None:
        spec = _known("remote_recv", None if inp is None else inp._spec)
    else:
        code = TensorSpec((2 + _MOST_DIMS,), np.dtype(np.int64), get_default_device())
        spec = _decode(_apply("remote_recv", _token(code), pair, code.shape).numpy(), code.device)
    return _moved(_apply("remote_recv", _token(spec), pair, spec.shape), device)


# Who takes part.


def _ranks(
    name: str, inp: Tensor | None, group: Group | None, optional: bool = False
) -> Collective | None:
    """Return who takes part, or None where this process is on its own."""
    where = WORLD if group is None else group
    if not isinstance(where, Group):
        raise DistributedError(f"{name}: not a group, got {type(where).__name__}")
    alone = where.size == 1 or (where is WORLD and not groups.is_distributed())
    found = None
    if not alone:
        found = Collective(tuple(where.proc_ranks), where.rank, backend=groups.get_backend())
    if inp is None and optional and found is not None and not found.is_root:
        return found
    _check_tensor(name, inp)
    return found


def _check_tensor(name: str, inp: Any) -> None:
    if not isinstance(inp, Tensor):
        raise DTypeError(f"{name}: input must be a tensor, got {type(inp).__name__}")


def _pair(name: str, peer: int) -> Collective:
    me, size = groups.get_rank(), groups.get_world_size()
    if not groups.is_distributed() or peer == me or peer not in range(size):
        raise DistributedError(
            f"{name}: there is no such other rank, got {peer}, this is rank {me} of {size}"
        )
    ranks = (min(me, peer), max(me, peer))
    return Collective(ranks, ranks.index(me), ranks.index(peer), backend=groups.get_backend())


def _apply(name: str, inp: Tensor, who: Collective, shape: Shape = ()) -> Tensor:
    serve(device_kind(inp.device), groups.communicator_for)
    attrs = replace(who, shape=tuple(shape))
    out: Tensor = Tensor._apply(OPS[name], (inp,), attrs)
    return out


def _moved(tensor: Tensor, device: str | None) -> Tensor:
    return tensor if device is None else tensor.to(device)


# Parts along an axis, as rows: one per rank, in front.


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x.ndim else _reshape(x, (1,))


def _reshape(x: Tensor, shape: Shape) -> Tensor:
    out: Tensor = get_op("reshape")(x, shape=shape)
    return out


def _transpose(x: Tensor, order: tuple[int, ...]) -> Tensor:
    out: Tensor = get_op("transpose")(x, perm=order)
    return out


def _to_rows(name: str, x: Tensor, axis: int, size: int) -> Tensor:
    axis = normalize_axis(name, axis, x.ndim)
    shape = x.shape
    if int(shape[axis]) % size:
        raise ShapeError(
            f"{name}: axis {axis} cannot be split among the ranks, got {format_shape(shape)}, "
            f"expected a multiple of {size}"
        )
    split = (*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])
    rows = _reshape(x, split)
    order = (axis, *(i for i in range(len(split)) if i != axis))
    return _transpose(rows, order) if axis else rows


def _from_rows(rows: Tensor, axis: int) -> Tensor:
    size, *shape = rows.shape
    if axis:
        order = [*range(1, len(shape) + 1)]
        order.insert(axis, 0)
        rows = _transpose(rows, tuple(order))
    joined = (*shape[:axis], shape[axis] * size, *shape[axis + 1 :])
    return _reshape(rows, joined)


# What a rank that gives no tensor must be told: shape and dtype.


def _token(spec: TensorSpec) -> Tensor:
    return Tensor(np.empty((0,), spec.dtype), dtype=spec.dtype, device=spec.device)


def _known(name: str, spec: TensorSpec | None) -> TensorSpec:
    if spec is None:
        raise TraceError(
            f"{name}: a trace must know what will come, got None, expected a tensor of its shape "
            "and dtype"
        )
    return spec


def _told(name: str, ranks: Collective, spec: TensorSpec | None) -> TensorSpec:
    """Return the root's spec: told by it or, inside a trace, as this rank expects it."""
    if state.recorder is not None:
        return _known(name, spec)
    device = get_default_device() if spec is None else spec.device
    code = np.zeros(2 + _MOST_DIMS, np.int64)
    if ranks.is_root:
        assert spec is not None
        code = _encode(spec)
    told = _apply("broadcast", Tensor(code, dtype="int64", device=device), ranks, code.shape)
    return _decode(told.numpy(), device)


def _encode(spec: TensorSpec) -> np.ndarray:
    code = np.zeros(2 + _MOST_DIMS, np.int64)
    code[: 2 + spec.ndim] = [dtypes.CODES[spec.dtype.name], spec.ndim, *spec.shape]
    return code


def _decode(code: np.ndarray, device: str) -> TensorSpec:
    kind, ndim, *shape = code.tolist()
    return TensorSpec(tuple(shape[:ndim]), dtypes.as_dtype(_NAMES[kind]), device)
