"""What a network under surgery is made of: operators and the variables between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, registry, shapes
from ..errors import GraphError
from ..graph.graph import Constant
from ..imperative import dispatch
from ..imperative.state import integers_meant
from ..imperative.tensor import Tensor, wrap
from ..op import NO_ATTRS, Op, Specs, TensorSpec

if TYPE_CHECKING:
    from .network_change import NetworkChanges

_ids = itertools.count()
_symbolic_shape = True


def set_symbolic_shape(option: bool) -> bool:
    """Choose whether ``VarNode.shape`` keeps symbols, and return the choice before.

    With True, as at first, extents of dynamic dimensions are ints that remember their symbol, so
    that what is built from them holds for every size; with False they are plain numbers.

    >>> before = set_symbolic_shape(False)
    >>> set_symbolic_shape(before)
    False
    """
    global _symbolic_shape
    before, _symbolic_shape = _symbolic_shape, bool(option)
    return before


class NetworkNode:
    """Base of operators and variables, by which both can be filtered by name."""

    name: str
    id: int


class OpNode(NetworkNode):
    """One operator of a network.

    Attributes:
        graph: the network that it belongs to.
        op: what is applied; None for inputs and constants.
        params: the attributes of this application.
        inputs, outputs: variables read and made.
        priority: among operators that can run, those of lower priority are written first.
    """

    #: Names of the ops for which a class stands; ``OpNode`` stands for all others.
    ops: frozenset[str] = frozenset()

    def __init__(
        self,
        graph: NetworkChanges,
        name: str,
        op: Op | None = None,
        params: Any = NO_ATTRS,
        inputs: Sequence[VarNode] = (),
        specs: Specs = (),
    ) -> None:
        self.graph = graph
        self.id = next(_ids)
        self.op = op
        self.params = params
        self.name = name
        self.priority = 0
        self.inputs = list(inputs)
        self.outputs = [VarNode(self, index, spec) for index, spec in enumerate(specs)]

    @property
    def type(self) -> str:
        """Name of the op; that of the class for inputs and constants."""
        return type(self).__name__ if self.op is None else self.op.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {self.type})"


class Host2DeviceCopy(OpNode):
    """An input of the network."""


class ConstOpBase(OpNode):
    """A constant; ``constant`` holds its data."""

    def __init__(self, graph: NetworkChanges, name: str, constant: Constant) -> None:
        super().__init__(graph, name, specs=(constant.spec,))
        self.constant = constant

    def numpy(self) -> np.ndarray:
        """Return a copy of the data."""
        return np.array(self.constant.array)

    def set_value(self, data: Any) -> None:
        """Give the constant other data of its shape and dtype.

        Raises:
            GraphError: where they differ.
        """
        array = np.asarray(data, self.outputs[0].dtype)
        if array.shape != self.constant.spec.shape:
            raise GraphError(
                f"set_value: {self.name!r} has another shape, got {array.shape}, "
                f"expected {self.constant.spec.shape}"
            )
        self.constant = Constant(np.array(array, order="C"), self.constant.name)


class SharedDeviceTensor(ConstOpBase):
    """A weight that came with the model file."""


class ImmutableTensor(ConstOpBase):
    """A constant that was made in surgery."""


class VarNode(Tensor, NetworkNode):
    """One value of a network: made by an operator, read by others.

    It is a tensor without data, so operators and all of ``functional`` extend the network by what
    they do. ``==`` compares identity; ``functional.equal`` compares values. ``numpy()`` gives
    the value of what depends on constants only.
    """

    def __init__(self, owner: OpNode, index: int, spec: TensorSpec) -> None:
        self._data = self
        self._spec = spec
        self._grad = None
        self.id = next(_ids)
        self.owner = owner
        self.index = index
        self._given = ""

    @property
    def name(self) -> str:
        """Its name, as given or else made from its operator's."""
        return self._given or self.owner.name + (f":{self.index}" if self.index else "")

    @name.setter
    def name(self, value: str) -> None:
        self._given = value

    @property
    def graph(self) -> NetworkChanges:
        """The network that it belongs to."""
        return self.owner.graph

    @property
    def node(self) -> OpNode:
        """The operator that makes it."""
        return self.owner

    @property
    def shape(self) -> shapes.Shape:
        """Extents; those of dynamic dimensions as ``set_symbolic_shape`` says."""
        shape = self._spec.shape
        return shape if _symbolic_shape else tuple(map(int, shape))

    def __repr__(self) -> str:
        return f"VarNode({self.name!r}: {self._spec})"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def full(self, shape: shapes.Shape, value: Any, dtype: Any = None) -> Any:
        """Make a constant value in this network; see ``Operand.full``."""
        op = registry.get_op("full")
        name = dtypes.as_dtype(self.dtype if dtype is None else dtype).name
        attrs = op.attrs(tuple(shape), float(value), name)
        return self.graph.apply(op, (), attrs)[0]

    def extend(self, op: Op, datas: Sequence[Any], attrs: Any) -> list[Tensor]:
        """Apply an op to variables and arrays of this network; see ``imperative.dispatch``."""
        return list(self.graph.apply(op, datas, attrs))

    def _concrete(self, what: str) -> Any:
        return value_of(self, what)

    def detach(self) -> Tensor:
        """Return this variable: no gradient flows through a network."""
        return self

    def __copy__(self) -> Tensor:
        raise GraphError(
            f"copy: a variable stands for itself only, got {self.name!r}, "
            "expected functional.copy, or a copy of the whole network"
        )

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.__copy__()

    def _become(self, result: Any) -> Any:
        return result

    def _rebind(self, other: Tensor, shared: bool = False) -> None:
        raise GraphError(
            f"VarNode: {self.name!r} cannot take another value, expected Network.replace_vars"
        )


