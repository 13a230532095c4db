"""Hub: models that a repository offers by its ``hubconf.py``, from a local folder."""

from __future__ import annotations

from .repository import help, import_module, list, load
from .weights import load_serialized_obj_from_url, pretrained

__all__ = ["help", "import_module", "list", "load", "load_serialized_obj_from_url", "pretrained"]
