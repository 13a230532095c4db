"""The nine hooks through which a backend brings everything it has; each returns data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from .kernel import DeviceSpec, Kernel, KernelGroup, Layout, LayoutGroup
from .op import Op

if TYPE_CHECKING:
    from .graph.passes import Pass
    from .graph.program import Executable, Program

PROJECT = "tianyuan"
hookspec = pluggy.HookspecMarker(PROJECT)


@hookspec
def tianyuan_ops() -> Iterable[Op]:  # type: ignore[empty-body]
    """Return ops that core does not have."""


@hookspec
def tianyuan_devices() -> Iterable[DeviceSpec]:  # type: ignore[empty-body]
    """Return the kinds of device that the plugin serves; asked at import, so touch no hardware."""


@hookspec
def tianyuan_layouts() -> Iterable[Layout | LayoutGroup]:  # type: ignore[empty-body]
    """Return the physical layouts that the plugin's kernels use."""


@hookspec
def tianyuan_kernels(device: str) -> Iterable[Kernel | KernelGroup]:  # type: ignore[empty-body]
    """Return the kernels for a kind of device, best first; asked on the device's first use.

    Groups among them are asked for the kernels of an op when it is first looked up.
    """


@hookspec
def tianyuan_passes(device: str) -> Iterable[Pass]:  # type: ignore[empty-body]
    """Return graph passes to run for a kind of device, each with the stage it belongs to."""


@hookspec
def tianyuan_compile(program: Program, device: str) -> Executable | str:  # type: ignore[empty-body]
    """Return an executable for the program, or the reason why the plugin declines."""


@hookspec
def tianyuan_communicators() -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Return classes of communicators by name, see ``distributed.communicator``."""


@hookspec
def tianyuan_namespaces() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Return modules to reach below ``tianyuan``: attribute name -> import path."""


@hookspec
def tianyuan_report() -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Return what ``tianyuan info`` shows of the plugin: versions, hardware features, tiers."""
