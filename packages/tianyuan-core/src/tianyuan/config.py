"""Hold the process-wide switches that a user may turn while programs run.

Attributes:
    winograd: whether Winograd convolutions may serve in traced and loaded programs; they are faster
        and err more. Starts as False where the environment variable TIANYUAN_WINOGRAD is ``0``.
        Turning it applies from the next call on, for which programs are then compiled anew.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from .errors import AttrError

winograd: bool
_winograd = os.environ.get("TIANYUAN_WINOGRAD", "").strip() != "0"


class _Config(ModuleType):
    """This module, with switches that check what is assigned to them."""

    @property
    def winograd(self) -> bool:
        """Tell whether Winograd convolutions may serve."""
        return _winograd

    @winograd.setter
    def winograd(self, value: bool) -> None:
        global _winograd
        if not isinstance(value, bool):
            raise AttrError(f"config: winograd is wrong, got {value!r}, expected True or False")
        _winograd = value


sys.modules[__name__].__class__ = _Config
