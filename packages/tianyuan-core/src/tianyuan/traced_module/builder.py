"""Run a module once and make the traced module of what it did."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from ..errors import TraceError
from ..imperative.state import state
from ..imperative.tensor import Tensor, wrap
from ..module import Module
from . import checker, names, recording
from .cloning import link
from .expr import Constant, Expr, Input
from .graph import InternalGraph, drop_unused_reads
from .members import carried, holds_any
from .module import _OWN, TracedModule, leaf_names, normalised
from .node import ModuleNode, NodeMixin, Size
from .patching import patched
from .pytree import TreeDef, tree_flatten, tree_map
from .recording import Scope, apply_op, undisturbed
from .scope import current, entered

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class Family:
    """The builders of all modules of one network, each module's by its identity."""

    def __init__(self) -> None:
        self._builders: dict[int, TracedModuleBuilder] = {}
        self._made: dict[int, Module] = {}
        self._alive: list[Module] = []

    def builder(self, module: Module) -> TracedModuleBuilder:
        """Return the builder of a module."""
        found = self._builders.get(id(module))
        if found is None:
            found = self._builders[id(module)] = TracedModuleBuilder(module, family=self)
            self._alive.append(module)
        return found

    def made(self, module: Module) -> Module:
        """Return what takes a module's place in the traced module.

        It shares tensors with the original but no modules, so that ``train`` of one leaves the
        other as it is.
        """
        found = self._made.get(id(module))
        if found is None:
            if names.is_builtin(module):
                found = object.__new__(type(module))
                self._made[id(module)] = found
                for key, value in vars(module).items():
                    held = key not in _HOOKS and _holds_module(value)
                    vars(found)[key] = carried(value, self.made) if held else _own(value)
            else:
                found = self.builder(module).build()
            self._made[id(module)] = found
        return found


class TracedModuleBuilder:
    """Makes the traced module of one module.

    Args:
        mod: the module.
        is_top_module: whether it is the whole network.
        family: builders of the network's other modules.

    >>> import tianyuan.module as M
    >>> TracedModuleBuilder(M.ReLU(), is_top_module=True).build().argdef_graph_map
    {}
    """

    def __init__(
        self, mod: Module, is_top_module: bool = False, family: Family | None = None
    ) -> None:
        self._mod = mod
        self._is_top = is_top_module
        self._family = family or Family()
        self._family._builders.setdefault(id(mod), self)
        self._graphs: dict[TreeDef, InternalGraph] = {}
        self._outdefs: dict[TreeDef, TreeDef] = {}
        self._built: TracedModule | None = None
        self._arg_names = _parameters(mod)

    def record(
        self, args: Sequence[Any], kwargs: dict[str, Any], name: str, caller: InternalGraph | None
    ) -> Any:
        """Run the module and record what it does; return what it returns."""
        replaced = type(vars(self._mod).get("forward")).__module__
        if replaced.startswith("tianyuan_quant"):
            raise TraceError(
                "trace_module: the network is quantised already, expected a float network: trace "
                "first, then call quantize_qat on the traced module"
            )
        args, kwargs = tree_map(names.unreported, (tuple(args), kwargs))
        args, kwargs = normalised(self._arg_names, args, kwargs)
        leaves, argdef = tree_flatten(((self._mod, *args), kwargs))
        leaves = _distinct(leaves)
        (_, *args_), kwargs = argdef.unflatten(leaves)
        qualname = name if caller is None else f"{caller.qualname}.{name}"
        graph = InternalGraph(name, qualname)
        graph._top_graph = caller
        found = Scope(graph, self._mod, self._family)
        with entered(found, apply_op):
            shown = ["self", *leaf_names(self._arg_names, args_, kwargs)]
            for leaf, leaf_def, label in zip(leaves, argdef.leaf_defs(), shown, strict=True):
                if not leaf_def.is_const:
                    kind = NodeMixin.get_wrapped_type(leaf)
                    found.tie(leaf, Input.make(kind, label))
            outputs = recording._run_module(self._mod, *args_, **kwargs)
            results, outdef = tree_flatten(outputs)
            graph._outputs = [
                found.node_of(leaf)
                for leaf, leaf_def in zip(results, outdef.leaf_defs(), strict=True)
                if not leaf_def.is_const
            ]
            drop_unused_reads(graph)
        self._keep(argdef, graph, outdef)
        return outputs

    def _keep(self, argdef: TreeDef, graph: InternalGraph, outdef: TreeDef) -> None:
        known = self._graphs.get(argdef)
        if known is None:
            self._graphs[argdef], self._outdefs[argdef] = graph, outdef
        elif _steps(known) != _steps(graph) or self._outdefs[argdef] != outdef:
            raise TraceError(
                f"trace_module: {graph.qualname} takes different ways in two calls with arguments "
                f"of one structure, got\n{graph!r}\nafter\n{known!r}\nexpected one way; see "
                "register_as_builtin"
            )

    def build(self) -> TracedModule:
        """Return the traced module."""
        if self._built is None:
            quantised = any(hasattr(part, "act_fake_quant") for part in self._mod.modules())
            made = TracedModule(self._is_top, self._graphs, self._outdefs, quantised)
            self._built = self._family._made[id(self._mod)] = made
            made.arg_names = list(self._arg_names)
            made.name, made._training = self._mod.name, self._mod._training
            made.quantize_disabled = self._mod.quantize_disabled
            for key, value in vars(self._mod).items():
                if key in _HOOKS or key in _OWN or not holds_any(key, value):
                    if key in _OWN and not isinstance(self._mod, TracedModule):
                        raise TraceError(f"trace_module: an attribute's name is taken, got {key!r}")
                    continue
                vars(made)[key] = carried(value, self._family.made)
            for graph in self._graphs.values():
                for expr in graph._exprs:
                    if isinstance(expr, Constant) and isinstance(expr.value, Module):
                        expr.value = self._family.made(expr.value)
                    for node in expr.outputs:
                        if isinstance(node, ModuleNode):
                            node.module_type = type(node.owner)
                link(graph)
        return self._built


