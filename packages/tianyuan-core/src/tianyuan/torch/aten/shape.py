"""ATen operators that move elements: views, joins, slices, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import functional as F
from ... import shapes
from ...functional.arguments import run
from ...functional.joining import cut
from ...imperative.tensor import Tensor
from .attention import causal
from .table import UnsupportedError, aten

_END = 1 << 62  # what torch writes for the end of an axis


def axis_of(x: Tensor, axis: int, more: int = 0) -> int:
    """Return an axis counted from the front."""
    return axis + x.ndim + more if axis < 0 else axis


@aten("view", "reshape", "_unsafe_view", "_reshape_copy", "view_copy")
def view(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.reshape(x, tuple(size))


@aten("flatten")
def flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    return F.flatten(x, start, end) if x.ndim else F.reshape(x, (1,))


@aten("unflatten")
def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    axis = axis_of(x, dim)
    extents = list(sizes)
    if -1 in extents:
        rest = shapes.volume(n for n in extents if n != -1)
        extents[extents.index(-1)] = x.shape[axis] // rest
    return F.reshape(x, (*x.shape[:axis], *extents, *x.shape[axis + 1 :]))


@aten("permute")
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return F.transpose(x, tuple(axis_of(x, dim) for dim in dims))


@aten("transpose")
def transpose(x: Tensor, first: int, second: int) -> Tensor:
    return F.swapaxes(x, axis_of(x, first), axis_of(x, second))


@aten("t")
def t(x: Tensor) -> Tensor:
    return F.transpose(x, (1, 0)) if x.ndim == 2 else x


@aten("squeeze")
def squeeze(x: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    given = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    axes = [axis_of(x, dim) for dim in given]
    gone = [a for a in axes if not shapes.symbols_of(x.shape[a]) and int(x.shape[a]) == 1]
    return F.squeeze(x, gone) if gone else x


@aten("unsqueeze")
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    return F.expand_dims(x, axis_of(x, dim, 1))


@aten("expand")
def expand(x: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    lead = len(size) - x.ndim
    want = [
        x.shape[axis - lead] if not shapes.symbols_of(n) and int(n) == -1 else n
        for axis, n in enumerate(size)
    ]
    return F.broadcast_to(x, tuple(want))


@aten("expand_as")
def expand_as(x: Tensor, other: Tensor) -> Tensor:
    return F.broadcast_to(x, other.shape)


@aten("copy")
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return F.broadcast_to(source.cast(x.dtype), x.shape)


@aten("repeat")
def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return F.tile(x, tuple(repeats))


@aten("cat")
def cat(xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    kept = [x for x in xs if x.ndim != 1 or int(x.shape[0])] or list(xs)[:1]
    return F.concat(kept, axis_of(kept[0], dim))


@aten("stack")
def stack(xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    return F.stack(list(xs), axis_of(xs[0], dim, 1))


@aten("split")
def split(x: Tensor, size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    axis = axis_of(x, dim)
    if not isinstance(size, int):
        return split_with_sizes(x, size, dim)
    extent = int(x.shape[axis])
    starts = range(0, max(extent, 1), max(int(size), 1))
    return [cut(x, axis, start, min(int(size), extent - start)) for start in starts]


@aten("split_with_sizes")
def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    axis, start, found = axis_of(x, dim), 0, []
    for size in sizes:
        found.append(cut(x, axis, start, size))
        start = size + start
    return found


@aten("chunk")
def chunk(x: Tensor, count: int, dim: int = 0) -> list[Tensor]:
    return split(x, -(-int(x.shape[axis_of(x, dim)]) // count), dim)


@aten("unbind")
def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [select(x, dim, index) for index in range(int(x.shape[axis_of(x, dim)]))]


@aten("select")
def select(x: Tensor, dim: int, index: int) -> Tensor:
    axis = axis_of(x, dim)
    start = x.shape[axis] + index if int(index) < 0 else index
    return F.squeeze(cut(x, axis, start, 1), axis)


def _bounds(x: Tensor, axis: int, start: Any, end: Any, step: int) -> tuple[int, int]:
    """Return first index and count of a slice, which keep the symbols of what they depend on."""
    extent = x.shape[axis]
    first = 0 if start is None else start
    first = extent + first if int(first) < 0 else first
    first = extent if int(first) > int(extent) else first
    last = extent if end is None or int(end) >= _END or int(end) > int(extent) else end
    last = extent + last if int(last) < 0 else last
    if int(last) <= int(first):
        return first, 0
    length = last - first
    return first, length if step == 1 else (length + step - 1) // step


@aten("slice")
def slice_(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    axis = axis_of(x, dim)
    first, count = _bounds(x, axis, start, end, step)
    return cut(x, axis, first, count, step)


@aten("narrow")
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return cut(x, axis_of(x, dim), start, length)


def _region(x: Tensor, axis: int, first: int, count: int, step: int) -> dict[str, Any]:
    starts, sizes, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], sizes[axis], steps[axis] = first, count, step
    return {"starts": tuple(starts), "sizes": tuple(sizes), "steps": tuple(steps)}


@aten("slice_scatter")
def slice_scatter(
    x: Tensor, v: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    axis = axis_of(x, dim)
    return run("slice_set", x, v, **_region(x, axis, *_bounds(x, axis, start, end, step), step))


@aten("select_scatter")
def select_scatter(x: Tensor, v: Tensor, dim: int, index: int) -> Tensor:
    axis = axis_of(x, dim)
    first = x.shape[axis] + index if int(index) < 0 else index
    return run("slice_set", x, F.expand_dims(v, axis), **_region(x, axis, first, 1, 1))


@aten("flip")
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        axis = axis_of(x, dim)
        x = cut(x, axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


@aten("roll")
def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return F.reshape(F.roll(F.flatten(x), shifts[0], 0), x.shape)
    return F.roll(x, tuple(shifts), tuple(axis_of(x, dim) for dim in dims))


@aten("tril")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    kept = F.reshape(_offset(x, diagonal), (*(1,) * (x.ndim - 2), x.shape[-2], x.shape[-1]))
    return run("where", kept, x, x.full((), 0))


@aten("triu")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    dropped = F.reshape(_offset(x, diagonal - 1), (*(1,) * (x.ndim - 2), x.shape[-2], x.shape[-1]))
    return run("where", dropped, x.full((), 0), x)


def _offset(x: Tensor, diagonal: int) -> Tensor:
    if not diagonal:
        return causal(x, x.shape[-2], x.shape[-1])
    vertical = F.add(F.expand_dims(F.arange(0, x.shape[-2], dtype="int32"), 1), diagonal)
    horizontal = F.expand_dims(F.arange(0, x.shape[-1], dtype="int32"), 0)
    return F.less_equal(horizontal, vertical)


def _padded(x: Tensor, widths: Sequence[int], mode: str, value: float) -> Tensor:
    """Pad by widths that torch gives from the last axis on; negative ones cut."""
    before, after = [0] * x.ndim, [0] * x.ndim
    for number in range(len(widths) // 2):
        axis = x.ndim - 1 - number
        pair = [widths[2 * number], widths[2 * number + 1]]
        cuts = [-int(n) if int(n) < 0 else 0 for n in pair]
        if any(cuts):
            x = cut(x, axis, cuts[0], x.shape[axis] - sum(cuts))
        before[axis], after[axis] = (n if int(n) > 0 else 0 for n in pair)
    if not any(before) and not any(after):
        return x
    return run("pad", x, before=tuple(before), after=tuple(after), mode=mode, value=float(value))


@aten("constant_pad_nd")
def constant_pad_nd(x: Tensor, widths: Sequence[int], value: float = 0) -> Tensor:
    return _padded(x, widths, "constant", value)


@aten("pad")
def pad(x: Tensor, widths: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if mode == "circular":
        return _wrapped(x, widths)
    if mode not in modes:
        names = ", ".join((*modes, "circular"))
        raise UnsupportedError(f"padding mode must be one of {names}, got {mode}")
    return _padded(x, widths, modes[mode], value or 0.0)


def _wrapped(x: Tensor, widths: Sequence[int]) -> Tensor:
    """Pad each axis by its other end, the last axis first; negative widths cut before."""
    for number in range(len(widths) // 2):
        axis = x.ndim - 1 - number
        before, after = (int(n) for n in widths[2 * number : 2 * number + 2])
        lost = max(0, -before)
        kept = cut(x, axis, lost, x.shape[axis] - lost - max(0, -after))
        parts = [kept]
        if before > 0:
            parts.insert(0, cut(kept, axis, kept.shape[axis] - before, before))
        if after > 0:
            parts.append(cut(kept, axis, 0, after))
        x = F.concat(parts, axis)
    return x


@aten("reflection_pad1d", "reflection_pad2d")
def reflection_pad(x: Tensor, widths: Sequence[int]) -> Tensor:
    return _padded(x, widths, "reflect", 0.0)


@aten("replication_pad1d", "replication_pad2d")
def replication_pad(x: Tensor, widths: Sequence[int]) -> Tensor:
    return _padded(x, widths, "edge", 0.0)


@aten("sym_size")
def sym_size(x: Tensor, dim: int) -> int:
    return x.shape[dim]


@aten("sym_numel")
def sym_numel(x: Tensor) -> int:
    return x.size


@aten(
    "_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range",
    "sym_constrain_range_for_size",
)  # fmt: skip
def promise(*_: Any, **__: Any) -> None:
    """Stand for what torch promises itself about sizes; ours are checked by each op."""
