"""Bring quantisation to Tianyuan, reached as ``tianyuan.quantization``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pluggy

__version__ = "0.1.0"
TIANYUAN_API = (1, 0)

# Core imports this module while it is itself being imported, so core's own marker is made anew and
# everything that needs core is imported when it is first used.
hookimpl = pluggy.HookimplMarker("tianyuan")

_PUBLIC = {
    "config": (
        "QConfig", "calibration_qconfig", "easyquant_qconfig", "ema_fakequant_qconfig",
        "ema_lowbit_fakequant_qconfig", "lsq_qconfig", "min_max_fakequant_qconfig", "pact_qconfig",
        "passive_qconfig", "per_channel_fakequant_qconfig", "static_qconfig",
        "sync_ema_fakequant_qconfig", "tqt_qconfig",
    ),
    "convert": (
        "disable_fake_quant", "disable_observer", "enable_fake_quant", "enable_observer",
        "hide_fake_quant", "hook_qat_module", "propagate_qconfig", "quantize", "quantize_qat",
        "reset_qconfig",
    ),
    "easyquant": ("apply_easy_quant",),
    "equalise": ("equalize",),
    "fake": (
        "FakeQuantize", "LSQ", "LearnableFakeQuantize", "PACT", "TQT", "fake_quant_bias",
        "fake_quant_tensor",
    ),
    "files": ("quantize_file",),
    "histogram": ("HistogramObserver", "PercentileObserver"),
    "observer": (
        "ExponentialMovingAverageObserver", "MinMaxObserver", "Observer", "PassiveObserver",
        "SyncExponentialMovingAverageObserver", "SyncMinMaxObserver",
    ),
    "params": (
        "QParams", "QuantDtype", "QuantMode", "create_qparams", "quant_dtype",
    ),
    "registration": (
        "register_fake_quant", "register_observer", "register_qat", "register_quantized",
    ),
    "report": ("LayerReport", "Report", "StaticResult"),
    "static": ("quantize_static",),
    "weights": ("quantize_dynamic", "quantize_weights"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *_MODULE_OF]


@hookimpl
def tianyuan_namespaces() -> Mapping[str, str]:
    """Say where the names below ``tianyuan`` lead."""
    return {
        "quantization": "tianyuan_quant",
        "module.qat": "tianyuan_quant.qat",
        "module.quantized": "tianyuan_quant.quantized",
    }


@hookimpl
def tianyuan_report() -> Mapping[str, Any]:
    """Return the version."""
    return {"version": __version__}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    raise AttributeError(
        f"module 'tianyuan_quant' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
