"""Load the native library at its first use, and tie its pool and its eager call into core."""

from __future__ import annotations

import importlib
import os
import platform
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tianyuan import native as core
from tianyuan.kernel import CFunction

from ._tier import ORDER, Tier

if TYPE_CHECKING:
    from types import ModuleType

_lock = threading.Lock()
_loaded: Native | None = None


@dataclass(frozen=True)
class Native:
    """The loaded library: its extension module, its tiers (best first) and its functions."""

    module: ModuleType
    tiers: tuple[Tier, ...]
    functions: Mapping[str, CFunction]


def load() -> Native:
    """Return the native library, loading it at the first call.

    The first load offers the library's thread pool to core, adopts the one that another plugin
    published before, and installs the eager call and the eager engine as core's.

    Raises:
        ImportError: where the extension module is missing or cannot be loaded.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def _load() -> Native:
    module: Any = importlib.import_module("tianyuan_x86._native")
    own = module.thread_pool()
    chosen = core.publish_thread_pool(own)
    if chosen is not own:
        module.adopt_thread_pool(chosen)
    core.set_invoker(module.call)
    core.set_engine(module)
    functions = core.functions_of_table(module.kernel_table())
    tiers = tuple(Tier(name, functions) for name in module.tiers())
    return Native(module, tiers, functions)


def unavailable() -> str | None:
    """Return why this machine cannot run the library's kernels, or None where it can."""
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        return f"the machine is {machine}, not x86-64"
    if not load().tiers:
        found = [name for name, has in load().module.features().items() if has]
        return f"AVX2 with FMA and F16C is missing, the machine has {', '.join(found) or 'none'}"
    return None


def isa_cap() -> str | None:
    """Return the instruction set that TIANYUAN_ISA names, or None; read at each call."""
    return os.environ.get("TIANYUAN_ISA") or None


def chosen_tier() -> str | None:
    """Return the best tier that the machine has and TIANYUAN_ISA allows, or None."""
    cap = isa_cap()
    for tier in load().tiers:
        if cap == "any" or (cap in ORDER and ORDER.index(tier.name) > ORDER.index(cap)):
            continue
        return tier.name
    return None
