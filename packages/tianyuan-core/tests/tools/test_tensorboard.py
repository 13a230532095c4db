"""tensorboard: Google's protocol buffers read back what is written."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tianyuan.errors import AttrError
from tianyuan.utils import protocol
from tianyuan.utils import tensorboard as T

pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
from google.protobuf import descriptor_pool, message_factory  # noqa: E402

# message -> field -> (number, type); a type in capitals is a scalar, * repeats.
MESSAGES = {
    "Dim": {"size": (1, "INT64")},
    "Shape": {"dim": (2, "*Dim")},
    "ListValue": {"shape": (7, "*Shape")},
    "Attr": {"list": (1, "ListValue"), "s": (2, "BYTES")},
    "Entry": {"key": (1, "STRING"), "value": (2, "Attr")},
    "Node": {
        "name": (1, "STRING"), "op": (2, "STRING"), "input": (3, "*STRING"),
        "attr": (5, "*Entry"),
    },
    "Graph": {"node": (1, "*Node")},
    "Tensor": {"dtype": (1, "INT32"), "shape": (2, "Shape"), "string_val": (8, "*BYTES")},
    "Plugin": {"name": (1, "STRING")},
    "Meta": {"plugin": (1, "Plugin")},
    "Value": {
        "tag": (1, "STRING"), "simple": (2, "FLOAT"), "tensor": (8, "Tensor"), "meta": (9, "Meta"),
    },
    "Summary": {"value": (1, "*Value")},
    "Session": {"status": (1, "INT32")},
    "Event": {
        "wall_time": (1, "DOUBLE"), "step": (2, "INT64"), "file_version": (3, "STRING"),
        "graph_def": (4, "BYTES"), "summary": (5, "Summary"), "session": (7, "Session"),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def schema() -> dict[str, type]:
    """Make message classes that know nothing of our encoder."""
    file = pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    kinds = pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated, kind = kind.startswith("*"), kind.lstrip("*")
            item = message.field.add(name=field, number=number)
            item.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind.isupper():
                item.type = getattr(kinds, f"TYPE_{kind.rstrip('0123456789')}", None) or getattr(
                    kinds, f"TYPE_{kind}"
                )
            else:
                item.type, item.type_name = kinds.TYPE_MESSAGE, f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in MESSAGES
    }


def events(schema: dict[str, type], folder: Path) -> list:
    [path] = folder.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(schema["Event"].FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_checksum_is_castagnolis() -> None:
    assert protocol.crc32c(b"123456789") == 0xE3069283
    assert protocol.crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**40, -1])
def test_integers_are_varints(value: int, schema) -> None:
    assert schema["Dim"].FromString(protocol.integer(1, value)).size == value


def test_messages_hold_what_was_given(schema) -> None:
    shape = schema["Shape"].FromString(T.tensor_shape_proto((2, 0, 700)))
    assert [dim.size for dim in shape.dim] == [2, 0, 700]
    attrs = T.attr_value_proto((3,), "float32", {"k": 5})
    assert schema["Attr"].FromString(attrs["dtype"]).s == b"float32"
    assert schema["Attr"].FromString(attrs["k"]).s == b"5"
    listed = schema["Attr"].FromString(attrs["_output_shapes"]).list
    assert [dim.size for dim in listed.shape[0].dim] == [3]
    assert T.attr_value_proto(None, None, None) == {}
    for make in (T.node, T.node_proto):
        made = schema["Node"].FromString(make("n", "add", ["a", "b"], (1,), "int8", {"z": 1}))
        assert (made.name, made.op, list(made.input)) == ("n", "add", ["a", "b"])
        assert [entry.key for entry in made.attr] == ["_output_shapes", "dtype", "z"]
    assert list(schema["Node"].FromString(T.node("n", input="only")).input) == ["only"]
    whole, _ = T.graph([T.node("a"), T.node("b", input=["a"])])
    assert [item.name for item in schema["Graph"].FromString(whole).node] == ["a", "b"]


def test_texts_are_lists_or_tables(schema) -> None:
    [value] = schema["Summary"].FromString(T.text("t", ["one", "zwei"])).value
    assert (value.tag, value.meta.plugin.name) == ("t/text_summary", "text")
    assert list(value.tensor.string_val) == [b"one", b"zwei"]
    assert [dim.size for dim in value.tensor.shape.dim] == [2]
    [table] = schema["Summary"].FromString(T.text("t", [["a", "b"], ["c", "d"], ["e", "f"]])).value
    assert [dim.size for dim in table.tensor.shape.dim] == [3, 2]
    with pytest.raises(AttrError, match="differ in length"):
        T.text("t", [["a"], ["b", "c"]])


def test_a_file_holds_the_events_in_order(schema, tmp_path: Path) -> None:
    with T.SummaryWriterExtend(log_dir=tmp_path, purge_step=4, filename_suffix=".x") as writer:
        writer.add_node_raw("in", "input", outputshape=(2, 3), dtype="float32")
        writer.add_node_raw("out", "relu", ["in"])
        writer.add_node_raw_name_suffix("in", "_0")
        writer.add_node_raw_attributes("out", {"cost": 7})
        writer.add_graph_by_node_raw_list()
        writer.add_text("note", ["hello"], global_step=2, walltime=12.5)
        writer.add_scalar("loss", 0.5, global_step=3)
        with pytest.raises(AttrError, match="no such node, got 'x', expected in, out"):
            writer.add_node_raw_attributes("x", {})
    first, purge, graph, _, note, loss = events(schema, tmp_path)
    assert first.file_version == "brain.Event:2"
    assert (purge.session.status, purge.step) == (1, 4)
    nodes = schema["Graph"].FromString(graph.graph_def).node
    assert [(n.name, n.op, list(n.input)) for n in nodes] == [
        ("in_0", "input", []), ("out", "relu", ["in_0"]),
    ]  # fmt: skip
    assert {e.key: e.value.s for e in nodes[1].attr} == {"cost": b"7"}
    assert (note.step, note.wall_time) == (2, 12.5)
    assert note.summary.value[0].tensor.string_val[0] == b"hello"
    assert (loss.step, loss.summary.value[0].simple) == (3, 0.5)
    assert next(tmp_path.glob("*.x"))


def test_nothing_is_written_where_nothing_shall_be(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    writer = T.SummaryWriterExtend(str(folder), write_to_disk=False)
    writer.add_text("a", ["b"])
    writer.close()
    assert not folder.exists()
    with pytest.raises(AttrError, match="unknown keywords, got colour"):
        T.SummaryWriterExtend(str(folder), colour=1)
    item = T.NodeRaw("a", "b", ("c",), (1,), "int8", {"d": 1})
    assert (item.name, item.op, item.input, item.outputshape) == ("a", "b", ["c"], (1,))
