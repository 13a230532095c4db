"""Choose the range from the distribution of values: least squares, relative entropy, percentile."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianyuan import Tensor
from tianyuan.errors import AttrError
from tianyuan.functional.arguments import real_number, whole

from .arguments import least_scale, mode_of
from .observer import NeverWatchedError, Observer, params_of_range
from .params import QParams, QuantDtype, QuantMode

_LEAST_SHARE = 0.2
_STEPS = 81


class HistogramObserver(Observer):
    """Keep a histogram and choose the range that loses least.

    Args:
        bins: how many there are.
        upsample_rate: accepted for MegEngine's sake.
        mode, eps, dtype: as for ``MinMaxObserver``.
        method: ``l2`` minimises the squared error of quantised values, ``kl`` the relative entropy
            of their distribution (S. Migacz, 8-bit Inference with TensorRT, 2017).

    Raises:
        AttrError, DTypeError: where an argument is none of these; ``bins`` are at least 256.

    Works on data, so it cannot run inside a trace.

    >>> observer = HistogramObserver(dtype="qint4")
    >>> _ = observer(Tensor(np.random.default_rng(0).standard_normal(10_000).astype(np.float32)))
    >>> 2 < observer.get_qparams().scale.item() * 7.5 < 3.5
    True
    """

    def __init__(
        self,
        bins: int = 2048,
        upsample_rate: int = 128,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtype = "qint8",
        method: str = "l2",
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype, **kwargs)
        owner = type(self).__name__
        if method not in ("l2", "kl"):
            raise AttrError(f"{owner}: unknown method, got {method!r}, expected l2 or kl")
        self.bins, self.method = whole(owner, "bins", bins, 256), method
        self.mode, self.eps = mode_of(owner, mode), least_scale(owner, eps)
        self.counts: np.ndarray | None = None
        self.low = self.high = 0.0
        self.finite = True
        # What a state dict keeps: counts, ends, and 1 for numbers not finite, in two floats each.
        self.kept = Tensor(np.zeros((2, self.bins + 3), np.float32))

    def sideeffect_forward(self, x_orig: Tensor) -> None:
        """Count the values, widening the histogram where they lie outside."""
        values = x_orig.numpy().reshape(-1).astype(np.float64)
        if not values.size:
            return
        if not np.isfinite(values).all():
            self.finite = False
            self._keep()
            return
        low, high = float(values.min()), float(values.max())
        if self.counts is None:
            self.low, self.high = _apart(low, high)
            self.counts = np.zeros(self.bins)
        elif low < self.low or high > self.high:
            self._widen(min(low, self.low), max(high, self.high))
        self.counts += np.histogram(values, self.bins, (self.low, self.high))[0]
        self._keep()

    def _keep(self) -> None:
        counts = np.zeros(self.bins) if self.counts is None else self.counts
        values = np.concatenate([counts, [self.low, self.high, float(not self.finite)]])
        large = values.astype(np.float32)
        self.kept[...] = Tensor(np.stack([large, (values - large).astype(np.float32)]))

    def _after_loading(self) -> None:
        """Go on from the histogram of a state dict."""
        values = self.kept.numpy().astype(np.float64).sum(axis=0)
        counts, (self.low, self.high, wrong) = values[: self.bins], values[self.bins :].tolist()
        self.finite = not wrong
        self.counts = counts if counts.any() else None

    def _widen(self, low: float, high: float) -> None:
        assert self.counts is not None
        centres = self._centres()
        self.low, self.high = low, high
        self.counts = np.histogram(centres, self.bins, (low, high), weights=self.counts)[0]

    def _centres(self) -> np.ndarray:
        edges = np.linspace(self.low, self.high, self.bins + 1)
        return np.asarray((edges[:-1] + edges[1:]) / 2)

    def get_qparams(self) -> QParams:
        """Return the parameters of the range chosen.

        Raises:
            AttrError: where nothing was seen.
        """
        self.check_ready(type(self).__name__)
        low, high = self._range()
        return params_of_range(
            Tensor(np.float32(low)), Tensor(np.float32(high)), self.mode, self.dtype, self.eps
        )

    def check_ready(self, owner: str) -> None:
        """Raise AttrError where the observer never ran or saw numbers that are not finite."""
        if not self.finite:
            raise AttrError(
                f"{owner}: its observer saw numbers that are not finite, got infinities or NaN, "
                "expected none"
            )
        if self.counts is None:
            raise NeverWatchedError(
                f"{owner}: its observer never ran, got no batch, expected training or calibration "
                "first"
            )

    def _range(self) -> tuple[float, float]:
        loss = self._squared_error if self.method == "l2" else self._relative_entropy
        if self.mode is QuantMode.SYMMERTIC:
            top = max(-self.low, self.high)
            shares = np.linspace(_LEAST_SHARE, 1, _STEPS)
            best = min(shares, key=lambda share: loss(-top * share, top * share))
            return -top * float(best), top * float(best)
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        best_low, best_high = low, high
        # One end after the other, until neither moves.
        for _ in range(3):
            before = (best_low, best_high)
            shares = np.linspace(_LEAST_SHARE, 1, _STEPS)
            best_high = min(high * shares, key=lambda end: loss(best_low, float(end)))
            best_low = min(low * shares, key=lambda end: loss(float(end), best_high))
            if (best_low, best_high) == before:
                break
        return float(best_low), float(best_high)

    def _scale(self, low: float, high: float) -> tuple[float, float]:
        levels = self.dtype.qmax - self.dtype.qmin
        scale = max((high - low) / levels, self.eps)
        if self.mode is QuantMode.SYMMERTIC:
            return scale, 0.0 if not self.dtype.is_unsigned else float((levels + 1) // 2)
        return scale, float(self.dtype.qmin - np.rint(low / scale))

    def _squared_error(self, low: float, high: float) -> float:
        """Return the squared error of bin centres, and of the bins' width inside a step."""
        assert self.counts is not None
        centres = self._centres()
        scale, zero = self._scale(low, high)
        q = np.clip(np.rint(centres / scale) + zero, self.dtype.qmin, self.dtype.qmax)
        width = (self.high - self.low) / self.bins
        error = np.square((q - zero) * scale - centres) + min(width, scale) ** 2 / 12
        return float(np.sum(self.counts * error))

    def _relative_entropy(self, low: float, high: float) -> float:
        """Return the relative entropy of clipped values and their quantised distribution."""
        counts = self._without_spike()
        scale, zero = self._scale(low, high)
        q = np.rint(self._centres() / scale) + zero
        inside = (q >= self.dtype.qmin) & (q <= self.dtype.qmax)
        levels = np.clip(q, self.dtype.qmin, self.dtype.qmax).astype(np.int64) - self.dtype.qmin
        size = self.dtype.qmax - self.dtype.qmin + 1
        if not inside.any():
            return float("inf")
        # What is clipped joins the outermost bins that are not.
        reference = np.where(inside, counts, 0.0)
        ends = np.flatnonzero(inside)[[0, -1]]
        reference[ends[0]] += counts[: ends[0]].sum()
        reference[ends[1]] += counts[ends[1] + 1 :].sum()
        kept = np.bincount(levels[inside], counts[inside], size)
        used = np.bincount(levels[inside], counts[inside] > 0, size)
        share = np.divide(kept, used, out=np.zeros(size), where=used > 0)
        approximation = np.where(inside & (counts > 0), share[levels], 0.0)
        p, q_ = reference / reference.sum(), approximation / max(approximation.sum(), 1e-30)
        mask = p > 0
        return float(np.sum(p[mask] * np.log(p[mask] / np.maximum(q_[mask], 1e-12))))

    def _without_spike(self) -> np.ndarray:
        """Return the counts with zeros as frequent as the values beside them.

        Every step of integers holds zero exactly, so that the zeros behind a relu say nothing
        about the range; as a bar of their own they would make the narrowest one the best.
        """
        assert self.counts is not None
        counts = self.counts.copy()
        place = int((0.0 - self.low) / (self.high - self.low) * self.bins)
        if 0 <= place < self.bins:
            beside = counts[[at for at in (place - 1, place + 1) if 0 <= at < self.bins]]
            counts[place] = min(counts[place], beside.mean())
        return counts if counts.any() else self.counts


