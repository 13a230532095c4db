"""Nested values come apart and together again."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import tianyuan as ty
from tianyuan.errors import TraceError
from tianyuan.op import QuantParams
from tianyuan.traced_module import register_supported_type
from tianyuan.traced_module.pytree import (
    ArgsIndex,
    LeafDef,
    TreeDef,
    qparams_flatten,
    qparams_unflatten,
    tree_flatten,
    tree_map,
)

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        [1, (2.0, "a"), {"k": None, 3: [True]}],
        OrderedDict([("b", 1), ("a", Point(1, (2,)))]),
        (slice(1, None, 2), ...),
        (),
        {"q": QuantParams((0.5,), (1,))},
    ],
)
def test_round_trip(value):
    leaves, treedef = tree_flatten(value)
    assert treedef.num_leaves == len(leaves)
    found = treedef.unflatten(leaves)
    assert found == value
    assert type(found) is type(value)
    assert tree_map(lambda leaf: leaf, value) == value


def test_leaves_are_in_order_and_fixed_ones_part_of_the_structure():
    x = ty.Tensor([1.0])
    leaves, treedef = tree_flatten({"a": [x, 2], "b": "t"})
    assert leaves[0] is x
    assert leaves[1:] == [2, "t"]
    assert [d.is_const for d in treedef.leaf_defs()] == [False, True, True]
    assert isinstance(treedef, TreeDef)
    assert (treedef.type, treedef.aux_data) == (dict, ("a", "b"))
    assert len(treedef.children_defs) == 2
    assert repr(treedef) == "{'a': [Tensor, 2], 'b': 't'}"


def test_structures_are_compared_with_their_fixed_leaves():
    x, y = ty.Tensor([1.0]), ty.Parameter([2.0, 3.0])

    def structure(value):
        return tree_flatten(value)[1]

    assert structure((x, 1)) == structure((y, 1))
    assert hash(structure((x, 1))) == hash(structure((y, 1)))
    for other in ((x, 2), (x, True), [x, 1], (x, x), (x, 1, 1), (x, 1.0)):
        assert structure((x, 1)) != structure(other)
    array = np.array([1, 2])
    assert structure(array) == structure(array.copy())
    assert structure(array) != structure(array + 1)
    assert structure(float("nan")) == structure(float("nan"))
    assert structure(0.0) != structure(-0.0)


def test_leaf_def():
    leaf = LeafDef((int, str))
    assert leaf.num_leaves == 1
    assert leaf.unflatten(["a"]) == "a"
    with pytest.raises(TraceError, match="got float, expected one of int, str"):
        leaf.unflatten([1.0])
    leaf.const_val = 3
    assert leaf.is_const
    assert repr(leaf) == "3"
    with pytest.raises(TraceError, match="got 1, expected 2"):
        tree_flatten([1, 2])[1].unflatten([1])


def test_own_ideas_of_leaves():
    leaves, treedef = tree_flatten(
        [{1, 2}, 5],
        leaf_type=lambda leaf: (type(leaf), ArgsIndex),
        is_leaf=lambda leaf: True,
        is_const_leaf=lambda leaf: False,
    )
    assert leaves == [{1, 2}, 5]
    index = ArgsIndex(1, "x")
    assert treedef.unflatten([ArgsIndex(), index])[1] is index
    assert (index.index, index.name, repr(ArgsIndex(2))) == (1, "x", "%2")


def test_types_that_are_not_registered_are_refused():
    class Thing:
        pass

    with pytest.raises(TypeError, match="got .*Thing"):
        tree_flatten([Thing()])
    with pytest.raises(TypeError, match="both functions or none"):
        register_supported_type(Thing, lambda v: ([], None))
    register_supported_type(Thing)
    thing = Thing()
    leaves, treedef = tree_flatten([thing])
    assert leaves == [thing]
    assert treedef.leaf_defs()[0].const_val is thing


def test_quantisation_parameters():
    params = QuantParams((0.5, 0.25), (0, 1), 1)
    children, rest = qparams_flatten(params)
    assert children == []
    assert qparams_unflatten(QuantParams, children, rest) == params
