"""Read how a caller names inputs, in which order they come, and which dimensions may vary."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import CallError, TraceError, did_you_mean

DynamicShapes = Mapping[str, "Mapping[int, str] | Sequence[str | None]"]


def normalise_dynamic(declared: DynamicShapes | None) -> dict[str, dict[int, str]]:
    """Return declared dimensions as axis -> symbol, by name of the input."""
    found: dict[str, dict[int, str]] = {}
    for name, axes in (declared or {}).items():
        pairs = axes.items() if isinstance(axes, Mapping) else enumerate(axes)
        found[name] = {axis: symbol for axis, symbol in pairs if symbol is not None}
    return found


def rename(names: Sequence[str], wanted: Sequence[str] | None) -> dict[str, str]:
    """Map the inputs' own names to those that a caller wants.

    Raises:
        TraceError: where these are not as many different ones.
    """
    if wanted is None:
        return {name: name for name in names}
    if len(wanted) != len(names) or len(set(wanted)) != len(wanted):
        raise TraceError(
            f"trace.dump: arg_names must be {len(names)} different names, got {list(wanted)}, "
            f"expected names for {', '.join(names)}"
        )
    return dict(zip(names, wanted, strict=True))


def back(
    declared: dict[str, dict[int, str]], renamed: Mapping[str, str]
) -> dict[str, dict[int, str]]:
    """Translate names of a file's inputs to those of the function's parameters."""
    original = {new: old for old, new in renamed.items()}
    return {original.get(name, name): axes for name, axes in declared.items()}


def bind_inputs(
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optional: Collection[str] = (),
) -> list[Any]:
    """Return a model's inputs in order; those that may be missing and do are None.

    Raises:
        CallError: where one is missing, unknown or given twice.

    >>> bind_inputs(["x", "y"], [1], {"y": 2})
    [1, 2]
    """
    if len(args) > len(names):
        raise CallError(f"model: too many inputs, got {len(args)}, expected {', '.join(names)}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise CallError(
                f"model: unknown input, got {name!r}{did_you_mean(name, names)}, expected "
                f"{', '.join(names)}"
            )
        if name in given:
            raise CallError(
                f"model: an input is given twice, got {name!r} by place and by name, expected one "
                "of them"
            )
        given[name] = value
    missing = [name for name in names if name not in given and name not in optional]
    if missing:
        raise CallError(
            f"model: inputs are missing, got {', '.join(given) or 'none'}, expected also "
            f"{', '.join(missing)}"
        )
    return [given.get(name) for name in names]
