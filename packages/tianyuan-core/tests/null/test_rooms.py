"""The house keeps its order: imports run downwards, files stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tianyuan

SOURCE = Path(tianyuan.__file__).parent

# Ground floor first: a room imports only rooms above it in this list, and itself.
ROOMS = (
    (
        "errors",
        "floats",
        "dtypes",
        "shapes",
        "device",
        "records",
        "locks",
        "collecting",
        "discovery",
        "config",
        "logger",
        "_version",
    ),
    ("op", "kernel"),
    ("abi", "registry"),
    ("ops",),
    ("structs", "calling", "native", "hookspecs", "plugin", "plugins", "aliases"),
    ("backends",),
    ("imperative",),
    ("graph",),
    ("autodiff", "jit"),
    ("distributed",),
    ("functional", "random", "amp", "dtr"),
    ("distributions",),
    ("module", "optimizer", "data", "serialization", "checkpoint", "hub", "utils"),
    ("onnx", "torch", "vision", "traced_module"),
    ("tools",),
    ("testing",),
    ("cli",),
)
FLOOR = {name: floor for floor, names in enumerate(ROOMS) for name in names}

# Upward imports that are meant: types for annotations, and what a lower room defers to.
DEFERRED = {
    ("imperative", "functional"),  # Tensor's methods are the functional verbs
    ("abi", "ops"),  # the header is generated from the ops
    ("native", "plugins"),
    ("graph", "plugins"),
    ("jit", "onnx"),  # load() takes ONNX files too
    ("tools", "cli"),  # load_network_and_run is the command's run and bench
    ("serialization", "traced_module"),  # load() takes traced modules too
}


def module_files() -> list[Path]:
    return [p for p in sorted(SOURCE.rglob("*.py")) if p != SOURCE / "__init__.py"]


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> set[tuple[str, bool]]:
    """Return the rooms that a module imports, and whether the import waits inside a function."""
    tree = ast.parse(path.read_text())
    package = ("tianyuan", *path.relative_to(SOURCE).with_suffix("").parts[:-1])
    found = set()

    def visit(node: ast.AST, inside: bool, typing_only: bool) -> None:
        for child in ast.iter_child_nodes(node):
            nested = inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            typed = typing_only or (
                isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            )
            if isinstance(child, ast.ImportFrom) and not typed:
                base = package[: len(package) - child.level + 1] if child.level else ()
                full = (*base, *((child.module or "").split(".") if child.module else ()))
                if full[:1] == ("tianyuan",):
                    names = [full[1]] if len(full) > 1 else [alias.name for alias in child.names]
                    found.update((name, nested) for name in names)
            visit(child, nested, typed)

    visit(tree, False, False)
    return found


@pytest.mark.parametrize("path", module_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_run_downwards(path: Path) -> None:
    room = room_of(path)
    assert room in FLOOR, f"{room} has no place in the list of rooms"
    for target, deferred in imports_of(path):
        if target == room or target.startswith("__"):
            continue
        assert target in FLOOR, f"{target} has no place in the list of rooms"
        allowed = FLOOR[target] <= FLOOR[room] or (deferred and (room, target) in DEFERRED)
        assert allowed, f"{path.relative_to(SOURCE)} imports {target}, which stands below {room}"


@pytest.mark.parametrize("path", module_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_stay_under_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("path", module_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_functions_stay_under_60_lines_and_modules_say_what_they_decide(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the module has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False) or ""
            length = (node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines())
            assert length <= 60, f"{node.name} has {length} lines without its docstring"
