"""Hold each step's time against what the machine allows: arithmetic at its peak, bytes at theirs.

The roofline model (Williams, Waterman and Patterson, 2009): a step cannot be faster than the larger
of its operations over the peak rate and its bytes over the bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from .. import native, registry
from ..kernel import BF16, PLAIN, Call
from ..op import TensorSpec
from ..records import record
from . import passes, profiling
from .arithmetic import BFLOAT16, FLOAT32, INT8
from .compile import compile_graph
from .explain import StepReport, explain, text_table
from .graph import Graph
from .options import Options
from .program import Program

_MATRIX = 512  # extent of the product whose rate is the peak
_ROUNDS = 4
_COPIED = 1 << 25  # elements of the copy whose rate is the bandwidth: far more than caches hold
_SHOWN = 5  # steps that the summary names
_MOST_RUNS, _ENOUGH_SECONDS = 40, 0.2
_BYTES: dict[str, Any] = {
    "transpose_a": False, "transpose_b": True, "has_bias": False, "has_residual": False,
    "x_zero_point": 0, "w_zero_points": (0,), "multipliers": (2.0**-16,), "residual_zero_point": 0,
    "residual_multiplier": 1.0, "scale": 1.0, "zero_point": 0, "dtype": "uint8", "lower": 0,
    "upper": 255,
}  # fmt: skip


@record()
class Peaks:
    """What the machine was measured to do with so many threads.

    Attributes:
        flops: operations per second of the fastest float32 matrix product of 512 x 512 x 512.
        nbytes: bytes per second of the fastest copy of 128 MiB, read and written counted.
        others: the same as ``flops`` in other arithmetic, by its name.
    """

    flops: float
    nbytes: float
    threads: int
    others: Mapping[str, float] = MappingProxyType({})

    def rate(self, arithmetic: str) -> float:
        """Return the operations per second of an arithmetic: that of float32 if none is known.

        >>> Peaks(1e11, 1e10, 1, {"int8": 4e11}).rate("int8")
        400000000000.0
        """
        return self.others.get(arithmetic, self.flops)

    def in_words(self, arithmetic: Sequence[str]) -> str:
        """Write the peaks of these kinds of arithmetic, and that of memory."""
        rates = [f"{self.rate(name) / 1e9:.1f} Gop/s in {name}" for name in arithmetic]
        many = "thread" if self.threads == 1 else "threads"
        return f"{', '.join(rates)}, {self.nbytes / 1e9:.1f} GB/s, on {self.threads} {many}"


@record()
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


@record()
class Roofline:
    """A program's steps beside the peaks; its text is a table, then the steps that lose most."""

    steps: tuple[RooflineStep, ...]
    peaks: Peaks

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """Return the kinds of arithmetic that the steps are done in."""
        kinds = {step.report.arithmetic for step in self.steps}
        return tuple(sorted(kinds)) or (FLOAT32,)

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
        losing = [step for step in self.steps if step.lost > 0]
        return tuple(sorted(losing, key=lambda step: -step.lost)[:count])

    def __str__(self) -> str:
        head = ("#", "kernel", "output", "us", "of all", "Gop/s", "GB/s", "bound", "reached")
        rows = [_row(step, self.seconds) for step in self.steps]
        return "\n".join([*text_table([head, *rows]), *self._summary()])

    def _summary(self) -> list[str]:
        lines = [
            f"{self.seconds * 1e6:.1f} us in steps, {self.floor * 1e6:.1f} us at the peaks: "
            f"{self.peaks.in_words(self.arithmetic)}",
            "what holds it back most:" if self.worst() else "every step reaches its bound",
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
    arithmetic = report.flops / peaks.rate(report.arithmetic)
    memory = report.nbytes / peaks.nbytes
    bound = "arithmetic" if arithmetic >= memory else "memory"
    return RooflineStep(report, seconds, max(arithmetic, memory), bound)


@lru_cache(maxsize=8)
def measure_peaks(threads: int | None = None) -> Peaks:
    """Measure the peaks of this machine with so many threads, ``get_num_threads()`` if None.

    Takes about a second, once for each number of threads.
    """
    count = threads or native.get_num_threads()
    rates = {
        FLOAT32: _product_rate("matmul", Options(threads=count), transpose_b=True),
        BFLOAT16: _product_rate("matmul", Options(threads=count, precision=BF16), transpose_b=True),
        INT8: _product_rate("matmul_quantized", Options(threads=count), **_BYTES),
    }
    flat = TensorSpec((_COPIED,), np.dtype(np.float32))
    op = registry.get_op("copy")
    call = Call(op, (flat,), (flat,), op.attrs(), count)
    kernel = registry.select(call).kernel
    copied = min(profiling.measure(kernel, call, [PLAIN], [PLAIN]) for _ in range(_ROUNDS))
    return Peaks(rates.pop(FLOAT32), 2.0 * flat.nbytes / copied, count, rates)


def _product_rate(name: str, options: Options, **attrs: Any) -> float:
    """Return the operations per second of a product with weights that are packed beforehand."""
    op = registry.get_op(name)
    x, w = (np.uint8, np.int8) if name == "matmul_quantized" else (np.float32, np.float32)
    graph = Graph()
    left = graph.add_input(TensorSpec((_MATRIX, _MATRIX), np.dtype(x)), "x")
    right = graph.add_constant(np.ones((_MATRIX, _MATRIX), w))
    graph.outputs = list(graph.add_node(op, [left, right], op.attrs(**attrs)))
    made: Any = compile_graph(passes.optimise(graph, options, "cpu"), {}, "cpu", options)
    given = np.ones((_MATRIX, _MATRIX), x)
    result = np.zeros((_MATRIX, _MATRIX), graph.outputs[0].spec.dtype)
    taken: list[float] = []
    while len(taken) < _MOST_RUNS and sum(taken) < _ENOUGH_SECONDS:
        taken.append(max(made.executable.profile([given], (), [result])))
    return 2.0 * _MATRIX**3 / min(taken)


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
