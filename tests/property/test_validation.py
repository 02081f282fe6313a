from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.endpoint import check_endpoint, dial_address
from protocol.errors import ValidationError
from protocol.fragment_store import FragmentStore
from protocol.identifier import (
    check_journal,
    check_path_component,
    check_path_symbols,
    check_shard_id,
    check_token,
    clean_path,
)
from protocol.url import parse_url
from protocol.validation import validate
from tests.support.golden import cases
from tests.support.message_types import FILES, message_class

Bad = st.SearchStrategy[Any]


def outside(low: int, high: int, bits: int = 64) -> Bad:
    """Numbers of a signed field that are not among low..high."""
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.integers(least, low - 1) | st.integers(high + 1, most) if high < most else st.integers(least, low - 1)


NEGATIVE = outside(0, 2**63 - 1)
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
BAD_SPOOL_ID = st.binary(min_size=1, max_size=32).filter(lambda spool_id: len(spool_id) != 16)


def on(kind: str, *fields: tuple[Any, ...]) -> Iterator[Corruption]:
    return (Corruption(kind, *field) for field in fields)


def each(kind: str, *fields: str) -> Iterator[Corruption]:
    """Fields without a rule: whatever they hold, the verdict is the same."""
    for field in fields:
        yield Corruption(kind, field, any_of(field_at(kind, field)), "")


def has(*fields: str) -> Callable[[Any], bool]:
    """Of messages in which these sub-messages are present, or these lists and numbers not empty."""

    def given_in(message: Any) -> bool:
        held = {field.name for field, _ in message.ListFields()}
        return held.issuperset(fields)

    return given_in


def lacks(*fields: str) -> Callable[[Any], bool]:
    return lambda message: not any(has(field)(message) for field in fields)


