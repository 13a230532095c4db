"""A plugin with every hook, of which the one named by TIANYUAN_TEST_RAISE raises."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from tianyuan.plugin import DeviceSpec, Kernel, Layout, Op, hookimpl

TIANYUAN_API = (1, 0)


def _raise_if_named(hook: str) -> None:
    if os.environ.get("TIANYUAN_TEST_RAISE") == hook:
        raise ZeroDivisionError(f"on purpose in {hook}")


def _run(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
    np.multiply(inputs[0], inputs[0], out=outputs[0])


@hookimpl
def tianyuan_ops() -> tuple[Op, ...]:
    _raise_if_named("tianyuan_ops")
    return (Op("fixture_half", infer=lambda specs, attrs: (specs[0],)),)


@hookimpl
def tianyuan_devices() -> tuple[DeviceSpec, ...]:
    _raise_if_named("tianyuan_devices")
    return (DeviceSpec("fixture"),)


@hookimpl
def tianyuan_layouts() -> tuple[Layout, ...]:
    _raise_if_named("tianyuan_layouts")
    return (Layout("fixture_same", 1, lambda s: s, lambda a: a, lambda a, shape: a),)


@hookimpl
def tianyuan_kernels(device: str) -> tuple[Kernel, ...]:
    _raise_if_named("tianyuan_kernels")
    return (Kernel("square_any__fixture_half", "square", _run, cost=lambda call: 0.0),)


@hookimpl
def tianyuan_passes(device: str) -> tuple[Any, ...]:
    _raise_if_named("tianyuan_passes")
    return ()


@hookimpl
def tianyuan_compile(program: Any, device: str) -> str:
    _raise_if_named("tianyuan_compile")
    return "the fixture compiles nothing"


@hookimpl
def tianyuan_communicators() -> dict[str, Any]:
    _raise_if_named("tianyuan_communicators")
    return {}


@hookimpl
def tianyuan_namespaces() -> dict[str, str]:
    _raise_if_named("tianyuan_namespaces")
    return {}


@hookimpl
def tianyuan_report() -> dict[str, Any]:
    _raise_if_named("tianyuan_report")
    return {}
