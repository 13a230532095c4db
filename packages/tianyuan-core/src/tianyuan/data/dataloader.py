"""Decide how batches are made from a dataset: in this process or by workers ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import numpy as np

from ..errors import AttrError, DTypeError, StateDictError
from ..functional.arguments import real_number, whole
from .collator import Collator
from .dataset.base import Dataset, StreamDataset
from .sampler import Sampler, SequentialSampler, StreamSampler
from .transform.base import PseudoTransform, Transform
from .workers import EndOfStreamError, WorkerInfo, WorkerPool, get_worker_info

__all__ = ["DataLoader", "WorkerInfo", "get_worker_info"]


class DataLoader:
    """Give the batches of a dataset as numpy arrays, one pass per ``iter``.

    ``state_dict`` keeps the order and the place in it, also in the middle of a pass: after
    ``load_state_dict`` the next ``iter`` gives what was left of that pass. Samples that were
    handed out are not made again, except those of a ``StreamDataset``.

    Args:
        dataset: samples by index, or a ``StreamDataset``.
        sampler: which samples make up each batch; by default one after the other, one per batch.
        transform: applied to the samples of a batch.
        collator: puts the samples of a batch together.
        num_workers: processes that make batches ahead; 0 makes them in this process. The order
            does not depend on it. Their ``numpy.random`` and ``random`` are seeded from this
            process's ``numpy.random``.
        timeout: seconds to wait for one batch of the workers; 0 waits for ever.
        preload: whether to give Tensors in place of arrays and to hold one batch ahead.
        parallel_stream: for a ``StreamDataset`` with workers: whether each worker passes over its
            own copy, which must pick its share by ``get_worker_info()``, and batches are taken
            from them in turn. Otherwise one worker reads the whole stream.

    Raises:
        AttrError, DTypeError: where an argument does not fit.
        RuntimeError: from the iterator, with the worker's traceback, where a worker raised, died
            or took too long. All workers have ended then, as they have when the iterator is
            dropped.

    >>> import numpy as np
    >>> from tianyuan.data.dataset import ArrayDataset
    >>> dataset = ArrayDataset(np.arange(3), np.array([5, 6, 7]))
    >>> list(DataLoader(dataset, SequentialSampler(dataset, batch_size=2)))
    [(array([0, 1]), array([5, 6])), (array([2]), array([7]))]
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler | None = None,
        transform: Transform | None = None,
        collator: Collator | None = None,
        num_workers: int = 0,
        timeout: float = 0,
        preload: bool = False,
        parallel_stream: bool = False,
    ) -> None:
        num_workers = whole("DataLoader", "num_workers", num_workers, 0)
        timeout = real_number("DataLoader", "timeout", timeout, 0.0)
        self._is_stream = isinstance(dataset, StreamDataset)
        if not self._is_stream and not hasattr(dataset, "__getitem__"):
            raise DTypeError(
                f"DataLoader: dataset is wrong, got {type(dataset).__name__}, expected a Dataset"
            )
        if parallel_stream and not (self._is_stream and num_workers):
            raise AttrError(
                "DataLoader: parallel_stream needs a StreamDataset and workers, got "
                f"{type(dataset).__name__} and num_workers={num_workers}, expected both"
            )
        self.dataset = dataset
        self.sampler = _check_sampler(dataset, sampler, self._is_stream)
        self.transform = PseudoTransform() if transform is None else transform
        self.collator = Collator() if collator is None else collator
        self.num_workers = num_workers
        self.timeout = timeout
        self.preload = preload
        self.parallel_stream = parallel_stream
        self._passes = 0  # how many were begun
        self._begun: dict[str, Any] | None = None  # the sampler's state when this pass began
        self._taken = 0  # batches handed out in this pass
        self._resumed = False

    def __len__(self) -> int:
        """Return the number of batches of a pass; TypeError for a stream."""
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        skipped = self._taken if self._resumed else 0
        self._begun, self._taken, self._resumed = self.sampler.state_dict(), skipped, False
        self._passes += 1
        batches = self._workers(skipped) if self.num_workers else self._serial(skipped)
        return _Pass(self, self._passes, _preloaded(batches) if self.preload else batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler, and how many batches of the pass were handed out.

        The pass is the last that was begun, even if it was left early; 0 once it has ended.
        Random transforms of worker processes draw anew after going on; those in this process
        follow ``numpy.random``.
        """
        begun = self.sampler.state_dict() if self._begun is None else self._begun
        return {"sampler": begun, "taken": self._taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on where ``state_dict`` was taken.

        Raises:
            StateDictError: where it is of another loader; nothing has been changed then.
        """
        if set(state_dict) != {"sampler", "taken"}:
            raise StateDictError(
                f"DataLoader.load_state_dict: names differ, got {sorted(state_dict)}, expected "
                "['sampler', 'taken']"
            )
        self.sampler.load_state_dict(state_dict["sampler"])
        self._begun, self._taken, self._resumed = None, int(state_dict["taken"]), True

    def _count(self, number: int, ended: bool) -> None:
        """Note that a pass handed out a batch or ended, unless a later one has begun."""
        if number == self._passes and not self._resumed:
            self._begun, self._taken = (None, 0) if ended else (self._begun, self._taken + 1)

    def _maker(self) -> _Maker:
        size = self.sampler.batch_size if isinstance(self.sampler, StreamSampler) else 0
        return _Maker(self.dataset, self.transform, self.collator, size)

    def _requests(self, skipped: int) -> Iterator[Any]:
        return repeat(None) if self._is_stream else islice(self.sampler, skipped, None)

    def _serial(self, skipped: int) -> Iterator[Any]:
        make = self._maker()
        if self._is_stream:
            make.skip(skipped)
        for request in self._requests(skipped):
            try:
                batch = make(request)
            except EndOfStreamError:
                return
            yield batch

    def _workers(self, skipped: int) -> Iterator[Any]:
        count = self.num_workers if self.parallel_stream or not self._is_stream else 1
        pool = WorkerPool(self.dataset, self._maker(), self._requests(skipped), count, self.timeout)
        # Which worker has which share of a stream shows only in the batches.
        return islice(pool, skipped, None) if self._is_stream and skipped else pool


class _Pass:
    """Hand out the batches of one pass and tell the loader how many there were."""

    def __init__(self, loader: DataLoader, number: int, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._number = number
        self._batches = batches

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader._count(self._number, ended=True)
            raise
        self._loader._count(self._number, ended=False)
        return batch


class _Maker:
    """Make a batch from the indices of its samples, or from the next samples of a stream."""

    def __init__(
        self, dataset: Dataset, transform: Transform, collator: Collator, stream_batch: int
    ) -> None:
        self._dataset = dataset
        self._transform = transform
        self._collator = collator
        self._stream_batch = stream_batch
        self._stream: Iterator[Any] | None = None

    def __call__(self, indices: list[int] | None) -> Any:
        if indices is None:
            samples = self._next_samples()
        else:
            samples = [self._dataset[index] for index in indices]
        return self._collator.apply(self._transform.apply_batch(samples))

    def skip(self, batches: int) -> None:
        """Read over the samples of some batches of a stream."""
        for _ in islice(self._samples(), batches * self._stream_batch):
            pass

    def _samples(self) -> Iterator[Any]:
        if self._stream is None:
            self._stream = iter(self._dataset)
        return self._stream

    def _next_samples(self) -> list[Any]:
        samples = list(islice(self._samples(), self._stream_batch))
        if not samples:
            raise EndOfStreamError
        return samples


def _check_sampler(dataset: Any, sampler: Sampler | None, is_stream: bool) -> Sampler:
    if sampler is None:
        return StreamSampler() if is_stream else SequentialSampler(dataset)
    if not isinstance(sampler, Sampler):
        raise DTypeError(
            f"DataLoader: sampler is wrong, got {type(sampler).__name__}, expected a Sampler"
        )
    if is_stream != isinstance(sampler, StreamSampler):
        raise DTypeError(
            f"DataLoader: sampler does not fit the dataset, got {type(sampler).__name__} for "
            f"{type(dataset).__name__}, expected "
            f"{'a StreamSampler' if is_stream else 'a sampler of indices'}"
        )
    return sampler


def _preloaded(batches: Iterator[Any]) -> Iterator[Any]:
    """Give batches as Tensors, each turned into one before the batch ahead of it is handed out."""
    held: list[Any] = []
    for batch in batches:
        held.append(_to_tensors(batch))
        if len(held) == 2:
            yield held.pop(0)
    yield from held


def _to_tensors(batch: Any) -> Any:
    from ..imperative.tensor import Tensor

    if isinstance(batch, np.ndarray):
        return Tensor(batch)
    if isinstance(batch, dict):
        return {key: _to_tensors(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_to_tensors, batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(map(_to_tensors, batch))
    return batch
