"""What can be changed of a network: variables and operators replaced, names, the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..errors import GraphError
from ..graph import passes
from ..graph.graph import Constant
from ..graph.options import Options
from ..op import Op
from . import network_file as files
from .network_filter import as_oprnode, as_varnode
from .network_graph import copies, from_graph, rebatch, redirected, rewire, to_graph
from .network_node import ImmutableTensor, OpNode, VarNode, class_of, oprs_of
from .network_query import NetworkQueries


class NetworkChanges(NetworkQueries):
    """The part of ``Network`` that extends it and replaces what is there."""

    def __init__(self) -> None:
        super().__init__()
        self._inputs: list[OpNode] = []
        self._counts: dict[str, int] = {}
        self._taken: set[str] = set()  # names of operators

    def fresh(self, name: str, exact: bool = False) -> str:
        """Return a name that no operator has been given yet; as it is where ``exact`` and free."""
        found = name if exact else ""
        while not found or found in self._taken:
            count = self._counts.get(name, 0)
            self._counts[name] = count + 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found

    def apply(self, op: Op, datas: Sequence[Any], attrs: Any) -> list[VarNode]:
        """Apply an op to variables of this network and arrays, which become constants.

        Raises:
            GraphError: where a variable belongs to another network.
            ShapeError, DTypeError, AttrError: where the op refuses them.
        """
        inputs = [self._mine(d) if isinstance(d, VarNode) else self._const(d) for d in datas]
        op.check_count(len(inputs))
        specs = op.infer(tuple(var._spec for var in inputs), attrs)
        return class_of(op)(self, self.fresh(op.name), op, attrs, inputs, specs).outputs

    def _mine(self, var: VarNode) -> VarNode:
        if var.graph is not self:
            raise GraphError(f"network: a variable belongs to another network, got {var.name!r}")
        return var

    def _const(self, data: Any, name: str = "const", exact: bool = False) -> VarNode:
        array = np.array(data, order="C")
        title = self.fresh(name, exact)
        return ImmutableTensor(self, title, Constant(array, title)).outputs[0]

    def modify_opr_names(self, modifier: str | Callable[[str], str]) -> None:
        """Rename all operators: a string is put in front with a dot, a function gives the name.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> x = net.make_input_node((2,), "float32", name="x")
        >>> net.modify_opr_names("left")
        >>> [opr.name for opr in net.all_oprs]
        ['left.x']

        Raises:
            GraphError: where it is neither, or two operators would have one name.
        """
        if isinstance(modifier, str):
            prefix = modifier
            modifier = lambda name: f"{prefix}.{name}"  # noqa: E731
        if not callable(modifier):
            raise GraphError(f"modify_opr_names: expected a string or function, got {modifier!r}")
        oprs = self.all_oprs
        names = [modifier(opr.name) for opr in oprs]
        if len(set(names)) != len(names) or not all(isinstance(n, str) and n for n in names):
            raise GraphError("modify_opr_names: names must be different strings")
        for opr, name in zip(oprs, names, strict=True):
            opr.name = name
        self._taken.update(names)

    def replace_vars(self, repl_dict: Mapping[VarNode, VarNode]) -> None:
        """Let every operator that reads a variable read another one in its place.

        Operators that the new variable is computed by keep what they read, so
        ``{x: relu(x)}`` puts a relu behind x. An output that is replaced hands its name on, unless
        the new variable has been given one.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> x = net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(-x)
        >>> net.replace_vars({x: x * 2})
        >>> [opr.type for opr in net.all_oprs]
        ['Host2DeviceCopy', 'full', 'mul', 'neg']

        Raises:
            GraphError: where operators would depend on each other in a circle, or one refuses its
                new input; nothing has changed then.
        """
        table = {
            self._mine(as_varnode(old)): self._mine(as_varnode(new))
            for old, new in repl_dict.items()
        }
        inputs_of = redirected(self.all_oprs, table)
        outputs = [table.get(var, var) for var in self._outputs]
        rewire("replace_vars", [*outputs, *self._kept, *table.values()], inputs_of)
        read = {var for opr in oprs_of([*outputs, *table.values()]) for var in opr.inputs}
        # What was an input and is read no more is gone.
        self._kept = [var for var in self._kept if var not in table or var in read]
        for old, new in table.items():
            if old in self._outputs and not new._given:
                old_name, old.name = old.name, ""
                new.name = old_name
        self._outputs = outputs

    def replace_oprs(self, repl_dict: Mapping[OpNode, OpNode]) -> None:
        """Put operators in the place of others, output by output.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> x = net.make_input_node((2,), "float32", name="x")
        >>> y = -x
        >>> net.add_output(y)
        >>> net.replace_oprs({y.owner: abs(x).owner})
        >>> [opr.type for opr in net.all_oprs]
        ['Host2DeviceCopy', 'abs']

        Raises:
            GraphError: where two have not the same number of outputs, or as ``replace_vars``.
        """
        table: dict[VarNode, VarNode] = {}
        for old, new in repl_dict.items():
            table.update(paired("replace_oprs", old, new))
        self.replace_vars(table)

    def reset_batch_size(self, batchsize: int, *, blacklist: Iterable[str] = ()) -> None:
        """Give all inputs another size of their first axis, and infer the network anew.

        Args:
            batchsize: the new size.
            blacklist: names of inputs that have no batch.

        What reshapes, slices and broadcasts along the first axis follows. A dynamic first
        dimension becomes fixed.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> x = net.make_input_node((2,), "float32", name="x")
        >>> net.reset_batch_size(5)
        >>> x.shape
        (5,)

        Raises:
            GraphError: where a name is unknown, inputs differ in their batch, or an operator holds
                the old size in another way; nothing has changed then.
        """
        inputs = [opr.outputs[0] for opr in self.data_providers_filter]
        names = [var.name for var in inputs]
        left = set(blacklist)
        unknown = sorted(left.difference(names))
        if unknown:
            raise GraphError(
                f"reset_batch_size: blacklist names no input, got {', '.join(unknown)}, "
                f"expected some of {', '.join(names)}"
            )
        batched = [var for var in inputs if var.name not in left]
        found = {shapes.expr_of(var._spec.shape[0]) if var.ndim else None for var in batched}
        if len(found) != 1 or None in found:
            raise GraphError(
                f"reset_batch_size: inputs must have one batch size, got "
                f"{', '.join(f'{var.name}: {var._spec}' for var in batched) or 'no input'}, "
                "expected inputs without it in blacklist"
            )
        if not isinstance(batchsize, int) or batchsize < 1:
            raise GraphError(f"reset_batch_size: expected a positive int, got {batchsize!r}")
        size = batched[0]._spec.shape[0]
        if int(size) == 0:
            raise GraphError("reset_batch_size: inputs hold no item, got a batch of 0")
        symbol = found.pop()
        symbol = symbol if isinstance(symbol, str) else None
        specs = {v: v._spec.moved((batchsize, *v._spec.shape[1:])) for v in batched}
        rewire(
            "reset_batch_size",
            [*self._outputs, *self._kept],
            {},
            specs,
            lambda opr, given: rebatch(opr, given, int(size), batchsize, symbol),
        )

    def optimize_for_inference(self, dest_vars: Sequence[VarNode], **kwargs: Any) -> list[VarNode]:
        """Return variables that hold the same, computed by fewer operators.

        Args:
            dest_vars: what shall be computed.
            kwargs: ``enable_fuse_conv_bias_nonlinearity`` and ``enable_fuse_conv_bias_with_z``
                also fuse. Blocked layouts for CPUs are chosen by whatever loads the file, so
                ``enable_nchw44``, ``enable_nchw44_dot`` and ``enable_nchw88`` say nothing new.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> x = net.make_input_node((2,), "float32", name="x")
        >>> [better] = net.optimize_for_inference([x * 1])
        >>> better is x
        True

        Raises:
            AttrError: for another option; the message names it.
        """
        level = files.level_of(kwargs)
        wanted = [self._mine(as_varnode(var)) for var in dest_vars]
        graph, values, _ = to_graph(wanted, self._inputs)
        known = {values[opr.outputs[0]]: opr.outputs[0] for opr in self._inputs
                 if opr.outputs[0] in values}  # fmt: skip
        better = passes.optimise(graph, Options(level=level))
        kept = dict(zip(better.inputs, (known[v] for v in graph.inputs), strict=True))
        _, found = from_graph(self, better, kept)
        for old, new in zip(wanted, found, strict=True):
            if not new._given and new.owner.op is not None:
                new.name = old.name
        return found


def paired(what: str, old: Any, new: Any) -> dict[VarNode, VarNode]:
    """Return the outputs of one operator by those of another.

    Raises:
        GraphError: where they have not the same number.
    """
    before, after = as_oprnode(old).outputs, as_oprnode(new).outputs
    if len(before) != len(after):
        raise GraphError(
            f"{what}: {new!r} has another number of outputs, got {len(after)}, "
            f"expected {len(before)} as {old!r}"
        )
    return dict(zip(before, after, strict=True))


def replaced(outputs: Sequence[VarNode], varmap: Mapping[VarNode, VarNode]) -> list[VarNode]:
    """Return variables as they would be with some replaced; the network stays as it is."""
    found = [as_varnode(var) for var in outputs]
    return copies(found[0].graph, found, varmap) if found else []
