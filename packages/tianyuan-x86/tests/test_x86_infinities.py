"""Check that an infinity or NaN reaches the outputs that read it, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.kernel import Kernel
from tianyuan.ops.reference import evaluate
from tianyuan.testing.suite import kernels_of, run_case, served

VALUES = (np.inf, -np.inf, np.nan)
CASES, LARGEST = 6, 40_000
# Ops of sums and bounds, where one infinity among finite values comes out as an infinity.
LINEAR = (
    "conv2d", "conv2d_fused", "matmul", "matmul_fused", "bottleneck", "mean", "sum",
    "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "take", "concat", "slice",
)  # fmt: skip


FAMILIES = ("conv", "indexing", "matmul", "movement", "norm", "pool", "reduction")


def _kernels() -> list[Kernel]:
    """Return the kernels that pad or share vectors, but for those whose operands name layouts."""
    found = [k for k in kernels_of("x86") if registry.get_op(k.op).family in FAMILIES]
    return [kernel for kernel in found if kernel.op != "relayout"]


def _planted(array: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield copies with one special value: at either end, and somewhere between."""
    for value in VALUES:
        for place in {0, array.size - 1, int(rng.integers(array.size))}:
            copy = array.copy()
            copy.reshape(-1)[place] = value
            yield copy


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    found: np.ndarray = (x == y) | (np.isnan(x) & np.isnan(y))
    return found


def _check(kernel: Kernel, outputs: Sequence[Sequence[np.ndarray]], linear: bool) -> str | None:
    """Return what is wrong with outputs: before, after, and the reference's before and after."""
    for before, after, want_before, want in zip(*outputs, strict=True):
        if want.dtype.kind != "f":
            continue
        unread = _same(want_before, want)
        if "winograd" in kernel.name:  # values meet in sums, so only items of a batch keep apart
            within = (-2, -1) if kernel.op.startswith("matmul") else (1, 2, 3)
            unread = np.broadcast_to(unread.all(within, keepdims=True), unread.shape)
        elif linear and not _same(after, want)[~unread & np.isinf(want)].all():
            return "an infinity is lost"
        if not _same(after, before)[unread].all():
            return "an output changed that does not read the value"
    return None


@pytest.mark.parametrize("kernel", _kernels(), ids=lambda kernel: kernel.name)
def test_special_values_stay_where_they_are_read(kernel: Kernel) -> None:
    """Zeros that pad channels, groups or rows are never multiplied by what others read."""
    op, rng, count = registry.get_op(kernel.op), np.random.default_rng(4), 0
    for case, call, arrays in served(kernel):
        if count == CASES:
            break
        first = arrays[0]
        if first.dtype != np.float32 or not 0 < sum(a.size for a in arrays) <= LARGEST:
            continue
        if not first.size or not call.outputs[0].size:
            continue
        count += 1
        before, want_before = run_case(kernel, call, arrays), evaluate(op, arrays, case.attrs)
        for special in _planted(first, rng):
            given = [special, *arrays[1:]]
            with np.errstate(all="ignore"):
                want = evaluate(op, given, case.attrs)
            after = run_case(kernel, call, given)
            outputs = (before, after, want_before, want)
            wrong = _check(kernel, outputs, kernel.op in LINEAR and _finite(case.attrs))
            assert wrong is None, f"{case}: {wrong}"


def _finite(attrs: object) -> bool:
    """Tell whether an activation, if any, is a bound: others make NaN of minus infinity."""
    return getattr(attrs, "activation", "") in ("", "identity", "relu", "relu6", "clip")
