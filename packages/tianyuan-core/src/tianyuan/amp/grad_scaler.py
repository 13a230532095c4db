"""GradScaler: scale a loss so that narrow gradients keep their small values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..autodiff import GradManager
from ..errors import AttrError
from ..functional.arguments import whole
from ..imperative.hostvalue import host_value
from ..imperative.state import state
from ..imperative.tensor import Tensor
from ..jit import exclude_from_trace

_LARGEST = 2.0**126  # it and its inverse are normal numbers of float32
_SAVED = ("scale_factor", "growth_factor", "backoff_factor", "growth_interval")


class GradScaler:
    """Multiply a loss's gradient by a factor, take it out again, and adapt the factor.

    Where a gradient is infinite or NaN, all gradients of the step become None, so that an
    optimiser leaves its parameters alone, and the factor shrinks. That needs the values of the
    gradients, which is host code: a traced function that calls ``unscale`` or ``backward`` runs in
    Python (see ``jit.exclude_from_trace``), unless the factor is constant (``growth_interval=0``).
    Then the program holds all of it, the factor is read anew at each run, and gradients are not
    looked at.

    Args:
        init_scale: the first factor.
        growth_factor: by which it grows after ``growth_interval`` steps with finite gradients.
        backoff_factor: by which it shrinks after a step with others.
        growth_interval: 0 keeps the factor constant.

    Raises:
        AttrError: where a number is not positive, or the interval negative.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.amp import GradScaler
        >>> from tianyuan.autodiff import GradManager
        >>> p, scaler = ty.Parameter([3.0]), GradScaler()
        >>> gm = GradManager().attach(p)
        >>> with gm:
        ...     loss = (p * p).sum()
        ...     scaler.backward(gm, loss)
        >>> p.grad.numpy().tolist(), scaler.scale_factor
        ([6.0], 16.0)
    """

    def __init__(
        self,
        init_scale: float = 2.0**4,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        for name, value in (
            ("init_scale", init_scale),
            ("growth_factor", growth_factor),
            ("backoff_factor", backoff_factor),
        ):
            _expect_positive(f"GradScaler: {name}", value)
        interval = whole("GradScaler", "growth_interval", growth_interval, 0)
        self.scale_factor = float(init_scale)
        self.growth_factor = float(growth_factor)
        self.backoff_factor = float(backoff_factor)
        self.growth_interval = interval
        self._growth_tracker = 0
        self._found_non_finite = False

    def backward(
        self,
        gm: GradManager,
        y: Tensor | Sequence[Tensor] | None = None,
        dy: Tensor | Sequence[Tensor] | None = None,
        *,
        unscale_grad: bool = True,
        update_scale: bool | str = "if_unscale_grad",
    ) -> None:
        """Run ``gm.backward`` with scaled output gradients.

        Args:
            gm: the manager that is recording.
            y: output or outputs.
            dy: gradients of them; ones if None.
            unscale_grad: whether to take the factor out of the gradients afterwards; False where
                they are to be added up over several calls first.
            update_scale: whether to adapt the factor; by default where it was taken out.

        Raises:
            GradError: as ``gm.backward`` does.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.amp import GradScaler
            >>> from tianyuan.autodiff import GradManager
            >>> p = ty.Parameter([3.0])
            >>> with GradManager().attach(p) as gm:
            ...     GradScaler().backward(gm, p * p, unscale_grad=False)
            >>> p.grad.tolist()
            [96.0]
        """
        targets = _as_list(y)
        seeds = [target.full(target.shape, 1) for target in targets] if dy is None else _as_list(dy)
        factor = self._factor(lambda: self.scale_factor)
        gm.backward(targets, [seed * factor.cast(seed.dtype) for seed in seeds])
        if unscale_grad:
            self.unscale(gm.attached_tensors())
        if update_scale is True or (update_scale == "if_unscale_grad" and unscale_grad):
            self.update()

    def unscale(self, grad_tensors: Iterable[Tensor]) -> GradScaler:
        """Divide the gradients of tensors by the factor; all become None where one is not finite.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.amp import GradScaler
            >>> p = ty.Parameter([1.0])
            >>> p.grad = ty.Tensor([32.0])
            >>> _ = GradScaler().unscale([p])
            >>> p.grad.numpy().tolist()
            [2.0]
        """
        tensors = [tensor for tensor in grad_tensors if tensor.grad is not None]
        inverse = self._factor(lambda: 1.0 / self.scale_factor)
        for tensor in tensors:
            tensor.grad = tensor.grad * inverse.cast(tensor.grad.dtype)  # type: ignore[union-attr]
        if state.recorder is None or self.growth_interval:
            with exclude_from_trace():
                self._look_at(tensors)
        return self

    def _look_at(self, tensors: Sequence[Tensor]) -> None:
        if not all(map(_finite, tensors)):
            self._found_non_finite = True
            for tensor in tensors:
                tensor.grad = None

    def update(self, new_scale: float | None = None) -> GradScaler:
        """Adapt the factor to what ``unscale`` found since the last update, or set it.

        With ``growth_interval=0`` only a new factor changes it.

        Example:
            >>> from tianyuan.amp import GradScaler
            >>> GradScaler(growth_interval=1).update().scale_factor
            32.0
        """
        if new_scale is not None:
            _expect_positive("GradScaler.update: new_scale", new_scale)
            self.scale_factor = float(new_scale)
        elif self.growth_interval and self._found_non_finite:
            self._multiply(self.backoff_factor)
            self._growth_tracker = 0
        elif self.growth_interval:
            self._growth_tracker += 1
            if self._growth_tracker >= self.growth_interval:
                self._multiply(self.growth_factor)
                self._growth_tracker = 0
        self._found_non_finite = False
        return self

    def _multiply(self, change: float) -> None:
        """Change the factor, as far as it and its inverse are numbers that float32 holds."""
        self.scale_factor = min(max(self.scale_factor * change, 1 / _LARGEST), _LARGEST)

    def state_dict(self) -> dict[str, Any]:
        """Return all that makes the scaler what it is.

        Example:
            >>> from tianyuan.amp import GradScaler
            >>> GradScaler().state_dict()["scale_factor"]
            16.0
        """
        saved = {name: getattr(self, name) for name in _SAVED}
        return {**saved, "_growth_tracker": self._growth_tracker}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what ``state_dict`` described.

        Raises:
            KeyError, AttrError: where an entry is missing or wrong; nothing has changed then.

        Example:
            >>> from tianyuan.amp import GradScaler
            >>> scaler = GradScaler()
            >>> scaler.load_state_dict({**scaler.state_dict(), "scale_factor": 4.0})
            >>> scaler.scale_factor
            4.0
        """
        found = {name: state[name] for name in (*_SAVED, "_growth_tracker")}
        for name in _SAVED[:3]:
            _expect_positive(f"GradScaler.load_state_dict: {name}", found[name])
        for name in (_SAVED[3], "_growth_tracker"):
            if type(found[name]) is not int or found[name] < 0:
                raise AttrError(
                    f"GradScaler.load_state_dict: {name} is wrong, got {found[name]!r}, "
                    "expected an int >= 0"
                )
        for name, value in found.items():
            setattr(self, name, value)

    @staticmethod
    def _factor(read: Any) -> Tensor:
        return host_value(read, "float32")


def _expect_positive(what: str, value: Any) -> None:
    number = isinstance(value, (int, float, np.floating, np.integer))
    if not number or not 0 < value < math.inf:
        raise AttrError(f"{what} must be positive, got {value!r}, expected a finite number > 0")


def _as_list(value: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def _finite(tensor: Tensor) -> bool:
    assert tensor.grad is not None
    return bool(np.isfinite(tensor.grad.numpy()).all())
