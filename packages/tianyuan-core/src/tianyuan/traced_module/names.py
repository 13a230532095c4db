"""Decide what a traced module may call: functions, tensor methods and module classes, by name.

A file names what its graph calls; only what stands in these tables is ever called on its behalf.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FunctionType
from typing import Any

from .. import plugins
from ..errors import TraceError
from ..imperative.tensor import Tensor
from ..module import Module

_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift",
)  # fmt: skip
IN_PLACE = frozenset(
    {f"__i{name}__" for name in _BINARY} | {"__setitem__", "set_value", "reset_zero"}
)
PROPERTIES = frozenset({"T", "shape", "size"})
TENSOR_METHODS = frozenset(
    {f"__{prefix}{name}__" for name in _BINARY for prefix in ("", "r")}
    | {f"__{name}__" for name in ("neg", "pos", "abs", "invert", "round", "floor", "ceil")}
    | {f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne", "getitem")}
    | {"astype", "reshape", "transpose", "flatten", "sum", "prod", "min", "max", "mean"}
    | {"detach", "to"}
    | IN_PLACE
    | PROPERTIES
)
# What takes a value out of the graph, so that whatever follows from it is fixed.
READS = ("numpy", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__")

SIZE_FUNCTIONS = tuple(
    getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg")
)
_PACKAGES = (
    "functional", "functional.nn", "functional.loss", "functional.math", "functional.tensor",
    "functional.metric", "functional.vision", "functional.elemwise", "random",
)  # fmt: skip
_NOT_TRACED = frozenset({"seed", "get_state", "set_state"})

_functions: dict[str, Callable[..., Any]] = {}
_function_names: dict[int, str] = {}
_OURS: set[str] = set()
_modules: dict[str, type[Module]] = {}
_module_names: dict[type, str] = {}


def _register_function(name: str, function: Callable[..., Any]) -> None:
    _functions[name] = function
    _function_names.setdefault(id(function), name)


def _fill() -> None:
    if _functions.get("tianyuan.functional.relu") is not None:
        return
    for package in _PACKAGES:
        module = import_module(f"tianyuan.{package}")
        for name in module.__all__:
            found = getattr(module, name)
            if callable(found) and not inspect.isclass(found) and name not in _NOT_TRACED:
                _register_function(f"tianyuan.{package}.{name}", found)
                _functions.setdefault(f"{found.__module__}.{name}", found)
    for function in SIZE_FUNCTIONS:
        _register_function(f"operator.{function.__name__}", function)
    _register_function("tianyuan.Tensor", Tensor)
    _OURS.update(_functions)


def functions() -> Iterator[Callable[..., Any]]:
    """Walk all functions whose calls are recorded as one expression."""
    _fill()
    seen = set()
    for function in _functions.values():
        if id(function) not in seen and function not in SIZE_FUNCTIONS and function is not Tensor:
            seen.add(id(function))
            yield function


def function_name(function: Callable[..., Any]) -> str | None:
    """Return the name under which a function is known, or None."""
    _fill()
    return _function_names.get(id(function))


def unreported(value: Any) -> Any:
    """Return the function that a reporter stands for while a graph is recorded; others as given."""
    reports = getattr(value, "_reports", None) if isinstance(value, FunctionType) else None
    # A wrapper that copied a reporter's attributes is no reporter.
    return reports[1] if reports is not None and reports[0] is value else value


def function_named(name: str) -> Callable[..., Any] | None:
    """Return the function of a name, or None."""
    _fill()
    return _functions.get(name)


def wrap(func: Callable[..., Any]) -> Callable[..., Any]:
    """Let calls of a function be recorded as one expression, and files name the function.

    The body then runs unseen, so it may use any Python; usable as a decorator. A file that calls
    the function can be loaded wherever the same function was registered before.

    Raises:
        TypeError: where it cannot be called.

    >>> @wrap
    ... def double(x):
    ...     return x * 2
    """
    if not callable(func):
        raise TypeError(f"wrap: not a function, got {type(func).__name__}")
    _fill()
    name = f"{func.__module__}.{func.__qualname__}"
    if name in _OURS and _functions[name] is not func:
        # Named after one of ours by functools.wraps: its own name tells them apart.
        name = f"{func.__globals__['__name__']}.{func.__code__.co_name}"
    _register_function(name, func)
    return func


# Quantisation's modules are leaves too; they stand in namespaces that a plugin brings.
_MODULE_SPACES = ("module", "module.qat", "module.quantized", "quantization")


def _fill_modules() -> None:
    for space in _MODULE_SPACES:
        target = plugins.namespaces().get(space, f"tianyuan.{space}")
        module = sys.modules.get(target)
        if module is None:
            continue
        for name in getattr(module, "__all__", ()):
            full = f"tianyuan.{space}.{name}"
            if full in _modules:
                continue
            found = getattr(module, name)
            if inspect.isclass(found) and issubclass(found, Module):
                _modules[full] = found
                _module_names.setdefault(found, full)


def register_as_builtin(mod_cls: type[Module]) -> type[Module]:
    """Let modules of a class be called as a whole rather than traced, and files name the class.

    Raises:
        TypeError: where it is no class of modules.

    >>> import tianyuan.module as M
    >>> class Twice(M.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> register_as_builtin(Twice) is Twice
    True
    """
    if not (inspect.isclass(mod_cls) and issubclass(mod_cls, Module)):
        raise TypeError(f"register_as_builtin: not a class of modules, got {mod_cls!r}")
    name = f"{mod_cls.__module__}.{mod_cls.__qualname__}"
    _modules[name] = mod_cls
    _module_names[mod_cls] = name
    return mod_cls


def is_builtin(module: Module) -> bool:
    """Tell whether a module is called as a whole."""
    from ..module import Sequential

    kind = type(module)
    if kind in _module_names:
        return kind is not Sequential
    if kind.__module__.startswith(("tianyuan.", "tianyuan_quant.")):
        _fill_modules()
    return kind in _module_names and kind is not Sequential


def module_name(kind: type) -> str | None:
    """Return the name under which a class of modules is known, or None."""
    _fill_modules()
    return _module_names.get(kind)


def module_named(name: str) -> type[Module] | None:
    """Return the class of modules of a name, or None; quantisation's are brought on demand."""
    space = name.rpartition(".")[0].removeprefix("tianyuan.")
    if name not in _modules and space in _MODULE_SPACES:
        target = plugins.namespaces().get(space)
        if target is not None:
            import_module(target)
    _fill_modules()
    return _modules.get(name)


def check_method(method: str) -> str:
    """Return the name of a tensor's method.

    Raises:
        TraceError: where a graph cannot call it.
    """
    if method not in TENSOR_METHODS:
        raise TraceError(
            f"CallMethod: a graph cannot call this method of a tensor, got {method!r}, expected "
            f"one of {', '.join(sorted(TENSOR_METHODS))}"
        )
    return method
