"""Probability distributions over tensors: samples, densities and moments."""

from __future__ import annotations

from .continuous import Exponential, Normal, Uniform
from .discrete import Bernoulli, Categorical
from .distribution import Distribution

__all__ = ["Bernoulli", "Categorical", "Distribution", "Exponential", "Normal", "Uniform"]
