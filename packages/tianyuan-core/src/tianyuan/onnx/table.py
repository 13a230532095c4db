"""The table of ONNX operators: which function imports an operator, and from which version on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

# What a function of the table is given.
TENSORS = "tensors"  # tensors, except that inputs listed as known are arrays
ARRAYS = "arrays"  # arrays, for what depends on data or has dtypes that tensors lack
VALUES = "values"  # the runtime first, then whatever the inputs are


@dataclass(frozen=True)
class Operator:
    """How one ONNX operator is imported.

    Attributes:
        name, domain: what model files call it.
        since, until: first and last version of the operator set that it serves.
        run: the function, called with the node and the inputs.
        form: what the function is given, one of the constants above.
        known: positions of inputs that must be known when a graph is made.
        frozen: positions of inputs that are state, not parameters to be trained.
        folds: whether it is run when the file is read, where all its inputs are known.
        least, most: how many inputs it takes; most is None for any number.
    """

    name: str
    domain: str
    since: int
    until: int | None
    run: Callable[..., Any]
    form: str
    known: tuple[int, ...]
    frozen: tuple[int, ...]
    folds: bool
    least: int
    most: int | None

    def __reduce__(self) -> Any:
        # By its place in the table: what runs may be a function made there.
        return _entry, (self.domain, self.name, self.since)

    def serves(self, version: int) -> bool:
        """Tell whether it stands for the operator in a version of the operator set."""
        return self.since <= version and (self.until is None or version <= self.until)


def _entry(domain: str, name: str, since: int) -> Operator:
    from . import operators

    operators.load()
    return next(entry for entry in OPERATORS[domain, name] if entry.since == since)


OPERATORS: dict[tuple[str, str], list[Operator]] = {}
# Shape arithmetic on arrays whose elements are symbolic extents, by operator name.
SYMBOLIC: dict[str, Callable[..., Any]] = {}


def operator(
    name: str,
    since: int = 1,
    until: int | None = None,
    *,
    form: str = TENSORS,
    known: Sequence[int] = (),
    frozen: Sequence[int] = (),
    folds: bool | None = None,
    domain: str = "",
) -> Callable[[_Function], _Function]:
    """Enter a function into the table; by default it folds unless it takes the runtime."""

    def enter(function: _Function) -> _Function:
        least, most = _arity(function, 2 if form == VALUES else 1)
        entry = Operator(
            name, domain, since, until, function, form, tuple(known), tuple(frozen),
            form != VALUES if folds is None else folds, least, most,
        )  # fmt: skip
        OPERATORS.setdefault((domain, name), []).append(entry)
        return function

    return enter


def symbolic(*names: str) -> Callable[[_Function], _Function]:
    """Enter a function that computes operators on symbolic extents."""

    def enter(function: _Function) -> _Function:
        SYMBOLIC.update(dict.fromkeys(names, function))
        return function

    return enter


def _arity(function: Callable[..., Any], skipped: int) -> tuple[int, int | None]:
    code, defaults = function.__code__, function.__defaults__ or ()
    most = code.co_argcount - skipped
    endless = bool(code.co_flags & inspect.CO_VARARGS)
    return most - len(defaults), None if endless else most


def find(domain: str, name: str, version: int) -> Operator | None:
    """Return how an operator is imported, or None."""
    found = [o for o in OPERATORS.get((domain, name), ()) if o.serves(version)]
    return max(found, key=lambda o: o.since) if found else None


@dataclass(frozen=True)
class Supported:
    """One line of the table of what can be imported.

    Attributes:
        versions: of the operator set, such as ``1+`` or ``7-9``.
        form: ``graph``, or ``eager`` where the operator works on data that a graph does not have.
    """

    domain: str
    name: str
    versions: str
    form: str


def supported() -> list[Supported]:
    """Return all operators that can be imported, sorted.

    >>> [row.domain for row in supported() if row.name == "Conv"]
    ['ai.onnx']
    """
    rows = []
    for (domain, name), entries in OPERATORS.items():
        first = min(entry.since for entry in entries)
        last = None if any(e.until is None for e in entries) else max(e.until or 0 for e in entries)
        versions = f"{first}+" if last is None else f"{first}-{last}"
        form = "eager" if all(entry.form == ARRAYS for entry in entries) else "graph"
        rows.append(Supported(domain or "ai.onnx", name, versions, form))
    return sorted(rows, key=lambda row: (row.domain, row.name))
