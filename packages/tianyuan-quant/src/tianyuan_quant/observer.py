"""Decide scale and zero point from the values that pass by."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError, ShapeError, TraceError
from tianyuan.functional.arguments import numbers_of, real_number
from tianyuan.module import Module

from .arguments import FAR, channel_of, least_scale, mode_of, params_of, tensor_of
from .params import QParams, QuantDtype, QuantMode, quant_dtype
from .steps import of_step


class NeverWatchedError(AttrError):
    """Raise where parameters are asked for and nothing has been seen yet."""


class Observer(Module):
    """Base of what watches values; ``forward`` returns them as they are.

    Args:
        dtype: the quantised dtype to decide parameters for.

    One of one's own:

    >>> from .params import create_qparams
    >>> class Widest(Observer):
    ...     top = 0.0
    ...     def sideeffect_forward(self, x):
    ...         self.top = max(self.top, float(abs(x.numpy()).max()))
    ...     def get_qparams(self):
    ...         return create_qparams(dtype_meta=self.dtype, scale=self.top / 127)
    >>> observer = Widest("qint8")
    >>> _ = observer(Tensor([-63.5, 2.0]))
    >>> observer.get_qparams().scale.item()
    0.5
    """

    def __init__(self, dtype: str | QuantDtype, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dtype = quant_dtype(dtype)
        self.enabled = True

    @property
    def qmin(self) -> int:
        """The least integer."""
        return self.dtype.qmin

    @property
    def qmax(self) -> int:
        """The largest integer."""
        return self.dtype.qmax

    def enable(self) -> None:
        """Watch from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Keep what has been seen."""
        self.enabled = False

    @property
    def training(self) -> bool:
        """Whether it trains, which it watches by."""
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        self._training = self.enabled = bool(value)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, having looked at it where enabled and there is anything to see.

        Raises:
            DTypeError: where it is no tensor.
            TraceError: in a trace, where watching needs the data.
        """
        tensor_of(type(self).__name__, x)
        # Extents that a trace leaves open are not looked at: that would fix them.
        empty = any(type(extent) is int and extent == 0 for extent in x.shape)
        if self.enabled and not empty:
            self._watch(x.detach())
        return x

    def _watch(self, x: Tensor) -> None:
        try:
            self.sideeffect_forward(x)
        except TraceError as error:
            raise TraceError(
                f"{type(self).__name__}: it looks at the data, which a trace does not have, got "
                f"{x._spec}; expected calibration outside of the trace and then "
                "quantization.disable_observer(net), or observers of ops alone, as those of "
                "ema_fakequant_qconfig"
            ) from error

    def sideeffect_forward(self, x: Tensor) -> None:
        """Take the values into account."""
        raise NotImplementedError(f"{type(self).__name__}.sideeffect_forward: not defined")

    def get_qparams(self) -> QParams:
        """Return the parameters for what has been seen."""
        raise NotImplementedError(f"{type(self).__name__}.get_qparams: not defined")

    def check_ready(self, owner: str) -> None:
        """Raise AttrError, naming the owner, where nothing useful has been seen."""


class MinMaxObserver(Observer):
    """Cover the least and the largest value ever seen.

    Args:
        mode: symmetric puts real zero in the middle of the integers.
        eps: the least scale.
        dtype: the quantised dtype.
        channel_axis: gives each extent of this axis, counted from the front, a scale of its own.

    Raises:
        AttrError, DTypeError: where an argument is none of these.

    >>> observer = MinMaxObserver(dtype="qint8_narrow")
    >>> _ = observer(Tensor([-1.0, 63.5]))
    >>> observer.get_qparams().scale.item()
    0.5
    """

    def __init__(
        self,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtype = "qint8",
        channel_axis: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype, **kwargs)
        owner = type(self).__name__
        self.mode = mode_of(owner, mode)
        self.eps = least_scale(owner, eps)
        self.channel_axis = channel_of(owner, channel_axis)
        self.min_val = Tensor(np.float32(FAR))
        self.max_val = Tensor(np.float32(-FAR))

    def _extremes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.channel_axis is None:
            return F.min(x), F.max(x)
        if self.channel_axis >= x.ndim:
            raise ShapeError(
                f"{type(self).__name__}: input has no channel axis {self.channel_axis}, got shape "
                f"{x.shape}, expected more axes"
            )
        axes = [axis for axis in range(x.ndim) if axis != self.channel_axis]
        if self.min_val.ndim == 0:
            self._make_room(int(x.shape[self.channel_axis]))
        return F.min(x, axis=axes), F.max(x, axis=axes)

    def sideeffect_forward(self, x: Tensor) -> None:
        """Widen the range by the values."""
        low, high = self._extremes(x)
        self.min_val[...] = F.minimum(self.min_val, low)
        self.max_val[...] = F.maximum(self.max_val, high)

    def _before_loading(self, values: dict[str, Any]) -> None:
        """Make room for one range per channel, as there is after the first batch."""
        shape = np.shape(values.get("min_val", 0.0))
        if self.channel_axis is not None and self.min_val.ndim == 0 and len(shape) == 1:
            self._make_room(shape[0])

    def _make_room(self, channels: int) -> None:
        # New tensors rather than results of ops, which would end with a trace.
        self.min_val = Tensor(np.full(channels, FAR, np.float32))
        self.max_val = Tensor(np.full(channels, -FAR, np.float32))

    def get_qparams(self) -> QParams:
        """Return scale and zero point of the range seen, at least ``eps``."""
        return params_of_range(
            self.min_val, self.max_val, self.mode, self.dtype, self.eps, self.channel_axis
        )

    def check_ready(self, owner: str) -> None:
        """Raise AttrError where the observer never ran or saw numbers that are not finite."""
        low, high = self.min_val.numpy(), self.max_val.numpy()
        if np.any(low == np.float32(FAR)):
            raise NeverWatchedError(
                f"{owner}: its observer never ran, got no batch, expected training or calibration "
                "first"
            )
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise AttrError(
                f"{owner}: its observer saw numbers that are not finite, got infinities or NaN, "
                "expected none"
            )


