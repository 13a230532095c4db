"""Network: load a model file, look at its operators, change them, and write it again."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from .. import dtypes, registry, shapes
from ..errors import AttrError, GraphError
from ..graph.container import Container, parse_container, read_container
from ..jit.dumping import DumpResult
from ..jit.model import read_graph
from ..op import TensorSpec
from . import network_file as files
from .network_change import NetworkChanges
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
from .network_graph import from_graph
from .network_node import (
    Host2DeviceCopy,
    OpNode,
    VarNode,
    oprs_of,
    set_symbolic_shape,
)

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


class Network(NetworkChanges):
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
        self._metadata: dict[str, Any] = {}

    def __reduce__(self) -> Any:
        content = io.BytesIO()
        self.dump(content)
        return _loaded, (type(self), content.getvalue())

    @classmethod
    def load(
        cls, model_path: str | os.PathLike[str] | IO[bytes], outspec: list[str] | None = None
    ) -> Network:
        """Load a model file.

        Args:
            model_path: a ``.tym`` file, or a binary stream that holds one.
            outspec: names of variables that shall be the outputs, in place of the file's.

        >>> import io
        >>> net, stream = Network(), io.BytesIO()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> _ = net.dump(stream)
        >>> Network.load(io.BytesIO(stream.getvalue())).dest_vars
        [VarNode('neg_0': float32(2,))]

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
        known = {value: self._input(value.spec, value.name) for value in graph.inputs}
        oprs, outputs = from_graph(self, graph, known)
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

    def make_const(self, data: Any, name: str | None = None, device: Any = None) -> VarNode:
        """Make a constant; Python floats arrive as float32, as in ``Tensor``.

        >>> Network().make_const([1.5, 2.5], name="c")
        VarNode('c': float32(2,))

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

        It may have the name of an input that it will replace.

        >>> Network().make_input_node(("batch", 3), "float32", name="x")
        VarNode('x': float32(batch, 3))

        Raises:
            AttrError: for another device than the host, or an extent that is none.
        """
        _check_device("make_input_node", device)
        if not all(isinstance(n, str) or (isinstance(n, int) and int(n) >= 0) for n in shape):
            raise AttrError(
                f"make_input_node: shape is not valid, got {tuple(shape)}, expected sizes and names"
            )
        # Two is a size at which nothing broadcasts by accident.
        extents = tuple(shapes.Dim(2, n) if isinstance(n, str) else n for n in shape)
        return self._input(TensorSpec(extents, dtypes.as_dtype(dtype)), name)

    def _input(self, spec: TensorSpec, name: str | None) -> VarNode:
        title = self.fresh(name or "input", name is not None)
        opr = Host2DeviceCopy(self, title, specs=(spec,))
        [var] = opr.outputs
        var.name = name or ""
        self._inputs.append(opr)
        self._kept.append(var)
        return var

    def add_dep_oprs(self, *vars: Any) -> list[OpNode]:
        """Bring what variables depend on into the network; return those operators.

        >>> net = Network()
        >>> [opr.type for opr in net.add_dep_oprs(-net.make_const(1.0))]
        ['ImmutableTensor', 'neg']
        """
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

        >>> net = Network()
        >>> net.add_output(net.make_input_node((2,), "float32", name="x"))
        >>> net.dest_vars
        [VarNode('x': float32(2,))]

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

        >>> net = Network()
        >>> x = net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(x)
        >>> net.remove_output(x)
        >>> net.dest_vars
        []

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
    ) -> DumpResult:
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

        >>> import io
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.dump(io.BytesIO()).outputs
        ['neg_0']

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


def _check_device(what: str, device: Any) -> None:
    if device is not None and not str(device).startswith(("cpu", "xpu")):
        raise AttrError(f"{what}: a network lies on the host, got device {device!r}")


def _loaded(cls: type[Network], content: bytes) -> Network:
    return cls.load(io.BytesIO(content))