CORRUPTIONS = [
    *on("protocol.Label", ("name", BAD_TOKEN | st.just("a"), "Name"), ("value", BAD_TOKEN, "Value")),
    *on("protocol.Label", ("prefix", st.just(True), "Prefix")),
    *on(
        "protocol.LabelSet",
        ("labels.0.name", BAD_TOKEN | st.just("a"), "Labels[0].Name", has("labels")),
        ("labels.0.prefix", st.just(True), "Labels[0]", has("labels")),
        ("labels.0.name", st.just("\U0002fa1d" * 2), "", lambda m: len(m.labels) > 1),
    ),
    *on(
        "protocol.LabelSelector",
        ("include.labels.0.value", BAD_TOKEN, "Include.Labels[0].Value", lambda m: m.include.labels),
        ("exclude.labels.0.name", BAD_TOKEN, "Exclude.Labels[0].Name", lambda m: m.exclude.labels),
    ),
    *on(
        "protocol.JournalSpec",
        ("name", BAD_JOURNAL | st.just("abcd;meta"), "Name"),
        ("replication", outside(1, 5, bits=32), "Replication"),
        ("labels.labels.0.name", BAD_TOKEN, "Labels.Labels[0].Name", lambda m: m.labels.labels),
        ("labels.labels.0.name", st.sampled_from(["name", "prefix"]), "Labels", lambda m: len(m.labels.labels) == 1),
        ("fragment.length", outside(1024, 1 << 34), "Fragment.Length"),
        ("fragment.compression_codec", UNKNOWN_CODEC, "Fragment.CompressionCodec"),
        ("fragment.stores.0", BAD_STORE, "Fragment.Stores[0]", lambda m: m.fragment.stores),
        ("fragment.refresh_interval.seconds", outside(1, 86400), "Fragment.RefreshInterval"),
        ("fragment.retention.nanos", st.integers(1_000_000_000, 2**31 - 1), "Fragment.Retention"),
        ("fragment.flush_interval.seconds", st.integers(-(2**63), 59), "Fragment.FlushInterval",
         lambda m: m.fragment.flush_interval.nanos),
        ("fragment.path_postfix_template", BAD_TEMPLATE, "Fragment.PathPostfixTemplate"),
        ("flags", st.sampled_from([3, 5, 6, 7]) | st.integers(8, 2**32 - 1), "Flags"),
        ("max_append_rate", NEGATIVE, "MaxAppendRate"),
        ("suspend.level", outside(0, 2, bits=32), "Suspend.Level"),
        ("suspend.offset", NEGATIVE, "Suspend.Offset"),
    ),
    *on(
        "protocol.BrokerSpec",
        ("process_spec.id.zone", BAD_TOKEN | st.just(""), "Id.Zone"),
        ("process_spec.id.suffix", BAD_TOKEN | st.just("abc"), "Id.Suffix"),
        ("process_spec.endpoint", BAD_ENDPOINT | st.just(""), "Endpoint"),
        ("journal_limit", st.integers((1 << 17) + 1, 2**32 - 1), "JournalLimit"),
        ("spool_id", BAD_SPOOL_ID, "SpoolId"),
        ("http_endpoint", BAD_ENDPOINT, "HttpEndpoint"),
    ),
    *on(
        "protocol.Fragment",
        ("journal", BAD_JOURNAL | st.just(""), "Journal"),
        ("begin", st.integers(2**62, 2**63 - 1), "", lambda m: m.end < 2**62),
        ("compression_codec", UNKNOWN_CODEC, "CompressionCodec"),
        ("path_postfix", BAD_POSTFIX, "PathPostfix"),
    ),
    *on(
        "protocol.ReadRequest",
        ("journal", BAD_JOURNAL | st.just(""), "Journal"),
        ("offset", outside(-1, 2**63 - 1), "Offset"),
        ("end_offset", NEGATIVE, "EndOffset"),
    ),
    *on(
        "protocol.ReadResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("offset", NEGATIVE, "Offset", has("fragment")),
        ("offset", st.integers(1, 2**63 - 1), "Offset", lacks("fragment", "content", "status")),
        ("write_head", NEGATIVE, "WriteHead"),
        ("write_head", st.integers(0, 5677), "WriteHead", has("fragment")),
        ("fragment.journal", BAD_JOURNAL, "Fragment.Journal", has("fragment")),
        ("fragment_url", BAD_URL, "FragmentUrl"),
        ("content", st.binary(min_size=1), "Header", lambda m: not m.status and has("header")(m)),
    ),
    *on(
        "protocol.AppendRequest",
        ("journal", BAD_JOURNAL, "Journal", has("journal")),
        ("journal", st.just(""), "Header", has("journal", "header")),
        ("offset", NEGATIVE, "Offset"),
        ("offset", st.integers(1, 2**63 - 1), "Offset", lacks("journal")),
        ("content", st.binary(min_size=1), "Content", has("journal")),
        ("suspend", outside(0, 4, bits=32), "Suspend"),
        ("union_registers.labels.0.name", BAD_TOKEN, "UnionRegisters.Labels[0].Name",
         lambda m: m.journal and m.union_registers.labels),
        ("do_not_proxy", st.just(True), "DoNotProxy", lacks("journal")),
    ),
    *on(
        "protocol.AppendResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("status", st.just(0), "Commit", lacks("commit")),
        ("status", st.just(13), "Registers", lacks("registers")),
        ("commit.end", st.integers(-(2**63), -(2**62)), "Commit", has("commit")),
        ("commit.journal", BAD_JOURNAL, "Commit.Journal", has("commit")),
    ),
    *on(
        "protocol.ReplicateRequest",
        ("acked_through", NEGATIVE, "AckedThrough"),
        ("proposal.journal", BAD_JOURNAL | st.just(""), "Proposal.Journal", has("proposal")),
        ("content_delta", NEGATIVE, "ContentDelta"),
        ("content_delta", st.integers(1, 2**63 - 1), "ContentDelta", has("proposal")),
        ("content", st.binary(min_size=1), "Content", has("proposal")),
        ("content", st.just(b""), "Content", lacks("proposal", "acked_through")),
        ("acknowledge", st.just(False), "Acknowledge", has("header")),
        ("acknowledge", st.just(True), "Acknowledge", lacks("proposal")),
        ("deprecated_journal", st.just("acme/other"), "DeprecatedJournal"),
        ("epoch.number", NEGATIVE, "Epoch.Number", has("proposal")),
        ("epoch.begin", NEGATIVE, "Epoch.Begin", has("proposal")),
        ("epoch.create_revision", NEGATIVE, "Epoch.CreateRevision", has("proposal")),
    ),
    *on(
        "protocol.ReplicateResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("status", st.just(7), "Header", lacks("header")),
        ("status", st.just(8), "", lambda m: m.status != 8),
        ("copy.spool_id", BAD_SPOOL_ID, "Copy.SpoolId"),
        ("copy.number", NEGATIVE, "Copy.SpoolId"),
    ),
    *on(
        "protocol.ListRequest",
        ("selector.include.labels.0.name", BAD_TOKEN, "Selector.Include.Labels[0].Name",
         lambda m: m.selector.include.labels),
        ("selector.include.labels.0.value", st.just("x"), "Selector.Include.Labels[0].Value",
         lambda m: [label.name for label in m.selector.include.labels] == ["prefix"]),
    ),
    *on(
        "protocol.ListResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("journals.0.mod_revision", outside(1, 2**63 - 1), "Journals[0].ModRevision", has("journals")),
        ("journals.0.spec.name", BAD_JOURNAL, "Journals[0].Spec.Name", has("journals")),
        ("journals.0.route.primary", st.integers(3, 2**31 - 1), "Journals[0].Route.Primary", has("journals")),
    ),
    *on(
        "protocol.ApplyRequest.Change",
        ("expect_mod_revision", outside(-1, 2**63 - 1), "ExpectModRevision"),
        ("expect_mod_revision", st.just(0), "ExpectModRevision", has("delete")),
        ("delete", BAD_JOURNAL, "Delete", has("delete")),
        ("delete", st.just("acme/orders"), "", has("upsert")),
        ("delete", st.just(""), "", has("delete")),
        ("upsert.replication", st.integers(6, 2**31 - 1), "Upsert.Replication", has("upsert")),
    ),
    *on("protocol.ApplyRequest", ("changes.0.expect_mod_revision", st.just(-2), "Changes[0]", has("changes"))),
    *on("protocol.ApplyResponse", ("status", UNKNOWN_STATUS, "Status")),
    *on(
        "protocol.FragmentsRequest",
        ("journal", BAD_JOURNAL | st.just(""), "Journal"),
        ("end_mod_time", st.integers(-(2**63), -(2**62)), "EndModTime"),
        ("next_page_token", NEGATIVE, "NextPageToken"),
        ("page_limit", outside(0, 10_000, bits=32), "PageLimit"),
        ("signatureTTL.seconds", NEGATIVE, "SignatureTTL"),
    ),
    *on(
        "protocol.FragmentsResponse",
        ("status", UNKNOWN_STATUS, "Status"),
        ("fragments.0.spec.journal", BAD_JOURNAL, "Fragments[0].Spec.Journal", has("fragments")),
        ("fragments.0.signed_url", BAD_URL, "Fragments[0].SignedUrl", has("fragments")),
    ),
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
        ("labels.labels.0.name", BAD_TOKEN, "LabelSet.Labels[0].Name", lambda m: m.labels.labels),
        ("labels.labels.0.name", st.just("id"), "LabelSet", lambda m: len(m.labels.labels) == 1),
        ("sources.0.journal", BAD_JOURNAL, "Sources[0].Journal", has("sources")),
        ("sources.0.journal", st.just("zzzz"), "Sources[1].Journal", lambda m: len(m.sources) == 2),
        ("sources.1.min_offset", NEGATIVE, "Sources[1].MinOffset", lambda m: len(m.sources) == 2),
    ),
    *on("consumer.ConsumerSpec", ("process_spec.endpoint", BAD_ENDPOINT, "Endpoint")),
    *on(
        "consumer.ReplicaStatus",
        ("code", st.sampled_from([-1, 1, 99, 101, 399, 401]), "Code"),
        ("code", st.just(400), "Errors", lacks("errors")),
        ("code", st.sampled_from([0, 100, 200, 300]), "Errors", has("errors")),
    ),
    *on("consumer.ListRequest", ("selector.exclude.labels.0.name", BAD_TOKEN, "Selector.Exclude.Labels[0].Name",
                                 lambda m: m.selector.exclude.labels)),
    *on("consumer.ListResponse", ("status", UNKNOWN_SHARD_STATUS, "Status")),
    *on(
        "consumer.ListResponse.Shard",
        ("mod_revision", outside(1, 2**63 - 1), "ModRevision"),
        ("spec.id", BAD_SHARD, "Spec.Id"),
        ("status.0.code", st.just(1), "Status[0].Code", has("status")),
    ),
    *on(
        "consumer.ApplyRequest.Change",
        ("expect_mod_revision", outside(-1, 2**63 - 1), "ExpectModRevision"),
        ("delete", BAD_SHARD.filter(bool), "Delete", has("delete")),
        ("upsert.id", BAD_SHARD, "Upsert.Id", has("upsert")),
        ("primary_hints.live_nodes.0.segments.0.author", st.just(0), "PrimaryHints.Segment.Author",
         has("primary_hints")),
    ),
    *on("consumer.ApplyRequest", ("changes.0.upsert.id", BAD_SHARD, "Changes[0].Upsert.Id", has("changes"))),
    *on("consumer.StatRequest", ("shard", BAD_SHARD, "Shard")),
    *on("consumer.StatResponse", ("status", UNKNOWN_SHARD_STATUS, "Status")),
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
        ("log", BAD_JOURNAL | st.just(""), "Log"),
    ),
    *on(
        "recoverylog.FSMHints",
        ("live_nodes.0.segments.0.log", BAD_JOURNAL, "Segment.Log",
         lambda m: m.live_nodes and m.live_nodes[0].segments),
        ("live_nodes.0.segments.0.last_seq_no", NEGATIVE, "Segment.LastSeqNo",
         lambda m: m.live_nodes and m.live_nodes[0].segments),
    ),
]  # fmt: skip


