"""Parse device strings and hold the default device."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from .errors import DeviceError

_ALIASES = {"xpu": "cpu", "gpu": "cuda", "multithread": "cpu"}
_PATTERN = re.compile(r"^([a-z]+?)(x|\d+)?(?::(x|\d+|default)(?::(\d+))?)?$")


@lru_cache(maxsize=256)
def parse_device(text: str) -> str:
    """Return the canonical name of a device: ``cpu``, ``cuda:0``, ``cuda:1``.

    MegEngine's spellings are understood: ``cpux``, ``cpu0``, ``cpu:default``, ``gpu0``, ``xpux``,
    ``multithread4:0``.

    Raises:
        DeviceError: where the text names no device.
    """
    match = _PATTERN.match(text) if isinstance(text, str) else None
    if match is None:
        raise DeviceError(
            f"device: cannot be parsed, got {text!r}, expected like 'cpu' or 'cuda:0'"
        )
    kind = _ALIASES.get(match[1], match[1])
    if kind == "cpu":
        return "cpu"
    first = match[3] if match[3] not in (None, "default") else match[2]
    index = 0 if first in (None, "x") else int(first)
    return f"{kind}:{index}"


def device_kind(device: str) -> str:
    """Return ``cpu`` for ``cpu`` and ``cuda`` for ``cuda:1``."""
    return device.partition(":")[0]


_default = parse_device(os.environ.get("TIANYUAN_DEFAULT_DEVICE", "cpu"))


def get_default_device() -> str:
    """Return the device on which new tensors lie when none is named."""
    return _default


def set_default_device(device: str) -> None:
    """Choose the device on which new tensors lie when none is named."""
    global _default
    _default = parse_device(device)
