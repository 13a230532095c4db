"""Define the blocked layouts and describe the kernels that repack between them and plain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts, bytes_cost
from tianyuan.shapes import Shape

from .._tier import LANES, Tier


def activation_layout(lanes: int) -> str:
    """Return the name of the layout of images whose channels lie in blocks of ``lanes``."""
    return f"nchw{lanes}c"


def weight_layout(lanes: int) -> str:
    """Return the name of the layout of weights in matrices of ``lanes`` x ``lanes``."""
    return f"oihw{lanes}i{lanes}o"


def depthwise_layout(lanes: int) -> str:
    """Return the name of the layout of depthwise weights in blocks of ``lanes`` groups."""
    return f"goihw{lanes}g"


def blocks(count: int, lanes: int) -> int:
    """Return how many blocks of ``lanes`` hold ``count`` channels."""
    return -(-count // lanes)


def _padded(array: np.ndarray, lanes: int, axes: int) -> np.ndarray:
    """Return the array with zeros behind its first ``axes`` axes up to whole blocks."""
    extra = [(0, -extent % lanes) for extent in array.shape[:axes]]
    return np.pad(array, extra + [(0, 0)] * (array.ndim - axes))


def _image_extents(lanes: int, shape: Shape) -> Shape:
    n, c, h, w = shape
    return (n, blocks(c, lanes), h, w, lanes)


def _pack_image(lanes: int, array: np.ndarray) -> np.ndarray:
    n, c, h, w = array.shape
    padded = np.pad(array, ((0, 0), (0, -c % lanes), (0, 0), (0, 0)))
    split = padded.reshape(n, blocks(c, lanes), lanes, h, w)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def _unpack_image(lanes: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    n, c, h, w = shape
    merged = array.transpose(0, 1, 4, 2, 3).reshape(n, blocks(c, lanes) * lanes, h, w)
    return np.ascontiguousarray(merged[:, :c])


def _weight_extents(lanes: int, shape: Shape) -> Shape:
    o, i, h, w = shape
    return (blocks(o, lanes), blocks(i, lanes), h, w, lanes, lanes)


def _pack_weight(lanes: int, array: np.ndarray) -> np.ndarray:
    o, i, h, w = array.shape
    split = _padded(array, lanes, 2).reshape(blocks(o, lanes), lanes, blocks(i, lanes), lanes, h, w)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1))


def _unpack_weight(lanes: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    o, i, h, w = shape
    split = array.transpose(0, 5, 1, 4, 2, 3)
    merged = split.reshape(blocks(o, lanes) * lanes, blocks(i, lanes) * lanes, h, w)
    return np.ascontiguousarray(merged[:o, :i])


def _depthwise_extents(lanes: int, shape: Shape) -> Shape:
    g, i, h, w = shape
    return (blocks(g, lanes), i, h, w, lanes)


def _pack_depthwise(lanes: int, array: np.ndarray) -> np.ndarray:
    g, i, h, w = array.shape
    split = _padded(array, lanes, 1).reshape(blocks(g, lanes), lanes, i, h, w)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1))


def _unpack_depthwise(lanes: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    g, i, h, w = shape
    merged = array.transpose(0, 4, 1, 2, 3).reshape(blocks(g, lanes) * lanes, i, h, w)
    return np.ascontiguousarray(merged[:g])


def layouts() -> list[Layout]:
    """Return the blocked layouts of all tiers; their padding lanes are zero."""
    found = []
    for lanes in sorted(LANES.values(), reverse=True):
        for name, extents, pack, unpack in (
            (activation_layout(lanes), _image_extents, _pack_image, _unpack_image),
            (weight_layout(lanes), _weight_extents, _pack_weight, _unpack_weight),
            (depthwise_layout(lanes), _depthwise_extents, _pack_depthwise, _unpack_depthwise),
        ):
            found.append(
                Layout(
                    name=name,
                    ndim=4,
                    extents=partial(extents, lanes),
                    pack=partial(pack, lanes),
                    unpack=partial(unpack, lanes),
                    padding="zero",
                )
            )
    return found


def serves(source: str, target: str) -> Callable[[Call], str | None]:
    """Return a ``supports`` that takes one kind of repacking."""

    def supports(call: Call) -> str | None:
        if (call.attrs.source, call.attrs.target) == (source, target):
            return None
        return f"repacks {source} to {target}"

    return supports


def _cost(call: Call) -> float:
    return 5e-7 + bytes_cost(call, 8e9)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the relayout kernels of a tier, which serve blocks of its own vector width."""
    found = []
    for what, name in (
        ("nchw", activation_layout(tier.lanes)),
        ("oihw", weight_layout(tier.lanes)),
        ("goihw", depthwise_layout(tier.lanes)),
    ):
        for verb, source, target in (("pack", PLAIN, name), ("unpack", name, PLAIN)):
            found.append(
                tier.kernel(
                    "relayout_f32",
                    f"{verb}_{what}",
                    "relayout",
                    dtypes=("float32",),
                    layouts=Layouts((source,), (target,)),
                    supports=serves(source, target),
                    cost=_cost,
                )
            )
    return found
