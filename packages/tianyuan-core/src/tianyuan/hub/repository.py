"""Decide where a repository's ``hubconf.py`` is found, and what it offers.

A repository is a folder, or ``owner/name[:branch]`` for one that lies in the cache as
``owner_name_branch``. Nothing is downloaded: what a stranger's code does is for the user to judge,
who clones it. The cache is ``hub`` in the folder that TIANYUAN_HOME names, or in
``~/.cache/tianyuan``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import HubError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_GIT_HOST = "github.com"
DEFAULT_PROTOCOL = "HTTPS"
DEFAULT_BRANCH = "master"
PROTOCOLS = ("HTTPS", "SSH")
HUBCONF = "hubconf.py"

_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w./-]+)?")


def cache_dir() -> Path:
    """Return the folder that repositories and weights are looked for in.

    >>> cache_dir().name
    'hub'
    """
    home = os.environ.get("TIANYUAN_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "tianyuan") / "hub"


def _find(
    repo_info: str, git_host: str, use_cache: bool, commit: str | None, protocol: str
) -> Path:
    """Return the folder of a repository.

    Raises:
        HubError: where there is none, or what is asked for needs a download.
    """
    if not isinstance(repo_info, (str, os.PathLike)):
        raise HubError(
            f"hub: repository is wrong, got {type(repo_info).__name__}, expected a folder or "
            "'owner/name[:branch]'"
        )
    repo_info = os.fspath(repo_info)
    if protocol not in PROTOCOLS:
        raise HubError(f"hub: protocol is wrong, got {protocol!r}, expected HTTPS or SSH")
    folder = Path(repo_info).expanduser()
    if folder.is_dir():
        if commit is not None:
            raise HubError(f"hub: a folder has no commit to choose, got {commit!r} for {folder}")
        return folder.resolve()
    if not _NAME.fullmatch(repo_info):
        raise HubError(
            f"hub: repository is not found, got {repo_info!r}, expected a folder or "
            "'owner/name[:branch]'"
        )
    name, _, branch = repo_info.partition(":")
    what = commit or branch or DEFAULT_BRANCH
    cached = cache_dir() / f"{name}_{what}".replace("/", "_")
    if use_cache and cached.is_dir():
        return cached
    address = f"https://{git_host}/{name}" if protocol == "HTTPS" else f"git@{git_host}:{name}"
    raise HubError(
        f"hub: repository is not on this machine, got {repo_info!r}; nothing is downloaded, "
        f"expected a clone: git clone --branch {what} {address}.git {cached}"
    )


def import_module(
    repo_info: str,
    git_host: str = DEFAULT_GIT_HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = DEFAULT_PROTOCOL,
) -> ModuleType:
    """Run a repository's ``hubconf.py`` and return it as a module.

    Args:
        repo_info: folder, or ``owner/name[:branch]`` of a repository in the cache.
        git_host, protocol: named in the message where the repository is not there.
        use_cache: whether the cache is looked into.
        commit: which commit's folder in the cache, in place of the branch's.

    Raises:
        HubError: where there is no repository or no ``hubconf.py``, or a package that its
            ``dependencies`` list is missing.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "hubconf.py")
    >>> _ = path.write_text("def one(): return 1")
    >>> import_module(folder.name).one()
    1
    """
    folder = _find(repo_info, git_host, use_cache, commit, protocol)
    path = folder / HUBCONF
    if not path.is_file():
        raise HubError(f"hub: {folder} has no {HUBCONF}, expected one")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _on_path(folder):
        spec.loader.exec_module(module)
    needed = getattr(module, "dependencies", ())
    if not isinstance(needed, (tuple, type([]))) or not all(isinstance(n, str) for n in needed):
        raise HubError(
            f"hub: {path} states its dependencies wrongly, got {needed!r}, expected a list of names"
        )
    missing = [name for name in needed if not _is_there(name)]
    if missing:
        raise HubError(f"hub: {path} needs packages that are missing, got {', '.join(missing)}")
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Let a repository import its own modules, and forget them: another may use their names."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if str(folder) in sys.path:  # the repository's code may have changed it
            sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            path = getattr(sys.modules[name], "__file__", None)
            if isinstance(path, str) and Path(path).is_relative_to(folder):
                del sys.modules[name]


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # the package of a dotted name is missing, or it is no name
        return False


def list(
    repo_info: str,
    git_host: str = DEFAULT_GIT_HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = DEFAULT_PROTOCOL,
) -> Sequence[str]:
    """Return the names of what a repository offers: its functions without leading underscore.

    Arguments and errors as for ``import_module``.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "hubconf.py")
    >>> _ = path.write_text("def net(): return 1")
    >>> from tianyuan import hub
    >>> hub.list(folder.name)
    ['net']
    """
    module = import_module(repo_info, git_host, use_cache, commit, protocol)
    return [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]


def load(
    repo_info: str,
    entry: str,
    *args: Any,
    git_host: str = DEFAULT_GIT_HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = DEFAULT_PROTOCOL,
    **kwargs: Any,
) -> Any:
    """Return what a repository's entry gives for some arguments, usually a Module.

    Args:
        entry: its name in ``hubconf.py``.
        args, kwargs: handed to it.

    Others and errors as for ``import_module``.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "hubconf.py")
    >>> _ = path.write_text("def double(x): return 2 * x")
    >>> load(folder.name, "double", 4)
    8
    """
    module = import_module(repo_info, git_host, use_cache, commit, protocol)
    assert module.__file__ is not None
    with _on_path(Path(module.__file__).parent):
        return _entry(module, entry)(*args, **kwargs)


def help(
    repo_info: str,
    entry: str,
    git_host: str = DEFAULT_GIT_HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = DEFAULT_PROTOCOL,
) -> str | None:
    """Return the docstring of a repository's entry.

    Arguments and errors as for ``load``.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "hubconf.py")
    >>> _ = path.write_text("def net(): 'Make a net.'")
    >>> from tianyuan import hub
    >>> hub.help(folder.name, "net")
    'Make a net.'
    """
    module = import_module(repo_info, git_host, use_cache, commit, protocol)
    return _entry(module, entry).__doc__


def _entry(module: ModuleType, entry: str) -> Callable[..., Any]:
    found = getattr(module, entry, None) if isinstance(entry, str) else None
    if found is None or entry.startswith("_") or not callable(found):
        raise HubError(f"hub: {module.__file__} offers no function {entry!r}")
    return found  # type: ignore[no-any-return]
