"""Tell a running trace which Python attributes its result depends on."""

from __future__ import annotations

from typing import Any

from .state import state


def note_read(owner: Any, name: str) -> None:
    """Note a read of ``owner.name``: a trace is made anew once the attribute differs."""
    if state.recorder is not None:
        state.recorder.note_read(owner, name)
