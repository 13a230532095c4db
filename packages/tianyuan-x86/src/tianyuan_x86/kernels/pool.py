"""Describe the kernels of pooling: plain by planes, and in layouts of channel blocks."""

from __future__ import annotations

from collections.abc import Callable

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import LANES, Tier
from ._cost import START, memory_cost
from ._element import Element, element_of

_BLOCKED_RATE = 5e10  # bytes per second and thread
_ROOM = 64  # floats behind the padded row of max pooling, as in native/kernels/pool.cpp


def _padded_width(call: Call, outputs: int) -> int:
    kernel, stride, padding = call.attrs.kernel, call.attrs.stride, call.attrs.padding
    width = int(call.inputs[0].shape[3])
    return width + outputs * int(stride[1]) + int(kernel[1]) + int(padding[1]) + _ROOM


def _max_row_bytes(call: Call) -> int:
    return max(1, call.threads) * _padded_width(call, int(call.outputs[0].shape[3])) * 4


def _argmax_bytes(call: Call) -> int:
    """Return the room for a padded row, the same by phases, the best values and their places."""
    pooled = call.inputs[1] if call.op.name == "max_pool2d_backward" else call.outputs[0]
    return max(1, call.threads) * 4 * _padded_width(call, int(pooled.shape[3])) * 4


def _row_bytes(call: Call) -> int:
    width = max(int(spec.shape[3]) for spec in (*call.inputs, *call.outputs))
    return max(1, call.threads) * width * 4


def _work(call: Call) -> tuple[float, int]:
    """Return how many values windows hold, and how many threads share them."""
    images = [spec.size for spec in (*call.inputs, *call.outputs)]
    window = 1.0
    if hasattr(call.attrs, "kernel"):
        window = float(int(call.attrs.kernel[0]) * int(call.attrs.kernel[1]))
    work = max(float(max(images)), min(images) * window)
    return work, max(1, min(call.threads, max(images) // 16384))


def _window_cost(nanoseconds: float) -> Callable[[Call], float]:
    """Return a cost function: memory traffic, and time for each value of each window."""

    def cost(call: Call) -> float:
        work, threads = _work(call)
        return memory_cost(call) + work * nanoseconds * 1e-9 / threads

    return cost


def _blocked_cost(element: Element) -> Callable[[Call], float]:
    """Return the same for images in blocks; bfloat16 moves half as much, and is widened."""
    size, nanoseconds = (4, 0.03) if element.name == "f32" else (2, 0.06)

    def cost(call: Call) -> float:
        work, threads = _work(call)
        moved = size * sum(spec.size for spec in (*call.inputs, *call.outputs))
        return START + (moved / _BLOCKED_RATE + work * nanoseconds * 1e-9) / threads

    return cost


def _averages_images(call: Call) -> str | None:
    """Refuse all but the mean of images over both axes."""
    axes = tuple(int(axis) for axis in call.attrs.axes)
    if call.inputs[0].ndim != 4 or axes != (2, 3):
        return "serves the mean of images over (2, 3)"
    return None


def _to_one_pixel(call: Call) -> str | None:
    """Refuse all but pooling to one pixel."""
    if tuple(int(n) for n in call.attrs.size) != (1, 1):
        return "serves pooling to one pixel"
    return None


def _average_cost(call: Call) -> float:
    """Return the seconds of averaging whole images."""
    return memory_cost(call) + START


def _plain(tier: Tier) -> list[Kernel]:
    rooms: dict[str, tuple[Callable[[Call], int], float]] = {
        "max_pool2d": (_max_row_bytes, 0.15),
        "max_pool2d_backward": (_argmax_bytes, 0.3),
        "max_pool2d_pick": (_argmax_bytes, 0.3),
        "avg_pool2d": (_row_bytes, 0.3),
        "avg_pool2d_backward": (_row_bytes, 0.3),
        "adaptive_avg_pool2d": (_row_bytes, 0.3),
        "adaptive_avg_pool2d_backward": (_row_bytes, 0.3),
    }
    without = (
        "adaptive_max_pool2d", "adaptive_max_pool2d_backward", "adaptive_max_pool2d_pick",
    )  # fmt: skip
    found = [
        tier.kernel(
            f"{op}_f32",
            "planes",
            op,
            dtypes=("float32",),
            cost=_window_cost(nanoseconds),
            workspace=room,
        )
        for op, (room, nanoseconds) in rooms.items()
    ]
    return found + [
        tier.kernel(f"{op}_f32", "planes", op, dtypes=("float32",), cost=_window_cost(1.0))
        for op in without
    ]


def _blocked(tier: Tier) -> list[Kernel]:
    element = element_of(tier)
    image, window = element.image, _blocked_cost(element)
    average = element.moving(_average_cost)
    same, to_plain = Layouts((image,), (image,)), Layouts((image,), (PLAIN,))
    common = {"dtypes": ("float32",), **element.described}
    found = [
        tier.kernel(f"{op}_{element.name}", "blocked", op, layouts=same, cost=window, **common)
        for op in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")
    ]
    return found + [
        tier.kernel(
            f"{op}_{element.name}",
            variant,
            op,
            layouts=to_plain,
            supports=supports,
            cost=average,
            **common,
        )
        for op, variant, supports in (
            ("mean", "blocked_images", _averages_images),
            ("adaptive_avg_pool2d", "blocked_to_plain", _to_one_pixel),
        )
    ]


def kernels(tier: Tier) -> list[Kernel]:
    """Return the pooling kernels of a tier."""
    return [*(_plain(tier) if tier.name in LANES else ()), *_blocked(tier)]
