"""MegEngine's public names are there, take its arguments and are tested; the rest says why."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from presence import MISSING, PRESENT, Row, differences, expected_parameters, find, resolve, rows

REPOSITORY = Path(__file__).parents[4]
REASONS = REPOSITORY / "docs" / "migrating-from-megengine.md"
QUANT = ("tianyuan.quantization", "tianyuan.module.qat", "tianyuan.module.quantized")


def asked() -> list[Row]:
    """Return the rows that the installed distributions answer for."""
    if find_spec("tianyuan_quant") is not None:
        return rows()
    return [row for row in rows() if not row.name.startswith(QUANT)]


@cache
def findings() -> list:
    return [find(row) for row in asked()]


def reasons() -> dict[str, str]:
    """Return name and reason of each row of the guide's table of what is missing or differs."""
    cells = re.findall(r"^\| `(tianyuan\.[\w.]+)` \| (.+?) \|$", REASONS.read_text(), re.MULTILINE)
    return dict(cells)


def identifiers(path: Path) -> set[str]:
    """Return every name that a test file uses: variables, attributes, imports and strings."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"\w+", node.value))
    return found


@cache
def names_in_tests() -> frozenset[str]:
    folders = [*REPOSITORY.glob("packages/*/tests"), REPOSITORY / "integration_tests"]
    files = [
        p for folder in folders for p in folder.rglob("*.py") if p.parent != Path(__file__).parent
    ]
    kit = (REPOSITORY / "packages/tianyuan-core/src/tianyuan/testing").rglob("*.py")
    return frozenset().union(*map(identifiers, [*files, *kit]))


def test_nearly_every_name_is_there() -> None:
    absent = [f.row.name for f in findings() if f.status == MISSING]
    assert len(absent) <= 0.03 * len(findings()), absent


def test_what_is_missing_or_differs_has_its_reason_and_nothing_else_has() -> None:
    shortfalls = {f.row.name for f in findings() if f.status != PRESENT}
    names = {row.name for row in asked()}
    assert shortfalls == {name for name in reasons() if name in names}


def test_every_name_that_is_there_is_used_by_a_test() -> None:
    there = [f.row.name for f in findings() if f.status != MISSING]
    assert [name for name in there if name.rsplit(".", 1)[1] not in names_in_tests()] == []


def test_a_name_that_nothing_answers_to_is_missing() -> None:
    with pytest.raises(LookupError):
        resolve("tianyuan.functional.no_such_verb")


@pytest.mark.parametrize(
    ("mine", "fault"),
    [
        (lambda x, axis=None: 0, None),
        (lambda x, axis=None, extra=1: 0, None),
        (lambda x, dim=None: 0, "positional"),
        (lambda x, axis=None, *, extra: 0, "extra is required"),
        (lambda x, axis=1: 0, None),
        (lambda axis, x: 0, "positional"),
    ],
)
def test_differences_of_signatures_are_seen(mine: object, fault: str | None) -> None:
    expected = expected_parameters("(x: Tensor, axis: int=None)")
    assert expected is not None
    found = list(differences(expected, mine))
    assert any(fault in text for text in found) if fault else found == []


def test_a_default_that_differs_is_seen() -> None:
    expected = expected_parameters("(lr: float=0.1)")
    assert expected is not None
    assert list(differences(expected, lambda lr=0.2: lr)) == ["lr=0.2, expected 0.1"]
