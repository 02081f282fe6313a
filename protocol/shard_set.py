"""The set of shards: a list of specs, and what they have in common.

This is the form in which people list, edit and apply shards. Flattening gives each shard what is common;
hoisting lifts what all shards share. Unlike journals, shards keep the order they are given in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from protocol import spec_file, yaml_text
from protocol.gen import shard_pb2 as pb
from protocol.label import LabelSet
from protocol.shard import ShardSource, ShardSpec
from protocol.spec_file import HeldLabels
from protocol.strict_yaml import INT32, INT64, UINT32, Record, load

_SET_KEYS = ("common", "shards")
_SPEC_KEYS = (
    "id",
    "sources",
    "recovery_log_prefix",
    "hint_prefix",
    "hint_backups",
    "max_txn_duration",
    "min_txn_duration",
    "disable",
    "hot_standbys",
    "labels",
    "disable_wait_for_ack",
    "ring_buffer_size",
    "read_channel_size",
)
_SHARD_KEYS = ("comment", "delete", *_SPEC_KEYS, "revision")
_SOURCE_KEYS = ("journal", "min_offset")


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of a set, as it was written: what its spec does not set is common to all."""

    spec: ShardSpec
    delete: bool
    revision: int
    line: int


@dataclass(frozen=True, slots=True)
class ShardSet:
    common: ShardSpec
    shards: tuple[Shard, ...]


def parse(text: str) -> pb.ApplyRequest:
    """The changes that a file asks for. Raises a ``ValidationError`` that names the line and the key."""
    shards = decode(text)
    request = flatten(shards)
    spec_file.validate_changes(request, [shard.line for shard in shards.shards])
    return request


def decode(text: str) -> ShardSet:
    record = Record(load(text), _SET_KEYS)
    common = _spec(record.record("common", _SPEC_KEYS))
    return ShardSet(common, tuple(_shard(shard) for shard in record.records("shards", _SHARD_KEYS)))


def _shard(record: Record) -> Shard:
    record.text("comment")  # Nobody reads it, but it has to be a text.
    return Shard(_spec(record), record.boolean("delete") or False, record.integer("revision", INT64), record.line)


def _spec(record: Record) -> ShardSpec:
    return ShardSpec(
        id=record.text("id"),
        sources=tuple(
            ShardSource(source.text("journal"), source.integer("min_offset", INT64))
            for source in record.records("sources", _SOURCE_KEYS)
        ),
        recovery_log_prefix=record.text("recovery_log_prefix"),
        hint_prefix=record.text("hint_prefix"),
        hint_backups=record.integer("hint_backups", INT32),
        max_txn_duration_ns=record.duration_ns("max_txn_duration"),
        min_txn_duration_ns=record.duration_ns("min_txn_duration"),
        disable=record.boolean("disable") or False,
        hot_standbys=record.integer("hot_standbys", UINT32),
        labels=spec_file.read_labels(record),
        disable_wait_for_ack=record.boolean("disable_wait_for_ack") or False,
        ring_buffer_size=record.integer("ring_buffer_size", UINT32),
        read_channel_size=record.integer("read_channel_size", UINT32),
    )


def flatten(shards: ShardSet) -> pb.ApplyRequest:
    """A change for each shard, with all that it has in common with the others."""
    request = pb.ApplyRequest()
    labels, common = HeldLabels(shards.common.labels), replace(shards.common, labels=LabelSet())
    for shard in shards.shards:
        if shard.delete:
            request.changes.add(expect_mod_revision=shard.revision, delete=shard.spec.id)
            continue
        spec = replace(shard.spec, labels=LabelSet()).union(common)
        change = request.changes.add(expect_mod_revision=shard.revision, upsert=spec.to_proto())
        change.upsert.labels.CopyFrom(labels.given_to(shard.spec.labels).message)
    return request


def hoist(shards: Iterable[tuple[ShardSpec, int]]) -> str:
    """The YAML text of shards and their revisions."""
    listed = list(shards)
    common = ShardSpec()
    if listed:
        common = replace(reduce(ShardSpec.intersect, (spec for spec, _ in listed)), id="")
    written: dict[str, yaml_text.Value] = {
        "common": _written(common),
        "shards": [
            _written(spec.subtract(common)) | ({"revision": revision} if revision else {}) for spec, revision in listed
        ],
    }
    return "\n".join(yaml_text.block(written)) + "\n"


def _written(spec: ShardSpec) -> dict[str, yaml_text.Value]:
    fields: dict[str, yaml_text.Value] = {
        "id": spec.id,
        "sources": [_written_source(source) for source in spec.sources],
        "recovery_log_prefix": spec.recovery_log_prefix,
        "hint_prefix": spec.hint_prefix,
        "hint_backups": spec.hint_backups,
        "max_txn_duration": spec_file.written_duration(spec.max_txn_duration_ns),
        "min_txn_duration": spec_file.written_duration(spec.min_txn_duration_ns),
        "disable": spec.disable,
        "hot_standbys": spec.hot_standbys,
        "labels": spec_file.written_labels(spec.labels),
        "disable_wait_for_ack": spec.disable_wait_for_ack,
        "ring_buffer_size": spec.ring_buffer_size,
        "read_channel_size": spec.read_channel_size,
    }
    return {key: value for key, value in fields.items() if value}


def _written_source(source: ShardSource) -> dict[str, yaml_text.Value]:
    fields: dict[str, yaml_text.Value] = {"journal": source.journal}
    return fields | ({"min_offset": source.min_offset} if source.min_offset else {})
