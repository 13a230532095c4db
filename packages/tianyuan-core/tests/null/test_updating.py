"""Which products become updates, on kernels with costs that exist on paper only."""

from __future__ import annotations

import pytest
from graph_tools import DEVICE, Build
from tianyuan.graph import updating
from tianyuan.graph.options import Options
from tianyuan.kernel import CFunction, Kernel
from tianyuan.ops.attrs import MatmulSgdUpdate

RUN = CFunction(16, None)


def native(op, cost, **changes):
    return Kernel(f"{op}_f32__paper_native", op, RUN, cost=lambda call: cost, **changes)


@pytest.fixture
def priced(brings):
    """Give a device whose products and updates cost 1 each, and the joined op what is said."""

    def bring(joined, supports=lambda call: None):
        brings(
            native("matmul", 1.0),
            native("sgd_update", 1.0),
            native("matmul_sgd_update", joined, supports=supports),
        )

    return bring


class Net(Build):
    """A graph of a linear map's weight gradient and update."""

    def step(self, momentum=0.9):
        """Return the gradient and the update's results; (8, 4) by (8, 6)."""
        self.left, self.right, self.rate = self.input(8, 4), self.input(8, 6), self.input()
        self.param, self.velocity = self.state(4, 6), self.state(4, 6)
        gradient = self.matmul(self.left, self.right, transpose_a=True, transpose_b=False)
        moving = (self.velocity,) if momentum else ()
        made = self.sgd_update(
            self.param, gradient, self.rate, *moving, momentum=momentum, weight_decay=0.5,
            nesterov=False,
        )  # fmt: skip
        results = made if momentum else (made,)
        self.graph.updates = dict(enumerate(results))
        return gradient


def joined(graph):
    after = updating.join(graph, DEVICE, Options())
    return [node.op.name for node in after.nodes], after


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_a_product_nobody_else_reads_becomes_the_update(priced, momentum):
    priced(1.5)
    b = Net()
    b.step(momentum)
    names, after = joined(b.returns())
    assert names == ["matmul_sgd_update"]
    (node,) = after.nodes
    assert node.attrs == MatmulSgdUpdate(True, False, momentum, 0.5, False)
    given = [*after.inputs[:2], after.states[0], after.inputs[2], after.states[1]]
    assert list(node.inputs) == given[: 5 if momentum else 4]
    assert after.updates == dict(enumerate(node.outputs))


def test_a_gradient_that_is_returned_or_read_stays(priced):
    priced(1.5)
    b = Net()
    assert joined(b.returns(b.step()))[0] == ["matmul", "sgd_update"]
    b = Net()
    gradient = b.step()
    assert joined(b.returns(b.exp(gradient)))[0] == ["matmul", "sgd_update", "exp"]


def test_joins_only_where_a_kernel_gains(priced):
    priced(2.5)
    b = Net()
    b.step()
    assert joined(b.returns())[0] == ["matmul", "sgd_update"]


def test_joins_only_what_a_kernel_serves(priced):
    priced(0.5, supports=lambda call: "serves nothing")
    b = Net()
    b.step()
    assert joined(b.returns())[0] == ["matmul", "sgd_update"]


def test_a_gradient_of_another_op_stays(priced):
    priced(0.5)
    b = Net()
    param, grad = b.state(3), b.exp(b.input(3))
    new = b.sgd_update(param, grad, b.input(), momentum=0.0, weight_decay=0.0, nesterov=False)
    b.graph.updates = {0: new}
    assert joined(b.returns())[0] == ["exp", "sgd_update"]
