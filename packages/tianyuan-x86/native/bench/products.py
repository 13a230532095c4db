"""Time products and convolutions and report each one's share of the machine's measured peak.

Shapes run interleaved, in one thread, and medians are reported:

    python native/bench/products.py [--tier avx512] [--rounds 15] [--match conv2d]
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
from tianyuan import registry
from tianyuan.imperative.dispatch import bind_kernel, empty, logical
from tianyuan.kernel import Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeight
from tianyuan.ops.matmul import Matmul

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """One kernel on one shape."""

    label: str
    kernel: Kernel
    call: Call
    flops: float


# batch, channels, height = width, outputs, kernel, stride: ResNet-50, then ResNet-18 on CIFAR.
INFERENCE = [
    (1, 3, 224, 64, 7, 2), (1, 64, 56, 64, 3, 1), (1, 128, 28, 128, 3, 1), (1, 256, 14, 256, 3, 1),
    (1, 512, 7, 512, 3, 1), (1, 128, 56, 128, 3, 2), (1, 64, 56, 64, 1, 1), (1, 64, 56, 256, 1, 1),
    (1, 256, 56, 64, 1, 1), (1, 512, 28, 128, 1, 1), (1, 1024, 14, 256, 1, 1),
    (1, 2048, 7, 512, 1, 1), (1, 512, 7, 2048, 1, 1), (1, 256, 56, 512, 1, 2),
]  # fmt: skip
TRAINING = [
    (32, 64, 32, 64, 3, 1), (32, 128, 16, 128, 3, 1), (32, 256, 8, 256, 3, 1),
    (32, 512, 4, 512, 3, 1), (32, 64, 32, 128, 3, 2),
]  # fmt: skip
DEPTHWISE = [(1, 32, 112, 3, 1), (1, 144, 56, 3, 2), (1, 384, 14, 3, 1), (1, 960, 7, 3, 1)]
# rows, columns, inner extent, whether b is transposed
PRODUCTS = [
    (1024, 1024, 1024, False), (512, 512, 2048, False), (512, 2048, 512, True),
    (128, 768, 768, True), (8, 768, 768, True), (64, 64, 64, False), (1, 1000, 2048, True),
]  # fmt: skip


def measured_peaks() -> dict[str, float]:
    """Return peak operations per second by tier, measured by peak.c."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peak"
        source = Path(__file__).with_name("peak.c")
        subprocess.run(["cc", "-O2", "-march=native", source, "-o", program], check=True)
        text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: float(rate) * 1e9 for name, rate in map(str.split, text.splitlines())}


def _jobs_of(
    op_name: str, tier: str, label: str, shapes: list[Shape], attrs: Any, flops: float
) -> Iterator[Job]:
    op = registry.get_op(op_name)
    specs = tuple(TensorSpec(shape, np.dtype(np.float32)) for shape in shapes)
    call = Call(op, specs, op.infer(specs, attrs), attrs, 1)
    for kernel in registry.candidates(op_name, "cpu", "x86"):
        if kernel.is_native and kernel.isa == tier and kernel.supports(call) is None:
            yield Job(f"{kernel.name} {label}", kernel, call, flops)


def _conv_jobs(tier: str) -> Iterator[Job]:
    for n, c, size, o, k, stride in INFERENCE + TRAINING:
        half = (k // 2,) * 4
        geometry: dict[str, Any] = {"stride": (stride, stride), "padding": half}
        out = (size + 2 * (k // 2) - k) // stride + 1
        flops = 2.0 * n * o * out * out * c * k * k
        x, w, y = (n, c, size, size), (o, c, k, k), (n, o, out, out)
        label = f"n{n} c{c} {size}x{size} o{o} k{k} s{stride}"
        yield from _jobs_of("conv2d", tier, label, [x, w], Conv2d(**geometry), flops)
        if n > 1:
            data = Conv2dBackwardData(**geometry, size=(size, size))
            weight = Conv2dBackwardWeight(**geometry, size=(k, k))
            yield from _jobs_of("conv2d_backward_data", tier, label, [y, w], data, flops)
            yield from _jobs_of("conv2d_backward_weight", tier, label, [x, y], weight, flops)
    for n, c, size, k, stride in DEPTHWISE:
        attrs = Conv2d(stride=(stride, stride), padding=(k // 2,) * 4, groups=c)
        out = (size + 2 * (k // 2) - k) // stride + 1
        label = f"n{n} c{c} {size}x{size} k{k} s{stride} depthwise"
        shapes: list[Shape] = [(n, c, size, size), (c, 1, k, k)]
        yield from _jobs_of("conv2d", tier, label, shapes, attrs, 2.0 * n * c * out * out * k * k)


def _matmul_jobs(tier: str) -> Iterator[Job]:
    for m, n, k, transposed in PRODUCTS:
        attrs = Matmul(False, transposed)
        label = f"{m}x{n}x{k}{' transposed' if transposed else ''}"
        shapes: list[Shape] = [(m, k), (n, k) if transposed else (k, n)]
        yield from _jobs_of("matmul", tier, label, shapes, attrs, 2.0 * m * n * k)


def _bind(job: Job) -> Callable[[], None]:
    """Return a function that runs the job once, in the kernel's own layouts."""
    rng = np.random.default_rng(0)
    forms = job.kernel.layouts

    def value(layout: str, spec: TensorSpec, filled: bool) -> np.ndarray:
        shape = spec.shape if layout == "plain" else registry.get_layout(layout).extents(spec.shape)
        array = empty(shape, spec.dtype)
        if filled:
            array[...] = rng.standard_normal(shape)
        return logical(array, spec.shape)

    inputs = [value(forms.of_input(i), s, True) for i, s in enumerate(job.call.inputs)]
    outputs = [value(forms.of_output(i), s, False) for i, s in enumerate(job.call.outputs)]
    scratch = empty((max(job.kernel.workspace(job.call), 64),), np.dtype(np.uint8))
    run = bind_kernel(job.kernel, job.call)
    return lambda: run(inputs, outputs, scratch)


def _timed(run: Callable[[], None], repeats: int) -> float:
    start = thread_time()
    for _ in range(repeats):
        run()
    return (thread_time() - start) / repeats


def main() -> None:
    """Parse the command line, run, and print one line per job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tier", default="avx512")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--match", default="")
    options = parser.parse_args()
    peak = measured_peaks()[options.tier]
    jobs = [*_conv_jobs(options.tier), *_matmul_jobs(options.tier)]
    jobs = [job for job in jobs if options.match in job.label]
    runs = [_bind(job) for job in jobs]
    repeats = [max(1, int(1e9 / (job.flops + 1))) for job in jobs]
    times: list[list[float]] = [[] for _ in jobs]
    for run in runs:
        run()
    for _ in range(options.rounds):
        for run, count, found in zip(runs, repeats, times, strict=True):
            found.append(_timed(run, min(count, 50)))
    print(f"peak of one thread, {options.tier}: {peak / 1e9:.1f} Gop/s")
    for job, found in zip(jobs, times, strict=True):
        rate = job.flops / median(found)
        print(
            f"{rate / peak:6.1%} {rate / 1e9:7.1f} Gop/s {median(found) * 1e6:9.1f} us  {job.label}"
        )


if __name__ == "__main__":
    main()
