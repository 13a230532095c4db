"""Hold the small tools that modules and users share; a module of them loads on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ..imperative.anomaly import detect_anomaly

__all__ = ["detect_anomaly"]


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        try:
            return import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )
