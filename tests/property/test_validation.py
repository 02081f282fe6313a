"""A valid message with one field corrupted is refused for that field; a field has a rule or is known to have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import validation
from protocol.errors import ValidationError
from protocol.fragment import HEAD_MAX
from protocol.gen import journal_pb2 as pb
from protocol.gen import recorded_op_pb2, shard_pb2
from protocol.label import CONTENT_TYPE, MESSAGE_SUBTYPE, MESSAGE_TYPE, SINGLE_VALUED
from protocol.validation import validate
from tests.support.corruption import Bad, Corruption, Held, copy_of, free_leaves, is_valid, leaves, lifted, originals
from tests.support.message_shapes import values_of
from tests.support.message_types import message_class


def outside(low: int, high: int, bits: int = 64) -> Bad:
    """Numbers of a signed field that are not among low..high."""
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.integers(least, low - 1) | st.integers(high + 1, most) if high < most else st.integers(least, low - 1)


NEGATIVE = outside(0, 2**63 - 1)
NO_HEAD = outside(0, HEAD_MAX)
UNKNOWN_STATUS = outside(0, 15, bits=32)
UNKNOWN_SHARD_STATUS = outside(0, 5, bits=32)
UNKNOWN_CODEC = outside(1, 5, bits=32)
# Nothing of this is in any alphabet. No semicolon: what follows one in a journal's name is judged apart.
FORBIDDEN = st.text(" !\"#$&'()*,:<>?@[]^`{|}~\\\n\x00\x7f\u00a0\u0301\U0001f600", min_size=1, max_size=3)
BAD_TOKEN = st.builds("{}abcd{}".format, st.sampled_from(["", "x/"]), FORBIDDEN) | st.just("x" * 2000)
BAD_SHARD = BAD_TOKEN | st.sampled_from(["", "abc", "a=bcd", "a%bcd"])
BAD_JOURNAL = BAD_TOKEN | st.sampled_from(["/abcd", "abcd/", "ab//cd", "ab/../cd", "./abcd", "abc", "abcd;", "abcd;/"])
BAD_POSTFIX = BAD_TOKEN | st.sampled_from(["/a", "a/", "a//b", "./a"])
BAD_URL = st.sampled_from(["http://h/%", "http://h/%zz", ":", "http://a b/", "http://h:port/", "http://h/\x7f"])
BAD_ENDPOINT = BAD_URL | st.sampled_from(["host:80", "/path", "http://", "http:///path", "unix:///path", "//host"])
BAD_STORE = BAD_URL | st.sampled_from(["", "s3://b", "s3:///p/", "ftp://b/", "file://h/", "azure-ad://t/a", "p/"])
BAD_TEMPLATE = st.sampled_from(["{{", "{{ .Unknown }}", "{{ end }}", "{{ nofunc 1 }}"])
SHORT_SPOOL_ID = st.binary(min_size=1, max_size=15)
LONG_SPOOL_ID = st.binary(min_size=17, max_size=32)


def on(kind: str, *fields: tuple[Any, ...]) -> Iterator[Corruption]:
    return (Corruption(kind, *field) for field in fields)


def free(kind: str, *paths: str) -> Iterator[Corruption]:
    """Fields without a rule, with whatever they may hold, for messages in which they are within reach."""
    for path in paths:
        *parents, last = path.split(".")
        descriptor: Any = message_class(kind).DESCRIPTOR
        for parent in parents:
            if not parent.isdigit():
                descriptor = descriptor.fields_by_name[parent].message_type
        field = descriptor.fields_by_name[last]
        values = (
            st.lists(values_of(field, 0), max_size=3).map(refill(last)) if field.is_repeated else values_of(field, 0)
        )
        yield Corruption(kind, path, values, "", reaches(parents))


def refill(name: str) -> Callable[[list[Any]], Callable[[Any], None]]:
    def by(values: list[Any]) -> Callable[[Any], None]:
        return lambda message: (message.ClearField(name), getattr(message, name).extend(values))[1]

    return by


def reaches(parents: list[str]) -> Callable[[Any], bool]:
    def within(message: Any) -> bool:
        held = message
        for parent in parents:
            if parent.isdigit() and len(held) <= int(parent):
                return False
            held = held[int(parent)] if parent.isdigit() else getattr(held, parent)
        return True

    return within


def has(*fields: str) -> Callable[[Any], bool]:
    """Of messages in which these sub-messages are present, or these lists and numbers not empty."""

    def given_in(message: Any) -> bool:
        held = {field.name for field, _ in message.ListFields()}
        return held.issuperset(fields)

    return given_in


def lacks(*fields: str) -> Callable[[Any], bool]:
    return lambda message: not any(has(field)(message) for field in fields)


def labelled(within: str, *labels: tuple[str, str]) -> Bad:
    """These labels in place of those of the set, which is the message itself or is `within` it."""

    def relabel(message: Any) -> None:
        held = message
        for name in filter(None, within.split(".")):
            held = getattr(held, name)
        held.CopyFrom(pb.LabelSet(labels=[pb.Label(name=name, value=value) for name, value in labels]))

    return st.just(relabel)


def twice_in(within: str) -> Bad:
    return st.sampled_from(SINGLE_VALUED).flatmap(lambda name: labelled(within, (name, "a/b"), (name, "c/d")))


def offsets_of(kind: str, field: str, path: str) -> Iterator[Corruption]:
    """Of a map from journals to offsets."""

    def with_entry(journal: str, offset: int) -> Callable[[Any], None]:
        return lambda message: getattr(message, field).update({journal: offset})

    yield Corruption(kind, f"{field}.key", st.builds(with_entry, BAD_JOURNAL, st.integers(0, 9)), path)
    yield Corruption(kind, f"{field}.value", st.builds(with_entry, st.just("acme/orders"), NEGATIVE), path)


def repeat_member(route: pb.Route) -> None:
    route.members[1].CopyFrom(route.members[0])


def swap_suffixes(route: pb.Route) -> None:
    zone = route.members[0].zone
    route.members[0].CopyFrom(pb.ProcessSpec.ID(zone=zone, suffix="bbbb"))
    route.members[1].CopyFrom(pb.ProcessSpec.ID(zone=zone, suffix="aaaa"))


def to_no_member(route: pb.Route) -> None:
    route.primary = len(route.members)


def repeat_source(spec: shard_pb2.ShardSpec) -> None:
    spec.sources[1].journal = spec.sources[0].journal


def repeat_log(hints: recorded_op_pb2.FSMHints) -> None:
    hints.live_nodes[0].segments[0].log = hints.log


CORRUPTIONS = [
    *on("protocol.Label", ("name", BAD_TOKEN | st.just("a"), "Name"), ("value", BAD_TOKEN, "Value")),
    *on("protocol.Label", ("prefix", st.just(True), "Prefix")),
    *on(
        "protocol.LabelSet",
        ("labels.0.prefix", st.just(True), "Labels[0]", has("labels")),
        ("labels.0.name", st.just("\U0002fa1d" * 2), "", lambda m: len(m.labels) > 1),
        ("labels.0.value", labelled("", ("aa", "2"), ("aa", "1")), ""),
        ("labels.0.value", labelled("", ("aa", "1"), ("aa", "1")), ""),
        ("labels.0.value", labelled("", ("aa", ""), ("aa", "1")), ""),
    ),
    *on(
        "protocol.JournalSpec",
        ("name", BAD_JOURNAL | st.just("abcd;meta"), "Name"),
        ("replication", outside(1, 5, bits=32), "Replication"),
        ("labels.labels.0.name", st.sampled_from(["name", "prefix"]), "Labels", lambda m: len(m.labels.labels) == 1),
        ("labels.labels.0.value", labelled("labels", (CONTENT_TYPE, "a/b/c")), "Labels"),
        ("labels.labels.0.name", labelled("labels", (MESSAGE_TYPE, "Order")), "Labels"),
        ("labels.labels.0.name", labelled("labels", (MESSAGE_SUBTYPE, "New")), "Labels"),
        ("labels.labels.0.name", twice_in("labels"), "Labels.Labels[1]"),
        ("flags", st.sampled_from([3, 5, 6, 7]) | st.integers(8, 2**32 - 1), "Flags"),
        ("max_append_rate", NEGATIVE, "MaxAppendRate"),
    ),
    *on(
        "protocol.JournalSpec.Fragment",
        ("length", outside(1024, 1 << 34), "Length"),
        ("compression_codec", UNKNOWN_CODEC, "CompressionCodec"),
        ("compression_codec", st.just(pb.GZIP_OFFLOAD_DECOMPRESSION), "CompressionCodec",
         lambda m: m.stores and m.stores[0].startswith("file:")),
        ("stores.0", BAD_STORE, "Stores[0]", has("stores")),
        ("stores.1", BAD_STORE, "Stores[1]", lambda m: len(m.stores) > 1),
        ("refresh_interval.seconds", outside(1, 86400), "RefreshInterval"),
        ("flush_interval.seconds", st.integers(-(2**63), 59), "FlushInterval", lambda m: m.flush_interval.nanos),
        ("path_postfix_template", BAD_TEMPLATE, "PathPostfixTemplate"),
    ),
    *on(
        "protocol.JournalSpec.Suspend",
        ("level", outside(0, 2, bits=32), "Level"),
        ("offset", NEGATIVE, "Offset"),
    ),
    *on(
        "google.protobuf.Duration",
        ("seconds", st.integers(1 << 34, 2**63 - 1) | st.integers(-(2**63), -(1 << 34)), ""),
        ("nanos", outside(-999_999_999, 999_999_999, bits=32), ""),
        ("nanos", st.integers(-999_999_999, -1), "", lambda m: m.seconds > 0),
    ),
    *on(
        "protocol.ProcessSpec.ID",
        ("zone", BAD_TOKEN | st.just(""), "Zone", has("zone", "suffix")),
        ("suffix", BAD_TOKEN | st.sampled_from(["", "abc"]), "Suffix", has("zone", "suffix")),
    ),
    *on("protocol.ProcessSpec", ("endpoint", BAD_ENDPOINT | st.just(""), "Endpoint")),
    *on(
        "protocol.Route",
        ("members.0.zone", st.just("zzzz"), "Members[1]", lambda m: len(m.members) > 1),
        ("members.1.suffix", st.just(repeat_member), "Members[1]", lambda m: len(m.members) > 1),
        ("members.1.suffix", st.just(swap_suffixes), "Members[1]", lambda m: len(m.members) > 1),
        ("primary", outside(-1, 2, bits=32), "Primary", lambda m: len(m.members) <= 3),
        ("primary", st.just(to_no_member), "Primary"),
        ("endpoints.1", BAD_ENDPOINT, "Endpoints[1]", lambda m: len(m.endpoints) > 1),
        ("endpoints", st.just(lambda m: m.endpoints.pop()), "Endpoints", lambda m: len(m.endpoints) > 1),
        ("endpoints", st.just(lambda m: m.endpoints.append("http://more")), "Endpoints", has("endpoints")),
    ),
    *on(
        "protocol.Header.Etcd",
        ("cluster_id", st.just(0), "ClusterId"),
        ("member_id", st.just(0), "MemberId"),
        ("revision", outside(1, 2**63 - 1), "Revision"),
        ("raft_term", st.just(0), "RaftTerm"),
    ),
    *on(
        "protocol.BrokerSpec",
        ("journal_limit", st.integers((1 << 17) + 1, 2**32 - 1), "JournalLimit"),
        ("spool_id", SHORT_SPOOL_ID, "SpoolId"),
        ("spool_id", LONG_SPOOL_ID, "SpoolId"),
        ("http_endpoint", BAD_ENDPOINT, "HttpEndpoint"),
    ),
    *on(
        "protocol.Fragment",
        ("journal", BAD_JOURNAL | st.just(""), "Journal"),
        ("begin", st.integers(2**62, 2**63 - 1), "End", lambda m: m.end < 2**62),
        ("end", st.integers(-(2**63), -1), "End", lambda m: m.begin >= 0),
        ("compression_codec", UNKNOWN_CODEC, "CompressionCodec"),
        ("path_postfix", BAD_POSTFIX, "PathPostfix"),
    ),
    *on(
        "protocol.ReadRequest",
        ("journal", BAD_JOURNAL | st.just(""), "Journal"),
        ("offset", outside(-1, 2**63 - 1), "Offset"),
        ("end_offset", NEGATIVE, "EndOffset"),
        ("end_offset", st.just(1), "EndOffset", lambda m: m.offset > 1),
    ),
    *on(
        "protocol.ReadResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("offset", NEGATIVE, "Offset", has("fragment")),
        ("offset", st.integers(1, 2**63 - 1), "Offset", lacks("fragment", "content", "status")),
        ("write_head", NEGATIVE, "WriteHead"),
        ("write_head", st.integers(0, 5677), "WriteHead", has("fragment")),
        ("fragment_url", BAD_URL, "FragmentUrl"),
        ("fragment_url", st.just("http://host/path"), "FragmentUrl", lacks("fragment", "content", "status", "offset")),
        ("content", st.binary(min_size=1), "Status", has("status")),
        ("content", st.binary(min_size=1), "Header", lambda m: not m.status and has("header")(m)),
        ("content", st.binary(min_size=1), "WriteHead", lambda m: lacks("status", "header")(m) and m.write_head),
    ),
    *on(
        "protocol.AppendRequest",
        ("journal", BAD_JOURNAL, "Journal", has("journal")),
        ("journal", st.just(""), "Header", has("journal", "header")),
        ("offset", NO_HEAD, "Offset"),
        ("offset", st.integers(1, 2**63 - 1), "Offset", lacks("journal")),
        ("content", st.binary(min_size=1), "Content", has("journal")),
        ("suspend", outside(0, 4, bits=32), "Suspend"),
        ("suspend", st.sampled_from([1, 2, 3, 4]), "Suspend", lacks("journal")),
        ("do_not_proxy", st.just(True), "DoNotProxy", lacks("journal")),
    ),
    *on(
        "protocol.AppendResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("status", st.just(0), "Commit", lacks("commit")),
        ("status", st.just(13), "Registers", lacks("registers")),
        ("commit", st.just(lambda m: m.ClearField("commit")), "Commit", lacks("status")),
        ("registers", st.just(lambda m: m.ClearField("registers")), "Registers", lambda m: m.status in (0, 13)),
    ),
    *on(
        "protocol.ReplicateRequest",
        ("acked_through", NEGATIVE, "AckedThrough"),
        ("content_delta", NEGATIVE, "ContentDelta", lacks("proposal")),
        ("content_delta", st.integers(1, 2**63 - 1), "ContentDelta", has("proposal")),
        ("content", st.binary(min_size=1), "Content", has("proposal")),
        ("content", st.just(b""), "Content", lacks("proposal", "acked_through")),
        ("acknowledge", st.just(False), "Acknowledge", has("header")),
        ("acknowledge", st.just(True), "Acknowledge", lacks("proposal")),
        ("deprecated_journal", st.just("acme/other"), "DeprecatedJournal"),
    ),
    *on(
        "pygazette.Epoch",
        ("create_revision", NEGATIVE, "CreateRevision"),
        ("number", NEGATIVE, "Number"),
        ("begin", NEGATIVE, "Begin"),
        ("oldest_begin", NEGATIVE, "OldestBegin"),
    ),
    *on(
        "pygazette.Copy",
        ("spool_id", SHORT_SPOOL_ID, "SpoolId"),
        ("spool_id", LONG_SPOOL_ID, "SpoolId"),
        ("create_revision", NEGATIVE, "CreateRevision"),
        ("number", NEGATIVE, "Number"),
        ("end", NO_HEAD, "End"),
    ),
    *on(
        "protocol.ReplicateResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("status", st.just(7), "Header", lacks("header")),
        ("status", st.just(8), "Fragment", lacks("header", "fragment")),
        ("header", st.just(lambda m: m.header.SetInParent()), "Header", lacks("header")),
        ("fragment", st.just(lambda m: m.fragment.SetInParent()), "Fragment", lacks("fragment")),
        ("fragment", st.just(lambda m: m.ClearField("fragment")), "Fragment", has("fragment")),
        ("registers", st.just(lambda m: m.registers.SetInParent()), "Registers", lacks("registers")),
        ("registers", st.just(lambda m: m.ClearField("registers")), "Registers", has("registers")),
    ),
    *on(
        "protocol.ListRequest",
        ("selector.include.labels.0.value", labelled("selector.include", ("prefix", "x")),
         "Selector.Include.Labels[0].Value"),
        ("selector.exclude.labels.0.value", labelled("selector.exclude", ("aa", ""), ("prefix", "x")),
         "Selector.Exclude.Labels[1].Value"),
    ),
    *on(
        "protocol.ListResponse",
        ("status", UNKNOWN_STATUS, "Status"),
    ),
    *on("protocol.ListResponse.Journal", ("mod_revision", outside(1, 2**63 - 1), "ModRevision")),
    *on(
        "protocol.ApplyRequest.Change",
        ("expect_mod_revision", outside(-1, 2**63 - 1), "ExpectModRevision"),
        ("expect_mod_revision", st.just(0), "ExpectModRevision", has("delete")),
        ("delete", BAD_JOURNAL, "Delete", has("delete")),
        ("delete", st.just("acme/orders"), "", has("upsert")),
        ("delete", st.just(""), "", has("delete")),
    ),
    *on("protocol.ApplyResponse", ("status", UNKNOWN_STATUS, "Status")),
    *on(
        "protocol.FragmentsRequest",
        ("journal", BAD_JOURNAL | st.just(""), "Journal"),
        ("end_mod_time", st.integers(-(2**63), -(2**62)), "EndModTime"),
        ("begin_mod_time", st.just(2**63 - 1), "EndModTime", has("end_mod_time")),
        ("next_page_token", NEGATIVE, "NextPageToken"),
        ("page_limit", outside(0, 10_000, bits=32), "PageLimit"),
        ("signatureTTL.seconds", NEGATIVE, "SignatureTTL"),
    ),
    *on(
        "protocol.FragmentsResponse",
        ("status", UNKNOWN_STATUS, "Status"),
    ),
    *on("protocol.FragmentsResponse._Fragment", ("signed_url", BAD_URL, "SignedUrl")),
    *on(
        "protocol.FragmentStoreHealthRequest",
        ("fragment_store", BAD_STORE, "FragmentStore"),
        ("check_delete_prefix", BAD_TOKEN | st.sampled_from(["a", "..", "../", "../a/", "/"]), "CheckDeletePrefix"),
        ("check_delete", st.just(False), "CheckDeletePrefix", has("check_delete_prefix")),
    ),
    *on("protocol.FragmentStoreHealthResponse", ("status", UNKNOWN_STATUS, "Status")),
    *on(
        "consumer.ShardSpec",
        ("id", BAD_SHARD, "Id"),
        ("recovery_log_prefix", BAD_TOKEN | st.sampled_from(["/a", "a/", "a//b"]), "RecoveryLogPrefix",
         lambda m: m.recovery_log_prefix and len(m.id) < 100),
        ("recovery_log_prefix", st.just(""), "HintPrefix", has("hint_prefix")),
        ("hint_prefix", st.sampled_from(["", "a", "a/b", "/a/", "/a//b", "/..", "/a/../b"]), "HintPrefix",
         has("recovery_log_prefix")),
        ("hint_backups", outside(0, 2**31 - 1, bits=32), "HintBackups"),
        ("min_txn_duration.seconds", NEGATIVE, "MinTxnDuration"),
        ("max_txn_duration.seconds", NEGATIVE, "MaxTxnDuration"),
        ("labels.labels.0.name", twice_in("labels"), "LabelSet.Labels[1]"),
        ("labels.labels.0.name", st.just("id"), "LabelSet", lambda m: len(m.labels.labels) == 1),
        ("sources.0.journal", st.just("zzzz"), "Sources[1].Journal", lambda m: len(m.sources) == 2),
        ("sources.1.journal", st.just(repeat_source), "Sources[1].Journal", lambda m: len(m.sources) == 2),
        ("sources.1.min_offset", NEGATIVE, "Sources[1].MinOffset", lambda m: len(m.sources) == 2),
    ),
    *on(
        "consumer.ShardSpec.Source",
        ("journal", BAD_JOURNAL | st.just(""), "Journal"),
        ("min_offset", NEGATIVE, "MinOffset"),
    ),
    *on(
        "consumer.ReplicaStatus",
        ("code", st.sampled_from([-1, 1, 99, 101, 399, 401]), "Code"),
        ("code", st.just(400), "Errors", lacks("errors")),
        ("code", st.sampled_from([0, 100, 200, 300]), "Errors", has("errors")),
        ("errors", st.just(lambda m: m.ClearField("errors")), "Errors", has("errors")),
        ("errors", st.just(lambda m: m.errors.append("oh")), "Errors", lacks("errors")),
    ),
    *on("consumer.ListResponse", ("status", UNKNOWN_SHARD_STATUS, "Status")),
    *on(
        "consumer.ListResponse.Shard",
        ("mod_revision", outside(1, 2**63 - 1), "ModRevision"),
        ("status.0.code", st.just(lambda m: m.status.add()), "Status"),
        ("status.0.code", st.just(lambda m: m.status.pop()), "Status", has("status")),
    ),
    *on(
        "consumer.ApplyRequest.Change",
        ("expect_mod_revision", outside(-1, 2**63 - 1), "ExpectModRevision"),
        ("expect_mod_revision", st.just(0), "ExpectModRevision", has("delete")),
        ("delete", BAD_SHARD.filter(bool), "Delete", has("delete")),
        ("delete", st.just("shard-1"), "", has("upsert")),
        ("delete", st.just(""), "", has("delete")),
        ("primary_hints.log", st.just(lambda m: m.primary_hints.SetInParent()), "PrimaryHints", has("delete")),
    ),
    *on("consumer.ApplyResponse", ("status", UNKNOWN_SHARD_STATUS, "Status")),
    *on("consumer.StatRequest", ("shard", BAD_SHARD, "Shard")),
    *offsets_of("consumer.StatRequest", "read_through", "ReadThrough"),
    *on("consumer.StatResponse", ("status", UNKNOWN_SHARD_STATUS, "Status")),
    *offsets_of("consumer.StatResponse", "read_through", "ReadThrough"),
    *offsets_of("consumer.StatResponse", "publish_at", "PublishAt"),
    *on("consumer.GetHintsRequest", ("shard", BAD_SHARD, "Shard")),
    *on("consumer.GetHintsResponse", ("status", UNKNOWN_SHARD_STATUS, "Status")),
    *on("consumer.UnassignRequest", ("shards.0", BAD_SHARD, "Shards[0]", has("shards"))),
    *on("consumer.UnassignResponse", ("status", st.integers(1, 2**31 - 1), "Status")),
    *on(
        "recoverylog.Segment",
        ("author", st.just(0), "Author"),
        ("first_seq_no", outside(1, 2**63 - 1), "FirstSeqNo"),
        ("first_offset", NEGATIVE, "FirstOffset"),
        ("last_seq_no", outside(1, 2**63 - 1), "LastSeqNo"),
        ("last_offset", NEGATIVE, "LastOffset"),
        ("last_offset", st.just(1), "LastOffset", lambda m: m.first_offset >= 1),
        ("log", BAD_JOURNAL | st.just(""), "Log"),
    ),
    *on(
        "recoverylog.FSMHints",
        ("live_nodes.0.segments.0.log", BAD_JOURNAL, "Segment.Log",
         lambda m: m.live_nodes and m.live_nodes[0].segments),
        ("live_nodes.0.segments.0.log", st.just(repeat_log), "Segment.Log",
         lambda m: m.log and m.live_nodes and m.live_nodes[0].segments),
        ("log", BAD_JOURNAL | st.just(""), "Segment.Log",
         lambda m: m.live_nodes and m.live_nodes[0].segments and not m.live_nodes[0].segments[0].log),
    ),
]  # fmt: skip
# Rules of a part that are others in what holds it: a set names the label alone, hints may lend their log.
REPLACED = frozenset({"protocol.LabelSet.labels.prefix", "recoverylog.FSMHints.live_nodes.segments.log"})
# A field is here because nobody may refuse what it holds, not because nobody thought of it.
FREE = [
    *free("protocol.LabelSelector", "include.labels.0.prefix", "exclude.labels.0.prefix"),
    *free("protocol.BrokerSpec", "exiting", "capabilities"),
    *free("protocol.Fragment", "sum", "backing_store", "mod_time"),
    *free("protocol.ReadRequest", "block", "do_not_proxy", "metadata_only", "begin_mod_time", "min_etcd_revision"),
    *free("protocol.AppendRequest", "min_etcd_revision"),
    *free("protocol.AppendResponse", "total_chunks", "delayed_chunks", "store_health_error"),
    *free("pygazette.Epoch", "closed", "void"),
    # Judged where it is decoded, into what it stands for.
    *free("pygazette.Copy", "registers"),
    *free("protocol.ListRequest", "watch", "watch_resume", "heads"),
    *free("protocol.ListResponse.Journal", "create_revision", "head"),
    *free("protocol.FragmentsRequest", "do_not_proxy"),
    *free("protocol.FragmentsResponse", "next_page_token"),
    *free("protocol.FragmentStoreHealthResponse", "store_health_error"),
    *free("consumer.ShardSpec", "disable", "hot_standbys"),
    *free("consumer.ShardSpec", "disable_wait_for_ack", "ring_buffer_size", "read_channel_size"),
    *free("consumer.ConsumerSpec", "shard_limit", "exiting"),
    *free("consumer.ListRequest", "extension"),
    *free("consumer.ListResponse", "extension"),
    *free("consumer.ListResponse.Shard", "create_revision"),
    *free("consumer.ApplyRequest", "extension"),
    *free("consumer.ApplyResponse", "extension"),
    *free("consumer.StatRequest", "extension"),
    *free("consumer.StatResponse", "extension"),
    *free("consumer.GetHintsRequest", "extension"),
    *free("consumer.GetHintsResponse", "header", "extension"),
    *free("consumer.UnassignRequest", "only_failed", "dry_run"),
    *free("consumer.UnassignResponse", "shards"),
    *free("recoverylog.Segment", "first_checksum"),
    *free("recoverylog.FSMHints", "live_nodes.0.fnode", "properties"),
]
JUDGED: dict[str, Any] = {kind.DESCRIPTOR.full_name: kind.DESCRIPTOR for kind in validation._CHECKS}  # noqa: SLF001, the list of them


@cache
def corruptions_of(kind: str) -> list[Corruption | Held]:
    return list(lifted(JUDGED[kind], CORRUPTIONS, FREE, REPLACED))


@pytest.mark.parametrize("corruption", [each for kind in JUDGED for each in corruptions_of(kind)], ids=str)
@settings(max_examples=4)
@given(data=st.data())
def test_a_valid_message_with_one_field_corrupted_is_refused_for_that_field(
    corruption: Corruption | Held, data: st.DataObject
) -> None:
    message = copy_of(data.draw(st.sampled_from(originals(corruption))))
    assert is_valid(message)
    corruption.corrupt(message, data.draw(corruption.bad))
    with pytest.raises(ValidationError) as refused:
        validate(message)
    path = ".".join(refused.value.path[1:])
    assert not corruption.path or f"{path}.".startswith(f"{corruption.path}."), (path, str(refused.value))


@pytest.mark.parametrize("kind", JUDGED)
def test_every_field_of_a_type_that_has_rules_has_one_or_is_known_to_have_none(kind: str) -> None:
    known = set(leaves(JUDGED[kind]))
    ruled = {corruption.leaf for corruption in corruptions_of(kind)} & known
    unruled = set(free_leaves(JUDGED[kind], FREE))
    assert ruled | unruled == known
    assert not ruled & unruled


def test_every_corruption_is_of_a_type_that_is_judged_or_held_by_one() -> None:
    met = {str(part) for kind in JUDGED for part in map(innermost, corruptions_of(kind))}
    assert met == {str(corruption) for corruption in CORRUPTIONS}
    # Ours are only ever parts of others.
    assert {corruption.kind for corruption in FREE} <= {*JUDGED, "pygazette.Copy", "pygazette.Epoch"}


def innermost(corruption: Corruption | Held) -> Corruption:
    return innermost(corruption.part) if isinstance(corruption, Held) else corruption


@pytest.mark.parametrize("field", FREE, ids=str)
@settings(max_examples=8)
@given(data=st.data())
def test_whatever_a_field_without_a_rule_holds_the_message_stays_valid(field: Corruption, data: st.DataObject) -> None:
    message = copy_of(data.draw(st.sampled_from(originals(field))))
    field.corrupt(message, data.draw(field.bad))
    validate(message)
