"""Decide what a dataset is: samples by index, or samples in the order they arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NoReturn

from ...errors import AttrError


class Dataset(ABC):
    """Samples by index; a sample is usually a tuple of arrays and numbers.

    >>> class Squares(Dataset):
    ...     def __getitem__(self, index):
    ...         return index**2
    ...     def __len__(self):
    ...         return 3
    >>> Squares()[2]
    4
    """

    @abstractmethod
    def __getitem__(self, index: int) -> Any:
        """Return one sample; raise IndexError where there is none."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""


class StreamDataset(Dataset):
    """Samples in the order they arrive, without index and length.

    >>> class Lines(StreamDataset):
    ...     def __iter__(self):
    ...         yield from ("a", "b")
    >>> list(Lines())
    ['a', 'b']
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Start a pass over the samples."""

    def __getitem__(self, index: int) -> NoReturn:
        raise TypeError("StreamDataset: samples have no index, expected iteration")

    def __len__(self) -> NoReturn:
        raise TypeError("StreamDataset: has no length")


class ArrayDataset(Dataset):
    """Arrays of one length, side by side: sample ``i`` is the tuple of their ``i``-th rows.

    Raises:
        AttrError: where no array is given or their lengths differ.

    >>> ArrayDataset([1, 2], ["a", "b"])[1]
    (2, 'b')
    """

    def __init__(self, *arrays: Any) -> None:
        super().__init__()
        lengths = [len(array) for array in arrays]
        if not arrays or min(lengths) != max(lengths):
            raise AttrError(
                f"ArrayDataset: arrays must have one length, got {lengths or 'no array'}"
            )
        self.arrays = arrays

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


class ConcatDataset(Dataset):
    """Datasets one after the other.

    Raises:
        AttrError: where no dataset is given or one is a ``StreamDataset``.

    >>> ConcatDataset([ArrayDataset([1, 2]), ArrayDataset([3])])[2]
    (3,)
    """

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        super().__init__()
        self.datasets = list(datasets)
        if not self.datasets:
            raise AttrError("ConcatDataset: got no dataset, expected at least one")
        if any(isinstance(dataset, StreamDataset) for dataset in self.datasets):
            raise AttrError("ConcatDataset: got a StreamDataset, expected datasets with a length")
        self._ends = list(accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(
                f"ConcatDataset: index out of range, got {index}, "
                f"expected {-len(self)} to {len(self) - 1}"
            )
        which = bisect_right(self._ends, position)
        return self.datasets[which][position - (self._ends[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self._ends[-1]