class PercentileObserver(HistogramObserver):
    """Cover a share of the values, leaving out as many on both sides.

    Args:
        percentile: the share in percent.
        bins, mode, eps, dtype: as for ``HistogramObserver``.

    >>> observer = PercentileObserver(90, mode=QuantMode.ASYMMERTIC, dtype="quint8")
    >>> _ = observer(Tensor(np.linspace(0, 1, 10_000, dtype=np.float32)))
    >>> round(observer.get_qparams().scale.item() * 255, 2)
    0.95
    """

    def __init__(self, percentile: float = 99.99, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.percentile = real_number("PercentileObserver", "percentile", percentile)
        if not 50 < self.percentile <= 100:
            raise AttrError(
                f"PercentileObserver: percentile is wrong, got {percentile}, expected above 50, "
                "at most 100"
            )

    def _range(self) -> tuple[float, float]:
        assert self.counts is not None
        below = np.cumsum(self.counts) / self.counts.sum()
        edges = np.linspace(self.low, self.high, self.bins + 1)
        tail = (100 - self.percentile) / 200
        low = edges[int(np.searchsorted(below, tail, "right"))]
        high = edges[min(int(np.searchsorted(below, 1 - tail)) + 1, self.bins)]
        if self.mode is QuantMode.SYMMERTIC:
            magnitude = np.abs(self._centres())
            order = np.argsort(magnitude)
            share = np.cumsum(self.counts[order]) / self.counts.sum()
            place = int(np.searchsorted(share, self.percentile / 100))
            top = magnitude[order][min(place, self.bins - 1)]
            top += (self.high - self.low) / self.bins / 2
            return -float(top), float(top)
        return float(low), float(high)


def _apart(low: float, high: float) -> tuple[float, float]:
    """Return a range of some width around values that may all be equal."""
    if high > low:
        return low, high
    width = max(abs(low), 1e-3) * 1e-3
    return low - width, high + width
