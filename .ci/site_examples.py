"""Decide what becomes of docstrings before they are parsed for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

# An example with what announces it, up to the next empty line.
_EXAMPLE = re.compile(r"(?:^ *Examples?::?\n\n?)?((?:^ *>>> .*\n(?:^ *\S.*\n)*)+)", re.MULTILINE)


def _fenced(found: re.Match[str]) -> str:
    lines = found[1].splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    code = "\n".join(line[indent:] for line in lines)
    return f"\n```pycon\n{code}\n```\n"


# Several names before one description, as attributes may have them.
_NAMES = re.compile(r"^ +\w+(?:, \w+)+(?=: )", re.MULTILINE)
_ATTRIBUTES = re.compile(r"^Attributes:\n(?:(?: .*)?\n)+", re.MULTILINE)


def _joined(found: re.Match[str]) -> str:
    """Keep names together: what follows the first blank would be taken for a type."""
    return _NAMES.sub(lambda names: names[0].replace(", ", ","), found[0])


class Examples(griffe.Extension):
    """Fences examples as code, whatever stands around them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub(_fenced, obj.docstring.value + "\n")
            obj.docstring.value = _ATTRIBUTES.sub(_joined, text).rstrip()
