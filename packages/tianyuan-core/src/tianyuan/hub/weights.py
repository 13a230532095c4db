"""Decide where the weights that an address names are found on this machine."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import HubError
from ..serialization import load
from .repository import cache_dir

# As in ``resnet18-f37072fd.tym``: the first digits of the file's SHA-256.
_DIGEST = re.compile(r"[-_]([0-9a-f]{8,64})\.\w+$")


def load_serialized_obj_from_url(url: str, model_dir: str | os.PathLike[str] | None = None) -> Any:
    """Load what ``tianyuan.save`` wrote, from the file that an address names.

    A ``file:`` address is that file. Of any other, the last part is looked for in ``model_dir``:
    nothing is downloaded. Where the name ends in ``-`` and hexadecimal digits, the file's SHA-256
    must start with them.

    Args:
        url: the address.
        model_dir: folder; ``serialized`` in the hub's cache by default.

    Raises:
        HubError: where the file is not there, or has another digest.

    >>> import pathlib, tempfile, tianyuan as ty
    >>> folder = tempfile.TemporaryDirectory()
    >>> ty.save({"w": 3}, pathlib.Path(folder.name, "a.tym"))
    >>> load_serialized_obj_from_url("https://models.example/a.tym", folder.name)
    {'w': 3}
    """
    try:
        parts = urlsplit(url)
        named = isinstance(url, str)
    except (AttributeError, TypeError, ValueError):
        named = False
    if not named:
        raise HubError(f"hub: address of weights is wrong, got {url!r}, expected a URL")
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
    else:
        folder = cache_dir() / "serialized" if model_dir is None else Path(model_dir)
        path = folder / Path(unquote(parts.path)).name
    if not path.is_file():
        raise HubError(
            f"hub: weights are not on this machine, got {url!r}; nothing is downloaded, "
            f"expected the file as {path}"
        )
    digest = _DIGEST.search(path.name)
    if digest is not None:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if not found.startswith(digest[1]):
            raise HubError(f"hub: {path} is damaged, got SHA-256 {found}, expected {digest[1]}…")
    return load(path)


class pretrained:
    """Decorate a function that makes a module, so that ``pretrained=True`` loads its weights.

    Args:
        url: address of the state dict, as for ``load_serialized_obj_from_url``.

    >>> import tianyuan.module as M
    >>> @pretrained("https://models.example/linear.tym")
    ... def net():
    ...     return M.Linear(1, 1)
    >>> type(net()).__name__
    'Linear'
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the decorated function."""

        @functools.wraps(func)
        def with_weights(*args: Any, pretrained: bool = False, **kwargs: Any) -> Any:
            model = func(*args, **kwargs)
            if pretrained:
                model.load_state_dict(load_serialized_obj_from_url(self.url))
            return model

        return with_weights
