"""Load the native library at its first use, and tie its pool and its eager call into core."""

from __future__ import annotations

import importlib
import os
import platform
import threading
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tianyuan import native as core
from tianyuan.kernel import CFunction
from tianyuan.plugins import PluginWarning
from tianyuan.records import record

from ._tier import ORDER, Tier

if TYPE_CHECKING:
    from types import ModuleType

_lock = threading.Lock()
_loaded: Native | None = None


@record()
class Native:
    """The loaded library: its extension module, its tiers (best first) and its functions.

    ``refused`` says of each tier that the machine claims to have why it is not offered.
    """

    module: ModuleType
    tiers: tuple[Tier, ...]
    functions: Mapping[str, CFunction]
    refused: Mapping[str, str] = MappingProxyType({})


def load() -> Native:
    """Return the native library, loading it at the first call.

    The first load offers the library's thread pool to core, adopts the one that another plugin
    published before, and installs the eager call, the eager engine and checksums as core's.

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
    features = module.features()
    if features["pclmulqdq"]:
        core.set_crc32(module.crc32)
    tiers = tuple(Tier(name, functions, features) for name in module.tiers())
    refused = {tier.name: why for tier in tiers if (why := fault(tier)) is not None}
    for name, why in refused.items():
        warnings.warn(
            f"tianyuan-x86: tier {name} is not used, since it computes wrong numbers here: {why}",
            PluginWarning,
            stacklevel=2,
        )
    offered = tuple(tier for tier in tiers if tier.name not in refused)
    return Native(module, offered, functions, refused)


def fault(tier: Tier) -> str | None:
    """Return what a tier got wrong at its trial on this machine, or None where it may be used.

    Tiles are tried, as no machine that has them takes part in the daily tests.
    """
    if tier.name != "amx":
        return None
    from ._proof import disproof
    from .kernels import all_kernels

    return disproof(all_kernels((tier,)))


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
