"""Tianyuan: train a model in Python and ship that very model to x86, ARM and CUDA machines."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from .collecting import uncollected as _uncollected

with _uncollected():
    import numpy as _numpy  # noqa: F401  # first: nested deeper, its import takes a third longer

    from . import aliases as _aliases
    from . import plugins as _plugins
    from ._version import __version__
    from .abi import get_include
    from .backends import numpy as _numpy_backend
    from .device import get_default_device, set_default_device
    from .imperative.tensor import Parameter, Tensor
    from .native import get_num_threads, set_num_threads
    from .plugins import PluginRecord
    from .registry import use_backend

    _plugins.load(PluginRecord("numpy", "tianyuan-core", __version__), lambda: _numpy_backend)
    _plugins.discover()
    _aliases.install()

tensor = Tensor

# Loaded on first use, so that a deployed model does not pay for what it does not need.
_LAZY = frozenset(
    {
        "amp", "autodiff", "checkpoint", "cli", "config", "data", "distributed", "distributions",
        "dtr", "functional", "graph", "hub", "jit", "logger", "module", "onnx", "optimizer",
        "random", "serialization", "testing", "tools", "torch", "traced_module", "utils", "vision",
    }
)  # fmt: skip

# Names of this module that lazily loaded ones define.
_DEFERRED = {
    "save": ".serialization",
    "load": ".serialization",
    "save_checkpoint": ".checkpoint",
    "load_checkpoint": ".checkpoint",
    "from_dlpack": ".utils.dlpack",
    "enable_debug_log": ".logger",
    "get_logger": ".logger",
    "set_log_file": ".logger",
    "set_log_level": ".logger",
    **dict.fromkeys(
        (
            "coalesce_free_memory", "get_allocated_memory", "get_device_count",
            "get_max_allocated_memory", "get_max_reserved_memory", "get_mem_status_bytes",
            "get_reserved_memory", "is_atlas_available", "is_cambricon_available",
            "is_cuda_available", "is_rocm_available", "reset_max_memory_stats",
            "set_prealloc_config", "what_is_xpu",
        ),
        ".device",
    ),
}  # fmt: skip

# Modules that are also reached by a shorter name.
_RENAMED = {"cgtools": ".utils.comp_graph_tools"}

__all__ = [
    "Parameter",
    "Tensor",
    "__version__",
    "from_dlpack",
    "get_default_device",
    "get_include",
    "get_num_threads",
    "load",
    "load_checkpoint",
    "save",
    "save_checkpoint",
    "set_default_device",
    "set_num_threads",
    "tensor",
    "use_backend",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(
                f"module 'tianyuan' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
            ) from None
    if name in _RENAMED:
        return import_module(_RENAMED[name], __name__)
    if name in _DEFERRED:
        return getattr(import_module(_DEFERRED[name], __name__), name)
    found = _plugins.namespaces().get(name)
    if found is not None:
        return import_module(found)
    raise AttributeError(
        f"module 'tianyuan' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_DEFERRED, *_RENAMED, *_plugins.namespaces()})
