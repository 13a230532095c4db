"""Hold each thread's setting of autocast."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from ..errors import AttrError
from ..imperative.state import state

_CHOICES: dict[str, tuple[Any, ...]] = {
    "enabled": (False, True),
    "low": ("float16", "bfloat16"),
    "high": ("float32", "float16", "bfloat16"),
}


@dataclass(frozen=True)
class Setting:
    """Whether autocast is on, and between which dtypes."""

    enabled: bool = False
    low: str = "float16"
    high: str = "float32"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if type(value) is not type(allowed[0]) or value not in allowed:
                raise AttrError(
                    f"amp: {name} is wrong, got {value!r}, expected "
                    f"{' or '.join(map(repr, allowed))}"
                )


class _Settings(threading.local):
    setting = Setting()


_settings = _Settings()


def current() -> Setting:
    """Return the setting of this thread."""
    return _settings.setting


def use(setting: Setting) -> None:
    """Make a setting this thread's."""
    _settings.setting = setting
    state.precision = (setting.low, setting.high) if setting.enabled else None


def change(**changes: Any) -> None:
    """Change parts of this thread's setting.

    Raises:
        AttrError: where a value is not allowed.
    """
    use(replace(current(), **changes))
