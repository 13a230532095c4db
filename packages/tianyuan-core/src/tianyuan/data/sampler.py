"""Decide which samples make up each batch, in which order, and which rank gets them."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from ..errors import AttrError, DTypeError, StateDictError
from ..functional.arguments import extents, whole

# The seed of ranks that were given none: all must draw the same order.
_SHARED_SEED = 0

# What the place in a pass means depends on these.
_SIZES = ("num_samples", "batch_size", "drop_last", "world_size")


_GROUPS = f"{__package__.rpartition('.')[0]}.distributed"


def _world_size_and_rank() -> tuple[int, int]:
    """Ask the room of process groups; where nobody loaded it, this process is on its own."""
    distributed = sys.modules.get(_GROUPS)
    return (1, 0) if distributed is None else (distributed.get_world_size(), distributed.get_rank())


_process_group: Callable[[], tuple[int, int]] = _world_size_and_rank


def bind_process_group(world_size_and_rank: Callable[[], tuple[int, int]]) -> None:
    """Let samplers made from now on take world size and rank from here by default."""
    global _process_group
    _process_group = world_size_and_rank


class Sampler(ABC):
    """What gives a loader the indices of each batch, as one list after the other.

    >>> class Evens(Sampler):
    ...     def __iter__(self):
    ...         yield [0, 2]
    >>> list(Evens())
    [[0, 2]]
    """

    @abstractmethod
    def __iter__(self) -> Iterator[list[int]]:
        """Start a pass over the batches."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the order of later passes depends on; nothing, unless a subclass says so."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let later passes follow what ``state_dict`` returned.

        Raises:
            StateDictError: where it is of another sampler; nothing has been changed then.
        """
        _expect_names(type(self).__name__, state_dict, ())


class MapSampler(Sampler):
    """The base of samplers for datasets with an index.

    Args:
        dataset: what is sampled; only its length is used.
        batch_size: samples per batch and rank.
        drop_last: whether to leave out samples that do not fill a batch on every rank.
        num_samples: samples per pass over all ranks; the dataset's length by default.
        world_size, rank: how many processes share a pass, and which this one is.
        seed: makes the order repeatable; ranks without a seed share a fixed one.

    Raises:
        AttrError: where a number is out of range.
        DTypeError: where the dataset has no length.

    >>> class Backwards(MapSampler):
    ...     def sample(self):
    ...         return range(len(self.dataset))[::-1]
    >>> list(Backwards("abc", batch_size=2))
    [[2, 1], [0]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        name, group = type(self).__name__, _process_group()
        if not hasattr(dataset, "__len__"):
            raise DTypeError(
                f"{name}: dataset is wrong, got {type(dataset).__name__}, expected a sized one"
            )
        self.dataset = dataset
        self.batch_size = whole(name, "batch_size", batch_size, 1)
        self.drop_last = bool(drop_last)
        self.num_samples = (
            len(dataset) if num_samples is None else whole(name, "num_samples", num_samples, 1)
        )
        world_size = group[0] if world_size is None else world_size
        self.world_size = whole(name, "world_size", world_size, 1)
        self.rank = whole(name, "rank", group[1] if rank is None else rank, 0)
        if self.rank >= self.world_size:
            raise AttrError(
                f"{name}: rank is out of range, got {self.rank}, expected 0 to "
                f"{self.world_size - 1}"
            )
        seed = None if seed is None else whole(name, "seed", seed, 0)
        self.seed = _SHARED_SEED if seed is None and self.world_size > 1 else seed
        self.rng = np.random.default_rng(self.seed)

    @abstractmethod
    def sample(self) -> Sequence[int]:
        """Return the indices of one pass over all ranks.

        >>> SequentialSampler("abc").sample()
        range(0, 3)
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random generator, and what a pass is divided by."""
        sizes = {name: getattr(self, name) for name in _SIZES}
        return {"rng": self.rng.bit_generator.state, **sizes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let later passes follow what ``state_dict`` of a sampler of the same sizes returned.

        Raises:
            StateDictError: where it is of another sampler; nothing has been changed then.
        """
        name = type(self).__name__
        _expect_names(name, state_dict, ("rng", *_SIZES))
        for what in _SIZES:
            if state_dict[what] != getattr(self, what):
                raise StateDictError(
                    f"{name}.load_state_dict: {what} differs, got {state_dict[what]}, expected "
                    f"{getattr(self, what)}"
                )
        try:
            self.rng.bit_generator.state = state_dict["rng"]
        except (TypeError, ValueError, KeyError) as error:
            raise StateDictError(f"{name}.load_state_dict: rng does not fit: {error}") from error

    def scatter(self, indices: Sequence[int]) -> list[int]:
        """Return this rank's share of a pass.

        Every rank gets the same number: with ``drop_last`` the rest is left out, otherwise the
        pass is filled up from its beginning.

        >>> SequentialSampler("abc", world_size=2, rank=1).scatter([0, 1, 2])
        [1, 0]
        """
        if self.drop_last:
            even = list(indices[: len(indices) // self.world_size * self.world_size])
        else:
            missing = -len(indices) % self.world_size
            repeats = math.ceil(missing / len(indices)) if indices else 0
            even = list(indices) + (list(indices) * repeats)[:missing]
        return even[self.rank :: self.world_size]

    def batch(self) -> Iterator[list[int]]:
        """Start a pass over this rank's batches.

        >>> list(SequentialSampler("abc", 2).batch())
        [[0, 1], [2]]
        """
        indices = [int(index) for index in self.sample()]
        if self.world_size > 1:
            indices = self.scatter(indices)
        stop = len(indices)
        if self.drop_last:
            stop -= stop % self.batch_size
        for start in range(0, stop, self.batch_size):
            yield indices[start : start + self.batch_size]

    def __iter__(self) -> Iterator[list[int]]:
        return self.batch()

    def __len__(self) -> int:
        share = self.batch_size * self.world_size
        return self.num_samples // share if self.drop_last else -(-self.num_samples // share)


class SequentialSampler(MapSampler):
    """All samples, or those at ``indices``, in their order.

    >>> list(SequentialSampler("abcde", batch_size=2, drop_last=True))
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, None, world_size, rank)
        self.indices = _indices(type(self).__name__, indices, len(dataset))
        self.num_samples = len(self.indices)

    def sample(self) -> Sequence[int]:
        """Return the indices in their order.

        >>> SequentialSampler("abc", indices=[2, 0]).sample()
        [2, 0]
        """
        return self.indices


class RandomSampler(MapSampler):
    """All samples, or those at ``indices``, in an order drawn anew for each pass.

    >>> list(RandomSampler("abcd", 2, seed=1)) == list(RandomSampler("abcd", 2, seed=1))
    True
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, None, world_size, rank, seed)
        self.indices = _indices(type(self).__name__, indices, len(dataset))
        self.num_samples = len(self.indices)

    def sample(self) -> Sequence[int]:
        """Return a permutation of the indices.

        >>> sorted(RandomSampler("abcd").sample())
        [0, 1, 2, 3]
        """
        order = self.rng.permutation(len(self.indices))
        return [self.indices[position] for position in order.tolist()]


class ReplacementSampler(MapSampler):
    """Samples drawn independently, so that one may come twice, by ``weights`` if given.

    Raises:
        AttrError: where the weights are not one finite number of at least 0 per sample.

    >>> list(ReplacementSampler("abc", 2, num_samples=4, weights=[0, 1, 0]))
    [[1, 1], [1, 1]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        weights: Sequence[float] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, num_samples, world_size, rank, seed)
        self.weights = None if weights is None else _numbers(weights)
        if self.weights is not None:
            if self.weights.shape != (len(dataset),):
                raise AttrError(
                    f"ReplacementSampler: weights are wrong, got shape {self.weights.shape}, "
                    f"expected ({len(dataset)},)"
                )
            total = self.weights.sum()
            if not (self.weights >= 0).all() or not 0 < total < math.inf:
                raise AttrError(
                    "ReplacementSampler: weights must be finite, not negative and not all zero, "
                    f"got least {self.weights.min()}, sum {total}, expected shares"
                )

    def sample(self) -> Sequence[int]:
        """Return ``num_samples`` indices, drawn with replacement.

        >>> len(ReplacementSampler("abc", num_samples=5).sample())
        5
        """
        share = None if self.weights is None else self.weights / self.weights.sum()
        drawn: list[int] = self.rng.choice(len(self.dataset), self.num_samples, p=share).tolist()
        return drawn


class StreamSampler(Sampler):
    """How many samples of a ``StreamDataset`` make up a batch; a pass has no end of its own.

    >>> StreamSampler(batch_size=3).batch_size
    3
    """

    def __init__(self, batch_size: int = 1) -> None:
        super().__init__()
        self.batch_size = whole(type(self).__name__, "batch_size", batch_size, 1)

    def sample(self) -> Iterator[int]:
        """Count the samples, from 0 on.

        >>> next(StreamSampler().sample())
        0
        """
        return count()

    def batch(self) -> Iterator[list[int]]:
        """Give the numbers of each batch's samples, without end.

        >>> next(StreamSampler(3).batch())
        [0, 1, 2]
        """
        for start in count(0, self.batch_size):
            yield list(range(start, start + self.batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        return self.batch()


class Infinite(Sampler):
    """A sampler's passes one after the other, without end.

    Raises:
        AttrError: on use, where a pass of the sampler is empty.

    >>> batches = iter(Infinite(SequentialSampler("ab", 2)))
    >>> next(batches), next(batches)
    ([0, 1], [0, 1])
    """

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        if not isinstance(sampler, Sampler):
            raise DTypeError(
                f"Infinite: sampler is wrong, got {type(sampler).__name__}, expected a Sampler"
            )
        self.sampler = sampler

    def state_dict(self) -> dict[str, Any]:
        """Return that of the sampler that is repeated."""
        return self.sampler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the sampler that is repeated."""
        self.sampler.load_state_dict(state_dict)

    def sample(self) -> Iterator[int]:
        """Give the indices of all batches, without end.

        >>> from itertools import islice
        >>> list(islice(Infinite(SequentialSampler("ab")).sample(), 5))
        [0, 1, 0, 1, 0]
        """
        for batch in self:
            yield from batch

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            empty = True
            for batch in self.sampler:
                empty = False
                yield batch
            if empty:
                raise AttrError("Infinite: the sampler has no batch, expected at least one")


def _expect_names(owner: str, state: dict[str, Any], names: tuple[str, ...]) -> None:
    if set(state) != set(names):
        raise StateDictError(
            f"{owner}.load_state_dict: names differ, got {sorted(state)}, expected {sorted(names)}"
        )


def _numbers(weights: Any) -> np.ndarray:
    try:
        return np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise AttrError(
            f"ReplacementSampler: weights are not valid, got {weights!r}, expected numbers"
        ) from None


def _indices(op: str, indices: Sequence[int] | None, length: int) -> Sequence[int]:
    if indices is None:
        return range(length)
    return list(extents(op, "indices", list(indices), None))
