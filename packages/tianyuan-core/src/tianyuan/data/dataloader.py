"""Decide how batches are made from a dataset: in this process or by workers ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import numpy as np

from .collator import Collator
from .dataset.base import Dataset, StreamDataset
from .sampler import Sampler, SequentialSampler, StreamSampler
from .transform.base import PseudoTransform, Transform
from .workers import EndOfStreamError, WorkerInfo, WorkerPool, get_worker_info

__all__ = ["DataLoader", "WorkerInfo", "get_worker_info"]


class DataLoader:
    """Give the batches of a dataset as numpy arrays, one pass per ``iter``.

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
        TypeError, ValueError: where an argument does not fit.
        RuntimeError: from the iterator, with the worker's traceback, where a worker raised, died
            or took too long. All workers have ended then, as they have when the iterator is
            dropped.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler | None = None,
        transform: Transform | None = None,
        collator: Collator | None = None,
        num_workers: int = 0,
        timeout: int = 0,
        preload: bool = False,
        parallel_stream: bool = False,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise ValueError(
                f"DataLoader: num_workers is wrong, got {num_workers!r}, expected >= 0"
            )
        if not timeout >= 0:
            raise ValueError(f"DataLoader: timeout is wrong, got {timeout!r}, expected >= 0")
        self._is_stream = isinstance(dataset, StreamDataset)
        if not self._is_stream and not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"DataLoader: dataset is wrong, got {type(dataset).__name__}, expected a Dataset"
            )
        if parallel_stream and not (self._is_stream and num_workers):
            raise ValueError(
                "DataLoader: parallel_stream needs a StreamDataset and workers, got "
                f"{type(dataset).__name__} and num_workers={num_workers}"
            )
        self.dataset = dataset
        self.sampler = _check_sampler(dataset, sampler, self._is_stream)
        self.transform = PseudoTransform() if transform is None else transform
        self.collator = Collator() if collator is None else collator
        self.num_workers = num_workers
        self.timeout = timeout
        self.preload = preload
        self.parallel_stream = parallel_stream

    def __len__(self) -> int:
        """Return the number of batches of a pass; TypeError for a stream."""
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = self._workers() if self.num_workers else self._serial()
        return _preloaded(batches) if self.preload else batches

    def _maker(self) -> _Maker:
        size = self.sampler.batch_size if isinstance(self.sampler, StreamSampler) else 0
        return _Maker(self.dataset, self.transform, self.collator, size)

    def _serial(self) -> Iterator[Any]:
        make = self._maker()
        for request in repeat(None) if self._is_stream else self.sampler:
            try:
                batch = make(request)
            except EndOfStreamError:
                return
            yield batch

    def _workers(self) -> Iterator[Any]:
        count = self.num_workers if self.parallel_stream or not self._is_stream else 1
        requests = repeat(None) if self._is_stream else iter(self.sampler)
        return WorkerPool(self.dataset, self._maker(), requests, count, self.timeout)


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

    def _next_samples(self) -> list[Any]:
        if self._stream is None:
            self._stream = iter(self._dataset)
        samples = list(islice(self._stream, self._stream_batch))
        if not samples:
            raise EndOfStreamError
        return samples


def _check_sampler(dataset: Any, sampler: Sampler | None, is_stream: bool) -> Sampler:
    if sampler is None:
        return StreamSampler() if is_stream else SequentialSampler(dataset)
    if not isinstance(sampler, Sampler):
        raise TypeError(
            f"DataLoader: sampler is wrong, got {type(sampler).__name__}, expected a Sampler"
        )
    if is_stream != isinstance(sampler, StreamSampler):
        raise TypeError(
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
