"""Write graphs, texts and numbers to files that TensorBoard shows, without needing it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import AttrError
from .protocol import block, double, integer, record, single

_STRING = 7  # DT_STRING of types.proto


def tensor_shape_proto(shape: Sequence[int]) -> bytes:
    """Return an encoded ``TensorShapeProto``.

    >>> tensor_shape_proto((2, 3)).hex()
    '1202080212020803'
    """
    return b"".join(block(2, integer(1, extent)) for extent in shape)


def attr_value_proto(
    shape: Sequence[int] | None, dtype: Any, attr: Mapping[str, Any] | None
) -> dict[str, bytes]:
    """Return encoded ``AttrValue`` messages by name: shape, dtype and whatever ``attr`` holds.

    >>> sorted(attr_value_proto((2,), "float32", {"stride": 2}))
    ['_output_shapes', 'dtype', 'stride']
    """
    found: dict[str, bytes] = {}
    if shape is not None:
        found["_output_shapes"] = block(1, block(7, tensor_shape_proto(shape)))
    if dtype is not None:
        found["dtype"] = block(2, str(dtype))
    for name, value in (attr or {}).items():
        found[name] = block(2, str(value))
    return found


def node_proto(
    name: str,
    op: str = "UnSpecified",
    input: str | Sequence[str] | None = None,
    outputshape: Sequence[int] | None = None,
    dtype: Any = None,
    attributes: Mapping[str, Any] = {},
) -> bytes:
    """Return an encoded ``NodeDef``.

    >>> node_proto("a", "neg", ["b"])
    b'\\n\\x01a\\x12\\x03neg\\x1a\\x01b'
    """
    inputs = [input] if isinstance(input, str) else list(input or ())
    attrs = attr_value_proto(outputshape, dtype, attributes)
    return b"".join(
        [
            block(1, name),
            block(2, op),
            *(block(3, source) for source in inputs),
            *(block(5, block(1, key) + block(2, attrs[key])) for key in sorted(attrs)),
        ]
    )


def node(
    name: str,
    op: str = "UnSpecified",
    input: str | Sequence[str] | None = None,
    outputshape: Sequence[int] | None = None,
    dtype: Any = None,
    attributes: Mapping[str, Any] = {},
) -> bytes:
    """Return an encoded node for ``graph``; see ``node_proto``.

    >>> node("a") == node_proto("a")
    True
    """
    return node_proto(name, op, input, outputshape, dtype, attributes)


def graph(node_list: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return an encoded ``GraphDef`` of nodes, and an empty ``RunMetadata``.

    >>> graph([node("a", "neg")])[0].hex()
    '0a080a016112036e656722021016'
    """
    return b"".join([*(block(1, item) for item in node_list), block(4, integer(2, 22))]), b""


def text(tag: str, text: Sequence[Any]) -> bytes:
    """Return an encoded ``Summary`` of texts: a list of strings, or a table as lists of strings.

    >>> len(text("note", ["one", "two"])) > 0
    True

    Raises:
        AttrError: where the rows of a table differ in length.
    """
    rows = [[row] if isinstance(row, str) else list(row) for row in text]
    table = any(not isinstance(row, str) for row in text)
    if len({len(row) for row in rows}) > 1:
        raise AttrError(f"text: rows of {tag!r} differ in length, expected a table")
    shape = (len(rows), len(rows[0])) if table else (len(rows),)
    tensor = integer(1, _STRING) + block(2, tensor_shape_proto(shape))
    tensor += b"".join(block(8, str(cell)) for row in rows for cell in row)
    metadata = block(1, block(1, "text"))
    value = block(1, f"{tag}/text_summary") + block(8, tensor) + block(9, metadata)
    return block(1, value)