def params_of_range(
    low: Tensor,
    high: Tensor,
    mode: QuantMode,
    dtype: QuantDtype,
    eps: float,
    channel_axis: int | None = None,
) -> QParams:
    """Return the parameters that cover [low, high] and zero, with scales of at least ``eps``."""
    axis = -1 if channel_axis is None else channel_axis
    low, high = F.minimum(low, 0.0), F.maximum(high, 0.0)
    if mode is QuantMode.SYMMERTIC:
        middle = (dtype.qmin + dtype.qmax + 1) // 2
        scale = F.maximum(F.maximum(-low, high) / ((dtype.qmax - dtype.qmin) / 2), eps)
        zero = F.full_like(scale, float(middle) if dtype.is_unsigned else 0.0)
        return QParams(mode, dtype, scale, zero, axis)
    scale = F.maximum((high - low) / float(dtype.qmax - dtype.qmin), eps)
    zero = F.clip(dtype.qmin - F.round(low / scale), float(dtype.qmin), float(dtype.qmax))
    return QParams(mode, dtype, scale, zero, axis)


class ExponentialMovingAverageObserver(MinMaxObserver):
    """Follow least and largest value of each batch by a moving average.

    A layer that a network calls several times sees several inputs in one step: its batch is all of
    them, whatever their order.

    Args:
        momentum: what is kept of the average; the first batch is taken as it is.
        mode, eps, dtype, channel_axis: as for ``MinMaxObserver``.

    >>> observer = ExponentialMovingAverageObserver(momentum=0.5)
    >>> for top in (4.0, 8.0):
    ...     _ = observer(Tensor([0.0, top]))
    >>> observer.max_val.item()
    6.0
    """

    def __init__(
        self,
        momentum: float = 0.9,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtype = "qint8",
        channel_axis: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(mode, eps, dtype, channel_axis, **kwargs)
        self.set_momentum(momentum)
        self.runtime_momentum = Tensor(np.float32(0.0))

    def set_momentum(self, momentum: float) -> None:
        """Set what is kept of the average.

        Raises:
            AttrError: where it is outside [0, 1).
        """
        owner = type(self).__name__
        found = real_number(owner, "momentum", momentum)
        if not 0 <= found < 1:
            raise AttrError(f"{owner}: momentum is out of range, got {momentum}, expected [0, 1)")
        self.momentum = found

    def sideeffect_forward(self, x: Tensor) -> None:
        """Move the range towards the batch's, as wide as all calls of the step make it."""
        low, high = self._extremes(x)
        (old_low, old_high, kept), first = of_step(id(self), self._share_of_the_past)
        low, high = old_low + low * (1.0 - kept), old_high + high * (1.0 - kept)
        if not first:
            low, high = F.minimum(self.min_val, low), F.maximum(self.max_val, high)
        self.min_val[...] = low
        self.max_val[...] = high
        self.runtime_momentum[...] = F.full_like(kept, self.momentum)

    def _share_of_the_past(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what earlier steps give to the range, and their share."""
        kept = self.runtime_momentum * 1.0
        # What no batch has touched yet is infinite in spirit: its share is zero.
        ends = (F.where(kept > 0, v, F.zeros_like(v)) * kept for v in (self.min_val, self.max_val))
        return next(ends), next(ends), kept


class SyncMinMaxObserver(MinMaxObserver):
    """``MinMaxObserver`` over what all ranks see; arguments as for it.

    >>> import numpy as np
    >>> observer = SyncMinMaxObserver()
    >>> _ = observer(Tensor(np.float32([-1.0, 2.0])))
    >>> observer.max_val.item()
    2.0
    """

    def _extremes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return _over_ranks(*super()._extremes(x))


class SyncExponentialMovingAverageObserver(ExponentialMovingAverageObserver):
    """``ExponentialMovingAverageObserver`` over what all ranks see; arguments as for it.

    >>> import numpy as np
    >>> observer = SyncExponentialMovingAverageObserver()
    >>> _ = observer(Tensor(np.float32([-1.0, 2.0])))
    >>> observer.min_val.item()
    -1.0
    """

    def _extremes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return _over_ranks(*super()._extremes(x))


def _over_ranks(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest of all ranks' extremes."""
    from tianyuan import distributed
    from tianyuan.functional.distributed import all_reduce_max, all_reduce_min

    if not distributed.is_distributed():
        return low, high
    return all_reduce_min(low), all_reduce_max(high)


class PassiveObserver(Observer):
    """Hold parameters that somebody sets; it watches nothing.

    >>> observer = PassiveObserver("qint8")
    >>> observer.scale = 0.25
    >>> observer.get_qparams().scale.item()
    0.25
    """

    def __init__(self, dtype: str | QuantDtype, **kwargs: Any) -> None:
        super().__init__(dtype, **kwargs)
        self.mode = QuantMode.SYMMERTIC
        self.channel_axis = -1
        self.held_scale: Tensor | None = None
        self.held_zero_point: Tensor | None = None

    def sideeffect_forward(self, x: Tensor) -> None:
        """Look at nothing."""

    @property
    def scale(self) -> Tensor:
        """The scale.

        Raises:
            AttrError: where nobody has set it.
        """
        found = self.get_qparams().scale
        assert found is not None
        return found

    @scale.setter
    def scale(self, value: Any) -> None:
        try:
            with np.errstate(over="ignore"):
                array = np.array(numbers_of(value), np.float32)
        except (TypeError, ValueError):
            array = np.full((), np.nan, np.float32)
        if array.ndim > 1 or not (np.isfinite(array).all() and (array > 0).all()):
            raise AttrError(
                f"PassiveObserver: scale must be positive and finite, got {value}, expected one "
                "number, or one per channel"
            )
        old = self.held_zero_point
        if old is None or old.size not in (1, array.size):
            self.held_zero_point = Tensor(np.zeros_like(array))
        self._take_scale(Tensor(array))

    def _take_scale(self, scale: Tensor) -> None:
        self.held_scale = scale
        if scale.size == 1:
            self.channel_axis = -1
        elif self.channel_axis < 0:
            self.channel_axis = 0

    def set_qparams(self, qparams: QParams) -> None:
        """Take over parameters.

        Raises:
            AttrError: where they are none, or for another dtype.
        """
        params_of("PassiveObserver", qparams)
        if qparams.dtype_meta != self.dtype:
            raise AttrError(
                f"PassiveObserver: parameters are for another dtype, got "
                f"{qparams.dtype_meta.name}, expected {self.dtype.name}"
            )
        self.mode, self.channel_axis = qparams.mode, qparams.channel_axis
        # Copies: a state dict that is loaded writes into them.
        self.held_scale, self.held_zero_point = (
            None if value is None else Tensor(value.numpy())
            for value in (qparams.scale, qparams.zero_point)
        )

    def get_qparams(self) -> QParams:
        """Return what was set."""
        if self.held_scale is None:
            raise AttrError(
                "PassiveObserver: parameters were never set, got none, expected set_qparams"
            )
        return QParams(
            self.mode, self.dtype, self.held_scale, self.held_zero_point, self.channel_axis
        )

    def _before_loading(self, values: dict[str, Any]) -> None:
        """Make room for what was set when the state was kept."""
        if "held_scale" in values and "held_zero_point" in values:
            shape = np.shape(values["held_scale"])
            if self.held_scale is None or self.held_scale.shape != shape:
                self._take_scale(Tensor(np.ones(shape, np.float32)))
                zeros = np.zeros(np.shape(values["held_zero_point"]), np.float32)
                self.held_zero_point = Tensor(zeros)

    def check_ready(self, owner: str) -> None:
        """Raise AttrError where nobody has set parameters."""
        if self.held_scale is None:
            raise NeverWatchedError(
                f"{owner}: parameters of its passive observer were never set, got none, expected "
                "set_qparams"
            )
