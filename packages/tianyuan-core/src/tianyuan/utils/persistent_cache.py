"""Keep measured kernel times, and other answers that are dear to find, where machines share them.

``python -m tianyuan.utils.persistent_cache`` shows, merges and clears what is kept.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ..errors import TianyuanError
from ..graph.container import replace_file
from ..graph.profiling import cache_file


class PersistentCacheOnServer:
    """Bytes by category and key, in a folder that several machines may have mounted.

    The folder is that of ``TIANYUAN_CACHE_DIR``, or of the user's cache. An entry is written
    aside and moved into place, so a reader sees an old or a new one and never a part.

    >>> import os, tempfile
    >>> before = os.environ.get("TIANYUAN_CACHE_DIR")
    >>> os.environ["TIANYUAN_CACHE_DIR"] = tempfile.mkdtemp()
    >>> cache = PersistentCacheOnServer()
    >>> cache.put("answers", b"question", b"42")
    >>> cache.get("answers", b"question"), cache.get("answers", b"other")
    (b'42', None)
    >>> _ = os.environ.pop("TIANYUAN_CACHE_DIR")
    >>> if before is not None:
    ...     os.environ["TIANYUAN_CACHE_DIR"] = before
    """

    def __init__(self) -> None:
        self.folder = cache_file().parent / "persistent"

    def _path(self, category: str, key: bytes) -> Path:
        names = [hashlib.sha256(part).hexdigest()[:40] for part in (category.encode(), key)]
        return self.folder / names[0] / names[1]

    def get(self, category: str, key: bytes) -> bytes | None:
        """Return what was put under a key, or None."""
        try:
            return self._path(category, key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, category: str, key: bytes, value: bytes) -> None:
        """Keep a value under a key.

        Raises:
            OSError: where the folder cannot be written.
        """
        path = self._path(category, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [value])

    def clear(self) -> int:
        """Forget everything; return how many entries there were."""
        count = 0
        for path in self.folder.glob("*/*"):
            path.unlink(missing_ok=True)
            count += 1
        return count

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("*/*"))


def _times(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_text())
        return {str(key): float(value) for key, value in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise click.ClickException(f"{path}: not a file of kernel times") from None


def _files() -> Iterator[Path]:
    yield from sorted(cache_file().parent.glob("kernel-times-*.json"))


@click.group()
def _cli() -> None:
    """Show, merge and clear kept kernel times and other answers."""


@_cli.command()
def show() -> None:
    """List the files of kernel times, one per model of CPU, and the count of other entries."""
    click.echo(f"folder: {cache_file().parent}")
    for path in _files():
        mine = ", this machine's" if path == cache_file() else ""
        click.echo(f"{path.name}: {len(_times(path))} kernel times{mine}")
    click.echo(f"other entries: {len(PersistentCacheOnServer())}")


@_cli.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def merge(source: Path) -> None:
    """Add the kernel times of SOURCE, from a machine of the same CPU, to this machine's."""
    given, path = _times(source), cache_file()
    known = _times(path) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [json.dumps({**given, **known}).encode()])
    click.echo(f"{len(given.keys() - known.keys())} kernel times added to {path}")


@_cli.command()
def clear() -> None:
    """Forget all kernel times and other entries."""
    paths = list(_files())
    for path in paths:
        path.unlink(missing_ok=True)
    count = PersistentCacheOnServer().clear()
    click.echo(f"{len(paths)} files of kernel times and {count} other entries removed")


def main() -> None:
    """Run the command line.

    >>> import sys
    >>> before, sys.argv = sys.argv, ["persistent_cache", "--help"]
    >>> main()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    SystemExit: 0
    >>> sys.argv = before
    """
    try:
        _cli(prog_name="persistent_cache")
    except (TianyuanError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
