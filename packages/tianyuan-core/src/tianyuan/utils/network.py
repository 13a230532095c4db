"""Network: load a model file, look at its operators, change them, and write it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from .. import dtypes, registry, shapes
from ..errors import AttrError, GraphError
from ..graph import passes
from ..graph.container import Container, parse_container, read_container
from ..graph.graph import Constant
from ..graph.options import Options
from ..jit.model import read_graph
from ..op import Op, TensorSpec
from . import network_file as files
from .network_filter import (
    NodeFilter,
    NodeFilterCheckType,
    NodeFilterHasInput,
    NodeFilterName,
    NodeFilterNotType,
    NodeFilterType,
    as_oprnode,
    as_varnode,
    known_names,
)
from .network_graph import copies, from_graph, rebatch, redirected, rewire, to_graph
from .network_node import (
    Host2DeviceCopy,
    ImmutableTensor,
    OpNode,
    VarNode,
    class_of,
    oprs_of,
    set_symbolic_shape,
)
from .network_query import NetworkQueries

__all__ = [
    "Network",
    "NodeFilter",
    "NodeFilterCheckType",
    "NodeFilterHasInput",
    "NodeFilterName",
    "NodeFilterNotType",
    "NodeFilterType",
    "as_oprnode",
    "as_varnode",
    "set_symbolic_shape",
]


class Network(NetworkQueries):
    """The operators of a model, which can be looked at and changed before it is written again.

    Variables are tensors without data: operators and ``functional`` extend the network.

    >>> net = Network()
    >>> x = net.make_input_node((2,), "float32", name="x")
    >>> y = x * 2
    >>> y.name = "y"
    >>> net.add_output(y)
    >>> [opr.type for opr in net.all_oprs]
    ['Host2DeviceCopy', 'full', 'mul']
    """

    def __init__(self) -> None:
        super().__init__()
        self._inputs: list[OpNode] = []
        self._counts: dict[str, int] = {}
        self._taken: set[str] = set()  # names of operators
        self._metadata: dict[str, Any] = {}

    @classmethod
    def load(
        cls, model_path: str | os.PathLike[str] | IO[bytes], outspec: list[str] | None = None
    ) -> Network:
        """Load a model file.

        Args:
            model_path: a ``.tym`` file, or a binary stream that holds one.
            outspec: names of variables that shall be the outputs, in place of the file's.

        Raises:
            ModelFormatError: where it is damaged.
            GraphError: where ``outspec`` names no variable; the message lists those known.
        """
        if hasattr(model_path, "read"):
            container = parse_container("stream", model_path.read())
        else:
            container = read_container(model_path)
        self = cls()
        self._take(container)
        if outspec is not None:
            self._outputs = [self._named(name) for name in outspec]
        return self

    def _take(self, container: Container) -> None:
        graph, names = read_graph(container)
        for value in graph.inputs:
            self.fresh(value.name, exact=True)
        oprs, outputs = from_graph(self, graph)
        sources = {var.name: var.owner for opr in oprs for var in opr.inputs} | {
            var.name: var.owner for var in outputs
        }
        for value in graph.inputs:
            opr = sources.get(value.name)
            if not isinstance(opr, Host2DeviceCopy):
                opr = Host2DeviceCopy(self, value.name, specs=(value.spec,))
            self._inputs.append(opr)
            self._kept.append(opr.outputs[0])
        self._metadata = files.read_extra(container, oprs)
        self._taken.update(opr.name for opr in oprs)
        seen: set[VarNode] = set()
        for name, var in zip(names, outputs, strict=True):
            if var.owner.op is None or var in seen:
                # An output of its own, since the variable has a name already.
                var = self.apply(registry.get_op("copy"), (var,), registry.get_op("copy").attrs())[
                    0
                ]
            var.name = name
            seen.add(var)
            self._outputs.append(var)

    def _named(self, name: str) -> VarNode:
        for var in self.all_vars:
            if var.name == name:
                return var
        raise GraphError(
            f"network: no variable has the name, got {name!r}, "
            f"expected one of {known_names(self.all_vars)}"
        )

    # What it extends by.

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

    def make_const(self, data: Any, name: str | None = None, device: Any = None) -> VarNode:
        """Make a constant; Python floats arrive as float32, as in ``Tensor``.

        Raises:
            DTypeError: for data that is not numeric.
            AttrError: for another device than the host.
        """
        _check_device("make_const", device)
        array = data if isinstance(data, np.ndarray) else dtypes.ingest(data, None)
        var = self._const(array, name or "const", name is not None)
        self._kept.append(var)
        return var

    def make_input_node(
        self, shape: Sequence[Any], dtype: Any, name: str | None = None, device: Any = None
    ) -> VarNode:
        """Make an input; a name in place of an extent declares a dynamic dimension.

        Raises:
            AttrError: for another device than the host, or an extent that is none.
            GraphError: where the name is taken by another input.
        """
        _check_device("make_input_node", device)
        if name is not None and any(opr.name == name for opr in self._inputs):
            raise GraphError(f"make_input_node: an input has the name already, got {name!r}")
        if not all(isinstance(n, str) or (isinstance(n, int) and int(n) >= 0) for n in shape):
            raise AttrError(
                f"make_input_node: shape is not valid, got {tuple(shape)}, expected sizes and names"
            )
        # Two is a size at which nothing broadcasts by accident.
        extents = tuple(shapes.Dim(2, n) if isinstance(n, str) else n for n in shape)
        spec = TensorSpec(extents, dtypes.as_dtype(dtype))
        title = self.fresh(name or "input", name is not None)
        opr = Host2DeviceCopy(self, title, specs=(spec,))
        self._inputs.append(opr)
        self._kept.append(opr.outputs[0])
        return opr.outputs[0]

    def add_dep_oprs(self, *vars: Any) -> list[OpNode]:
        """Bring what variables depend on into the network; return those operators."""
        found = [self._mine(as_varnode(var)) for var in vars]
        self._kept += found
        return oprs_of(found)

    # Outputs.

    @property
    def dest_vars(self) -> list[VarNode]:
        """The outputs."""
        return list(self._outputs)

    def add_output(self, *vars: VarNode) -> None:
        """Make variables outputs, under their names; those that are so already stay.

        Raises:
            GraphError: where an output has the name already.
        """
        added: list[VarNode] = []
        taken = {var.name for var in self._outputs}
        for var in (self._mine(as_varnode(v)) for v in vars):
            if var in self._outputs or var in added:
                continue
            if var.name in taken:
                raise GraphError(f"add_output: an output has the name already, got {var.name!r}")
            taken.add(var.name)
            added.append(var)
        self._outputs += added

    def remove_output(self, *vars: VarNode) -> None:
        """Make variables no outputs any more.

        Raises:
            GraphError: where one is none; the message lists the outputs.
        """
        gone = [as_varnode(var) for var in vars]
        for var in gone:
            if var not in self._outputs:
                raise GraphError(
                    f"remove_output: not an output, got {var.name!r}, "
                    f"expected some of {known_names(self._outputs)}"
                )
        self._outputs = [var for var in self._outputs if var not in gone]

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file says of itself: ``user_info``, ``graph_modified`` and so on."""
        return dict(self._metadata)

    # Changes.

    def modify_opr_names(self, modifier: str | Callable[[str], str]) -> None:
        """Rename all operators: a string is put in front with a dot, a function gives the name.

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
        for old, new in table.items():
            if old in self._outputs and not new._given:
                old_name, old.name = old.name, ""
                new.name = old_name
        self._outputs = outputs

    def replace_oprs(self, repl_dict: Mapping[OpNode, OpNode]) -> None:
        """Put operators in the place of others, output by output.

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

        Raises:
            GraphError: where a name is unknown, inputs differ in their batch, or an operator holds
                the old size in another way; nothing has changed then.
        """
        inputs = [opr.outputs[0] for opr in self.data_providers_filter]
        names = {var.name for var in inputs}
        unknown = [name for name in blacklist if name not in names]
        if unknown:
            raise GraphError(
                f"reset_batch_size: blacklist names no input, got {', '.join(unknown)}, "
                f"expected some of {', '.join(names)}"
            )
        batched = [var for var in inputs if var.name not in set(blacklist)]
        found = {shapes.expr_of(var._spec.shape[0]) if var.ndim else None for var in batched}
        if len(found) != 1 or None in found:
            raise GraphError(
                f"reset_batch_size: inputs must have one batch size, got "
                f"{', '.join(f'{var.name}: {var._spec}' for var in batched) or 'no input'}"
            )
        if not isinstance(batchsize, int) or batchsize < 1:
            raise GraphError(f"reset_batch_size: expected a positive int, got {batchsize!r}")
        size = batched[0]._spec.shape[0]
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

    def dump(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        *,
        keep_var_name: int = 1,
        keep_opr_name: bool = False,
        keep_param_name: bool = False,
        keep_opr_priority: bool = False,
        strip_info_file: Any = None,
        append_json: bool = False,
        optimize_for_inference: bool = True,
        append: bool = False,
        user_info: Any = None,
        enable_metadata: bool = True,
        dump_format: str | None = None,
        compat_older_version: str | None = None,
        **kwargs: Any,
    ) -> files.DumpResult:
        """Write the outputs, and what they depend on, to a model file.

        Args:
            file: a path, or a binary stream to write to.
            keep_var_name: 0 names the outputs ``output_0`` …, 1 keeps their names, 2 those of all
                variables.
            keep_opr_name, keep_param_name, keep_opr_priority: whether these are kept too.
            strip_info_file: where to write, as JSON, which ops and dtypes the model needs.
            append_json: whether to add to that file instead of replacing it.
            optimize_for_inference: whether the options of ``kwargs`` are applied; see the method
                of that name. Whatever loads the file optimises it in any case.
            user_info: anything that JSON can hold, to be found in ``metadata``.
            enable_metadata: whether metadata is written at all.
            append, dump_format, compat_older_version: there is one format with one model a file;
                other values than the defaults are refused.

        Raises:
            GraphError: where there is no output, or two have one name.
            AttrError: where an option is unknown or not offered; the message names it.
            OSError: where the file cannot be written.
        """
        files.check_options(append=append, dump_format=dump_format,
                            compat_older_version=compat_older_version)  # fmt: skip
        if not self._outputs:
            raise GraphError("dump: the network has no output, expected add_output before")
        outputs = self._outputs
        level = files.level_of(kwargs) if kwargs else 0
        optimised = bool(kwargs) and optimize_for_inference
        if optimised:
            outputs = self.optimize_for_inference(outputs, **kwargs)
        keep = files.Keep(keep_var_name, keep_opr_name, keep_param_name, keep_opr_priority)
        notes = {"user_info": user_info, "optimized_for_inference": optimised and level > 0}
        return files.write(
            file, outputs, self._inputs, keep, notes if enable_metadata else None,
            strip_info_file, append_json,
        )  # fmt: skip


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


def _check_device(what: str, device: Any) -> None:
    if device is not None and not str(device).startswith(("cpu", "xpu")):
        raise AttrError(f"{what}: a network lies on the host, got device {device!r}")
