"""Deferred dataclasses behave as those that are generated at once."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
import threading

import numpy as np
import pytest
from tianyuan.jit.pytree import static_key
from tianyuan.op import Op
from tianyuan.records import record


@record()
class Point:
    """A point."""

    x: int
    y: int = 2


@record(eq=False)
class Identity:
    """Compared by identity."""

    x: int = 1


def test_fields_are_there_before_the_first_instance() -> None:
    @record()
    class Fresh:
        a: int
        b: str = "b"

    assert [field.name for field in dataclasses.fields(Fresh)] == ["a", "b"]
    assert Fresh(1) == Fresh(1, "b")


def test_instances_are_frozen_values() -> None:
    point = Point(1)
    assert (point.x, point.y) == (1, 2)
    assert point == Point(1, 2)
    assert hash(point) == hash(Point(1, 2))
    assert repr(point) == "Point(x=1, y=2)"
    assert dataclasses.replace(point, y=3) == Point(1, 3)
    assert pickle.loads(pickle.dumps(point)) == point
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 5  # type: ignore[misc]


def test_instances_that_were_never_initialised_are_values_too() -> None:
    @record()
    class Unpickled:
        a: int

    found = [Unpickled.__new__(Unpickled) for _ in range(2)]  # as unpickling makes them
    for instance in found:
        vars(instance)["a"] = 7
    assert found[0] == found[1]

    @record()
    class Hashed:
        a: int

    one = Hashed.__new__(Hashed)
    vars(one)["a"] = 7
    assert hash(one) == hash(Hashed(7))


def test_defaults_after_initialisation_and_own_methods() -> None:
    @record()
    class Doubled:
        a: int
        b: int = 3

        def __post_init__(self) -> None:
            object.__setattr__(self, "a", 2 * self.a)

        def __repr__(self) -> str:
            return "own"

    assert (Doubled(1).a, Doubled(b=4, a=2).b) == (2, 4)
    assert repr(Doubled(1)) == "own"
    with pytest.raises(TypeError, match="a"):
        Doubled()  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del Doubled(1).a


def test_identity_where_equality_is_off() -> None:
    one = Identity()
    assert one == one
    assert one != Identity()


def test_many_threads_may_be_first() -> None:
    for _ in range(50):

        @record()
        class Contested:
            a: int

        found: list[object] = []
        threads = [
            threading.Thread(target=lambda made=Contested: found.append(made(7))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [Contested(7)] * 8


def test_many_threads_may_inspect_first() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):

            @record()
            class Contested:
                a: int
                b: int = 3

            found: list[list[str]] = []

            def inspect_it(made: type = Contested, into: list[list[str]] = found) -> None:
                into.append([field.name for field in dataclasses.fields(made)])

            threads = [threading.Thread(target=inspect_it) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [["a", "b"]] * 8
    finally:
        sys.setswitchinterval(before)


def test_zeros_of_either_sign_differ() -> None:
    from tianyuan.ops.attrs import Full

    plus, minus = Full((2,), 0.0, "float32"), Full((2,), -0.0, "float32")
    assert plus != minus
    assert plus == Full((2,), 0.0, "float32")
    assert len({plus, minus}) == 2


@pytest.mark.parametrize("inspected", [False, True])
def test_derived_classes_are_those_of_a_dataclass(inspected: bool) -> None:
    def declared(decorator):
        @decorator
        class Base:
            a: int
            b: int = 3

        if inspected:
            dataclasses.fields(Base)

        class Plain(Base):
            c: int = 5  # no field, as nothing declares it one

        class Initialised(Base):
            def __init__(self, a: int) -> None:
                super().__init__(a, b=a + 1)

        @dataclasses.dataclass(frozen=True)
        class Wider(Base):
            c: int = 4

        return Plain, Initialised, Wider

    def seen(cls):
        one = cls(1)
        return (
            (repr(one).rsplit(".", 1)[-1], hash(one), one == cls(1), one != cls(2)),
            [(field.name, field.default) for field in dataclasses.fields(cls)],
            dataclasses.asdict(one),
            cls.__match_args__,
        )

    for got, want in zip(
        declared(record()), declared(dataclasses.dataclass(frozen=True)), strict=True
    ):
        assert seen(got) == seen(want)
        with pytest.raises(dataclasses.FrozenInstanceError):
            got(1).a = 5


def test_derived_instances_that_were_never_initialised_are_values() -> None:
    @record()
    class Base:
        a: int

    class Derived(Base):
        pass

    found = [Derived.__new__(Derived) for _ in range(2)]
    for instance in found:
        vars(instance)["a"] = 7
    assert found[0] == found[1]
    assert hash(found[0]) == hash(Derived(7))
    assert found[0] != Base(7)


def test_an_own_hash_stays() -> None:
    @record()
    class Coarse:
        a: int

        def __hash__(self) -> int:
            return 5

    assert hash(Coarse(1)) == hash(Coarse(2)) == 5
    assert Coarse(1) != Coarse(2)


def test_signatures_are_known_before_the_first_instance() -> None:
    @record()
    class Fresh:
        a: int
        b: int = 3

    assert str(inspect.signature(Fresh)) == "(a, b=3)"


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Attributes of a plugin's op, whose author knows nothing of records."""

    factor: float
    factors: tuple[float, ...] = ()
    name: str = ""


def test_a_plain_dataclass_of_attributes_tells_zeros_apart() -> None:
    assert Foreign(0.0) == Foreign(-0.0)
    op = Op("test_records_signed", infer=lambda specs, attrs: specs, attrs=Foreign)
    assert op.attrs is Foreign
    assert Foreign(0.0) != Foreign(-0.0)
    assert Foreign(1.0, (2.0, 0.0)) != Foreign(1.0, (2.0, -0.0))
    assert Foreign(0.0, (-0.0,), "a") == Foreign(0.0, (-0.0,), "a")
    assert Foreign(1.0) != Foreign(2.0)
    assert Foreign(1.0) != 1.0
    assert len({Foreign(0.0): 1, Foreign(-0.0): 2, Foreign(0.0, ()): 3}) == 2
    # A second op with the same attributes does not add to it.
    equal = Foreign.__eq__
    Op("test_records_again", infer=lambda specs, attrs: specs, attrs=Foreign)
    assert Foreign.__eq__ is equal


def test_a_trace_tells_zeros_of_any_kind_apart() -> None:
    zeros = [0.0, np.float32(0), np.float16(0), 0j, complex(0, -0.0), [0.0], Foreign(1.0, (0.0,))]
    minus = [-0.0, np.float32(-0.0), np.float16(-0.0), -0j, 0j, [-0.0], Foreign(1.0, (-0.0,))]
    for one, other in zip(zeros, minus, strict=True):
        keys = [static_key(("static", value, ())) for value in (one, other, one)]
        assert keys[0] != keys[1]
        assert keys[0] == keys[2]
        assert hash(keys[0]) == hash(keys[2])
