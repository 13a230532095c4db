"""Which convolutions become one op, on kernels with costs that exist on paper only."""

from __future__ import annotations

import graph_tools as tools
import pytest
from graph_tools import DEVICE, Build
from tianyuan import registry
from tianyuan.graph import joining
from tianyuan.graph.options import Options
from tianyuan.kernel import CFunction, Kernel
from tianyuan.ops.bottleneck import Bottleneck
from tianyuan.ops.conv import Conv2dFused

RUN = CFunction(16, None)
ONE = (1, 1, 1, 1)


def native(op, cost, **changes):
    return Kernel(f"{op}_f32__paper_native", op, RUN, cost=lambda call: cost, **changes)


@pytest.fixture
def priced(brings):
    """Give a device whose convolutions cost 1 each, and the joined op what the test says."""

    def bring(joined, supports=lambda call: None):
        brings(native("conv2d_fused", 1.0), native("bottleneck", joined, supports=supports))

    return bring


def conv(b, x, outputs, kernel=1, residual=None, **attrs):
    groups = attrs.get("groups", 1)
    w = b.zeros(outputs, int(x.spec.shape[1]) // groups, kernel, kernel)
    inputs = [x, w, b.zeros(outputs)] + ([] if residual is None else [residual])
    made = Conv2dFused(**attrs, has_bias=True, has_residual=residual is not None)
    return b.graph.add_node(registry.get_op("conv2d_fused"), inputs, made)[0]


def chain(b, expands=True, stride=(1, 1), with_residual=False):
    x = b.input(1, 4, 9, 9)
    wide = conv(b, x, 8, activation="relu6") if expands else b.input(1, 8, 9, 9)
    wide = conv(
        b, wide, 8, 3, groups=8, padding=ONE, stride=stride, activation="clip", lower=-1.0,
        upper=2.0,
    )  # fmt: skip
    return wide, conv(b, wide, 4, residual=x if with_residual else None, activation="relu")


def joined(graph):
    after = joining.join(graph, DEVICE, Options())
    return [node for node in after.nodes if node.op.name == "bottleneck"], after


def test_whole_chain_becomes_one_op_with_all_its_parts(priced):
    priced(2.5)
    b = Build()
    graph = b.returns(chain(b, with_residual=True)[1])
    (node,), after = joined(graph)
    assert len(after.nodes) == 1
    assert node.attrs == Bottleneck(
        (1, 1), ONE, True, True, "relu6", "clip", "relu", (0.0, -1.0, 0.0), (0.0, 2.0, 0.0)
    )
    assert [tuple(v.spec.shape) for v in node.inputs] == [
        (1, 4, 9, 9), (8, 4, 1, 1), (8,), (8, 1, 3, 3), (8,), (4, 8, 1, 1), (4,), (1, 4, 9, 9),
    ]  # fmt: skip
    assert node.inputs[0] is node.inputs[-1] is after.inputs[0]


def test_chain_without_expansion(priced):
    priced(1.5)
    b = Build()
    (node,), after = joined(b.returns(chain(b, expands=False, stride=(2, 2))[1]))
    assert len(after.nodes) == 1
    assert len(node.inputs) == 5
    want = Bottleneck(
        (2, 2), ONE, False, False, "identity", "clip", "relu", (0.0, -1.0, 0.0), (0.0, 2.0, 0.0)
    )
    assert node.attrs == want


def test_cost_decides(priced):
    b = Build()
    graph = b.returns(chain(b)[1])
    priced(3.5)
    assert joined(graph)[1] is graph
    # Three convolutions cost less than one step here, but two of them do not.
    priced(2.5, supports=lambda call: "no expansion" if call.attrs.expands else None)
    assert joined(graph)[1] is graph
    priced(1.5, supports=lambda call: "no expansion" if call.attrs.expands else None)
    (node,), after = joined(graph)
    assert not node.attrs.expands
    assert [n.op.name for n in after.nodes] == ["conv2d_fused", "bottleneck"]


def test_values_that_others_read_stay(priced):
    priced(0.5)
    b = Build()
    wide, y = chain(b)
    graph = b.returns(y, wide)
    assert joined(graph)[1] is graph


@pytest.mark.parametrize(
    "attrs",
    [{}, {"padding": ONE}, {"stride": (2, 2)}, {"groups": 2}, {"kernel": 3}],
    ids=["plain", "pad", "stride", "groups", "window"],
)
@pytest.mark.parametrize("place", ["expand", "project"])
def test_what_is_no_plain_product_stays(priced, attrs, place):
    priced(0.5)
    b = Build()
    x, other = b.input(1, 8, 9, 9), {} if place == "project" else attrs
    wide = conv(b, conv(b, x, 8, **other), 8, 3, groups=8, padding=ONE)
    found, _ = joined(b.returns(conv(b, wide, 4, **(attrs if place == "project" else {}))))
    assert [node.attrs.expands for node in found] == (
        [True] if not attrs else [] if place == "project" else [False]
    )


def test_an_expansion_that_others_read_stays_apart(priced):
    priced(0.5)
    b = Build()
    wide = conv(b, b.input(1, 4, 9, 9), 8)
    y = conv(b, conv(b, wide, 8, 3, groups=8, padding=ONE), 4)
    (node,), after = joined(b.returns(y, wide))
    assert not node.attrs.expands
    assert [n.op.name for n in after.nodes] == ["conv2d_fused", "bottleneck"]


def test_a_residual_inside_of_a_chain_stays(priced):
    priced(0.5)
    for place in ("expand", "depthwise"):
        b = Build()
        x, other = b.input(1, 8, 9, 9), b.input(1, 8, 9, 9)
        wide = conv(b, x, 8, residual=other if place == "expand" else None)
        wide = conv(
            b, wide, 8, 3, groups=8, padding=ONE, residual=other if place == "depthwise" else None
        )  # fmt: skip
        found, _ = joined(b.returns(conv(b, wide, 4)))
        assert [node.attrs.expands for node in found] == ([False] if place == "expand" else [])


def test_dense_and_dilated_kernels_stay(priced):
    priced(0.5)
    for attrs in ({"groups": 1}, {"groups": 8, "dilation": (2, 2)}):
        b = Build()
        wide = conv(b, b.input(1, 8, 9, 9), 8, 3, padding=ONE, **attrs)
        assert joined(b.returns(conv(b, wide, 4)))[0] == []


def test_python_kernels_are_no_gain(brings):
    brings(native("conv2d_fused", 1.0), tools.paper_kernel(registry.get_op("bottleneck")))
    b = Build()
    graph = b.returns(chain(b)[1])
    assert joined(graph)[1] is graph
