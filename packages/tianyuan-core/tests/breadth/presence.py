"""Compare Tianyuan with the table of MegEngine's public names: what is there, missing, or differs.

Run it as a script to see the count of each module and every name that is missing or differs:
``python packages/tianyuan-core/tests/breadth/presence.py``. Names of `tianyuan.quantization` and
its modules count only where tianyuan-quant is installed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("megengine_api.tsv")
PRESENT, MISSING, DIFFERS = "present", "missing", "signature differs"


@dataclass(frozen=True)
class Row:
    """One public name of the table, with its parameters as written there."""

    name: str
    parameters: str

    @property
    def module(self) -> str:
        """Name the module that the row belongs to, two levels below the top at most."""
        return ".".join(self.name.split(".")[:3][:-1])


@dataclass(frozen=True)
class Finding:
    """What became of one row."""

    row: Row
    status: str
    detail: str = ""


def rows() -> list[Row]:
    """Read the rows asked for: those marked neither `vendor` nor `internal`."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    cells = (line.split("\t") for line in lines if not line.startswith("#"))
    return [Row(name, parameters) for name, parameters, mark in cells if not mark]


def resolve(name: str) -> Any:
    """Import the longest part of a dotted name that is a module and follow attributes from there.

    Raises:
        LookupError: nothing answers to the name.
    """
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:]:
                found = getattr(found, part)
        except AttributeError:
            continue
        return found
    raise LookupError(name)


def expected_parameters(written: str) -> ast.arguments | None:
    """Parse the parameters of a row; None where it has none or is a property."""
    if not written or written.startswith("[property]"):
        return None
    function = ast.parse(f"def f{re.sub(r'<[^>]*>', 'None', written)}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return function.args


def differences(expected: ast.arguments, found: Any) -> Iterator[str]:
    """Name every parameter that a call written for the table could not pass to `found`."""
    if expected.vararg is not None:  # a wrapper's: its own parameters are not known
        return
    signature = inspect.signature(found)
    mine = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    theirs = [a.arg for a in expected.posonlyargs + expected.args if a.arg not in ("self", "cls")]
    positional = [p.name for p in mine if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in mine)
    takes_names = any(p.kind is p.VAR_KEYWORD for p in mine)
    if positional[: len(theirs)] != theirs and not takes_any:
        yield f"positional ({', '.join(positional)}), expected ({', '.join(theirs)})"
    known = {p.name for p in mine}
    for argument in expected.kwonlyargs:
        if argument.arg not in known and not takes_names:
            yield f"no keyword {argument.arg}"
    defaults = dict(zip(reversed(theirs), reversed(expected.defaults), strict=False))
    required = set(theirs) - set(defaults)
    for parameter in mine:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty and parameter.name not in required:
            yield f"{parameter.name} is required"
        elif parameter.name in defaults:
            yield from _default_differs(parameter, defaults[parameter.name])


def _default_differs(parameter: inspect.Parameter, written: ast.expr) -> Iterator[str]:
    try:
        value = eval(compile(ast.Expression(written), TABLE.name, "eval"), {"__builtins__": {}})
    except NameError:  # a default that is itself a name of MegEngine's
        return
    given = parameter.default
    if isinstance(given, (bool, int, float, str)) and type(given) is type(value) and given != value:
        yield f"{parameter.name}={given!r}, expected {value!r}"


def find(row: Row) -> Finding:
    """Say what became of a row."""
    try:
        found = resolve(row.name)
    except LookupError:
        return Finding(row, MISSING)
    expected = expected_parameters(row.parameters)
    if expected is None or not callable(found):
        return Finding(row, PRESENT)
    try:
        detail = "; ".join(differences(expected, found))
    except ValueError:  # a callable of C without a signature
        return Finding(row, PRESENT)
    return Finding(row, DIFFERS if detail else PRESENT, detail)


def main() -> None:
    """Print the table."""
    findings = [find(row) for row in rows()]
    for finding in findings:
        if finding.status != PRESENT:
            print(f"{finding.status:18} {finding.row.name}  {finding.detail}".rstrip())
    counts = Counter((finding.row.module, finding.status) for finding in findings)
    print(f"\n{'module':32}{PRESENT:>10}{MISSING:>10}{DIFFERS:>20}")
    for module in sorted({module for module, _ in counts}):
        numbers = [counts[module, status] for status in (PRESENT, MISSING, DIFFERS)]
        print(f"{module:32}{numbers[0]:>10}{numbers[1]:>10}{numbers[2]:>20}")
    total = Counter(finding.status for finding in findings)
    print(f"{'all':32}{total[PRESENT]:>10}{total[MISSING]:>10}{total[DIFFERS]:>20}")


if __name__ == "__main__":
    main()
