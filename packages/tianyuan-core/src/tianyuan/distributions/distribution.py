"""Decide what a distribution is: parameters of a batch shape, events of an event shape."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any, NoReturn

import numpy as np

from .. import functional as F
from .. import shapes
from ..errors import AttrError, ShapeError
from ..functional.arguments import shape_of
from ..imperative.tensor import Tensor


class Distribution:
    """The base of all distributions.

    Args:
        batch_shape: shape of the parameters; independent distributions side by side.
        event_shape: shape of one event of one of them.

    A value that is asked about has a shape that broadcasts with batch_shape + event_shape.

    >>> Distribution((2, 3), (4,)).event_shape
    (4,)
    """

    # Parameters by name, each of the batch shape followed by an event's own axes.
    _parameters: tuple[str, ...] = ()

    def __init__(
        self,
        batch_shape: Iterable[int] | None = (),
        event_shape: Iterable[int] | None = (),
    ) -> None:
        self._batch_shape = shapes_of("Distribution", batch_shape, "batch_shape")
        self._event_shape = shapes_of("Distribution", event_shape, "event_shape")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the parameters."""
        return self._batch_shape

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one event."""
        return self._event_shape

    def expand(self, batch_shape: Iterable[int] | None, _instance: Any = None) -> Any:
        """Return this distribution with its parameters broadcast to a batch shape.

        Args:
            batch_shape: what the present one broadcasts to.
            _instance: the object to set up in place of a new one.

        Raises:
            ShapeError: where it does not broadcast.

        >>> from tianyuan.distributions import Uniform
        >>> Uniform(0.0, 1.0).expand((2, 3)).batch_shape
        (2, 3)
        """
        wanted = shapes_of("expand", batch_shape)
        made = copy(self) if _instance is None else _instance
        for name in self._parameters:
            value = getattr(self, name)
            own = tuple(value.shape[len(self._batch_shape) :])
            setattr(made, name, F.broadcast_to(value, (*wanted, *own)))
        made._batch_shape, made._event_shape = wanted, self._event_shape
        return made

    @property
    def mean(self) -> Tensor:
        """Expected value, of shape batch_shape + event_shape."""
        self._lacks("mean")

    @property
    def variance(self) -> Tensor:
        """Variance, of shape batch_shape + event_shape."""
        self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """Standard deviation, the root of the variance."""
        return F.sqrt(self.variance)

    def sample(self, sample_shape: Iterable[int] | None = ()) -> Tensor:
        """Draw events, of shape sample_shape + batch_shape + event_shape.

        >>> from tianyuan.distributions import Uniform
        >>> drawn = Uniform(1.0, 5.0).sample((100,)).numpy()
        >>> bool((drawn >= 1).all() and (drawn < 5).all())
        True
        """
        self._lacks("sample")

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density, or of the probability, at a value.

        >>> from tianyuan.distributions import Uniform
        >>> Uniform(0.0, 1.0).log_prob(0.5).item()
        0.0
        """
        self._lacks("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of events up to a value.

        >>> from tianyuan.distributions import Uniform
        >>> Uniform(1.0, 5.0).cdf(2.0).item()
        0.25
        """
        self._lacks("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value up to which events have a probability.

        >>> from tianyuan.distributions import Uniform
        >>> Uniform(1.0, 5.0).icdf(0.25).item()
        2.0
        """
        self._lacks("icdf")

    def _lacks(self, what: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__}: {what} is not defined for it")

    def _extended(self, sample_shape: Iterable[int] | None) -> tuple[int, ...]:
        return (*shapes_of("sample", sample_shape), *self._batch_shape, *self._event_shape)

    def __repr__(self) -> str:
        known = ", ".join(f"{n}: {tuple(getattr(self, n).shape)}" for n in self._parameters)
        return f"{type(self).__name__}({known})"


def shapes_of(op: str, shape: Iterable[int] | None, what: str = "shape") -> tuple[int, ...]:
    """Return a shape as tuple of ints."""
    found = () if shape is None else tuple(map(int, shape_of(op, shape, what)))
    if any(extent < 0 for extent in found):
        raise ShapeError(f"{op}: {what} is not valid, got {found}, expected ints >= 0")
    return found


def parameters(op: str, **values: Any) -> list[Tensor]:
    """Return parameters as float tensors of their common shape."""
    tensors = [
        value if isinstance(value, Tensor) else Tensor(_floats(op, name, value))
        for name, value in values.items()
    ]
    floats = [t if t.dtype.kind == "f" else t.astype("float32") for t in tensors]
    shape = shapes.broadcast(op, *(t.shape for t in floats))
    return [t if t.shape == shape else F.broadcast_to(t, shape) for t in floats]


def _floats(op: str, name: str, value: Any) -> np.ndarray:
    found = np.asarray(value)
    if found.dtype.kind in "OUScmM":
        raise AttrError(f"{op}: {name} is not valid, got {value!r}, expected a tensor or numbers")
    return found.astype(np.float32)


def expect(op: str, name: str, value: Tensor, holds: Tensor, what: str) -> None:
    """Refuse parameters out of range.

    Raises:
        AttrError: where the condition does not hold for all of them.
    """
    if not bool(holds.numpy().all()):
        worst = value.numpy()[~holds.numpy()].flat[0]
        raise AttrError(f"{op}: {name} is wrong, got {worst}, expected {what}")
