"""Text and labels, on arrays."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import AttrError, ShapeError
from ..limits import check_size
from ..node import Node
from ..table import ARRAYS, operator
from .common import Array


def _text_array(items: list[Any], shape: tuple[int, ...]) -> Array:
    found = np.empty(len(items), object)
    found[:] = items
    return found.reshape(shape)


@operator("StringConcat", 20, form=ARRAYS)
def string_concat(node: Node, a: Array, b: Array) -> Array:
    left, right = np.broadcast_arrays(a, b)
    pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
    return _text_array([x + y for x, y in pairs], left.shape)


@operator("StringSplit", 20, form=ARRAYS)
def string_split(node: Node, x: Array) -> tuple[Array, Array]:
    """Split each text; the pieces fill a new last axis, followed by empty ones."""
    delimiter = node.text("delimiter", "") or None
    pieces = [item.split(delimiter, node.int("maxsplit", -1)) for item in x.reshape(-1)]
    widest = max(map(len, pieces), default=0)
    flat = [piece for row in pieces for piece in row + [""] * (widest - len(row))]
    counts = np.array([len(row) for row in pieces], np.int64)
    return _text_array(flat, (*x.shape, widest)), counts.reshape(x.shape)


@operator("RegexFullMatch", 20, form=ARRAYS)
def regex_full_match(node: Node, x: Array) -> Array:
    try:
        pattern = re.compile(node.text("pattern"))
    except re.error as error:
        raise AttrError(f"pattern is not valid: {error}") from None
    found = [pattern.fullmatch(item) is not None for item in x.reshape(-1)]
    return np.array(found, bool).reshape(x.shape)


def _plain(text: str) -> str:
    """Return a text without accents."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in apart if not unicodedata.combining(letter))


@operator("StringNormalizer", 10, form=ARRAYS)
def string_normalizer(node: Node, x: Array) -> Array:
    """Drop stop words and change the case of a vector of words, or of one row."""
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ShapeError(f"a vector or one row is expected, got shape {x.shape}")
    action = node.text("case_change_action", "NONE", ("NONE", "LOWER", "UPPER"))
    changes: dict[str, Callable[[str], str]] = {
        "NONE": str, "LOWER": str.lower, "UPPER": str.upper
    }  # fmt: skip
    change = changes[action]
    exact = node.flag("is_case_sensitive")
    stops = set(node.texts("stopwords", ()))
    stops = stops if exact else {change(word) for word in stops}
    words = []
    for word in map(_plain, x.reshape(-1)):
        changed = change(word)
        if (word if exact else changed) not in stops:
            words.append(changed)
    words = words or [""]
    return _text_array(words, (len(words),) if x.ndim == 1 else (1, len(words)))


@operator("TfIdfVectorizer", 9, form=ARRAYS)
def tf_idf_vectorizer(node: Node, x: Array) -> Array:
    """Count n-grams with up to so many skips, and weigh them."""
    mode = node.text("mode", allowed=("TF", "IDF", "TFIDF"))
    grams, columns = _grams(node), node.ints("ngram_indexes")
    width = max(columns) + 1
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    check_size((len(rows), width), np.float32)
    found = np.zeros((len(rows), width), np.float32)
    least, most = node.int("min_gram_length"), node.int("max_gram_length")
    for number, row in enumerate(rows.tolist()):
        for size in range(least, most + 1):
            skips = range(1) if size == 1 else range(node.int("max_skip_count") + 1)
            for skip in skips:
                step = skip + 1
                for start in range(len(row) - (size - 1) * step):
                    gram = tuple(row[start : start + (size - 1) * step + 1 : step])
                    if gram in grams:
                        found[number, columns[grams[gram]]] += 1
    weights = np.ones(width, np.float32)
    for place, weight in zip(columns, node.floats("weights", ()), strict=False):
        weights[place] = weight
    if mode == "IDF":
        found = (found > 0) * weights
    elif mode == "TFIDF":
        found = found * weights
    return found.astype(np.float32) if x.ndim == 2 else found[0].astype(np.float32)


def _grams(node: Node) -> dict[tuple[Any, ...], int]:
    """Return the number of each n-gram of the pool."""
    pool = node.ints("pool_int64s", ()) or node.texts("pool_strings", ())
    starts = [*node.ints("ngram_counts"), len(pool)]
    found: dict[tuple[Any, ...], int] = {}
    number = 0
    for size, (first, last) in enumerate(pairwise(starts), start=1):
        for start in range(first, last - size + 1, size):
            found[tuple(pool[start : start + size])] = number
            number += 1
    return found


_KEYS = ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor")
_LABELS = ("values_strings", "values_int64s", "values_floats", "values_tensor")


@operator("LabelEncoder", 2, form=ARRAYS, domain="ai.onnx.ml")
def label_encoder(node: Node, x: Array) -> Array:
    """Map each element by a table, to a default where it is not in it."""
    keys, values = (next((n for n in names if node.has(n)), None) for names in (_KEYS, _LABELS))
    if keys is None or values is None:
        raise AttrError("keys and values are needed")
    table = dict(zip(_items(node, keys), _items(node, values), strict=True))
    kinds = {"values_strings": object, "values_int64s": np.int64, "values_floats": np.float32}
    dtype = (
        node.array("values_tensor").dtype if values == "values_tensor" else np.dtype(kinds[values])
    )
    if node.has("default_tensor"):
        default = node.array("default_tensor").reshape(-1).tolist()[0]
    elif dtype.kind == "O":
        default = node.text("default_string", "_Unused")
    elif dtype.kind == "i":
        default = node.int("default_int64", -1)
    else:
        default = node.float("default_float", -0.0)
    found = [table.get(_key(item), default) for item in x.reshape(-1).tolist()]
    if dtype.kind == "O":
        return _text_array(found, x.shape)
    return np.array(found, dtype).reshape(x.shape)


def _items(node: Node, name: str) -> list[Any]:
    value = node.attrs[name]
    items = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else list(value)
    return [_key(item) for item in items] if name in _KEYS else items


def _key(item: Any) -> Any:
    """Return a key under which every NaN is found."""
    return "NaN" if isinstance(item, float) and item != item else item
