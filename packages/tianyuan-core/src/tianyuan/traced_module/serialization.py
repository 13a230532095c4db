"""Let graphs of an older version be brought up to date while they are loaded.

A loader takes an expression that was just read, whose ``version`` says which Tianyuan wrote it, and
changes it in place: its arguments, or what it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..op import Op
from . import names
from .expr import (
    Apply,
    CallFunction,
    CallMethod,
    Expr,
    is_apply_def,
    is_call_function,
    is_call_module,
    is_call_tensor_method,
)

Loader = Callable[[Any], None]
_Registered = TypeVar("_Registered", bound=Loader)

_functional: dict[str, Loader] = {}
_opdefs: dict[str, Loader] = {}
_modules: dict[str, Loader] = {}
_methods: dict[str, Loader] = {}


def _register(
    table: dict[str, Loader], keys: list[str], what: str
) -> Callable[[_Registered], _Registered]:
    for key in keys:
        if key in table:
            raise ValueError(f"{what}: a loader is registered already, got {key!r}")

    def register(loader: _Registered) -> _Registered:
        table.update(dict.fromkeys(keys, loader))
        return loader

    return register


class Unknown:
    """Stands for a function that a file names and this version does not know.

    A loader puts one that it knows in the place.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = name.rpartition(".")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.name}: an unknown function cannot be called")


def _function_key(function: Any) -> str:
    if isinstance(function, Unknown):
        return function.name
    if isinstance(function, (tuple, list)):
        function = ".".join(function)
    if isinstance(function, str):
        function = names.function_named(function) or function
    return (
        function if isinstance(function, str) else names.function_name(function) or repr(function)
    )


def register_functional_loader(*funcs: Any) -> Callable[[_Registered], _Registered]:
    """Return a decorator that registers a loader for calls of functions.

    Args:
        funcs: functions, or their names, also of functions that exist no more: as text or as
            (module, name).

    Raises:
        ValueError: where a function has a loader already.

    >>> @register_functional_loader(("tianyuan.functional", "an_old_name_of_relu"))
    ... def renamed(expr):
    ...     import tianyuan.functional as F
    ...     expr.func = F.relu
    """
    return _register(
        _functional, [_function_key(func) for func in funcs], "register_functional_loader"
    )


def _op_key(opdef: Any) -> str:
    return opdef if isinstance(opdef, str) else getattr(opdef, "op", opdef).name


def register_opdef_loader(*opdefs: Op | str) -> Callable[[_Registered], _Registered]:
    """Return a decorator that registers a loader for applications of ops.

    >>> @register_opdef_loader("lrn_of_old")
    ... def update(expr):
    ...     pass
    """
    return _register(_opdefs, [_op_key(opdef) for opdef in opdefs], "register_opdef_loader")


def _module_key(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    return names.module_name(kind) or f"{kind.__module__}.{kind.__qualname__}"


def register_module_loader(*module_types: Any) -> Callable[[_Registered], _Registered]:
    """Return a decorator that registers a loader for calls of modules, by class.

    >>> import tianyuan.module as M
    >>> @register_module_loader(M.LSTMCell)
    ... def update(expr):
    ...     cell = expr.inputs[0].owner
    """
    return _register(
        _modules, [_module_key(kind) for kind in module_types], "register_module_loader"
    )


def register_tensor_method_loader(*methods: str) -> Callable[[_Registered], _Registered]:
    """Return a decorator that registers a loader for calls of tensors' methods.

    >>> @register_tensor_method_loader("an_old_method")
    ... def update(expr):
    ...     expr.method = "reshape"
    """
    return _register(_methods, list(methods), "register_tensor_method_loader")


def load_functional(expr: Expr) -> None:
    """Bring a call of a function up to date, where a loader is registered.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> load_functional(traced.graph.exprs().as_unique())
    """
    if is_call_function(expr):
        assert isinstance(expr, CallFunction)
        loader = _functional.get(_function_key(expr.func))
        if loader is not None:
            loader(expr)


def load_apply_expr(expr: Expr) -> None:
    """Bring an application of an op up to date, where a loader is registered.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> load_apply_expr(traced.graph.exprs().as_unique())
    """
    if is_apply_def(expr):
        assert isinstance(expr, Apply)
        loader = _opdefs.get(_op_key(expr.opdef))
        if loader is not None:
            loader(expr)


def load_call_module_expr(expr: Expr) -> None:
    """Bring a call of a module up to date, where a loader is registered.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> load_call_module_expr(traced.graph.exprs().as_unique())
    """
    if is_call_module(expr):
        owner: Any = expr.inputs[0]
        loader = _modules.get(_module_key(type(owner.owner)))
        if loader is not None:
            loader(expr)


def load_call_tensor_method_expr(expr: Expr) -> None:
    """Bring a call of a tensor's method up to date, where a loader is registered.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> load_call_tensor_method_expr(traced.graph.exprs().as_unique())
    """
    if is_call_tensor_method(expr):
        assert isinstance(expr, CallMethod)
        loader = _methods.get(expr.method)
        if loader is not None:
            loader(expr)
