"""Kernels give the same bits on any number of threads, however planes and outputs divide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tianyuan import native, registry
from tianyuan.kernel import Call, Kernel
from tianyuan.ops.bottleneck import Bottleneck
from tianyuan.ops.conv import Conv2d
from tianyuan.ops.quantized_product import Conv2dQuantized

torch = pytest.importorskip("torch")

THREADS = (1, 2, 3, 5)
SAME = (1, 1, 1, 1)
# c, size, o, kernel, stride, groups: more weights than pixels and the reverse, odd counts of both
CONVOLUTIONS = [
    (32, (7, 7), 160, 1, 1, 1),
    (32, (3, 3), 176, 1, 1, 1),
    (96, (7, 7), 240, 1, 1, 3),
    (48, (14, 14), 64, 1, 1, 1),
    (16, (29, 31), 24, 1, 1, 1),
    (32, (13, 13), 96, 3, 2, 1),
    (16, (28, 28), 32, 3, 1, 1),
    (32, (7, 7), 272, 3, 1, 1),
    (3, (33, 30), 24, 3, 2, 1),
    (24, (15, 14), 24, 3, 1, 24),
    (96, (7, 7), 96, 3, 1, 96),
    (60, (14, 14), 40, 1, 1, 4),
]


def kernels_of(op: str) -> list[Kernel]:
    return [k for k in registry.candidates(op, "cpu", "x86") if k.is_native]


@pytest.fixture(scope="module", autouse=True)
def five_threads() -> Iterator[None]:
    """Let the pool have as many threads as the tests ask for."""
    before = native.get_num_threads()
    native.set_num_threads(max(THREADS))
    yield
    native.set_num_threads(before)


def assert_fewer_serve(run: Any, each: Kernel, call: Call, arrays: Any, want: np.ndarray) -> None:
    """Run what is planned for several threads with fewer, as in a pool that became smaller."""
    for threads in range(1, call.threads):
        (got,) = run(each, call, arrays, threads)
        np.testing.assert_array_equal(got, want, f"{each.name}: {threads} of {call.threads}")


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(case: Any, run: Any, call_of: Any) -> None:
    c, size, o, kernel, stride, groups = case
    rng = np.random.default_rng(c * o)
    pad = kernel // 2
    x = rng.standard_normal((1, c, *size), np.float32)
    w = rng.standard_normal((o, c // groups, kernel, kernel), np.float32)
    attrs = Conv2d(stride=(stride, stride), padding=(pad,) * 4, groups=groups)
    double = [torch.from_numpy(array).double() for array in (x, w)]
    want = torch.nn.functional.conv2d(*double, None, stride, pad, 1, groups).numpy()
    names = set()
    for each in kernels_of("conv2d"):
        calls = [call_of("conv2d", (x, w), attrs, threads) for threads in THREADS]
        if any(each.supports(call) is not None for call in calls):
            continue
        names.add(each.name.split("__")[1].split("_", 1)[1])
        alone, *others = (run(each, call, (x, w))[0] for call in calls)
        rtol, atol = (2e-2, 0.2) if "bf16" in each.name else (1e-3, 1e-2)
        np.testing.assert_allclose(alone, want, rtol=rtol, atol=atol, err_msg=each.name)
        for threads, got in zip(THREADS[1:], others, strict=True):
            np.testing.assert_array_equal(got, alone, f"{each.name} on {threads} threads")
        assert_fewer_serve(run, each, calls[-1], (x, w), alone)
    assert names & {"direct", "first", "depthwise", "grouped_4"}


def of_bytes(stride: int, pad: int, groups: int, zero: int, multiplier: float) -> Conv2dQuantized:
    return Conv2dQuantized(
        stride=(stride, stride), padding=(pad,) * 4, dilation=(1, 1), groups=groups, has_bias=True,
        has_residual=False, x_zero_point=zero, w_zero_points=(0,), multipliers=(multiplier,),
        residual_zero_point=0, residual_multiplier=1.0, scale=1.0, zero_point=0, dtype="int8",
        lower=-128, upper=127,
    )  # fmt: skip


@pytest.mark.parametrize(
    "case", [case for case in CONVOLUTIONS if case[5] in (1, case[0])], ids=str
)
def test_convolution_of_bytes(case: Any, run: Any, call_of: Any) -> None:
    c, size, o, kernel, stride, groups = case
    rng = np.random.default_rng(c + o)
    pad = kernel // 2
    x = rng.integers(0, 256, (1, c, *size)).astype(np.uint8)
    w = rng.integers(-128, 128, (o, c // groups, kernel, kernel)).astype(np.int8)
    bias = rng.integers(-(2**16), 2**16, o).astype(np.int32)
    attrs = of_bytes(stride, pad, groups, 0, 2.0**-12)
    double = [torch.from_numpy(array).double() for array in (x, w, bias)]
    sums = torch.nn.functional.conv2d(*double, stride, pad, 1, groups).numpy()
    want = np.clip(np.rint(sums * 2.0**-12), -128, 127).astype(np.int8)
    count = 0
    for each in kernels_of("conv2d_quantized"):
        calls = [call_of("conv2d_quantized", (x, w, bias), attrs, threads) for threads in THREADS]
        if any(registry.refusal(each, call) is not None for call in calls):
            continue
        count += 1
        for call in calls:
            (got,) = run(each, call, (x, w, bias))
            np.testing.assert_array_equal(got, want, f"{each.name} on {call.threads} threads")
        assert_fewer_serve(run, each, calls[-1], (x, w, bias), want)
    assert count


@pytest.mark.parametrize("planned", [3, 4, 5])
def test_depthwise_bands_of_fewer_threads_are_larger(planned: int, run: Any, call_of: Any) -> None:
    rng = np.random.default_rng(planned)
    c, rows = 1024, planned
    x = rng.integers(-128, 128, (1, c, rows, 48)).astype(np.int8)
    w = rng.integers(-128, 128, (c, 1, 1, 1)).astype(np.int8)
    bias = np.zeros(c, np.int32)
    attrs = of_bytes(1, 0, c, 3, 2.0**-8)
    products = (x.astype(np.float64) - 3) * w[:, 0].astype(np.float64)
    want = np.clip(np.rint(products * 2.0**-8), -128, 127).astype(np.int8)
    call = call_of("conv2d_quantized", (x, w, bias), attrs, planned)
    served = [k for k in kernels_of("conv2d_quantized") if registry.refusal(k, call) is None]
    assert any("depthwise" in each.name for each in served)
    for each in served:
        assert_fewer_serve(run, each, call, (x, w, bias), want)


@pytest.mark.parametrize("size", [(7, 7), (14, 14), (15, 13), (28, 28)], ids=str)
@pytest.mark.parametrize("expands", [False, True])
def test_bottleneck(size: tuple[int, int], expands: bool, run: Any, call_of: Any) -> None:
    rng = np.random.default_rng(sum(size))
    narrow, wide, o = (20 if expands else 72), 72, 40

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    first = [numbers(wide, narrow, 1, 1), numbers(wide)] if expands else []
    rest = [numbers(wide, 1, 3, 3), numbers(wide), numbers(o, wide, 1, 1), numbers(o)]
    arrays = [numbers(1, narrow, *size), *first, *rest]
    attrs = Bottleneck(padding=SAME, expands=expands, expanded="relu", filtered="relu")
    mid = torch.from_numpy(arrays[0]).double()
    weights = [torch.from_numpy(array).double() for array in arrays[1:]]
    conv = torch.nn.functional.conv2d
    if expands:
        mid = conv(mid, weights.pop(0), weights.pop(0)).relu()
    mid = conv(mid, weights.pop(0), weights.pop(0), padding=1, groups=wide).relu()
    want = conv(mid, weights.pop(0), weights.pop(0)).numpy()
    count = 0
    for each in kernels_of("bottleneck"):
        calls = [call_of("bottleneck", arrays, attrs, threads) for threads in THREADS]
        if any(each.supports(call) is not None for call in calls):
            continue
        count += 1
        alone, *others = (run(each, call, arrays)[0] for call in calls)
        np.testing.assert_allclose(alone, want, rtol=1e-4, atol=1e-3, err_msg=each.name)
        for threads, got in zip(THREADS[1:], others, strict=True):
            np.testing.assert_array_equal(got, alone, f"{each.name} on {threads} threads")
        assert_fewer_serve(run, each, calls[-1], arrays, alone)
    assert count
