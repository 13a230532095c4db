"""Samplers: coverage, order, ranks and repeatability."""

from __future__ import annotations

import functools
import operator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from tianyuan.data import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
    sampler,
)

DATA = list(range(100, 110))


def test_sequential_sampler() -> None:
    made = SequentialSampler(DATA, batch_size=4)
    assert list(made) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == list(made)
    assert len(made) == 3
    made = SequentialSampler(DATA, 4, drop_last=True)
    assert list(made) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(made) == 2
    assert list(SequentialSampler(DATA, 2, indices=[7, 3, 3])) == [[7, 3], [3]]
    assert list(SequentialSampler([], 2)) == []


def test_random_sampler_permutes_anew_each_pass() -> None:
    made = RandomSampler(DATA, batch_size=3, seed=5)
    first, second = (functools.reduce(operator.iadd, made, []) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    again = RandomSampler(DATA, batch_size=3, seed=5)
    assert [functools.reduce(operator.iadd, again, []) for _ in range(2)] == [first, second]
    assert sorted(
        functools.reduce(operator.iadd, RandomSampler(DATA, 2, indices=[4, 4, 6]), [])
    ) == [4, 4, 6]


def test_random_sampler_is_uniform() -> None:
    made = RandomSampler(range(3), batch_size=3, seed=1)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        (order,) = made
        counts[tuple(order)] = counts.get(tuple(order), 0) + 1
    # Chi-squared with 5 degrees of freedom stays below 25.7 but for 1 run in 10,000.
    assert len(counts) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 25.7


def test_replacement_sampler() -> None:
    made = ReplacementSampler(
        DATA, 8, num_samples=4000, weights=[0, 1, 0, 3, 0, 0, 0, 0, 0, 0], seed=2
    )
    drawn = functools.reduce(operator.iadd, made, [])
    assert len(drawn) == 4000
    assert len(made) == 500
    assert set(drawn) == {1, 3}
    # Five standard deviations of a binomial count around its mean of 3000.
    assert abs(drawn.count(3) - 3000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    plain = functools.reduce(operator.iadd, ReplacementSampler(DATA, seed=2), [])
    assert len(plain) == 10
    assert len(set(plain)) < 10


@pytest.mark.parametrize("weights", [[1.0] * 9, [-1.0] + [1.0] * 9, [0.0] * 10, [np.nan] * 10])
def test_replacement_sampler_refuses_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        ReplacementSampler(DATA, weights=weights)


@pytest.mark.parametrize("length", [0, 1, 7, 10, 12])
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_a_pass(length: int, world_size: int, drop_last: bool) -> None:
    data = range(length)
    ranks = [
        RandomSampler(data, 2, drop_last, world_size=world_size, rank=rank, seed=3)
        for rank in range(world_size)
    ]
    batches = [list(made) for made in ranks]
    assert len({len(b) for b in batches}) == 1
    assert len(batches[0]) == len(ranks[0])
    drawn = [index for rank in batches for batch in rank for index in batch]
    if drop_last:
        assert len(set(drawn)) == len(drawn)
        assert all(len(batch) == 2 for rank in batches for batch in rank)
        assert len(drawn) == length // (2 * world_size) * 2 * world_size
    else:
        assert set(drawn) == set(data)
        assert len(drawn) == -(-length // world_size) * world_size


def test_ranks_without_a_seed_draw_one_order() -> None:
    ranks = [RandomSampler(range(8), 4, world_size=2, rank=rank) for rank in range(2)]
    assert sorted(
        functools.reduce(operator.iadd, (batch for made in ranks for batch in made), [])
    ) == list(range(8))


def test_world_size_and_rank_come_from_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_process_group", sampler._process_group)
    sampler.bind_process_group(lambda: (2, 1))
    assert list(SequentialSampler(range(4))) == [[1], [3]]
    assert list(SequentialSampler(range(4), world_size=1, rank=0)) == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": 2, "rank": 2}, "rank is out of range, got 2, expected 0 to 1"),
        ({"rank": -1}, "rank"),
    ],
)
def test_wrong_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequentialSampler(DATA, **arguments)


def test_num_samples_is_checked() -> None:
    with pytest.raises(ValueError, match="num_samples"):
        ReplacementSampler(DATA, num_samples=0)


def test_bases_are_abstract_and_can_be_extended() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Sampler()  # type: ignore[abstract]

    class Backwards(MapSampler):
        def sample(self) -> list[int]:
            return list(range(self.num_samples))[::-1]

    assert list(Backwards(DATA, 4)) == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]


def test_stream_sampler_counts_without_end() -> None:
    made = StreamSampler(batch_size=3)
    assert list(islice(made, 2)) == [[0, 1, 2], [3, 4, 5]]
    assert list(islice(made.sample(), 4)) == [0, 1, 2, 3]


def test_infinite() -> None:
    made = Infinite(SequentialSampler(range(3), 2))
    assert list(islice(made, 5)) == [[0, 1], [2], [0, 1], [2], [0, 1]]
    assert list(islice(made.sample(), 4)) == [0, 1, 2, 0]
    with pytest.raises(ValueError, match="no batch"):
        next(iter(Infinite(SequentialSampler([], 2))))
