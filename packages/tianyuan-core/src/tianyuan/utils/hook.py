"""Say how a registered hook is taken back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ..imperative.observe import changes

_numbers = itertools.count()


class HookHandler:
    """One registration of a hook, which ``remove`` ends.

    Args:
        source_dict: the owner's hooks by number; the hook is added to it.
        hook: what will be called.

    >>> hooks = {}
    >>> handler = HookHandler(hooks, print); len(hooks)
    1
    >>> handler.remove(); len(hooks)
    0
    """

    def __init__(
        self, source_dict: dict[int, Callable[..., Any]], hook: Callable[..., Any]
    ) -> None:
        self.hook_num = next(_numbers)
        self._hooks = source_dict
        source_dict[self.hook_num] = hook
        changes.note()

    def remove(self) -> None:
        """Take the hook back; a second call does nothing.

        >>> hooks = {}
        >>> handler = HookHandler(hooks, print)
        >>> handler.remove(); handler.remove()
        >>> hooks
        {}
        """
        self._hooks.pop(self.hook_num, None)
        changes.note()
