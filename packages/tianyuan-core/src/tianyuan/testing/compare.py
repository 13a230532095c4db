"""Decide how far a kernel's result may lie from the reference's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dtypes import is_complex, is_float
from .cases import Case

_EPS = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}


def bound(case: Case, want: np.ndarray, tolerance: float | None = None) -> np.ndarray:
    """Return the largest error allowed at each element.

    A sum of n terms computed in the accumulator's precision errs by at most n units; 16-bit floats
    accumulate in float32 and are rounded once more. A kernel's own ``tolerance``, relative to the
    largest magnitude, is allowed on top.
    """
    if not is_float(want.dtype):
        return np.zeros(want.shape)
    eps = _EPS[want.dtype.name]
    relative = case.ulps * eps + 2.0 * case.length * min(eps, _EPS["float32"])
    relative = 0.0 if case.exact else relative
    # Infinities and NaN are compared by kind.
    size = np.abs(np.nan_to_num(want.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0))
    allowed = np.asarray(relative * (size + case.magnitude))
    return allowed if tolerance is None else allowed + tolerance * np.max(size, initial=0.0)


def difference(
    case: Case,
    got: Sequence[np.ndarray],
    want: Sequence[np.ndarray],
    tolerance: float | None = None,
) -> str | None:
    """Return what is wrong with a result, or None where it lies within the bound.

    ``tolerance`` is that of the kernel (``Kernel.tolerance``).
    """
    if len(got) != len(want):
        return f"got {len(got)} outputs, expected {len(want)}"
    for index, (g, w) in enumerate(zip(got, want, strict=True)):
        found = _difference(case, g, w, tolerance)
        if found is not None:
            return f"output {index}: {found}"
    return None


def _difference(
    case: Case, got: np.ndarray, want: np.ndarray, tolerance: float | None
) -> str | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    if is_complex(want.dtype):
        got, want = (np.stack([x.real, x.imag], -1) for x in (got, want))
    if not is_float(want.dtype):
        wrong = got != want
    else:
        g, w = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(g - w) <= bound(case, want, tolerance)
        wrong = ~((g == w) | (np.isnan(g) & np.isnan(w)) | (near & np.isfinite(w)))
    if not np.any(wrong):
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0]) if want.ndim else ()
    limit = bound(case, want, tolerance)[place]
    return (
        f"{int(np.sum(wrong))} of {want.size} elements are wrong, first at {place}: "
        f"got {got[place]!r}, expected {want[place]!r}, allowed {limit:.3g}"
    )