class NodeRaw:
    """A node of a graph to be written, whose parts may still change.

    >>> NodeRaw("a", "neg", ["b"], (2,), "float32", {}).op
    'neg'
    """

    def __init__(
        self,
        name: str,
        op: str,
        input: Sequence[str],
        outputshape: Sequence[int] | None,
        dtype: Any,
        attributes: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.op = op
        self.input = list(input)
        self.outputshape = outputshape
        self.dtype = dtype
        self.attributes = dict(attributes)


class SummaryWriterExtend:
    """Writes one file of events to a folder that TensorBoard watches.

    Args:
        logdir, log_dir: the folder, ``runs/<time>_<host><comment>`` if None.
        purge_step: tells TensorBoard to forget what an earlier run wrote from this step on.
        max_queue, flush_secs: events, or seconds, after which what waits is written.
        filename_suffix: put behind the file's name.
        write_to_disk: False writes nothing.

    >>> import tempfile
    >>> with SummaryWriterExtend(tempfile.mkdtemp()) as writer:
    ...     writer.add_node_raw("x", "input", outputshape=(2,))
    ...     writer.add_node_raw("y", "neg", ["x"])
    ...     writer.add_graph_by_node_raw_list()
    ...     writer.add_text("note", ["a graph"])

    Raises:
        AttrError: for an unknown keyword.
        OSError: where the file cannot be written.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
        write_to_disk: bool = True,
        log_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise AttrError(f"SummaryWriterExtend: unknown keywords, got {', '.join(kwargs)}")
        host = socket.gethostname()
        chosen = logdir or log_dir or f"runs/{time.strftime('%b%d_%H-%M-%S')}_{host}{comment}"
        self.logdir = os.fspath(chosen)
        self._max_queue, self._flush_secs = max_queue, flush_secs
        self._waiting: list[bytes] = []
        self._written = time.monotonic()
        self._nodes: dict[str, NodeRaw] = {}
        self._path: Path | None = None
        if write_to_disk:
            folder = Path(self.logdir)
            folder.mkdir(parents=True, exist_ok=True)
            stamp = f"{time.time():.6f}"
            name = f"events.out.tfevents.{stamp}.{host}.{os.getpid()}{filename_suffix}"
            self._path = folder / name
        self._event(block(3, "brain.Event:2"))
        if purge_step is not None:
            self._event(block(7, integer(1, 1)), purge_step)
        self.flush()

    def _event(self, what: bytes, step: int | None = None, walltime: float | None = None) -> None:
        head = double(1, time.time() if walltime is None else walltime)
        if step is not None:
            head += integer(2, step)
        self._waiting.append(record(head + what))
        late = time.monotonic() - self._written > self._flush_secs
        if late or len(self._waiting) >= self._max_queue:
            self.flush()

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:  # fmt: skip
        """Write a number under a tag."""
        value = block(1, tag) + single(2, float(scalar_value))
        self._event(block(5, block(1, value)), global_step, walltime)

    def add_text(
        self, tag: str, text_string_list: Sequence[Any], global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:  # fmt: skip
        """Write texts under a tag; see ``text``."""
        self._event(block(5, text(tag, text_string_list)), global_step, walltime)

    def add_node_raw(
        self,
        name: str,
        op: str = "UnSpecified",
        input: Sequence[str] = [],
        outputshape: Sequence[int] | None = None,
        dtype: Any = None,
        attributes: Mapping[str, Any] = {},
    ) -> None:
        """Add a node to the graph that ``add_graph_by_node_raw_list`` will write."""
        self._nodes[name] = NodeRaw(name, op, input, outputshape, dtype, attributes)

    def _node(self, name: str) -> NodeRaw:
        if name not in self._nodes:
            known = ", ".join(self._nodes) or "none"
            raise AttrError(f"SummaryWriterExtend: no such node, got {name!r}, expected {known}")
        return self._nodes[name]

    def add_node_raw_name_suffix(self, name: str, suffix: str) -> None:
        """Put a suffix behind the shown name of a node; it keeps its name here and for others.

        Raises:
            AttrError: where there is no such node.
        """
        self._node(name).name += suffix

    def add_node_raw_attributes(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add attributes to a node.

        Raises:
            AttrError: where there is no such node.
        """
        self._node(name).attributes.update(attributes)

    def add_graph_by_node_raw_list(self) -> None:
        """Write the graph of all nodes that were added."""
        shown = {name: item.name for name, item in self._nodes.items()}
        nodes = [
            node(
                item.name, item.op, [shown.get(source, source) for source in item.input],
                item.outputshape, item.dtype, item.attributes,
            )
            for item in self._nodes.values()
        ]  # fmt: skip
        definition, metadata = graph(nodes)
        self._event(block(4, definition))
        self._event(block(8, block(1, "step1") + block(2, metadata)))

    def flush(self) -> None:
        """Write what waits.

        Raises:
            OSError: where the file cannot be written.
        """
        if self._path is not None and self._waiting:
            with open(self._path, "ab") as file:
                file.writelines(self._waiting)
        self._waiting = []
        self._written = time.monotonic()

    def close(self) -> None:
        """Write what waits."""
        self.flush()

    def __enter__(self) -> SummaryWriterExtend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
