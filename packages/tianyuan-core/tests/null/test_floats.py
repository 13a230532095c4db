"""A list of floats is the tuple of them in all but its memory."""

from __future__ import annotations

import copy
import operator
import pickle
import random
import sys

import numpy as np
import pytest
from tianyuan.floats import FEW, FloatList, floats
from tianyuan.graph.passes.match import exact
from tianyuan.ops.quantized_product import Conv2dQuantized
from tianyuan.ops.quantized_rules import are_factors

VALUES = tuple(random.Random(3).uniform(1e-3, 1.0) for _ in range(100))
MULTIPLIERS = tuple(float(np.float32(value)) for value in VALUES)


def test_it_equals_the_tuple_and_is_hashed_as_it() -> None:
    made = FloatList(VALUES)
    assert operator.eq(made, VALUES)
    assert operator.eq(VALUES, made)
    assert made == FloatList(VALUES)
    assert hash(made) == hash(VALUES)
    assert made != VALUES[:-1]
    assert made != FloatList(VALUES[1:])
    assert made != list(VALUES)
    assert list(made) == list(VALUES)
    assert len(made) == 100
    assert made[7] == VALUES[7]
    assert made[-1] == VALUES[-1]
    assert made[2:9:3] == VALUES[2:9:3]
    assert type(made[:2]) is tuple
    assert {made: 1}[VALUES] == 1  # type: ignore[index]
    assert repr(made) == repr(VALUES)
    np.testing.assert_array_equal(np.asarray(made), np.asarray(VALUES))
    assert np.asarray(made, np.float32).dtype == np.float32
    assert exact(made) == exact(VALUES)


def test_copies_are_equal() -> None:
    made = FloatList(VALUES)
    for other in (copy.deepcopy(made), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert type(other) is FloatList
        assert other == VALUES
        assert hash(other) == hash(VALUES)


def test_only_many_are_a_list() -> None:
    assert type(floats(VALUES[:FEW])) is tuple
    assert type(floats(iter(VALUES[: FEW + 1]))) is FloatList
    several = 2000
    held = sys.getsizeof(FloatList(range(several))._values)
    assert held < (sys.getsizeof((0.0,) * several) + several * sys.getsizeof(0.5)) / 3


def test_records_of_attributes_count_it_as_the_tuple() -> None:
    def conv(multipliers: object) -> Conv2dQuantized:
        return Conv2dQuantized(
            (1, 1), (0, 0, 0, 0), (1, 1), 1, False, False, 0, (0,),
            multipliers, 0, 1.0, 1.0, 0, "uint8", 0, 255,  # type: ignore[arg-type]
        )  # fmt: skip

    assert conv(FloatList(VALUES)) == conv(VALUES)
    assert conv(VALUES) == conv(FloatList(VALUES))
    assert hash(conv(FloatList(VALUES))) == hash(conv(VALUES))
    assert conv(FloatList((0.0, *VALUES))) != conv(FloatList((-0.0, *VALUES)))
    assert conv(FloatList((0.0, *VALUES))) != conv((-0.0, *VALUES))


@pytest.mark.parametrize(
    ("changed", "valid"),
    [
        (MULTIPLIERS[0], True),
        (0.1, False),  # no float32
        (0.0, False),
        (-0.5, False),
        (2.0**-127, False),
        (1e39, False),
        (float("inf"), False),
        (float("nan"), False),
        (2.0**-126, True),
        (float(np.finfo(np.float32).max), True),
    ],
)
@pytest.mark.parametrize("at", [0, 50, 99])
def test_factors_are_checked_one_by_one(changed: float, valid: bool, at: int) -> None:
    values = (*MULTIPLIERS[:at], changed, *MULTIPLIERS[at + 1 :])
    assert are_factors(values) is valid
    assert are_factors(FloatList(values)) is valid
    assert not are_factors(())
    assert not are_factors((*MULTIPLIERS, 1))
