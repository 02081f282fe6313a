"""A protobuf message type as a user has one: a descriptor set in a file, and a field for UUIDs in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2

from spark_readers.proto_columns import message_class

MESSAGE = "test.Order"
_STRING, _MESSAGE, _BYTES, _INT64 = 9, 11, 12, 3


def descriptor_file(folder: Path) -> Path:
    """Of `test.Order`: `uuid`, `n`, `key`, and a `meta` that holds a text `uuid` and an `op`."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="order.proto", package="test", syntax="proto3")
    meta, order = file.message_type.add(name="Meta"), file.message_type.add(name="Order")
    for number, name in enumerate(("uuid", "op"), 1):
        meta.field.add(name=name, number=number, type=_STRING, label=1)
    for number, (name, kind) in enumerate((("uuid", _BYTES), ("n", _INT64), ("key", _STRING)), 1):
        order.field.add(name=name, number=number, type=kind, label=1)
    order.field.add(name="meta", number=20, type=_MESSAGE, type_name=".test.Meta", label=1)
    order.field.add(name="notes", number=21, type=_STRING, label=3)
    path = folder / "orders.pb"
    path.write_bytes(files.SerializeToString())
    return path


def order_class(folder: Path) -> Any:
    return message_class(str(descriptor_file(folder)), MESSAGE)
