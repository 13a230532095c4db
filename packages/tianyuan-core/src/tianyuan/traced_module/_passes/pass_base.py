"""Decide what a pass over a traced module's graph is, and which passes there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from ...errors import GraphError
from ..expr import Expr
from ..graph import InternalGraph
from ..module import TracedModule

_passes: dict[str, type[BasePass]] = {}


class PassContext:
    """What a run of passes may do.

    Args:
        disabled_pass: names of passes that are left out, even where others require them.
        pass_config: settings by name, for passes that look for them.

    >>> PassContext(["FuseConvBn"]).pass_enabled("FuseConvBn")
    False
    """

    def __init__(
        self,
        disabled_pass: Iterable[str] | None = None,
        pass_config: dict[str, Any] | None = None,
    ) -> None:
        self._disabled = frozenset(disabled_pass or ())
        self.config = dict(pass_config or {})
        self.done: set[str] = set()

    def pass_enabled(self, pass_name: str) -> bool:
        """Tell whether a pass may run."""
        return pass_name not in self._disabled


_default = PassContext()


def get_default_pass_context() -> PassContext:
    """Return the context of passes that are given none: everything is allowed.

    >>> get_default_pass_context().pass_enabled("FuseConvBn")
    True
    """
    return _default


class BasePass(ABC):
    """A rewriting of a graph that keeps its results; in place.

    A subclass has a ``name``, may name passes that must run before it in ``required_pass``, and
    rewrites around one expression in ``run_transform``. ``run_once`` False repeats it until
    nothing changes.
    """

    name: ClassVar[str] = ""
    required_pass: ClassVar[Sequence[str]] = ()
    run_once: ClassVar[bool] = True

    def __init__(self) -> None:
        self.context = _default

    @abstractmethod
    def run_transform(self, expr: Expr) -> bool | None:
        """Rewrite the graph around an expression; return True where it was changed."""

    @abstractmethod
    def order(self, exprs: list[Expr]) -> list[Expr]:
        """Return expressions in the order in which they are visited."""

    def before_visit_graph(self, graph: InternalGraph) -> None:
        """Prepare for a graph; does nothing unless overridden."""
        return

    def visit_graph(self, graph: InternalGraph) -> None:
        """Visit all expressions of a graph, then drop what nothing reads any more."""
        changed = True
        while changed:
            self.before_visit_graph(graph)
            changed = False
            for expr in self.order(list(graph._exprs)):
                if expr in graph._exprs:
                    changed = bool(self.run_transform(expr)) or changed
            graph.compile()
            changed = changed and not self.run_once

    def __call__(self, module: TracedModule, pass_ctx: PassContext | None = None) -> TracedModule:
        """Rewrite a module's graph and those that it calls, after the required passes."""
        context = pass_ctx or PassContext()
        self.context = context
        for name in self.required_pass:
            if context.pass_enabled(name) and name not in context.done:
                get_registered_pass(name)()(module, context)
        for part in module.modules():
            if isinstance(part, TracedModule):
                for graph in list(part.argdef_graph_map.values()):
                    self.visit_graph(graph)
        for graph in module.argdef_graph_map.values():
            graph._number()
        context.done.add(self.name)
        return module


class ForwardPass(BasePass):
    """A pass that goes from inputs to outputs.

    >>> class Names(ForwardPass):
    ...     def run_transform(self, expr):
    ...         print(type(expr).__name__)
    >>> import tianyuan as ty, tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> _ = Names()(trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])))
    GetAttr
    CallMethod
    """

    def order(self, exprs: list[Expr]) -> list[Expr]:
        """Return the expressions as they stand."""
        return exprs


class BackwardPass(BasePass):
    """A pass that goes from outputs to inputs.

    >>> class Names(BackwardPass):
    ...     def run_transform(self, expr):
    ...         print(type(expr).__name__)
    >>> import tianyuan as ty, tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> _ = Names()(trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])))
    CallMethod
    GetAttr
    """

    def order(self, exprs: list[Expr]) -> list[Expr]:
        """Return the expressions from the last to the first."""
        return exprs[::-1]


_Class = TypeVar("_Class", bound=type[BasePass])


def register_pass(pass_name: str) -> Callable[[_Class], _Class]:
    """Return a decorator that makes a pass known by a name.

    Raises:
        ValueError: where the name is taken.

    >>> @register_pass("CountCalls")
    ... class CountCalls(ForwardPass):
    ...     def run_transform(self, expr):
    ...         self.context.config["calls"] = self.context.config.get("calls", 0) + 1
    """

    def register(cls: _Class) -> _Class:
        if pass_name in _passes:
            raise ValueError(f"register_pass: the name is taken, got {pass_name!r}")
        cls.name = pass_name
        _passes[pass_name] = cls
        return cls

    return register


def get_registered_pass(pass_name: str) -> Any:
    """Return the class of a pass.

    Raises:
        GraphError: where there is none of the name.

    >>> import tianyuan.traced_module
    >>> get_registered_pass("FuseConvBn").name
    'FuseConvBn'
    """
    if pass_name not in _passes:
        raise GraphError(
            f"optimize: unknown pass, got {pass_name!r}, expected one of "
            f"{', '.join(sorted(_passes))}"
        )
    return _passes[pass_name]
