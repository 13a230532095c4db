"""Bring x86-64 kernels, blocked layouts and the native executor to Tianyuan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from tianyuan.graph.program import Executable, Program
    from tianyuan.plugin import DeviceSpec, KernelGroup, LayoutGroup

__version__ = "0.1.0"
TIANYUAN_API = (1, 0)

# Core imports this module while it is itself being imported. Were core imported here, then a user
# who imports this module first would have core meet it half-made; so core's own marker
# (tianyuan.plugin.hookimpl) is made anew, and the rest of core is imported where it is used.
hookimpl = pluggy.HookimplMarker("tianyuan")


@hookimpl
def tianyuan_devices() -> Iterable[DeviceSpec]:
    """Serve the host's ``cpu``."""
    from tianyuan.plugin import DeviceSpec

    return [DeviceSpec("cpu")]


@hookimpl
def tianyuan_layouts() -> Iterable[LayoutGroup]:
    """Return the blocked layouts of the convolution kernels."""
    from .kernels import layout_groups

    return layout_groups()


@hookimpl
def tianyuan_kernels(device: str) -> Iterable[KernelGroup]:
    """Return the kernels of every tier that this machine runs, best tier first."""
    from . import native
    from .kernels import kernel_groups

    if device != "cpu" or native.unavailable() is not None:
        return []
    return kernel_groups(native.load().tiers)


@hookimpl
def tianyuan_compile(program: Program, device: str) -> Executable | str:
    """Prepare a program for the native executor, or decline with the reason."""
    from .executable import NativeExecutable, refusal

    return refusal(program, device) or NativeExecutable(program)


@hookimpl
def tianyuan_report() -> Mapping[str, Any]:
    """Return the CPU's features, the tiers they allow, and the tier in use under TIANYUAN_ISA.

    ``refused`` is there where a tier failed its trial on this machine, and says how.
    """
    from . import native

    loaded = native.load()
    reason = native.unavailable()
    return {
        "version": __version__,
        **({"unavailable": reason} if reason else {}),
        "features": loaded.module.features(),
        "tiers": [tier.name for tier in loaded.tiers],
        **({"refused": dict(loaded.refused)} if loaded.refused else {}),
        "tier": native.chosen_tier(),
        "isa_cap": native.isa_cap(),
        "kernels": len(loaded.functions),
    }
