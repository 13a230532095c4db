"""Hold the small tools that modules and users share."""

from __future__ import annotations

from ..imperative.anomaly import detect_anomaly

__all__ = ["detect_anomaly"]
