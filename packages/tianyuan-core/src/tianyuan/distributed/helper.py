"""Decide how gradients are shared among ranks: packed, so that few large messages go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from ..registry import get_op
from .collectives import all_reduce_sum, broadcast
from .group import WORLD, Group, get_backend, group_barrier, is_distributed, override_backend

PACK_BYTES = 10 << 20  # gradients are sent once this much of a dtype has come

R = TypeVar("R")


def bcast_list_(inps: list[Tensor], group: Group = WORLD) -> None:
    """Give tensors in place the values that they have on the group's first rank.

    Example::

        >>> weight = Tensor([1.0, 2.0])
        >>> bcast_list_([weight])
        >>> weight.numpy()
        array([1., 2.], dtype=float32)
    """
    for tensor in inps:
        tensor._reset(broadcast(tensor, group))


def synchronized(func: Callable[..., R]) -> Callable[..., R]:
    """Decorate a function so that all ranks wait for each other once they have run it.

    Example::

        >>> @synchronized
        ... def evaluate():
        ...     return 0.5
        >>> evaluate()
        0.5
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> R:
        found = func(*args, **kwargs)
        if is_distributed():
            group_barrier()
        return found

    return wrapper


def get_offsets(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return where tensors of these shapes start and end when laid one after the other.

    Example::

        >>> get_offsets([(1,), (3, 3)])
        [0, 1, 1, 10]
    """
    offsets, end = [], 0
    for shape in shapes:
        start, end = end, end + prod(int(n) for n in shape)
        offsets += [start, end]
    return offsets


def param_pack_concat(inps: list[Tensor], offsets: Tensor | None, offsets_val: list[int]) -> Tensor:
    """Lay tensors one after the other in a flat one.

    Args:
        inps: tensors of one dtype.
        offsets: the same as ``offsets_val``, as a tensor; accepted for MegEngine's sake.
        offsets_val: start and end of each, from ``get_offsets``; gaps are filled with zeros.

    Raises:
        ShapeError: where the offsets do not fit.

    Example::

        >>> packed = param_pack_concat([Tensor([1.0]), Tensor([[2.0, 3.0]])], None, [0, 1, 1, 3])
        >>> packed.numpy()
        array([1., 2., 3.], dtype=float32)
    """
    _check_offsets("param_pack_concat", offsets_val, [tensor.shape for tensor in inps])
    parts, filled = [], 0
    for tensor, start in zip(inps, offsets_val[::2], strict=True):
        if start > filled:
            parts.append(tensor.full((start - filled,), 0))
        parts.append(get_op("reshape")(tensor, shape=(tensor.size,)))
        filled = start + int(tensor.size)
    if len(parts) == 1:
        return parts[0]  # type: ignore[no-any-return]
    return get_op("concat")(*parts, axis=0)  # type: ignore[no-any-return]


def param_pack_split(
    inp: Tensor, offsets: list[int], shapes: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Cut a flat tensor into tensors of these shapes.

    Args:
        inp: as ``param_pack_concat`` returns it.
        offsets: start and end of each, from ``get_offsets``.
        shapes: of the results.

    Raises:
        ShapeError: where the offsets do not fit.

    Example::

        >>> a, b = param_pack_split(Tensor([1.0, 2.0, 3.0]), [0, 1, 1, 3], [(1,), (1, 2)])
        >>> b.numpy()
        array([[2., 3.]], dtype=float32)
    """
    _check_offsets("param_pack_split", offsets, shapes)
    if offsets and offsets[-1] > int(inp.size):
        raise ShapeError(
            f"param_pack_split: offsets reach too far, got {offsets[-1]}, expected at most "
            f"{int(inp.size)}"
        )
    slice_op, reshape = get_op("slice"), get_op("reshape")
    pairs = zip(offsets[::2], offsets[1::2], strict=True)
    return [
        reshape(
            slice_op(inp, starts=(start,), sizes=(end - start,), steps=(1,)), shape=tuple(shape)
        )
        for (start, end), shape in zip(pairs, shapes, strict=True)
    ]


def _check_offsets(name: str, offsets: Sequence[int], shapes: Sequence[Sequence[int]]) -> None:
    sizes = [end - start for start, end in zip(offsets[::2], offsets[1::2], strict=False)]
    rising = list(offsets) == sorted(offsets) and (not offsets or offsets[0] >= 0)
    expected = [prod(int(n) for n in shape) for shape in shapes]
    if len(offsets) != 2 * len(shapes) or not rising or sizes != expected:
        raise ShapeError(
            f"{name}: offsets do not fit, got {list(offsets)}, expected start and end of "
            f"{len(shapes)} tensors with {expected} elements"
        )


def pack_allreduce_split(
    pack_list: list[Tensor], shapes: Sequence[Sequence[int]], group: Group, reduce_method: str
) -> list[Tensor]:
    """Sum (or average) several tensors over ranks in one message.

    Args:
        pack_list: tensors of one dtype.
        shapes: theirs.
        group: the ranks.
        reduce_method: ``sum`` or ``mean``.

    Example::

        >>> [total] = pack_allreduce_split([Tensor([1.0])], [(1,)], WORLD, "sum")
        >>> total.numpy()
        array([1.], dtype=float32)
    """
    offsets = get_offsets(shapes)
    packed = all_reduce_sum(param_pack_concat(pack_list, None, offsets), group)
    if _method(reduce_method) == "mean":
        packed = packed / max(group.size, 1)
    return param_pack_split(packed, offsets, shapes)


class TensorFuture:
    """A gradient on its way: ``get`` returns it, and sends what has been packed until then.

    Example::

        >>> future = TensorFuture(lambda: future.set(Tensor([1.0])))
        >>> future.get().numpy()
        array([1.], dtype=float32)
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._found: Tensor | None = None

    def set(self, value: Tensor) -> None:
        """Give the value that ``get`` is to return."""
        self._found = value

    def get(self) -> Tensor:
        """Return the value, waiting for it if need be."""
        if self._found is None:
            self._flush()
        assert self._found is not None
        return self._found


class AllreduceCallback:
    """A callback for ``GradManager.attach`` that shares gradients among ranks.

    Gradients are packed by dtype and sent once 10 MiB have come, or all of a backward pass.

    Args:
        reduce_method: ``sum`` or ``mean``, in upper or lower case.
        group: the ranks; all must get gradients for the same parameters.
        backend: communicator to use, the group's own if None.

    Raises:
        AttrError: for any other ``reduce_method``.

    Example::

        >>> from tianyuan.autodiff import GradManager
        >>> w = Tensor([2.0])
        >>> gm = GradManager().attach(w, callbacks=[AllreduceCallback("mean")])
        >>> with gm:
        ...     gm.backward((w * w).sum())
        >>> w.grad.numpy()
        array([4.], dtype=float32)
    """

    def __init__(
        self, reduce_method: str, group: Group = WORLD, backend: str | None = None
    ) -> None:
        self.reduce_method = _method(reduce_method)
        self.group = group
        self.backend = backend
        self._packs: dict[np.dtype, list[tuple[Tensor, TensorFuture]]] = {}

    def __call__(self, param: Tensor, grad: Tensor) -> Tensor | TensorFuture:
        """Take a gradient over; return what will hold the shared one."""
        if not is_distributed() or self.group.size == 1:
            return grad
        future = TensorFuture(self._send_all)
        pack = self._packs.setdefault(grad.dtype, [])
        pack.append((grad, future))
        if sum(int(tensor.size) for tensor, _ in pack) * grad.itemsize >= PACK_BYTES:
            self._send(grad.dtype)
        return future

    def _send_all(self) -> None:
        for dtype in list(self._packs):
            self._send(dtype)

    def _send(self, dtype: np.dtype) -> None:
        pack = self._packs.pop(dtype)
        grads = [grad for grad, _ in pack]
        shapes = [grad.shape for grad in grads]
        with override_backend(self.backend or get_backend()):
            shared = pack_allreduce_split(grads, shapes, self.group, self.reduce_method)
        for (_, future), value in zip(pack, shared, strict=True):
            future.set(value)


make_allreduce_cb = AllreduceCallback


def _method(name: Any) -> str:
    found = name.lower() if isinstance(name, str) else name
    if found not in ("sum", "mean"):
        raise AttrError(f"allreduce: reduce_method is wrong, got {name!r}, expected sum or mean")
    return str(found)