def value_of(var: VarNode, what: str) -> np.ndarray:
    """Compute a variable from constants.

    Raises:
        GraphError: where it depends on an input.
    """
    values: dict[VarNode, np.ndarray] = {}
    for opr in oprs_of([var]):
        if isinstance(opr, ConstOpBase):
            values[opr.outputs[0]] = opr.constant.array
        elif opr.op is None:
            raise GraphError(f"{what}: {var.name!r} depends on the input {opr.name!r}")
        else:
            given = [wrap(values[v], v._spec) for v in opr.inputs]
            with integers_meant():
                made = dispatch.apply(opr.op, given, opr.params)
            made = made if isinstance(made, tuple) else (made,)
            values.update(zip(opr.outputs, (tensor._data for tensor in made), strict=True))
    return values[var]


def oprs_of(
    roots: Iterable[VarNode], inputs_of: dict[OpNode, list[VarNode]] | None = None
) -> list[OpNode]:
    """Return every operator that variables depend on, each after those that it depends on.

    ``inputs_of`` gives inputs of operators that shall be taken in place of their own.

    Raises:
        GraphError: where operators depend on each other in a circle.
    """
    changed = inputs_of or {}
    done: dict[OpNode, bool] = {}  # False while an operator's inputs are being visited
    found: list[OpNode] = []
    for root in roots:
        stack = [(root.owner, False)]
        while stack:
            opr, finished = stack.pop()
            if finished:
                done[opr] = True
                found.append(opr)
            elif opr not in done:
                done[opr] = False
                stack.append((opr, True))
                below = [v.owner for v in changed.get(opr, opr.inputs)]
                for other in reversed(below):
                    if done.get(other) is False:
                        raise GraphError(
                            f"network: operators depend on each other in a circle, got "
                            f"{other.name!r} and {opr.name!r}"
                        )
                    stack.append((other, False))
    return found


def kind_of(node_type: Any) -> Any:
    """Return what ``is_kind`` takes: a class, an op, or the name of either.

    Raises:
        GraphError: where a name is neither that of an op nor of a class of this module.
    """
    if isinstance(node_type, Op):
        return node_type.name
    if isinstance(node_type, type):
        return node_type
    if isinstance(node_type, str):
        found = globals().get(node_type)
        if isinstance(found, type) and issubclass(found, NetworkNode):
            return found
        known = [op.name for op in registry.all_ops()]
        if node_type in known:
            return node_type
        raise GraphError(
            f"network: unknown kind of operator, got {node_type!r}, "
            f"expected one of {', '.join(sorted(known))}"
        )
    if isinstance(node_type, (tuple, list)):
        return tuple(kind_of(item) for item in node_type)
    raise GraphError(
        f"network: a kind of operator must be a class, an op or a name, got {node_type!r}"
    )


def is_kind(node: NetworkNode, kind: Any) -> bool:
    """Tell whether a node is of a kind that ``kind_of`` has read."""
    if isinstance(kind, tuple):
        return any(is_kind(node, item) for item in kind)
    if isinstance(kind, type):
        return isinstance(node, kind)
    return isinstance(node, OpNode) and node.type == kind


def _class(name: str, ops: str) -> type[OpNode]:
    """Make a class of operators by MegEngine's name."""
    doc = f"An operator of {ops or 'a whole family'}."
    members = {"ops": frozenset(ops.split()), "__doc__": doc, "__module__": __name__}
    return type(name, (OpNode,), members)


AdaptivePoolingForward = _class("AdaptivePoolingForward", "adaptive_avg_pool2d adaptive_max_pool2d")
Argmax = _class("Argmax", "argmax")
Argmin = _class("Argmin", "argmin")
ArgsortForward = _class("ArgsortForward", "sort")
BatchNormForward = _class("BatchNormForward", "batch_norm batch_norm_train")
Broadcast = _class("Broadcast", "broadcast_to")
Concat = _class("Concat", "concat")
ConvBiasForward = _class("ConvBiasForward", "conv2d_fused conv2d_quantized")
ConvolutionBackwardData = _class("ConvolutionBackwardData", "conv2d_backward_data")
ConvolutionForward = _class("ConvolutionForward", "conv2d")
Copy = _class("Copy", "copy")
Dimshuffle = _class("Dimshuffle", "transpose")
Elemwise = _class("Elemwise", "")
Eye = _class("Eye", "eye")
IndexingIncrMultiAxisVec = _class("IndexingIncrMultiAxisVec", "index_add")
IndexingMultiAxisVec = _class("IndexingMultiAxisVec", "index take")
IndexingOneHot = _class("IndexingOneHot", "gather")
IndexingSetMultiAxisVec = _class("IndexingSetMultiAxisVec", "index_set")
IndexingSetOneHot = _class("IndexingSetOneHot", "scatter")
Linspace = _class("Linspace", "arange")
MatrixMul = _class("MatrixMul", "matmul matmul_fused matmul_quantized")
PoolingForward = _class("PoolingForward", "max_pool2d avg_pool2d")
RNGOpr = _class("RNGOpr", "")
Reduce = _class("Reduce", "sum mean prod max min")
Reshape = _class("Reshape", "reshape")
SetSubtensor = _class("SetSubtensor", "slice_set")
Subtensor = _class("Subtensor", "slice")
TopK = _class("TopK", "topk")
TypeCvt = _class("TypeCvt", "cast")

_BY_OP = {name: found for found in OpNode.__subclasses__() for name in found.ops}
_BY_FAMILY = {"elementwise": Elemwise, "random": RNGOpr}


def class_of(op: Op) -> type[OpNode]:
    """Return the class that stands for an op."""
    return _BY_OP.get(op.name) or _BY_FAMILY.get(op.family) or OpNode
