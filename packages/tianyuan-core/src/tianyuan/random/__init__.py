"""Random numbers with MegEngine's names, from one counter-based stream per generator."""

from __future__ import annotations

from .distribution import (
    RNG,
    beta,
    exponential,
    gamma,
    get_state,
    multinomial,
    normal,
    permutation,
    poisson,
    seed,
    set_state,
    shuffle,
    uniform,
)

__all__ = [
    "RNG", "beta", "exponential", "gamma", "get_state", "multinomial", "normal", "permutation",
    "poisson", "seed", "set_state", "shuffle", "uniform",
]  # fmt: skip
