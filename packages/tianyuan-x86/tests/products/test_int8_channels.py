"""Channels of 8-bit images, picked and joined, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.errors import KernelError
from tianyuan.ops.attrs import Axis
from tianyuan.ops.quantized import ConcatQuantized

ops.register_all()


def kernels(op: str, name: str) -> list[Any]:
    return [k for k in registry.candidates(op, "cpu", "x86") if name in k.name]


@pytest.mark.parametrize("kernel", kernels("take", "take_q8"), ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("size", "taken"), [(5, 6), (16, 16), (60, 60), (240, 33), (17, 300)])
def test_channels_are_taken_by_their_indices(
    kernel: Any, dtype: str, size: int, taken: int, call_of: Callable[..., Any], run: Any
) -> None:
    """Near and far sources, several to a vector, counted from either end."""
    rng = np.random.default_rng(size)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (2, size, 9, 11), endpoint=True).astype(dtype)
    orders = [rng.integers(-size, size, taken), np.arange(taken) * 7 % size, np.zeros(taken)]
    if taken <= size:
        orders.append(np.arange(size)[size - taken :])
    for threads in (1, 2):
        for order, index in zip(orders, ["int64", "int32", "int64", "int32"], strict=False):
            where = order.astype(index)
            call = call_of("take", [x, where], Axis(1), threads)
            assert registry.refusal(kernel, call) is None
            (got,) = run(kernel, call, [x, where])
            np.testing.assert_array_equal(got, x[:, where])


@pytest.mark.parametrize("kernel", kernels("take", "take_q8"), ids=str)
def test_indices_of_no_channel_are_refused(
    kernel: Any, call_of: Callable[..., Any], run: Any
) -> None:
    """The first and the last index that is too far out, and what the message says of them."""
    x = np.zeros((1, 20, 3, 3), np.uint8)
    for wrong in (20, -21):
        where = np.array([0, 1, 2, 3, wrong], np.int32)
        with pytest.raises(KernelError, match=f"got {wrong}, expected -20 to 19"):
            run(kernel, call_of("take", [x, where], Axis(1)), [x, where])


@pytest.mark.parametrize("kernel", kernels("concat_quantized", "image"), ids=str)
@pytest.mark.parametrize("factor", [0.7211111187934875, 1.8214837312698364, 3e6])
@pytest.mark.parametrize("channels", [(5, 24), (16, 31), (33, 63), (216, 8)])
def test_joined_channels_are_rescaled_each(
    kernel: Any, factor: float, channels: tuple[int, ...], call_of: Callable[..., Any], run: Any
) -> None:
    """Every byte, at every place of a vector, with bounds inside of the dtype's and without."""
    rng = np.random.default_rng(channels[0])
    forms = [("uint8", 115), ("int8", -9)]
    arrays = [
        rng.permuted(np.resize(np.arange(256, dtype=np.uint8), (2, c, 12, 12)), axis=1).view(dtype)
        for c, (dtype, _) in zip(channels, forms, strict=True)
    ]
    for lower, upper in ((0, 255), (7, 200)):
        attrs = ConcatQuantized(
            axis=1, x_zero_points=(115, -9), multipliers=(factor, 1.25), scale=1.0, zero_point=7,
            dtype="uint8", lower=lower, upper=upper,
        )  # fmt: skip
        parts = [
            (x.astype(np.int64) - zero).astype(np.float32) * np.float32(multiplier)
            for x, (_, zero), multiplier in zip(arrays, forms, (factor, 1.25), strict=True)
        ]
        found = np.rint(np.concatenate(parts, 1)).astype(np.int64) + 7
        want = np.clip(found, lower, upper).astype(np.uint8)
        call = call_of("concat_quantized", arrays, attrs)
        assert registry.refusal(kernel, call) is None
        (got,) = run(kernel, call, arrays)
        np.testing.assert_array_equal(got, want)
