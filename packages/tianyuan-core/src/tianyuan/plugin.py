"""Everything that a plugin imports from core: the hook marker, the API version and plain data.

A plugin is a module (or object) named by an entry point of the group ``tianyuan.backends``. It
states ``TIANYUAN_API = (1, 0)`` and implements the hooks it needs.
"""

from __future__ import annotations

import pluggy

from .abi import encode_attrs, get_include
from .hookspecs import PROJECT
from .kernel import (
    PLAIN,
    SAME,
    Call,
    CFunction,
    DeviceSpec,
    Kernel,
    KernelGroup,
    Layout,
    LayoutGroup,
    Layouts,
    bytes_cost,
)
from .native import functions_of_table
from .op import Op, TensorSpec, Work

API = (1, 0)

hookimpl = pluggy.HookimplMarker(PROJECT)

__all__ = [
    "API",
    "PLAIN",
    "SAME",
    "CFunction",
    "Call",
    "DeviceSpec",
    "Kernel",
    "KernelGroup",
    "Layout",
    "LayoutGroup",
    "Layouts",
    "Op",
    "TensorSpec",
    "Work",
    "bytes_cost",
    "encode_attrs",
    "functions_of_table",
    "get_include",
    "hookimpl",
]
