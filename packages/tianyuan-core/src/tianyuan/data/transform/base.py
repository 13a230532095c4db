"""Decide what a transform is: a function of a sample, applied sample by sample to a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Transform(ABC):
    """What a loader applies to samples before they are put together.

    >>> class Negate(Transform):
    ...     def apply(self, input):
    ...         return -input
    >>> Negate().apply_batch([1, 2])
    [-1, -2]
    """

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the transformed samples of a batch."""
        return [self.apply(sample) for sample in inputs]

    @abstractmethod
    def apply(self, input: Any) -> Any:
        """Return one transformed sample."""


class PseudoTransform(Transform):
    """The transform that changes nothing.

    >>> PseudoTransform().apply(3)
    3
    """

    def apply(self, input: Any) -> Any:
        """Return the sample itself."""
        return input
