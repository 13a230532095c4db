"""Read how a caller names inputs, and which of their dimensions may vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import TraceError

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
