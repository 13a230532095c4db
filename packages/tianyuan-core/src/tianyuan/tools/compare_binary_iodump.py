"""Compare the arrays that two runs have written, and tell where they differ."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from ..errors import AttrError
from .command import run


@dataclass(frozen=True)
class Difference:
    """How two arrays of one name differ.

    Attributes:
        absolute: largest difference; infinite where shapes differ or one is missing.
        relative: that over the largest magnitude of the first array.
        place: index of the largest difference.
        note: what is wrong beside values.
        close: whether they agree within the tolerances.
    """

    name: str
    absolute: float
    relative: float
    place: tuple[int, ...]
    note: str
    close: bool


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` or ``.npy`` file, or of a folder of ``.npy`` files, by name.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "a.npy", np.zeros(3))
    >>> list(read_arrays(folder))
    ['a']

    Raises:
        AttrError: where it holds none.
    """
    try:
        if path.is_dir():
            files = sorted(path.glob("*.npy"))
            found = {file.stem: np.load(file, allow_pickle=False) for file in files}
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
        else:
            found = {path.stem: np.load(path, allow_pickle=False)}
    except ValueError as error:
        raise AttrError(f"compare_binary_iodump: {path} cannot be read, got {error}") from None
    if not found:
        raise AttrError(f"compare_binary_iodump: no array was found, got {path}")
    return found


def compare(
    left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray],
    rtol: float = 1e-5, atol: float = 1e-6,
) -> list[Difference]:  # fmt: skip
    """Return how arrays differ, in the order of the first mapping, then what only the other has.

    Arrays are close where ``|left - right| <= atol + rtol * |left|`` everywhere, as in numpy.

    >>> [d] = compare({"a": np.array([1.0, 2.0])}, {"a": np.array([1.0, 2.5])})
    >>> d.absolute, d.relative, d.place, d.close
    (0.5, 0.25, (1,), False)
    """
    names = [*left, *(name for name in right if name not in left)]
    return [difference(name, left.get(name), right.get(name), rtol, atol) for name in names]


def difference(
    name: str, left: np.ndarray | None, right: np.ndarray | None,
    rtol: float = 1e-5, atol: float = 1e-6,
) -> Difference:  # fmt: skip
    """Return how two arrays of a name differ; see ``compare``.

    >>> difference("a", np.zeros(2), None).note
    'only the first has it'
    """
    if left is None or right is None:
        which = "second" if left is None else "first"
        return Difference(name, np.inf, np.inf, (), f"only the {which} has it", False)
    if left.shape != right.shape:
        note = f"shapes {left.shape} and {right.shape}"
        return Difference(name, np.inf, np.inf, (), note, False)
    note = f"dtypes {left.dtype} and {right.dtype}" if left.dtype != right.dtype else ""
    if not left.size:
        return Difference(name, 0.0, 0.0, (), note, True)
    a, b = left.astype(np.float64), right.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)
    place = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
    most = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    absolute = float(gap.max())
    close = bool(np.all(gap <= atol + rtol * np.where(np.isfinite(a), np.abs(a), 0.0)))
    relative = absolute / most if most else (0.0 if absolute == 0 else np.inf)
    return Difference(name, absolute, relative, place, note, close)


@click.command("compare_binary_iodump")
@click.argument("left", type=click.Path(exists=True, path_type=Path))
@click.argument("right", type=click.Path(exists=True, path_type=Path))
@click.option("--rtol", type=float, default=1e-5, show_default=True)
@click.option("--atol", type=float, default=1e-6, show_default=True)
@click.option("--all", "show_all", is_flag=True, help="Show what agrees too.")
def _command(left: Path, right: Path, rtol: float, atol: float, show_all: bool) -> None:
    """Compare the arrays of LEFT and RIGHT: .npz or .npy files, or folders of .npy files.

    Leaves with 1 where they differ by more than the tolerances.
    """
    found = compare(read_arrays(left), read_arrays(right), rtol, atol)
    for item in found:
        if show_all or not item.close or item.note:
            word = "close" if item.close else "differs"
            click.echo(
                f"{item.name}: {word}, absolute {item.absolute:.3g}, relative "
                f"{item.relative:.3g} at {item.place}{f' ({item.note})' if item.note else ''}"
            )
    bad = sum(not item.close for item in found)
    click.echo(f"{len(found)} arrays, {bad} differ")
    sys.exit(1 if bad else 0)


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.compare_binary_iodump LEFT RIGHT``."""
    run(_command)


if __name__ == "__main__":
    main()
