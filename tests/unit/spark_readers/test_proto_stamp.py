from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from consumer.message.message_uuid import Flags, build, clock_at, parse
from protocol.errors import ValidationError
from spark_readers.proto_columns import message_class, proto_extractor
from spark_readers.proto_stamp import ProtoStamp
from tests.support.order_messages import MESSAGE, descriptor_file, order_class

UUID = build(b"\x0b12345", clock_at(1_800_000_000_000_000_000), Flags.CONTINUE_TXN)


@pytest.mark.parametrize("path", [("uuid",), ("meta", "uuid"), ("key",)])
def test_readers_find_the_uuid_where_it_was_put(tmp_path: Path, path: tuple[str, ...]) -> None:
    kind = order_class(tmp_path)
    stamp = ProtoStamp(kind, path)
    extract = proto_extractor(str(descriptor_file(tmp_path)), MESSAGE, path)
    messages = [kind(), kind(n=7, meta={"op": "c"}), kind(uuid=b"old", key="old", meta={"uuid": "old", "op": "d"})]
    stamped = [stamp.stamped(message.SerializeToString(), str(UUID)) for message in messages]
    assert extract(stamped).to_list() == [parse(UUID)] * 3
    found = [kind.FromString(message) for message in stamped]
    assert [(message.n, message.meta.op) for message in found] == [(0, ""), (7, "c"), (0, "d")]


def test_fields_that_the_descriptor_does_not_know_are_kept(tmp_path: Path) -> None:
    stamped = ProtoStamp(order_class(tmp_path), ("uuid",)).stamped(b"\xc0\x3e\x2a", str(UUID))
    assert stamped.startswith(b"\xc0\x3e\x2a")


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        (("UUID",), "UUID is no single field"),
        (("meta", "id"), r"meta\.id is no single field"),
        (("uuid", "x"), r"uuid\.x is no single field"),
        (("notes",), "notes is no single field"),
        (("meta",), "meta can hold no UUID"),
        (("n",), "n can hold no UUID"),
    ],
)
def test_a_field_that_can_hold_none_is_refused(tmp_path: Path, path: tuple[str, ...], rule: str) -> None:
    with pytest.raises(ValidationError, match=f"^uuidField: {rule}"):
        ProtoStamp(order_class(tmp_path), path)


def _proto2(folder: Path, *, required: bool) -> type[Any]:
    """A message that either has a required field or one field of several."""
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="old.proto", package="test", syntax="proto2").message_type.add(name="Old")
    message.field.add(name="uuid", number=1, type=12, label=1)
    other = message.field.add(name="n", number=2, type=3, label=2 if required else 1)
    if not required:
        message.oneof_decl.add(name="either")
        message.field[0].oneof_index = other.oneof_index = 0
    path = folder / f"old-{required}.pb"
    path.write_bytes(files.SerializeToString())
    return message_class(str(path), "test.Old")


def test_a_message_that_cannot_be_alone_with_its_uuid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"^messageName: .*make them optional"):
        ProtoStamp(_proto2(tmp_path, required=True), ("uuid",))
    with pytest.raises(ValidationError, match=r"^uuidField: .*drop the others"):
        ProtoStamp(_proto2(tmp_path, required=False), ("uuid",))
