"""Which attentions read their heads in place, on kernels with costs that exist on paper only."""

from __future__ import annotations

import graph_tools as tools
import pytest
from graph_tools import DEVICE, Build
from tianyuan import registry
from tianyuan.graph import heads
from tianyuan.graph.options import Options
from tianyuan.kernel import CFunction, Kernel
from tianyuan.ops.attention_heads import AttentionHeads

RUN = CFunction(16, None)


def native(op, cost, **changes):
    return Kernel(f"{op}_f32__paper_native", op, RUN, cost=lambda call: cost, **changes)


@pytest.fixture
def priced(brings):
    """Give a device on which attention and every movement cost 1, and heads what the test says."""

    def bring(joined, attention=1.0):
        movements = [native(op, 1.0) for op in ("transpose", "slice")]
        brings(native("attention", attention), *movements, native("attention_heads", joined))

    return bring


class Net(Build):
    """A graph of attention whose heads are moved apart and together."""

    def shaped(self, x, *shape):
        return self.op("reshape", x, shape=shape)

    def moved(self, x, *perm):
        return self.op("transpose", x, perm=perm)

    def cut(self, x, axis, start, size):
        shape, rank = tuple(x.spec.shape), x.spec.ndim
        starts = tuple(start if i == axis else 0 for i in range(rank))
        sizes = tuple(size if i == axis else shape[i] for i in range(rank))
        return self.op("slice", x, starts=starts, sizes=sizes, steps=(1,) * rank)

    def attention(self, *inputs, **attrs):
        return self.op("attention", *inputs, **{"scale": 0.5, "causal": False, **attrs})

    def merged(self, x):
        """Merge (batch, heads, rows, width)."""
        batch, count, rows, width = x.spec.shape
        return self.shaped(self.moved(x, 0, 2, 1, 3), batch, rows, count * width)

    def split(self, x, count):
        batch, rows, columns = x.spec.shape
        return self.moved(self.shaped(x, batch, rows, count, columns // count), 0, 2, 1, 3)


def joined(graph):
    after = heads.join(graph, DEVICE, Options())
    return [node for node in after.nodes if node.op.name == "attention_heads"], after


def names(graph):
    return [node.op.name for node in graph.nodes if node.op.name != "reshape"]


def packed(b, moves_first, count=3, size=4):
    """Cut queries, keys and values from the columns of one value."""
    x = b.input(2, 5, 3 * count * size)
    apart = b.shaped(x, 2, 5, 3, count, size)
    if moves_first:
        apart = b.moved(apart, 2, 0, 3, 1, 4)
        return [b.shaped(b.cut(apart, 0, i, 1), 2, count, 5, size) for i in range(3)]
    cuts = [b.shaped(b.cut(apart, 2, i, 1), 2, 5, count, size) for i in range(3)]
    return [b.moved(x, 0, 2, 1, 3) for x in cuts]


@pytest.mark.parametrize("moves_first", [True, False])
def test_heads_cut_from_one_product(priced, moves_first):
    priced(5.5)
    b = Net()
    (node,), after = joined(b.returns(b.merged(b.attention(*packed(b, moves_first), causal=True))))
    assert names(after) == ["attention_heads"]
    assert node.attrs == AttentionHeads(0.5, True, 3, 4, 4, (0, 12, 24), (4, 4, 4))
    assert [tuple(v.spec.shape) for v in node.inputs] == [(2, 5, 36)] * 3
    assert tuple(after.outputs[0].spec.shape) == (2, 5, 12)


def test_heads_of_three_products(priced):
    priced(4.5)
    b = Net()
    q, k, v = b.input(2, 5, 12), b.input(2, 7, 12), b.input(2, 7, 9)
    mask = b.input(5, 7)
    out = b.attention(b.split(q, 3), b.split(k, 3), b.split(v, 3), mask)
    (node,), after = joined(b.returns(b.merged(out)))
    assert names(after) == ["attention_heads"]
    assert node.attrs == AttentionHeads(0.5, False, 3, 4, 3, (0, 0, 0), (4, 4, 3))
    assert node.inputs[3] is after.inputs[3]


def test_heads_whose_operands_lie_together_and_columns_cut_before(priced):
    """(rows, heads, 3, size) in the middle columns of a wider value of two axes."""
    priced(3.0)
    b = Net()
    x = b.cut(b.input(10, 40), 1, 3, 36)
    apart = b.moved(b.shaped(x, 2, 5, 3, 3, 4), 3, 0, 2, 1, 4)
    q, k, v = (b.shaped(b.cut(apart, 0, i, 1), 2, 3, 5, 4) for i in range(3))
    (node,), after = joined(b.returns(b.merged(b.attention(q, k, v))))
    assert node.attrs == AttentionHeads(0.5, False, 3, 4, 4, (3, 7, 11), (12, 12, 12))
    assert [tuple(v.spec.shape) for v in node.inputs] == [(2, 5, 40)] * 3


def test_shared_keys_repeat_without_a_step(priced):
    priced(2.5)
    b = Net()
    q, k, v = b.split(b.input(2, 5, 12), 3), b.input(2, 1, 7, 4), b.input(2, 1, 7, 4)
    (node,), _ = joined(b.returns(b.merged(b.attention(q, k, v))))
    assert node.attrs.steps == (4, 0, 0)


def test_cost_decides(priced):
    b = Net()
    graph = b.returns(b.merged(b.attention(*packed(b, True))))
    priced(6.0)  # two transpositions, three slices and attention
    assert joined(graph)[1] is graph
    priced(5.9)
    assert joined(graph)[0]


def test_movements_that_others_need_do_not_count(priced):
    priced(2.5)
    b = Net()
    q, k, v = packed(b, True)
    graph = b.returns(b.merged(b.attention(q, k, v)), q, k, v)
    assert joined(graph)[1] is graph


def test_results_that_others_read_stay(priced):
    priced(0.5)
    b = Net()
    out = b.attention(*packed(b, True))
    graph = b.returns(b.merged(out), out)
    assert joined(graph)[1] is graph


def test_other_orders_stay(priced):
    priced(0.5)
    b = Net()
    q, k, v = packed(b, True)
    swapped = b.moved(b.attention(q, k, v), 0, 2, 3, 1)  # heads do not lie side by side
    assert joined(b.returns(swapped))[0] == []
    b = Net()
    q, k, v = packed(b, True)
    rows = b.input(2, 3, 5, 4)  # the rows of a head follow one another
    assert joined(b.returns(b.merged(b.attention(rows, k, v))))[0] == []


def test_python_kernels_are_no_gain(brings):
    brings(native("attention", 1.0), tools.paper_kernel(registry.get_op("attention_heads")))
    b = Net()
    graph = b.returns(b.merged(b.attention(*packed(b, True))))
    assert joined(graph)[1] is graph