@cache
def valid(kind: str) -> list[Message]:
    """Every valid vector of a type."""
    kinds = (case for case in cases("validation") if case["type"] == kind and case["ok"])
    return [message_class(kind).FromString(bytes.fromhex(case["hex"])) for case in kinds]


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=str)
@settings(max_examples=8)
@given(data=st.data())
def test_a_valid_message_with_one_field_corrupted_is_refused_for_that_field(
    corruption: Corruption, data: st.DataObject
) -> None:
    originals = [message for message in valid(corruption.kind) if corruption.applies(message)]
    original = data.draw(st.sampled_from(originals))
    message = type(original)()
    message.CopyFrom(original)
    corruption.corrupt(message, data.draw(corruption.bad))
    with pytest.raises(ValidationError) as refused:
        validate(message)
    path = ".".join(refused.value.path[1:])
    assert not corruption.path or f"{path}.".startswith(f"{corruption.path}."), (path, str(refused.value))


def test_every_type_that_has_rules_has_a_corruption() -> None:
    """But for the parts, whose rules are met through the messages that hold them."""
    refused = {case["type"] for case in cases("validation") if not case["ok"]}
    judged = {kind for kind in refused if not kind.startswith(("text ", "enum "))}
    parts = {
        "protocol.Header", "protocol.Header.Etcd", "protocol.Route", "protocol.ProcessSpec", "protocol.ProcessSpec.ID",
        "protocol.JournalSpec.Fragment", "protocol.JournalSpec.Suspend", "protocol.ListResponse.Journal",
        "protocol.FragmentsResponse._Fragment", "consumer.ShardSpec.Source", "consumer.GetHintsResponse.ResponseHints",
    }  # fmt: skip
    assert judged - parts == {corruption.kind for corruption in CORRUPTIONS}


