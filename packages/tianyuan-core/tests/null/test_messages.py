"""Refusals say what they got and what they expected."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tianyuan

ROOT = Path(tianyuan.__file__).parent
# Rules that a pass has broken, reasons why a dimension is fixed, and attributes that are not there
# are told otherwise.
OTHERS = ("AttributeError", "NotImplementedError", "SymbolFixed", "_broken")
# What another refusal said goes on behind a name.
CARRIES = re.compile(r"\{(error|start)\}")
FORM = re.compile(r"got .*expected ", re.DOTALL)


def refusals(folder: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of what is raised with a text of its own."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            texts = [a for a in node.exc.args if isinstance(a, (ast.JoinedStr, ast.Constant))]
            if texts and ast.unparse(node.exc.func) not in OTHERS:
                yield f"{folder}/{path.name}:{node.lineno}", ast.unparse(texts[0])


@pytest.mark.parametrize("folder", ["graph", "jit", "imperative"])
def test_refusals_say_what_they_got_and_expected(folder: str) -> None:
    found = [item for item in refusals(folder) if not CARRIES.search(item[1])]
    assert len(found) > 10
    assert not [place for place, text in found if not FORM.search(text)]
