"""Protobuf messages as columns, by a descriptor set: what ``protoc --descriptor_set_out --include_imports`` writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from consumer.message.message_uuid import MessageUUID, parse_bytes
from protocol.errors import ValidationError
from spark_readers.message_batches import Garbage
from spark_readers.uuid_extract import Extractor, UuidColumns, parsed_uuid

_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: "integer",
    FieldDescriptor.CPPTYPE_INT64: "long",
    FieldDescriptor.CPPTYPE_UINT32: "long",
    # Spark has no unsigned type, and this one holds them all.
    FieldDescriptor.CPPTYPE_UINT64: "decimal(20,0)",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_ENUM: "string",
    FieldDescriptor.CPPTYPE_STRING: "string",
}
_DEPTH_MAX = 16
# What the library's types say of descriptors depends on which of its implementations is loaded, so they are `Any`.


@lru_cache(maxsize=8)
def message_class(descriptor_file: str, message_name: str) -> type[Message]:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(descriptor_file).read_bytes())
    except (OSError, DecodeError) as error:
        raise ValidationError(
            f"expected a file of protoc --descriptor_set_out --include_imports ({error})", "descriptorFile"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message_name))
    except KeyError:
        known = [f"{file.package}.{of.name}".lstrip(".") for file in files.file for of in file.message_type]
        raise ValidationError(
            f"the descriptor set has no such message; it has {', '.join(known[:20])}", "messageName"
        ) from None


def proto_schema(kind: type[Message]) -> dict[str, Any]:
    """As the JSON of a Spark schema."""
    return _struct(kind.DESCRIPTOR, 0)


def _struct(of: Any, depth: int) -> dict[str, Any]:
    if depth > _DEPTH_MAX:
        raise ValidationError(f"{of.full_name} nests itself, which a table cannot: give a schema", "messageName")
    return {"type": "struct", "fields": [_named(field.name, _field(field, depth)) for field in of.fields]}


def _named(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _field(field: Any, depth: int) -> Any:
    if _is_map(field):
        key, value = field.message_type.fields
        return {
            "type": "map",
            "keyType": _single(key, depth),
            "valueType": _single(value, depth),
            "valueContainsNull": True,
        }
    if field.is_repeated:
        return {"type": "array", "elementType": _single(field, depth), "containsNull": True}
    return _single(field, depth)


def _single(field: Any, depth: int) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _struct(field.message_type, depth + 1)
    return "binary" if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]


def _is_map(field: Any) -> bool:
    of = field.message_type
    return of is not None and bool(of.GetOptions().map_entry)


def plain(message: Message, names: Collection[str] | None = None) -> dict[str, Any]:
    """A message as dicts and lists, fields that are not set and have presence as None."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        if names is None or field.name in names:
            found[field.name] = _value(message, field)
    return found


def _value(message: Message, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if _is_map(field):
        of = field.message_type.fields_by_name["value"]
        return [(key, _one(of, value[key])) for key in value]
    if field.is_repeated:
        return [_one(field, element) for element in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return plain(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


def proto_extractor(descriptor_file: str, message_name: str, path: Sequence[str]) -> Extractor:
    """The UUID in a field of bytes or text. A message type without such a field has none."""
    kind = message_class(descriptor_file, message_name)

    def one(payload: bytes) -> MessageUUID | None:
        if type(payload) is Garbage:
            return None
        try:
            found: Any = kind.FromString(payload)
            for name in path:
                found = getattr(found, name) if name in found.DESCRIPTOR.fields_by_name else None
                if found is None:
                    return None
        except (DecodeError, AttributeError):
            return None
        if isinstance(found, bytes):
            return parse_bytes(found) if len(found) == 16 else None
        return parsed_uuid(found)

    return lambda payloads: UuidColumns.of([one(payload) for payload in payloads])
