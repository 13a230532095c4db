"""Normalisation over batches, layers, groups, instances and neighbours."""

from __future__ import annotations

from ... import dtypes, shapes
from ...errors import AttrError
from ..limits import check_taps
from ..node import Node
from ..table import operator
from .common import Tensor, binary, normal_axis, reshaped, run, run_many, zero_padded
from .pool import powered, root


@operator("BatchNormalization", 7, frozen=(3, 4))
def batch_norm(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor | tuple[Tensor, ...]:
    """Normalise each channel by the file's statistics; in training mode also return new ones."""
    eps = node.float("epsilon", 1e-5)
    flat = reshaped(x, (*x.shape, 1)) if x.ndim == 1 else x
    mean, var, scale, bias = (v.astype(x.dtype) for v in (mean, var, scale, bias))
    if not node.flag("training_mode"):
        return reshaped(run("batch_norm", flat, mean, var, scale, bias, eps=eps), x.shape)
    y, batch_mean, batch_var = run_many("batch_norm_train", flat, scale, bias, eps=eps)
    kept = node.float("momentum", 0.9)
    moved = [
        run("add", binary("mul", old, kept), binary("mul", new, 1 - kept))
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return (reshaped(y, x.shape), *moved)


@operator("InstanceNormalization", 6)
def instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    channels = int(x.shape[1])
    return run("group_norm", x, scale, bias, groups=channels, eps=node.float("epsilon", 1e-5))


@operator("GroupNormalization", 21)
def group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = node.int("num_groups")
    return run("group_norm", x, scale, bias, groups=groups, eps=node.float("epsilon", 1e-5))


@operator("GroupNormalization", 18, 20)
def group_norm_by_group(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalise groups of channels, with one scale and bias per group."""
    groups, channels = node.int("num_groups"), x.shape[1]
    each = channels // groups
    wide = [
        reshaped(run("broadcast_to", reshaped(v, (groups, 1)), shape=(groups, each)), (channels,))
        for v in (scale, bias)
    ]
    return run("group_norm", x, *wide, groups=groups, eps=node.float("epsilon", 1e-5))


@operator("LayerNormalization", 17)
def layer_norm(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Normalise over the axes from ``axis`` on; also return mean and inverse deviation."""
    axis, eps = normal_axis(node.int("axis", -1), x.ndim), node.float("epsilon", 1e-5)
    extents = tuple(x.shape[axis:])
    fits = tuple(map(int, scale.shape)) == tuple(map(int, extents)) and (
        bias is None or tuple(map(int, bias.shape)) == tuple(map(int, extents))
    )
    stash = node.int("stash_type", 1)
    plain = len(node.outputs) == 1 and fits and dtypes.name_of(x.dtype) in ("float32", "float64")
    if plain:
        shift = scale.full(extents, 0.0) if bias is None else bias
        return run("layer_norm", x, scale, shift, ndim=len(extents), eps=eps, affine=True)
    wide = x.astype("float32") if stash == 1 else x
    axes = tuple(range(axis, x.ndim))
    mean = run("mean", wide, axes=axes, keepdims=True)
    centred = run("sub", wide, mean)
    variance = run("mean", run("square", centred), axes=axes, keepdims=True)
    inverse = run("reciprocal", run("sqrt", binary("add", variance, eps)))
    y = run("mul", run("mul", centred, inverse).astype(x.dtype), scale)
    y = y if bias is None else run("add", y, bias)
    return y, mean, inverse


@operator("RMSNormalization", 23)
def rms_norm(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    """Divide by the root of the mean square over the axes from ``axis`` on."""
    axis, eps = normal_axis(node.int("axis", -1), x.ndim), node.float("epsilon", 1e-5)
    wide = x.astype("float32") if node.int("stash_type", 1) == 1 else x
    axes = tuple(range(axis, x.ndim))
    mean = run("mean", run("square", wide), axes=axes, keepdims=True)
    y = run("div", wide, run("sqrt", binary("add", mean, eps)))
    return run("mul", y.astype(scale.dtype), scale)


@operator("LpNormalization")
def lp_norm(node: Node, x: Tensor) -> Tensor:
    """Divide by the norm along an axis; where it is zero the result is zero."""
    axis, p = normal_axis(node.int("axis", -1), x.ndim), node.int("p", 2)
    if p not in (1, 2):
        raise AttrError(f"p is wrong, got {p}, expected 1 or 2")
    size = root(run("sum", powered(x, p), axes=(axis,), keepdims=True), p)
    empty = binary("equal", size, 0)
    safe = run("where", empty, size.full((), 1.0), size)
    return run("div", x, safe)


@operator("LRN")
def lrn(node: Node, x: Tensor) -> Tensor:
    """Divide by (bias + alpha / size * sum of squares over neighbouring channels)**beta."""
    size = node.int("size")
    if size < 1 or x.ndim < 3:
        raise AttrError(f"size must be positive, got {size} for {shapes.format_shape(x.shape)}")
    check_taps((size,))
    n, c = x.shape[:2]
    rest = shapes.volume(x.shape[2:])
    front = (size - 1) // 2
    squares = zero_padded(
        reshaped(run("square", x), (n, c, rest)), (0, front, 0), (0, size - 1 - front, 0)
    )
    total = None
    for k in range(size):
        part = run("slice", squares, starts=(0, k, 0), sizes=(n, c, rest), steps=(1, 1, 1))
        total = part if total is None else run("add", total, part)
    assert total is not None
    scaled = binary("mul", reshaped(total, x.shape), node.float("alpha", 1e-4) / size)
    base = binary("add", scaled, node.float("bias", 1.0))
    return run("div", x, binary("pow", base, node.float("beta", 0.75)))
