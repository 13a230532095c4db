"""What can be asked of a network: its operators and variables, by kind, name and dependence."""

from __future__ import annotations

from typing import Any

from ..errors import GraphError
from .network_filter import NodeFilter, as_varnode, known_names
from .network_node import OpNode, VarNode, oprs_of


class NetworkQueries:
    """The part of ``Network`` that changes nothing."""

    def __init__(self) -> None:
        self._outputs: list[VarNode] = []
        self._kept: list[VarNode] = []  # in the network although no output may depend on them

    @property
    def all_oprs(self) -> list[OpNode]:
        """Every operator, each after those that it depends on.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> [opr.name for opr in net.all_oprs]
        ['x', 'neg_0']
        """
        return oprs_of([*self._outputs, *self._kept])

    @property
    def all_vars(self) -> list[VarNode]:
        """Every variable, in the order of the operators.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> [var.name for var in net.all_vars]
        ['x', 'neg_0']
        """
        return [var for opr in self.all_oprs for var in opr.outputs]

    @property
    def all_oprs_dict(self) -> dict[str, OpNode]:
        """Every operator by name.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.all_oprs_dict['x']
        Host2DeviceCopy('x': Host2DeviceCopy)
        """
        return self.opr_filter.as_dict()

    @property
    def all_vars_dict(self) -> dict[str, VarNode]:
        """Every variable by name.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.all_vars_dict['x']
        VarNode('x': float32(2,))
        """
        return self.var_filter.as_dict()

    @property
    def opr_filter(self) -> NodeFilter:
        """A filter of all operators.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.opr_filter.type("neg").as_count()
        1
        """
        return NodeFilter(self.all_oprs)

    @property
    def var_filter(self) -> NodeFilter:
        """A filter of all variables.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.var_filter.name("n*").as_unique() is y
        True
        """
        return NodeFilter(self.all_vars)

    @property
    def params_filter(self) -> NodeFilter:
        """A filter of the operators that hold weights and other constants.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.params_filter.as_list()
        []
        """
        return self.opr_filter.param_provider()

    @property
    def data_providers_filter(self) -> NodeFilter:
        """A filter of the operators that stand for inputs.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> [opr.name for opr in net.data_providers_filter]
        ['x']
        """
        return self.opr_filter.data_provider()

    def get_opr_by_type(self, oprcls: Any, unique: bool = True) -> Any:
        """Return the only operator of a kind, or all of them with ``unique=False``.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.get_opr_by_type("neg").name
        'neg_0'

        Raises:
            GraphError: where the kind is unknown, or there is not exactly one.
        """
        found = self.opr_filter.type(oprcls)
        return found.as_unique() if unique else found.as_list()

    def get_opr_by_name(self, name: str, unique: bool = True) -> Any:
        """Return the operator whose name matches, or all of them with ``unique=False``.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.get_opr_by_name("neg*").type
        'neg'

        Raises:
            GraphError: where none matches, or several do; the message lists names.
        """
        return self._by_name("get_opr_by_name", self.opr_filter, name, unique)

    def get_var_by_name(self, name: str, unique: bool = True) -> Any:
        """Return the variable whose name matches, or all of them with ``unique=False``.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> net.get_var_by_name("x").shape
        (2,)

        Raises:
            GraphError: where none matches, or several do; the message lists names.
        """
        return self._by_name("get_var_by_name", self.var_filter, name, unique)

    @staticmethod
    def _by_name(what: str, nodes: NodeFilter, name: str, unique: bool) -> Any:
        found = nodes.name(name).as_list()
        if not found:
            raise GraphError(
                f"{what}: nothing has the name, got {name!r}, expected one of {known_names(nodes)}"
            )
        return NodeFilter(found).as_unique() if unique else found

    def get_var_receive_oprs(self, var: VarNode) -> list[OpNode]:
        """Return the operators that read a variable.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> [opr.type for opr in net.get_var_receive_oprs(net.get_var_by_name("x"))]
        ['neg']
        """
        return self.opr_filter.has_input(var).as_list()

    def get_dep_oprs(self, var: VarNode) -> list[OpNode]:
        """Return the operators that a variable depends on, its own included.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> y = -net.make_input_node((2,), "float32", name="x")
        >>> net.add_output(y)
        >>> [opr.name for opr in net.get_dep_oprs(y)]
        ['x', 'neg_0']
        """
        return oprs_of([as_varnode(var)])
