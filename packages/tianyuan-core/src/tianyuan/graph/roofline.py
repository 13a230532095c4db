"""Hold each step's time against what the machine allows: arithmetic at its peak, bytes at theirs.

The roofline model (Williams, Waterman and Patterson, 2009): a step cannot be faster than the larger
of its operations over the peak rate and its bytes over the bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .. import native, registry
from ..kernel import PLAIN, Call
from ..op import Specs, TensorSpec
from . import profiling
from .explain import StepReport, explain, text_table
from .program import Program

_MATRIX = 512  # extent of the product whose rate is the peak
_ROUNDS = 4
_COPIED = 1 << 25  # elements of the copy whose rate is the bandwidth: far more than caches hold
_SHOWN = 5  # steps that the summary names


@dataclass(frozen=True)
class Peaks:
    """What the machine was measured to do with so many threads.

    Attributes:
        flops: operations per second of the fastest float32 matrix product of 512 x 512 x 512.
        nbytes: bytes per second of the fastest copy of 128 MiB, read and written counted.
    """

    flops: float
    nbytes: float
    threads: int


@dataclass(frozen=True)
class RooflineStep:
    """One step: its report, its time and the least time that the machine allows."""

    report: StepReport
    seconds: float
    floor: float
    bound: str

    @property
    def share(self) -> float:
        """Return the floor's share of the time: 1 is as fast as the machine allows."""
        return self.floor / self.seconds if self.seconds > 0 else 1.0

    @property
    def lost(self) -> float:
        """Return the seconds above the floor."""
        return max(self.seconds - self.floor, 0.0)


@dataclass(frozen=True)
class Roofline:
    """A program's steps beside the peaks; its text is a table, then the steps that lose most."""

    steps: tuple[RooflineStep, ...]
    peaks: Peaks

    @property
    def seconds(self) -> float:
        """Return the time of all steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def floor(self) -> float:
        """Return the least time that the machine allows for all steps."""
        return sum(step.floor for step in self.steps)

    def worst(self, count: int = _SHOWN) -> tuple[RooflineStep, ...]:
        """Return the steps that lose most time against their floor, the first the most."""
        return tuple(sorted(self.steps, key=lambda step: -step.lost)[:count])

    def __str__(self) -> str:
        head = ("#", "kernel", "output", "us", "of all", "GFLOP/s", "GB/s", "bound", "reached")
        rows = [_row(step, self.seconds) for step in self.steps]
        return "\n".join([*text_table([head, *rows]), *self._summary()])

    def _summary(self) -> list[str]:
        peaks = self.peaks
        lines = [
            f"{self.seconds * 1e6:.1f} us in steps, {self.floor * 1e6:.1f} us at the peaks of "
            f"{peaks.flops / 1e9:.1f} GFLOP/s and {peaks.nbytes / 1e9:.1f} GB/s "
            f"on {peaks.threads} threads",
            "what holds it back most:",
        ]
        for step in self.worst():
            report = step.report
            lines.append(
                f"  step {report.index}, {report.kernel}: {step.lost * 1e6:.1f} us above its "
                f"{step.bound} bound"
            )
            lines += [f"    {who} refused: {why}" for who, why in report.refusals[:_SHOWN]]
        return lines


def roofline(program: Program, seconds: Sequence[float], peaks: Peaks) -> Roofline:
    """Return each step of a program with its measured time and its floor.

    Raises:
        ValueError: where there is not one time per step.
    """
    reports = explain(program).steps
    if len(seconds) != len(reports):
        raise ValueError(
            f"roofline: wrong number of times, got {len(seconds)}, expected {len(reports)}"
        )
    return Roofline(
        tuple(hold(report, taken, peaks) for report, taken in zip(reports, seconds, strict=True)),
        peaks,
    )


def hold(report: StepReport, seconds: float, peaks: Peaks) -> RooflineStep:
    """Hold one step's time against the peaks."""
    arithmetic, memory = report.flops / peaks.flops, report.nbytes / peaks.nbytes
    bound = "arithmetic" if arithmetic >= memory else "memory"
    return RooflineStep(report, seconds, max(arithmetic, memory), bound)


@lru_cache(maxsize=8)
def measure_peaks(threads: int | None = None) -> Peaks:
    """Measure the peaks of this machine with so many threads, ``get_num_threads()`` if None.

    Takes about a second, once for each number of threads.
    """
    count = threads or native.get_num_threads()
    matrix = TensorSpec((_MATRIX, _MATRIX), np.dtype(np.float32))
    flat = TensorSpec((_COPIED,), np.dtype(np.float32))
    product = _least_seconds("matmul", (matrix, matrix), (matrix,), count)
    copy = _least_seconds("copy", (flat,), (flat,), count)
    return Peaks(2.0 * _MATRIX**3 / product, 2.0 * flat.nbytes / copy, count)


def _least_seconds(name: str, inputs: Specs, outputs: Specs, threads: int) -> float:
    op = registry.get_op(name)
    call = Call(op, inputs, outputs, op.attrs(), threads)
    kernel = registry.select(call).kernel
    plain = [PLAIN] * len(inputs), [PLAIN] * len(outputs)
    return min(profiling.measure(kernel, call, *plain) for _ in range(_ROUNDS))


def _row(step: RooflineStep, total: float) -> tuple[str, ...]:
    report = step.report
    seconds = max(step.seconds, 1e-12)
    return (
        str(report.index),
        report.kernel,
        report.outputs[0] if report.outputs else "",
        f"{step.seconds * 1e6:.1f}",
        f"{step.seconds / total:.1%}" if total else "",
        f"{report.flops / seconds / 1e9:.1f}",
        f"{report.nbytes / seconds / 1e9:.1f}",
        step.bound,
        f"{step.share:.0%}",
    )