def _parameters(module: Module) -> list[str]:
    if isinstance(module, TracedModule):
        return list(module.arg_names)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(module.forward).parameters.values()
    return [parameter.name for parameter in found if parameter.kind in kinds]


def _own(value: Any) -> Any:
    """Return a container of one's own over the same items."""
    return copy.copy(value) if isinstance(value, (list, dict)) else value


def _holds_module(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_module, value))
    if isinstance(value, dict):
        return any(map(_holds_module, value.values()))
    return isinstance(value, Module)


def _distinct(leaves: list[Any]) -> list[Any]:
    """Give an argument that occurs twice a handle for each place."""
    seen: set[int] = set()
    found = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            leaf = wrap(leaf._data, leaf._spec) if id(leaf) in seen else leaf
            seen.add(id(leaf))
        elif isinstance(leaf, Size):
            leaf = Size(leaf)
        found.append(leaf)
    return found


def _steps(graph: InternalGraph) -> list[tuple[str, TreeDef, bytes]]:
    def data(expr: Expr) -> bytes:
        value = getattr(expr, "value", None)
        return value.numpy().tobytes() if isinstance(value, Tensor) else b""

    return [
        (f"{expr._shown_outputs()}={expr._body()}", expr.arg_def, data(expr))
        for expr in graph._exprs
    ]


def trace_module(mod: Module, *args: Any, **kwargs: Any) -> TracedModule:
    """Run a module once on example inputs and return what it did as a module with a graph.

    Modules of ``tianyuan.module``, and those given to ``register_as_builtin``, are called as a
    whole; any other becomes a traced module of its own. Parameters and buffers are shared with the
    original; their values and the random state are put back after the run. Python that depends on
    values (branches, loops, ``training``) is fixed as the run met it; extents read from ``shape``
    are not.

    Args:
        mod: the module.
        args, kwargs: what it is called with: tensors, numbers and text in nested containers.

    Raises:
        TraceError: where a graph cannot hold what the module does, or computes something else.

    >>> import numpy as np
    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> net = M.Sequential(M.Identity(), M.ReLU())
    >>> traced = trace_module(net, ty.Tensor(np.array([-1.0, 2.0])))
    >>> traced(ty.Tensor([3.0, -4.0])).numpy()
    array([3., 0.], dtype=float32)
    """
    if not isinstance(mod, Module):
        raise TypeError(f"trace_module: not a module, got {type(mod).__name__}")
    if state.recorder is not None or current() is not None:
        raise TraceError("trace_module: called while another trace is made, expected outside of it")
    builder = TracedModuleBuilder(mod, is_top_module=True)
    given, _ = tree_flatten((args, kwargs))
    with undisturbed(mod, given), patched(mod):
        outputs = builder.record(args, dict(kwargs), type(mod).__name__, None)
        traced = builder.build()
    graph = traced.graph
    graph._number()
    if checker.settings.whole:
        with undisturbed(mod, given):
            checker.compare(outputs, traced(*args, **kwargs), f"module {type(mod).__name__}")
    return traced