def all_types() -> Iterator[str]:
    def within(descriptor: Descriptor) -> Iterator[str]:
        if not descriptor.GetOptions().map_entry:
            yield descriptor.full_name
        for nested in descriptor.nested_types:
            yield from within(nested)

    for file in FILES:
        for descriptor in file.message_types_by_name.values():
            yield from within(descriptor)


def judge(message: Message) -> None:
    """Anything but a return or a ``ValidationError`` fails the test."""
    with contextlib.suppress(ValidationError):
        validate(message)


@pytest.mark.parametrize("kind", sorted(all_types()))
@settings(max_examples=12)
@given(data=st.data())
def test_whatever_bytes_are_parsed_the_verdict_is_clean(kind: str, data: st.DataObject) -> None:
    """Random bytes rarely parse, so bytes of valid messages are spliced with them as well."""
    pool = [message.SerializeToString() for message in valid(kind)]
    noise = st.binary(max_size=64)
    encoded = data.draw(st.one_of(noise, st.sampled_from(pool)) if pool else noise)
    at, cut = (data.draw(st.integers(0, len(encoded))) for _ in range(2))
    with contextlib.suppress(DecodeError):
        judge(message_class(kind).FromString(encoded[:at] + data.draw(noise) + encoded[cut:]))


WIRE_NUMBERS = st.integers(-(2**31), 2**31 - 1)
WIRE_TEXTS = st.text(max_size=8) | st.sampled_from(["abcd", "http://h", "s3://b/", "acme/orders", "azure-ad://t"])


