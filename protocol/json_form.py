"""Messages as JSON, in the three forms Gazette's programs print.

``listing`` is what ``gazctl ... list -o json`` prints (original names, defaults written out, 64-bit numbers as
texts), ``gateway`` the same in camel case for HTTP, and ``plain`` what tokens, etcd hints and fragment listings
hold (numbers are numbers, empty things are left out). Our own fields, numbered from 1000, are in none of them:
a reader of Gazette's output must not meet keys it does not know.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, cast

from google.protobuf import duration_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

_OURS_FROM = 1000

# Sub-messages that are values in Go, not pointers: there is no telling them from absent ones, so they are
# printed as empty where any other would be null.
_VALUES = {
    "protocol.LabelSelector": {"include", "exclude"},
    "protocol.JournalSpec": {"labels", "fragment"},
    "protocol.JournalSpec.Fragment": {"refresh_interval", "retention", "flush_interval"},
    "protocol.ProcessSpec": {"id"},
    "protocol.BrokerSpec": {"process_spec"},
    "protocol.Fragment": {"sum"},
    "protocol.Header": {"process_id", "route", "etcd"},
    "protocol.AppendResponse": {"header"},
    "protocol.ApplyResponse": {"header"},
    "protocol.ListRequest": {"selector"},
    "protocol.ListResponse": {"header"},
    "protocol.ListResponse.Journal": {"spec", "route"},
    "protocol.FragmentsResponse": {"header"},
    "protocol.FragmentsResponse._Fragment": {"spec"},
    "protocol.FragmentStoreHealthResponse": {"header"},
    "consumer.ShardSpec": {"max_txn_duration", "min_txn_duration", "labels"},
    "consumer.ConsumerSpec": {"process_spec"},
    "consumer.Checkpoint.Source.ProducerEntry": {"state"},
    "consumer.ListRequest": {"selector"},
    "consumer.ListResponse": {"header"},
    "consumer.ListResponse.Shard": {"spec", "route"},
    "consumer.ApplyResponse": {"header"},
    "consumer.StatResponse": {"header"},
    "consumer.GetHintsResponse": {"header", "primary_hints"},
}
_LONG = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})

Json = dict[str, Any]


def listing(message: Message) -> Json:
    return _written_out(message, lambda field: field.name)


def gateway(message: Message) -> Json:
    return _written_out(message, lambda field: field.json_name)


def plain(message: Message) -> Json:
    printed: Json = {}
    for field in _fields(message):
        value = getattr(message, field.name)
        if _is_map(field):
            if value:
                printed[field.name] = {str(key): _plain_value(_map_value(field), value[key]) for key in value}
        elif field.is_repeated:
            # Go leaves a list of pointers or scalars out when it is empty, and writes null for one of values.
            if value or field.message_type is not None:
                printed[field.name] = [_plain_value(field, item) for item in value] or None
        elif field.message_type is None:
            if value:
                printed[field.name] = _plain_value(field, value)
        elif message.HasField(field.name) or _is_value(field):
            printed[field.name] = plain(value)
    return printed


def _written_out(message: Message, name: Callable[[FieldDescriptor], str]) -> Json:
    return {name(field): _written_out_field(message, field, name) for field in _fields(message)}


def _written_out_field(message: Message, field: FieldDescriptor, name: Callable[[FieldDescriptor], str]) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        return {str(key): _written_out_value(_map_value(field), value[key], name) for key in sorted(value)}
    if field.is_repeated:
        return [_written_out_value(field, item, name) for item in value]
    if field.message_type is not None and not (message.HasField(field.name) or _is_value(field)):
        return None
    return _written_out_value(field, value, name)


def _written_out_value(field: FieldDescriptor, value: Any, name: Callable[[FieldDescriptor], str]) -> Any:
    if isinstance(value, duration_pb2.Duration):
        return value.ToJsonString()
    if field.message_type is not None:
        return _written_out(value, name)
    if field.enum_type is not None:
        return _enum_name(field.enum_type, value)
    if field.cpp_type in _LONG:
        return str(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        # As a field, empty bytes cannot be told from absent ones; in a map they are there.
        return base64.b64encode(value).decode() if value or _holder(field).GetOptions().map_entry else None
    return value


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode()
    return value


def _fields(message: Message) -> list[FieldDescriptor]:
    return [cast(FieldDescriptor, field) for field in message.DESCRIPTOR.fields if field.number < _OURS_FROM]


def _holder(field: FieldDescriptor) -> Descriptor:
    """The message type that has this field; only an extension has none."""
    assert field.containing_type is not None
    return field.containing_type


def _is_value(field: FieldDescriptor) -> bool:
    return field.name in _VALUES.get(_holder(field).full_name, ())


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _map_value(field: FieldDescriptor) -> FieldDescriptor:
    assert field.message_type is not None
    return field.message_type.fields_by_name["value"]


def _enum_name(enum: EnumDescriptor, number: int) -> str | int:
    known = enum.values_by_number.get(number)
    return number if known is None else known.name
