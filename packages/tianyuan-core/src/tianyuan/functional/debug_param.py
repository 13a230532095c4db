"""Choose how kernels are selected, by MegEngine's names for the switches of ``config``."""

from __future__ import annotations

from .. import config
from ..errors import AttrError

__all__ = [
    "get_conv_execution_strategy", "get_execution_strategy", "set_conv_execution_strategy",
    "set_execution_strategy",
]  # fmt: skip

_WORDS = ("HEURISTIC", "PROFILE", "REPRODUCIBLE", "OPTIMIZED")


def get_execution_strategy() -> str:
    """Return HEURISTIC or PROFILE, followed by _REPRODUCIBLE where only such kernels may serve.

    >>> get_execution_strategy()
    'HEURISTIC'
    """
    chosen = "PROFILE" if config.benchmark_kernel else "HEURISTIC"
    return f"{chosen}_REPRODUCIBLE" if config.deterministic_kernel else chosen


def set_execution_strategy(option: str) -> None:
    """Choose kernels by estimated cost (HEURISTIC, OPTIMIZED) or by measured time (PROFILE).

    REPRODUCIBLE leaves out kernels whose result depends on thread count or batch. Words are
    joined by ``_``. Sets ``config.benchmark_kernel`` and ``config.deterministic_kernel``.

    Raises:
        AttrError: where a word is unknown, or HEURISTIC and PROFILE are joined.

    >>> set_execution_strategy("HEURISTIC")
    """
    words = option.upper().split("_") if isinstance(option, str) else [repr(option)]
    unknown = [word for word in words if word not in _WORDS]
    if unknown or {"HEURISTIC", "PROFILE"} <= set(words):
        raise AttrError(
            f"set_execution_strategy: option is not valid, got {option!r}, expected words of "
            f"{', '.join(_WORDS)} joined by '_', not both HEURISTIC and PROFILE"
        )
    config.benchmark_kernel = "PROFILE" in words
    config.deterministic_kernel = "REPRODUCIBLE" in words


def get_conv_execution_strategy() -> str:
    """Return ``get_execution_strategy``: convolutions have no strategy of their own.

    >>> get_conv_execution_strategy() == get_execution_strategy()
    True
    """
    return get_execution_strategy()


def set_conv_execution_strategy(option: str) -> None:
    """Call ``set_execution_strategy``: convolutions have no strategy of their own.

    >>> set_conv_execution_strategy("HEURISTIC")
    """
    set_execution_strategy(option)