@st.composite
def messages(draw: st.DrawFn, kind: str, depth: int = 0) -> Any:
    """A message of any shape: fields at random, of random values."""
    message: Any = message_class(kind)()
    for field in message.DESCRIPTOR.fields:
        if depth > 3 or (field.message_type and field.message_type.GetOptions().map_entry) or not draw(st.booleans()):
            continue
        if field.message_type:
            values: Bad = messages(field.message_type.full_name, depth + 1)
        elif field.type == field.TYPE_STRING:
            values = WIRE_TEXTS
        elif field.type == field.TYPE_BYTES:
            values = st.binary(max_size=20)
        elif field.type == field.TYPE_BOOL:
            values = st.booleans()
        elif field.type in (field.TYPE_INT32, field.TYPE_INT64, field.TYPE_ENUM):
            values = WIRE_NUMBERS
        else:
            values = st.integers(0, 2**32 - 1)
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(values, max_size=3)))
        elif field.message_type:
            getattr(message, field.name).CopyFrom(draw(values))
        else:
            setattr(message, field.name, draw(values))
    return message


@pytest.mark.parametrize("kind", sorted(all_types()))
@settings(max_examples=6)
@given(data=st.data())
def test_whatever_shape_a_message_has_the_verdict_is_clean(kind: str, data: st.DataObject) -> None:
    judge(data.draw(messages(kind)))


TEXTS = st.text(max_size=40) | st.text("ab/.;=%-_ é\x00#", max_size=12) | st.text(st.characters(), max_size=4)


@given(TEXTS)
def test_the_verdict_on_any_name_is_clean(text: str) -> None:
    for check in (check_journal, check_shard_id):
        with contextlib.suppress(ValidationError):
            check(text)
    for check_within in (check_token, check_path_symbols, check_path_component):
        with contextlib.suppress(ValidationError):
            check_within(text, 0, 512)


@given(TEXTS)
def test_a_valid_journal_name_is_made_of_clean_parts_that_hold_no_separator_of_etcd_keys(text: str) -> None:
    try:
        check_journal(text)
    except ValidationError:
        return
    name, _, meta = text.partition(";")
    assert all(ord(symbol) > ord("#") for symbol in text)
    assert clean_path(name) == name
    assert not name.startswith("/")
    assert ";" not in meta


@given(st.text("ab/.", max_size=16))
def test_cleaning_a_path_twice_is_cleaning_it_once(path: str) -> None:
    assert clean_path(clean_path(path)) == clean_path(path)


PIECES = st.sampled_from(
    [
        *("http", "s3", "file", "azure-ad", "unix", ":", "://", "/", "//", "?", "#", "@", "&", "=", ";", "+"),
        *("[", "]", "[::1]", ":80", ":x", "a", "host", "é", " ", "..", ".", "\x00", "\x7f", "\n"),
        *("%", "%25", "%2F", "%41", "%C3%A9", "%FF", "%zz"),
    ]
)
URLS = st.lists(PIECES, max_size=10).map("".join) | st.text(max_size=20)


@settings(max_examples=300)
@given(URLS)
def test_the_verdict_on_any_url_is_clean(text: str) -> None:
    with contextlib.suppress(ValidationError):
        assert FragmentStore.parse(text).path.endswith("/")
    with contextlib.suppress(ValidationError):
        FragmentStore.parse(text).object_key("acme/orders/")
    with contextlib.suppress(ValidationError):
        check_endpoint(text)
        assert dial_address(text)


@settings(max_examples=200)
@given(URLS)
def test_a_url_that_parses_has_no_control_characters_and_no_broken_escapes(text: str) -> None:
    try:
        url = parse_url(text)
    except ValidationError:
        return
    before_fragment = text.partition("#")[0]
    assert not any(ord(symbol) < 32 or ord(symbol) == 127 for symbol in before_fragment)
    assert url.scheme == url.scheme.lower()
    assert not url.port or (url.port.isascii() and url.port.isdigit())
    assert " " not in url.host


GOOD_PARTS = st.tuples(
    st.sampled_from(["http", "S3", "x+y"]),
    st.sampled_from(["", "me@", "me:pw%20@", "a@b@"]),
    st.sampled_from(["h", "10.0.0.1", "[::1]", "[fe80::1%25en0]", "h%C3%A9", "é"]),
    st.sampled_from(["", ":", ":0", ":8080"]),
    st.sampled_from(["", "/", "/a%2Fb/", "/é /"]),
    st.sampled_from(["", "?", "?a=%zz", "#x", "?a#%41"]),
)


@given(GOOD_PARTS)
def test_a_url_put_together_from_good_parts_has_them(parts: tuple[str, ...]) -> None:
    scheme, user, host, port, path, tail = parts
    url = parse_url(f"{scheme}://{user}{host}{port}{path}{tail}")
    assert url.scheme == scheme.lower()
    assert url.host.endswith(port)
    assert url.port == port[1:]
    assert url.path == path.replace("%2F", "/")
    assert "@" not in url.host
